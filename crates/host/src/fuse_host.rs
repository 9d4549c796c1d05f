// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as files: answers the FUSE export. Core 0 has the devices, so most requests go there.
//!
//! ```text
//!   FUSE threads                                 core 0
//!   names, attributes  ── call, wait ──────────▶ ExportState, engine
//!   a job              ── run, don't wait ─────▶ TaskPool ── Job::serve ── reply from here
//!      └ of a device that is mapped to memory: this thread, as a secondary core, serves it
//! ```
//!
//! Invariants
//! - HO-F1 Core 0 never waits for a FUSE thread, as those wait for it. So no path into the mount is
//!   opened as a leaf, nor is its file examined.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, mpsc};

use block::attr::Spec;
use block::latency::Latencies;
use block::{BlockDevice, Error, Nanos, OpenDevice, same_device};
use control::Failure;
use dm::ReadOnly;
use fuse::{
    Attribute, AttributeReply, Caller, CrossThreadLock, Device, DeviceId, Export, Host, Job,
    OpenId, Options, WriteLock,
};
use reactor::{TaskPool, loop_time, new_opener, now};

use crate::changes::Changes;
use crate::core_thread::CoreHandle;
use crate::engine::Engine;
use crate::exported::ExportedDevice;
use crate::secondary::{DeviceHandle, Lease};
use crate::sysfs;

/// Requests of the export in flight.
const JOBS_MAX: usize = 1024;

/// A device with its id and lock, which last as long as it.
struct KnownDevice {
    id: DeviceId,
    device: Weak<dyn BlockDevice>,
    lock: Rc<WriteLock>,
}

/// A device that an open file keeps open.
struct OpenFile {
    /// Requests of different files have different openers.
    device: OpenDevice,
    lock: Rc<WriteLock>,
    latencies: Option<Arc<Latencies>>,
    by: Caller,
    opened_at: Nanos,
    /// Also keeps a mapped device from being removed.
    _lease: Lease,
}

/// An open file, for FUSE threads.
struct OpenHandle {
    id: DeviceId,
    handle: DeviceHandle,
    side: Arc<CrossThreadLock>,
    read_only: Option<ReadOnly>,
    /// Where the times of requests are recorded, of a mapped device.
    latencies: Option<Arc<Latencies>>,
}

impl OpenHandle {
    fn is_read_only(&self) -> bool {
        self.read_only.as_ref().is_some_and(ReadOnly::get)
    }
}

/// Figures of the export.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuseStats {
    /// Requests to files of devices.
    pub(crate) requests: u64,
    /// Files of devices that are open.
    pub(crate) open_files: u64,
}

/// The figures of the export, if there is one. On core 0.
pub(crate) fn stats() -> Option<FuseStats> {
    let state = ExportState::get()?;
    let open_files = state.open.borrow().len() as u64;
    Some(FuseStats { requests: state.requests.load(Relaxed), open_files })
}

/// Serves a job and records how long it took.
async fn serve(job: Job, device: &dyn BlockDevice, lock: &WriteLock, times: Option<&Latencies>) {
    let (op, begun) = (job.op(), loop_time());
    job.serve(device, lock).await;
    if let Some(times) = times {
        times.record(op, loop_time().saturating_sub(begun));
    }
}

/// State of the export on core 0.
struct ExportState {
    devices: RefCell<Vec<KnownDevice>>,
    open: RefCell<BTreeMap<u64, Rc<OpenFile>>>,
    next: Cell<u64>,
    /// Counted by the threads.
    requests: Arc<AtomicU64>,
    jobs: TaskPool<(Rc<OpenFile>, Job)>,
}

thread_local! {
    /// On core 0 only, while there is an export.
    static EXPORT_STATE: RefCell<Option<Rc<ExportState>>> = const { RefCell::new(None) };
}

impl ExportState {
    fn get() -> Option<Rc<ExportState>> {
        EXPORT_STATE.with_borrow(Clone::clone)
    }

    fn new(requests: Arc<AtomicU64>) -> ExportState {
        ExportState {
            devices: RefCell::default(),
            open: RefCell::default(),
            next: Cell::new(1),
            requests,
            jobs: TaskPool::new(JOBS_MAX, |(file, job): (Rc<OpenFile>, Job)| async move {
                serve(job, &file.device, &file.lock, file.latencies.as_deref()).await;
            }),
        }
    }

