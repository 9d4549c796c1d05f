// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gaps before an origin that does not rotate: when they are filled, how much, and with what.
use std::rc::Rc;

use crate::common::{Fixture, at, flush, number, pattern, put, say};
use block::{Nanos, Target};
use policy::RequestCost;
use policy::destage::Costs;
use sim::DiskSpec;
use sim::model::{Cloud, CloudParams};
use writecache::{Fault, WriteCache};

const BLOCKS: u64 = 16_384;
/// Nothing is written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 0 autocommit_time 3600000";

/// Makes every second block dirty.
async fn fill_even(cache: &Rc<WriteCache>, version: u64) {
    for block in (0..BLOCKS).step_by(2) {
        put(&**cache, block, version).await.unwrap();
    }
    flush(&**cache).await;
}

/// Writes everything back because of the watermark.
async fn write_back(cache: &Rc<WriteCache>) {
    let set = async |value: &str| {
        let name = "high_watermark".to_owned();
        cache.clone().set_attribute(name, value.to_owned()).await.unwrap();
    };
    set("0").await;
    while number(cache, "dirty_blocks") > 0 {
        reactor::sleep(Nanos::from_millis(10)).await;
    }
    set("100").await;
}

/// An origin that is a volume of a cloud, each block of version 1.
fn volume(options: &str) -> Fixture {
    let mut fixture = Fixture::new(BLOCKS, 64 << 10, &format!("{MANUAL} {options}"));
    let model = Box::new(Cloud::new(CloudParams::general()));
    let spec = DiskSpec::new("volume", fixture.sectors, model);
    fixture.origin = fixture.world.borrow_mut().add_disk(spec);
    for block in 0..BLOCKS {
        fixture.world.borrow_mut().poke(fixture.origin, at(block), &pattern(block, 1));
    }
    fixture
}

fn is_right(fixture: &Fixture, even: u64) {
    for block in 0..BLOCKS {
        let version = if block % 2 == 0 { even } else { 1 };
        assert!(fixture.origin_block(block) == pattern(block, version), "block {block}");
    }
}

#[test]
fn only_a_flush_fills_gaps_before_a_volume_of_a_cloud() {
    let fixture = volume("");
    fixture
        .life(async |cache| {
            fill_even(&cache, 2).await;
            write_back(&cache).await;
            assert_eq!(number(&cache, "gap_bytes_written"), 0, "by the watermark");
            let writes = number(&cache, "origin_writes");
            fill_even(&cache, 3).await;
            say(&cache, "flush").await.unwrap();
            let filled = number(&cache, "gap_bytes_written");
            assert!(filled > BLOCKS * 512, "{filled} bytes of gaps by a flush");
            assert_eq!(filled, number(&cache, "gap_blocks_filled") * 4096);
            let flushed = number(&cache, "origin_writes") - writes;
            assert!(flushed < writes * 3 / 4, "{flushed} writes instead of {writes}");
        })
        .unwrap();
    is_right(&fixture, 3);
}

#[test]
fn gap_fill_0_and_a_share_of_0_fill_no_gap_in_a_flush() {
    for options in ["gap_fill 0", "gap_write_percent 0"] {
        let fixture = volume(options);
        fixture
            .life(async move |cache| {
                fill_even(&cache, 2).await;
                say(&cache, "flush").await.unwrap();
                assert_eq!(number(&cache, "gap_bytes_written"), 0, "{options}");
                assert_eq!(number(&cache, "gap_bytes_read"), 0, "{options}");
            })
            .unwrap();
        is_right(&fixture, 2);
    }
}

/// Whether gaps took no more than a quarter of the dirty bytes, in several flushes; and the bytes.
fn share(fault: Option<Fault>) -> (bool, u64) {
    let mut fixture = Fixture::new(BLOCKS, 64 << 10, &format!("{MANUAL} gap_write_percent 25"));
    let cost = RequestCost { command_ns: 1_000_000_000, ns_per_mib: 1, side_by_side: false };
    fixture.config.assume_costs(Some(Costs::without_head(cost, cost)));
    fixture.config.plant(fault);
    let counted = fixture.life(async |cache| {
        let (mut is_kept, mut filled) = (true, 0);
        for version in 2..5 {
            fill_even(&cache, version).await;
            say(&cache, "flush").await.unwrap();
            filled = number(&cache, "gap_bytes_written");
            let dirty = number(&cache, "origin_write_bytes") - filled;
            is_kept &= filled * 100 <= dirty * 25;
        }
        (is_kept, filled)
    });
    counted.unwrap()
}

#[test]
fn gaps_take_no_more_than_their_share_of_the_dirty_bytes() {
    let (is_kept, filled) = share(None);
    assert!(is_kept, "{filled} bytes of gaps");
    assert!(filled > BLOCKS / 2 * 4096 / 4, "{filled} bytes of gaps in three flushes");
}

#[test]
fn gaps_that_do_not_count_against_their_share_are_caught() {
    assert!(!share(Some(Fault::GapsBeyondRoom)).0);
}
