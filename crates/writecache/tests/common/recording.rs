// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that passes every bio on and records it, in the order of submission.
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Class, Flags, Limits, Op};

pub(crate) struct RecordingDevice {
    below: Rc<dyn BlockDevice>,
    seen: RefCell<Vec<(Op, Range<u64>, Class)>>,
    flags: RefCell<Vec<Flags>>,
}

impl RecordingDevice {
    pub(crate) fn over(below: Rc<dyn BlockDevice>) -> Rc<RecordingDevice> {
        Rc::new(RecordingDevice { below, seen: RefCell::default(), flags: RefCell::default() })
    }

    /// Operation and sectors of every bio since the last call.
    pub(crate) fn take(&self) -> Vec<(Op, Range<u64>)> {
        self.seen.take().into_iter().map(|(op, sectors, _)| (op, sectors)).collect()
    }

    /// Flags of the writes since the last call.
    pub(crate) fn take_write_flags(&self) -> Vec<Flags> {
        self.flags.take()
    }

    /// The classes of the writes since the last call.
    pub(crate) fn take_write_classes(&self) -> Vec<Class> {
        let writes = self.seen.take().into_iter().filter(|(op, _, _)| *op == Op::Write);
        writes.map(|(_, _, class)| class).collect()
    }

    /// The writes since the last call, as ranges of 4096-byte blocks.
    pub(crate) fn take_written_blocks(&self) -> Vec<Range<u64>> {
        let writes = self.take().into_iter().filter(|(op, _)| *op == Op::Write);
        writes.map(|(_, sectors)| sectors.start / 8..sectors.end / 8).collect()
    }
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write {
            self.flags.borrow_mut().push(bio.flags);
        }
        self.seen.borrow_mut().push((bio.op, bio.sector.0..bio.end().0, bio.class));
        self.below.submit(bio);
    }
}
