// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bio through stacked linear and striped devices allocates nothing in steady state.

use std::rc::Rc;

use crate::common::{Bench, filled};
use block::{BlockDevice, Class, Flags, Sector};

/// Sends `pairs` of a write and a read, each within one chunk.
async fn load(dev: Rc<dyn BlockDevice>, pairs: u64) {
    let bufs = filled(1, 8);
    for i in 0..pairs {
        let at = Sector(i * 8 % 1024);
        let (flags, class) = (Flags::FUA, Class::Normal);
        let one = reactor::write(&*dev, flags, class, at, bufs.clone());
        let two = reactor::read(&*dev, class, at, bufs.clone());
        assert_eq!((one.await, two.await), (Ok(()), Ok(())));
    }
}

#[test]
fn a_remapped_bio_allocates_nothing() {
    let bench = Bench::new(1);
    {
        let mut s = bench.state.borrow_mut();
        (s.latency_ns_max, s.logging) = (0, false);
    }
    let top = bench.run(|dm, _| async move {
        let table = "0 1024 striped 2 8 /ram/a/1024 0 /ram/b/1024 0";
        dm.create("low", None, Some(table)).await.unwrap();
        let table = "0 512 linear low 512\n512 512 linear low 0";
        dm.create("top", None, Some(table)).await.unwrap()
    });
    let allocations = |pairs| {
        let top = top.clone();
        let run = || bench.run(|_, _| load(top, pairs));
        allocation_counter::measure(run).count_total
    };
    allocations(1000); // tables and queues grow to their size
    let few = allocations(1);
    assert!(few > 0, "starting a task allocates, so the counter counts");
    assert_eq!(allocations(1000), few, "the number of bios makes no difference");
}
