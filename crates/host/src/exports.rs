// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapped devices as NBD exports: each by its name, and the default one by the empty name.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use block::latency::Latencies;
use block::{BlockDevice, CoreId, Error, LocalFuture, Sector};
use dm::{Dm, MappedDevice, Opened, ReadOnly};
use nbd::{Context, Export, Exports, Place, PlacedExport, Run};
use reactor::{CoreLocal, FileId, call};
use uring::Files;

use crate::secondary::{Lease, Replica, device_on_this_core, files_of_this_core};
use crate::sessions::{SessionCore, SessionCores};

/// Flag of `millpond:dirty`: not yet on the origin.
const DIRTY: u32 = 1;

/// Flags of `base:allocation`: takes no space, and reads as zeroes.
const HOLE_ZERO: u32 = 1 | 2;

/// The exports of one device mapper.
pub(crate) struct DmExports {
    dm: Rc<Dm>,
    default: Option<String>,
    files: Files,
    cores: Rc<SessionCores>,
}

impl DmExports {
    pub(crate) fn new(
        dm: Rc<Dm>,
        default: Option<String>,
        files: Files,
        cores: Rc<SessionCores>,
    ) -> DmExports {
        DmExports { dm, default, files, cores }
    }

    /// The devices that have something to serve here.
    fn live(&self) -> Vec<Rc<MappedDevice>> {
        let is_shown = |d: &Rc<MappedDevice>| d.info().live_table && d.doors().has_nbd();
        self.dm.devices().into_iter().filter(is_shown).collect()
    }

    fn find(&self, name: &str) -> Result<Rc<MappedDevice>, Error> {
        let name = match (name, &self.default) {
            ("", Some(default)) => default,
            ("", None) => {
                let live = self.live();
                let [only] = live.as_slice() else {
                    return Err(Error::not_found(format!(
                        "the default export: there are {} devices and no --default-export",
                        live.len()
                    )));
                };
                return Ok(only.clone());
            }
            (name, _) => name,
        };
        let device = self.dm.get(name)?;
        if !device.doors().has_nbd() {
            return Err(Error::not_found(format!("{name}: the device is no export (`doors`)")));
        }
        if !device.info().live_table {
            return Err(Error::not_found(format!("{name}: the device has no live table")));
        }
        Ok(device)
    }
}

impl Exports for DmExports {
    fn list(&self) -> Vec<String> {
        self.live().iter().map(|d| d.name().to_owned()).collect()
    }

    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        let opened = self.find(name)?.open()?;
        tracing::debug!(device = opened.device().name(), "a client asks for the device");
        let (files, cores) = (self.files.clone(), self.cores.clone());
        Ok(Box::new(DmExport {
            opened: Rc::new(opened),
            has_begun: Cell::new(false),
            files,
            cores,
            session: RefCell::default(),
        }))
    }
}

struct DmExport {
    opened: Rc<Opened>,
    /// Its client may send requests.
    has_begun: Cell<bool>,
    files: Files,
    cores: Rc<SessionCores>,
    session: RefCell<Option<PlacedSession>>,
}

/// Where a session is served, and what the other core has of its device.
struct PlacedSession {
    _core: SessionCore,
    away: Option<(Lease, CoreLocal)>,
}

impl Drop for DmExport {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        if let Some((_lease, name)) = self.session.take().and_then(|session| session.away) {
            name.release();
        }
        if self.has_begun.get() {
            tracing::info!(device = self.opened.device().name(), "client disconnected");
        }
    }
}

impl Export for DmExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.opened.device().clone()
    }

    fn name(&self) -> String {
        self.opened.device().name().to_owned()
    }

    fn begin(&self) {
        self.has_begun.set(true);
        tracing::info!(device = self.opened.device().name(), "client connected");
    }

    fn place(&self, socket: FileId) -> Option<Place> {
        let device = self.opened.device();
        let core = self.cores.begin(device.minor());
        let away = core.other().zip(self.files.share(socket));
        let Some((other, socket)) = away else {
            self.session.replace(Some(PlacedSession { _core: core, away: None }));
            return None;
        };
        let lease = self.cores.owner.lease(self.opened.clone());
        let handle = lease.handle();
        let home = CoreLocal::keep(device.clone());
        let (name, read_only) = (device.name().to_owned(), device.read_only().clone());
        self.session.replace(Some(PlacedSession { _core: core, away: Some((lease, home)) }));
        let begin = move || {
            let device = device_on_this_core(&handle);
            let export = ReplicaExport { device, home, name, read_only };
            PlacedExport { socket: files_of_this_core().adopt(&socket), export: Box::new(export) }
        };
        Some(Place { core: other, begin: Box::new(begin) })
    }

    fn description(&self) -> String {
        let kinds: Vec<String> = self.opened.device().table().into_iter().map(|l| l.kind).collect();
        kinds.join(", ")
    }

    fn read_only(&self) -> bool {
        self.opened.device().read_only().get()
    }

    fn latencies(&self) -> Option<Arc<Latencies>> {
        Some(self.opened.device().latencies())
    }

    fn offers(&self, context: Context) -> bool {
        match context {
            Context::Allocation => true,
            Context::Dirty => self.opened.device().tracks_dirty(),
        }
    }

    fn block_status(
        &self,
        context: Context,
        at: Sector,
        len: Sector,
    ) -> LocalFuture<Option<Vec<Run>>> {
        Box::pin(block_status(self.opened.device().clone(), context, at, len))
    }
}

async fn block_status(
    device: Rc<MappedDevice>,
    context: Context,
    at: Sector,
    len: Sector,
) -> Option<Vec<Run>> {
    match context {
        Context::Allocation => {
            let runs = device.zero_runs(at, len).await.into_iter();
            Some(runs.map(|(sector, len)| Run { sector, len, flags: HOLE_ZERO }).collect())
        }
        Context::Dirty => {
            let runs = device.dirty(at, len).await?.into_iter();
            Some(runs.map(|(sector, len)| Run { sector, len, flags: DIRTY }).collect())
        }
    }
}

/// The export of a session on another core than core 0. The session has its terms already.
struct ReplicaExport {
    device: Rc<Replica>,
    /// The device, on core 0.
    home: CoreLocal,
    name: String,
    read_only: ReadOnly,
}

impl Export for ReplicaExport {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.device.clone()
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_only(&self) -> bool {
        self.read_only.get()
    }

    fn block_status(
        &self,
        context: Context,
        at: Sector,
        len: Sector,
    ) -> LocalFuture<Option<Vec<Run>>> {
        let home = self.home;
        Box::pin(call(CoreId(0), move || async move {
            // Kept until the session has ended.
            block_status(home.get::<MappedDevice>()?, context, at, len).await
        }))
    }
}
