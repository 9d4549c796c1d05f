// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The class and flags of the bios of writeback, for a throttle below.

use std::cell::RefCell;
use std::rc::Rc;

use crate::fixture::{Fixture, fill, set};
use block::{Bio, BlockDevice, Class, Limits, Op, Target};
use sim::Machine;

/// A backing device that records the class of each write.
struct ClassRecorder {
    below: Rc<dyn BlockDevice>,
    classes: RefCell<Vec<Class>>,
}

impl BlockDevice for ClassRecorder {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op == Op::Write {
            self.classes.borrow_mut().push(bio.class);
        }
        self.below.submit(bio);
    }
}

#[test]
fn pages_are_written_back_in_the_background_class() {
    for packed in ["0", "1"] {
        let lab = Fixture::new(256, 512, &format!("compressed_writeback {packed}"));
        let machine = Machine::boot(&lab.world, 1);
        let below = lab.world.borrow().leaf(lab.disk);
        let recorder = Rc::new(ClassRecorder { below, classes: RefCell::default() });
        let (device, zram) = (recorder.clone(), lab.clone());
        let done = machine.block_on(async move {
            let zram = zram.target_over(device);
            zram.clone().resume().await.unwrap();
            fill(&zram, 0..256, 1).await;
            set(&zram, "idle", "all").await.unwrap();
            set(&zram, "writeback", "idle").await.unwrap();
            zram.suspend().await.unwrap();
        });
        machine.shut_down();
        done.unwrap();
        let classes = recorder.classes.borrow();
        let all = classes.iter().all(|class| *class == Class::Background);
        assert!(!classes.is_empty() && all, "{classes:?}");
    }
}
