// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which tables would write to the same sectors at the bottom of their stacks.
//!
//! ```text
//!   w ─ writecache ─┬─ origin ───────▶ l ─ linear ─▶ ./o.img  0..131072 ─┐ the same sectors
//!                   └─ cache device ─▶ ./c.img                           │
//!   m ─ linear ──────────────────────▶ ./o.img  4096..8192  ─────────────┘
//! ```
//!
//! A device is followed through its mappings, those of its inactive table too, down to a leaf or an
//! engine: there its bios are no longer passed on as they are. Leaves on one file or disk, such as
//! a file and a loop device over it, are compared by their bytes there.
//!
//! Invariants
//! - DM-O1 A sector at the bottom belongs to one line of one mapped device, as its origin, its
//!   cache device or its backing device, and only to one of these. Otherwise two engines, or two
//!   halves of one, would overwrite each other's blocks. Another table of the same device may name
//!   it again: the old table has settled before the new one runs.
//! - DM-O2 Such a sector is mapped by no device but those through which the engine itself reaches
//!   it, unless the operator gives a token. Exception: a device above a cache without dirty blocks
//!   may get a table that leaves the cache out.
//! - DM-O3 Both are checked, in one step with the load, whenever a table is loaded: it may change
//!   what lies below a device whose own table stays.
//! - DM-O4 Sectors where writes of a table may land that was replaced by force get no other table
//!   before all of these have ended, whatever the devices below that table are by now: where it led
//!   is resolved when it is replaced.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Backing, BlockDevice, Component, Error, Role, Sector};

use crate::device::{Depths, MappedDevice};
use crate::device_set::address;
use crate::dm::Dm;
use crate::live::{Entry, Table};
use crate::unsettled::{BottomRuns, Runs, Unsettled};

/// The sectors that a line owns in one role.
struct Claim {
    owner: Rc<MappedDevice>,
    table: Rc<Table>,
    entry: usize,
    role: Role,
    below: Component,
    bottom: BottomRuns,
}

impl Claim {
    fn entry(&self) -> &Entry {
        &self.table.entries[self.entry]
    }

    /// Whether `device` is above the owner and the owner's origin holds everything: then a table of
    /// `device` that leaves the owner out removes an empty cache from the stack.
    fn is_left_by(&self, device: &MappedDevice) -> bool {
        let unsaved = self.entry().target.unsaved();
        self.role == Role::Origin
            && unsaved.is_some_and(|unsaved| unsaved.is_empty())
            && device.reaches(&self.owner)
    }

    /// `the origin of w (writecache)`.
    fn describe(&self) -> String {
        format!("the {} of {} ({})", self.role, self.owner.name(), self.entry().target.kind())
    }
}

/// Two lines that would write to the same sectors.
struct Conflict {
    /// The same for the same two uses, however often tables are loaded.
    key: (u32, Role, u32, Option<Role>),
    /// Whether a token may permit it.
    may_be_forced: bool,
    /// The line of the table that is being loaded, if it is one of the two.
    place: Option<String>,
    text: String,
}

impl Dm {
    /// Puts `table` into the inactive slot of `device`, unless it, or a table above it, would then
    /// write where another does (DM-O1, DM-O2). The caller holds the device's lock.
    pub(crate) fn put_inactive(
        &self,
        device: &Rc<MappedDevice>,
        table: &Rc<Table>,
        force: Option<&str>,
    ) -> Result<(), Error> {
        let known: BTreeSet<_> = self.conflicts(None).into_iter().map(|c| c.key).collect();
        let old = device.swap_inactive(Some(table.clone()));
        let found = self.conflicts(Some(table));
        let mut new: Vec<_> = found.into_iter().filter(|c| !known.contains(&c.key)).collect();
        new.sort_by_key(|c| (c.may_be_forced, c.key)); // what can't be forced comes first
        let refused = match new.first() {
            None => Ok(()),
            Some(c) if c.may_be_forced && self.accepts_overlaps() => Ok(()),
            Some(c) if c.may_be_forced => {
                let all: Vec<&str> = new.iter().map(|c| &*c.text).collect();
                let all = all.join("; ");
                let token = format::token(format!("load {} {all}", device.name()).as_bytes());
                Error::require_token(token, force, all)
            }
            Some(c) => Err(Error::busy(&c.text)),
        };
        if let Err(e) = refused {
            drop(device.swap_inactive(old));
            return Err(match new.into_iter().find_map(|c| c.place) {
                Some(place) => e.within(place),
                None => e,
            });
        }
        drop(old);
        Ok(())
    }

