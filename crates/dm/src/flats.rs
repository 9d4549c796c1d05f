// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which flat mappings follow a device that is suspended, resumed or given another table.
//!
//! ```text
//!   top ── linear ──▶ mid ── linear ──▶ low         top and mid map straight to low
//!   w ──── writecache, zram, ... ─────▶ low         w does not, nor does what maps to w
//! ```
//!
//! On core 0 the mappings of all devices above are made again (DM-D5). Other cores have mappings
//! that end at leaves, and ways to the parts of engines. Of these only the ones that lead past the
//! device itself have to go: its own, and those of the devices that map straight to it. What other
//! cores have of an engine above stays, as it leads to the engine and no further; and nobody may
//! wait until it is idle, as bios of the engine wait for those that the device holds.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::BlockDevice;

use crate::device::{Depths, MappedDevice};
use crate::dm::Dm;

impl Dm {
    /// `device` and those above it, each after all that are below it. Looks once at each device.
    fn with_those_above(&self, device: &MappedDevice) -> Vec<Rc<MappedDevice>> {
        self.closure(device, MappedDevice::uses_any)
    }

    /// `device` and those that map straight to it, in the same order.
    pub(crate) fn mapped_straight(&self, device: &MappedDevice) -> Vec<Rc<MappedDevice>> {
        self.closure(device, MappedDevice::maps_straight_to_any)
    }

    /// `device` and those that `is_above` finds above devices with these minor numbers.
    fn closure(
        &self,
        device: &MappedDevice,
        is_above: fn(&MappedDevice, &BTreeSet<u32>) -> bool,
    ) -> Vec<Rc<MappedDevice>> {
        let mut found = self.devices();
        if device.open_count() == 0 {
            found.retain(|d| d.minor() == device.minor());
            return found;
        }
        let mut known = Depths::new();
        found.sort_by_cached_key(|d| d.depth(&mut known));
        let mut minors = BTreeSet::from([device.minor()]);
        found.retain(|d| {
            let belongs = d.minor() == device.minor() || is_above(d, &minors);
            if belongs {
                minors.insert(d.minor());
            }
            belongs
        });
        found
    }

    /// Makes the flat mappings of `device` and of those above again (DM-D5).
    pub(crate) fn refresh_flats(&self, device: &MappedDevice) {
        let replicas = self.replicas.borrow().clone();
        for above in self.with_those_above(device) {
            above.refresh_flat();
        }
        for device in self.mapped_straight(device) {
            if !device.publish(&*replicas) {
                replicas.set_limits(device.minor(), &device.limits());
            }
        }
        self.count_change();
    }

    /// As [`Dm::refresh_flats`], and waits until no other core uses an earlier mapping.
    pub(crate) async fn withdraw_flats(&self, device: &MappedDevice) {
        let replicas = self.replicas.borrow().clone();
        for above in self.with_those_above(device) {
            above.refresh_flat();
        }
        self.count_change();
        let changed = self.mapped_straight(device);
        for device in &changed {
            device.flat.withdraw(device.minor(), &replicas).await;
        }
        // The mappings may have changed again meanwhile: the present ones are published.
        for device in changed {
            device.publish_once(&*replicas);
        }
    }
}
