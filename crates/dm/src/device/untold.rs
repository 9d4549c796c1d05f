// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What devices below have lost that are gone with a table of before, and who must hear of it.
//!
//! ```text
//!   table of before ── last FLUSH ──▶ leaf     closed when the next table goes live
//!                                      │ LostWrites
//!   FLUSH ──▶ mapped device ──▶ Untold ┘       fails once for each opener that must hear
//! ```
//!
//! The next table may name another device, or none, and the same one again later: in both cases the
//! opener's FLUSH is about changes that this device has acknowledged.
//!
//! Invariants
//! - DM-UT1 A leaf that no other table uses is flushed before the table that leaves it is dropped,
//!   and what it knows of losses is kept here. While another table uses it, it knows them itself.
//! - DM-UT2 While there is somebody to tell, the device has no flat mapping, and other cores have
//!   no way past it: each FLUSH comes to the device itself.
//!
//! - DM-UT3 While bios wait, FLUSHes wait too: they are told when they go on.
//!
//! Downside: nobody knows when an opener has gone, so one that flushes no more keeps the device off
//! the short way until it is made anew.
//!
//! Not covered: targets that are engines. They are suspended before, and what they have lost the
//! same target of the next table takes over ([`block::Target::take_over`]).
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Class, LostWrites, Opener, Role, Status, same_device};
use reactor::spawn;

use super::MappedDevice;
use crate::dm::Dm;
use crate::live::Table;

/// Leaves that were lost one after another while somebody has not flushed once; beyond that the
/// oldest one is forgotten. Chosen: each is a disaster that an operator knows of.
const LEAVES_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Untold(RefCell<Vec<Box<dyn LostWrites>>>);

impl Untold {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn add(&self, losses: Vec<Box<dyn LostWrites>>) {
        let mut all = self.0.borrow_mut();
        all.extend(losses);
        let surplus = all.len().saturating_sub(LEAVES_MAX);
        all.drain(..surplus);
    }

    /// A FLUSH of `opener` has come: whether it must fail.
    fn tell(&self, opener: Opener) -> bool {
        let mut all = self.0.borrow_mut();
        let mut must_fail = false;
        for losses in all.iter_mut() {
            must_fail |= losses.tell(opener);
        }
        all.retain(|losses| !losses.are_told());
        must_fail
    }
}

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
