// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as files: what the FUSE export asks of us, asked of core 0, which has the devices.
//!
//! ```text
//!   FUSE threads                                 core 0
//!   names, attributes  ── ask, wait ───────────▶ Face, engine
//!   a job              ── run, don't wait ─────▶ TaskPool ── Job::serve ── reply from here
//!      └ or, of a device that is mapped to memory: this thread is a shard, serves it, and replies
//! ```
//!
//! Invariants
//! - F1 Core 0 never waits for a FUSE thread: those wait for it. So no leaf is opened by a path
//!   that leads into the mount, nor looked at.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError, RwLock, mpsc};

use block::{BlockDevice, Error, OpenDevice};
use control::Failure;
use fuse::{
    Answer, Attribute, Device, DeviceId, Export, Gate, Host, Job, OpenId, Options, SideGate,
};
use reactor::{TaskPool, new_opener};

use crate::core_thread::Core;
use crate::engine::Engine;
use crate::exported::ExportedDevice;
use crate::secondary::{Handle, Lent};
use crate::sysfs;

/// Jobs that are served at a time; what the export has in flight.
const JOBS_MAX: usize = 1024;

/// A device that has an id.
struct Known {
    id: DeviceId,
    device: Weak<dyn BlockDevice>,
    gate: Rc<Gate>,
}

/// A device held open by a file.
struct OpenFile {
    /// As this file has it: what comes from different files has different openers.
    device: OpenDevice,
    gate: Rc<Gate>,
    /// Keeps a mapped device from being removed, too.
    _lent: Lent,
}

/// An open file as FUSE threads have it.
struct Here {
    id: DeviceId,
    handle: Handle,
    side: Arc<SideGate>,
}

/// What core 0 remembers for the export.
struct Face {
    known: RefCell<Vec<Known>>,
    open: RefCell<BTreeMap<u64, Rc<OpenFile>>>,
    next: Cell<u64>,
    jobs: TaskPool<(Rc<OpenFile>, Job)>,
}

thread_local! {
    /// Only on core 0, as long as there is an export.
    static FACE: RefCell<Option<Rc<Face>>> = const { RefCell::new(None) };
}

impl Face {
    fn here() -> Option<Rc<Face>> {
        FACE.with_borrow(Clone::clone)
    }

    fn new() -> Face {
        Face {
            known: RefCell::default(),
            open: RefCell::default(),
            next: Cell::new(1),
            jobs: TaskPool::new(JOBS_MAX, |(file, job): (Rc<OpenFile>, Job)| async move {
                job.serve(&file.device, &file.gate).await;
            }),
        }
    }

