// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache on two devices that fail on request, and the events that it has reported.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Nanos, Target};
use sim::Machine;
use writecache::{CacheEvent, WriteCache};

use super::Fixture;
use super::failing::FailingDevice;

pub(crate) struct FaultyCache {
    pub(crate) cache: Rc<WriteCache>,
    pub(crate) origin: Rc<FailingDevice>,
    pub(crate) device: Rc<FailingDevice>,
    pub(crate) events: Rc<RefCell<Vec<CacheEvent>>>,
}

fn faulty_cache(fixture: &Fixture) -> FaultyCache {
    let origin = FailingDevice::over(fixture.leaf(fixture.origin));
    let device = FailingDevice::over(fixture.leaf(fixture.cache));
    let (below, above) = (origin.clone(), device.clone());
    let cache =
        WriteCache::new("wc", fixture.config.clone(), below, above, fixture.sectors).unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let sink = events.clone();
    cache.on_event(move |event| sink.borrow_mut().push(event));
    FaultyCache { cache, origin, device, events }
}

/// One life of such a cache.
pub(crate) fn life(fixture: &Fixture, work: impl AsyncFnOnce(FaultyCache) + 'static) {
    let machine = Machine::boot(&fixture.world, 1);
    let faulty_cache = faulty_cache(fixture);
    let done = machine.block_on(async move {
        faulty_cache.cache.clone().resume().await.unwrap();
        work(faulty_cache).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
}

pub(crate) async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}
