// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that only the caches of a device hold. No verb hides or drops them without a token.
//!
//! Invariants
//! - DM-U1 A table that would hide dirty blocks goes live only with their token; a refusal leaves
//!   the device as it was. The same for a table that has the cache, too, if it holds blocks in
//!   memory alone: the next instance of the cache does not have that memory.
//! - DM-U2 A device whose cache has blocks that fail, can't be read or are in memory alone is
//!   removed only with their token.
//! - DM-U3 A cache without its device has no copies of its origin, which may change from then on: a
//!   removal, and a table that hides the cache, drop them first. Where that fails, and in a removal
//!   by force, which waits for nothing, it is reported.
//! - DM-U4 Another process takes over from this one only with the token of each device that has
//!   blocks in memory alone.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector, UnsavedBlocks};

use super::MappedDevice;
use crate::live::{Entry, Table};

impl MappedDevice {
    /// Whether any target of the live table tracks dirty blocks.
    pub fn tracks_dirty(&self) -> bool {
        self.live().is_some_and(|live| live.entries.iter().any(|e| e.target.tracks_dirty()))
    }

    /// Runs of dirty sectors within `at..at + len`, for block status: nothing when no target of
    /// the live table is a cache. Sectors under other targets are clean.
    pub async fn dirty(&self, at: Sector, len: Sector) -> Option<Vec<(Sector, Sector)>> {
        let live = self.live()?;
        let end = at.checked_add(len)?;
        let mut all = None;
        for entry in live.entries.iter().filter(|e| e.start < end && e.end > at) {
            let from = entry.start.max(at);
            let to = entry.end.min(end);
            if let Some(runs) = entry.target.clone().dirty(from - entry.start, to - from).await {
                let runs = runs.into_iter().map(|(s, l)| (s + entry.start, l));
                all.get_or_insert_with(Vec::new).extend(runs);
            }
        }
        all
    }

    /// The blocks that the caches of the live table hold and their origins do not. Exact while the
    /// device is suspended.
    pub fn unsaved(&self) -> Vec<UnsavedBlocks> {
        self.unsaved_lines().into_iter().map(|(_, unsaved)| unsaved).collect()
    }

    /// With the numbers of their lines in the live table.
    fn unsaved_lines(&self) -> Vec<(usize, UnsavedBlocks)> {
        let Some(live) = self.live() else { return Vec::new() };
        let unsaved = |(nth, e): (usize, &Entry)| Some((nth, e.target.unsaved()?));
        let lines = live.entries.iter().enumerate().filter_map(unsaved);
        lines.filter(|(_, unsaved)| !unsaved.is_empty()).collect()
    }

    /// DM-U3, for the lines of the live table that leave; the device is suspended. Returns what
    /// their caches hold still.
    pub(super) async fn drop_copies(
        &self,
        live: &Table,
        leaves: impl Fn(&Entry) -> bool,
    ) -> Vec<UnsavedBlocks> {
        let mut failed = Vec::new();
        for (nth, entry) in live.entries.iter().enumerate().filter(|(_, entry)| leaves(entry)) {
            if let Err(e) = entry.target.clone().drop_copies().await {
                failed.push((nth, e.chain()));
            }
        }
        let held = |(nth, entry): (usize, &Entry)| {
            let why = failed.iter().find(|(of, _)| *of == nth).map(|(_, why)| why.clone());
            let unsaved = entry.target.unsaved().filter(|_| leaves(entry))?;
            Some(UnsavedBlocks { copies_kept: why, ..unsaved })
        };
        let held = live.entries.iter().enumerate().filter_map(held);
        held.filter(|held| !held.is_empty() || held.copies_kept.is_some()).collect()
    }

    /// DM-U3, before `new` takes the live table's place.
    pub(super) async fn drop_hidden_copies(&self, new: &Table) {
        let (Some(live), Some(dm)) = (self.live(), self.dm.upgrade()) else { return };
        let mut kept = self.drop_copies(&live, |entry| !dm.keeps_its_cache(entry, new)).await;
        kept.retain(|held| held.copies_kept.is_some());
        dm.report_unsaved(self, &kept);
    }

    /// DM-U3, of a removal by force: what the caches hold, with their copies.
    pub(crate) fn held_by_force(&self) -> Vec<UnsavedBlocks> {
        let live = self.live();
        let entries = live.iter().flat_map(|live| &live.entries);
        let mut held: Vec<_> = entries.filter_map(|entry| entry.target.unsaved()).collect();
        for held in held.iter_mut().filter(|held| held.copies > 0) {
            held.copies_kept = Some("a removal by force waits for nothing".to_owned());
        }
        held.retain(|held| !held.is_empty() || held.copies_kept.is_some());
        held
    }

