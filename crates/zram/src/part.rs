// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Part: a share of a device's slots, on one core.
//!
//! Invariants
//! - ZR-ZS1 A page in memory is read and changed without an `.await` in between, so it is always
//!   seen whole.
//! - ZR-ZS2 A slot changes only by `replace`, `replace_in_place`, `move_to_backing` and its flags.
//!   These keep the counters right.
//! - ZR-ZS3 An object is in the store exactly as long as a resident slot has its handle.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{Bio, BlockDevice, Error, Limits, Nanos, Op, Planted, Sector, Status};
use reactor::{TaskPool, now};

use crate::backing::{Address, Backing};
use crate::codecs::{Algorithms, Codecs};
use crate::failures::FailureKind;
use crate::layout::{Layout, PAGE_SECTORS, is_whole};
use crate::planted::Fault;
use crate::shared::{Counters, Shared};
use crate::slot::{Flags, PAGE, Slot, Slots};
use crate::store::{Handle, Store};

/// Bios that have a task at once; more wait in order.
const BIOS_MAX: usize = 1024;
/// What a part is made from; created on core 0 and sent to the part's core.
#[derive(Clone)]
pub(crate) struct Plan {
    /// The device's name.
    pub(crate) device: String,
    /// The number of the part.
    pub(crate) nth: u32,
    pub(crate) layout: Layout,
    pub(crate) algorithms: Algorithms,
    pub(crate) shared: Arc<Shared>,
    /// Whether objects are written back compressed, several to a block.
    pub(crate) packed: bool,
    pub(crate) planted: Planted<Fault>,
}

/// A share of a device's slots.
pub(crate) struct Part {
    pub(crate) plan: Plan,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) store: RefCell<Store>,
    pub(crate) codecs: RefCell<Codecs>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backing: Option<Backing>,
    made: Nanos,
    /// Counts objects that were stored.
    pub(crate) stored: Cell<u32>,
    last_error: RefCell<Option<String>>,
    tasks: TaskPool<Bio>,
}

impl Part {
    /// An empty part. To be called on the core that will own it.
    pub(crate) fn new(plan: Plan, backing: Option<Backing>) -> Result<Rc<Part>, Error> {
        let slots = plan.layout.slots_of(plan.nth);
        let store = Store::new(plan.shared.memory.clone(), slots)?;
        let codecs = Codecs::new(&plan.algorithms)?;
        let (shared, counters) = (plan.shared.clone(), plan.shared.counters(plan.nth as usize));
        Ok(Rc::new_cyclic(|me: &Weak<Part>| {
            let of_tasks = me.clone();
            Part {
                plan,
                slots: RefCell::new(Slots::new(slots)),
                store: RefCell::new(store),
                codecs: RefCell::new(codecs),
                shared,
                counters,
                backing,
                made: now(),
                stored: Cell::new(0),
                last_error: RefCell::default(),
                tasks: TaskPool::new(BIOS_MAX, move |mut bio: Bio| {
                    let part = of_tasks.upgrade();
                    async move {
                        let status = match part {
                            Some(part) => part.handle(&mut bio).await,
                            None => Status::NoDevice,
                        };
                        bio.complete(status);
                    }
                }),
            }
        }))
    }

    /// Seconds since the part was made: the clock of accesses.
    pub(crate) fn clock(&self) -> u32 {
        u32::try_from((now() - self.made).0 / Nanos::from_secs(1).0).unwrap_or(u32::MAX)
    }

    pub(crate) fn slot(&self, nth: u32) -> Slot {
        self.slots.borrow().get(nth)
    }

