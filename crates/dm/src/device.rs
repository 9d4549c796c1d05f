// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapped device: two table slots, a gate for bios, and the life cycle around them.
//!
//! ```text
//!              load                    resume
//!   text ────────────▶ inactive slot ──────────▶ live slot ──▶ flat mapping ──▶ bases
//!             clear ◀──┘                           │    └ or, through the gate, its targets
//!                                     suspend      ▼
//!                             bios wait in `waiting`, in order
//! ```
//!
//! Invariants
//! - DM-D1 A bio is in exactly one place: refused (no live table), waiting, or in flight below.
//! - DM-D2 While suspended no bio and no message is in flight below: only then is a table swapped
//!   or its targets suspended. What went through the gate it has counted; what went through the
//!   flat mapping the mapping's bases know, and bios that came through a mapping of a device above
//!   are among them.
//! - DM-D3 One control operation at a time: load, clear, suspend, resume and remove hold `lock`.
//!   Only a removal by force takes it from them (`force`): they end with an error, and change
//!   nothing.
//! - DM-D4 The tables of all devices form no cycle: checked before a table enters a slot.
//! - DM-D5 There is a flat mapping only while bios need wait neither here nor below and the live
//!   table is a pure mapping; the mappings of devices above are made again, in the same step,
//!   whenever this one changes. So a bio that waits is counted by every device that it came
//!   through.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{Base, BlockDevice, Error, Map, Opener, Sector, Status, UnsavedBlocks, crashing};
use reactor::WaitList;

mod border;
mod force;
mod handles;
mod unsaved;
mod waiting;

use crate::account::Account;
use crate::context::EventSource;
use crate::dm::Dm;
use crate::flat::Flat;
use crate::gate::{Gate, Held, Lock};
use crate::live::{Entry, Table};
use crate::mapping::{Mapping, Replicas};
use crate::name::Names;
use crate::report::{DeviceInfo, TargetLine};
use crate::setup::SetupAttributes;
pub(crate) use handles::MessageTarget;
pub use handles::Opened;
use waiting::Waiting;

/// Major number that mapped devices show; what Debian's kernels give the device mapper.
pub const MAJOR: u32 = 254;

/// Lengths of chains of mapped devices, by the minor number of the device where they begin.
pub(crate) type Depths = BTreeMap<u32, usize>;

/// A device that a table makes. Doors hold it by [`Opened`].
pub struct MappedDevice {
    pub(crate) names: Names,
    pub(crate) uuid: RefCell<Option<String>>,
    pub(crate) minor: u32,
    /// Who sends what comes from nobody: the engine that stands on this device. Those on other
    /// slices of what is below have their own (DM-O1 of `overlap`), and are told of errors
    /// themselves.
    opener: Opener,
    dm: Weak<Dm>,
    live: RefCell<Option<Rc<Table>>>,
    inactive: RefCell<Option<Rc<Table>>>,
    /// What answers for attributes while there is no live table.
    bare: RefCell<Option<Rc<dyn SetupAttributes>>>,
    /// The one that leads nowhere where there is none: one branch less for each bio.
    flat: RefCell<Rc<Flat>>,
    /// Counts flat mappings.
    flat_generation: Cell<u64>,
    /// Bases of flat mappings of before, as long as somebody else holds them: something that was
    /// sent there since the last suspend may be in flight.
    past: RefCell<Vec<Weak<dyn Base>>>,
    /// Bios may have to wait, here or in a device below. Made again with the flat mapping.
    held: Cell<bool>,
    /// Other cores may go by a flat mapping of this device.
    pub(crate) published: Cell<bool>,
    /// Those who wait until no other core does.
    withdrawing: Cell<usize>,
    mapping: Cell<Mapping>,
    /// Bios that went on as clones.
    clones: Cell<u64>,
    pub(crate) account: Rc<Account>,
    suspended: Cell<bool>,
    /// The last suspend has failed: targets may hold what they could not keep.
    unclean: Cell<bool>,
    /// Bios wait: from the begin of a suspend to the end of a resume.
    blocked: Cell<bool>,
    waiting: Waiting,
    gate: RefCell<Rc<Gate>>,
    /// Gates of tables that were replaced by force, as long as something is in flight there.
    old_gates: RefCell<Vec<Rc<Gate>>>,
    /// Tables that were replaced by force and have not settled yet.
    settling: Cell<usize>,
    settled: WaitList,
    event_nr: Cell<u32>,
    events: WaitList,
    opens: Cell<u32>,
    pub(crate) remove_at_close: Cell<bool>,
    /// Being removed, or removed: can't be opened any more.
    gone: Cell<bool>,
    lock: RefCell<Rc<Lock>>,
}

