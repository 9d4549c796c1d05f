// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replace: another table takes the place of the live one, and the caches of the old one hold
//! nothing from then on. For `uncache` and `replace-cache`.
//!
//! ```text
//!              hold                 write back              suspend
//!   Running ─────────▶ Held ───────────────────▶ Emptied ───────────▶ Settled
//!      ▲    bios wait        the caches hold                             │ resume the new table
//!      │                     nothing, durably                            ▼
//!      │                                       mark                   Opened
//!      │                                  ┌───────────────────────────── │
//!      │                                  ▼                              │ no cache is replaced
//!      │  any error               Marked (durable)                       │ by another one
//!      └── resume the old table           └──────────▶ Replaced ◀────────┘
//!                                                 bios go to the new table
//! ```
//!
//! | a crash in | finds |
//! |---|---|
//! | Running, Held | the old table, its caches as they were |
//! | Emptied, Settled, Opened | the old table with empty caches: the origin has everything |
//! | Marked, Replaced | the new table; by the old one empty caches, or a refusal if marked |
//!
//! Invariants
//! - DM-R1 A bio goes to the new table only when every cache of the old one holds nothing, durably:
//!   no dirty block, which the origin would lack, and no clean copy, which would be old after the
//!   first write to the origin.
//! - DM-R2 If another cache takes the place of one, a bio goes to it only when the old one is
//!   marked, durably: a table that still names the old one would hide what the new one holds.
//! - DM-R3 After an error the old table is live again, and serves the bios that have waited.
//! - DM-R4 A table that was made from the live one replaces that one only: an operator may have
//!   made another one live meanwhile.
//! - DM-R5 A cache that comes in holds nothing when it is opened: its blocks, dirty ones and clean
//!   copies, would be older than what clients have written meanwhile.
//! - DM-R6 The new table is opened when the origins are as clients see them: a cache that guards
//!   its origin has given it back. After an error it guards it again.
//! - DM-R7 What a target keeps grows only when a longer line takes the place of the same shorter
//!   one: a table that is loaded with a wrong length changes nothing.
//! - DM-R8 A table that stays after another one was opened reads the media of the caches anew that
//!   both have: the other one may have written them back, or have changed their metadata.
//! - DM-R9 A device of which somebody else has taken a target over keeps its table: a new one would
//!   take it back, which only `load` and `resume` do.
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, Role, Sector};

use super::MappedDevice;
use crate::context::EventSource;
use crate::control_lock::ControlGuard;
use crate::dm::Dm;
use crate::live::{Entry, Table};

/// Which table of a device is live at a moment.
#[derive(Clone, Debug)]
pub struct LiveTable(Weak<Table>);

impl LiveTable {
    fn is_still_live(&self, device: &MappedDevice) -> bool {
        device.live().is_some_and(|live| std::ptr::eq(self.0.as_ptr(), Rc::as_ptr(&live)))
    }
}

impl Dm {
    /// Which table of a device is live now, for [`Dm::replace_table`].
    ///
    /// # Errors
    /// `ENXIO` if there is no such device, `EINVAL` if it has no live table.
    pub fn live_table(&self, name: &str) -> Result<LiveTable, Error> {
        let live = self.get(name)?.live();
        let live = live.ok_or_else(|| Error::invalid(format!("{name}: it has no live table")))?;
        Ok(LiveTable(Rc::downgrade(&live)))
    }

