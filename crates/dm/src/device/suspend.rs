// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Suspend, resume and remove: how a device changes its state, and what it waits for before.
use block::{BlockDevice, Error, UnsavedBlocks};

use super::MappedDevice;
use crate::context::EventSource;
use crate::control_lock::ControlGuard;

impl MappedDevice {
    /// Waits until no other control operation is under way (DM-D3). Fails when the device has been
    /// removed meanwhile.
    pub(crate) async fn control(&self) -> Result<ControlGuard, Error> {
        loop {
            let lock = self.lock.borrow().clone();
            if let Some(guard) = lock.acquire().await {
                self.check_not_removed()?;
                return Ok(guard);
            }
        }
    }

    /// Fails when a removal by force has taken the device from the owner of `guard`.
    pub(crate) fn check_guard(&self, guard: &ControlGuard) -> Result<(), Error> {
        if !guard.is_withdrawn() {
            return Ok(());
        }
        let name = self.name();
        Err(Error::busy(format!("{name}: its tables were replaced by `remove --force` meanwhile")))
    }

    /// Stops bios, waits for those below, and suspends the targets. The caller holds the lock.
    ///
    /// After an error of a target the device is suspended all the same.
    pub(crate) async fn suspend(&self, guard: &ControlGuard) -> Result<(), Error> {
        if !self.hold(guard).await? {
            return Ok(());
        }
        let live = self.live();
        let result = match &live {
            Some(table) => table.suspend().await,
            None => Ok(()),
        };
        self.check_guard(guard)?;
        self.lifecycle.end_suspend(result.is_ok());
        result.map_err(|e| e.within(format!("{}: suspended, but not cleanly", self.name())))
    }

    /// Stops bios, and waits for those below. The targets go on. Returns `false` if the device is
    /// suspended already. The caller holds the lock.
    pub(super) async fn hold(&self, guard: &ControlGuard) -> Result<bool, Error> {
        if !self.lifecycle.begin_suspend() {
            return Ok(false);
        }
        if let Some(dm) = self.dm.upgrade() {
            dm.withdraw_flats(self).await;
        }
        let in_flight = self.drain.live.borrow().clone();
        in_flight.quiesced().await;
        self.flat.bases_quiesced().await;
        self.check_guard(guard)?;
        self.flat.take_previous_bases();
        Ok(true)
    }

    /// Makes an inactive table live, and lets bios go. The caller holds the lock.
    ///
    /// After an error the device is suspended, with both slots as before; if this would have been
    /// its first table, it is as new.
    pub(crate) async fn resume(
        &self,
        guard: &ControlGuard,
        force: Option<&str>,
    ) -> Result<(), Error> {
        let is_first = self.lifecycle.is_new();
        let resumed = self.resume_new_or_live(guard, force).await;
        if resumed.is_err() && is_first && self.is_suspended() && !guard.is_withdrawn() {
            self.lifecycle.renew();
        }
        resumed
    }

    async fn resume_new_or_live(
        &self,
        guard: &ControlGuard,
        force: Option<&str>,
    ) -> Result<(), Error> {
        let Some(new) = self.inactive() else {
            if !self.lifecycle.is_suspended() {
                return Ok(());
            }
            return self.resume_live(guard).await;
        };
        if new.entries.is_empty() {
            let name = self.name();
            return Err(Error::invalid(format!(
                "{name}: the table has no line: START_SECTOR LENGTH_SECTORS TARGET_TYPE \
                 [ARGUMENTS] is needed"
            )));
        }
        self.check_settled()?;
        let was_suspended = self.lifecycle.is_suspended();
        self.suspend(guard).await?;
        let released = match self.check_hidden(&new, was_suspended, force).await {
            Ok(()) => self.release_hidden_origins(&new).await,
            Err(e) => Err(e),
        };
        self.check_guard(guard)?;
        if let Err(e) = released {
            if !was_suspended {
                self.resume_live(guard).await?;
            }
            return Err(e);
        }
        self.drop_hidden_copies(&new).await;
        self.check_guard(guard)?;
        // DM-D2: suspended, so the old table has nothing in flight and has settled its state.
        let untold = match (self.live(), self.dm.upgrade()) {
            (Some(live), Some(dm)) => self.last_flushes(&dm, &live, Some(&new)).await,
            _ => Vec::new(),
        };
        self.check_guard(guard)?;
        let resumed = new.resume_after(self.live()).await;
        if resumed.is_err() {
            self.reread_media(&new);
        }
        if let Err(e) = self.check_guard(guard) {
            // It can't go live any more: its targets give back what they have taken.
            return match new.suspend().await {
                Ok(()) => Err(e),
                Err(also) => Err(e.because(also)),
            };
        }
        resumed.map_err(|e| self.stays_suspended(e))?;
        new.refresh_limits();
        self.set_inactive(None);
        let old = self.tables.live.replace(Some(new));
        self.must_tell(untold);
        drop(old);
        self.unblock();
        Ok(())
    }