    fn next(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// The id and the gate of a device, the same as long as it lives.
    fn known(&self, shown: &ExportedDevice) -> (DeviceId, Rc<Gate>) {
        let device = shown.device();
        let mut known = self.known.borrow_mut();
        // One that is held here can't be at the address of one that is gone.
        known.retain(|k| k.device.strong_count() > 0);
        let same = |k: &&Known| std::ptr::addr_eq(k.device.as_ptr(), Rc::as_ptr(&device));
        if let Some(k) = known.iter().find(same) {
            return (k.id, k.gate.clone());
        }
        let (id, gate) = (DeviceId(self.next()), Rc::new(Gate::new()));
        known.push(Known { id, device: Rc::downgrade(&device), gate: gate.clone() });
        (id, gate)
    }

    /// Lets those who wait at a device's gate look again.
    fn look_again(&self, id: DeviceId) {
        if let Some(known) = self.known.borrow().iter().find(|k| k.id == id) {
            known.gate.look_again();
        }
    }

    fn find(&self, engine: &Engine, id: DeviceId) -> Option<ExportedDevice> {
        ExportedDevice::all(&engine.dm, &engine.leaves)
            .into_iter()
            .find(|shown| self.known(shown).0 == id)
    }

    fn shown(&self, engine: &Engine, id: DeviceId) -> Result<ExportedDevice, Error> {
        self.find(engine, id).ok_or_else(|| Error::not_found("the device is gone"))
    }

    fn describe(&self, shown: &ExportedDevice) -> Device {
        Device {
            id: self.known(shown).0,
            file_name: shown.file_name(),
            mapped: matches!(shown, ExportedDevice::Mapped(_)),
            size_bytes: shown.device().limits().capacity.bytes(),
            read_only: shown.read_only(),
        }
    }

    fn open(&self, engine: &Engine, id: DeviceId) -> Result<(OpenId, Here), Error> {
        let shown = self.shown(engine, id)?;
        let lent = match &shown {
            ExportedDevice::Mapped(device) => engine.owner.lend(device.open()?),
            ExportedDevice::Leaf(leaf) => engine.owner.lend_leaf(leaf),
        };
        let (device, gate) = (shown.device(), self.known(&shown).1);
        let here = Here { id, handle: lent.handle(), side: gate.side() };
        let number = self.next();
        let device = OpenDevice::new(device, new_opener());
        self.open.borrow_mut().insert(number, Rc::new(OpenFile { device, gate, _lent: lent }));
        Ok((OpenId(number), here))
    }
}

/// The host of the export: every question goes to core 0.
struct Devices {
    core: Core,
    open: RwLock<BTreeMap<u64, Arc<Here>>>,
}

impl Devices {
    /// Asks core 0 and waits; nothing when it is ending.
    fn ask<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Face, &Engine) -> T + Send + 'static,
    ) -> Option<T> {
        let (tell, answer) = mpsc::sync_channel(1);
        let question = move |engine: &Rc<Engine>| {
            if let Some(face) = Face::here() {
                let _ = tell.send(f(&face, engine)); // who asked waits
            }
        };
        self.core.post(question).ok()?;
        answer.recv().ok()
    }

    fn ask_for<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Face, &Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let ending = || Error::not_found("the daemon is shutting down");
        self.ask(f).unwrap_or_else(|| Err(ending()))
    }

    /// Begins something that takes its time with a device, as a task of core 0.
    fn begin(
        &self,
        id: DeviceId,
        f: impl AsyncFnOnce(&Engine, Result<ExportedDevice, Error>) + Send + 'static,
    ) {
        // When core 0 is ending, `f` is dropped with all that it was to answer.
        let _ = self.core.post(move |engine| {
            let Some(face) = Face::here() else { return };
            let shown = face.shown(engine, id);
            let engine = engine.clone();
            reactor::spawn(async move { f(&engine, shown).await });
        });
    }
}

impl Devices {
    fn files_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Arc<Here>>> {
        // Nothing under the lock can leave it half changed.
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a job on this thread if it need not wait (F2); else gives it back.
    fn run_here(&self, open: OpenId, job: Job) -> Result<(), Job> {
        let file = {
            let files = self.open.read().unwrap_or_else(PoisonError::into_inner);
            files.get(&open.0).cloned()
        };
        let Some(file) = file.filter(|_| job.is_whole()) else {
            return Err(job);
        };
        let job = RefCell::new(Some(job)); // comes back when there is no shard
        let side = job.borrow().as_ref().is_some_and(Job::is_write).then_some(&file.side);
        if side.is_some_and(|side| !side.pass()) {
            return Err(job.take().expect("put in above"));
        }
        let left = self.core.shards().here(|shard| {
            let device = shard.device(&file.handle);
            let job = job.take().expect("put in above");
            shard.block_on(async move {
                if !device.is_in_memory() {
                    return Some(job);
                }
                // Its own gate: it has passed the device's on the side.
                job.serve(&*device, &Gate::new()).await;
                None
            })
        });
        if side.is_some_and(|side| side.leave()) {
            // By the device: after the reply the file may be closed, and others wait all the same.
            let id = file.id;
            // No core 0, nobody who waits there.
            let _ = self.core.post(move |_| {
                if let Some(face) = Face::here() {
                    face.look_again(id);
                }
            });
        }
        match left.ok().flatten().or_else(|| job.take()) {
            Some(job) => Err(job),
            None => Ok(()),
        }
    }
}

impl Host for Devices {
    fn devices(&self) -> Vec<Device> {
        let all = self.ask(|face, engine| {
            let mut all: Vec<Device> = ExportedDevice::all(&engine.dm, &engine.leaves)
                .iter()
                .map(|shown| face.describe(shown))
                .collect();
            all.sort_by(|a, b| a.file_name.cmp(&b.file_name));
            all
        });
        all.unwrap_or_default()
    }

