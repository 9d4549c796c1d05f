// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way to the parts of an engine from a core, and what is in flight on it: core 0 waits for
//! that before it suspends the engine.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use block::{Base, Bio, BlockDevice, Limits, LocalFuture, OnIoError, Sector, Status};
use reactor::{Generation, OnDone, QuiesceCounter, chain};

/// A way whose bios are counted.
pub(super) struct CountedRoute {
    way: Rc<dyn BlockDevice>,
    in_flight: Rc<InFlight>,
}

struct InFlight {
    requests: QuiesceCounter,
    /// Those of all ways of this core.
    of_core: Rc<Cell<u64>>,
}

impl CountedRoute {
    pub(super) fn new(way: Rc<dyn BlockDevice>, of_core: Rc<Cell<u64>>) -> CountedRoute {
        let requests = QuiesceCounter::default();
        CountedRoute { way, in_flight: Rc::new(InFlight { requests, of_core }) }
    }
}

impl OnDone for InFlight {
    fn on_done(&self, _status: Status, tag: u64) {
        self.of_core.set(self.of_core.get() - 1);
        self.requests.leave(Generation::from_tag(tag));
    }
}

impl BlockDevice for CountedRoute {
    fn name(&self) -> &str {
        self.way.name()
    }

    fn limits(&self) -> Limits {
        self.way.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let InFlight { requests, of_core } = &*self.in_flight;
        of_core.set(of_core.get() + 1);
        bio.done = chain(bio.done, self.in_flight.clone(), requests.enter().tag());
        self.way.submit(bio);
    }
}

impl Base for CountedRoute {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        self.submit(Bio { sector, ..bio });
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.in_flight.requests.quiesced().await })
    }

    /// The engine has a status of its own: nobody watches its replicas.
    fn watch(&self, _watcher: Weak<dyn OnIoError>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::RefCell;

    use block::{Class, CoreId};
    use reactor::{Reactor, read, spawn, yield_now};
    use uring::Uring;

    /// Parts that keep bios until they are told to complete them.
    #[derive(Default)]
    struct StalledParts(RefCell<Vec<Bio>>);

    impl BlockDevice for StalledParts {
        fn name(&self) -> &'static str {
            "held"
        }

        fn limits(&self) -> Limits {
            Limits::new(Sector(64))
        }

        fn submit(&self, bio: Bio) {
            self.0.borrow_mut().push(bio);
        }
    }

    #[test]
    fn core_0_waits_for_bios_on_their_way_to_parts() {
        let reactor = Reactor::enter(CoreId(0), Box::new(Uring::new().unwrap()));
        reactor.block_on(async {
            let (held, of_core) = (Rc::new(StalledParts::default()), Rc::new(Cell::new(0)));
            let way = Rc::new(CountedRoute::new(held.clone(), of_core.clone()));
            let bufs = block::Buf::alloc(512);
            let bio = read(&*way, Class::Normal, Sector(0), bufs.into());
            let quiesced = Rc::new(Cell::new(false));
            let (waits, set) = (way.clone(), quiesced.clone());
            spawn(async move {
                waits.quiesced().await;
                set.set(true);
            });
            for _ in 0..3 {
                yield_now().await;
            }
            assert!(!quiesced.get() && of_core.get() == 1, "a bio is in flight");
            held.0.take().into_iter().for_each(|bio| bio.complete(Status::Ok));
            bio.await.unwrap();
            for _ in 0..3 {
                yield_now().await;
            }
            assert!(quiesced.get() && of_core.get() == 0);
        });
    }
}