    /// Lets bios go on to the live table of before. The caller holds the lock.
    pub(crate) async fn resume_live(&self, guard: &ControlGuard) -> Result<(), Error> {
        let none = || Error::invalid(format!("{}: no table to resume: load one", self.name()));
        let live = self.live().ok_or_else(none)?;
        let resumed = live.resume().await;
        self.check_guard(guard)?;
        resumed.map_err(|e| self.stays_suspended(e))?;
        live.refresh_limits();
        self.unblock();
        Ok(())
    }

    /// The error of a resume; a device that never had a live table (`create`) does not stay.
    fn stays_suspended(&self, e: Error) -> Error {
        if self.tables.live.borrow().is_none() {
            return e.within(self.name());
        }
        e.within(format!("{}: resume failed, the device stays suspended", self.name()))
    }

    /// Lets bios pass, those first that waited.
    pub(super) fn unblock(&self) {
        self.lifecycle.activate();
        if let Some(dm) = self.dm.upgrade() {
            dm.refresh_flats(self);
        }
        // No await from here on, so nothing can overtake the bios that waited.
        self.send_waiting();
    }

    /// Removes the device: gives the origins of empty caches back, suspends it and drops its
    /// tables. The caller holds the lock, and nobody has the device open. Returns what its caches
    /// hold and their origins do not, and which may have kept copies (DM-U3).
    ///
    /// After an error of a target the device stays, suspended if that was one of the suspend.
    pub(crate) async fn retire(&self, guard: &ControlGuard) -> Result<Vec<UnsavedBlocks>, Error> {
        self.check_guard(guard)?;
        // From now on nobody opens it, so no bio comes to a cache without its origin.
        self.lifecycle.begin_removal();
        if let Err(e) = self.release_unneeded_origins().await {
            self.check_guard(guard)?;
            return Err(self.keep_origins(guard, e).await);
        }
        if let Err(e) = self.suspend(guard).await {
            // After a removal by force it is that which decides whether the device stays.
            self.check_guard(guard)?;
            self.lifecycle.cancel_removal();
            return Err(e);
        }
        let unsaved = match self.live() {
            Some(live) => self.drop_copies(&live, |_| true).await,
            None => Vec::new(),
        };
        self.check_guard(guard)?;
        self.finish_removal();
        Ok(unsaved)
    }

    /// The device stays after `e`, and some of its origins were given back: a resume claims them
    /// again (DM-R6).
    async fn keep_origins(&self, guard: &ControlGuard, e: Error) -> Error {
        let was_suspended = self.lifecycle.is_suspended();
        self.lifecycle.cancel_removal();
        if was_suspended {
            return e;
        }
        let claimed = match self.suspend(guard).await {
            Ok(()) => self.resume_live(guard).await,
            Err(also) => Err(also),
        };
        match claimed {
            Ok(()) => e,
            Err(also) => e.because(also),
        }
    }

    /// The last step of a removal: nothing is in flight below, but for tables that were replaced by
    /// force.
    pub(crate) fn finish_removal(&self) {
        self.lifecycle.finish_removal();
        self.tables.clear();
        self.fail_waiting();
        self.raise_event();
    }
}
