// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pause of what the cache does in the background, before a suspend.
use std::cell::RefCell;
use std::rc::Rc;

use block::{BlockDevice, Error, Nanos, Op, Target};
use sim::Machine;
use writecache::WriteCache;

use crate::common::stalled::StalledDevice;
use crate::common::{BLOCK, Fixture, expect, fill, flush, number, put, say, suspend};
use crate::read_cache::set;

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

async fn millis(n: u64) {
    reactor::sleep(Nanos::from_millis(n)).await;
}

/// What becomes of `work`, when it is known.
fn outcome<T: 'static>(work: impl Future<Output = T> + 'static) -> Rc<RefCell<Option<T>>> {
    let outcome = Rc::new(RefCell::new(None));
    let tell = outcome.clone();
    reactor::spawn(async move {
        tell.replace(Some(work.await));
    });
    outcome
}

fn pause(cache: &Rc<WriteCache>) -> Rc<RefCell<Option<()>>> {
    outcome(cache.clone().pause_background(true))
}

/// Ends a flush that would take six seconds, and returns its error.
async fn interrupt_flush(cache: &Rc<WriteCache>) -> Error {
    let flushing = cache.clone();
    let flushed = outcome(async move { say(&flushing, "flush").await });
    millis(1000).await;
    assert!(flushed.borrow().is_none(), "it takes six seconds");
    let began = reactor::now();
    cache.clone().pause_background(true).await;
    assert!(reactor::now().0 - began.0 < 500_000_000, "what is under way ends soon");
    millis(1).await;
    flushed.take().expect("it has ended").expect_err("blocks are left")
}

#[test]
fn a_flush_ends_with_a_pause_and_can_be_done_again() {
    let options = format!("{MANUAL} writeback_rate_max 1000000");
    let fixture = Fixture::new(4096, 16 << 10, &options);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..1500, 1).await;
            let e = interrupt_flush(&cache).await.chain();
            assert!(e.contains("flush ended by a suspend: "), "{e}");
            let left = number(&cache, "dirty_blocks");
            millis(3000).await;
            assert_eq!(number(&cache, "dirty_blocks"), left, "nothing is written back");
            put(&*cache, 4000, 1).await.unwrap();
            flush(&*cache).await;
            expect(&*cache, 0..1500, 1).await;
            cache.clone().pause_background(false).await;
            say(&cache, "flush").await.unwrap();
            assert_eq!(number(&cache, "dirty_blocks"), 0);
        })
        .unwrap();
}

/// The suspend ended the flush that it had begun, for the pause, and failed: an upgrade was refused
/// where `flush_on_suspend` or `cleaner` had been sent before, and the flush was forgotten.
#[test]
fn a_suspend_after_a_pause_leaves_its_flush_to_the_next() {
    let fixture = Fixture::new(4096, 16 << 10, MANUAL);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..500, 1).await;
            say(&cache, "flush_on_suspend").await.unwrap();
            cache.clone().pause_background(true).await;
            let began = reactor::now();
            suspend(&cache).await;
            assert!(reactor::now().0 - began.0 < 100_000_000);
            assert_eq!(number(&cache, "dirty_blocks"), 500);
            cache.clone().resume().await.unwrap();
            suspend(&cache).await;
            assert_eq!(number(&cache, "dirty_blocks"), 0, "it was kept");
            cache.clone().resume().await.unwrap();
            fill(&*cache, 0..500, 2).await;
            suspend(&cache).await;
            assert_eq!(number(&cache, "dirty_blocks"), 500, "once");
        })
        .unwrap();
}

/// The task slept on for the time that was set before: what no FLUSH covered was in danger for an
/// hour, not for a second.
#[test]
fn a_shorter_autocommit_time_holds_at_once() {
    let fixture = Fixture::new(4096, 16 << 10, MANUAL);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..20, 1).await;
            millis(10).await;
            set(&cache, "autocommit_time", "1000").await;
            millis(500).await;
            assert_eq!(number(&cache, "uncommitted_blocks"), 20);
            millis(600).await;
            assert_eq!(number(&cache, "uncommitted_blocks"), 0);
            set(&cache, "autocommit_time", "3600000").await;
            put(&*cache, 30, 1).await.unwrap();
            millis(60_000).await;
            assert_eq!(number(&cache, "uncommitted_blocks"), 1);
        })
        .unwrap();
}

