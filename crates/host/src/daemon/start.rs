// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a daemon begins: by itself, or with what the daemon before leaves (`upgrade`).
//!
//! ```text
//!   start       lock · cores ─┬─ listeners · devices of the config ─────────────┬─ doors · serve
//!   take over   cores · what ─┘  listeners · devices of the one before · COMMIT ─┘
//!               is left
//! ```
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::{Error, ErrorKind};
use control::{Failure, api};
use tokio::sync::{Notify, watch};
use uring::{GuestBudget, LockOwner, SocketAccess};

use super::{Daemon, busy_poll_limit, shutdown_time};
use crate::addr::Addr;
use crate::config::{Config, DeviceConfig, ServeArgs};
use crate::core_thread::{CoreHandle, CoreThreads};
use crate::endpoints::Endpoints;
use crate::engine::{CrossingClients, Engine, NbdListener};
use crate::fd_store::FdStore;
use crate::fuse_host::FuseExport;
use crate::http::{Connections, HttpListener, Listener, serve};
use crate::memory;
use crate::observe::{self, Monitor};
use crate::passed::{ListenerRole, ServiceManager};
use crate::reload::{Certificates, ConfigFile, ConfiguredDevices};
use crate::retry::Patience;
use crate::routes::State;
use crate::rundir::{Lock, RunDir};
use crate::socket_access::socket_access;
use crate::tls;
use crate::ublk_door::memory_pressure;
use crate::upgrade::{HandoverSource, Predecessor, PredecessorState, refuse_unknown};
use crate::vhost_user::{self, VhostUser};

/// How long a start waits for the lock of a process that was killed: as long as for its files.
const LOCK_WAIT: Duration = Duration::from_secs(60);
/// Pause between two attempts to take what a killed daemon still has.
const START_RETRY_PAUSE: Duration = Duration::from_millis(5);

/// How a daemon begins.
pub(crate) enum Beginning {
    /// With what a service manager has.
    Start(ServiceManager),
    /// For a command (`millpond run`): no other process can take over.
    ForCommand,
    /// With what the daemon before leaves.
    TakeOver(Predecessor),
}

/// What a daemon begins with.
struct Begun {
    lock: Lock,
    manager: ServiceManager,
    core: CoreHandle,
    threads: CoreThreads,
    /// Of a daemon that takes over.
    inherited: Option<Inherited>,
}

/// Devices and clients of the daemon before.
struct Inherited {
    from: Predecessor,
    devices: Vec<handover::Device>,
    clients: CrossingClients,
}

impl Begun {
    async fn of(
        beginning: Beginning,
        run_dir: &RunDir,
        start_cores: impl FnOnce() -> Result<(CoreHandle, CoreThreads), Failure>,
    ) -> Result<Begun, Failure> {
        match beginning {
            Beginning::Start(manager) => Begun::start(run_dir, manager, start_cores).await,
            Beginning::ForCommand => {
                Begun::start(run_dir, ServiceManager::default(), start_cores).await
            }
            Beginning::TakeOver(from) => Begun::take_over(run_dir, from, start_cores).await,
        }
    }

    /// Takes the lock of the run directory and starts the cores.
    async fn start(
        run_dir: &RunDir,
        manager: ServiceManager,
        start_cores: impl FnOnce() -> Result<(CoreHandle, CoreThreads), Failure>,
    ) -> Result<Begun, Failure> {
        let lock = run_dir.take_from_dead(LOCK_WAIT).await?;
        memory::check_memory_dir(run_dir.path());
        memory::remove_used_journals(run_dir.path());
        let (core, threads) = start_cores()?;
        Ok(Begun { lock, manager, core, threads, inherited: None })
    }

