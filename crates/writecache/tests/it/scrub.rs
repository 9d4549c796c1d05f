// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scrub: rot is found in idle time, before anybody needs the block; and clients come first.
use std::rc::Rc;

use block::{Nanos, Op, Status, Target};
use sim::Machine;
use writecache::{CacheEvent, Fault, WriteCache};

use crate::common::faulty_cache::life;
use crate::common::stalled::StalledDevice;
use crate::common::{Fixture, expect, fill, flush, get, number, put, say, suspend};

/// Nothing is committed or written back unless it is asked for. A MiB a second: a piece of 64
/// blocks every quarter of a second.
const SCRUBBED: &str =
    "high_watermark 100 low_watermark 100 autocommit_time 3600000 scrub_rate 1048576";

async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}

async fn set(cache: &Rc<WriteCache>, name: &str, value: &str) {
    cache.clone().set_attribute(name.to_owned(), value.to_owned()).await.unwrap();
}

fn figures(cache: &WriteCache) -> [u64; 2] {
    ["scrubbed_blocks", "scrub_errors"].map(|name| number(cache, name))
}

#[test]
fn sound_blocks_are_checked_at_the_rate_that_is_set() {
    let fixture = Fixture::new(4096, 4 << 10, SCRUBBED);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..512, 1).await;
            flush(&*cache).await;
            millis(4500).await;
            let [checked, errors] = figures(&cache);
            assert!((900..1200).contains(&checked), "{checked}: 256 blocks a second");
            assert_eq!(errors, 0);
            assert!(number(&cache, "scrub_passes") > 0);
            set(&cache, "scrub_rate", "0").await;
            let [checked, _] = figures(&cache);
            millis(5000).await;
            assert_eq!(figures(&cache), [checked, 0], "none at a rate of 0");
            set(&cache, "scrub_rate", "10485760").await;
            millis(1000).await;
            assert!(figures(&cache)[0] > checked + 1000, "ten times as fast");
        })
        .unwrap();
}

#[test]
fn rotten_clean_blocks_are_dropped_before_they_are_read() {
    let fixture = Fixture::small(SCRUBBED);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..100, 1).await;
        set(&w.cache, "cleaner", "0").await;
        // Written back, and kept as clean copies.
        set(&w.cache, "max_age", "1").await;
        millis(200).await;
        set(&w.cache, "max_age", "none").await;
        flush(&*w.cache).await;
        let clean = number(&w.cache, "clean_blocks");
        assert_eq!((clean, number(&w.cache, "dirty_blocks")), (100, 0));
        inner.rot_data_of(7);
        millis(3000).await;
        assert_eq!(number(&w.cache, "scrub_errors"), 1);
        assert_eq!(number(&w.cache, "clean_blocks"), 99);
        assert_eq!(w.events.borrow()[..], [], "nothing is lost");
        let reads = number(&w.cache, "checksum_errors");
        expect(&*w.cache, 0..100, 1).await;
        assert_eq!(number(&w.cache, "checksum_errors"), reads, "no client met it");
    });
}

#[test]
fn rotten_dirty_blocks_are_reported_before_they_are_read() {
    let fixture = Fixture::small(SCRUBBED);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..100, 1).await;
        flush(&*w.cache).await;
        inner.rot_data_of(7);
        millis(3000).await;
        let sector = block::Sector(7 * 8);
        assert_eq!(w.events.borrow()[..], [CacheEvent::RottenBlock { sector }]);
        assert_eq!((number(&w.cache, "bad_blocks"), number(&w.cache, "scrub_errors")), (1, 1));
        assert!(w.cache.problems()[0].contains("sectors 56"), "{:?}", w.cache.problems());
        assert_eq!(get(&*w.cache, 7).await, Err(Status::Checksum));
        put(&*w.cache, 7, 2).await.unwrap();
        expect(&*w.cache, 7..8, 2).await;
        expect(&*w.cache, 8..100, 1).await;
    });
}

#[test]
fn an_unreadable_block_is_found_among_others() {
    let fixture = Fixture::small(SCRUBBED);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill(&*w.cache, 0..100, 1).await;
        flush(&*w.cache).await;
        let slot = u64::from(inner.slot_of(7));
        let at = inner.geometry().slot_offset(u32::try_from(slot).unwrap()) / 4096;
        w.device.refuse(Op::Read, at..at + 1);
        millis(3000).await;
        assert_eq!((number(&w.cache, "bad_blocks"), number(&w.cache, "scrub_errors")), (1, 1));
        assert_eq!(number(&w.cache, "cache_read_errors"), 1);
        w.device.repair();
        expect(&*w.cache, 8..100, 1).await;
    });
}

#[test]
fn clients_and_writeback_come_first() {
    let fixture = Fixture::new(4096, 4 << 10, SCRUBBED);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..512, 1).await;
            flush(&*cache).await;
            millis(1000).await;
            let [checked, _] = figures(&cache);
            for n in 0..30 {
                get(&*cache, n).await.unwrap();
                millis(100).await;
            }
            assert_eq!(figures(&cache)[0], checked, "a client is there");
            millis(1000).await;
            let [checked, _] = figures(&cache);
            assert!(checked > 0);
            set(&cache, "writeback_rate_max", "100000").await;
            let flushing = cache.clone();
            reactor::spawn(async move { say(&flushing, "flush").await.map(drop).unwrap() });
            millis(500).await;
            let [checked, _] = figures(&cache);
            millis(3000).await;
            assert!(number(&cache, "dirty_blocks") > 0, "it takes twenty seconds");
            assert_eq!(figures(&cache)[0], checked, "writeback is under way");
        })
        .unwrap();
}

/// Whether a suspend ends while a read of scrub is under way.
fn suspend_overtakes_a_read(fault: Option<Fault>) -> bool {
    let mut fixture = Fixture::small(SCRUBBED);
    if let Some(fault) = fault {
        fixture.config.plant(fault);
    }
    let machine = Machine::boot(&fixture.world, 1);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (origin, config) = (fixture.leaf(fixture.origin), fixture.config.clone());
    let cache = WriteCache::new("wc", config, origin, device.clone(), fixture.sectors).unwrap();
    let overtakes = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..100, 1).await;
        flush(&*cache).await;
        device.hold(|bio| bio.op == Op::Read);
        millis(1000).await;
        assert!(device.count() > 0, "scrub reads");
        let ended = Rc::new(std::cell::Cell::new(false));
        let (tell, suspending) = (ended.clone(), cache.clone());
        reactor::spawn(async move {
            suspend(&suspending).await;
            tell.set(true);
        });
        millis(1000).await;
        let overtakes = ended.get();
        device.release();
        millis(1000).await;
        assert!(ended.get());
        let [checked, _] = figures(&cache);
        millis(3000).await;
        assert_eq!(figures(&cache)[0], checked, "a suspended cache is left alone");
        cache.clone().resume().await.unwrap();
        millis(3000).await;
        assert!(figures(&cache)[0] > checked);
        overtakes
    });
    overtakes.unwrap()
}

#[test]
fn a_suspend_waits_for_the_read_of_scrub() {
    assert!(!suspend_overtakes_a_read(None));
}

#[test]
fn a_suspend_that_does_not_wait_for_scrub_is_caught() {
    assert!(suspend_overtakes_a_read(Some(Fault::ScrubUnguarded)));
}
