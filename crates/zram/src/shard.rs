// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shard: a share of a device's slots, on one core.
//!
//! Invariants
//! - ZR-ZS1 What is in memory changes without an `.await` in between, so every page is seen whole.
//! - ZR-ZS2 A slot changes only by `replace`, `replace_in_place`, `settle` and flags; they keep the
//!   counters true.
//! - ZR-ZS3 An object is in the store just as long as a resident slot has its handle.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{Bio, BlockDevice, Error, Flags as BioFlags, Limits, Nanos, Op, Sector, Status};
use reactor::{TaskPool, now};

use crate::backing::{Address, Backing};
use crate::codecs::{Algorithms, Codecs};
use crate::layout::{Layout, PAGE_SECTORS};
use crate::merge::is_whole;
use crate::mutation::Mutation;
use crate::persist::{Media, Persist};
use crate::read::slots_of_any;
use crate::shared::{Counters, Shared};
use crate::slot::{Flags, PAGE, Slot, Slots};
use crate::store::{Handle, Store};

/// Bios handled by tasks at once; more wait in order.
const BIOS_MAX: usize = 1024;
/// Pages that a bio may have to be served as it is submitted; longer ones are a task's, which lets
/// others go in between.
pub(crate) const PAGES_AT_ONCE: u64 = 8;

/// What a shard is made of; made on one core and sent to another.
#[derive(Clone)]
pub(crate) struct Plan {
    /// The device's name.
    pub(crate) device: String,
    /// Which shard.
    pub(crate) nth: u32,
    pub(crate) layout: Layout,
    pub(crate) algorithms: Algorithms,
    pub(crate) shared: Arc<Shared>,
    /// Whether objects are written back compressed, several to a block.
    pub(crate) packed: bool,
    /// What the media of a persistent device say.
    pub(crate) media: Option<Media>,
    /// A planted fault, for tests of the tests.
    pub(crate) mutation: Mutation,
}

/// A share of a device's slots.
pub(crate) struct Shard {
    pub(crate) plan: Plan,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) store: RefCell<Store>,
    pub(crate) codecs: RefCell<Codecs>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) backing: Option<Backing>,
    /// Only of a persistent device, which has a backing.
    pub(crate) persist: Option<Persist>,
    limits: Limits,
    made: Nanos,
    /// Counts objects that were stored.
    pub(crate) stored: Cell<u32>,
    last_error: RefCell<Option<String>>,
    tasks: TaskPool<Bio>,
}

impl Shard {
    /// An empty share. To be called on the core that shall own it.
    pub(crate) fn new(
        plan: Plan,
        backing: Option<Backing>,
        persist: Option<Persist>,
    ) -> Result<Rc<Shard>, Error> {
        let slots = plan.layout.slots_of(plan.nth);
        let store = Store::new(plan.shared.memory.clone(), slots)?;
        let codecs = Codecs::new(&plan.algorithms)?;
        let limits = limits(Sector(u64::from(slots) * PAGE_SECTORS));
        let (shared, counters) = (plan.shared.clone(), plan.shared.counters(plan.nth as usize));
        Ok(Rc::new_cyclic(|me: &Weak<Shard>| {
            let of_tasks = me.clone();
            Shard {
                plan,
                slots: RefCell::new(Slots::new(slots)),
                store: RefCell::new(store),
                codecs: RefCell::new(codecs),
                shared,
                counters,
                backing,
                persist,
                limits,
                made: now(),
                stored: Cell::new(0),
                last_error: RefCell::default(),
                tasks: TaskPool::new(BIOS_MAX, move |mut bio: Bio| {
                    let shard = of_tasks.upgrade();
                    async move {
                        let status = match shard {
                            Some(shard) => shard.handle(&mut bio).await,
                            None => Status::NoDevice,
                        };
                        bio.complete(status);
                    }
                }),
            }
        }))
    }

    /// Seconds since the shard was made: the clock of accesses.
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

    /// The slot as the users know it.
    pub(crate) fn global(&self, nth: u32) -> u64 {
        self.plan.layout.global(self.plan.nth, nth)
    }

