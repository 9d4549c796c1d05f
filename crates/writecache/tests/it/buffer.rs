// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write buffer, step by step: what a write and a FLUSH ask the cache device for, what happens
//! when it refuses, and which writes are not buffered. What a kill leaves is in `buffer_frames`.
use std::rc::Rc;

use crate::common::failing::FailingDevice;
use crate::common::faulty_cache::{FaultyCache, life, millis};
use crate::common::{
    BLOCK, Fixture, at, expect, fields, fill, flush, get, number, pattern, put, put_with, say,
    suspend,
};
use block::{Buf, Bufs, Class, Flags, Op, Opener, Sector, Status, Target};
use writecache::{Config, Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Places in the buffer, in four segments.
const PLACES: u32 = 32;
/// Blocks of a segment.
const SEGMENT: u64 = 8;

fn fixture(options: &str) -> Fixture {
    let mut fixture = Fixture::small(&format!("{MANUAL} {options}"));
    fixture.config.set_buffer_blocks(PLACES);
    fixture
}

/// Which blocks of the cache device have the slots, in 4096 bytes.
fn slots_start(fixture: &Fixture) -> u64 {
    fixture.geometry().slot_offset(0) / BLOCK as u64
}

/// The writes since the last call: those of slots, by first slot and length; and how many others.
fn writes(fixture: &Fixture, device: &FailingDevice) -> (Vec<(u64, u64)>, usize) {
    let start = slots_start(fixture);
    let all = device.take_writes();
    let slots = all.iter().filter(|w| w.start >= start);
    let slots: Vec<_> = slots.map(|w| (w.start - start, w.end - w.start)).collect();
    let others = all.len() - slots.len();
    (slots, others)
}

fn flushes(fixture: &Fixture) -> u64 {
    fixture.world.borrow().stats(fixture.cache).flushes
}

/// What a life of the cache is, whose devices can fail.
fn buffered(options: &str, work: impl AsyncFnOnce(FaultyCache, Fixture) + 'static) -> Fixture {
    let fixture = fixture(options);
    let inner = fixture.clone();
    life(&fixture, async move |faulty| {
        faulty.device.take_writes();
        work(faulty, inner).await;
    });
    fixture
}

#[test]
fn a_buffered_write_asks_the_device_for_nothing() {
    buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        let reads = || fixture.world.borrow().stats(fixture.cache).reads;
        let before = reads();
        fill(&*cache, 0..SEGMENT - 1, 1).await;
        expect(&*cache, 0..SEGMENT - 1, 1).await;
        assert_eq!(number(&cache, "buffered_blocks"), SEGMENT - 1);
        assert_eq!(number(&cache, "writes_buffered"), SEGMENT - 1);
        assert_eq!((device.take_writes(), reads()), (vec![], before));
    });
}

#[test]
fn a_flush_writes_data_and_record_with_one_flush() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        fill(&*cache, 0..3, 1).await;
        let before = flushes(&fixture);
        flush(&*cache).await;
        assert_eq!(flushes(&fixture), before + 1);
        assert_eq!(writes(&fixture, &device), (vec![(0, 3)], 1));
        assert_eq!(number(&cache, "buffered_blocks"), 0);
        flush(&*cache).await;
        assert_eq!(writes(&fixture, &device), (vec![], 0), "a FLUSH without news");
    });
    fixture.life(async |cache| expect(&*cache, 0..3, 1).await).unwrap();
}

#[test]
fn a_full_segment_is_one_write_of_neighbouring_slots() {
    buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        // Any blocks: their slots are neighbours.
        for block in (0..SEGMENT).map(|n| n * 29) {
            assert_eq!(device.take_writes(), []);
            put(&*cache, block, 1).await.unwrap();
        }
        assert_eq!(writes(&fixture, &device), (vec![(0, SEGMENT)], 0));
        millis(1).await;
        assert_eq!(number(&cache, "buffered_blocks"), 0);
        assert_eq!(number(&cache, "buffer_runs"), 1);
        assert_eq!(number(&cache, "buffer_run_bytes"), SEGMENT * BLOCK as u64);
        for block in (0..SEGMENT).map(|n| n * 29) {
            expect(&*cache, block..block + 1, 1).await;
        }
    });
}

