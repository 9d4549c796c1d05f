// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as disks of virtual machines: a socket `DIR/NAME.sock` for each mapped device, which
//! comes and goes with it.
//!
//! ```text
//!   dm.changed ─▶ sockets: listen, unlink ── accept ─▶ session (core 0) ◀─messages─ its thread
//!                                                         └─▶ queues, here and on other cores
//! ```
//!
//! Queues of a device that every core has itself are spread over the cores, each for good. Those of
//! other devices are all served by core 0.
//!
//! Invariants
//! - HO-VU1 A socket has one front end at a time; the next one waits until the first has gone and
//!   its requests have ended, on all cores.
//! - HO-VU2 A front end gets memory for notes of requests in flight only for a device of which a
//!   completed write survives the death of this process (`Engine::survives_kill`).
pub(crate) mod crossing;
mod session;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::{CoreId, Error, ErrorKind, Nanos, Status};
use control::Failure;
use dm::MappedDevice;
use reactor::{FileId, SqeOp, WaitList, core_id, driver_io, now, sleep, spawn};
use uring::{Files, GuestBudget, SocketAccess};
use vhost::control::{Connection, Message, PauseSignal};
use vhost::{Server, Session, Stats};

use crate::core_thread::CoreHandle;
use crate::descriptors::Places;
use crate::engine::{Engine, door_bytes_max};
use crate::io_failure::io_failure;
use crate::rundir::{check_owner, remove_stale_socket};
use crate::secondary::files_of_this_core;

/// What the names of sockets end with.
const SUFFIX: &str = ".sock";
/// Data of virtual machines in flight, at most: each core that serves queues has its share.
const BYTES_MAX: u64 = 256 << 20;
/// Smallest share of a core: the largest request.
const CORE_BYTES_MIN: u64 = 32 << 20;
/// How often the end looks whether sessions have ended.
const END_POLL: Nanos = Nanos::from_millis(5);
/// Pause after a failed accept. The usual cause is a lack of free descriptors.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(100);

/// A socket that listens.
struct Listener {
    file: FileId,
    /// Its id may be another file's: nothing is asked of it any more.
    closed: Cell<bool>,
}

/// The socket of a device.
struct DeviceSocket {
    device: Weak<MappedDevice>,
    name: String,
    path: PathBuf,
    /// None: it can't listen there; the log says why.
    listener: Option<Rc<Listener>>,
}

/// What a session did in earlier processes.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    age: Nanos,
    stats: Stats,
}

/// A session that runs.
pub(crate) struct VhostClient {
    pub(crate) number: u64,
    /// That of its device, whose name may change.
    minor: u32,
    session: Rc<Session>,
    /// The control socket.
    socket: Arc<OwnedFd>,
    /// The front end's process and its user.
    pub(crate) by: Option<(u32, u32)>,
    began: Nanos,
    /// What it did before this process.
    history: History,
    /// Tells its thread to pause.
    signal: PauseSignal,
    /// What the front end has set, while it is paused.
    paused: RefCell<Option<Connection>>,
    /// Its thread has ended.
    socket_ended: Cell<bool>,
    /// What the thread says was wrong.
    failure: RefCell<Option<String>>,
}

impl VhostClient {
    pub(crate) fn device(&self) -> String {
        self.session.name()
    }

    pub(crate) fn age(&self) -> Nanos {
        self.history.age + now().saturating_sub(self.began)
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.session.in_flight()
    }

    /// Whether its socket has ended, and only requests in flight are waited for.
    pub(crate) fn is_ending(&self) -> bool {
        self.socket_ended.get()
    }

    pub(crate) fn stats(&self) -> Stats {
        let (now, before) = (self.session.stats(), self.history.stats);
        Stats {
            requests: now.requests + before.requests,
            read_bytes: now.read_bytes + before.read_bytes,
            write_bytes: now.write_bytes + before.write_bytes,
            errors: now.errors + before.errors,
        }
    }