/// A table whose place another one was to take, and that stays.
#[test]
fn a_cache_that_stays_is_not_flushed_by_its_suspend() {
    let fixture = Fixture::new(4096, 16 << 10, MANUAL);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..20, 1).await;
            cache.clone().empty().await.unwrap();
            cache.cancel_empty();
            fill(&*cache, 0..20, 2).await;
            suspend(&cache).await;
            assert_eq!(number(&cache, "dirty_blocks"), 20);
            cache.clone().resume().await.unwrap();
            say(&cache, "flush_on_suspend").await.unwrap();
            cache.clone().empty().await.unwrap();
            cache.cancel_empty();
            fill(&*cache, 0..20, 3).await;
            suspend(&cache).await;
            assert_eq!(number(&cache, "dirty_blocks"), 0, "the operator has asked for it");
        })
        .unwrap();
}

#[test]
fn a_pause_stops_writeback_for_free_slots() {
    let options = "high_watermark 20 low_watermark 10 writeback_rate_max 1000000";
    let fixture = Fixture::new(4096, 8 << 10, options);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..1000, 1).await;
            millis(500).await;
            assert!(number(&cache, "dirty_blocks") < 1000, "writeback has begun");
            cache.clone().pause_background(true).await;
            let left = number(&cache, "dirty_blocks");
            assert!(left > 700, "{left}");
            millis(2000).await;
            assert_eq!(number(&cache, "dirty_blocks"), left, "nothing is written back");
            cache.clone().pause_background(false).await;
            millis(1000).await;
            assert!(number(&cache, "dirty_blocks") < left, "it goes on");
        })
        .unwrap();
}

#[test]
fn a_resume_of_the_device_ends_the_pause() {
    let options = format!("{MANUAL} writeback_rate_max 1000000");
    let fixture = Fixture::new(4096, 8 << 10, &options);
    fixture
        .life(async |cache| {
            fill(&*cache, 0..1500, 1).await;
            interrupt_flush(&cache).await;
            suspend(&cache).await;
            cache.clone().resume().await.unwrap();
            say(&cache, "flush").await.unwrap();
            assert_eq!(number(&cache, "dirty_blocks"), 0);
        })
        .unwrap();
}

/// A cache before an origin that delays what it is told to.
fn on_stalled_origin(
    options: &str,
    work: impl AsyncFnOnce(Rc<WriteCache>, Rc<StalledDevice>) + 'static,
) {
    let fixture = Fixture::small(options);
    let machine = Machine::boot(&fixture.world, 1);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let device = fixture.leaf(fixture.cache);
    let (config, sectors) = (fixture.config.clone(), fixture.sectors);
    let cache = WriteCache::new("wc", config, origin.clone(), device, sectors).unwrap();
    machine
        .block_on(async move {
            cache.clone().resume().await.unwrap();
            work(cache, origin).await;
        })
        .unwrap();
}

#[test]
fn a_pause_waits_for_writes_and_for_the_flush_of_the_origin() {
    on_stalled_origin(MANUAL, async |cache, origin| {
        for (stalled, what) in [(Op::Write, "write"), (Op::Flush, "flush")] {
            fill(&*cache, 0..20, 1).await;
            origin.hold(move |bio| bio.op == stalled);
            let flushing = cache.clone();
            let flushed = outcome(async move { say(&flushing, "flush").await });
            millis(500).await;
            assert!(origin.count() > 0, "a {what} is delayed");
            let paused = pause(&cache);
            millis(500).await;
            assert!(paused.borrow().is_none(), "a {what} of the origin is under way");
            origin.release();
            millis(500).await;
            assert!(paused.borrow().is_some(), "the {what} has ended");
            assert!(flushed.borrow().is_some());
            cache.clone().pause_background(false).await;
            say(&cache, "flush").await.unwrap();
        }
    });
}

#[test]
fn writers_that_wait_for_a_slot_get_one_during_a_pause() {
    let options = "high_watermark 100 low_watermark 100 autocommit_time 1";
    let fixture = Fixture::new(4096, 1024, options);
    fixture
        .life(async |cache| {
            cache.clone().pause_background(true).await;
            let slots = number(&cache, "total_blocks");
            assert!(slots < 1000, "{slots}");
            // More than the cache holds.
            fill(&*cache, 0..2 * slots, 1).await;
            assert!(number(&cache, "dirty_blocks") <= slots);
            expect(&*cache, 0..2 * slots, 1).await;
        })
        .unwrap();
}

#[test]
fn commits_have_room_in_the_log_during_a_pause() {
    let fixture = Fixture::new(4096, 2048, MANUAL);
    fixture
        .life(async |cache| {
            cache.clone().pause_background(true).await;
            let checkpoints = number(&cache, "checkpoints");
            let units = cache.limits().capacity.bytes() / BLOCK as u64;
            for n in 0..units {
                put(&*cache, n % 100, n).await.unwrap();
                flush(&*cache).await;
            }
            assert!(number(&cache, "checkpoints") > checkpoints, "the log went round");
        })
        .unwrap();
}
