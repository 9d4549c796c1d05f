// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapped device: two table slots, a state, and the bios that wait for or are in flight below it.
//!
//! ```text
//!              load                    resume
//!   text ────────────▶ inactive slot ──────────▶ live slot ──▶ flat mapping ──▶ bases
//!             clear ◀──┘                           │    └ or, counted in flight, its targets
//!                                     suspend      ▼
//!                             bios wait in `waiting`, in order
//! ```
//!
//! | object | what it has | file |
//! |---|---|---|
//! | `Identity` | name, UUID, minor number | here |
//! | `Tables` | the two slots, and the attributes that set a device up | here |
//! | `Lifecycle` | the state: active, suspended, being removed, ... | `device/state.rs` |
//! | `FlatSlot` | the flat mapping and its copies on other cores | `device/flat_slot.rs` |
//! | `Waiting` | bios that came while the device was suspended | `device/waiting.rs` |
//! | `Drain` | what is in flight below | `device/drain.rs` |
//! | `Untold` | who must hear of losses of a table of before | `device/{untold,last_flush}.rs` |
//! | `OpenCount` | how many handles there are | `device/open_count.rs` |
//! | `EventCounter` | the event number | `device/events.rs` |
//!
//! Verbs: suspend, resume and remove in `device/suspend.rs`, replace a table in use in
//! `device/replace.rs`, remove by force in `device/force.rs`, open and message in
//! `device/handles.rs`. Bios: `device/border.rs`.
//!
//! Invariants
//! - DM-D1 A bio is in exactly one place: refused (no live table), waiting, or in flight below.
//! - DM-D2 While suspended no bio is in flight below, and no message that does I/O: only then is a
//!   table swapped or its targets suspended. `Drain` counts the bios that went to targets of this
//!   device; the bases count those that went through the flat mapping, and those that came through
//!   a mapping of a device above are among them.
//! - DM-D3 One control operation at a time: load, clear, suspend, resume and remove own `lock`.
//!   Only a removal by force takes it from them (`force`): they end with an error, and change
//!   nothing.
//! - DM-D4 The tables of all devices form no cycle: checked before a table enters a slot.
//! - DM-D5 There is a flat mapping only while bios need wait neither here nor below and the live
//!   table is a pure mapping; the mappings of devices above are made again, in the same step,
//!   whenever this one changes. So a bio that waits is counted by every device that it came
//!   through.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::latency::Latencies;
use block::{Base, BlockDevice, Error, MakeDevice, Opener, Status, crashing, same_device};

mod border;
mod drain;
pub(crate) mod events;
mod flat_slot;
mod force;
pub(crate) mod handles;
mod last_flush;
mod open_count;
pub(crate) mod replace;
pub(crate) mod resize;
mod state;
mod suspend;
mod unsaved;
mod untold;
mod waiting;

use crate::account::Account;
use crate::context::EventSource;
use crate::control_lock::ControlLock;
use crate::dm::Dm;
use crate::doors::{ClientRights, Doors, ReadOnly};
use crate::flat::Flat;
use crate::live::{Entry, Table};
use crate::mapping::{Mapping, Replicas};
use crate::name::Names;
use crate::report::{DeviceInfo, TargetLine};
use crate::setup::SetupAttributes;
use drain::Drain;
use events::EventCounter;
use flat_slot::FlatSlot;
use open_count::OpenCount;
use state::Lifecycle;
use untold::Untold;
use waiting::Waiting;

/// Major number that mapped devices show. Linux lets drivers of block devices have majors up to
/// 511 (`BLKDEV_MAJOR_MAX`), so that none of our numbers is that of a real disk; and columns of
/// majors are three digits wide.
pub const MAJOR: u32 = 999;

/// Lengths of chains of mapped devices, by the minor number of the device where they begin.
pub(crate) type Depths = BTreeMap<u32, usize>;