    /// All pairs of lines that would write to the same sectors. Messages name lines of `loading`
    /// only.
    fn conflicts(&self, loading: Option<&Rc<Table>>) -> Vec<Conflict> {
        let devices = self.devices();
        let claims = self.claims(&devices);
        let mut conflicts = self.late_writes(&devices, loading);
        if claims.is_empty() {
            return conflicts;
        }
        let place_in = |table: &Rc<Table>, entry: &Entry| {
            loading.filter(|l| Rc::ptr_eq(l, table)).map(|_| entry.label())
        };
        for (nth, a) in claims.iter().enumerate() {
            for b in &claims[nth + 1..] {
                let is_own_successor =
                    Rc::ptr_eq(&a.owner, &b.owner) && !Rc::ptr_eq(&a.table, &b.table);
                if is_own_successor {
                    continue;
                }
                // The message names the table that is being loaded first.
                let is_new = loading.is_some_and(|l| Rc::ptr_eq(l, &a.table));
                let (a, b) = if is_new { (a, b) } else { (b, a) };
                let Some(what) =
                    self.shared(&a.owner, std::slice::from_ref(&a.below), &a.bottom, b)
                else {
                    continue;
                };
                let place = place_in(&a.table, a.entry()).or(place_in(&b.table, b.entry()));
                conflicts.push(Conflict {
                    key: (a.owner.minor(), a.role, b.owner.minor(), Some(b.role)),
                    may_be_forced: false,
                    place,
                    text: format!(
                        "{what} would be {} and {}: a device, or a part of it, may be origin, \
                         cache device or backing device of one only",
                        a.describe(),
                        b.describe()
                    ),
                });
            }
        }
        for device in &devices {
            for table in device.tables() {
                let lines = || table.entries.iter().filter(|e| !e.owns);
                let all: Vec<Component> = lines().flat_map(|e| e.target.components()).collect();
                let bottom = self.bottom(&all, None);
                // Not the owner's own tables: they may name the sectors again (DM-O1).
                for claim in claims.iter().filter(|c| !Rc::ptr_eq(&c.owner, device)) {
                    if claim.is_left_by(device) {
                        continue;
                    }
                    if self.shared(device, &all, &bottom, claim).is_none() {
                        continue;
                    }
                    let found = lines().find_map(|entry| {
                        let below = entry.target.components();
                        let bottom = self.bottom(&below, None);
                        Some((entry, self.shared(device, &below, &bottom, claim)?))
                    });
                    let Some((entry, what)) = found else { continue };
                    let place = place_in(&table, entry);
                    let place = place.or_else(|| place_in(&claim.table, claim.entry()));
                    conflicts.push(Conflict {
                        key: (device.minor(), Role::Mapped, claim.owner.minor(), Some(claim.role)),
                        may_be_forced: true,
                        place,
                        text: format!(
                            "{what}: they are {} and are mapped by {} ({}) too, past it: what is \
                             written by one of them the other does not know of",
                            claim.describe(),
                            device.name(),
                            entry.target.kind()
                        ),
                    });
                }
            }
        }
        conflicts
    }

    /// Tables that reach sectors where a table that was replaced by force may still write, past its
    /// device: through that device nothing goes before all has ended (DM-FO3).
    fn late_writes(
        &self,
        devices: &[Rc<MappedDevice>],
        loading: Option<&Rc<Table>>,
    ) -> Vec<Conflict> {
        let unsettled = self.unsettled.borrow();
        let mut conflicts = Vec::new();
        for Unsettled { owner, minor, bottom, .. } in unsettled.iter() {
            let stop = devices.iter().find(|device| address(device) == address(owner));
            for device in devices.iter().filter(|device| address(device) != address(owner)) {
                for table in device.tables() {
                    let find = |entry: &Entry| {
                        let there = self.bottom(&entry.target.components(), stop);
                        first_shared(&there, bottom)
                    };
                    let found = table.entries.iter().find_map(|e| Some((e, find(e)?)));
                    let Some((entry, what)) = found else { continue };
                    let is_new = loading.is_some_and(|l| Rc::ptr_eq(l, &table));
                    conflicts.push(Conflict {
                        key: (device.minor(), Role::Mapped, *minor, None),
                        may_be_forced: false,
                        place: is_new.then(|| entry.label()),
                        text: format!(
                            "{what}: I/O of the table of {} that was removed by force has not \
                             ended yet, and may still be written there. Wait until the device \
                             below has answered; if it never does, end it (a server: kill it; a \
                             disk: take it out)",
                            owner.name()
                        ),
                    });
                }
            }
        }
        conflicts
    }