    /// Starts the cores, and then takes what the daemon before leaves: that one stops before it
    /// sends it.
    async fn take_over(
        run_dir: &RunDir,
        from: Predecessor,
        start_cores: impl FnOnce() -> Result<(CoreHandle, CoreThreads), Failure>,
    ) -> Result<Begun, Failure> {
        refuse_unknown(run_dir).await?;
        let (core, threads) = start_cores()?;
        let PredecessorState { lock, listeners, leaves, devices, clients } = from.state().await?;
        let hold =
            async move |e: Rc<Engine>| leaves.into_iter().try_for_each(|file| e.files().hold(file));
        core.call(hold).await??;
        let lock = Lock::of_predecessor(lock);
        let manager = ServiceManager::with_listeners(listeners);
        let inherited = Some(Inherited { from, devices, clients });
        Ok(Begun { lock, manager, core, threads, inherited })
    }
}

/// The listeners of a daemon.
struct Listeners {
    nbd: Vec<NbdListener>,
    control: Vec<HttpListener>,
    metrics: Vec<HttpListener>,
}

impl Listeners {
    async fn open(
        core: &CoreHandle,
        endpoints: Endpoints,
        access: SocketAccess,
        patience: Patience,
        store: &mut FdStore,
    ) -> Result<Listeners, Failure> {
        let Endpoints { nbd, control, metrics, .. } = endpoints;
        let mut nbd =
            core.call(async move |e: Rc<Engine>| e.listen(nbd, access, patience).await).await??;
        for listener in &mut nbd {
            if let Some(socket) = listener.opened.take() {
                listener.passed.stored = store.keep(ListenerRole::Nbd, &socket);
            }
        }
        let control = Listener::open_all("control socket", ListenerRole::Control, control, store)?;
        let metrics = Listener::open_all("--metrics", ListenerRole::Metrics, metrics, store)?;
        Ok(Listeners { nbd, control, metrics })
    }

    /// Where the daemon serves.
    fn addrs(&self) -> Vec<(ListenerRole, Addr)> {
        let http = |role, all: &[HttpListener]| {
            all.iter().map(|one| (role, one.addr.clone())).collect::<Vec<_>>()
        };
        let nbd = self.nbd.iter().map(|one| (ListenerRole::Nbd, one.addr.clone()));
        let control = http(ListenerRole::Control, &self.control);
        nbd.chain(control).chain(http(ListenerRole::Metrics, &self.metrics)).collect()
    }

    /// What a successor gets.
    async fn source(&self, core: &CoreHandle, lock: &Lock) -> Result<HandoverSource, Failure> {
        let limit = || Error::new(ErrorKind::Limit, "no descriptor is free");
        let mut all = Vec::new();
        for listener in self.control.iter().chain(&self.metrics) {
            all.push((listener.passed.clone(), listener.descriptor()?));
        }
        for listener in &self.nbd {
            let file = listener.file;
            let copy = core.call(async move |e: Rc<Engine>| e.files().copy_of_socket(file)).await?;
            all.push((listener.passed.clone(), copy.ok_or_else(limit)?));
        }
        HandoverSource::new(lock.descriptor()?, all)
    }
}

impl Daemon {
    /// Starts a daemon, which also serves at the listeners that it is given. When it returns, its
    /// devices are there and clients are served: those of the config, or those of the daemon
    /// before.
    pub(crate) async fn start(
        run_dir: &RunDir,
        config: Config,
        beginning: Beginning,
    ) -> Result<Daemon, Failure> {
        let from = match &beginning {
            Beginning::Start(_) | Beginning::ForCommand => None,
            Beginning::TakeOver(from) => Some(from.clone()),
        };
        observe::note_start();
        let started = Daemon::begin(run_dir, config, beginning).await;
        if let (Err(failure), Some(from)) = (&started, &from) {
            from.refuse(failure).await;
        }
        started
    }