#[test]
fn an_overwritten_version_is_not_written() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        fill(&*cache, 0..2, 1).await;
        for version in 2..6 {
            put(&*cache, 0, version).await.unwrap();
        }
        assert_eq!(number(&cache, "buffered_blocks"), 2);
        flush(&*cache).await;
        let blocks: u64 = writes(&fixture, &device).0.iter().map(|w| w.1).sum();
        assert_eq!(blocks, 2, "block 1, and the last version of block 0");
        expect(&*cache, 0..1, 5).await;
    });
    fixture.life(async |cache| expect(&*cache, 0..1, 5).await).unwrap();
}

/// The device writes slowly: a version that is being written is superseded.
#[test]
fn a_version_that_is_superseded_in_flight_comes_to_nothing() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, _| {
        device.hold_writes();
        fill(&*cache, 0..SEGMENT, 1).await;
        assert_eq!(device.held_writes(), 1);
        let free = number(&cache, "free_blocks");
        fill(&*cache, 0..4, 2).await;
        expect(&*cache, 0..4, 2).await;
        assert_eq!(number(&cache, "free_blocks"), free - 4, "the old slots are not free yet");
        device.release_writes();
        millis(1).await;
        assert_eq!(number(&cache, "free_blocks"), free);
        flush(&*cache).await;
        expect(&*cache, 0..4, 2).await;
        expect(&*cache, 4..SEGMENT, 1).await;
    });
    let check = async |cache: Rc<WriteCache>| {
        expect(&*cache, 0..4, 2).await;
        expect(&*cache, 4..SEGMENT, 1).await;
    };
    fixture.life(check).unwrap();
}

#[test]
fn data_that_a_slot_refuses_get_another_slot() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        fill(&*cache, 0..5, 1).await;
        let bad = slots_start(&fixture) + 2;
        device.refuse(Op::Write, bad..bad + 1);
        flush(&*cache).await;
        assert_eq!(number(&cache, "buffer_write_errors"), 5, "the blocks of the run, one by one");
        assert_eq!((number(&cache, "error"), number(&cache, "buffered_blocks")), (0, 0));
        expect(&*cache, 0..5, 1).await;
        flush(&*cache).await;
    });
    let check = async |cache: Rc<WriteCache>| {
        expect(&*cache, 0..5, 1).await;
        assert_eq!(number(&cache, "dirty_blocks"), 5);
    };
    fixture.life(check).unwrap();
}

#[test]
fn a_slot_that_has_refused_data_is_free_after_the_commit() {
    buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        device.refuse(Op::Write, slots_start(&fixture)..slots_start(&fixture) + 1);
        let free = number(&cache, "free_blocks");
        put(&*cache, 7, 1).await.unwrap();
        flush(&*cache).await;
        assert_eq!(number(&cache, "free_blocks"), free - 1);
        expect(&*cache, 7..8, 1).await;
    });
}

fn flush_by(cache: &WriteCache, opener: u32) -> reactor::BioFuture {
    let (flags, nothing) = (Flags::empty(), (Sector::ZERO, Sector::ZERO));
    let class = Class::Foreground;
    reactor::io_by(Opener(opener), cache, Op::Flush, flags, class, nothing, Bufs::new())
}

#[test]
fn a_device_that_takes_no_data_fails_all_flushes() {
    buffered("", async |FaultyCache { cache, device, .. }, _| {
        fill(&*cache, 0..5, 1).await;
        device.refuse(Op::Write, 0..1 << 40);
        for opener in [1, 1, 2] {
            assert_eq!(flush_by(&cache, opener).await, Err(Status::Io), "opener {opener}");
        }
        assert_ne!(number(&cache, "error"), 0);
        expect(&*cache, 0..5, 1).await;
        assert_eq!(put(&*cache, 0, 2).await, Err(Status::Io));
        device.repair();
        assert_eq!(flush_by(&cache, 3).await, Err(Status::Io), "nothing is promised any more");
        expect(&*cache, 0..5, 1).await;
    });
}

/// Nobody has asked for a FLUSH: the errors of data that were acknowledged are not forgotten.
#[test]
fn a_failed_run_of_the_buffer_fails_the_next_flush() {
    buffered("", async |FaultyCache { cache, device, .. }, _| {
        device.refuse(Op::Write, 0..1 << 40);
        fill(&*cache, 0..SEGMENT, 1).await;
        millis(10).await;
        assert_ne!(number(&cache, "error"), 0);
        device.repair();
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Io));
        expect(&*cache, 0..SEGMENT, 1).await;
    });
}

