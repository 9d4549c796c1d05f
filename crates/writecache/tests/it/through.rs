// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cache_mode`: what writethrough does with a write, a FLUSH and with dirty blocks, when nothing
//! needs the cache any more, and what errors of the origin do.

use std::rc::Rc;

use crate::common::failing::FailingDevice;
use crate::common::faulty_cache::{self, FaultyCache, millis};
use crate::common::recording::RecordingDevice;
use crate::common::stalled::StalledDevice;
use crate::common::{
    self, BLOCK, Fixture, at, expect, fill, flush, get, number, pattern, put, put_with, say,
};
use block::{BlockDevice, Buf, Class, Flags, Op, Sector, Status, Target};
use sim::model::Uniform;
use sim::{DiskSpec, Machine};
use writecache::{Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
const THROUGH: &str = "high_watermark 100 low_watermark 100 cache_mode writethrough";

async fn set(cache: &Rc<WriteCache>, name: &str, value: &str) {
    cache.clone().set_attribute(name.to_owned(), value.to_owned()).await.unwrap();
}

async fn mode(cache: &Rc<WriteCache>) -> String {
    cache.clone().get_attribute("cache_mode".to_owned()).await.unwrap().to_string()
}

async fn write(dev: &dyn BlockDevice, at: u64, data: &[u8]) -> Result<(), Status> {
    let data = Buf::copy_of(data).into();
    reactor::write(dev, Flags::empty(), Class::Normal, Sector(at), data).await
}

/// Version `version` of a block with 512 bytes of `new` at sector `from`.
fn merged(block: u64, version: u64, from: usize, new: u8) -> Vec<u8> {
    let mut bytes = pattern(block, version);
    bytes[from * 512..(from + 1) * 512].fill(new);
    bytes
}

/// One life of a cache over these devices; then the process is killed.
fn life_over(
    fixture: &Fixture,
    origin: Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    work: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
) {
    let machine = Machine::boot(&fixture.world, 1);
    let cache =
        WriteCache::new("wc", fixture.config.clone(), origin, device, fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        work(cache).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
}

#[test]
fn a_write_through_is_one_write_of_the_origin_alone() {
    let fixture = Fixture::small(THROUGH);
    let origin = RecordingDevice::over(fixture.leaf(fixture.origin));
    let device = RecordingDevice::over(fixture.leaf(fixture.cache));
    let (o, d, inner) = (origin.clone(), device.clone(), fixture.clone());
    life_over(&fixture, origin, device, async move |cache| {
        o.take();
        d.take();
        assert_eq!(mode(&cache).await, "writethrough");
        put(&*cache, 7, 1).await.unwrap();
        assert_eq!(o.take(), [(Op::Write, 56..64)]);
        assert!(inner.origin_block(7) == pattern(7, 1));
        flush(&*cache).await;
        assert_eq!(o.take(), [(Op::Flush, 0..0)], "a FLUSH is the origin's");
        flush(&*cache).await;
        assert_eq!(o.take(), [], "nothing new");
        o.take_write_flags();
        put_with(&*cache, Flags::FUA, 8, 1).await.unwrap();
        assert_eq!(o.take_write_flags(), [Flags::FUA], "FUA is the origin's");
        assert_eq!(d.take(), [], "the cache device has no part in it");
        expect(&*cache, 7..9, 1).await;
        assert_eq!(number(&cache, "used_blocks"), 0);
    });
}

#[test]
fn the_mode_is_an_option_of_the_table_and_changes_live() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    let work = fixture.life(async move |cache| {
        assert_eq!(mode(&cache).await, "writeback");
        assert!(!cache.table().contains("cache_mode"));
        fill(&*cache, 0..8, 1).await;
        set(&cache, "cache_mode", "writethrough").await;
        assert_eq!(mode(&cache).await, "writethrough", "at once");
        assert_eq!(cache.clone().get_attribute("cleaner".to_owned()).await.unwrap(), "0");
        assert!(cache.table().ends_with(" cache_mode writethrough"), "{}", cache.table());
        millis(1000).await;
        assert_eq!(number(&cache, "used_blocks"), 0, "the dirty blocks were written back");
        assert!((0..8).all(|b| inner.origin_block(b) == pattern(b, 1)));
        set(&cache, "cache_mode", "writeback").await;
        fill(&*cache, 0..8, 2).await;
        assert_eq!(number(&cache, "dirty_blocks"), 8);
        assert!((0..8).all(|b| inner.origin_block(b) == pattern(b, 1)));
        let wrong = cache.clone().set_attribute("cache_mode".to_owned(), "none".to_owned()).await;
        let said = wrong.unwrap_err().chain();
        assert!(said.contains("cache_mode") && said.contains("writethrough"), "{said}");
        assert_eq!(mode(&cache).await, "writeback");
    });
    work.unwrap();
}

#[test]
fn a_cache_with_epochs_refuses_writethrough_and_says_why() {
    let words = |options: &str| {
        let count = options.split_whitespace().count();
        let line = format!("s origin cache 4096 {count} {options}");
        writecache::Config::parse(&line.split_whitespace().collect::<Vec<_>>())
    };
    let said = words("ordered cache_mode writethrough").unwrap_err().chain();
    for word in ["cache_mode", "`writethrough`", "ordered", "`writeback`"] {
        assert!(said.contains(word), "{said}");
    }
    words("ordered cache_mode writeback").unwrap();
    let live = Fixture::small("ordered").life(async |cache| {
        let set = cache.clone().set_attribute("cache_mode".to_owned(), "writethrough".to_owned());
        assert!(set.await.unwrap_err().chain().contains("ordered"));
        assert_eq!(mode(&cache).await, "writeback");
    });
    live.unwrap();
}

/// Blocks 0..4 are dirty in version 1, and writeback of them stands still on the origin's errors.
/// The mode is writethrough.
async fn with_dirty_blocks(work: &FaultyCache) {
    let FaultyCache { cache, origin, .. } = work;
    fill(&**cache, 0..4, 1).await;
    flush(&**cache).await;
    origin.refuse(Op::Write, 0..4);
    set(cache, "cache_mode", "writethrough").await;
    millis(100).await;
    assert_eq!(number(cache, "failing_blocks"), 4);
    origin.repair();
    origin.take_writes();
}

#[test]
fn a_write_over_a_dirty_block_takes_its_place_on_the_origin() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    faulty_cache::life(&fixture, async move |work| {
        with_dirty_blocks(&work).await;
        let FaultyCache { cache, origin, .. } = work;
        fill(&*cache, 1..3, 2).await;
        assert_eq!(origin.take_writes(), [1..2, 2..3], "no other write of these blocks");
        assert_eq!(number(&cache, "used_blocks"), 2, "0 and 3 wait for their next try");
        assert_eq!(number(&cache, "failing_blocks"), 2);
        write(&*cache, 3, &[9; 512]).await.unwrap();
        let whole = origin.take_writes().into_iter().eq(std::iter::once(0..1));
        assert!(whole, "the origin never had the block");
        assert!(inner.origin_block(0) == merged(0, 1, 3, 9));
        assert!((1..3).all(|b| inner.origin_block(b) == pattern(b, 2)));
        cache.check();
    });
    // Killed: the log has nothing of these blocks, or it would undo the writes.
    let mut later = fixture.clone();
    later.config = common::config(4096, MANUAL);
    let read = later.life(async |cache| {
        assert_eq!(number(&cache, "dirty_blocks"), 1);
        expect(&*cache, 1..3, 2).await;
        expect(&*cache, 3..4, 1).await;
        get(&*cache, 0).await.unwrap()
    });
    assert!(read.unwrap() == merged(0, 1, 3, 9));
}

