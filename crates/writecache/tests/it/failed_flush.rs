// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FLUSHes that are under way together while a flush below fails: none of them succeeds, whichever
//! opener has sent it and whether the flush that failed was sent for it or for another.

use std::rc::Rc;

use crate::common::failing::FailingDevice;
use crate::common::stalled::StalledDevice;
use crate::common::{Fixture, put};
use block::{BlockDevice, Bufs, Class, Flags, Nanos, Op, Opener, Sector, Status, Target};
use sim::Machine;
use writecache::WriteCache;

const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

fn flush_by(cache: &WriteCache, opener: u32) -> reactor::BioFuture {
    let (flags, nothing) = (Flags::empty(), (Sector::ZERO, Sector::ZERO));
    let class = Class::Foreground;
    reactor::io_by(Opener(opener), cache, Op::Flush, flags, class, nothing, Bufs::new())
}

/// A device whose flushes can be stalled, and fail then.
fn watched(below: Rc<dyn BlockDevice>) -> (Rc<FailingDevice>, Rc<StalledDevice>) {
    let broken = FailingDevice::over(below);
    (broken.clone(), StalledDevice::over(broken))
}

fn flushes_beside_a_failing_one(options: &str, of_origin: bool) {
    let fixture = Fixture::small(options);
    let machine = Machine::boot(&fixture.world, 1);
    let (origin, device) =
        (watched(fixture.leaf(fixture.origin)), watched(fixture.leaf(fixture.cache)));
    let (below, above) = (origin.1.clone(), device.1.clone());
    let cache =
        WriteCache::new("wc", fixture.config.clone(), below, above, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        put(&*cache, 3, 1).await.unwrap();
        let (broken, stalled) = if of_origin { origin } else { device };
        stalled.hold(|bio| bio.op == Op::Flush);
        let mut flushes = Vec::new();
        for opener in [1, 1, 2] {
            flushes.push(flush_by(&cache, opener));
            reactor::sleep(Nanos::from_millis(10)).await;
        }
        assert_eq!(stalled.count(), 1, "one at a time");
        broken.refuse(Op::Flush, 0..1);
        stalled.release();
        broken.repair();
        for flush in flushes {
            assert_eq!(flush.await, Err(Status::Io));
        }
        assert_eq!(flush_by(&cache, 3).await, Err(Status::Io), "nothing is promised any more");
    });
    done.unwrap();
    machine.kill();
}

#[test]
fn flushes_beside_a_failing_one_of_the_cache_device_fail() {
    flushes_beside_a_failing_one(MANUAL, false);
}

#[test]
fn flushes_beside_a_failing_one_of_the_origin_fail() {
    flushes_beside_a_failing_one(&format!("metadata_only {MANUAL}"), true);
}
