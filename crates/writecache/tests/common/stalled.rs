// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that stalls: it delays chosen requests until the test releases them.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op};

type Filter = Box<dyn Fn(&Bio) -> bool>;

pub(crate) struct StalledDevice {
    below: Rc<dyn BlockDevice>,
    /// How many of the next writes it delays.
    due: Cell<u32>,
    /// Which other requests it delays.
    chosen: RefCell<Option<Filter>>,
    delayed: RefCell<Vec<Bio>>,
}

impl StalledDevice {
    pub(crate) fn over(below: Rc<dyn BlockDevice>) -> Rc<StalledDevice> {
        let (due, chosen, delayed) = Default::default();
        Rc::new(StalledDevice { below, due, chosen, delayed })
    }

    /// Delays the next write.
    pub(crate) fn hold_next(&self) {
        self.due.set(1);
    }

    /// Delays requests for which `chosen` is true, from now on.
    pub(crate) fn hold(&self, chosen: impl Fn(&Bio) -> bool + 'static) {
        *self.chosen.borrow_mut() = Some(Box::new(chosen));
    }

    pub(crate) fn count(&self) -> usize {
        self.delayed.borrow().len()
    }

    /// Passes delayed requests on, and delays no more.
    pub(crate) fn release(&self) {
        *self.chosen.borrow_mut() = None;
        self.delayed.take().into_iter().for_each(|bio| self.below.submit(bio));
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
            return self.delayed.borrow_mut().push(bio);
        }
        if self.chosen.borrow().as_ref().is_some_and(|chosen| chosen(&bio)) {
            return self.delayed.borrow_mut().push(bio);
        }
        self.below.submit(bio);
    }
}