#[test]
fn a_suspend_leaves_nothing_in_the_buffer() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        fill(&*cache, 0..5, 1).await;
        suspend(&cache).await;
        assert_eq!(number(&cache, "buffered_blocks"), 0);
        assert_eq!(writes(&fixture, &device).0, [(0, 5)]);
        cache.clone().resume().await.unwrap();
        fill(&*cache, 5..7, 1).await;
        assert_eq!(number(&cache, "buffered_blocks"), 2);
        expect(&*cache, 0..7, 1).await;
        suspend(&cache).await;
    });
    fixture.life(async |cache| expect(&*cache, 0..7, 1).await).unwrap();
}

#[test]
fn buffered_blocks_are_counted_as_dirty_at_once() {
    buffered("", async |FaultyCache { cache, .. }, _| {
        let free = fields(&cache)[2];
        fill(&*cache, 0..5, 1).await;
        assert_eq!(number(&cache, "dirty_blocks"), 5);
        assert_eq!(number(&cache, "used_blocks"), 5);
        assert_eq!(fields(&cache)[2], free - 5);
    });
}

#[test]
fn the_message_flush_writes_buffered_blocks_back() {
    buffered("", async |FaultyCache { cache, .. }, fixture| {
        fill(&*cache, 0..5, 1).await;
        say(&cache, "flush").await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks"), 0);
        assert!((0..5).all(|block| fixture.origin_block(block) == pattern(block, 1)));
    });
}

#[test]
fn a_drain_writes_buffered_blocks_back() {
    buffered("", async |FaultyCache { cache, .. }, fixture| {
        fill(&*cache, 0..5, 1).await;
        cache.clone().set_attribute("drain".to_owned(), String::new()).await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks"), 0);
        assert!((0..5).all(|block| fixture.origin_block(block) == pattern(block, 1)));
    });
}

/// While nothing is being written the buffer keeps what it has only until the next commit by time.
#[test]
fn the_autocommit_writes_a_quiet_buffer_out() {
    let fixture = fixture("");
    let mut quick = fixture.clone();
    quick.config = crate::common::config(4096, "autocommit_time 20");
    quick.config.set_buffer_blocks(PLACES);
    quick
        .life(async |cache| {
            fill(&*cache, 0..5, 1).await;
            assert_eq!(number(&cache, "buffered_blocks"), 5);
            millis(100).await;
            assert_eq!(number(&cache, "buffered_blocks"), 0);
        })
        .unwrap();
    quick.life(async |cache| expect(&*cache, 0..5, 1).await).unwrap();
}

#[test]
fn without_a_buffer_each_write_asks_the_device() {
    let fixture = Fixture::small(&format!("{MANUAL} write_buffer 0"));
    let inner = fixture.clone();
    life(&fixture, async move |FaultyCache { cache, device, .. }| {
        device.take_writes();
        for block in 0..3 {
            put(&*cache, block, 1).await.unwrap();
            assert_eq!(writes(&inner, &device), (vec![(block, 1)], 0));
        }
        assert_eq!(number(&cache, "writes_buffered"), 0);
    });
}

#[test]
fn fua_and_long_writes_are_not_buffered() {
    buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        put_with(&*cache, Flags::FUA, 0, 1).await.unwrap();
        assert_eq!(writes(&fixture, &device), (vec![(0, 1)], 1));
        let write = async |blocks: usize| {
            let data = Buf::zeroed(blocks * BLOCK).into();
            reactor::write(&*cache, Flags::empty(), Class::Normal, at(16), data).await.unwrap();
            number(&cache, "writes_buffered")
        };
        assert_eq!(write(17).await, 0, "more than 64 KiB");
        assert_eq!(writes(&fixture, &device).0, [(1, 17)]);
        assert_eq!(write(16).await, 16);
    });
}

#[test]
fn a_fua_write_makes_only_itself_durable_but_keeps_the_rest() {
    let fixture = buffered("", async |FaultyCache { cache, .. }, _| {
        fill(&*cache, 0..3, 1).await;
        put_with(&*cache, Flags::FUA, 1, 2).await.unwrap();
        expect(&*cache, 0..1, 1).await;
        expect(&*cache, 1..2, 2).await;
    });
    fixture.life(async |cache| expect(&*cache, 1..2, 2).await).unwrap();
}