/// A device that a table makes. Doors hold it by [`crate::Opened`].
pub struct MappedDevice {
    pub(crate) identity: Identity,
    /// The opener of requests that have none: of the engine that uses this device. Engines on
    /// other slices of the same leaf have openers of their own (DM-O1 of `overlap`), so a leaf
    /// reports a failed flush to each of them.
    opener: Opener,
    dm: Weak<Dm>,
    tables: Tables,
    pub(crate) flat: FlatSlot,
    pub(crate) account: Rc<Account>,
    pub(crate) rights: ClientRights,
    /// Times of requests, which the doors record: bios do not pass here in all mappings.
    latencies: Arc<Latencies>,
    lifecycle: Lifecycle,
    waiting: Waiting,
    drain: Drain,
    untold: Rc<Untold>,
    events: EventCounter,
    opens: OpenCount,
    lock: RefCell<Rc<ControlLock>>,
}

/// What a device is called.
pub(crate) struct Identity {
    pub(crate) names: Names,
    pub(crate) uuid: RefCell<Option<String>>,
    minor: u32,
}

/// The two table slots, and the attributes that set the device up while it has no live table.
#[derive(Default)]
struct Tables {
    live: RefCell<Option<Rc<Table>>>,
    inactive: RefCell<Option<Rc<Table>>>,
    setup: RefCell<Option<Rc<dyn SetupAttributes>>>,
}

impl Tables {
    /// Drops both tables. Dropping one may close devices, so no slot is borrowed meanwhile.
    fn clear(&self) {
        drop(self.live.take());
        drop(self.inactive.take());
    }
}

impl MappedDevice {
    /// A new device has no table.
    pub(crate) fn new(dm: Weak<Dm>, name: String, uuid: Option<String>, minor: u32) -> Self {
        let waiting = Waiting::default();
        let drain = Drain::new(waiting.watcher());
        let of = dm.clone();
        let untold = Untold::new(move || MappedDevice::refresh_flats_later(of.clone(), minor));
        MappedDevice {
            identity: Identity { names: Names::new(name), uuid: RefCell::new(uuid), minor },
            opener: reactor::new_opener(),
            dm,
            tables: Tables::default(),
            flat: FlatSlot::new(),
            account: Rc::default(),
            rights: ClientRights::default(),
            latencies: Arc::default(),
            lifecycle: Lifecycle::new(),
            waiting,
            drain,
            untold,
            events: EventCounter::default(),
            opens: OpenCount::default(),
            lock: RefCell::default(),
        }
    }

    /// Minor number; `dm-N` names the device too.
    pub fn minor(&self) -> u32 {
        self.identity.minor
    }

    /// Where doors record how long its requests took.
    pub fn latencies(&self) -> Arc<Latencies> {
        self.latencies.clone()
    }

    /// Whether a control operation is at work on it (DM-D3): one more waits for that.
    pub fn is_changing(&self) -> bool {
        self.lock.borrow().is_owned()
    }

    /// Whether bios wait. A device that has had no table yet is not suspended, as in the kernel.
    pub fn is_suspended(&self) -> bool {
        self.lifecycle.is_suspended()
    }

    pub(crate) fn setup(&self) -> Option<Rc<dyn SetupAttributes>> {
        self.tables.setup.borrow().clone()
    }

    pub(crate) fn set_setup(&self, setup: Rc<dyn SetupAttributes>) {
        *self.tables.setup.borrow_mut() = Some(setup);
    }

    /// Drops the tables. The caller holds the lock, and has suspended the device.
    pub(crate) fn unconfigure(&self, setup: Rc<dyn SetupAttributes>) {
        self.lifecycle.renew();
        self.tables.clear();
        self.set_setup(setup);
        self.fail_waiting();
        self.raise_event();
    }

    /// The flat mapping that bios take now, if there is one.
    pub(crate) fn flat(&self) -> Option<Rc<Flat>> {
        self.flat.get()
    }

    /// Bios that went on as clones, since it was made: none unless `mapping=clone`.
    pub fn clones(&self) -> u64 {
        self.flat.clones.get()
    }

    /// How bios go through pure mappings.
    pub fn mapping(&self) -> Mapping {
        self.flat.mapping.get()
    }

    pub(crate) fn set_mapping(&self, mapping: Mapping) {
        self.flat.mapping.set(mapping);
    }

    /// Whether a bio may have to wait for a resume, of this device or of one below.
    pub(crate) fn bios_may_wait(&self) -> bool {
        self.flat.bios_may_wait()
    }