    async fn begin(
        run_dir: &RunDir,
        config: Config,
        beginning: Beginning,
    ) -> Result<Daemon, Failure> {
        let Config { file, serve: options, devices } = config;
        let certificates = options.nbd_tls_certs.as_deref().map(tls::server_option).transpose()?;
        let is_protected = tls::protects(certificates.as_ref());
        let access = socket_access(&options)?;
        let shutdown = shutdown_time(options.shutdown_timeout.as_deref())?;
        uring::set_poll_limit(busy_poll_limit(options.busy_poll.as_deref())?);
        memory::set(options.memory.as_deref())?;
        let is_for_command = matches!(beginning, Beginning::ForCommand);
        let has_disks = options.ublk || devices.iter().any(|device| device.ublk);
        let start_cores = || start_cores(run_dir, &options, has_disks);
        let begun = Begun::of(beginning, run_dir, start_cores).await?;
        let Begun { mut lock, manager, core, threads, inherited } = begun;
        let ServiceManager { listeners, mut store } = manager;
        let mut endpoints = Endpoints::new(run_dir, &options, is_protected, access, listeners)?;
        warn_of_access(&options, &endpoints);
        let patience = patience_after(&lock);
        if access.mode != SocketAccess::OWNER.mode {
            run_dir.let_others_pass()?;
        }
        endpoints.drop_unused(&store);
        let sockets = endpoints.own_paths(&store);
        let listeners = Listeners::open(&core, endpoints, access, patience, &mut store).await?;
        let source = match is_for_command {
            true => None,
            false => Some(listeners.source(&core, &lock).await?),
        };
        let addrs = listeners.addrs();
        let Listeners { nbd, control, metrics } = listeners;
        let disks = (run_dir.path().to_owned(), options.ublk);
        let version = version(&options, &nbd);
        let of_nbd = certificates.clone();
        let serve_nbd = async move |e: Rc<Engine>| e.serve(&nbd, of_nbd.as_ref());
        let mut serve_nbd = Some(serve_nbd);
        let devices = match inherited {
            None => {
                set_up_disks(&core, disks).await?;
                let devices = create(&core, devices, patience).await?;
                core.call(async |e: Rc<Engine>| e.warn_of_waiting_disks()).await?;
                serve_vhost_user(&core, &options, access, patience).await?;
                devices
            }
            Some(Inherited { from, devices: inherited, clients }) => {
                tracing::debug!("hand-over: opens the devices");
                open_inherited(&core, &inherited).await?;
                tracing::debug!("hand-over: the devices are open");
                let committed = from.commit().await?;
                lock.take_over()?;
                start_vhost_user(&core, &options, access).await?;
                adopt(&core, clients, &inherited, committed).await?;
                if let Some(serve) = serve_nbd.take() {
                    core.call(serve).await?;
                }
                tracing::debug!("hand-over: clients are served");
                from.ended().await; // whoever waits for that is served from then on
                set_up_disks(&core, disks).await?;
                make_disks(&core, &inherited).await?;
                listen_vhost_user(&core, &options, Patience::StartAfterKill).await?;
                sort_out(devices, &inherited)
            }
        };
        let (closing, closed) = watch::channel(false);
        let certificates_again =
            Certificates::new(options.nbd_tls_certs.clone(), certificates.as_ref());
        let state = Arc::new(State {
            core,
            version,
            config: ConfigFile::new(file, devices, certificates_again),
            options,
            stop: Notify::new(),
            closing: closed,
            unsettled: watch::channel(None).0,
            pause: watch::channel(false).0,
            changes: Arc::default(),
            source,
            handed_over: Notify::new(),
        });
        let fuse = start_fuse(&state)?;
        let connections = serve_http(&state, control, metrics);
        if let Some(serve) = serve_nbd {
            state.core.call(serve).await?;
        }
        lock.begin_work();
        Ok(Daemon {
            run_dir: run_dir.clone(),
            addrs,
            state,
            closing,
            connections,
            threads,
            sockets,
            fuse,
            shutdown,
            lock,
        })
    }
}