impl MappedDevice {
    /// A new device is suspended and has no table.
    pub(crate) fn new(dm: Weak<Dm>, name: String, uuid: Option<String>, minor: u32) -> Self {
        let (waiting, gate) = (Waiting::default(), RefCell::<Rc<Gate>>::default());
        gate.borrow().watch(waiting.watcher());
        MappedDevice {
            names: Names::new(name),
            uuid: RefCell::new(uuid),
            minor,
            opener: reactor::new_opener(),
            dm,
            live: RefCell::default(),
            inactive: RefCell::default(),
            bare: RefCell::default(),
            flat: RefCell::new(Rc::new(Flat::nowhere())),
            flat_generation: Cell::new(0),
            past: RefCell::default(),
            held: Cell::new(true),
            published: Cell::new(false),
            withdrawing: Cell::new(0),
            mapping: Cell::default(),
            clones: Cell::default(),
            account: Rc::default(),
            suspended: Cell::new(true),
            unclean: Cell::new(false),
            blocked: Cell::new(true),
            waiting,
            gate,
            old_gates: RefCell::default(),
            settling: Cell::new(0),
            settled: WaitList::new(),
            event_nr: Cell::new(0),
            events: WaitList::new(),
            opens: Cell::new(0),
            remove_at_close: Cell::new(false),
            gone: Cell::new(false),
            lock: RefCell::default(),
        }
    }

    /// Minor number; `dm-N` names the device too.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Whether a control operation is at work on it (DM-D3): one more waits for that.
    pub fn is_changing(&self) -> bool {
        self.lock.borrow().is_held()
    }

    /// Whether bios wait, or would if there were a table. To a bare device none can come.
    pub fn is_suspended(&self) -> bool {
        self.suspended.get() && !self.is_bare()
    }

    fn is_bare(&self) -> bool {
        self.live.borrow().is_none() && self.bare.borrow().is_some()
    }

    pub(crate) fn bare(&self) -> Option<Rc<dyn SetupAttributes>> {
        self.bare.borrow().clone()
    }

    pub(crate) fn set_bare(&self, bare: Rc<dyn SetupAttributes>) {
        *self.bare.borrow_mut() = Some(bare);
    }

    /// Drops the tables. The caller holds the lock, and has suspended the device.
    pub(crate) fn unconfigure(&self, bare: Rc<dyn SetupAttributes>) {
        assert!(self.suspended.get(), "D2: nothing is in flight below");
        drop(self.live.take());
        drop(self.inactive.take());
        self.set_bare(bare);
        self.fail_waiting();
        self.raise_event();
    }

    /// The live table as a pure mapping, when it is nothing but one. Holds until it or a device
    /// below is suspended: then ask again.
    pub fn live_map(&self) -> Option<Rc<dyn Map>> {
        self.flat().map(|flat| flat as Rc<dyn Map>)
    }

    /// The flat mapping by which bios go now, if there is one.
    pub(crate) fn flat(&self) -> Option<Rc<Flat>> {
        Some(self.flat.borrow().clone()).filter(|flat| !flat.is_nowhere())
    }

    /// Bios that went on as clones, since it was made: none unless `mapping=clone`.
    pub fn clones(&self) -> u64 {
        self.clones.get()
    }

