// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices, each once.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::BlockDevice;

/// Devices, each once, in the order in which they came.
#[derive(Default)]
pub(crate) struct DeviceSet {
    pub(crate) devices: Vec<Rc<dyn BlockDevice>>,
    /// Their addresses: a table may have as many devices as lines.
    known: BTreeSet<usize>,
}

impl DeviceSet {
    /// Adds a device. False when it is there.
    pub(crate) fn insert(&mut self, device: &Rc<dyn BlockDevice>) -> bool {
        let is_new = self.known.insert(address(device));
        if is_new {
            self.devices.push(device.clone());
        }
        is_new
    }

    pub(crate) fn contains(&self, device: &Rc<dyn BlockDevice>) -> bool {
        self.known.contains(&address(device))
    }
}

/// Identifies a device as long as it lives.
pub(crate) fn address<T: ?Sized>(device: &Rc<T>) -> usize {
    Rc::as_ptr(device).cast::<()>() as usize
}
