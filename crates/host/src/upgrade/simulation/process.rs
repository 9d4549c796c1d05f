// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon in simulation: a device mapper with a write cache, an NBD server, and the two sides of
//! a hand-over, on a core of its own.
use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

use block::{BlockDevice, CoreId, Error, LocalFuture, Nanos};
use dm::{Dm, Opened, Resolver, TargetType};
use handover::{
    Device, Frame, Greeting, Leaf, Listener, ListenerRole, Message, OldDaemon, Parcel, Takeover,
    Transport,
};
use nbd::{Export, Exports, Options, Paused, Peer, Server};
use reactor::{FileId, sleep, spawn};
use writecache::WriteCache;

use super::setup::{Process, Request, Setup};
use super::socket::{Descriptor, Socket, SocketDescriptor, SocketInUse};
use crate::engine::{go_on, paused_session, session_of};

/// The device, its origin and its cache device.
pub(super) const DEVICE: &str = "wc";
pub(super) const ORIGIN: &str = "origin";
pub(super) const CACHE: &str = "cache";

/// How a daemon begins.
pub(super) enum Beginning {
    /// By itself, at the socket of the service manager.
    Start,
    /// In the place of the daemon at the other end.
    TakeOver(Socket),
}

/// Opens the simulated disks, each with the lock that was passed, or with one of its own.
struct Disks {
    setup: Rc<Setup>,
    process: Rc<Process>,
}

impl Resolver for Disks {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let opened = self.open_disk(word);
        Box::pin(async move { opened })
    }
}

impl Disks {
    fn open_disk(&self, word: &str) -> Result<Rc<dyn BlockDevice>, Error> {
        let mut locks = self.process.locks.borrow_mut();
        if !locks.contains_key(word) {
            locks.insert(word.to_owned(), self.setup.locks.open(word)?);
        }
        let file = self.setup.disk(word)?;
        Ok(self.setup.world.borrow().leaf(file))
    }
}

/// The device as the one export.
struct DeviceExports(Rc<Dm>);

struct DeviceExport(Opened);

impl Exports for DeviceExports {
    fn list(&self) -> Vec<String> {
        vec![DEVICE.into()]
    }
    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        Ok(Box::new(DeviceExport(self.0.open(name)?)))
    }
}

impl Export for DeviceExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.0.device().clone()
    }
    fn name(&self) -> String {
        DEVICE.into()
    }
}

/// A daemon whose device is open.
struct Daemon {
    setup: Rc<Setup>,
    process: Rc<Process>,
    dm: Rc<Dm>,
    server: Server,
    listener: FileId,
}

/// The program.
pub(super) async fn run(setup: Rc<Setup>, process: Rc<Process>, beginning: Beginning) {
    let begun = match beginning {
        Beginning::Start => start(&setup, &process).await,
        Beginning::TakeOver(socket) => take_over(&setup, &process, socket).await,
    };
    match &begun {
        Ok(daemon) => daemon.serve().await,
        // The daemon before notes why.
        Err(_) if process.is_successor => {}
        Err(why) => setup.verdict.fail(format!("the daemon does not start: {}", why.chain())),
    }
    setup.request(Request::End(process.core));
    // As a process: nothing is dropped in order.
    pending::<()>().await;
}

async fn start(setup: &Rc<Setup>, process: &Rc<Process>) -> Result<Daemon, Error> {
    while !setup.is_free() {
        setup.pause(10_000_000).await;
    }
    let listener = SocketDescriptor::copy_of(&setup.world, setup.listener);
    let daemon = Daemon::open(setup, process, listener.take(process.core)).await?;
    process.is_up.set(true);
    daemon.server.serve(daemon.listener, Peer::Local);
    Ok(daemon)
}

/// HO-UP3: everything is open before COMMIT, and nothing is read.
async fn take_over(
    setup: &Rc<Setup>,
    process: &Rc<Process>,
    socket: Socket,
) -> Result<Daemon, Error> {
    setup.world.borrow_mut().set_lifeline(socket.file, CoreId(process.core));
    setup.pause(1_000_000).await;
    let socket = SocketInUse::new(socket, super::LONG, || {});
    let takeover = Takeover::new(socket, setup.fault());
    let opened = open_inherited(setup, process, &takeover).await;
    let (daemon, sessions) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            takeover.refuse(e.chain()).await;
            return Err(e);
        }
    };
    // Its cache works meanwhile.
    setup.pause(setup.draws.slowness).await;
    let _committed = takeover.commit().await?;
    process.is_up.set(true);
    for (session, socket, unread) in sessions {
        let export = DeviceExports(daemon.dm.clone()).open(&session.device)?;
        let session = paused_session(session, socket.take(process.core), unread);
        daemon.server.adopt(session, export)?;
    }
    daemon.server.serve(daemon.listener, Peer::Local);
    takeover.ended().await;
    Ok(daemon)
}

