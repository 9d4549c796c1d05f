// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The read cache of a cache in parts.
use std::cell::Cell;
use std::rc::Rc;

use block::{Class, Op, Sector, Target};
use sim::Machine;
use writecache::{Fault, WriteCache};

use crate::common::faulty_cache::millis;
use crate::common::spread::number;
use crate::common::stalled::StalledDevice;
use crate::common::{BLOCK_SECTORS, Fixture, at, config, expect, fill, pattern, put, say, suspend};
use crate::read_cache::{READS, read};

/// Blocks of a chunk: the even chunks are those of part 0.
const CHUNK: u64 = 64;

/// Clean blocks that a cache in parts still has after a suspend that flushed it. Part 0 is empty
/// at once, while a block that was read is on its way to its slot; part 1 is written back longer.
fn left_by_a_flush(fault: Option<Fault>) -> u64 {
    let mut fixture = Fixture::new(4096, 8 << 10, &format!("{READS} parts 2"));
    fixture.config.set_chunk(Sector(CHUNK * BLOCK_SECTORS));
    fixture.config.plant(fault);
    let machine = Machine::boot(&fixture.world, 1);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (config, sectors) = (fixture.config.clone(), fixture.sectors);
    let cache = WriteCache::new("wc", config, origin.clone(), device.clone(), sectors).unwrap();
    let left = Rc::new(Cell::new(0));
    let seen = left.clone();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..CHUNK, 1).await;
        say(&cache, "flush").await.unwrap();
        read(&cache, 0..CHUNK, 1).await;
        device.hold(|bio| bio.op == Op::Write && bio.class == Class::Background);
        expect(&*cache, 0..1, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1, "the data are on their way to their slot");
        device.hold(|_| false);
        put(&*cache, CHUNK, 1).await.unwrap();
        origin.hold(|bio| bio.op == Op::Write);
        say(&cache, "flush_on_suspend").await.unwrap();
        reactor::spawn(async move {
            millis(100).await;
            device.release();
            millis(100).await;
            origin.release();
        });
        suspend(&cache).await;
        cache.clone().resume().await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks").await, 0);
        seen.set(number(&cache, "clean_blocks").await);
    });
    machine.kill();
    done.expect("no power cut was planned");
    left.get()
}

/// The origin may be used without its cache then, and what the cache has would be old.
#[test]
fn nothing_enters_a_part_after_its_flush_for_a_suspend() {
    assert_eq!(left_by_a_flush(None), 0);
}

#[test]
fn a_block_that_enters_a_part_after_its_flush_is_caught() {
    assert_eq!(left_by_a_flush(Some(Fault::AdmitAfterFlush)), 1);
}

/// A block was read, and its data are on their way to their slot when the device is removed: its
/// cache gives the origin back, and somebody writes to that.
fn removed_beside_an_admission(parts: &str) {
    let options = |more: &str| format!("{READS} {more} {parts}");
    let mut fixture = Fixture::new(4096, 8 << 10, &options("guard_origin"));
    fixture.config.set_chunk(Sector(CHUNK * BLOCK_SECTORS));
    let machine = Machine::boot(&fixture.world, 1);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (line, sectors) = (fixture.config.clone(), fixture.sectors);
    let origin = fixture.leaf(fixture.origin);
    let cache = WriteCache::new("wc", line, origin, device.clone(), sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..CHUNK, 1).await;
        say(&cache, "flush").await.unwrap();
        read(&cache, 0..CHUNK, 1).await;
        device.hold(|bio| bio.op == Op::Write && bio.class == Class::Background);
        expect(&*cache, 30..31, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1, "the data are on their way to their slot");
        let released = cache.clone().release_origin().await;
        device.release();
        released.unwrap();
        millis(5).await;
        suspend(&cache).await;
        assert_eq!(number(&cache, "clean_blocks").await, 0);
        assert_eq!(number(&cache, "guarded_ranges").await, 0);
        cache.clone().resume().await.unwrap();
        // As after a removal that has failed.
        read(&cache, 0..CHUNK, 1).await;
        assert!(number(&cache, "clean_blocks").await > 50);
        cache.clone().release_origin().await.unwrap();
        suspend(&cache).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
    fixture.world.borrow_mut().poke(fixture.origin, at(30), &pattern(30, 2));
    let mut unguarded = Fixture { config: config(4096, &options("no_guard")), ..fixture };
    unguarded.config.set_chunk(Sector(CHUNK * BLOCK_SECTORS));
    unguarded.life(async |cache| expect(&*cache, 30..31, 2).await).unwrap();
}

/// It entered the cache afterwards, and was old when the cache was opened again.
#[test]
fn nothing_enters_a_part_that_gives_its_origin_back() {
    removed_beside_an_admission("parts 2");
}

/// The slot counted as a block, and the removal was refused with EBUSY.
#[test]
fn a_block_on_its_way_does_not_keep_the_origin() {
    removed_beside_an_admission("");
}
