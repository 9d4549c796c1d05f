// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slots of many runs are read together: how many requests that takes, and which data count.
use std::rc::Rc;

use crate::common::{Fixture, at, flush, number, pattern, put, say};
use sim::Rng;
use writecache::WriteCache;

const BLOCKS: u64 = 2000;
/// Nothing is written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000 gap_fill 0";

/// Every second block of the origin.
fn scattered() -> Vec<u64> {
    (0..BLOCKS).step_by(2).collect()
}

/// A cache in which these blocks are dirty, written in random order.
async fn fill_at_random(cache: &Rc<WriteCache>, mut blocks: Vec<u64>) {
    Rng::new(1).shuffle(&mut blocks);
    for block in blocks {
        put(&**cache, block, 1).await.unwrap();
    }
    flush(&**cache).await;
}

/// The requests that a flush of these blocks sends to the cache device, and how many of them are
/// large reads.
fn reads_of_a_flush(blocks: Vec<u64>, options: &str) -> (u64, u64) {
    let fixture = Fixture::new(4096, 16 << 10, &format!("{MANUAL} {options}"));
    let (inner, dirty) = (fixture.clone(), blocks.clone());
    let counted = fixture
        .life(async move |cache| {
            fill_at_random(&cache, dirty).await;
            let before = inner.world.borrow().stats(inner.cache).reads;
            say(&cache, "flush").await.unwrap();
            let after = inner.world.borrow().stats(inner.cache).reads;
            (after - before, number(&cache, "slot_reads"))
        })
        .unwrap();
    for block in blocks {
        assert!(fixture.origin_block(block) == pattern(block, 1), "block {block}");
    }
    counted
}

#[test]
fn a_flush_reads_scattered_slots_in_few_large_requests() {
    let (all, large) = reads_of_a_flush(scattered(), "");
    assert!(all < BLOCKS / 2 / 4, "{all} reads for {} blocks", BLOCKS / 2);
    assert!(large > 0 && large <= all, "{large} of {all}");
}

/// A write to the origin has 256 blocks, and a chunk of the memory 64.
#[test]
fn a_run_that_is_longer_than_a_chunk_is_read_with_others() {
    let (all, large) = reads_of_a_flush((0..BLOCKS / 2).collect(), "");
    assert!(all < BLOCKS / 2 / 4, "{all} reads for {} blocks", BLOCKS / 2);
    assert!(large > 0 && large <= all, "{large} of {all}");
}

#[test]
fn without_a_buffer_each_run_reads_its_own_slots() {
    assert_eq!(reads_of_a_flush(scattered(), "writeback_buffer 0"), (BLOCKS / 2, 0));
}

#[test]
fn a_buffer_below_two_chunks_is_none() {
    assert_eq!(reads_of_a_flush(scattered(), "writeback_buffer 256K"), (BLOCKS / 2, 0));
}

/// The blocks change while their slots are read, before they are gathered.
#[test]
fn blocks_that_change_beside_a_span_keep_their_new_data() {
    let fixture = Fixture::new(4096, 16 << 10, MANUAL);
    fixture
        .life(async move |cache| {
            fill_at_random(&cache, scattered()).await;
            let flushed = cache.clone();
            let ended = Rc::new(std::cell::Cell::new(false));
            let set = ended.clone();
            reactor::spawn(async move {
                say(&flushed, "flush").await.unwrap();
                set.set(true);
            });
            while number(&cache, "slot_reads") == 0 {
                reactor::sleep(block::Nanos(1000)).await;
            }
            for block in (0..BLOCKS).step_by(6) {
                put(&*cache, block, 2).await.unwrap();
            }
            while !ended.get() {
                reactor::sleep(block::Nanos::from_millis(1)).await;
            }
            say(&cache, "flush").await.unwrap();
            assert_eq!(number(&cache, "bad_blocks"), 0);
        })
        .unwrap();
    for block in (0..BLOCKS).step_by(2) {
        let version = if block % 6 == 0 { 2 } else { 1 };
        assert!(fixture.origin_block(block) == pattern(block, version), "{:?}", at(block));
    }
}
