// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The origin of a cache that is missing: read-only, so that nothing is lost when the cache is
//! back.
use crate::common::{Fixture, fill, flush, get, pattern, put, say};
use block::{BlockDevice, Class, Flags, Sector, Status, Target};
use sim::Machine;
use writecache::{Fault, StaleOrigin};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// Writes with the cache, without it and with it again. Returns whether all blocks are then as they
/// were with the cache.
fn is_as_with_the_cache(fault: Option<Fault>) -> bool {
    let mut fixture = Fixture::small(MANUAL);
    fixture.config.plant(fault);
    let written = fixture.life(async |cache| {
        fill(&*cache, 0..8, 1).await;
        say(&cache, "flush").await.unwrap();
        fill(&*cache, 0..4, 2).await;
        flush(&*cache).await;
    });
    written.unwrap();
    let machine = Machine::boot(&fixture.world, 1);
    let (origin, config) = (fixture.leaf(fixture.origin), fixture.config.clone());
    let name = config.cache.clone();
    let stale = StaleOrigin::new("wc", config, name, origin, fixture.sectors).unwrap();
    assert!(stale.is_stale() && stale.unsaved().unwrap().is_missing);
    let work = async move {
        stale.clone().resume().await.unwrap();
        for block in 0..8 {
            let read = get(&*stale, block).await.unwrap();
            assert_eq!(read, pattern(block, 1), "the origin's");
        }
        let refused = Err(Status::ReadOnly);
        let (class, at, len) = (Class::Normal, Sector(0), Sector(8));
        for block in 2..6 {
            assert!(fault.is_some() || put(&*stale, block, 3).await == refused);
            if fault.is_some() {
                put(&*stale, block, 3).await.unwrap();
            }
        }
        assert_eq!(reactor::discard(&*stale, class, at, len).await, refused);
        let zeroed = reactor::write_zeroes(&*stale, Flags::FUA, class, at, len).await;
        assert_eq!(zeroed, refused);
        reactor::flush(&*stale, class).await.unwrap();
        stale.suspend().await.unwrap();
    };
    machine.block_on(work).unwrap();
    drop(machine);
    let read = fixture.life(async |cache| {
        let mut is_right = true;
        for block in 0..8 {
            let version = if block < 4 { 2 } else { 1 };
            is_right &= get(&*cache, block).await.unwrap() == pattern(block, version);
        }
        is_right
    });
    read.unwrap()
}

#[test]
fn without_its_cache_the_origin_stays_as_it_is() {
    assert!(is_as_with_the_cache(None));
    assert!(!is_as_with_the_cache(Some(Fault::WriteWithoutCache)), "the fault was not found");
}
