// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches `cache_mode` back and forth beside clients and the operator, and knows what the cache
//! promises meanwhile.
use std::cell::Cell;
use std::rc::Rc;

use block::{Nanos, Target};
use sim::harness::OperatorState;
use sim::{Rng, WorldRef};
use writecache::WriteCache;

use super::number;

/// See the module.
#[derive(Default)]
pub(crate) struct ModeSwitch {
    /// Since when writes go through the cache.
    since: Cell<Option<Nanos>>,
    /// The status has said meanwhile that nothing needs the cache.
    is_empty: Cell<bool>,
    /// How often it has.
    pub(crate) emptied: Cell<u64>,
}

impl ModeSwitch {
    /// The cache is open, and its table says whether writes go through it.
    pub(crate) fn opened(&self, cache: &WriteCache) {
        let through = cache.table().contains("cache_mode writethrough");
        self.since.set(through.then(reactor::now));
    }

    /// Whether a change that began then and ends now is on the origin, and stays there if the
    /// process is killed.
    pub(crate) fn keeps(&self, began: Nanos) -> bool {
        self.is_empty.get() || self.since.get().is_some_and(|since| began > since)
    }

    /// Whether the cache device may be taken away.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_empty.get()
    }

    pub(crate) async fn work(
        self: Rc<Self>,
        world: WorldRef,
        cache: Rc<WriteCache>,
        operator: Rc<impl AsRef<OperatorState>>,
    ) {
        let operator = || (*operator).as_ref();
        let mut rng = Rng::new(world.borrow_mut().rng.next_u64());
        let most = rng.pick(&[100_000, 1_000_000, 5_000_000]);
        loop {
            reactor::sleep(Nanos(rng.below(most))).await;
            if operator().is_stopping() {
                return;
            }
            let mode = match (self.since.get(), rng.below(4)) {
                (Some(_), 0) => "writeback",
                (Some(_), _) => {
                    if number(&cache, "used_blocks") == 0 && !self.is_empty.replace(true) {
                        self.emptied.set(self.emptied.get() + 1);
                    }
                    continue;
                }
                (None, _) => "writethrough",
            };
            self.since.set(None);
            self.is_empty.set(false);
            let set = cache.clone().set_attribute("cache_mode".to_owned(), mode.to_owned()).await;
            if let Err(e) = set {
                return operator().fail(e.chain());
            }
            self.since.set((mode == "writethrough").then(reactor::now));
        }
    }
}
