// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last FLUSH of leaves that leave with a table, and what becomes of what they have lost
//! (DM-UT1, DM-UT2 of `untold`).
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Class, LostWrites, Opener, Role, Status, same_device};
use reactor::spawn;

use super::MappedDevice;
use crate::dm::Dm;
use crate::live::Table;

impl MappedDevice {
    /// Flushes the leaves that nothing uses but `table`, which is about to be dropped (DM-UT1).
    /// Nothing of it is in flight. Returns what they know, for [`MappedDevice::must_tell`].
    pub(super) async fn last_flushes(
        &self,
        dm: &Dm,
        table: &Rc<Table>,
    ) -> Vec<Box<dyn LostWrites>> {
        let mut untold = Vec::new();
        for leaf in dm.leaves_of_none_but(table) {
            let Some(base) = leaf.clone().as_base() else { continue };
            let Some(mut losses) = base.losses() else { continue };
            if losses.has_unflushed() {
                let flushed = reactor::flush(&*leaf, Class::Normal).await;
                losses.last_flush_ended(flushed.err().unwrap_or(Status::Ok));
            }
            if !losses.are_told() {
                untold.push(losses);
            }
        }
        untold
    }

    /// The table with these losses is gone. The flat mappings are made again before the next bio.
    pub(super) fn must_tell(&self, losses: Vec<Box<dyn LostWrites>>) {
        self.untold.add(losses);
    }

    /// Whether a FLUSH that has come must fail.
    pub(super) fn tells(&self, opener: Opener) -> bool {
        if self.untold.is_empty() {
            return false;
        }
        let must_fail = self.untold.tell(opener);
        if let Some(dm) = self.dm.upgrade().filter(|_| self.untold.is_empty()) {
            let minor = self.minor();
            // Not here: the bio is on its way through the present mapping.
            spawn(async move {
                let device = dm.devices().into_iter().find(|d| d.minor() == minor);
                device.inspect(|device| dm.refresh_flats(device));
            });
        }
        must_fail
    }
}

impl Dm {
    /// The leaves to which `table` passes bios on, if no other table uses them.
    fn leaves_of_none_but(&self, table: &Rc<Table>) -> Vec<Rc<dyn BlockDevice>> {
        let mapped: BTreeSet<*const ()> = table
            .entries
            .iter()
            .flat_map(|entry| entry.target.components())
            .filter(|component| component.role == Role::Mapped)
            .map(|component| Rc::as_ptr(&component.device).cast::<()>())
            .collect();
        let devices = self.devices();
        let others: Vec<Rc<Table>> = devices.iter().flat_map(|device| device.tables()).collect();
        let is_used = |leaf| others.iter().any(|t| !Rc::ptr_eq(t, table) && t.uses.has(leaf));
        let is_device = |leaf| devices.iter().any(|device| same_device(device, leaf));
        let leaves = table.uses.devices.iter();
        let leaves = leaves.filter(|leaf| mapped.contains(&Rc::as_ptr(leaf).cast::<()>()));
        leaves.filter(|leaf| !is_used(leaf) && !is_device(leaf)).cloned().collect()
    }
}