    /// How bios go through pure mappings.
    pub fn mapping(&self) -> Mapping {
        self.mapping.get()
    }

    pub(crate) fn set_mapping(&self, mapping: Mapping) {
        self.mapping.set(mapping);
    }

    /// Whether a bio may have to wait for a resume, of this device or of one below.
    pub(crate) fn is_held(&self) -> bool {
        self.held.get()
    }

    /// Makes the flat mapping again. Those of the devices below have been.
    pub(crate) fn refresh_flat(&self) {
        self.held.set(self.blocked.get() || self.live().is_some_and(|t| t.is_held()));
        let in_place = self.mapping.get() == Mapping::InPlace && !self.account.is_on();
        let pure = in_place && !self.held.get();
        let new = self.live().filter(|_| pure).and_then(|t| t.flatten());
        let old = self.flat.replace(Rc::new(new.unwrap_or_else(Flat::nowhere)));
        self.flat_generation.set(self.flat_generation.get() + 1);
        let mut past = self.past.borrow_mut();
        past.retain(|base| base.strong_count() > 0);
        for base in old.bases() {
            if !past.iter().any(|b| std::ptr::addr_eq(b.as_ptr(), Rc::as_ptr(base))) {
                past.push(Rc::downgrade(base));
                base.watch(self.waiting.watcher());
            }
        }
    }

    /// Waits until no other core goes by the flat mapping of before.
    pub(crate) async fn withdraw_flat(&self, replicas: &Rc<dyn Replicas>) {
        // Who has begun to withdraw it, too, waits still: until then it is in use.
        let waiting = &self.withdrawing;
        if self.published.replace(false) || waiting.get() > 0 {
            waiting.set(waiting.get() + 1);
            replicas.withdraw(self.minor).await;
            waiting.set(waiting.get() - 1);
        }
    }

    /// Waits until everything that flat mappings have sent has ended. The caller has made sure that
    /// there is none now.
    async fn bases_quiesced(&self) {
        let past = self.past.borrow().clone();
        for base in past.iter().filter_map(Weak::upgrade) {
            base.quiesced().await;
        }
    }

    pub(crate) fn live(&self) -> Option<Rc<Table>> {
        self.live.borrow().clone()
    }

    pub(crate) fn inactive(&self) -> Option<Rc<Table>> {
        self.inactive.borrow().clone()
    }

    pub(crate) fn tables(&self) -> impl Iterator<Item = Rc<Table>> {
        self.live().into_iter().chain(self.inactive())
    }

    /// Whether `other` is this device or below it.
    pub(crate) fn reaches(&self, other: &MappedDevice) -> bool {
        let mut depths = Depths::new();
        self.depth(&mut depths);
        depths.contains_key(&other.minor)
    }

    /// Whether a table of this device names one of those with these minor numbers.
    pub(crate) fn stands_on_any(&self, minors: &BTreeSet<u32>) -> bool {
        self.tables().any(|t| t.uses.mapped.iter().any(|o| minors.contains(&o.device().minor)))
    }

    /// Longest chain of mapped devices from this one down. Terminates by DM-D4, and looks once at
    /// each device below, of which it leaves the depth in `known`.
    pub(crate) fn depth(&self, known: &mut Depths) -> usize {
        if let Some(&depth) = known.get(&self.minor) {
            return depth;
        }
        let depth = 1 + self.tables().map(|t| t.depth(known)).max().unwrap_or(0);
        known.insert(self.minor, depth);
        depth
    }

    /// Holds the device open: it can't be removed meanwhile.
    pub fn open(self: &Rc<Self>) -> Result<Opened, Error> {
        if self.gone.get() {
            return Err(self.no_such());
        }
        self.opens.set(self.opens.get() + 1);
        Ok(Opened(self.clone()))
    }

    pub(crate) fn open_count(&self) -> u32 {
        self.opens.get()
    }

    fn no_such(&self) -> Error {
        Error::not_found(format!("{}: no such device: it is being removed", self.name()))
    }

