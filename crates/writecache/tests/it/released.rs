// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A read cache that gives its origin back.
use block::{Class, Op, Target};
use sim::Machine;
use writecache::WriteCache;

use crate::common::faulty_cache::millis;
use crate::common::stalled::StalledDevice;
use crate::common::{Fixture, at, config, expect, fill, number, pattern, say, suspend};
use crate::read_cache::{READS, read};

const BLOCKS: u64 = 64;

/// A block was read, and its data are on their way to their slot when the device is removed: its
/// cache gives the origin back, and somebody writes to that. The slot counted as a block, and the
/// removal was refused with EBUSY.
#[test]
fn a_block_on_its_way_does_not_keep_the_origin() {
    let fixture = Fixture::new(4096, 8 << 10, &format!("{READS} guard_origin"));
    let machine = Machine::boot(&fixture.world, 1);
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let (line, sectors) = (fixture.config.clone(), fixture.sectors);
    let origin = fixture.leaf(fixture.origin);
    let cache = WriteCache::new("wc", line, origin, device.clone(), sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill(&*cache, 0..BLOCKS, 1).await;
        say(&cache, "flush").await.unwrap();
        read(&cache, 0..BLOCKS, 1).await;
        device.hold(|bio| bio.op == Op::Write && bio.class == Class::Background);
        expect(&*cache, 30..31, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1, "the data are on their way to their slot");
        let released = cache.clone().release_origin().await;
        device.release();
        released.unwrap();
        millis(5).await;
        suspend(&cache).await;
        assert_eq!(number(&cache, "clean_blocks"), 0);
        assert_eq!(number(&cache, "guarded_ranges"), 0);
        cache.clone().resume().await.unwrap();
        // As after a removal that has failed.
        read(&cache, 0..BLOCKS, 1).await;
        assert!(number(&cache, "clean_blocks") > 50);
        cache.clone().release_origin().await.unwrap();
        suspend(&cache).await;
    });
    machine.kill();
    done.expect("no power cut was planned");
    fixture.world.borrow_mut().poke(fixture.origin, at(30), &pattern(30, 2));
    let unguarded = Fixture { config: config(4096, &format!("{READS} no_guard")), ..fixture };
    unguarded.life(async |cache| expect(&*cache, 30..31, 2).await).unwrap();
}