    /// Replaces the live table of a device that is in use (DM-R1 to DM-R5) by `text`, which was
    /// made from the table `from`. Bios wait while the caches of the live table are written back:
    /// the caller has drained them before.
    ///
    /// # Errors
    /// Why the old table is live as before; `EBUSY` if `from` is live no more.
    pub async fn replace_table(
        &self,
        name: &str,
        from: &LiveTable,
        text: &str,
    ) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        let replaced = match from.is_still_live(&device) {
            true => device.replace(self, &guard, text).await,
            false => Err(Error::busy(
                "another table has become live meanwhile: nothing was changed, try again",
            )),
        };
        drop(guard);
        replaced.map_err(|e| e.within(device.name()))
    }

    /// Fails if a cache of `text`, which the live table does not have, holds blocks (DM-R5). For a
    /// caller that is about to drain the live table: [`Dm::replace_table`] finds it only later.
    ///
    /// # Errors
    /// That, and why `text` is no table.
    pub async fn check_new_caches(&self, name: &str, text: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let guard = device.control().await?;
        let checked = self.check_new_caches_of(&device, text).await;
        drop(guard);
        checked.map_err(|e| e.within(device.name()))
    }

    async fn check_new_caches_of(
        &self,
        device: &Rc<MappedDevice>,
        text: &str,
    ) -> Result<(), Error> {
        let new = self.construct(device, text).await?;
        let Some(live) = device.live() else { return Ok(()) };
        for entry in new.entries.iter().filter(|entry| !self.keeps_its_cache(entry, &live)) {
            let checked = entry.target.clone().check_empty().await;
            checked.map_err(|e| e.within(entry.label()))?;
        }
        Ok(())
    }

    /// Sends `words` to the attribute `drain` of each cache of the live table, one after another:
    /// writes their blocks back while the device is in use, within limits.
    pub async fn drain(&self, name: &str, words: &str) -> Result<(), Error> {
        let device = self.get(name)?;
        let Some(live) = device.live() else { return Ok(()) };
        for entry in live.entries.iter().filter(|e| e.target.tracks_dirty()) {
            let drained = entry.target.clone().set_attribute("drain".into(), words.into()).await;
            drained.map_err(|e| e.within(format!("{name}: {}", entry.label())))?;
        }
        Ok(())
    }

    /// Sends `words`, which stop writeback, to the attribute `drain` of each cache of the live
    /// table, whatever the others answer: one that writes nothing back has nothing to stop.
    pub async fn stop_writeback(&self, name: &str, words: &str) {
        let live = self.get(name).ok().and_then(|device| device.live());
        for entry in live.iter().flat_map(|live| &live.entries) {
            if entry.target.tracks_dirty() {
                let stop = entry.target.clone().set_attribute("drain".into(), words.into());
                let _ = stop.await;
            }
        }
    }
}

impl MappedDevice {
    /// The cache devices of the live table, by the names that tables use.
    pub fn cache_devices(&self) -> Vec<String> {
        self.caches().into_iter().map(|(name, _)| name).collect()
    }

    /// The same, with their start sectors where these are not 0.
    pub fn cache_areas(&self) -> Vec<String> {
        self.caches().into_iter().map(area_text).collect()
    }

    fn caches(&self) -> Vec<(String, Sector)> {
        let Some(live) = self.live() else { return Vec::new() };
        live.entries.iter().filter(|e| e.target.tracks_dirty()).filter_map(cache_of).collect()
    }

    /// The live table with each cache replaced by a mapping of its origin.
    ///
    /// # Errors
    /// `EINVAL` if it has no cache.
    pub fn table_without_caches(&self) -> Result<String, Error> {
        let live = self.live();
        let entries = live.as_ref().map_or(&[][..], |live| &live.entries);
        let mut caches = 0;
        let mut text = String::new();
        for entry in entries {
            let Entry { start, end, target, .. } = entry;
            let len = *end - *start;
            let below = target.components();
            let origin = below.iter().find(|b| b.role == Role::Origin);
            let line = match origin.filter(|_| target.tracks_dirty()) {
                Some(origin) => {
                    caches += 1;
                    format!("linear {} {}", block::quote(origin.device.name()), origin.start)
                }
                None => format!("{} {}", target.kind(), target.table()),
            };
            text.push_str(&format!("{start} {len} {line}\n"));
        }
        if caches == 0 {
            return Err(Error::invalid(format!(
                "{}: no line of its table is a write cache: `millpond ls --tree` shows what it is \
                 built on",
                self.name()
            )));
        }
        Ok(text)
    }

    /// Who has taken away what a target of the live table had.
    pub fn fenced_by(&self) -> Option<String> {
        self.live()?.entries.iter().find_map(|entry| entry.target.fenced_by())
    }

