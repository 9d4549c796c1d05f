// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overlap: which tables would write to the same sectors at the bottom of their stacks.
//!
//! ```text
//!   w ─ writecache ─┬─ origin ───────▶ l ─ linear ─▶ ./o.img  0..131072 ─┐ the same sectors
//!                   └─ cache device ─▶ ./c.img                           │
//!   m ─ linear ──────────────────────▶ ./o.img  4096..8192  ─────────────┘
//! ```
//!
//! A device is followed through its mappings, those of its inactive table too, down to where bios
//! are no longer handed on as they are: a leaf, or an engine, whose sectors are its own.
//!
//! Invariants
//! - DM-O1 Sectors at the bottom are the origin, the cache device or the backing device of one line
//!   of one mapped device only, and of one of these only: else two engines, or two halves of one,
//!   would overwrite each other's blocks. Tables of the same device may name them again: the old
//!   one has settled before the new one runs.
//! - DM-O2 Sectors that an engine has so are mapped by no device but those through which the engine
//!   itself reaches them, unless the operator has said so by a token. A device that stands on a
//!   cache without dirty blocks may be given a table past it.
//! - DM-O3 Both are looked at, in one step with the load, whenever a table is loaded: it may change
//!   what lies below a device whose own table stays.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{BlockDevice, Component, Error, Role, Sector};

use crate::device::{Depths, MappedDevice};
use crate::dm::Dm;
use crate::live::{Entry, Table};

/// Half-open runs of sectors, ascending and apart.
type Runs = Vec<(u64, u64)>;

/// What an area comes to, by the address of the leaf or engine.
type Ends = BTreeMap<usize, (Rc<dyn BlockDevice>, Runs)>;

/// Sectors that a line has, and for what.
struct Claim {
    owner: Rc<MappedDevice>,
    table: Rc<Table>,
    entry: usize,
    role: Role,
    below: Component,
    ends: Ends,
}

impl Claim {
    fn entry(&self) -> &Entry {
        &self.table.entries[self.entry]
    }

    /// Whether `device` stands on the owner, whose origin holds all: a table past it then takes an
    /// empty cache out of the stack.
    fn is_left_by(&self, device: &MappedDevice) -> bool {
        let unsaved = self.entry().target.unsaved();
        self.role == Role::Origin
            && unsaved.is_some_and(|unsaved| unsaved.blocks() == 0)
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
    key: (u32, Role, u32, Role),
    /// Whether a token may permit it.
    may_be_forced: bool,
    /// The line of the table that is being loaded, if it is one of the two.
    place: Option<String>,
    text: String,
}

impl Dm {
    /// Puts `table` into the inactive slot of `device`, unless it, or a table that stands on it,
    /// would then write where another does (DM-O1, DM-O2). The caller holds the device's lock.
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
            Some(c) if c.may_be_forced => {
                let all: Vec<&str> = new.iter().map(|c| &*c.text).collect();
                let all = all.join("; ");
                let token = format::token(format!("load {} {all}", device.name()).as_bytes());
                Error::require_token(token, force, all)
            }
            Some(c) => Err(Error::busy(format!(
                "{}: a device, or a part of it, may be origin, cache device or backing device of \
                 one only",
                c.text
            ))),
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

