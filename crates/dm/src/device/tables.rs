// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two table slots of a device, and the attributes that set it up while it has no live table.
use std::cell::RefCell;
use std::rc::Rc;

use crate::live::Table;
use crate::setup::SetupAttributes;

#[derive(Default)]
pub(super) struct Tables {
    pub(super) live: RefCell<Option<Rc<Table>>>,
    pub(super) inactive: RefCell<Option<Rc<Table>>>,
    pub(super) setup: RefCell<Option<Rc<dyn SetupAttributes>>>,
}

impl Tables {
    /// Drops both tables. Dropping one may close devices, so no slot is borrowed meanwhile.
    pub(super) fn clear(&self) {
        drop(self.live.take());
        drop(self.inactive.take());
    }

    /// No live table, but attributes that can give it one.
    pub(super) fn is_unconfigured(&self) -> bool {
        self.live.borrow().is_none() && self.setup.borrow().is_some()
    }
}