    /// Makes the flat mapping again. Those of the devices below have been.
    pub(crate) fn refresh_flat(&self) {
        let live = self.live();
        let stale = live.as_ref().is_some_and(|t| t.is_stale());
        self.rights.read_only().set_by_table(stale);
        let wait = self.lifecycle.holds_bios() || live.as_ref().is_some_and(|t| t.bios_may_wait());
        self.flat.set_bios_may_wait(wait);
        let in_place = self.mapping() == Mapping::InPlace && !self.account.is_on();
        let may_pass = in_place && !wait && self.untold.is_empty(); // DM-UT2
        let new = live.filter(|_| may_pass).and_then(|t| t.flatten());
        self.flat.replace(new, &self.waiting.watcher());
    }

    /// Other cores get the mapping, or the way to the parts of an engine. Returns whether there is
    /// one.
    pub(crate) fn publish(&self, replicas: &dyn Replicas) -> bool {
        let minor = self.minor();
        if let Some(flat) = self.flat() {
            replicas.publish(minor, &flat);
        } else if let Some(make) = self.way_to_parts() {
            replicas.publish_parts(minor, make, &self.limits());
        } else {
            return false;
        }
        self.flat.set_published();
        true
    }

    /// Whether other cores have the mapping or the way to the parts, or get it when an earlier one
    /// was withdrawn. `is_shared`: whether they can have a base.
    pub fn is_on_every_core(&self, is_shared: impl Fn(&Rc<dyn Base>) -> bool) -> bool {
        match self.flat() {
            Some(flat) => flat.bases().iter().all(is_shared),
            None => self.way_to_parts().is_some(),
        }
    }

    /// [`MappedDevice::publish`], unless they have it already.
    pub(crate) fn publish_once(&self, replicas: &dyn Replicas) {
        // Set without a mapping, too: the next withdrawal then waits for the other cores.
        if !self.flat.set_published() {
            self.publish(replicas);
        }
    }

    /// The way to the parts of the engine that is the whole table, while no bio has to wait or to
    /// be counted here. It does not lead past the engine, so it may stay while bios wait below.
    fn way_to_parts(&self) -> Option<MakeDevice> {
        let in_place = self.mapping() == Mapping::InPlace && !self.account.is_on();
        if !in_place || self.lifecycle.holds_bios() || !self.untold.is_empty() {
            return None;
        }
        self.live()?.only_target()?.on_every_core()
    }

    pub(crate) fn live(&self) -> Option<Rc<Table>> {
        self.tables.live.borrow().clone()
    }

    /// The token with which the live table was loaded, if it was loaded with one.
    pub fn forced_by(&self) -> Option<String> {
        Some(self.live()?.forced_by.as_ref()?.to_string())
    }

    pub(crate) fn inactive(&self) -> Option<Rc<Table>> {
        self.tables.inactive.borrow().clone()
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = Rc<Table>> {
        self.live().into_iter().chain(self.inactive())
    }

    /// Whether `other` is this device or below it.
    pub(crate) fn reaches(&self, other: &MappedDevice) -> bool {
        let mut depths = Depths::new();
        self.depth(&mut depths);
        depths.contains_key(&other.minor())
    }

    /// The leaves that the live tables of this device and of those below it use, engines' too.
    pub fn leaves_below(self: &Rc<Self>) -> Vec<Rc<dyn BlockDevice>> {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![self.clone()]);
        let mut leaves = Vec::new();
        while let Some(next) = waiting.pop() {
            let Some(table) = next.live().filter(|_| seen.insert(next.minor())) else { continue };
            let mapped = || table.uses.mapped.iter().map(|opened| opened.device());
            let is_leaf =
                |device: &&Rc<dyn BlockDevice>| !mapped().any(|m| same_device(m, *device));
            leaves.extend(table.uses.all.devices.iter().filter(is_leaf).cloned());
            waiting.extend(mapped().cloned());
        }
        leaves
    }

    /// Whether a table of this device names one of those with these minor numbers.
    pub(crate) fn uses_any(&self, minors: &BTreeSet<u32>) -> bool {
        self.tables().any(|t| t.uses.is_any(minors))
    }

