// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that holds writes back, as a stalled one does, until it is told to let them go.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op};

pub(crate) struct Held {
    below: Rc<dyn BlockDevice>,
    /// Writes that are still to be held.
    due: Cell<u32>,
    held: RefCell<Vec<Bio>>,
}

impl Held {
    pub(crate) fn over(below: Rc<dyn BlockDevice>) -> Rc<Held> {
        Rc::new(Held { below, due: Cell::new(0), held: RefCell::default() })
    }

    /// Holds the next write.
    pub(crate) fn hold_next(&self) {
        self.due.set(1);
    }

    pub(crate) fn count(&self) -> usize {
        self.held.borrow().len()
    }

    /// Lets go what is held.
    pub(crate) fn release(&self) {
        self.held.take().into_iter().for_each(|bio| self.below.submit(bio));
    }
}

impl BlockDevice for Held {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write && self.due.get() > 0 {
            self.due.set(self.due.get() - 1);
            return self.held.borrow_mut().push(bio);
        }
        self.below.submit(bio);
    }
}