    /// The cores that serve queues of it, each with how many.
    pub(crate) fn queues_by_core(&self) -> BTreeMap<u16, u64> {
        let all = self.session.queues_by_core().into_iter();
        all.map(|(core, queues)| (core.0, queues)).collect()
    }
}

/// The door, on core 0.
pub(crate) struct VhostUser {
    dir: PathBuf,
    access: SocketAccess,
    engine: Weak<Engine>,
    files: Files,
    core: CoreHandle,
    server: Server,
    /// Cores that serve queues, and the share of each in the data in flight.
    cores: usize,
    core_bytes_max: u64,
    /// What of guests may be mapped.
    memory: Arc<GuestBudget>,
    sockets: RefCell<BTreeMap<u32, DeviceSocket>>,
    /// Whether guests have used devices in this process.
    used: RefCell<Vec<(Weak<MappedDevice>, Arc<AtomicBool>)>>,
    clients: RefCell<BTreeMap<u64, Rc<VhostClient>>>,
    next: Cell<u64>,
    stopping: Cell<bool>,
    /// For a hand-over (HO-VU3).
    is_paused: Cell<bool>,
    /// Sessions that are being made.
    beginning: Cell<usize>,
    /// A session or its socket has ended.
    changed: WaitList,
}

/// Makes the directory for the sockets if it is not there, and removes those that a dead process
/// has left. Nobody else may be able to write there.
///
/// # Errors
/// When it can't be used.
pub(crate) fn prepare(dir: &Path) -> Result<(), Failure> {
    let what = format!("--vhost-user {}", dir.display());
    let failed = |e: std::io::Error| io_failure(&e, &what);
    match DirBuilder::new().mode(0o755).create(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(e)),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(dir).map_err(failed)?;
    if !meta.is_dir() {
        return Err(Failure::new(ErrorKind::Invalid, format!("{what}: no directory")));
    }
    check_owner(&meta, &what)?;
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.to_string_lossy().ends_with(SUFFIX) {
            remove_stale_socket(&path)?;
        }
    }
    Ok(())
}