#[test]
fn metadata_only_buffers_nothing() {
    buffered("metadata_only", async |FaultyCache { cache, .. }, _| {
        put(&*cache, 0, 1).await.unwrap();
        put_with(&*cache, Flags::META, 1, 1).await.unwrap();
        assert_eq!(number(&cache, "writes_buffered"), 0);
        expect(&*cache, 0..2, 1).await;
    });
}

#[test]
fn memory_and_the_kernels_format_have_no_buffer() {
    let refused = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Config::parse(&words).err().map(|e| e.chain())
    };
    let in_memory = refused("p origin cache 4096 2 write_buffer 1M").expect("refused");
    assert!(in_memory.contains("write_buffer") && in_memory.contains("mode"), "{in_memory}");
    let dm = refused("s origin cache 4096 4 format dm write_buffer 1M").expect("refused");
    assert!(dm.contains("write_buffer needs the native format"), "{dm}");
    assert_eq!(refused("s origin cache 4096 4 format dm write_buffer 0"), None);
    assert_eq!(refused("p origin cache 4096 0"), None);
    let mut fixture = Fixture::small(&format!("{MANUAL} format dm"));
    fixture.config.write_buffer = 32 << 20;
    let count = fixture.life(async |cache| {
        fill(&*cache, 0..5, 1).await;
        number(&cache, "writes_buffered")
    });
    assert_eq!(count.unwrap(), 0);
}

/// Blocks that are in the buffer at most, when the device does not answer and clients go on: they
/// are slowed down, and have to wait in the end.
fn most_buffered(fixture: &Fixture) -> u64 {
    let found = Rc::new(std::cell::Cell::new(0));
    let out = found.clone();
    life(fixture, async move |FaultyCache { cache, device, .. }| {
        device.hold_writes();
        for block in 0..100 {
            let cache = cache.clone();
            reactor::spawn(async move { put(&*cache, block, 1).await.unwrap() });
        }
        millis(100).await;
        out.set(number(&cache, "buffered_blocks"));
        device.release_writes();
        millis(100).await;
        expect(&*cache, 0..100, 1).await;
        flush(&*cache).await;
    });
    fixture.life(async |cache| expect(&*cache, 0..100, 1).await).unwrap();
    found.get()
}

#[test]
fn a_full_buffer_stops_writers_until_the_device_answers() {
    let most = most_buffered(&fixture(""));
    assert!((PLACES / 2..=PLACES).contains(&u32::try_from(most).unwrap()), "{most}");
}

#[test]
fn the_buffer_takes_at_most_an_eighth_of_the_slots() {
    let mut fixture = Fixture::new(256, 2048, MANUAL);
    let words = ["s", "origin", "cache", "4096", "0"];
    fixture.config.write_buffer = Config::parse(&words).unwrap().write_buffer;
    assert_eq!(fixture.config.write_buffer, 32 << 20, "the default");
    let most = most_buffered(&fixture);
    let eighth = u64::from(fixture.superblock().slots / 8);
    assert!(most > eighth / 2 && most <= eighth, "{most} of {eighth}");
}

#[test]
fn cleaner_mode_empties_the_buffer_and_writes_beside_it() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, fixture| {
        device.hold_writes();
        fill(&*cache, 0..4, 1).await;
        say(&cache, "cleaner").await.unwrap();
        let (over, beside) = (cache.clone(), cache.clone());
        reactor::spawn(async move { put(&*over, 2, 2).await.unwrap() });
        reactor::spawn(async move { put(&*beside, 20, 2).await.unwrap() });
        millis(10).await;
        device.release_writes();
        millis(1000).await;
        expect(&*cache, 2..3, 2).await;
        expect(&*cache, 20..21, 2).await;
        flush(&*cache).await;
        assert_eq!(number(&cache, "buffered_blocks"), 0);
        assert_eq!(number(&cache, "dirty_blocks"), 0);
        assert_eq!(fixture.origin_block(2), pattern(2, 2));
        assert_eq!(fixture.origin_block(3), pattern(3, 1));
        assert_eq!(fixture.origin_block(20), pattern(20, 2));
    });
    fixture.life(async |cache| expect(&*cache, 2..3, 2).await).unwrap();
}

