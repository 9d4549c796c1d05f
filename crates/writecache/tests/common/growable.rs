// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache device that an operator makes larger, and a cache that takes the new space while clients
//! work.
use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Nanos, Sector};
use sim::harness::OperatorState;
use sim::{Rng, WorldRef};
use writecache::WriteCache;

use super::{number, say};

/// The beginning of a device, as long as `size` says.
pub(crate) struct Growable {
    below: Rc<dyn BlockDevice>,
    size: Rc<Cell<Sector>>,
}

impl Growable {
    pub(crate) fn over(below: Rc<dyn BlockDevice>, size: &Rc<Cell<Sector>>) -> Rc<Growable> {
        Rc::new(Growable { below, size: size.clone() })
    }
}

impl BlockDevice for Growable {
    fn name(&self) -> &str {
        self.below.name()
    }
    fn limits(&self) -> Limits {
        Limits { capacity: self.size.get(), ..self.below.limits() }
    }
    fn submit(&self, bio: Bio) {
        assert!(bio.end() <= self.size.get(), "beyond the end: {bio:?}");
        self.below.submit(bio);
    }
}

/// Refusals in a row after which growth is given up: a workload that hangs must leave a simulator
/// that has nothing to do, which is what ends its run. Chosen: far more than any suspend lasts.
const REFUSED_MAX: u32 = 20_000;

/// Makes the device of a seed larger now and then, at most as large as the disk below, and tells
/// the cache; in every life again.
#[derive(Clone)]
pub(crate) struct Growth {
    pub(crate) size: Rc<Cell<Sector>>,
    most: Sector,
    /// How often the cache has grown, in all lives.
    pub(crate) grown: Rc<Cell<u64>>,
}

impl Growth {
    pub(crate) fn of(size: Sector, most: Sector) -> Growth {
        Growth { size: Rc::new(Cell::new(size)), most, grown: Rc::default() }
    }

    pub(crate) async fn work(
        self,
        world: WorldRef,
        cache: Rc<WriteCache>,
        operator: Rc<impl AsRef<OperatorState>>,
        errors_allowed: bool,
    ) {
        let mut rng = Rng::new(world.borrow_mut().rng.next_u64());
        let most = rng.pick(&[100_000, 1_000_000, 5_000_000]);
        let mut refused = 0;
        while refused < REFUSED_MAX {
            reactor::sleep(Nanos(rng.below(most))).await;
            let operator = (*operator).as_ref();
            if operator.is_stopping() {
                return;
            }
            if rng.below(2) == 0 {
                let more = Sector(rng.range(1, 400));
                self.size.set(self.most.min(self.size.get() + more));
            }
            let before = number(&cache, "total_blocks");
            let outcome = say(&cache, "grow").await;
            refused = if outcome.is_ok() { 0 } else { refused + 1 };
            match outcome {
                Ok(_) if number(&cache, "total_blocks") > before => {
                    self.grown.set(self.grown.get() + 1);
                }
                Ok(_) if self.size.get() == self.most => return,
                Ok(_) => {}
                Err(e) => {
                    let why = e.chain();
                    let waits = why.contains("too little") || why.contains("suspended");
                    if !waits && !errors_allowed {
                        return operator.fail(why);
                    }
                }
            }
        }
    }
}