    /// Whether the live table is a pure mapping, and names one of those with these minor numbers.
    pub(crate) fn maps_straight_to_any(&self, minors: &BTreeSet<u32>) -> bool {
        let live = self.live().filter(|live| live.is_pure());
        live.is_some_and(|live| live.uses.is_any(minors))
    }

    /// Longest chain of mapped devices from this one down. Terminates by DM-D4, and looks once at
    /// each device below, of which it leaves the depth in `known`.
    pub(crate) fn depth(&self, known: &mut Depths) -> usize {
        if let Some(&depth) = known.get(&self.minor()) {
            return depth;
        }
        let depth = 1 + self.tables().map(|t| t.depth(known)).max().unwrap_or(0);
        known.insert(self.minor(), depth);
        depth
    }

    /// Fails once the device is being removed.
    pub(crate) fn check_not_removed(&self) -> Result<(), Error> {
        if self.lifecycle.is_removing() {
            let e = format!("{}: no such device: it is being removed", self.name());
            return Err(Error::not_found(e));
        }
        Ok(())
    }

    /// Waits until the event number is not `seen` any more, or the device is removed.
    pub(crate) async fn wait_event(&self, seen: u32) -> u32 {
        self.events.changed(seen).await
    }

    pub(crate) fn event_nr(&self) -> u32 {
        self.events.number()
    }

    /// Puts a table into the inactive slot. The caller holds the lock and has checked DM-D4.
    pub(crate) fn set_inactive(&self, table: Option<Rc<Table>>) {
        // Dropping a table may close devices, so not while the slot is borrowed.
        let old = self.swap_inactive(table);
        drop(old);
    }

    /// As [`MappedDevice::set_inactive`]; returns what was there before.
    pub(crate) fn swap_inactive(&self, table: Option<Rc<Table>>) -> Option<Rc<Table>> {
        self.tables.inactive.replace(table)
    }

    pub(crate) fn fail_waiting(&self) {
        self.waiting.fail(Status::NoDevice);
    }

    /// Whether clients of doors may write: the attribute `ro`.
    pub fn read_only(&self) -> &ReadOnly {
        self.rights.read_only()
    }

    /// Which doors show the device: the attribute `doors`.
    pub fn doors(&self) -> Doors {
        self.rights.doors()
    }

    /// The device as `info` shows it.
    pub fn info(&self) -> DeviceInfo {
        let live = self.live();
        DeviceInfo {
            name: self.name().to_owned(),
            uuid: self.identity.uuid.borrow().clone(),
            major: MAJOR,
            minor: self.minor(),
            suspended: self.is_suspended(),
            read_only: self.rights.read_only().get(),
            deferred_remove: self.opens.remove_at_close.get(),
            live_table: live.is_some(),
            inactive_table: self.inactive().is_some(),
            has_setup: self.setup().is_some(),
            open_count: self.open_count(),
            event_nr: self.event_nr(),
            targets: live.map_or(0, |t| t.entries.len()),
            size_sectors: self.limits().capacity.0,
        }
    }

    /// The live table's status lines; none when there is no live table.
    pub fn status(&self) -> Vec<TargetLine> {
        self.live().map(|t| lines(&t, |e| e.target.status())).unwrap_or_default()
    }

    /// The live table's lines.
    pub fn table(&self) -> Vec<TargetLine> {
        self.live().map(|t| lines(&t, |e| e.target.table())).unwrap_or_default()
    }

    /// The inactive table's lines.
    pub fn inactive_table(&self) -> Vec<TargetLine> {
        self.inactive().map(|t| lines(&t, |e| e.target.table())).unwrap_or_default()
    }
}

fn lines(table: &Table, params: impl Fn(&Entry) -> String) -> Vec<TargetLine> {
    let line = |e: &Entry| TargetLine {
        start: e.start.0,
        len: (e.end - e.start).0,
        kind: e.target.kind().to_owned(),
        params: params(e),
    };
    table.entries.iter().map(line).collect()
}

impl EventSource for MappedDevice {
    fn raise_event(&self) {
        self.events.raise();
    }
}

block::debug_as!(MappedDevice, s => "MappedDevice({})", s.name());

impl Drop for MappedDevice {
    fn drop(&mut self) {
        if !crashing() {
            self.fail_waiting();
        }
    }
}