thread_local! {
    /// On core 0 only, while there is the door.
    static DOOR: RefCell<Option<Rc<VhostUser>>> = const { RefCell::new(None) };
    /// On other cores: what serves queues there. Made for the first.
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// The server of this core, which is not core 0.
fn server_of_this_core(bytes_max: u64) -> Server {
    SERVER.with_borrow_mut(|server| server.get_or_insert_with(|| Server::new(bytes_max)).clone())
}

/// The core of this thread is ending, and serves no queue any more.
pub(crate) fn end_queues_of_this_core() {
    drop(SERVER.take());
}

/// Where this core opens files; `None` once the door has ended.
fn files() -> Option<Files> {
    if core_id() == CoreId(0) {
        return door().map(|door| door.files.clone());
    }
    Some(files_of_this_core())
}

/// The door, if there is one. To be called on core 0.
pub(crate) fn door() -> Option<Rc<VhostUser>> {
    DOOR.with_borrow(Clone::clone)
}

/// The thread of a session has ended; `failure` says what was wrong, if something was. On core 0.
fn socket_has_ended(number: u64, failure: Option<String>) {
    if let Some(door) = door() {
        door.socket_has_ended(number, failure);
    }
}

/// The thread of a session has paused. On core 0.
fn socket_is_paused(number: u64, connection: Connection) {
    let Some(door) = door() else { return };
    let Some(client) = door.client(number) else { return };
    spawn(async move {
        let mut connection = connection;
        for (queue, base) in client.session.pause().await {
            connection.note_pause(queue, base);
        }
        client.paused.replace(Some(connection));
        if !door.is_paused.get() {
            // It was late: the pause has ended.
            door.go_on(&client);
        }
        door.changed.wake_all();
    });
}

/// All front ends go on; those whose requests have yet to end, when they have. On core 0.
pub(crate) fn resume() {
    let Some(door) = door() else { return };
    door.is_paused.set(false);
    for client in door.clients() {
        client.signal.take_back();
        door.go_on(&client);
    }
    door.changed.wake_all();
}

/// The front ends that are connected, in the order in which they connected. On core 0.
pub(crate) fn clients() -> Vec<Rc<VhostClient>> {
    door().map(|door| door.clients()).unwrap_or_default()
}

/// Ends the door, within `time`: no socket, and no session whose requests have not ended. On core
/// 0.
pub(crate) async fn shutdown(time: Nanos) {
    let Some(door) = door() else { return };
    let ended = Rc::new(Cell::new(false));
    let (ending, done) = (door.clone(), ended.clone());
    spawn(async move {
        ending.shutdown().await;
        done.set(true);
    });
    let deadline = now() + time;
    while !ended.get() && now() < deadline {
        sleep(END_POLL).await;
    }
    if !ended.get() {
        tracing::warn!("requests of virtual machines did not end in time");
    }
    // On its core: what it has open is closed there.
    drop(DOOR.take());
}

impl VhostUser {
    /// The door, without sockets: [`VhostUser::listen_all`].
    pub(crate) fn start(
        engine: &Rc<Engine>,
        dir: &Path,
        access: SocketAccess,
        core: CoreHandle,
        memory: Arc<GuestBudget>,
    ) {
        let bytes_max = door_bytes_max(BYTES_MAX, reactor::memory().limit());
        // No more cores than can have room for a request each.
        let most = usize::try_from(bytes_max / CORE_BYTES_MIN).unwrap_or(usize::MAX);
        let cores = engine.places.count().min(most);
        let core_bytes_max = bytes_max / u64::try_from(cores).expect("at most 16");
        let queue_places = Places::of_process().guest_queues;
        let door = Rc::new(VhostUser {
            dir: dir.to_owned(),
            access,
            engine: Rc::downgrade(engine),
            files: engine.files().clone(),
            core,
            server: Server::with_queue_places(core_bytes_max, queue_places),
            cores,
            core_bytes_max,
            memory,
            sockets: RefCell::default(),
            used: RefCell::default(),
            clients: RefCell::default(),
            next: Cell::new(1),
            stopping: Cell::new(false),
            is_paused: Cell::new(false),
            beginning: Cell::new(0),
            changed: WaitList::new(),
        });
        DOOR.set(Some(door));
    }

    /// Has the sockets of all devices in the directory, which was prepared, from now on.
    pub(crate) fn listen_all(engine: &Rc<Engine>) {
        let Some(door) = door() else { return };
        let seen = engine.dm.changes();
        door.follow(engine);
        spawn(watch(door, Rc::downgrade(engine), seen));
    }

    fn clients(&self) -> Vec<Rc<VhostClient>> {
        self.clients.borrow().values().cloned().collect()
    }

    /// Has the sockets that the devices ask for, and tells guests of new sizes.
    fn follow(self: &Rc<Self>, engine: &Engine) {
        let mut wanted: BTreeMap<u32, Rc<MappedDevice>> = BTreeMap::new();
        let is_shown = |d: &Rc<MappedDevice>| d.info().live_table && d.doors().has_vhost_user();
        for device in engine.dm.devices().into_iter().filter(is_shown) {
            wanted.insert(device.minor(), device);
        }
        let fits = |socket: &DeviceSocket, minor: u32| {
            let device = wanted.get(&minor).filter(|_| !self.stopping.get());
            device.is_some_and(|device| {
                let same = socket.device.upgrade().is_some_and(|own| Rc::ptr_eq(&own, device));
                same && socket.name == device.info().name
            })
        };
        let mut sockets = self.sockets.borrow_mut();
        let gone: Vec<u32> =
            sockets.iter().filter(|(n, s)| !fits(s, **n)).map(|(n, _)| *n).collect();
        for socket in gone.iter().filter_map(|minor| sockets.remove(minor)) {
            if let Some(listener) = socket.listener {
                listener.closed.set(true);
                self.files.close(listener.file);
                let _ = std::fs::remove_file(&socket.path); // it may not exist any more
            }
        }
        for (minor, device) in wanted.into_iter().filter(|_| !self.stopping.get()) {
            sockets.entry(minor).or_insert_with(|| self.listen(&device));
        }
        drop(sockets);
        for client in self.clients() {
            client.session.tell_capacity();
        }
    }

    fn listen(self: &Rc<Self>, device: &Rc<MappedDevice>) -> DeviceSocket {
        let name = device.info().name;
        let path = self.dir.join(format!("{}{SUFFIX}", dm::mangle(&name)));
        let access = SocketAccess { descriptors: true, ..self.access };
        let listener = match self.files.listen_unix(&path, access) {
            Ok(file) => {
                let listener = Rc::new(Listener { file, closed: Cell::new(false) });
                spawn(accept(self.clone(), listener.clone(), Rc::downgrade(device)));
                Some(listener)
            }
            Err(e) => {
                tracing::error!(device = name, "vhost-user: no socket: {}", e.chain());
                None
            }
        };
        DeviceSocket { device: Rc::downgrade(device), name, path, listener }
    }

    /// One flag for all sessions of a device: whether a guest has used it in this process.
    fn was_used(&self, device: &Rc<MappedDevice>) -> Arc<AtomicBool> {
        let mut used = self.used.borrow_mut();
        used.retain(|(own, _)| own.strong_count() > 0);
        let is_it =
            |own: &Weak<MappedDevice>| own.upgrade().is_some_and(|d| Rc::ptr_eq(&d, device));
        if let Some((_, flag)) = used.iter().find(|(own, _)| is_it(own)) {
            return flag.clone();
        }
        let flag = Arc::<AtomicBool>::default();
        used.push((Rc::downgrade(device), flag.clone()));
        flag
    }

    fn client(&self, number: u64) -> Option<Rc<VhostClient>> {
        self.clients.borrow().get(&number).cloned()
    }

    /// Serves one front end until it has gone.
    async fn serve(self: &Rc<Self>, device: &Rc<MappedDevice>, file: FileId) {
        let socket = self.files.copy_of_socket(file);
        self.files.close(file);
        let name = device.info().name;
        let (Some(socket), Some(engine)) = (socket, self.engine.upgrade()) else { return };
        // HO-VU1: the device may have been given another socket while one was served.
        let minor = device.minor();
        let is_free = || self.clients.borrow().values().all(|client| client.minor != minor);
        self.changed.wait_for(|| is_free() && !self.is_paused.get()).await; // HO-VU3
        if self.stopping.get() {
            return;
        }
        let Ok(opened) = device.open() else { return };
        self.beginning.set(self.beginning.get() + 1);
        let survives_kill = engine.survives_kill(device).await;
        let export = self.export(&engine.places, opened, survives_kill);
        let number = self.next.replace(self.next.get() + 1);
        let new = (History::default(), Connection::default());
        let client = self.begin((number, minor), export, Arc::new(socket), new).await;
        self.beginning.set(self.beginning.get() - 1);
        self.changed.wake_all();
        let client = match client {
            Ok(client) => client,
            Err(e) => return tracing::error!(device = name, "vhost-user: {e}"),
        };
        tracing::info!(device = name, number, survives_kill, "vhost-user: front end connected");
        self.follow_to_end(&client, &name).await;
    }

    /// Ends a session when its socket has ended.
    async fn follow_to_end(&self, client: &VhostClient, name: &str) {
        let number = client.number;
        self.changed.wait_for(|| client.socket_ended.get()).await;
        client.session.end().await;
        self.clients.borrow_mut().remove(&number);
        self.changed.wake_all();
        let failure = client.session.failure().or_else(|| client.failure.take());
        match failure {
            Some(why) => {
                tracing::warn!(device = name, number, "vhost-user: session ended: {why}");
            }
            None => tracing::info!(device = name, number, "vhost-user: front end disconnected"),
        }
    }

    /// Begins a session with what its front end has set in an earlier process, if it has.
    async fn begin(
        &self,
        (number, minor): (u64, u32),
        (export, places): session::Exported,
        socket: Arc<OwnedFd>,
        (history, connection): (History, Connection),
    ) -> Result<Rc<VhostClient>, Error> {
        let signal = PauseSignal::new()?;
        let by = session::peer(&socket);
        let of_cut_off = socket.clone();
        let cut_off = Arc::new(move || session::shut_down(&of_cut_off));
        let features = connection.features();
        let begun = self.server.begin(export, places, cut_off, features).await;
        let client = Rc::new(VhostClient {
            number,
            minor,
            session: Rc::new(begun),
            socket,
            by,
            began: now(),
            history,
            signal,
            paused: RefCell::default(),
            socket_ended: Cell::new(false),
            failure: RefCell::default(),
        });
        self.clients.borrow_mut().insert(number, client.clone());
        if self.is_paused.get() {
            client.signal.give(); // HO-VU3
        }
        let (connection, messages) = connection.begin_again();
        let started = self.start_thread(&client, connection, messages);
        if let Err(e) = started {
            client.session.end().await;
            self.clients.borrow_mut().remove(&number);
            self.changed.wake_all();
            return Err(Error::io(format!("its thread: {e}")));
        }
        if self.stopping.get() {
            client.session.cut_off();
        }
        Ok(client)
    }

    fn start_thread(
        &self,
        client: &VhostClient,
        connection: Connection,
        first: Vec<Message>,
    ) -> std::io::Result<()> {
        let memory = self.memory.clone();
        session::start_thread(self.core.clone(), client, connection, first, memory)
    }

    /// Starts a session again that is paused.
    fn go_on(&self, client: &VhostClient) {
        let Some(connection) = client.paused.take() else { return };
        let kicks = connection.kicks();
        let started = self.start_thread(client, connection, kicks);
        if let Err(e) = started {
            client.session.cut_off();
            self.socket_has_ended(client.number, Some(e.to_string()));
        }
    }

    fn socket_has_ended(&self, number: u64, failure: Option<String>) {
        if let Some(client) = self.client(number) {
            client.failure.replace(failure);
            client.socket_ended.set(true);
            self.changed.wake_all();
        }
    }

    /// Ends a session; its requests in flight end first. False when there is none of this number.
    pub(crate) fn disconnect(&self, number: u64) -> bool {
        let client = self.client(number);
        client.inspect(|client| client.session.cut_off()).is_some()
    }

    /// Ends the door. Returns when the requests of all sessions have ended.
    async fn shutdown(self: Rc<Self>) {
        self.stopping.set(true);
        if self.is_paused.get() {
            resume();
        }
        if let Some(engine) = self.engine.upgrade() {
            self.follow(&engine);
        }
        for client in self.clients() {
            client.session.cut_off();
        }
        self.changed.wait_for(|| self.clients.borrow().is_empty()).await;
    }
}

block::debug_as!(VhostUser, s =>
    "VhostUser({}, {} clients)", s.dir.display(), s.clients.borrow().len());

/// Follows the devices until the door ends.
async fn watch(door: Rc<VhostUser>, engine: Weak<Engine>, mut seen: u32) {
    while !door.stopping.get() {
        let Some(dm) = engine.upgrade().map(|engine| engine.dm.clone()) else { return };
        seen = dm.changed(seen).await;
        if let Some(engine) = engine.upgrade() {
            door.follow(&engine);
        }
    }
}

/// Serves one front end of a device after the other (HO-VU1), until its listener is closed.
async fn accept(door: Rc<VhostUser>, listener: Rc<Listener>, device: Weak<MappedDevice>) {
    while !listener.closed.get() {
        let accepted = driver_io(listener.file, SqeOp::Accept).await;
        let file = FileId(accepted.value);
        let device = device.upgrade().filter(|_| !listener.closed.get());
        match (accepted.status, device) {
            (Status::Ok, Some(device)) => door.serve(&device, file).await,
            (Status::Ok, None) => door.files.close(file),
            (Status::Again, _) => sleep(ACCEPT_RETRY).await,
            _ => return,
        }
    }
}