type ArrivedSession = (handover::Session, SocketDescriptor, Vec<u8>);

async fn open_inherited<T: Transport<Descriptor = Descriptor>>(
    setup: &Rc<Setup>,
    process: &Rc<Process>,
    takeover: &Takeover<T>,
) -> Result<(Daemon, Vec<ArrivedSession>), Error> {
    takeover.greet(Greeting::new("sim")).await?;
    let load = takeover.receive().await?;
    let (mut listener, mut sessions) = (None, Vec::new());
    for (frame, descriptor) in load {
        match (frame.message, descriptor) {
            (Message::Listener(_), Some(Descriptor::Socket(file))) => listener = Some(file),
            (Message::Leaf(leaf), Some(Descriptor::Disk(file))) => {
                assert_eq!(leaf.name, file.name);
                process.locks.borrow_mut().insert(leaf.name, file);
            }
            (Message::Session(session), Some(Descriptor::Socket(file))) => {
                sessions.push((session, file, frame.bytes));
            }
            (Message::Device(device), None) => assert_eq!(device.name, DEVICE),
            (other, _) => panic!("{other:?} is not expected"),
        }
    }
    let listener = listener.expect("it is sent").take(process.core);
    match setup.draw_refusal() {
        Some(false) => Err(Error::io("planned: no memory")),
        Some(true) => {
            let daemon = Daemon::open(setup, process, listener).await?;
            setup.pause(setup.draws.slowness).await;
            // As a process: it is there until that ends.
            spawn(async move {
                let _daemon = daemon;
                pending::<()>().await;
            });
            Err(Error::io("planned: refused after the devices were opened"))
        }
        None => Ok((Daemon::open(setup, process, listener).await?, sessions)),
    }
}

impl Daemon {
    /// Opens the device.
    async fn open(
        setup: &Rc<Setup>,
        process: &Rc<Process>,
        listener: FileId,
    ) -> Result<Daemon, Error> {
        let disks = Disks { setup: setup.clone(), process: process.clone() };
        let dm = Dm::new(Rc::new(disks));
        let journal_entries = setup.draws.journal_entries;
        dm.register(TargetType::new(&writecache::MANUAL, move |ctx, args| {
            Box::pin(async move {
                let words: Vec<&str> = args.iter().map(String::as_str).collect();
                let mut config = writecache::Config::parse(&words)?;
                config.set_journal_capacity(journal_entries);
                let origin = ctx.lookup(&config.origin).await?;
                let cache = ctx.lookup(&config.cache).await?;
                let cache = WriteCache::new(ctx.device(), config, origin, cache, ctx.len())?;
                Ok(cache as Rc<dyn block::Target>)
            })
        }));
        dm.create(DEVICE, None, Some(&setup.draws.table)).await?;
        let exports = Rc::new(DeviceExports(dm.clone()));
        let server = Server::new_planted(exports, Options::default(), setup.server_fault());
        let (setup, process) = (setup.clone(), process.clone());
        Ok(Daemon { setup, process, dm, server, listener })
    }

    /// Serves, and hands over now and then, until a successor has everything or the run ends.
    async fn serve(&self) {
        let setup = &self.setup;
        loop {
            setup.pause(setup.draws.time_between_upgrades).await;
            if setup.is_ending.get() {
                return self.end().await;
            }
            if setup.begin_upgrade(self.process.core) && self.hand_over().await {
                setup.pause(100_000).await;
                return;
            }
        }
    }

