// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mapped devices as NBD exports: each by its name, and the default one by the empty name.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use block::latency::Latencies;
use block::{BlockDevice, Error, LocalFuture, Sector};
use dm::{Dm, MappedDevice, Opened};
use nbd::{Context, Export, Exports, Run};

/// Flag of `millpond:dirty`: not yet on the origin.
const DIRTY: u32 = 1;

/// Flags of `base:allocation`: takes no space, and reads as zeroes.
const HOLE_ZERO: u32 = 1 | 2;

/// The exports of one device mapper.
pub(crate) struct DmExports {
    dm: Rc<Dm>,
    default: Option<String>,
}

impl DmExports {
    pub(crate) fn new(dm: Rc<Dm>, default: Option<String>) -> DmExports {
        DmExports { dm, default }
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
        Ok(Box::new(DmExport { opened, has_begun: Cell::new(false) }))
    }
}

struct DmExport {
    opened: Opened,
    /// Its client may send requests.
    has_begun: Cell<bool>,
}

impl Drop for DmExport {
    fn drop(&mut self) {
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
        let device = self.opened.device().clone();
        Box::pin(async move {
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
        })
    }
}
