// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filled writes that the origin refuses: the gaps that they may have damaged are kept, written
//! again, or reported.

use std::rc::Rc;

use crate::common::faulty_cache::{FaultyCache, life, millis};
use crate::common::{self, Fixture, get, number, pattern, put, say};
use block::{Op, Sector, Status};
use policy::destage::Costs;
use writecache::{CacheEvent, Fault};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";

/// An origin of 40 blocks of version 1, on which every gap is worth being filled.
fn filling_lab(cache_kib: u64, fault: Option<Fault>) -> Fixture {
    let mut fixture = Fixture::new(4096, cache_kib, MANUAL);
    fixture.config.assume_costs(Some(Costs::with_head(1_000_000_000, 1, 1)));
    fixture.config.plant(fault);
    for block in 0..40 {
        fixture.world.borrow_mut().poke(fixture.origin, common::at(block), &pattern(block, 1));
    }
    fixture
}

async fn fill_even(w: &FaultyCache, blocks: std::ops::Range<u64>) {
    for block in blocks.step_by(2) {
        put(&*w.cache, block, 2).await.unwrap();
    }
}

/// The filled write fails, and so does every write and read of these sectors from then on: what
/// was in the gaps is in the cache. Whether all of it is.
fn gaps_are_kept(fault: Option<Fault>) -> bool {
    let fixture = filling_lab(1024, fault);
    let kept = Rc::new(std::cell::Cell::new(false));
    let set = kept.clone();
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill_even(&w, 0..40).await;
        w.origin.refuse(Op::Write, 0..40);
        say(&w.cache, "flush").await.unwrap_err();
        w.origin.refuse(Op::Read, 0..40);
        for block in 0..39 {
            if get(&*w.cache, block).await != Ok(pattern(block, 2 - block % 2)) {
                return;
            }
        }
        assert_eq!(number(&w.cache, "dirty_blocks"), 39);
        assert!(!w.events.borrow().iter().any(|t| matches!(t, CacheEvent::GapLost { .. })));
        w.origin.repair();
        say(&w.cache, "flush").await.unwrap();
        for block in 0..40 {
            let version = if block < 39 { 2 - block % 2 } else { 1 };
            assert!(inner.origin_block(block) == pattern(block, version), "block {block}");
        }
        set.set(true);
    });
    kept.get()
}

#[test]
fn gaps_of_a_refused_filled_write_are_kept_in_the_cache() {
    assert!(gaps_are_kept(None));
    assert!(!gaps_are_kept(Some(Fault::ForgetFailedGaps)), "nobody would see it");
}

/// A read during a filled write that has damaged its gaps and not ended yet. Whether it returns
/// what was there.
fn a_read_beside_it_is_right(fault: Option<Fault>) -> bool {
    let fixture = filling_lab(1024, fault);
    let right = Rc::new(std::cell::Cell::new(false));
    let (set, inner) = (right.clone(), fixture.clone());
    life(&fixture, async move |w| {
        fill_even(&w, 0..40).await;
        w.origin.refuse(Op::Write, 0..40);
        w.origin.hold_writes();
        let cache = w.cache.clone();
        reactor::spawn(async move { drop(say(&cache, "flush").await) });
        while w.origin.held_writes() == 0 {
            millis(1).await;
        }
        inner.world.borrow_mut().poke(inner.origin, common::at(7), &[0xA5; 512]);
        let cache = w.cache.clone();
        reactor::spawn(async move { set.set(get(&*cache, 7).await == Ok(pattern(7, 1))) });
        millis(10).await;
        w.origin.release_writes();
        millis(3_000).await;
    });
    right.get()
}

#[test]
fn a_read_beside_a_failed_filled_write_returns_right_data() {
    assert!(a_read_beside_it_is_right(None));
    assert!(!a_read_beside_it_is_right(Some(Fault::ReadFailedGaps)), "nobody would see it");
}

/// A cache whose slots are all dirty, and filled writes on their way that will be refused.
async fn fill_all(w: &FaultyCache) -> u64 {
    let slots = number(&w.cache, "total_blocks");
    w.origin.hold_writes();
    fill_even(w, 0..2 * slots).await;
    assert_eq!((number(&w.cache, "free_blocks"), number(&w.cache, "dirty_blocks")), (0, slots));
    assert!(w.origin.held_writes() > 0);
    w.origin.refuse(Op::Write, 0..2 * slots);
    slots
}

fn is_gap_lost(event: &CacheEvent) -> bool {
    matches!(event, CacheEvent::GapLost { .. })
}

#[test]
fn a_failed_gap_without_a_free_slot_is_written_until_taken() {
    let fixture = filling_lab(440, None);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill_all(&w).await;
        inner.world.borrow_mut().poke(inner.origin, common::at(7), &[0xA5; 512]);
        let writes = w.origin.held_writes() as u64;
        w.origin.release_writes();
        while w.origin.count.get() <= writes {
            millis(1).await;
        }
        w.origin.repair();
        millis(70_000).await;
        assert!(!w.events.borrow().iter().any(is_gap_lost));
        say(&w.cache, "flush").await.unwrap();
        for block in 0..40 {
            let version = 2 - block % 2;
            assert!(inner.origin_block(block) == pattern(block, version), "block {block}");
        }
    });
}

#[test]
fn a_damaged_gap_without_any_copy_is_reported() {
    let fixture = filling_lab(440, None);
    life(&fixture, async move |w| {
        let slots = fill_all(&w).await;
        w.origin.release_writes();
        millis(10_000).await;
        let events = w.events.borrow();
        let lost = events.iter().find(|event| is_gap_lost(event));
        assert_eq!(lost, Some(&CacheEvent::GapLost { status: Status::Io, sector: Sector(8) }));
        assert_eq!(number(&w.cache, "dirty_blocks"), slots);
    });
}

/// The failed flush loses what was written again; nobody else has it.
#[test]
fn a_gap_written_again_counts_only_after_an_origin_flush() {
    let fixture = filling_lab(440, None);
    let inner = fixture.clone();
    life(&fixture, async move |w| {
        fill_all(&w).await;
        let spoil = || inner.world.borrow_mut().poke(inner.origin, common::at(1), &[0xA5; 512]);
        spoil();
        w.origin.release_writes();
        w.origin.repair();
        w.origin.refuse(Op::Flush, 0..0);
        millis(10).await;
        assert!(inner.origin_block(1) == pattern(1, 1), "it was not written again");
        spoil();
        w.origin.repair();
        millis(70_000).await;
        assert!(!w.events.borrow().iter().any(is_gap_lost));
        assert!(inner.origin_block(1) == pattern(1, 1), "what a failed flush has lost is lost");
    });
}