    /// Notes where `table` of `owner` leads, which is about to be replaced by force (DM-O4).
    pub(crate) fn add_unsettled(&self, owner: &Rc<MappedDevice>, table: &Rc<Table>) {
        let of_line = |entry: &Entry| entry.target.components();
        let all: Vec<Component> = table.entries.iter().flat_map(of_line).collect();
        let bottom = self.bottom(&all, None);
        let (minor, table) = (owner.minor(), address(table));
        self.unsettled.borrow_mut().push(Unsettled { owner: owner.clone(), minor, table, bottom });
    }

    /// What [`Dm::add_unsettled`] has noted of `table`.
    pub(crate) fn unsettled_leaves(&self, table: &Rc<Table>) -> Vec<Rc<dyn BlockDevice>> {
        let unsettled = self.unsettled.borrow();
        let found = unsettled.iter().find(|u| u.table == address(table));
        let leaves =
            |u: &Unsettled| u.bottom.devices.values().map(|(leaf, _)| leaf.clone()).collect();
        found.map(leaves).unwrap_or_default()
    }

    /// Nothing of `table` can be written any more.
    pub(crate) fn remove_unsettled(&self, table: &Rc<Table>) {
        // Dropping one may close devices, so not while the list is borrowed.
        let mut unsettled = self.unsettled.borrow_mut();
        let at = unsettled.iter().position(|u| u.table == address(table));
        let removed = at.map(|at| unsettled.swap_remove(at));
        drop(unsettled);
        drop(removed);
    }

    /// The sectors that `below`, used by `user`, shares with a claim, as messages show them. Where
    /// one is reached through the other's device they share none.
    fn shared(
        &self,
        user: &Rc<MappedDevice>,
        below: &[Component],
        bottom: &BottomRuns,
        claim: &Claim,
    ) -> Option<String> {
        let shared = first_shared(bottom, &claim.bottom)?;
        if Rc::ptr_eq(user, &claim.owner) {
            return Some(shared);
        }
        let past_owner = self.bottom(below, Some(&claim.owner));
        let past_user = self.bottom(std::slice::from_ref(&claim.below), Some(user));
        first_shared(&past_owner, &past_user)
    }

    /// The leaves on which a device lies, and the engines.
    pub fn at_the_bottom(&self, device: &Rc<dyn BlockDevice>) -> Vec<Rc<dyn BlockDevice>> {
        let (start, len) = (Sector::ZERO, device.limits().capacity);
        let whole = Component { device: device.clone(), start, len, role: Role::Mapped };
        self.bottom(&[whole], None).devices.into_values().map(|(device, _)| device).collect()
    }

    /// The same, with the sectors of each on which it lies.
    pub fn runs_at_the_bottom(
        &self,
        device: &Rc<dyn BlockDevice>,
    ) -> Vec<(Rc<dyn BlockDevice>, Runs)> {
        let (start, len) = (Sector::ZERO, device.limits().capacity);
        let whole = Component { device: device.clone(), start, len, role: Role::Mapped };
        self.bottom(&[whole], None).devices.into_values().collect()
    }

    /// Whether `new` has a cache that keeps its blocks where the cache of `old` keeps them.
    /// A missing one is kept by a table that names it.
    pub(crate) fn keeps_its_cache(&self, old: &Entry, new: &Table) -> bool {
        if let Some(missing) = old.target.unsaved().filter(|unsaved| unsaved.is_missing) {
            let same = |cache: &str, start| cache == missing.cache && start == missing.start;
            return new.entries.iter().filter(|e| e.owns).any(|e| {
                let again = e.target.unsaved().filter(|unsaved| unsaved.is_missing);
                let below = e.target.components();
                let mut caches = below.iter().filter(|b| b.role == Role::Cache);
                again.is_some_and(|again| same(&again.cache, again.start))
                    || caches.any(|b| same(b.device.name(), b.start))
            });
        }
        let place = |entry: &Entry| -> Vec<(usize, u64)> {
            let mut below = entry.target.components();
            below.retain(|b| b.role == Role::Cache);
            let bottom = self.bottom(&below, None);
            let first = |(key, (_, runs)): (&usize, &(_, Runs))| Some((*key, runs.first()?.0));
            bottom.devices.iter().filter_map(first).collect()
        };
        let kept = place(old);
        let mut lines = new.entries.iter().filter(|e| e.owns);
        lines.any(|e| e.target.kind() == old.target.kind() && place(e) == kept)
    }