#[test]
fn an_error_of_the_origin_leaves_the_old_data_dirty() {
    for refused in [Op::Write, Op::Flush] {
        let fixture = Fixture::small(MANUAL);
        let inner = fixture.clone();
        faulty_cache::life(&fixture, async move |work| {
            with_dirty_blocks(&work).await;
            let FaultyCache { cache, origin, .. } = work;
            origin.refuse(refused, 0..4);
            assert_eq!(put(&*cache, 1, 2).await, Err(Status::Io));
            assert_eq!(write(&*cache, 16, &[9; 512]).await, Err(Status::Io));
            expect(&*cache, 0..4, 1).await;
            assert_eq!(number(&cache, "dirty_blocks"), 4);
            origin.repair();
            say(&cache, "flush").await.unwrap();
            expect(&*cache, 0..4, 1).await;
            assert!((0..4).all(|b| inner.origin_block(b) == pattern(b, 1)));
            assert_eq!(number(&cache, "used_blocks"), 0);
            assert_eq!(number(&cache, "error"), 0);
        });
    }
}

#[test]
fn an_error_of_an_uncached_write_through_fails_that_write_alone() {
    let fixture = Fixture::small(THROUGH);
    faulty_cache::life(&fixture, async move |FaultyCache { cache, origin, .. }| {
        fill(&*cache, 0..2, 1).await;
        origin.refuse(Op::Write, 0..1);
        assert_eq!(put(&*cache, 0, 2).await, Err(Status::Io));
        put(&*cache, 1, 2).await.unwrap();
        flush(&*cache).await;
        expect(&*cache, 0..1, 1).await;
        expect(&*cache, 1..2, 2).await;
        assert_eq!((number(&cache, "error"), number(&cache, "used_blocks")), (0, 0));
    });
}

