// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FLUSHes that are under way together while a flush of the backing device fails: none succeeds,
//! whichever opener has sent it and whether the flush that failed was sent for it or for another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::media::{Fixture, put};
use block::{Bio, BlockDevice, Bufs, Class, Flags, Limits, Nanos, Op, Opener, Sector};
use block::{Status, Target};
use sim::Machine;

/// Holds flushes, and fails those that it has held.
struct FlushHolder {
    below: Rc<dyn BlockDevice>,
    holds: Cell<bool>,
    held: RefCell<Vec<Bio>>,
}

impl BlockDevice for FlushHolder {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        self.below.limits()
    }
    fn submit(&self, bio: Bio) {
        if bio.op == Op::Flush && self.holds.get() {
            return self.held.borrow_mut().push(bio);
        }
        self.below.submit(bio);
    }
}

#[test]
fn flushes_beside_a_failing_one_fail() {
    for cores in [1, 2] {
        let mut lab = Fixture::new(300, 8000);
        lab.cores = cores;
        let machine = Machine::boot(&lab.world, cores);
        let done = machine.block_on(async move {
            let below = lab.world.borrow().leaf(lab.disk);
            let (holds, held) = Default::default();
            let disk = Rc::new(FlushHolder { below, holds, held });
            let zram = lab.target_over(disk.clone());
            zram.clone().resume().await.expect("it opens");
            put(&*zram, 3, 1, Flags::empty()).await.expect("a write");
            disk.holds.set(true);
            let flush = |opener| {
                let (flags, class) = (Flags::empty(), Class::Foreground);
                let nothing = (Sector::ZERO, Sector::ZERO);
                let opener = Opener(opener);
                reactor::io_by(opener, &*zram, Op::Flush, flags, class, nothing, Bufs::new())
            };
            let mut flushes = Vec::new();
            for opener in [1, 1, 2] {
                flushes.push(flush(opener));
                reactor::sleep(Nanos::from_millis(10)).await;
            }
            disk.holds.set(false);
            let held = disk.held.take();
            assert_eq!(held.len(), 1, "one at a time");
            held.into_iter().for_each(|bio| bio.complete(Status::Io));
            for flush in flushes {
                assert_eq!(flush.await, Err(Status::Io));
            }
            assert_eq!(flush(3).await, Err(Status::Io), "nothing is promised any more");
        });
        done.expect("no power cut was planned");
        machine.kill();
    }
}
