// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Removal by force: a table of errors takes the place of one that hangs, at once.
//!
//! ```text
//!   device   the table of errors, a new `InFlight`, a new lock: bios end with EIO
//!   a task   the old table, its `InFlight`, the old lock: waits until all has ended ── drop
//! ```
//!
//! Invariants
//! - DM-FO1 A table that was replaced is dropped as any other: nothing of it is in flight and its
//!   targets have been suspended. Until then it keeps its devices, and the mapped device itself, so
//!   that no other table gets them (DM-O4).
//! - DM-FO2 A control operation that was under way changes nothing any more (DM-D3).
//! - DM-FO3 No other table goes live on the device before all that were replaced have settled: what
//!   is in flight there may still be written.
//! - DM-FO4 A FLUSH of the table of errors fails, as all else: the tables that were replaced have
//!   acknowledged what they may not have made durable, and may have failed since.
use std::rc::Rc;

use block::{Base, BlockDevice, Error, Nanos};
use reactor::spawn;

use super::MappedDevice;
use crate::control_lock::ControlLock;
use crate::dm::Dm;
use crate::in_flight::InFlight;
use crate::live::Table;

/// A table that was replaced, and what is under way on it.
struct Replaced {
    device: Rc<MappedDevice>,
    table: Option<Rc<Table>>,
    in_flight: Rc<InFlight>,
    lock: Rc<ControlLock>,
    bases: Vec<Rc<dyn Base>>,
}

impl MappedDevice {
    /// Replaces the live table by `errors` and drops the inactive one, without waiting for
    /// anything. Without a live table there is none to replace.
    pub(crate) fn replace_by_force(self: &Rc<Self>, dm: &Dm, errors: Option<Rc<Table>>) {
        let lock = self.lock.take();
        lock.withdraw(); // DM-FO2
        let in_flight = self.drain.replace(self.waiting.watcher());
        self.set_inactive(None);
        self.lifecycle.cancel_removal();
        if let Some(live) = self.live().filter(|_| errors.is_some()) {
            dm.add_unsettled(self, &live);
        }
        let table = match errors {
            Some(errors) => self.tables.live.replace(Some(errors)),
            None => None,
        };
        if table.is_some() {
            self.unblock();
        }
        // The bases of the old flat mapping are among them since `unblock`.
        let bases = self.flat.take_previous_bases();
        let replicas = dm.replicas.borrow().clone();
        for device in dm.mapped_straight(self) {
            let replicas = replicas.clone();
            // One task each: a mapping that can't be withdrawn delays no other.
            spawn(async move { device.flat.withdraw(device.minor(), &replicas).await });
        }
        spawn(Replaced { device: self.clone(), table, in_flight, lock, bases }.settle());
    }

    /// Waits until the tables that were replaced have settled, at most for `time`.
    pub(crate) async fn settled_within(self: &Rc<Self>, time: Nanos) {
        let end = reactor::now() + time;
        let device = Rc::downgrade(self);
        spawn(async move {
            reactor::sleep(time).await;
            if let Some(device) = device.upgrade() {
                device.drain.look_again();
            }
        });
        self.drain.settled_by(end).await;
    }

    /// DM-FO3.
    pub(super) fn check_settled(&self) -> Result<(), Error> {
        if self.drain.is_settled() {
            return Ok(());
        }
        Err(Error::busy(format!(
            "{}: I/O of the table that was removed by force has not ended yet",
            self.name()
        )))
    }
}

impl Replaced {
    /// DM-FO1.
    async fn settle(self) {
        let Replaced { device, table, in_flight, lock, bases } = self;
        if let Some(dm) = device.dm.upgrade() {
            dm.withdraw_flats(&device).await;
        }
        lock.idle().await;
        in_flight.quiesced().await;
        for base in bases {
            base.quiesced().await;
        }
        device.drain.end(&in_flight);
        if let Some(table) = table {
            if !table.is_settled() {
                // An error does not matter: the table is dropped.
                let _ = table.suspend().await;
            }
            if let Some(dm) = device.dm.upgrade() {
                // The next table, or that of a device above, lets a FLUSH succeed.
                device.must_tell(device.last_flushes(&dm, &table, None).await);
            }
            if let Some(dm) = device.dm.upgrade() {
                for leaf in dm.unsettled_leaves(&table) {
                    if let Some(base) = leaf.as_base() {
                        base.late_writes_ended().await;
                    }
                }
                dm.remove_unsettled(&table);
            }
        }
        device.drain.settle();
    }
}