    /// Whether `new` may take the live table's place (DM-U1). The device is suspended.
    pub(crate) async fn check_hidden(
        &self,
        new: &Table,
        was_suspended: bool,
        given: Option<&str>,
    ) -> Result<(), Error> {
        let (Some(live), Some(dm)) = (self.live(), self.dm.upgrade()) else { return Ok(()) };
        let mut hidden = self.unsaved_lines();
        let is_kept = |nth: usize| dm.keeps_its_cache(&live.entries[nth], new);
        hidden.retain(|(nth, unsaved)| unsaved.in_memory > 0 || !is_kept(*nth));
        if hidden.is_empty() {
            return Ok(());
        }
        let name = self.name();
        let first = if was_suspended {
            format!("`millpond clear {name}`, `millpond resume {name}` and ")
        } else {
            String::new()
        };
        let hidden: Vec<UnsavedBlocks> = hidden.into_iter().map(|(_, unsaved)| unsaved).collect();
        let in_memory = hidden.iter().any(|unsaved| unsaved.in_memory > 0);
        let way = match hidden.iter().find(|unsaved| unsaved.is_missing) {
            Some(missing) => {
                format!("to keep them, bring {} back and load a table with it", missing.cache)
            }
            None if in_memory => format!(
                "the cache device has refused what is in memory alone: {first}copy it from {name}, \
                 which can still be read"
            ),
            None => format!(
                "to write them back first, {first}`millpond message {name} 0 flush_on_suspend`, \
                 which does it as the table is swapped, or `millpond uncache {name}`"
            ),
        };
        let harm = format!("{name}: the new table would hide {}; {way}", stale(&hidden));
        Error::require_token(self.token("resume", &hidden), given, harm)
    }

    /// Whether the device may be removed (DM-U2).
    pub(crate) async fn check_lost(&self, given: Option<&str>) -> Result<(), Error> {
        let mut lost = self.unsaved();
        lost.retain(|unsaved| !unsaved.is_healthy());
        if lost.is_empty() {
            return Ok(());
        }
        let name = self.name();
        let harm = format!(
            "{name}: its cache has {}; without the device nobody tries again to write them back \
             (`millpond get {name}` tells of them)",
            stale(&lost)
        );
        Error::require_token(self.token("remove", &lost), given, harm)
    }

    /// What is in memory alone and would end with this process, and the token of `verb` that
    /// accepts that (DM-U4). The device may be suspended.
    pub async fn in_memory_alone(&self, verb: &str) -> Option<(String, String)> {
        let mut alone = self.unsaved();
        alone.retain(|unsaved| unsaved.in_memory > 0);
        if alone.is_empty() {
            return None;
        }
        let name = self.name();
        let harm = format!(
            "its cache has {}; another process may not find them: copy them from {name}, which \
             can still be read, or `millpond remove {name}` with the token of its refusal gives \
             them up",
            stale(&alone)
        );
        Some((self.token(verb, &alone), harm))
    }

    /// Identifies a verb and what it would hide: the devices of the blocks, and how many can't be
    /// read. Not the number of dirty blocks, which may change from one second to the next.
    fn token(&self, verb: &str, unsaved: &[UnsavedBlocks]) -> String {
        let mut facts = format!("{verb} {} {}", self.minor(), self.name());
        for u in unsaved {
            facts.push_str(&format!(" {} {} {}", u.cache, u.origin, u.unreadable));
        }
        format::token(facts.as_bytes())
    }

    /// Writes back all blocks that only the live table's caches hold, while the device is in use.
    pub(crate) async fn write_back(self: &Rc<Self>) -> Result<(), Error> {
        let Some(live) = self.live() else { return Ok(()) };
        for entry in &live.entries {
            let to = self.message_to(entry.start, &[])?;
            let written = to.target.clone().write_back().await;
            written.map_err(|e| e.within(format!("{}: {}", self.name(), entry.label())))?;
        }
        Ok(())
    }
}

/// The blocks, and the origins that are stale without them.
fn stale(unsaved: &[UnsavedBlocks]) -> String {
    let one =
        |u: &UnsavedBlocks| format!("{u}, which {} does not have and is stale without", u.origin);
    unsaved.iter().map(one).collect::<Vec<_>>().join("; ")
}
