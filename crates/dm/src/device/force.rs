// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Removal by force: a table of errors in place of what hangs, at once.
//!
//! ```text
//!   device     live table ──▶ table of errors, a new gate, a new lock: bios end with EIO
//!   a task     old table, old gate, old lock: ends what was under way ── settle ── drop
//! ```
//!
//! Invariants
//! - DM-FO1 A table that was replaced is dropped as any other: nothing of it is in flight and its
//!   targets have been suspended. Until then it keeps its devices, and the mapped device itself, so
//!   that no other engine gets them.
//! - DM-FO2 A control operation that was under way changes nothing any more (DM-D3).
//! - DM-FO3 No other table goes live on the device before all that were replaced have settled: what
//!   is in flight there may still be written.
use std::rc::{Rc, Weak};

use block::{Base, BlockDevice, Error, Nanos};
use reactor::spawn;

use super::MappedDevice;
use crate::dm::Dm;
use crate::gate::{Gate, Held, Lock};
use crate::live::Table;

/// A table that was replaced, with what is under way on it.
struct Replaced {
    device: Rc<MappedDevice>,
    table: Option<Rc<Table>>,
    gate: Rc<Gate>,
    lock: Rc<Lock>,
    bases: Vec<Rc<dyn Base>>,
}

impl MappedDevice {
    /// Waits until no other control operation is under way (DM-D3). Fails when the device is gone.
    pub(crate) async fn control(&self) -> Result<Held, Error> {
        loop {
            let lock = self.lock.borrow().clone();
            if let Some(held) = lock.acquire().await {
                self.check_here()?;
                return Ok(held);
            }
        }
    }

    /// Fails when a removal by force has taken the device from who holds `held`.
    pub(crate) fn check_held(&self, held: &Held) -> Result<(), Error> {
        if !held.is_withdrawn() {
            return Ok(());
        }
        let name = self.name();
        Err(Error::busy(format!("{name}: its tables were replaced by `remove --force` meanwhile")))
    }

    /// The gate, and those of before that are not empty.
    pub(super) fn gates(&self) -> Vec<Rc<Gate>> {
        let mut gates = self.old_gates.borrow().clone();
        gates.push(self.gate.borrow().clone());
        gates
    }

    /// Replaces the live table by `errors` and drops the inactive one, without waiting for
    /// anything. Without a live table there is none to replace.
    pub(crate) fn replace_by_force(self: &Rc<Self>, dm: &Dm, errors: Option<Rc<Table>>) {
        let lock = self.lock.take();
        lock.withdraw(); // DM-FO2
        let gate = self.gate.take();
        self.gate.borrow().watch(self.waiting.watcher());
        self.old_gates.borrow_mut().push(gate.clone());
        self.set_inactive(None);
        self.gone.set(false);
        let table = match errors {
            Some(errors) => self.live.replace(Some(errors)),
            None => None,
        };
        if let Some(table) = &table {
            dm.leaving.borrow_mut().push((self.clone(), Rc::downgrade(table)));
            self.unblock();
        }
        // The old flat mapping is among them since `unblock`.
        let bases = self.past.take().iter().filter_map(Weak::upgrade).collect();
        let replicas = dm.replicas.borrow().clone();
        for device in dm.with_those_above(self) {
            let replicas = replicas.clone();
            // One task each: a mapping that can't be withdrawn holds up no other.
            spawn(async move { device.withdraw_flat(&replicas).await });
        }
        self.settling.set(self.settling.get() + 1);
        let replaced = Replaced { device: self.clone(), table, gate, lock, bases };
        spawn(replaced.settle());
    }

    /// Waits until the tables that were replaced have settled, at most for `time`.
    pub(crate) async fn settled_within(self: &Rc<Self>, time: Nanos) {
        let end = reactor::now() + time;
        let device = Rc::downgrade(self);
        spawn(async move {
            reactor::sleep(time).await;
            if let Some(device) = device.upgrade() {
                device.settled.wake_all();
            }
        });
        self.settled.wait_for(|| self.settling.get() == 0 || reactor::now() >= end).await;
    }

    /// DM-FO3.
    pub(super) fn check_settled(&self) -> Result<(), Error> {
        if self.settling.get() == 0 {
            return Ok(());
        }
        Err(Error::busy(format!(
            "{}: I/O of the table that was removed by force has not ended yet",
            self.name()
        )))
    }

    /// The device goes, whatever has not settled. The caller has replaced its table.
    pub(crate) fn end_by_force(&self) {
        self.end();
    }
}

impl Replaced {
    /// DM-FO1.
    async fn settle(self) {
        let Replaced { device, table, gate, lock, bases } = self;
        if let Some(dm) = device.dm.upgrade() {
            dm.withdraw_flats(&device).await;
        }
        lock.idle().await;
        gate.quiesced().await;
        for base in bases {
            base.quiesced().await;
        }
        device.old_gates.borrow_mut().retain(|g| !Rc::ptr_eq(g, &gate));
        if let Some(table) = table.filter(|table| !table.is_settled()) {
            // An error does not matter: the table is thrown away.
            let _ = table.suspend().await;
        }
        device.settling.set(device.settling.get() - 1);
        device.settled.wake_all();
    }
}
