// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gate and lock: what a device waits for before it changes.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::{Bio, OnIoError, Op, Sector, Status, crashing};
use reactor::{Generation, OnDone, QuiesceCounter, WaitList};

/// Counts what is in flight below a device and did not go through a flat mapping: bios, and
/// messages to its targets.
#[derive(Default)]
pub(crate) struct Gate {
    requests: QuiesceCounter,
    watchers: RefCell<Vec<Weak<dyn OnIoError>>>,
}

impl Gate {
    pub(crate) fn enter(&self) -> Generation {
        self.requests.enter()
    }

    pub(crate) fn leave(&self, generation: Generation) {
        self.requests.leave(generation);
    }

    /// Counts the bio until it has completed.
    pub(crate) fn pass(self: &Rc<Self>, mut bio: Bio) -> Bio {
        let tag = Tag { sector: bio.sector, op: bio.op, generation: self.enter() };
        bio.done = reactor::chain(bio.done, self.clone(), tag.pack());
        bio
    }

    /// Waits until all that is in flight now has ended.
    pub(crate) async fn quiesced(&self) {
        self.requests.quiesced().await;
    }

    pub(crate) fn watch(&self, watcher: Weak<dyn OnIoError>) {
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|w| w.strong_count() > 0);
        watchers.push(watcher);
    }
}

impl OnDone for Gate {
    fn on_done(&self, status: Status, tag: u64) {
        let Tag { sector, op, generation } = Tag::unpack(tag);
        self.leave(generation);
        // Who sent what does not fit, or is not known here, has no faulty device.
        if matches!(status, Status::Ok | Status::Invalid | Status::NotSupported) {
            return;
        }
        for watcher in self.watchers.borrow().iter().filter_map(Weak::upgrade) {
            // Its length is not kept; its first sector says in which area it was.
            watcher.on_io_error(op, sector, Sector(1), status);
        }
    }
}

/// What is kept of a bio in flight.
struct Tag {
    sector: Sector,
    op: Op,
    generation: Generation,
}

impl Tag {
    const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Bits 0: generation, 1 to 3: op, the others: sector; no device has 2^60 sectors.
    fn pack(self) -> u64 {
        self.sector.0 << 4 | (self.op as u64) << 1 | self.generation.tag()
    }

    fn unpack(tag: u64) -> Tag {
        let op = Tag::OPS[usize::try_from(tag >> 1 & 7).expect("three bits")];
        Tag { sector: Sector(tag >> 4), op, generation: Generation::from_tag(tag) }
    }
}

/// A mutual exclusion of tasks, which can be withdrawn.
#[derive(Default)]
pub(crate) struct Lock {
    held: Cell<bool>,
    withdrawn: Cell<bool>,
    waiters: WaitList,
}

#[must_use = "the lock is free again when this is dropped"]
pub(crate) struct Held(Rc<Lock>);

impl Lock {
    /// Whether who asks for it now would wait.
    pub(crate) fn is_held(&self) -> bool {
        self.held.get() && !self.withdrawn.get()
    }

    /// Waits for the lock. Nothing once it has been withdrawn.
    pub(crate) async fn acquire(self: Rc<Self>) -> Option<Held> {
        self.waiters.wait_for(|| self.withdrawn.get() || !self.held.replace(true)).await;
        if self.withdrawn.get() { None } else { Some(Held(self)) }
    }

    /// Nobody gets the lock any more. Who holds it learns of it by [`Held::is_withdrawn`].
    pub(crate) fn withdraw(&self) {
        self.withdrawn.set(true);
        self.waiters.wake_all();
    }

    /// Waits until nobody holds a withdrawn lock.
    pub(crate) async fn idle(&self) {
        self.waiters.wait_for(|| !self.held.get()).await;
    }
}

impl Held {
    /// Whether the lock was withdrawn while it was held.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.get()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.set(false);
        if !crashing() {
            self.0.waiters.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_keeps_all_that_is_packed_into_it() {
        let requests = QuiesceCounter::default();
        for op in Tag::OPS {
            let tag =
                Tag { sector: Sector((1 << 54) - 1), op, generation: requests.enter() }.pack();
            let Tag { sector, op: unpacked, generation } = Tag::unpack(tag);
            assert_eq!((sector, unpacked), (Sector((1 << 54) - 1), op));
            requests.leave(generation);
        }
        assert_eq!(requests.in_flight(), 0);
    }
}
