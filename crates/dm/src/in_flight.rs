// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in flight below a device: counted, so that the device can wait for it before it changes.
use std::cell::RefCell;
use std::rc::{Rc, Weak};

use block::{Bio, OnIoError, Op, Sector, Status};
use reactor::{Generation, OnDone, QuiesceCounter};

/// Bios and messages in flight below a device, but for those that a flat mapping has sent: these
/// the bases count.
#[derive(Default)]
pub(crate) struct InFlight {
    requests: QuiesceCounter,
    watchers: RefCell<Vec<Weak<dyn OnIoError>>>,
}

impl InFlight {
    pub(crate) fn enter(&self) -> Generation {
        self.requests.enter()
    }

    pub(crate) fn leave(&self, generation: Generation) {
        self.requests.leave(generation);
    }

    /// Counts the bio until it has completed.
    pub(crate) fn track(self: &Rc<Self>, mut bio: Bio) -> Bio {
        let tag = Tag { sector: bio.sector, op: bio.op, generation: self.enter() };
        bio.done = reactor::chain(bio.done, self.clone(), tag.pack());
        bio
    }

    /// Waits until all that is in flight now has ended.
    pub(crate) async fn quiesced(&self) {
        self.requests.quiesced().await;
    }

    /// Reports errors to `watcher`; once, however often it is given.
    pub(crate) fn watch(&self, watcher: Weak<dyn OnIoError>) {
        let address = |w: &Weak<dyn OnIoError>| w.as_ptr().cast::<()>();
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|w| w.strong_count() > 0 && address(w) != address(&watcher));
        watchers.push(watcher);
    }
}

impl OnDone for InFlight {
    fn on_done(&self, status: Status, tag: u64) {
        let Tag { sector, op, generation } = Tag::unpack(tag);
        self.leave(generation);
        // These two are mistakes of the sender: the device has no fault.
        if matches!(status, Status::Ok | Status::Invalid | Status::NotSupported) {
            return;
        }
        for watcher in self.watchers.borrow().iter().filter_map(Weak::upgrade) {
            // The tag has no room for the length; the first sector is enough to find the area.
            watcher.on_io_error(op, sector, Sector(1), status);
        }
    }
}

/// What is known of a bio when it ends.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Watcher;

    impl OnIoError for Watcher {
        fn on_io_error(&self, _: Op, _: Sector, _: Sector, _: Status) {}
    }

    /// A device above that is suspended and resumed every minute was added each time.
    #[test]
    fn a_watcher_that_is_given_again_is_kept_once() {
        let (below, watcher) = (InFlight::default(), Rc::new(Watcher));
        for _ in 0..3 {
            let watcher: Rc<dyn OnIoError> = watcher.clone();
            below.watch(Rc::downgrade(&watcher));
        }
        assert_eq!(below.watchers.borrow().len(), 1);
    }

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