    fn next(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// The id and the lock of a device.
    fn id_and_lock(&self, exported: &ExportedDevice) -> (DeviceId, Rc<WriteLock>) {
        let device = exported.device();
        let mut known = self.devices.borrow_mut();
        known.retain(|k| k.device.strong_count() > 0);
        let same = |k: &&KnownDevice| k.device.upgrade().is_some_and(|d| same_device(&d, &device));
        if let Some(k) = known.iter().find(same) {
            return (k.id, k.lock.clone());
        }
        let (id, lock) = (DeviceId(self.next()), Rc::new(WriteLock::new()));
        known.push(KnownDevice { id, device: Rc::downgrade(&device), lock: lock.clone() });
        (id, lock)
    }

    /// Wakes the requests that wait at a device's lock.
    fn recheck_gate(&self, id: DeviceId) {
        if let Some(known) = self.devices.borrow().iter().find(|k| k.id == id) {
            known.lock.wake_waiters();
        }
    }

    fn find(&self, engine: &Engine, id: DeviceId) -> Option<ExportedDevice> {
        ExportedDevice::all(&engine.dm, &engine.leaves)
            .into_iter()
            .find(|exported| self.id_and_lock(exported).0 == id)
    }

    fn exported(&self, engine: &Engine, id: DeviceId) -> Result<ExportedDevice, Error> {
        self.find(engine, id).ok_or_else(|| Error::not_found("the device is gone"))
    }

    fn describe(&self, exported: &ExportedDevice) -> Device {
        Device {
            id: self.id_and_lock(exported).0,
            file_name: exported.file_name(),
            mapped: matches!(exported, ExportedDevice::Mapped(_)),
            size_bytes: exported.device().limits().capacity.bytes(),
            read_only: exported.read_only(),
        }
    }

    fn open(
        &self,
        engine: &Engine,
        id: DeviceId,
        by: Caller,
    ) -> Result<(OpenId, OpenHandle), Error> {
        let exported = self.exported(engine, id)?;
        let (lease, latencies) = match &exported {
            ExportedDevice::Mapped(device) => {
                (engine.owner.lease(device.open()?), Some(device.latencies()))
            }
            ExportedDevice::Leaf(leaf) => (engine.owner.lease_leaf(leaf), None),
        };
        let (device, lock) = (exported.device(), self.id_and_lock(&exported).1);
        let (handle, side) = (lease.handle(), lock.cross_thread());
        let read_only = exported.read_only_flag();
        let times = latencies.clone();
        let open_handle = OpenHandle { id, handle, side, read_only, latencies: times };
        let number = self.next();
        let device = OpenDevice::new(device, new_opener());
        let opened_at = now();
        let file = OpenFile { device, lock, latencies, by, opened_at, _lease: lease };
        self.open.borrow_mut().insert(number, Rc::new(file));
        Ok((OpenId(number), open_handle))
    }
}

/// A file of the export that a process has open.
pub(crate) struct FileClient {
    /// Its number; no other open file of the daemon has it.
    pub(crate) number: u64,
    pub(crate) device: String,
    pub(crate) by: Caller,
    pub(crate) age: Nanos,
}

/// The files that are open now. To be called on core 0.
pub(crate) fn file_clients() -> Vec<FileClient> {
    let Some(state) = ExportState::get() else { return Vec::new() };
    let client = |(number, file): (&u64, &Rc<OpenFile>)| FileClient {
        number: *number,
        device: file.device.name().to_owned(),
        by: file.by,
        age: now().saturating_sub(file.opened_at),
    };
    let open = state.open.borrow();
    open.iter().map(client).collect()
}

/// Answers the export by calls to core 0.
struct ExportHost {
    core: CoreHandle,
    /// Who may change attributes (HO-UP4).
    changes: Arc<Changes>,
    open: RwLock<BTreeMap<u64, Arc<OpenHandle>>>,
    requests: Arc<AtomicU64>,
}

impl ExportHost {
    /// Runs `f` on core 0 and waits for its result; none when core 0 is ending.
    fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&ExportState, &Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = mpsc::sync_channel(1);
        let call = move |engine: &Rc<Engine>| {
            if let Some(state) = ExportState::get() {
                let _ = reply.send(f(&state, engine));
            }
        };
        self.core.post(call).ok()?;
        answer.recv().ok()
    }

