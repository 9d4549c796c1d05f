// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that holds requests back, as a stalled one does, until it is told to let them go.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op};

type Filter = Box<dyn Fn(&Bio) -> bool>;

pub(crate) struct StalledDevice {
    below: Rc<dyn BlockDevice>,
    /// Writes that are still to be held.
    due: Cell<u32>,
    /// What else is to be held.
    chosen: RefCell<Option<Filter>>,
    held: RefCell<Vec<Bio>>,
}

impl StalledDevice {
    pub(crate) fn over(below: Rc<dyn BlockDevice>) -> Rc<StalledDevice> {
        let (due, chosen, held) = Default::default();
        Rc::new(StalledDevice { below, due, chosen, held })
    }

    /// Holds the next write.
    pub(crate) fn hold_next(&self) {
        self.due.set(1);
    }

    /// From now on holds what is `chosen`.
    pub(crate) fn hold(&self, chosen: impl Fn(&Bio) -> bool + 'static) {
        *self.chosen.borrow_mut() = Some(Box::new(chosen));
    }

    pub(crate) fn count(&self) -> usize {
        self.held.borrow().len()
    }

    /// Lets go what is held, and holds nothing more.
    pub(crate) fn release(&self) {
        *self.chosen.borrow_mut() = None;
        self.held.take().into_iter().for_each(|bio| self.below.submit(bio));
    }
}

impl BlockDevice for StalledDevice {
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
        if self.chosen.borrow().as_ref().is_some_and(|chosen| chosen(&bio)) {
            return self.held.borrow_mut().push(bio);
        }
        self.below.submit(bio);
    }
}