    pub(crate) fn check_here(&self) -> Result<(), Error> {
        if self.gone.get() { Err(self.no_such()) } else { Ok(()) }
    }

    /// Waits until the event number is not `seen` any more, or the device is removed.
    pub(crate) async fn wait_event(&self, seen: u32) -> u32 {
        self.events.wait_for(|| self.event_nr.get() != seen).await;
        self.event_nr.get()
    }

    pub(crate) fn event_nr(&self) -> u32 {
        self.event_nr.get()
    }

    /// Puts a table into the inactive slot. The caller holds the lock and has checked DM-D4.
    pub(crate) fn set_inactive(&self, table: Option<Rc<Table>>) {
        // Dropping a table may close devices, so not while the slot is borrowed.
        let old = self.inactive.replace(table);
        drop(old);
    }

    /// As [`MappedDevice::set_inactive`]; returns what was there before.
    pub(crate) fn swap_inactive(&self, table: Option<Rc<Table>>) -> Option<Rc<Table>> {
        self.inactive.replace(table)
    }

    /// Stops bios, waits for those below, and suspends the targets. The caller holds the lock.
    ///
    /// After an error of a target the device is suspended all the same.
    pub(crate) async fn suspend(&self, held: &Held) -> Result<(), Error> {
        if self.suspended.get() && !self.unclean.get() {
            return Ok(());
        }
        self.blocked.set(true);
        if let Some(dm) = self.dm.upgrade() {
            dm.withdraw_flats(self).await;
        }
        let gate = self.gate.borrow().clone();
        gate.quiesced().await;
        self.bases_quiesced().await;
        self.check_held(held)?;
        self.past.take();
        let live = self.live();
        let result = match &live {
            Some(table) => table.suspend().await,
            None => Ok(()),
        };
        self.check_held(held)?;
        self.suspended.set(true);
        self.unclean.set(result.is_err()); // Asked again by the next suspend or removal.
        result.map_err(|e| e.within(format!("{}: suspended, but not cleanly", self.name())))
    }

    /// Makes an inactive table live, and lets bios go. The caller holds the lock.
    ///
    /// After an error the device is suspended, with both slots as before.
    pub(crate) async fn resume(&self, held: &Held, force: Option<&str>) -> Result<(), Error> {
        let Some(new) = self.inactive() else {
            if !self.suspended.get() {
                return Ok(());
            }
            return self.resume_live(held).await;
        };
        if new.entries.is_empty() {
            let name = self.name();
            return Err(Error::invalid(format!(
                "{name}: the table has no line: START_SECTOR LENGTH_SECTORS TARGET_TYPE \
                 [ARGUMENTS] is needed"
            )));
        }
        self.check_settled()?;
        let was_suspended = self.suspended.get();
        self.suspend(held).await?;
        let hides = self.check_hidden(&new, was_suspended, force).await;
        self.check_held(held)?;
        if let Err(e) = hides {
            if !was_suspended {
                self.resume_live(held).await?;
            }
            return Err(e);
        }
        // DM-D2: suspended, so the old table has nothing in flight and has settled its state.
        let resumed = new.resume_after(self.live()).await;
        if let Err(e) = self.check_held(held) {
            // It can't go live any more: it lets go of what it has taken.
            return match new.suspend().await {
                Ok(()) => Err(e),
                Err(also) => Err(e.because(also)),
            };
        }
        resumed.map_err(|e| self.stays_suspended(e))?;
        new.refresh_limits();
        self.set_inactive(None);
        let old = self.live.replace(Some(new));
        drop(old);
        self.unblock();
        Ok(())
    }

    /// Lets bios go on to the live table of before. The caller holds the lock.
    pub(crate) async fn resume_live(&self, held: &Held) -> Result<(), Error> {
        let none = || Error::invalid(format!("{}: no table to resume: load one", self.name()));
        let live = self.live().ok_or_else(none)?;
        let resumed = live.resume().await;
        self.check_held(held)?;
        resumed.map_err(|e| self.stays_suspended(e))?;
        live.refresh_limits();
        self.unblock();
        Ok(())
    }