    fn try_call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&ExportState, &Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let ending = || Error::not_found("the daemon is shutting down");
        self.call(f).unwrap_or_else(|| Err(ending()))
    }

    /// Starts a task of core 0 that does something with a device and may take long.
    fn spawn_on_device(
        &self,
        id: DeviceId,
        f: impl AsyncFnOnce(&Engine, Result<ExportedDevice, Error>) + Send + 'static,
    ) {
        // When core 0 is ending, `f` is dropped, and with it its callback.
        let _ = self.core.post(move |engine| {
            let Some(state) = ExportState::get() else { return };
            let exported = state.exported(engine, id);
            let engine = engine.clone();
            reactor::spawn(async move { f(&engine, exported).await });
        });
    }
}

impl ExportHost {
    fn files_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Arc<OpenHandle>>> {
        // No panic under the lock leaves it half changed.
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a job on this thread if it completes without waiting; else returns it.
    fn serve_on_this_thread(&self, open: OpenId, job: Job) -> Result<(), Job> {
        let file = {
            let files = self.open.read().unwrap_or_else(PoisonError::into_inner);
            files.get(&open.0).cloned()
        };
        if job.is_write() && file.as_ref().is_some_and(|file| file.is_read_only()) {
            job.refuse_read_only();
            return Ok(());
        }
        let Some(file) = file.filter(|_| job.is_whole()) else {
            return Err(job);
        };
        let job = RefCell::new(Some(job)); // taken back when there is no free core
        let side = job.borrow().as_ref().is_some_and(Job::is_write).then_some(&file.side);
        if side.is_some_and(|side| !side.try_shared()) {
            return Err(job.take().expect("put in above"));
        }
        let left = self.core.pool().on_this_thread(|secondary| {
            let device = secondary.device(&file.handle);
            let job = job.take().expect("put in above");
            let latencies = file.latencies.clone();
            secondary.block_on(async move {
                if !device.is_in_memory() {
                    return Some(job);
                }
                // A lock of its own: it has passed the device's on the side.
                serve(job, &*device, &WriteLock::new(), latencies.as_deref()).await;
                None
            })
        });
        if side.is_some_and(|side| side.release()) {
            // By the device's id: the file may be closed after the reply, and others still wait.
            let id = file.id;
            // An error means that core 0 has ended, and nothing waits there.
            let _ = self.core.post(move |_| {
                if let Some(state) = ExportState::get() {
                    state.recheck_gate(id);
                }
            });
        }
        match left.ok().flatten().or_else(|| job.take()) {
            Some(job) => Err(job),
            None => Ok(()),
        }
    }
}

impl Host for ExportHost {
    fn devices(&self) -> Vec<Device> {
        let all = self.call(|state, engine| {
            let mut all: Vec<Device> = ExportedDevice::all(&engine.dm, &engine.leaves)
                .iter()
                .map(|exported| state.describe(exported))
                .collect();
            all.sort_by(|a, b| a.file_name.cmp(&b.file_name));
            all
        });
        all.unwrap_or_default()
    }

    fn find(&self, file_name: &str) -> Option<Device> {
        let name = file_name.to_owned();
        self.call(move |state, engine| {
            let all = ExportedDevice::all(&engine.dm, &engine.leaves).into_iter();
            let found = all.into_iter().find(|exported| exported.file_name() == name);
            found.map(|exported| state.describe(&exported))
        })?
    }

    fn device(&self, id: DeviceId) -> Option<Device> {
        self.call(move |state, engine| {
            state.find(engine, id).map(|exported| state.describe(&exported))
        })?
    }

    fn open(&self, id: DeviceId, by: Caller) -> Result<OpenId, Error> {
        let (open, handle) = self.try_call(move |state, engine| state.open(engine, id, by))?;
        self.files_mut().insert(open.0, Arc::new(handle));
        Ok(open)
    }

    fn close(&self, open: OpenId) {
        self.files_mut().remove(&open.0);
        self.call(move |state, _| {
            let file = state.open.borrow_mut().remove(&open.0);
            drop(file);
        });
    }