fn start_cores(
    run_dir: &RunDir,
    options: &ServeArgs,
    has_disks: bool,
) -> Result<(CoreHandle, CoreThreads), Failure> {
    if has_disks {
        // Before the cores: their threads are this one's.
        memory_pressure::prepare_thread();
        memory_pressure::lock_program();
    }
    let cores = options.cores.unwrap_or(1);
    CoreHandle::start(options.default_export.clone(), cores, Some(run_dir.path()))
}

fn version(options: &ServeArgs, nbd: &[NbdListener]) -> api::Version {
    api::Version {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        pid_namespace: crate::pid_namespace(),
        cores: options.cores.unwrap_or(1),
        nbd: nbd.iter().map(|listener| listener.addr.to_string()).collect(),
        default_export: options.default_export.clone(),
    }
}

/// How patient a start is that has this lock.
fn patience_after(lock: &Lock) -> Patience {
    let Some(pid) = lock.killed() else { return Patience::Start };
    tracing::info!(pid, "the daemon of this run directory before did not end in order");
    Patience::StartAfterKill
}

/// Creates the devices of a config, in order. One that is optional and fails is left out.
async fn create(
    core: &CoreHandle,
    devices: Vec<DeviceConfig>,
    patience: Patience,
) -> Result<ConfiguredDevices, Failure> {
    let mut all = ConfiguredDevices::default();
    core.call(async move |e: Rc<Engine>| e.leaves.set_patience(patience)).await?;
    for device in devices {
        let (place, optional, new) = (device.place.clone(), device.optional, device.clone());
        let created = core.call(async move |e: Rc<Engine>| e.create_configured(new).await);
        match created.await? {
            Ok(()) => all.created.push(device),
            Err(failure) if optional => {
                all.left_out.push(device);
                let failure = failure.within(&place);
                tracing::error!("{failure}: it is optional: the daemon starts without it");
            }
            Err(failure) => return Err(failure.within(place)),
        }
    }
    core.call(async |e: Rc<Engine>| e.leaves.set_patience(Patience::None)).await?;
    Ok(all)
}

async fn set_up_disks(
    core: &CoreHandle,
    (dir, serves_all): (PathBuf, bool),
) -> Result<(), Failure> {
    core.call(async move |e: Rc<Engine>| e.set_up_disks(dir, serves_all).await).await?
}

/// Opens the devices of the daemon before.
async fn open_inherited(core: &CoreHandle, devices: &[handover::Device]) -> Result<(), Failure> {
    for device in devices {
        let device = device.clone();
        core.call(async move |e: Rc<Engine>| e.create_inherited(device).await).await??;
    }
    let left = core.call(async |e: Rc<Engine>| e.files().end_holding()).await?;
    if left > 0 {
        tracing::warn!(files = left, "files of the daemon before that no table names: closed");
    }
    Ok(())
}

/// Goes on with the clients of the daemon before (HO-UP3).
async fn adopt(
    core: &CoreHandle,
    mut clients: CrossingClients,
    devices: &[handover::Device],
    committed: handover::Committed,
) -> Result<(), Failure> {
    let used = devices.iter().filter(|device| device.used_by_guest);
    let used: Vec<String> = used.map(|device| device.name.clone()).collect();
    let adopt = async move |e: Rc<Engine>| {
        let guests = std::mem::take(&mut clients.guests);
        e.adopt_clients(clients, &committed);
        e.adopt_guests(guests, &used, &committed).await;
    };
    core.call(adopt).await
}

/// Which devices of the config are among the inherited ones.
fn sort_out(devices: Vec<DeviceConfig>, inherited: &[handover::Device]) -> ConfiguredDevices {
    let is_there = |device: &DeviceConfig| inherited.iter().any(|one| one.name == device.name);
    let (created, left_out) = devices.into_iter().partition(is_there);
    ConfiguredDevices { created, left_out }
}