    /// The error of a resume; a device that never had a live table (`create`) does not stay.
    fn stays_suspended(&self, e: Error) -> Error {
        if self.live.borrow().is_none() {
            return e.within(self.name());
        }
        e.within(format!("{}: resume failed, the device stays suspended", self.name()))
    }

    fn unblock(&self) {
        self.suspended.set(false);
        self.unclean.set(false);
        self.blocked.set(false);
        if let Some(dm) = self.dm.upgrade() {
            dm.refresh_flats(self);
        }
        // No await from here on, so nothing can overtake the bios that waited.
        self.waiting.send(|bio| self.submit(bio));
    }

    /// Takes the device down for good: suspends it and drops its tables. The caller holds the lock.
    ///
    /// After an error of a target the device is there still, suspended. Returns what its caches
    /// keep.
    pub(crate) async fn retire(&self, held: &Held) -> Result<Vec<UnsavedBlocks>, Error> {
        self.gone.set(true);
        if let Err(e) = self.suspend(held).await {
            // When it was taken by force, that has decided whether the device is there still.
            self.check_held(held)?;
            self.gone.set(false);
            return Err(e);
        }
        let kept = self.unsaved().await;
        self.check_held(held)?;
        self.end();
        Ok(kept)
    }

    /// The last step of a removal: nothing is in flight below but what force has left behind.
    fn end(&self) {
        self.gone.set(true);
        drop(self.live.take());
        drop(self.inactive.take());
        self.fail_waiting();
        self.raise_event();
    }

    pub(crate) fn fail_waiting(&self) {
        self.waiting.fail(Status::NoDevice);
    }

    /// The target that holds `sector`, for a message; counted as in flight until dropped.
    pub(crate) fn message_to(&self, sector: Sector) -> Result<MessageTarget, Error> {
        let name = self.name();
        let live = self.live().ok_or_else(|| Error::not_found(format!("{name}: no live table")))?;
        if self.blocked.get() {
            // DM-D2: a message may do I/O. Its target would have to refuse it anyway.
            return Err(Error::busy(format!("{name}: is suspended: resume it first")));
        }
        let Some(entry) = live.find(sector) else {
            let end = live.limits().capacity;
            return Err(Error::invalid(format!(
                "{name}: Target message sector outside device: sector {sector}, must be below {end}"
            )));
        };
        let target = entry.target.clone();
        let line_no = entry.line_no;
        let gate = self.gate.borrow().clone();
        let generation = gate.enter();
        Ok(MessageTarget { target, line_no, gate, generation })
    }

    /// What `info` tells.
    pub fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.name().to_owned(),
            uuid: self.uuid.borrow().clone(),
            major: MAJOR,
            minor: self.minor,
            suspended: self.is_suspended(),
            read_only: false,
            deferred_remove: self.remove_at_close.get(),
            live_table: self.live.borrow().is_some(),
            inactive_table: self.inactive.borrow().is_some(),
            open_count: self.opens.get(),
            event_nr: self.event_nr.get(),
            targets: self.live.borrow().as_ref().map_or(0, |t| t.entries.len()),
            size_sectors: self.limits().capacity.0,
        }
    }

    /// Brings up to date what `status` tells.
    pub async fn refresh(&self) {
        let Some(live) = self.live() else { return };
        for entry in &live.entries {
            entry.target.clone().refresh().await;
        }
    }

    /// The live table's status lines, as of the last `refresh` where targets are on other cores;
    /// none when there is no live table.
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
        self.event_nr.set(self.event_nr.get().wrapping_add(1));
        self.events.wake_all();
    }
}

impl fmt::Debug for MappedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedDevice({})", self.name())
    }
}

impl Drop for MappedDevice {
    fn drop(&mut self) {
        if !crashing() {
            self.fail_waiting();
        }
    }
}