    fn find(&self, file_name: &str) -> Option<Device> {
        let name = file_name.to_owned();
        self.ask(move |face, engine| {
            let all = ExportedDevice::all(&engine.dm, &engine.leaves).into_iter();
            let found = all.into_iter().find(|shown| shown.file_name() == name);
            found.map(|shown| face.describe(&shown))
        })?
    }

    fn device(&self, id: DeviceId) -> Option<Device> {
        self.ask(move |face, engine| face.find(engine, id).map(|shown| face.describe(&shown)))?
    }

    fn open(&self, id: DeviceId) -> Result<OpenId, Error> {
        let (open, here) = self.ask_for(move |face, engine| face.open(engine, id))?;
        self.files_mut().insert(open.0, Arc::new(here));
        Ok(open)
    }

    fn close(&self, open: OpenId) {
        self.files_mut().remove(&open.0);
        self.ask(move |face, _| {
            let file = face.open.borrow_mut().remove(&open.0);
            drop(file);
        });
    }

    /// The one place that decides where a request runs.
    fn run(&self, open: OpenId, job: Job) {
        let Err(job) = self.run_here(open, job) else { return };
        // A job that can't be sent or whose file is gone fails as it is dropped.
        let _ = self.core.post(move |_| {
            let Some(face) = Face::here() else { return };
            let file = face.open.borrow().get(&open.0).cloned();
            if let Some(file) = file {
                face.jobs.push((file, job));
            }
        });
    }

    fn attributes(&self, id: DeviceId) -> Vec<Attribute> {
        let all = self.ask(move |face, engine| {
            face.find(engine, id).map(|shown| sysfs::attributes(&engine.dm, &shown))
        });
        all.flatten().unwrap_or_default()
    }

    fn read_attribute(&self, id: DeviceId, path: &str, answer: Answer<String>) {
        let path = path.to_owned();
        self.begin(id, async move |engine: &Engine, shown| {
            answer(match shown {
                Ok(shown) => sysfs::get(&engine.dm, &shown, &path).await,
                Err(e) => Err(e),
            });
        });
    }

    fn write_attribute(&self, id: DeviceId, path: &str, value: &str, answer: Answer<()>) {
        let (path, value) = (path.to_owned(), value.to_owned());
        self.begin(id, async move |engine: &Engine, shown| {
            answer(match shown {
                Ok(shown) => sysfs::set(&engine.dm, &shown, &path, &value).await,
                Err(e) => Err(e),
            });
        });
    }
}

/// The export of a daemon.
pub(crate) struct Fuse {
    export: Export,
    core: Core,
}

impl Fuse {
    /// Mounts at `dir`. Blocks for a moment; core 0 must be running.
    pub(crate) fn start(dir: &Path, core: &Core) -> Result<Fuse, Failure> {
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        let options = Options { threads, requests_max: JOBS_MAX, ..Options::default() };
        core.post(|_| FACE.set(Some(Rc::new(Face::new()))))?;
        let export = Export::start(
            dir,
            Arc::new(Devices { core: core.clone(), open: RwLock::default() }),
            options,
        )?;
        if export.cleared() > 0 {
            let dir = export.dir().display();
            tracing::warn!(%dir, "unmounted what a killed daemon had left");
        }
        let own = export.dir().to_owned();
        core.post(|engine| engine.leaves.set_own_mount(Some(own)))?;
        Ok(Fuse { export, core: core.clone() })
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        self.export.dir()
    }

    /// Ends clients' requests and unmounts. Blocks for as long as `patience`; core 0 must be
    /// running.
    pub(crate) fn stop(self, patience: std::time::Duration) {
        let Fuse { export, core } = self;
        let dir = export.dir().to_owned();
        let stopped = export.stop(patience);
        if stopped.requests > 0 {
            let requests = stopped.requests;
            tracing::warn!(requests, "requests to files did not end in time and are dropped");
        }
        if stopped.lazily {
            let (dir, files) = (dir.display(), stopped.open_files);
            tracing::warn!(%dir, files, "in use: unmounted lazily; its users get errors");
        }
        // Devices that are open still are given back while their core is there.
        let _ = core.post(|engine| {
            engine.leaves.set_own_mount(None);
            drop(FACE.take());
        });
    }
}

impl fmt::Debug for Fuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fuse({:?})", self.export)
    }
}