    /// What went wrong last, told to the log and shown in the status.
    pub(crate) fn note_error(&self, what: String) {
        self.last_error.replace(Some(what));
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Puts `new` in a slot's place; what the old one held is free then.
    pub(crate) fn replace(&self, nth: u32, new: Slot) {
        let old = self.slot(nth);
        self.let_go(old);
        self.take_in(new);
        self.slots.borrow_mut().set(nth, new);
        if let Some(persist) = &self.persist {
            persist.changed(nth);
        }
    }

    /// As `replace`, where the object of `new` lies where the old one did (ZR-ZS3).
    pub(crate) fn replace_in_place(&self, nth: u32, old: Slot, new: Slot) {
        assert!(old.is_resident() && old.place == new.place, "{old:?} is elsewhere than {new:?}");
        self.counters.compr_bytes.sub(old.size() as u64);
        self.counters.compr_bytes.add(new.size() as u64);
        self.slots.borrow_mut().set(nth, new);
        if let Some(persist) = &self.persist {
            persist.changed(nth);
        }
    }

    /// A slot, which is empty, is as the device was left.
    pub(crate) fn adopt(&self, nth: u32, slot: Slot) {
        self.take_in(slot);
        self.slots.borrow_mut().set(nth, slot);
    }

    /// A page in memory has got to `place` on the backing device: its memory is free then.
    pub(crate) fn settle(&self, nth: u32, place: Address) {
        let old = self.slot(nth);
        assert!(old.is_resident(), "settled {old:?}");
        self.let_go(old);
        let new = old.at(place.0).without(Flags::PICKED | Flags::IDLE).with(Flags::BACKED);
        self.take_in(new);
        self.slots.borrow_mut().set(nth, new);
    }

    fn let_go(&self, old: Slot) {
        let counters = &self.counters;
        if old.is_empty() {
            return;
        }
        counters.pages.sub(1);
        if old.has(Flags::SAME) {
            counters.same_pages.sub(1);
        } else if old.has(Flags::BACKED) {
            counters.backed_pages.sub(1);
            let backing = self.backing.as_ref().expect("there is one: a page is on it");
            // A persistent page stays until what it has become is durable.
            if self.persist.is_none() {
                let gone = backing.release(Address(old.place), old.size());
                counters.bd_count.sub(u64::from(gone));
            }
        } else {
            self.store.borrow_mut().remove(Handle(old.place));
            counters.compr_bytes.sub(old.size() as u64);
            if old.has(Flags::HUGE) {
                counters.huge_pages.sub(1);
            }
        }
    }

    fn take_in(&self, new: Slot) {
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

    /// The object of a slot, if it is in memory, will be asked for soon.
    pub(crate) fn prefetch(&self, nth: u32) {
        let slot = self.slot(nth);
        if slot.is_resident() {
            self.store.borrow().prefetch(Handle(slot.place), slot.size());
        }
    }

    /// The object of a resident slot, to the first bytes of `out`.
    pub(crate) fn object_of(&self, slot: Slot, out: &mut [u8]) {
        assert!(slot.is_resident(), "{slot:?} has no object in memory");
        self.store.borrow().read(Handle(slot.place), &mut out[..slot.size()]);
    }

    /// The page of a slot that needs no backing device, to `out`.
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

    /// Decompresses an object that came from elsewhere.
    pub(crate) fn unpack(&self, priority: u8, object: &[u8], out: &mut [u8]) -> Result<(), Status> {
        self.codecs.borrow_mut().decompress(priority, object, out)
    }

    /// Makes everything durable if that is wanted, and waits until nothing is in flight below.
    pub(crate) async fn settle_down(self: Rc<Self>) -> Result<(), Error> {
        let kept = if self.persist.is_some() { self.keep_all().await } else { Ok(()) };
        if let Some(backing) = &self.backing {
            backing.quiesce().await;
        }
        kept
    }

    async fn handle(self: Rc<Self>, bio: &mut Bio) -> Status {
        let mut is_left = true;
        // Of the bio as it came: what is merged leaves it.
        let slots = slots_of_any(bio);
        if !is_whole(bio) {
            // Boxed: few bios need it, and every one would carry its state.
            is_left = match Box::pin(self.merge_edges(bio)).await {
                Ok(is_left) => is_left,
                Err(status) => return status,
            };
        }
        let done = match bio.op {
            _ if !is_left => Status::Ok,
            Op::Read => self.read(bio).await,
            Op::Write => self.write(bio).await,
            Op::Discard | Op::WriteZeroes => self.discard(bio).await,
            Op::Flush => Status::Ok,
        };
        if done == Status::Ok && self.waits_for_media(bio) {
            return self.commit_bio(bio.op, slots).await;
        }
        done
    }

    /// Whether a bio ends only when something is durable.
    pub(crate) fn waits_for_media(&self, bio: &Bio) -> bool {
        let fua = bio.op.is_write() && bio.flags.contains(BioFlags::FUA);
        self.persist.is_some() && (fua || bio.op == Op::Flush)
    }
}

/// What a device, or a share of one, of this capacity takes.
pub(crate) fn limits(capacity: Sector) -> Limits {
    let page = PAGE as u32;
    Limits {
        // Less than a page is merged (`merge`).
        logical_block_bytes: 512,
        physical_block_bytes: page,
        io_min_bytes: page,
        io_opt_bytes: page,
        atomic_write_unit_bytes: page,
        discard_granularity_bytes: page,
        write_zeroes: true,
        volatile_cache: false,
        ..Limits::new(capacity)
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

impl BlockDevice for Shard {
    fn name(&self) -> &str {
        &self.plan.device
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        debug_assert_eq!(self.limits.check(&bio), Ok(()), "the device checks what it takes");
        if !is_whole(&bio) {
            return self.tasks.push(bio);
        }
        match self.at_once(&bio) {
            Some(status) => bio.complete(status),
            None => self.tasks.push(bio),
        }
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({} {} of {:?})", self.plan.device, self.plan.nth, self.plan.layout)
    }
}
