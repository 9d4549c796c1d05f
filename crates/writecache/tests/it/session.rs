// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel's target showed step by step, in a session on Linux 6.1 and in traces by hand,
//! replayed: status lines, order of writeback, and what a crash in the middle leaves.
//!
//! Where ours differs on purpose: the number of blocks (another format); FLUSH counts are those of
//! the client alone, where the session's file system sent some of its own; and a committed block
//! that is overwritten goes to a new place and is uncommitted until the next FLUSH, where the
//! kernel overwrites it in place.

use std::rc::Rc;

use crate::common::recording::RecordingDevice;
use crate::common::{
    self, Fixture, expect, fields, fill, flush, get, number, pattern, put, put_with, say,
};
use block::{Flags, Target};
use sim::{Machine, PowerCut};
use writecache::WriteCache;

const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// Fields: used blocks (all but free), under writeback, then the ten counters.
fn shown(cache: &WriteCache) -> (u64, u64, Vec<u64>) {
    let f = fields(cache);
    assert_eq!(f.len(), 14);
    assert_eq!(f[0], 0, "error");
    (f[1] - f[2], f[3], f[4..].to_vec())
}

#[test]
fn flush_on_suspend_and_cleaner_match_the_kernels_session() {
    let fixture = Fixture::new(
        1024,
        2048,
        "start_sector 1024 high_watermark 60 low_watermark 40 writeback_jobs 16 \
         autocommit_blocks 32 autocommit_time 500 max_age 10000",
    );
    let table = fixture.config.table();
    let session = fixture.life(async move |cache| {
        fill(&*cache, 0..16, 1).await;
        flush(&*cache).await;
        expect(&*cache, 0..16, 1).await;
        say(&cache, "flush_on_suspend").await.unwrap();
        assert_eq!(shown(&cache), (16, 0, vec![16, 16, 16, 0, 0, 0, 16, 0, 1, 0]));
        common::suspend(&cache).await;
        assert_eq!(shown(&cache), (0, 0, vec![16, 16, 16, 0, 0, 0, 16, 0, 1, 0]), "suspended");
        cache.clone().resume().await.unwrap();
        assert_eq!(shown(&cache), (0, 0, vec![16, 16, 16, 0, 0, 0, 16, 0, 1, 0]), "resumed");
        say(&cache, "cleaner").await.unwrap();
        fill(&*cache, 100..104, 1).await;
        flush(&*cache).await;
        assert_eq!(shown(&cache), (0, 0, vec![16, 16, 20, 0, 0, 4, 16, 0, 2, 0]), "cleaner");
        assert_eq!(cache.table(), table, "which the message does not change");
    });
    session.unwrap();
}

#[test]
fn metadata_only_and_cleaner_match_the_kernels_session() {
    for options in ["metadata_only pause_writeback 3000", "cleaner"] {
        let fixture = Fixture::new(1024, 2048, options);
        let table = fixture.config.table();
        assert!(table.ends_with(options), "{table}");
        let fresh = fixture.life(async |cache| shown(&cache)).unwrap();
        assert_eq!(fresh, (0, 0, vec![0; 10]));
    }
}

/// The trace by hand: blocks 10 and 1 (sectors 80 and 8), a FLUSH, block 10 again, a FLUSH.
async fn trace(cache: &Rc<WriteCache>) {
    let uncommitted = || number(cache, "uncommitted_blocks");
    put(&**cache, 10, 1).await.unwrap();
    assert_eq!(uncommitted(), 1, "step 1");
    put(&**cache, 1, 1).await.unwrap();
    assert_eq!(uncommitted(), 2, "step 2");
    flush(&**cache).await;
    assert_eq!(uncommitted(), 0, "step 3");
    put(&**cache, 10, 2).await.unwrap();
    assert_eq!(shown(cache), (2, 0, vec![0, 0, 3, 0, 1, 0, 2, 0, 1, 0]), "step 4: a hit committed");
    flush(&**cache).await;
    assert_eq!(uncommitted(), 0, "step 5");
}

#[test]
fn a_flush_message_writes_blocks_in_ascending_order() {
    let fixture = Fixture::small(MANUAL);
    let machine = Machine::boot(&fixture.world, 1);
    let origin = RecordingDevice::over(fixture.leaf(fixture.origin));
    let (below, device) = (origin.clone(), fixture.leaf(fixture.cache));
    let cache =
        WriteCache::new("wc", fixture.config.clone(), below, device, fixture.sectors).unwrap();
    let work = async move {
        cache.clone().resume().await.unwrap();
        trace(&cache).await;
        say(&cache, "flush").await.unwrap();
    };
    machine.block_on(work).unwrap();
    assert_eq!(origin.take_written_blocks(), [1..2, 10..11], "step 8: 8, then 80");
}

/// Steps 6 and 7: block 2 is written and flushed, and the power goes on the way, at each step.
#[test]
fn a_crash_during_a_flush_keeps_flushed_data_and_tears_no_block() {
    let (mut before, mut after) = (0, 0);
    for steps in 1.. {
        let fixture = Fixture::small(MANUAL);
        let machine = Machine::boot(&fixture.world, 1);
        let cache = fixture.target();
        let target = cache.clone();
        let traced = async move {
            target.clone().resume().await.unwrap();
            trace(&target).await;
        };
        machine.block_on(traced).unwrap();
        let now = fixture.world.borrow().steps();
        fixture.world.borrow_mut().power_cut_at(Some(PowerCut::Step(now + steps)));
        let last = async move {
            put(&*cache, 2, 1).await.unwrap();
            flush(&*cache).await;
        };
        let flushed = machine.block_on(last).is_ok();
        fixture.world.borrow_mut().power_cut_at(None);
        machine.power_cut();
        let found = fixture.life(async |cache| {
            expect(&*cache, 10..11, 2).await;
            expect(&*cache, 1..2, 1).await;
            get(&*cache, 2).await.unwrap()
        });
        let found = found.unwrap();
        let is_new = found == pattern(2, 1);
        assert!(is_new || (!flushed && found == vec![0; common::BLOCK]), "step {steps}");
        before += u32::from(!is_new);
        after += u32::from(is_new);
        if flushed {
            break;
        }
    }
    assert!(before >= 3 && after >= 1, "{before} without the block, {after} with it");
}

#[test]
fn a_fua_write_is_there_after_a_crash_without_any_flush() {
    // The kernel's SSD mode loses it until the next commit, up to a second later.
    let fixture = Fixture::small(MANUAL);
    let machine = Machine::boot(&fixture.world, 1);
    let cache = fixture.target();
    let work = async move {
        cache.clone().resume().await.unwrap();
        put_with(&*cache, Flags::FUA, 10, 1).await.unwrap();
    };
    machine.block_on(work).unwrap();
    machine.power_cut();
    fixture.life(async |cache| expect(&*cache, 10..11, 1).await).unwrap();
}