#[test]
fn writethrough_beside_a_buffered_block_loses_neither() {
    buffered("", async |FaultyCache { cache, .. }, fixture| {
        fill(&*cache, 0..4, 1).await;
        let set = cache.clone().set_attribute("cache_mode".to_owned(), "writethrough".to_owned());
        set.await.unwrap();
        put(&*cache, 2, 2).await.unwrap();
        flush(&*cache).await;
        assert_eq!(fixture.origin_block(2), pattern(2, 2));
        expect(&*cache, 0..2, 1).await;
        expect(&*cache, 2..3, 2).await;
        expect(&*cache, 3..4, 1).await;
    });
}

/// A write of one sector of a buffered block.
#[test]
fn a_part_of_a_buffered_block_is_merged_in_memory() {
    let fixture = buffered("", async |FaultyCache { cache, device, .. }, _| {
        fill(&*cache, 0..2, 1).await;
        let data = Buf::copy_of(&[7; 512]).into();
        let sector = Sector(9);
        reactor::write(&*cache, Flags::empty(), Class::Normal, sector, data).await.unwrap();
        assert_eq!(device.take_writes(), []);
        flush(&*cache).await;
    });
    let read = fixture.life(async |cache| crate::common::get(&*cache, 1).await.unwrap());
    let mut wanted = pattern(1, 1);
    wanted[512..1024].fill(7);
    assert!(read.unwrap() == wanted);
}

/// A version moved to another slot while zeroes were on their way: they did not find it any more,
/// and it stayed, after they had been acknowledged (found by seed 2267 of 10,000).
#[test]
fn zeroes_replace_a_version_that_moves_meanwhile() {
    for fault in [None, Some(Fault::MovedVersionLost)] {
        let mut fixture = fixture("");
        fixture.config.plant(fault);
        let inner = fixture.clone();
        life(&fixture, async move |FaultyCache { cache, device, .. }| {
            put(&*cache, 1, 1).await.unwrap();
            device.hold_writes();
            let flushed = flush_by(&cache, 1);
            millis(1).await;
            let (flags, len) = (Flags::empty(), Sector::from_bytes(128 << 10));
            let zeroed = reactor::write_zeroes(&*cache, flags, Class::Normal, at(0), len);
            millis(1).await;
            let zeroed = zeroed.into_outcome().expect_err("they wait for the commit");
            let first = slots_start(&inner);
            device.refuse(Op::Write, first..first + 1);
            device.release_writes();
            assert_eq!((zeroed.await, flushed.await), (Ok(()), Ok(())));
            assert_eq!(number(&cache, "buffer_write_errors"), 1);
            let is_zero = get(&*cache, 1).await.unwrap() == [0; BLOCK];
            assert_eq!(is_zero, fault.is_none(), "{fault:?}");
            cache.check();
        });
    }
}

/// The open epoch is being written back while a FLUSH closes it, the block is written anew, and the
/// slot of the epoch's version refuses the data.
#[test]
fn a_version_that_moves_is_written_back_with_its_epoch() {
    let mut fixture = Fixture::small("ordered high_watermark 0 low_watermark 0 pause_writeback 0");
    fixture.config.set_buffer_blocks(PLACES);
    let inner = fixture.clone();
    life(&fixture, async move |FaultyCache { cache, origin, device, .. }| {
        origin.hold_writes();
        put(&*cache, 5, 1).await.unwrap();
        millis(4000).await;
        assert_eq!(origin.held_writes(), 1, "the open epoch is being written back");
        device.hold_writes();
        put(&*cache, 1, 1).await.unwrap();
        let flushed = flush_by(&cache, 1);
        millis(10).await;
        put(&*cache, 1, 2).await.unwrap();
        let second = slots_start(&inner) + 1;
        device.refuse(Op::Write, second..second + 1);
        device.release_writes();
        assert_eq!(flushed.await, Ok(()));
        assert_eq!(number(&cache, "buffer_write_errors"), 1);
        origin.release_writes();
        millis(100).await;
        flush(&*cache).await;
        say(&cache, "flush").await.unwrap();
        assert_eq!(number(&cache, "checksum_errors"), 0, "the version was read where it is");
        assert_eq!((number(&cache, "error"), number(&cache, "dirty_blocks")), (0, 0));
        assert_eq!(inner.origin_block(1), pattern(1, 2));
        cache.check();
    });
}