/// Writes in flight to the cache device when the mode changes: whole blocks, and a part of one.
/// Returns how many of the three blocks the origin has when they have ended.
fn begun_before_the_switch(fault: Option<Fault>) -> usize {
    let mut fixture = Fixture::small(MANUAL);
    fixture.config.plant(fault);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let origin = FailingDevice::over(fixture.leaf(fixture.origin));
    let (slow, delayed, inner) = (device.clone(), origin.clone(), fixture.clone());
    let found = Rc::new(std::cell::Cell::new(0));
    let result = found.clone();
    life_over(&fixture, origin, device, async move |cache| {
        slow.hold(|bio| bio.op == Op::Write);
        let ended = Rc::new(std::cell::Cell::new(0));
        let (count, other) = (ended.clone(), cache.clone());
        reactor::spawn(async move {
            let data = Buf::copy_of(&[pattern(4, 1), pattern(5, 1)].concat());
            let class = Class::Normal;
            reactor::write(&*other, Flags::empty(), class, at(4), data.into()).await.unwrap();
            count.set(count.get() + 1);
        });
        let (count, other) = (ended.clone(), cache.clone());
        reactor::spawn(async move {
            write(&*other, 8 * 9 + 2, &[3; 512]).await.unwrap();
            count.set(count.get() + 1);
        });
        millis(50).await;
        assert_eq!(slow.count(), 2, "both are on their way to the cache");
        set(&cache, "cache_mode", "writethrough").await;
        assert!(number(&cache, "used_blocks") > 0);
        // Writeback does nothing for them: its writes are delayed until they have ended.
        delayed.hold_writes();
        slow.release();
        millis(50).await;
        if ended.get() < 2 {
            delayed.release_writes();
            millis(50).await;
        }
        assert_eq!(ended.get(), 2);
        let new = [&[0; 1024][..], &[3; 512], &[0; BLOCK - 1536]].concat();
        let wanted = [(4, pattern(4, 1)), (5, pattern(5, 1)), (9, new)];
        result.set(wanted.iter().filter(|(b, data)| inner.origin_block(*b) == *data).count());
        delayed.release_writes();
        millis(1000).await;
        assert_eq!(number(&cache, "used_blocks"), 0);
    });
    found.get()
}

#[test]
fn a_write_begun_before_the_switch_ends_on_the_origin() {
    assert_eq!(begun_before_the_switch(None), 3);
    assert_eq!(begun_before_the_switch(Some(Fault::ThroughLeavesBegun)), 0, "it made a difference");
}

/// The log has a clean copy of a block, version 1; version 2 is dirty in memory alone. Version 3 is
/// written through, and the process is killed when the origin has it, before its flush. Returns
/// what the block then reads as, and what when its copy, if it is clean, has left the cache.
fn killed_over_a_clean_copy(fault: Option<Fault>) -> (Vec<u8>, Vec<u8>) {
    let mut fixture = Fixture::small(MANUAL);
    fixture.config.plant(fault);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let (slow, inner) = (origin.clone(), fixture.clone());
    life_over(&fixture, origin, fixture.leaf(fixture.cache), async move |cache| {
        set(&cache, "writeback_rate_max", "1").await; // one write, and then none for an hour
        fill(&*cache, 7..8, 1).await;
        set(&cache, "drain", "").await;
        flush(&*cache).await;
        assert_eq!((number(&cache, "clean_blocks"), number(&cache, "uncommitted_blocks")), (1, 0));
        fill(&*cache, 7..8, 2).await;
        slow.hold(|bio| bio.op == Op::Flush);
        set(&cache, "cache_mode", "writethrough").await;
        reactor::spawn(async move { put(&*cache, 7, 3).await.unwrap_or_default() });
        millis(50).await;
        assert_eq!(slow.count(), 1);
        assert!(inner.origin_block(7) == pattern(7, 3), "the origin has it");
    });
    fixture.config.plant(None);
    let read = fixture.life(async |cache| {
        let first = get(&*cache, 7).await.unwrap();
        say(&cache, "flush").await.unwrap();
        (first, get(&*cache, 7).await.unwrap())
    });
    read.unwrap()
}

