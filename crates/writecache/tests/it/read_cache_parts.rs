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
use crate::common::{BLOCK_SECTORS, Fixture, expect, fill, put, say, suspend};
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