    /// Fails unless the device has a live table alone, and serves bios.
    pub fn check_replaceable(&self) -> Result<(), Error> {
        if self.live().is_none() {
            return Err(Error::invalid("it has no live table"));
        }
        if self.is_suspended() {
            return Err(Error::busy("it is suspended: resume it first"));
        }
        if self.inactive().is_some() {
            return Err(Error::busy(
                "a table waits for a resume: `clear` drops it, `resume` makes it live",
            ));
        }
        if let Some(fence) = self.fenced_by() {
            // DM-R9
            return Err(Error::busy(format!(
                "{fence}: another table would take it back: `load` and `resume` with its table \
                 do that, `remove` gives it up"
            )));
        }
        Ok(())
    }

    /// Before a removal: the caches give their origins back, if these lack nothing that they hold.
    pub(super) async fn release_unneeded_origins(&self) -> Result<(), Error> {
        let Some(live) = self.live() else { return Ok(()) };
        if self.unsaved().iter().any(|unsaved| unsaved.blocks() > 0) {
            return Ok(());
        }
        let released = release_origins(&live).await;
        released.map_err(|e| e.within(format!("{}: to give its origin back", self.name())))
    }

    /// Before `new` takes the live table's place: caches that it does not have give their origins
    /// back (DM-R6). The device is suspended.
    pub(super) async fn release_hidden_origins(&self, new: &Table) -> Result<(), Error> {
        let (Some(live), Some(dm)) = (self.live(), self.dm.upgrade()) else { return Ok(()) };
        let is_hidden = |e: &&Entry| e.target.tracks_dirty() && !dm.keeps_its_cache(e, new);
        for entry in live.entries.iter().filter(is_hidden) {
            let released = entry.target.clone().release_origin().await;
            released.map_err(|e| e.within(format!("{}: {}", self.name(), entry.label())))?;
        }
        Ok(())
    }

    async fn replace(
        self: &Rc<Self>,
        dm: &Dm,
        guard: &ControlGuard,
        text: &str,
    ) -> Result<(), Error> {
        self.check_replaceable()?;
        self.check_settled()?;
        let new = Rc::new(dm.construct(self, text).await?);
        self.check_guard(guard)?;
        dm.put_inactive(self, &new, None)?;
        let replaced = self.replace_by(dm, guard, &new).await;
        if !guard.is_withdrawn() {
            self.set_inactive(None);
        }
        replaced
    }

    async fn replace_by(
        &self,
        dm: &Dm,
        guard: &ControlGuard,
        new: &Rc<Table>,
    ) -> Result<(), Error> {
        self.hold(guard).await?;
        let live = self.live().ok_or_else(|| Error::invalid("it has no live table"))?;
        let emptied = empty(&live).await;
        self.check_guard(guard)?;
        if let Err(e) = emptied {
            // DM-R3: no target is suspended yet.
            self.unblock();
            return Err(e);
        }
        let settled = self.suspend(guard).await;
        self.check_guard(guard)?;
        let untold = self.last_flushes(dm, &live, Some(new)).await;
        self.check_guard(guard)?;
        let opened = match settled {
            Ok(()) => self.open_new(dm, guard, &live, new).await,
            Err(e) => Err(e),
        };
        if let Err(e) = opened {
            self.check_guard(guard)?;
            // DM-R3
            return match self.resume_live(guard).await {
                Ok(()) => Err(e),
                Err(also) => Err(e.because(also)),
            };
        }
        new.refresh_limits();
        let old = self.tables.live.replace(Some(new.clone()));
        self.must_tell(untold);
        self.set_inactive(None);
        drop(old);
        self.unblock();
        self.raise_event();
        Ok(())
    }