/// Block devices of the kernel for devices that had one, and for all where all have one.
async fn make_disks(core: &CoreHandle, devices: &[handover::Device]) -> Result<(), Failure> {
    let chosen = devices.iter().filter(|one| one.ublk).map(|one| one.name.clone());
    let chosen: Vec<String> = chosen.collect();
    let made = async move |e: Rc<Engine>| {
        for info in e.dm.list() {
            let is_chosen = chosen.contains(&info.name);
            if let Err(failure) = e.make_disk_again(&info.name, is_chosen).await {
                // Its other clients are served.
                tracing::error!(device = info.name, "no block device: {failure}");
            }
        }
        e.warn_of_waiting_disks();
    };
    core.call(made).await
}

/// The door for virtual machines, which listens nowhere yet.
async fn start_vhost_user(
    core: &CoreHandle,
    options: &ServeArgs,
    access: SocketAccess,
) -> Result<(), Failure> {
    let Some(dir) = options.vhost_user.clone() else { return Ok(()) };
    let handle = core.clone();
    let memory = GuestBudget::new(memory::of_guests(options.vhost_memory.as_deref())?);
    let start = async move |e: Rc<Engine>| VhostUser::start(&e, &dir, access, handle, memory);
    core.call(start).await
}

async fn serve_vhost_user(
    core: &CoreHandle,
    options: &ServeArgs,
    access: SocketAccess,
    patience: Patience,
) -> Result<(), Failure> {
    start_vhost_user(core, options, access).await?;
    listen_vhost_user(core, options, patience).await
}

async fn listen_vhost_user(
    core: &CoreHandle,
    options: &ServeArgs,
    patience: Patience,
) -> Result<(), Failure> {
    let Some(dir) = options.vhost_user.clone() else { return Ok(()) };
    prepare_vhost_user(&dir, patience).await?;
    core.call(async |e: Rc<Engine>| VhostUser::listen_all(&e)).await
}

/// Makes the devices files, if that is wanted.
fn start_fuse(state: &State) -> Result<Option<FuseExport>, Failure> {
    let start = |dir: &PathBuf| FuseExport::start(dir, &state.core, state.changes.clone());
    state.options.fuse.as_ref().map(start).transpose()
}

/// Serves the control API and the metrics.
fn serve_http(
    state: &Arc<State>,
    control: Vec<HttpListener>,
    metrics: Vec<HttpListener>,
) -> Connections {
    let connections = Connections::new();
    for HttpListener { listener, .. } in control {
        tokio::spawn(serve(listener, connections.clone(), state.clone()));
    }
    if !metrics.is_empty() {
        let monitor = Monitor::start(state.core.clone());
        for HttpListener { listener, .. } in metrics {
            let (closing, pause) = (state.closing.clone(), state.pause.subscribe());
            tokio::spawn(observe::serve(listener, monitor.clone(), closing, pause));
        }
    }
    connections
}

/// Prepares the directory for the sockets of virtual machines. A daemon that was killed listens a
/// little longer.
async fn prepare_vhost_user(dir: &Path, patience: Patience) -> Result<(), Failure> {
    let time = Duration::from_nanos(patience.time(LockOwner::Unknown).0);
    let tries = async {
        loop {
            match vhost_user::prepare(dir) {
                Err(e) if e.kind() == Some(ErrorKind::Busy) => {
                    tokio::time::sleep(START_RETRY_PAUSE).await;
                }
                prepared => return prepared,
            }
        }
    };
    match tokio::time::timeout(time, tries).await {
        Ok(prepared) => prepared,
        Err(_) => vhost_user::prepare(dir),
    }
}

/// Warns of options for who may connect where a socket unit decides that.
fn warn_of_access(options: &ServeArgs, endpoints: &Endpoints) {
    if options.socket_mode.is_some() || options.socket_group.is_some() {
        for addr in endpoints.nbd_paths_of_units() {
            tracing::warn!(
                "{addr}: the socket unit decides who may connect (SocketMode=, SocketGroup=): \
                 --socket-mode and --socket-group do not hold here"
            );
        }
    }
}