    pub(crate) fn set_flags(&self, nth: u32, flags: Flags) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(nth);
        slots.set(nth, slot.with(flags));
    }

    pub(crate) fn clear_flags(&self, nth: u32, flags: Flags) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(nth);
        slots.set(nth, slot.without(flags));
    }

    /// The number of a slot in the device.
    pub(crate) fn global(&self, nth: u32) -> u64 {
        self.plan.layout.global(self.plan.nth, nth)
    }

    /// Notes a failure: it is logged, and shown by `last_error`.
    pub(crate) fn note_failure(&self, kind: FailureKind, what: String) {
        self.shared.failures.note(kind, &what, now());
        self.last_error.replace(Some(what));
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Replaces a slot by `new`, and frees what the old one had.
    pub(crate) fn replace(&self, nth: u32, new: Slot) {
        let old = self.slot(nth);
        self.release_old(old);
        self.count_new(new);
        self.slots.borrow_mut().set(nth, new);
    }

    /// As `replace`, when the object of `new` lies in the place of the old one (ZR-ZS3).
    pub(crate) fn replace_in_place(&self, nth: u32, old: Slot, new: Slot) {
        assert!(old.is_resident() && old.place == new.place, "{old:?} is elsewhere than {new:?}");
        self.counters.compr_bytes.subtract(old.size() as u64);
        self.counters.compr_bytes.add(new.size() as u64);
        self.slots.borrow_mut().set(nth, new);
    }

    /// The page of a slot is at `place` on the backing device: frees its memory.
    pub(crate) fn move_to_backing(&self, nth: u32, place: Address) {
        let old = self.slot(nth);
        assert!(old.is_resident(), "{old:?} is not in memory");
        self.release_old(old);
        let new = old.at(place.0).without(Flags::PICKED | Flags::IDLE).with(Flags::BACKED);
        self.count_new(new);
        self.slots.borrow_mut().set(nth, new);
    }

    fn release_old(&self, old: Slot) {
        let counters = &self.counters;
        if old.is_empty() {
            return;
        }
        counters.pages.subtract(1);
        if old.has(Flags::SAME) {
            counters.same_pages.subtract(1);
        } else if old.has(Flags::BACKED) {
            counters.backed_pages.subtract(1);
            let backing = self.backing.as_ref().expect("there is one: a page is on it");
            let gone = backing.release(Address(old.place), old.size());
            counters.bd_count.subtract(u64::from(gone));
        } else {
            self.store.borrow_mut().remove(Handle(old.place));
            counters.compr_bytes.subtract(old.size() as u64);
            if old.has(Flags::HUGE) {
                counters.huge_pages.subtract(1);
            }
        }
    }

    fn count_new(&self, new: Slot) {
        let counters = &self.counters;
        if new.is_empty() {
            return;
        }
        counters.pages.add(1);
        if new.has(Flags::SAME) {
            counters.same_pages.add(1);
        } else if new.has(Flags::BACKED) {
            counters.backed_pages.add(1);
        } else {
            counters.compr_bytes.add(new.size() as u64);
            if new.has(Flags::HUGE) {
                counters.huge_pages.add(1);
            }
        }
    }

    /// Prefetches the object of a slot, if it is in memory.
    pub(crate) fn prefetch(&self, nth: u32) {
        let slot = self.slot(nth);
        if slot.is_resident() {
            self.store.borrow().prefetch(Handle(slot.place), slot.size());
        }
    }

    /// Copies the object of a resident slot to the first bytes of `out`.
    pub(crate) fn object_of(&self, slot: Slot, out: &mut [u8]) {
        assert!(slot.is_resident(), "{slot:?} has no object in memory");
        self.store.borrow().read(Handle(slot.place), &mut out[..slot.size()]);
    }

    /// Copies the page of a slot that is not on the backing device to `out`.
    pub(crate) fn page_of(&self, slot: Slot, out: &mut [u8]) -> Result<(), Status> {
        assert!(!slot.has(Flags::BACKED), "{slot:?} is not in memory");
        if slot.is_empty() {
            out.fill(0);
            return Ok(());
        }
        if slot.has(Flags::SAME) {
            fill(out, slot.place);
            return Ok(());
        }
        if slot.size() == PAGE {
            self.store.borrow().read(Handle(slot.place), out);
            return Ok(());
        }
        let codecs = &mut *self.codecs.borrow_mut();
        let mut object = std::mem::take(&mut codecs.object);
        self.store.borrow().read(Handle(slot.place), &mut object[..slot.size()]);
        let done = codecs.decompress(slot.priority(), &object[..slot.size()], out);
        codecs.object = object;
        done
    }

    /// Decompresses an object that is not of the store.
    pub(crate) fn unpack(&self, priority: u8, object: &[u8], out: &mut [u8]) -> Result<(), Status> {
        self.codecs.borrow_mut().decompress(priority, object, out)
    }

    /// Waits until no request is in flight below.
    pub(crate) async fn quiesce(self: Rc<Self>) {
        if let Some(backing) = &self.backing {
            backing.quiesce().await;
        }
    }

    async fn handle(self: Rc<Self>, bio: &mut Bio) -> Status {
        let mut is_left = true;
        if !is_whole(bio) {
            // Boxed: few bios need it, and every one would carry its state.
            is_left = match Box::pin(self.merge_edges(bio)).await {
                Ok(is_left) => is_left,
                Err(status) => return status,
            };
        }
        match bio.op {
            _ if !is_left => Status::Ok,
            Op::Read => self.read(bio).await,
            Op::Write => self.write(bio).await,
            Op::Discard | Op::WriteZeroes => self.discard(bio).await,
            Op::Flush => Status::Ok,
        }
    }

    /// The slots of the device from `first` to before `end` that are here and read as zeroes.
    pub(crate) fn zero_slots(&self, first: u64, end: u64) -> Vec<u64> {
        let (layout, nth) = (self.plan.layout, self.plan.nth);
        let slots = self.slots.borrow();
        let zero = layout.part_of(nth, first, end).filter(|local| slots.get(*local).is_zero());
        zero.map(|local| layout.global(nth, local)).collect()
    }
}

/// The limits of a device, or of a part, of this capacity.
pub(crate) fn limits(capacity: Sector) -> Limits {
    let page = PAGE as u32;
    Limits {
        // Requests of less than a page are merged (`merge`).
        logical_block_bytes: 512,
        physical_block_bytes: page,
        io_min_bytes: page,
        io_opt_bytes: page,
        atomic_write_unit_bytes: page,
        discard_granularity_bytes: page,
        survives_kill: false,
        flushed_survives_kill: false,
        ..Limits::of_memory(capacity)
    }
}

/// Fills a page with a word.
pub(crate) fn fill(page: &mut [u8], word: u64) {
    let bytes = word.to_le_bytes();
    if bytes.iter().all(|b| *b == bytes[0]) {
        page.fill(bytes[0]);
        return;
    }
    for chunk in page.chunks_exact_mut(8) {
        chunk.copy_from_slice(&bytes);
    }
}

impl BlockDevice for Part {
    fn name(&self) -> &str {
        &self.plan.device
    }

    fn limits(&self) -> Limits {
        limits(Sector(u64::from(self.slots.borrow().len()) * PAGE_SECTORS))
    }

    fn submit(&self, bio: Bio) {
        debug_assert_eq!(self.limits().check(&bio), Ok(()), "the device has checked it");
        if !is_whole(&bio) {
            return self.tasks.push(bio);
        }
        match self.at_once(&bio) {
            Some(status) => bio.complete(status),
            None => self.tasks.push(bio),
        }
    }
}

block::debug_as!(Part, s => "Shard({} {} of {:?})", s.plan.device, s.plan.nth, s.plan.layout);
