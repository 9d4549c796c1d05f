// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last FLUSH of leaves that a table leaves (DM-UT1 of `untold`).
use std::rc::{Rc, Weak};

use block::{BlockDevice, Class, LostWrites, OpenDevice, Opener, Role, same_device};
use reactor::spawn;

use super::MappedDevice;
use crate::device_set::DeviceSet;
use crate::dm::Dm;
use crate::live::Table;

impl MappedDevice {
    /// Flushes the leaves to which `old`, which is about to be dropped, passes bios on and `new`
    /// does not. Nothing of `old` is in flight. Returns the records that not all have heard of, for
    /// [`MappedDevice::must_tell`].
    pub(super) async fn last_flushes(
        &self,
        dm: &Dm,
        old: &Table,
        new: Option<&Table>,
    ) -> Vec<Rc<dyn LostWrites>> {
        let (mut left, mut kept) = (DeviceSet::default(), DeviceSet::default());
        dm.collect_below(old, &mut left);
        if let Some(new) = new {
            dm.collect_below(new, &mut kept);
        }
        left.devices.retain(|device| !kept.contains(device));
        let mut records = Vec::new();
        for device in left.devices {
            if let Some(mapped) = dm.mapped(&device) {
                records.extend(mapped.untold.records());
                continue;
            }
            let Some(record) = device.clone().as_base().and_then(|base| base.losses()) else {
                continue;
            };
            if record.has_unflushed() {
                let own = OpenDevice::new(device, Opener::NOBODY);
                // The record has the loss if it fails.
                let _ = reactor::flush(&own, Class::Normal).await;
            }
            records.push(record);
        }
        records.retain(|record| !record.are_told());
        records
    }

    /// Makes its flat mapping again, and those of the devices above, but not at once: a bio is on
    /// its way through the present ones.
    pub(super) fn refresh_flats_later(dm: Weak<Dm>, minor: u32) {
        spawn(async move {
            let Some(dm) = dm.upgrade() else { return };
            let device = dm.devices().into_iter().find(|device| device.minor() == minor);
            device.inspect(|device| dm.refresh_flats(device));
        });
    }

    /// The table with these losses is gone. The flat mappings are made again before the next bio.
    pub(super) fn must_tell(&self, records: Vec<Rc<dyn LostWrites>>) {
        self.untold.add(records);
    }
}

impl Dm {
    /// The mapped device that `device` is.
    fn mapped(&self, device: &Rc<dyn BlockDevice>) -> Option<Rc<MappedDevice>> {
        self.devices().into_iter().find(|mapped| same_device(mapped, device))
    }

    /// All devices to which `table` passes bios on, also through other mapped devices. Terminates
    /// by DM-D4, and looks once at each device.
    fn collect_below(&self, table: &Table, below: &mut DeviceSet) {
        let components = table.entries.iter().flat_map(|entry| entry.target.components());
        for component in components.filter(|component| component.role == Role::Mapped) {
            let device = component.device;
            if !below.insert(&device) {
                continue;
            }
            if let Some(live) = self.mapped(&device).and_then(|mapped| mapped.live()) {
                self.collect_below(&live, below);
            }
        }
    }
}
