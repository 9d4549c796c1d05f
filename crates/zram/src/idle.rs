// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Passes over all slots of a part: marking pages idle, compacting memory, and listing states.
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::Nanos;
use policy::Ages;
use reactor::{sleep, spawn, yield_now};

use crate::command::Idle;
use crate::part::Part;
use crate::slot::{Flags, Slot};
use crate::store::Store;
use crate::store::compact::Moved;

/// Slots that are visited between two yields.
pub(crate) const WALK_RUN: u32 = 8192;

/// How long memory that is not in use is kept at most. Chosen: short for other users of the memory,
/// long enough for a gigabyte to be written.
const SWEEP_EVERY: Nanos = Nanos::from_secs(1);

/// A line of `block_state`: the slot, when it was accessed, its letters.
pub(crate) type PageState = (u64, u32, [u8; 6]);

impl Part {
    /// Calls `f` with all slots that have a page, in order; yields in between.
    async fn each_page(&self, mut f: impl FnMut(u32, Slot)) {
        let slots = self.slots.borrow().len();
        for first in (0..slots).step_by(WALK_RUN as usize) {
            for nth in first..slots.min(first.saturating_add(WALK_RUN)) {
                let slot = self.slot(nth);
                if !slot.is_empty() {
                    f(nth, slot);
                }
            }
            yield_now().await;
        }
    }

    /// Marks pages idle. Pages that take no memory are never idle.
    pub(crate) async fn mark_idle(self: Rc<Self>, which: Idle) {
        let now = self.clock();
        self.each_page(|nth, slot| {
            if !slot.is_resident() {
                return;
            }
            let idle = match which {
                Idle::All => true,
                Idle::Age(age) => now.checked_sub(age).is_some_and(|then| slot.accessed <= then),
            };
            if idle {
                self.set_flags(nth, Flags::IDLE);
            } else {
                self.clear_flags(nth, Flags::IDLE);
            }
        })
        .await;
    }

    /// Compacts the objects and gives the freed memory back to the system. A suspend ends it.
    pub(crate) async fn compact(self: Rc<Self>) {
        for class in 0..Store::CLASSES {
            while !self.shared.cancel.load(Relaxed)
                && self.moving(|store, moved| store.compact_step(class, moved))
            {
                yield_now().await;
            }
        }
        self.give_idle_back().await;
    }

    /// Gives idle memory back to the system.
    pub(crate) async fn give_idle_back(&self) {
        let mut at = Some(0);
        while let Some(cell) = at {
            at = self.store.borrow_mut().sweep(cell);
            yield_now().await;
        }
    }

    /// Runs `work`, which frees much memory. Gives that memory back when it lies in long rows: at
    /// the end, and once a second before.
    pub(crate) async fn freeing<T>(self: &Rc<Self>, work: impl Future<Output = T>) -> T {
        let at_work = Rc::new(Cell::new(true));
        let (going_on, part) = (at_work.clone(), Rc::downgrade(self));
        spawn(async move {
            loop {
                sleep(SWEEP_EVERY).await;
                let part = part.upgrade().filter(|_| going_on.get());
                let Some(part) = part else { return };
                part.give_idle_back().await;
            }
        });
        self.store.borrow_mut().keep_idle(true);
        let done = work.await;
        at_work.set(false);
        self.store.borrow_mut().keep_idle(false);
        self.give_idle_back().await;
        done
    }

    /// One small step of a compaction.
    pub(crate) fn tidy_memory(&self) {
        self.moving(|store, moved| store.tidy(moved));
    }

    /// Lets the store move objects, and updates their slots.
    fn moving<T>(&self, work: impl FnOnce(&mut Store, &mut Moved<'_>) -> T) -> T {
        let (store, slots) = (&mut *self.store.borrow_mut(), &mut *self.slots.borrow_mut());
        let before = store.pages();
        let done = work(store, &mut |owner, old, new| {
            let slot = slots.get(owner);
            assert!(slot.is_resident() && slot.place == old.0, "{slot:?} is not at {old:?}");
            slots.set(owner, slot.at(new.0));
        });
        self.counters.pages_compacted.add(before - store.pages());
        done
    }

    /// The state of every page, for `block_state`.
    pub(crate) async fn states(self: Rc<Self>) -> Vec<PageState> {
        let mut states = Vec::new();
        self.each_page(|nth, slot| states.push((self.global(nth), slot.accessed, letters(slot))))
            .await;
        states
    }

    /// The clock, and the pages in memory by age: the input of the automatic policy.
    pub(crate) async fn ages(self: Rc<Self>) -> (u32, Ages) {
        let clock = self.clock();
        let mut ages = Ages::default();
        self.each_page(|_, slot| {
            if slot.is_resident() {
                let age = clock.saturating_sub(slot.accessed);
                ages.add(age, slot.has(Flags::HUGE), slot.size() as u64);
            }
        })
        .await;
        (clock, ages)
    }
}

/// The kernel's letters for the flags of a slot.
fn letters(slot: Slot) -> [u8; 6] {
    let letter = |is: bool, letter: u8| if is { letter } else { b'.' };
    [
        letter(slot.has(Flags::SAME), b's'),
        letter(slot.has(Flags::BACKED), b'w'),
        letter(slot.has(Flags::HUGE), b'h'),
        letter(slot.has(Flags::IDLE), b'i'),
        letter(slot.priority() > 0, b'r'),
        letter(slot.has(Flags::INCOMPRESSIBLE), b'n'),
    ]
}