    fn claims(&self, devices: &[Rc<MappedDevice>]) -> Vec<Claim> {
        let mut claims = Vec::new();
        let there = devices.iter().flat_map(|owner| owner.tables().map(move |t| (owner, t)));
        for (owner, table) in there {
            for (nth, entry) in table.entries.iter().enumerate().filter(|(_, e)| e.owns) {
                for below in entry.target.components() {
                    let bottom = self.bottom(std::slice::from_ref(&below), None);
                    let (owner, table, role) = (owner.clone(), table.clone(), below.role);
                    claims.push(Claim { owner, table, entry: nth, role, below, bottom });
                }
            }
        }
        claims
    }

    /// The sectors at the bottom on which `areas` lie; `stop` counts as a leaf. Looks once at each
    /// device, after all that are above it.
    fn bottom(&self, areas: &[Component], stop: Option<&Rc<MappedDevice>>) -> BottomRuns {
        let mut walk = Walk {
            mapped: self.devices().into_iter().map(|d| (address(&d), d)).collect(),
            depths: Depths::new(),
            waiting: BTreeMap::new(),
            bottom: BottomRuns::default(),
        };
        if let Some(stop) = stop {
            walk.mapped.remove(&address(stop));
        }
        for area in areas {
            let (start, len) = (area.start.0, area.len.0);
            walk.reach(&area.device, (start, start.saturating_add(len)));
        }
        while let Some((_, (device, mut runs))) = walk.waiting.pop_last() {
            merge(&mut runs);
            for table in device.tables() {
                for &(start, end) in &runs {
                    for entry in table.within(Sector(start), Sector(end)) {
                        let from = start.max(entry.start.0) - entry.start.0;
                        let to = end.min(entry.end.0) - entry.start.0;
                        walk.enter(entry, (from, to));
                    }
                }
            }
        }
        walk.bottom.complete();
        walk.bottom
    }
}

/// The state of a walk down a stack.
struct Walk {
    /// The mapped devices to go through, by address.
    mapped: BTreeMap<usize, Rc<MappedDevice>>,
    depths: Depths,
    /// Devices that were reached and not gone through, by depth: the deepest stack comes first.
    waiting: BTreeMap<(usize, u32), (Rc<MappedDevice>, Runs)>,
    bottom: BottomRuns,
}

impl Walk {
    fn reach(&mut self, device: &Rc<dyn BlockDevice>, run: (u64, u64)) {
        match self.mapped.get(&address(device)) {
            Some(mapped) => {
                let key = (mapped.depth(&mut self.depths), mapped.minor());
                let of = || (mapped.clone(), Runs::new());
                self.waiting.entry(key).or_insert_with(of).1.push(run);
            }
            None => self.bottom.add(device, &[run]),
        }
    }

    /// Goes on with `from..to` of a line.
    fn enter(&mut self, entry: &Entry, (from, to): (u64, u64)) {
        if entry.owns {
            let engine = entry.target.clone() as Rc<dyn BlockDevice>;
            return self.bottom.add(&engine, &[(from, to)]);
        }
        for below in entry.target.components() {
            let (at, len) = (below.start.0, below.len.0);
            // A linear line maps sector by sector; of a stripe the whole area is taken.
            let is_whole = len == entry.end.0 - entry.start.0;
            self.reach(&below.device, if is_whole { (at + from, at + to) } else { (at, at + len) });
        }
    }
}

impl BottomRuns {
    fn add(&mut self, device: &Rc<dyn BlockDevice>, runs: &[(u64, u64)]) {
        let of = || (device.clone(), Runs::new());
        self.devices.entry(address(device)).or_insert_with(of).1.extend(runs);
    }

    /// Everything has been added.
    fn complete(&mut self) {
        self.devices.values_mut().for_each(|(_, runs)| merge(runs));
        for (key, (device, _)) in &self.devices {
            if let Some(Backing { file, .. }) = device.backing() {
                self.files.entry(file).or_default().push(*key);
            }
        }
    }
}

