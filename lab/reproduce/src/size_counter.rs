// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that passes every bio on and counts writes by their size.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Op};

/// Numbers of writes by size. A key is the upper bound of the size in KiB, a power of two.
pub type SizeCounts = BTreeMap<u64, u64>;

/// The device that counts.
pub struct SizeCounter {
    device: Rc<dyn BlockDevice>,
    sizes: RefCell<SizeCounts>,
}

impl SizeCounter {
    /// A counter in front of `device`.
    pub fn new(device: Rc<dyn BlockDevice>) -> Rc<SizeCounter> {
        Rc::new(SizeCounter { device, sizes: RefCell::default() })
    }

    /// Returns the counts since the last call and sets them to zero.
    pub fn take(&self) -> SizeCounts {
        self.sizes.take()
    }
}

impl BlockDevice for SizeCounter {
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
