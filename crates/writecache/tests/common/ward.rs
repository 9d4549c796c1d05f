// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache whose two devices can be told to fail, and what it told of that.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Nanos, Target};
use sim::Machine;
use writecache::{CacheEvent, WriteCache};

use super::Lab;
use super::broken::Broken;

pub(crate) struct Ward {
    pub(crate) cache: Rc<WriteCache>,
    pub(crate) origin: Rc<Broken>,
    pub(crate) device: Rc<Broken>,
    pub(crate) told: Rc<RefCell<Vec<CacheEvent>>>,
}

fn ward(lab: &Lab) -> Ward {
    let origin = Broken::over(lab.leaf(lab.origin));
    let device = Broken::over(lab.leaf(lab.cache));
    let (below, above) = (origin.clone(), device.clone());
    let cache = WriteCache::new("wc", lab.config.clone(), below, above, lab.sectors).unwrap();
    let told = Rc::new(RefCell::new(Vec::new()));
    let tell = told.clone();
    cache.on_event(move |trouble| tell.borrow_mut().push(trouble));
    Ward { cache, origin, device, told }
}

/// One life of such a cache.
pub(crate) fn life(lab: &Lab, work: impl AsyncFnOnce(Ward) + 'static) {
    let machine = Machine::boot(&lab.world, 1);
    let ward = ward(lab);
    let done = machine.block_on(async move {
        ward.cache.clone().resume().await.unwrap();
        work(ward).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
}

pub(crate) async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}
