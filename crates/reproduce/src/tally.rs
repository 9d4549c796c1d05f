// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tally: a device that passes everything on and counts writes by their size.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op};

/// How many writes there were, by size: up to so many KiB, a power of two.
pub type Sizes = BTreeMap<u64, u64>;

/// The device.
pub struct Tally {
    device: Rc<dyn BlockDevice>,
    sizes: RefCell<Sizes>,
}

impl Tally {
    /// Before `device`.
    pub fn new(device: Rc<dyn BlockDevice>) -> Rc<Tally> {
        Rc::new(Tally { device, sizes: RefCell::default() })
    }

    /// What it has counted since the last time; begins anew.
    pub fn take(&self) -> Sizes {
        self.sizes.take()
    }
}

impl BlockDevice for Tally {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write {
            let kib = bio.len.bytes().div_ceil(1024).next_power_of_two();
            *self.sizes.borrow_mut().entry(kib).or_default() += 1;
        }
        self.device.submit(bio);
    }

    fn identity(&self) -> Option<String> {
        self.device.identity()
    }

    fn writer_throttled(&self) {
        self.device.writer_throttled();
    }
}
