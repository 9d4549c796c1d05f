// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports: the devices of this core that others may reach.
use std::rc::Rc;

use block::BlockDevice;
use slab::Slab;

/// Names a device of a core for the other cores, from [`crate::export`] to [`crate::unexport`].
/// A name is never used again, so a bio that comes too late can't reach another device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Export {
    slot: usize,
    born: u64,
}

block::debug_as!(Export, s => "Export({}.{})", s.slot, s.born);

/// All exports of one core.
#[derive(Default)]
pub(crate) struct Exports {
    devices: Slab<(u64, Rc<dyn BlockDevice>)>,
    born: u64,
}

impl Exports {
    pub(crate) fn insert(&mut self, device: Rc<dyn BlockDevice>) -> Export {
        self.born += 1;
        Export { slot: self.devices.insert((self.born, device)), born: self.born }
    }

    pub(crate) fn get(&self, export: Export) -> Option<Rc<dyn BlockDevice>> {
        let (born, device) = self.devices.get(export.slot)?;
        (*born == export.born).then(|| device.clone())
    }

    pub(crate) fn remove(&mut self, export: Export) -> Option<Rc<dyn BlockDevice>> {
        let (born, _) = self.devices.get(export.slot)?;
        (*born == export.born).then(|| self.devices.remove(export.slot).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }
}