/// Sorts runs, and joins those that meet.
fn merge(runs: &mut Runs) {
    runs.sort_unstable();
    let mut merged: Runs = Runs::with_capacity(runs.len());
    for &(start, end) in &*runs {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    *runs = merged;
}

/// The first run of sectors that both have, in words.
fn first_shared(a: &BottomRuns, b: &BottomRuns) -> Option<String> {
    a.devices.iter().find_map(|(key, (device, runs))| {
        if let Some((_, others)) = b.devices.get(key)
            && let Some((start, end)) = first_common(runs, others)
        {
            return Some(format!("sectors {start} to {} of {}", end - 1, device.name()));
        }
        shared_file(device, runs, b)
    })
}

/// The same of one leaf, and of others on its file or disk.
fn shared_file(device: &Rc<dyn BlockDevice>, runs: &Runs, others: &BottomRuns) -> Option<String> {
    let here = device.backing()?;
    let bytes = |backing: &Backing, runs: &Runs| -> Runs {
        runs.iter().map(|&(start, end)| backing.bytes(Sector(start), Sector(end))).collect()
    };
    others.files.get(&here.file)?.iter().find_map(|key| {
        let (other, other_runs) = others.devices.get(key)?;
        if block::same_device(device, other) {
            return None;
        }
        let there = bytes(&other.backing()?, other_runs);
        let (start, end) = first_common(&bytes(&here, runs), &there)?;
        let last = end - 1;
        let (a, b) = (device.name(), other.name());
        Some(format!("bytes {start} to {last} of the file or disk on which both {a} and {b} lie"))
    })
}

/// The first run that both have, of numbers.
fn first_common(a: &Runs, b: &Runs) -> Option<(u64, u64)> {
    let mut others = b.iter().peekable();
    a.iter().find_map(|&(start, end)| {
        while others.next_if(|(_, other_end)| *other_end <= start).is_some() {}
        let (other_start, other_end) = others.peek()?;
        (*other_start < end).then(|| (start.max(*other_start), end.min(*other_end)))
    })
}

#[cfg(test)]
mod tests {
    use block::{Bio, Limits, Status};

    use super::*;

    type Leaf = Rc<dyn BlockDevice>;

    /// A leaf whose first sector is at this byte of a file.
    struct OnFile(&'static str, Option<(&'static str, u64)>);

    impl BlockDevice for OnFile {
        fn name(&self) -> &str {
            self.0
        }
        fn limits(&self) -> Limits {
            Limits::new(Sector(64))
        }
        fn submit(&self, bio: Bio) {
            bio.complete(Status::Ok);
        }
        fn backing(&self) -> Option<Backing> {
            self.1.map(|(file, start_bytes)| Backing { file: file.into(), start_bytes })
        }
    }

    fn bottom(leaves: &[(&Leaf, (u64, u64))]) -> BottomRuns {
        let mut bottom = BottomRuns::default();
        for (leaf, run) in leaves {
            bottom.add(leaf, &[*run]);
        }
        bottom.complete();
        bottom
    }

    fn leaf(name: &'static str, on: Option<(&'static str, u64)>) -> Leaf {
        Rc::new(OnFile(name, on))
    }

    #[test]
    fn leaves_on_one_file_share_the_bytes_that_they_have_there() {
        let file = leaf("o.img", Some(("file 1", 0)));
        let whole = leaf("loop0", Some(("file 1", 0)));
        let later = leaf("loop1", Some(("file 1", 16 * 512)));
        let odd = leaf("loop2", Some(("file 1", 7)));
        let other = leaf("loop3", Some(("file 2", 0)));
        let (memory, more) = (leaf("mem:1M", None), leaf("mem:2M", None));
        let shared = |a: &Leaf, of_a, b: &Leaf, of_b| {
            first_shared(&bottom(&[(a, of_a)]), &bottom(&[(b, of_b)]))
        };
        let found = shared(&file, (8, 16), &whole, (15, 32)).unwrap();
        let wanted = "bytes 7680 to 8191 of the file or disk on which both o.img and loop0 lie";
        assert_eq!(found, wanted);
        assert_eq!(shared(&file, (8, 16), &whole, (16, 32)), None, "they meet, and no more");
        assert!(shared(&file, (16, 17), &later, (0, 1)).is_some());
        assert!(shared(&later, (0, 1), &whole, (16, 17)).is_some());
        assert_eq!(shared(&file, (0, 16), &later, (0, 64)), None);
        assert!(shared(&file, (1, 2), &odd, (0, 1)).is_some(), "of its bytes seven");
        assert_eq!(shared(&file, (0, 64), &other, (0, 64)), None);
        assert_eq!(shared(&memory, (0, 64), &more, (0, 64)), None);
        let same = shared(&whole, (0, 8), &whole, (7, 9)).unwrap();
        assert_eq!(same, "sectors 7 to 7 of loop0");
    }

    #[test]
    fn all_leaves_on_a_file_are_compared() {
        let names = ["o.img", "loop0", "loop1"];
        let [file, first, second] = names.map(|name| leaf(name, Some(("file 1", 0))));
        let a = bottom(&[(&file, (0, 8)), (&first, (32, 40))]);
        let b = bottom(&[(&first, (16, 24)), (&second, (39, 48))]);
        let found = first_shared(&a, &b).unwrap();
        assert!(found.contains("both loop0 and loop1 lie"), "{found}");
    }
}