    /// From settled to marked, with the origins claimed. After an error the new table is suspended.
    async fn open_new(
        &self,
        dm: &Dm,
        guard: &ControlGuard,
        live: &Rc<Table>,
        new: &Rc<Table>,
    ) -> Result<(), Error> {
        self.check_hidden(new, false, None).await?; // DM-R1
        release_origins(live).await?; // DM-R6
        // DM-R5: a cache that is not open yet does not track dirty blocks, so all are asked.
        for entry in new.entries.iter().filter(|entry| !dm.keeps_its_cache(entry, live)) {
            entry.target.require_empty();
        }
        allow_growth(live, new);
        if let Err(e) = new.resume_after(Some(live.clone())).await {
            self.reread_media(new);
            return Err(e);
        }
        let marked = match self.check_guard(guard) {
            Ok(()) => self.mark_replaced(dm, live, new).await,
            Err(e) => Err(e),
        };
        let mut claimed = marked.and_then(|()| self.check_guard(guard));
        if claimed.is_ok() {
            claim_origins(new).await;
            claimed = self.check_guard(guard); // DM-FO2
        }
        let Err(e) = claimed else { return Ok(()) };
        self.reread_media(new);
        match new.suspend().await {
            Ok(()) => Err(e),
            Err(also) => Err(e.because(also)),
        }
    }

    /// `new` has been opened, and does not go live: the caches that it has, too, may not be as the
    /// live table left them (DM-R8).
    pub(super) fn reread_media(&self, new: &Table) {
        let (Some(live), Some(dm)) = (self.live(), self.dm.upgrade()) else { return };
        for entry in live.entries.iter().filter(|entry| dm.keeps_its_cache(entry, new)) {
            entry.target.reread_media();
        }
    }

    /// DM-R2: marks the caches whose place another one takes.
    async fn mark_replaced(&self, dm: &Dm, live: &Table, new: &Table) -> Result<(), Error> {
        for entry in live.entries.iter().filter(|e| e.target.tracks_dirty()) {
            if dm.keeps_its_cache(entry, new) {
                continue;
            }
            let Some(successor) = new.find(entry.start).and_then(cache_of) else { continue };
            entry
                .target
                .clone()
                .mark_replaced(area_text(successor))
                .await
                .map_err(|e| e.within(entry.label()))?;
        }
        Ok(())
    }
}

/// Writes back what the caches of a table hold, until they hold nothing. No bio comes meanwhile.
async fn empty(table: &Table) -> Result<(), Error> {
    let caches: Vec<_> = table.entries.iter().filter(|e| e.target.tracks_dirty()).collect();
    for (nth, entry) in caches.iter().enumerate() {
        if let Err(e) = entry.target.clone().empty().await {
            caches[..nth].iter().for_each(|emptied| emptied.target.cancel_empty()); // DM-R3
            return Err(e.within(entry.label()));
        }
    }
    Ok(())
}

/// The origins of the caches of a table have what clients see (DM-R6).
async fn release_origins(table: &Table) -> Result<(), Error> {
    for entry in table.entries.iter().filter(|e| e.target.tracks_dirty()) {
        let released = entry.target.clone().release_origin().await;
        released.map_err(|e| e.within(entry.label()))?;
    }
    Ok(())
}

/// DM-R7: the lines of `new` that are longer than the same ones of `live`.
fn allow_growth(live: &Table, new: &Table) {
    for entry in &new.entries {
        let is_same = |old: &&Entry| {
            old.start == entry.start
                && old.target.kind() == entry.target.kind()
                && old.target.table() == entry.target.table()
        };
        let old = live.find(entry.start).filter(is_same);
        if old.is_some_and(|old| old.end < entry.end) {
            entry.target.allow_growth();
        }
    }
}

async fn claim_origins(table: &Table) {
    for entry in &table.entries {
        entry.target.clone().claim_origin().await;
    }
}

/// The name of the cache device of a line, and where the cache begins on it.
fn cache_of(entry: &Entry) -> Option<(String, Sector)> {
    let below = entry.target.components();
    let cache = below.iter().find(|b| b.role == Role::Cache)?;
    Some((cache.device.name().to_owned(), cache.start))
}

/// As an operator has to name it: two caches may be on one device.
fn area_text((name, start): (String, Sector)) -> String {
    match start {
        Sector::ZERO => name,
        Sector(start) => format!("{name} with start_sector {start}"),
    }
}