    /// Returns whether a successor has everything.
    async fn hand_over(&self) -> bool {
        let setup = &self.setup;
        let [here, there] = Socket::pair(&setup.world);
        let child = setup.start(Beginning::TakeOver(there), true);
        setup.world.borrow_mut().give_stream(here.file, CoreId(self.process.core));
        let process = self.process.clone();
        let socket =
            SocketInUse::new(here.clone(), setup.draws.step, move || process.is_up.set(false));
        let (paused, daemon) = (RefCell::default(), self);
        let old = HandingOver { daemon, socket, child, paused };
        let done = handover::hand_over(&old, Greeting::new("sim"), setup.fault()).await;
        setup.upgrading.set(None);
        match done {
            Ok(_) => {
                super::count(0, 1);
                return true;
            }
            Err(e) => {
                super::count(1, 1);
                setup.note(&e);
            }
        }
        self.process.is_up.set(true);
        setup.world.borrow_mut().close_stream(here.file);
        false
    }

    /// Ends in order: the origin has everything.
    async fn end(&self) {
        let flushed = async {
            self.dm.flush(DEVICE).await?;
            self.dm.suspend(DEVICE).await
        };
        match flushed.await {
            Ok(()) => self.setup.has_ended.set(true),
            Err(e) => self.setup.verdict.fail(format!("a flush at the end: {}", e.chain())),
        }
    }
}

/// The daemon while it hands over.
struct HandingOver<'a> {
    daemon: &'a Daemon,
    socket: SocketInUse,
    child: Rc<Process>,
    paused: RefCell<Option<Paused>>,
}

impl OldDaemon for HandingOver<'_> {
    type Failure = Error;
    type Transport = SocketInUse;

    fn transport(&self) -> &SocketInUse {
        &self.socket
    }

    async fn prepare(&self) -> Result<(), Error> {
        self.daemon.setup.pause(10_000).await;
        self.daemon.dm.pause_background(DEVICE, true).await
    }

    async fn take_back(&self) {
        if let Err(e) = self.daemon.dm.pause_background(DEVICE, false).await {
            self.daemon.setup.verdict.fail(format!("its background stays paused: {}", e.chain()));
        }
    }

    async fn pause_clients(&self) -> Result<(), Error> {
        let paused = self.daemon.server.pause(super::LONG).await?;
        *self.paused.borrow_mut() = Some(paused);
        Ok(())
    }

    async fn hold_devices(&self) -> Result<(), Error> {
        self.daemon.dm.suspend(DEVICE).await
    }

    async fn load(&self, _version: u32) -> Result<Vec<Parcel<Descriptor>>, Error> {
        let Daemon { setup, process, listener, .. } = self.daemon;
        let paused = self.paused.borrow_mut().take().expect("it is paused");
        assert_eq!(paused.lost_writes, [""; 0], "no flush fails here");
        let with = |message, descriptor| (Frame::new(message), Some(descriptor));
        let socket = |file| Descriptor::Socket(SocketDescriptor::copy_of(&setup.world, file));
        let nbd = Listener { role: ListenerRole::Nbd, stored: None, of_unit: true };
        let mut load = vec![with(Message::Listener(nbd), socket(*listener))];
        for (name, file) in process.locks.borrow().iter() {
            let leaf = Message::Leaf(Leaf { name: name.clone() });
            load.push(with(leaf, Descriptor::Disk(file.clone())));
        }
        let device = Device {
            name: DEVICE.into(),
            uuid: None,
            minor: 0,
            table: Some(setup.draws.table.clone()),
            force: None,
            attributes: Vec::new(),
            ublk: false,
            used_by_guest: false,
        };
        load.push((Frame::new(Message::Device(device)), None));
        for session in paused.sessions {
            let message = Message::Session(session_of(&session));
            let frame = Frame { message, bytes: session.unread };
            load.push((frame, Some(socket(session.socket))));
        }
        Ok(load)
    }

    fn successor_lives(&self) -> bool {
        self.child.is_alive.get()
    }

    async fn end_successor(&self, has_files: bool) {
        self.daemon.setup.request(Request::End(self.child.core));
        while self.child.is_alive.get() {
            sleep(Nanos(1_000)).await;
        }
        if has_files {
            self.socket.ended().await;
        }
    }

    async fn release_devices(&self, anew: bool) {
        let Daemon { setup, dm, .. } = self.daemon;
        if let Err(e) = go_on(dm, DEVICE, &setup.draws.table, anew).await {
            setup.verdict.fail(format!("the device stays suspended: {}", e.chain()));
        }
    }

    async fn resume_clients(&self) {
        self.daemon.server.resume();
    }

    async fn leave(&self) {
        self.daemon.server.abandon().await;
        self.daemon.process.locks.borrow_mut().clear();
    }
}