#[test]
fn a_clean_copy_does_not_hide_what_was_written_through() {
    let (first, then) = killed_over_a_clean_copy(None);
    assert!(first == pattern(7, 2) && then == first, "the write has not ended: the old version");
    // And the test can fail.
    let (first, then) = killed_over_a_clean_copy(Some(Fault::ThroughBeforeCommit));
    assert!(first == pattern(7, 1) && then == pattern(7, 3), "the fault made no difference");
}

/// A part of block 1 is merged in the cache when the mode changes, and the merge enters the map
/// while the whole block is written through. Returns the block in the end.
fn through_beside_a_merge(fault: Option<Fault>) -> Vec<u8> {
    let mut fixture = Fixture::small(MANUAL);
    fixture.config.plant(fault);
    let inner = fixture.clone();
    faulty_cache::life(&fixture, async move |FaultyCache { cache, origin, device, .. }| {
        fill(&*cache, 1..2, 1).await;
        flush(&*cache).await;
        origin.refuse(Op::Write, 1..2);
        set(&cache, "max_age", "1").await; // writeback begins, and waits a second after its error
        millis(100).await;
        assert_eq!(number(&cache, "failing_blocks"), 1);
        origin.repair();
        device.hold_writes();
        let other = cache.clone();
        reactor::spawn(async move { write(&*other, 8 + 2, &[3; 512]).await.unwrap() });
        millis(50).await;
        assert_eq!(device.held_writes(), 1);
        origin.hold_writes();
        set(&cache, "cache_mode", "writethrough").await;
        let other = cache.clone();
        reactor::spawn(async move { put(&*other, 1, 2).await.unwrap() });
        millis(50).await;
        device.release_writes();
        millis(50).await;
        origin.release_writes();
        millis(5000).await;
        assert_eq!(number(&cache, "used_blocks"), 0);
    });
    inner.origin_block(1)
}

#[test]
fn a_merge_does_not_undo_a_write_through_beside_it() {
    let found = through_beside_a_merge(None);
    assert!(found == pattern(1, 2) || found == merged(1, 2, 2, 3), "the whole write is lost");
    let found = through_beside_a_merge(Some(Fault::ThroughBesideMerge));
    assert!(found == merged(1, 1, 2, 3), "the fault made no difference");
}

#[test]
fn zeroes_and_discards_over_dirty_blocks_outlive_a_kill() {
    let fixture = Fixture::new(1024, 2048, MANUAL);
    faulty_cache::life(&fixture, async move |work| {
        let FaultyCache { cache, origin, .. } = &work;
        fill(&**cache, 0..64, 1).await;
        flush(&**cache).await;
        origin.refuse(Op::Write, 0..64);
        set(cache, "cache_mode", "writethrough").await;
        millis(100).await;
        let zero = async |from: u64, count: u64| {
            let len = Sector(count * 8);
            let (flags, class) = (Flags::empty(), Class::Normal);
            reactor::write_zeroes(&**cache, flags, class, at(from), len).await.unwrap();
        };
        origin.repair();
        zero(0, 2).await;
        zero(20, 40).await;
        reactor::discard(&**cache, Class::Normal, at(4), Sector(8)).await.unwrap();
    });
    let zeroes = fixture.life(async |cache| {
        let mut blocks = Vec::new();
        for block in 0..64 {
            if get(&*cache, block).await.unwrap() == vec![0; BLOCK] {
                blocks.push(block);
            }
        }
        blocks
    });
    let zeroes = zeroes.unwrap();
    assert!([0, 1, 4].iter().chain(&(20..60).collect::<Vec<_>>()).all(|b| zeroes.contains(b)));
    assert_eq!(zeroes.len(), 43, "{zeroes:?}");
}

#[test]
fn to_a_disk_of_blocks_a_part_is_written_through_whole() {
    let mut fixture = Fixture::small(THROUGH);
    let model = Box::new(Uniform::new(1, 20_000, 60_000));
    let spec = DiskSpec::new("blocks", fixture.sectors, model);
    let spec = DiskSpec { logical_block_bytes: 4096, ..spec };
    fixture.origin = fixture.world.borrow_mut().add_disk(spec);
    let inner = fixture.clone();
    let work = fixture.life(async move |cache| {
        fill(&*cache, 3..4, 1).await;
        write(&*cache, 3 * 8 + 5, &[7; 512]).await.unwrap();
        assert!(inner.origin_block(3) == merged(3, 1, 5, 7));
        assert_eq!(number(&cache, "dirty_blocks"), 0);
    });
    work.unwrap();
}