    /// Decides on which core a request runs.
    fn run(&self, open: OpenId, job: Job) {
        self.requests.fetch_add(1, Relaxed);
        let Err(job) = self.serve_on_this_thread(open, job) else { return };
        // A job that can't be sent, or whose file is closed, fails as it is dropped.
        let _ = self.core.post(move |_| {
            let Some(state) = ExportState::get() else { return };
            let file = state.open.borrow().get(&open.0).cloned();
            if let Some(file) = file {
                state.jobs.push((file, job));
            }
        });
    }

    fn attributes(&self, id: DeviceId) -> Vec<Attribute> {
        let all = self.call(move |state, engine| {
            state.find(engine, id).map(|exported| sysfs::attributes(&engine.dm, &exported))
        });
        let file = |spec: &'static Spec| Attribute {
            path: spec.name.to_owned(),
            readable: spec.access.reads(),
            writable: spec.access.writes(),
        };
        all.flatten().unwrap_or_default().into_iter().map(file).collect()
    }

    fn read_attribute(&self, id: DeviceId, path: &str, answer: AttributeReply<String>) {
        let path = path.to_owned();
        self.spawn_on_device(id, async move |engine: &Engine, exported| {
            answer(match exported {
                Ok(exported) => {
                    sysfs::get(&engine.dm, &exported, &path).await.map(|value| value.to_string())
                }
                Err(e) => Err(e),
            });
        });
    }

    fn write_attribute(&self, id: DeviceId, path: &str, value: &str, answer: AttributeReply<()>) {
        let (path, value) = (path.to_owned(), value.to_owned());
        let change = match self.changes.begin() {
            Ok(change) => change,
            Err(e) => return answer(Err(e)),
        };
        self.spawn_on_device(id, async move |engine: &Engine, exported| {
            let _change = change;
            answer(match exported {
                Ok(exported) => sysfs::set(&engine.dm, &exported, &path, &value).await,
                Err(e) => Err(e),
            });
        });
    }
}

/// The FUSE export of a daemon.
pub(crate) struct FuseExport {
    export: Export,
    core: CoreHandle,
}

impl FuseExport {
    /// Mounts at `dir`. Blocks for a short time; core 0 must be running.
    pub(crate) fn start(
        dir: &Path,
        core: &CoreHandle,
        changes: Arc<Changes>,
    ) -> Result<FuseExport, Failure> {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        let options = Options { threads, requests_max: JOBS_MAX, ..Options::default() };
        let requests = Arc::new(AtomicU64::new(0));
        let (core_of_host, open) = (core.clone(), RwLock::default());
        let host = ExportHost { core: core_of_host, changes, open, requests: requests.clone() };
        core.post(|_| EXPORT_STATE.set(Some(Rc::new(ExportState::new(requests)))))?;
        let export = Export::start(dir, Arc::new(host), options)?;
        if export.cleared() > 0 {
            let dir = export.dir().display();
            tracing::warn!(%dir, "unmounted what a killed daemon had left");
        }
        let own = export.dir().to_owned();
        core.post(|engine| engine.leaves.set_own_mount(Some(own)))?;
        Ok(FuseExport { export, core: core.clone() })
    }

    /// The directory where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        self.export.dir()
    }

    /// Ends clients' requests and unmounts. Blocks for `drain_time` at most; core 0 must be
    /// running.
    pub(crate) fn stop(self, drain_time: std::time::Duration) {
        let FuseExport { export, core } = self;
        let dir = export.dir().to_owned();
        let stopped = export.stop(drain_time);
        if stopped.requests > 0 {
            let requests = stopped.requests;
            tracing::warn!(requests, "requests to files did not end in time and are dropped");
        }
        if stopped.lazily {
            let (dir, files) = (dir.display(), stopped.open_files);
            tracing::warn!(%dir, files, "in use: unmounted lazily; its users get errors");
        }
        // Devices that are still open are closed on their core.
        let _ = core.post(|engine| {
            engine.leaves.set_own_mount(None);
            drop(EXPORT_STATE.take());
        });
    }
}

block::debug_as!(FuseExport, s => "FuseExport({:?})", s.export);
