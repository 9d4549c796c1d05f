// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that fails requests of one kind in one range of blocks, and that can delay writes.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op, Status};

pub(crate) struct FailingDevice {
    below: Rc<dyn BlockDevice>,
    refused: RefCell<Vec<(Op, Range<u64>)>>,
    /// Requests that were refused.
    pub(crate) count: Cell<u64>,
    /// Delayed writes.
    delayed: RefCell<Option<Vec<Bio>>>,
    /// The writes that were passed on or refused, as ranges of 4096-byte blocks.
    writes: RefCell<Vec<Range<u64>>>,
}

impl FailingDevice {
    pub(crate) fn over(below: Rc<dyn BlockDevice>) -> Rc<FailingDevice> {
        let (refused, delayed, writes) = Default::default();
        Rc::new(FailingDevice { below, refused, count: Cell::new(0), delayed, writes })
    }

    /// Requests `op` for any of these blocks of 4096 bytes fail from now on.
    pub(crate) fn refuse(&self, op: Op, blocks: Range<u64>) {
        self.refused.borrow_mut().push((op, blocks.start * 8..blocks.end * 8));
    }

    pub(crate) fn repair(&self) {
        self.refused.borrow_mut().clear();
    }

    /// Delays writes from now on.
    pub(crate) fn hold_writes(&self) {
        self.delayed.borrow_mut().get_or_insert_default();
    }

    pub(crate) fn held_writes(&self) -> usize {
        self.delayed.borrow().as_ref().map_or(0, Vec::len)
    }

    /// Passes delayed writes on, or fails them.
    pub(crate) fn release_writes(&self) {
        self.delayed.take().into_iter().flatten().for_each(|bio| self.submit(bio));
    }

    /// The writes since the last call.
    pub(crate) fn take_writes(&self) -> Vec<Range<u64>> {
        self.writes.take()
    }
}

impl BlockDevice for FailingDevice {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        if let Some(delayed) = self.delayed.borrow_mut().as_mut().filter(|_| bio.op == Op::Write) {
            return delayed.push(bio);
        }
        let (start, end) = (bio.sector.0, bio.end().0);
        if bio.op == Op::Write {
            self.writes.borrow_mut().push(start / 8..end / 8);
        }
        let hit = |(op, range): &(Op, Range<u64>)| {
            *op == bio.op && (bio.op == Op::Flush || (start < range.end && range.start < end))
        };
        if self.refused.borrow().iter().any(hit) {
            self.count.set(self.count.get() + 1);
            return bio.complete(Status::Io);
        }
        self.below.submit(bio);
    }
}