    /// All pairs of lines that would write to the same sectors; `loading` is the table of which to
    /// tell the lines.
    fn conflicts(&self, loading: Option<&Rc<Table>>) -> Vec<Conflict> {
        let devices = self.devices();
        let claims = self.claims(&devices);
        if claims.is_empty() {
            return Vec::new();
        }
        let place_in = |table: &Rc<Table>, entry: &Entry| {
            loading.filter(|l| Rc::ptr_eq(l, table)).map(|_| entry.place())
        };
        let mut conflicts = Vec::new();
        for (nth, a) in claims.iter().enumerate() {
            for b in &claims[nth + 1..] {
                let is_own_successor =
                    Rc::ptr_eq(&a.owner, &b.owner) && !Rc::ptr_eq(&a.table, &b.table);
                if is_own_successor {
                    continue;
                }
                // The one that is being loaded is told of first.
                let is_new = loading.is_some_and(|l| Rc::ptr_eq(l, &a.table));
                let (a, b) = if is_new { (a, b) } else { (b, a) };
                let Some(what) = self.shared(&a.owner, std::slice::from_ref(&a.below), &a.ends, b)
                else {
                    continue;
                };
                let place = place_in(&a.table, a.entry()).or(place_in(&b.table, b.entry()));
                conflicts.push(Conflict {
                    key: (a.owner.minor, a.role, b.owner.minor, b.role),
                    may_be_forced: false,
                    place,
                    text: format!("{what} would be {} and {}", a.describe(), b.describe()),
                });
            }
        }
        for device in &devices {
            for table in device.tables() {
                let lines = || table.entries.iter().filter(|e| !e.owns);
                let all: Vec<Component> = lines().flat_map(|e| e.target.components()).collect();
                let ends = self.ends(&all, None);
                // Past the owner: what it maps itself is its own successor's (DM-O1).
                for claim in claims.iter().filter(|c| !Rc::ptr_eq(&c.owner, device)) {
                    if claim.is_left_by(device) {
                        continue;
                    }
                    if self.shared(device, &all, &ends, claim).is_none() {
                        continue;
                    }
                    let found = lines().find_map(|entry| {
                        let below = entry.target.components();
                        let ends = self.ends(&below, None);
                        Some((entry, self.shared(device, &below, &ends, claim)?))
                    });
                    let Some((entry, what)) = found else { continue };
                    let place = place_in(&table, entry);
                    let place = place.or_else(|| place_in(&claim.table, claim.entry()));
                    conflicts.push(Conflict {
                        key: (device.minor, Role::Mapped, claim.owner.minor, claim.role),
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

    /// The sectors that `below`, used by `user`, and a claim both come to, as messages show them.
    /// Where one is reached through the other's device there are none: that device is in between.
    fn shared(
        &self,
        user: &Rc<MappedDevice>,
        below: &[Component],
        ends: &Ends,
        claim: &Claim,
    ) -> Option<String> {
        let shared = first_shared(ends, &claim.ends)?;
        if Rc::ptr_eq(user, &claim.owner) {
            return Some(shared);
        }
        let past_owner = self.ends(below, Some(&claim.owner));
        let past_user = self.ends(std::slice::from_ref(&claim.below), Some(user));
        first_shared(&past_owner, &past_user)
    }

    /// The leaves on which a device lies, and the engines.
    pub fn at_the_bottom(&self, device: &Rc<dyn BlockDevice>) -> Vec<Rc<dyn BlockDevice>> {
        let (start, len) = (Sector::ZERO, device.limits().capacity);
        let whole = Component { device: device.clone(), start, len, role: Role::Mapped };
        self.ends(&[whole], None).into_values().map(|(device, _)| device).collect()
    }

    /// Whether `new` has a cache that keeps its blocks where the cache of `old` keeps them.
    pub(crate) fn goes_on(&self, old: &Entry, new: &Table) -> bool {
        let place = |entry: &Entry| -> Vec<(usize, u64)> {
            let mut below = entry.target.components();
            below.retain(|b| b.role == Role::Cache);
            let ends = self.ends(&below, None);
            let first = |(key, (_, runs)): (&usize, &(_, Runs))| Some((*key, runs.first()?.0));
            ends.iter().filter_map(first).collect()
        };
        let kept = place(old);
        let mut lines = new.entries.iter().filter(|e| e.owns);
        lines.any(|e| e.target.kind() == old.target.kind() && place(e) == kept)
    }

    fn claims(&self, devices: &[Rc<MappedDevice>]) -> Vec<Claim> {
        let mut claims = Vec::new();
        // What was replaced by force and has not settled still writes (DM-FO1).
        let mut leaving = self.leaving.borrow_mut();
        leaving.retain(|(_, table)| table.strong_count() > 0);
        let left = leaving.iter().filter_map(|(owner, table)| Some((owner, table.upgrade()?)));
        let there = devices.iter().flat_map(|owner| owner.tables().map(move |t| (owner, t)));
        for (owner, table) in there.chain(left) {
            for (nth, entry) in table.entries.iter().enumerate().filter(|(_, e)| e.owns) {
                for below in entry.target.components() {
                    let ends = self.ends(std::slice::from_ref(&below), None);
                    let (owner, table, role) = (owner.clone(), table.clone(), below.role);
                    claims.push(Claim { owner, table, entry: nth, role, below, ends });
                }
            }
        }
        claims
    }

    /// What areas come to at the bottom. `stop` is taken for a leaf. Looks once at each device, as
    /// those above it have been looked at before.
    fn ends(&self, areas: &[Component], stop: Option<&Rc<MappedDevice>>) -> Ends {
        let mut walk = Walk {
            mapped: self.devices().into_iter().map(|d| (address(&d), d)).collect(),
            depths: Depths::new(),
            waiting: BTreeMap::new(),
            ends: Ends::new(),
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
        walk.ends.values_mut().for_each(|(_, runs)| merge(runs));
        walk.ends
    }
}

/// On the way down.
struct Walk {
    /// The mapped devices to go through, by address.
    mapped: BTreeMap<usize, Rc<MappedDevice>>,
    depths: Depths,
    /// Devices that were reached and not gone through, by depth: the deepest stack comes first.
    waiting: BTreeMap<(usize, u32), (Rc<MappedDevice>, Runs)>,
    ends: Ends,
}

impl Walk {
    fn reach(&mut self, device: &Rc<dyn BlockDevice>, run: (u64, u64)) {
        let of = || (device.clone(), Runs::new());
        match self.mapped.get(&address(device)) {
            Some(mapped) => {
                let key = (mapped.depth(&mut self.depths), mapped.minor);
                let of = || (mapped.clone(), Runs::new());
                self.waiting.entry(key).or_insert_with(of).1.push(run);
            }
            None => self.ends.entry(address(device)).or_insert_with(of).1.push(run),
        }
    }

    /// Goes on with `from..to` of a line.
    fn enter(&mut self, entry: &Entry, (from, to): (u64, u64)) {
        if entry.owns {
            let engine = entry.target.clone() as Rc<dyn BlockDevice>;
            let of = || (engine.clone(), Runs::new());
            return self.ends.entry(address(&engine)).or_insert_with(of).1.push((from, to));
        }
        for below in entry.target.components() {
            let (at, len) = (below.start.0, below.len.0);
            // Sector by sector, or, of stripes, anywhere.
            let is_whole = len == entry.end.0 - entry.start.0;
            self.reach(&below.device, if is_whole { (at + from, at + to) } else { (at, at + len) });
        }
    }
}

/// What tells a device from others while both are there.
fn address<T: ?Sized>(device: &Rc<T>) -> usize {
    Rc::as_ptr(device).cast::<()>() as usize
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

/// The first sectors that both have.
fn first_shared(a: &Ends, b: &Ends) -> Option<String> {
    a.iter().find_map(|(key, (device, runs))| {
        let (_, others) = b.get(key)?;
        let mut others = others.iter().peekable();
        let both = runs.iter().find_map(|&(start, end)| {
            while others.next_if(|(_, other_end)| *other_end <= start).is_some() {}
            let (other_start, other_end) = others.peek()?;
            (*other_start < end).then(|| (start.max(*other_start), end.min(*other_end)))
        });
        let (start, end) = both?;
        Some(format!("sectors {start} to {} of {}", end - 1, device.name()))
    })
}
