// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache device that answers nothing for a moment, and is there again: dirty blocks that could
//! not be read come back by themselves, with the right data or not at all.

use crate::common::{BLOCK, Fixture, expect, fill, flush, get, number, pattern, put, say, suspend};
use block::{Class, Nanos, Sector, Target};
use sim::{Faults, seeds};
use writecache::{Fault, WriteCache};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
const BLOCKS: u64 = 40;

fn no_reads() -> Faults {
    Faults { read_error_per_mille: 1000, ..Faults::default() }
}

fn nothing() -> Faults {
    Faults { write_error_per_mille: 1000, flush_error_per_mille: 1000, ..no_reads() }
}

fn set(fixture: &Fixture, faults: Faults) {
    fixture.world.borrow_mut().set_faults(fixture.cache, faults);
}

async fn seconds(seconds: u64) {
    reactor::sleep(Nanos::from_secs(seconds)).await;
}

async fn read_all(cache: &WriteCache) -> usize {
    let mut failed = 0;
    for block in 0..BLOCKS {
        failed += usize::from(get(cache, block).await.is_err());
    }
    failed
}

/// All dirty blocks were I/O errors until the table was loaded again, and were called lost: the
/// first failed read had all of them written back, and so read.
#[test]
fn blocks_come_back_by_themselves_when_the_device_does() {
    for (options, away_s) in [("", 1), ("", 100), ("ordered", 1), ("write_buffer 65536", 1)] {
        let fixture = Fixture::new(256, 2048, &format!("{MANUAL} {options}"));
        let inner = fixture.clone();
        let done = fixture.life(async move |cache| {
            fill(&*cache, 0..BLOCKS, 1).await;
            flush(&*cache).await;
            seconds(5).await;
            set(&inner, no_reads());
            assert!(get(&*cache, 3).await.is_err() && get(&*cache, 7).await.is_err());
            seconds(away_s).await;
            let bad = number(&cache, "bad_blocks");
            assert_eq!(bad, 2, "{options}: what nobody asked for was not read");
            let problem = cache.problems().first().cloned().unwrap_or_default();
            assert!(
                problem.contains("at present, and are tried again: sectors 24 to 31"),
                "{problem}"
            );
            set(&inner, Faults::default());
            seconds(65).await;
            assert_eq!(number(&cache, "bad_blocks"), 0, "{options}");
            assert_eq!(number(&cache, "drain_only"), 0, "{options}");
            assert!(cache.problems().is_empty(), "{:?}", cache.problems());
            expect(&*cache, 0..BLOCKS, 1).await;
            // It takes new blocks, and writes all of them back.
            put(&*cache, 50, 1).await.unwrap();
            assert_eq!(number(&cache, "dirty_blocks"), BLOCKS + 1, "{options}");
            say(&cache, "flush").await.unwrap();
            cache.check();
        });
        done.unwrap();
        for block in 0..BLOCKS {
            assert!(fixture.origin_block(block) == pattern(block, 1), "{options}: {block}");
        }
    }
}

/// A device that fails in all it is asked for: what was flushed is there when the table is loaded
/// again, and reads come back before. Writes do not (WC-I8): a flush has failed.
#[test]
fn reads_come_back_in_a_cache_that_has_failed_stop() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    let done = fixture.life(async move |cache| {
        fill(&*cache, 0..BLOCKS, 1).await;
        flush(&*cache).await;
        put(&*cache, 60, 1).await.unwrap();
        set(&inner, nothing());
        assert!(reactor::flush(&*cache, Class::Foreground).await.is_err());
        assert_eq!(read_all(&cache).await as u64, BLOCKS);
        set(&inner, Faults::default());
        seconds(65).await;
        expect(&*cache, 0..BLOCKS, 1).await;
        assert!(put(&*cache, 61, 1).await.is_err());
        assert!(reactor::flush(&*cache, Class::Foreground).await.is_err());
    });
    done.unwrap();
    fixture.life(async |cache| expect(&*cache, 0..BLOCKS, 1).await).unwrap();
}

/// Some of its sectors stay unreadable: the others come back, and are written back.
#[test]
fn sectors_that_stay_bad_keep_no_others() {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    let done = fixture.life(async move |cache| {
        fill(&*cache, 0..BLOCKS, 1).await;
        flush(&*cache).await;
        set(&inner, no_reads());
        assert_eq!(read_all(&cache).await as u64, BLOCKS);
        let at = Sector::from_bytes(inner.geometry().slot_offset(inner.slot_of(5)));
        inner.world.borrow_mut().set_bad_sector(inner.cache, at);
        set(&inner, Faults::default());
        seconds(65).await;
        assert_eq!((number(&cache, "bad_blocks"), number(&cache, "drain_only")), (1, 1));
        assert_eq!(number(&cache, "dirty_blocks"), 0, "the device fails, so it is emptied");
        assert!(get(&*cache, 5).await.is_err());
        let reads = number(&cache, "slot_reads");
        let ops = inner.world.borrow().disk_ops(inner.cache);
        seconds(640).await;
        let tries = inner.world.borrow().disk_ops(inner.cache) - ops;
        assert!(tries < 25 && number(&cache, "slot_reads") == reads, "{tries} tries");
        // Written again it is good.
        put(&*cache, 5, 2).await.unwrap();
        say(&cache, "flush").await.unwrap();
    });
    done.unwrap();
    for block in (0..BLOCKS).filter(|block| *block != 5) {
        assert!(fixture.origin_block(block) == pattern(block, 1), "{block}");
    }
}

/// Another device, or an old copy, answers in the place of the one that was there. Returns whether
/// a client reads wrong data, or the origin gets them.
fn comes_back_with_other_data() -> bool {
    let fixture = Fixture::small(MANUAL);
    let inner = fixture.clone();
    let wrong = fixture.life(async move |cache| {
        fill(&*cache, 0..BLOCKS, 1).await;
        flush(&*cache).await;
        set(&inner, no_reads());
        assert_eq!(read_all(&cache).await as u64, BLOCKS);
        for block in 10..20 {
            let at = inner.geometry().slot_offset(inner.slot_of(block));
            inner.poke_area(at, &pattern(block, 9));
        }
        set(&inner, Faults::default());
        seconds(65).await;
        assert_eq!((number(&cache, "bad_blocks"), number(&cache, "rotten_blocks")), (10, 10));
        let problem = cache.problems().remove(0);
        assert!(problem.contains("do not match their checksum"), "{problem}");
        assert!(problem.ends_with("written again: sectors 80 to 159"), "{problem}");
        assert_eq!(number(&cache, "drain_only"), 0);
        say(&cache, "flush").await.ok();
        let mut wrong = false;
        for block in 0..BLOCKS {
            let read = get(&*cache, block).await;
            wrong |= read.is_ok_and(|data| data != pattern(block, 1));
        }
        suspend(&cache).await;
        wrong
    });
    let on_origin = |block| {
        let data = fixture.origin_block(block);
        data != pattern(block, 1) && data != vec![0; BLOCK]
    };
    wrong.unwrap() || (0..BLOCKS).any(on_origin)
}

#[test]
fn other_contents_of_a_device_that_is_back_are_not_served() {
    assert!(!comes_back_with_other_data());
}

#[test]
fn blocks_that_are_never_read_again_are_found() {
    let bad_after = |fault| {
        let mut fixture = Fixture::small(MANUAL);
        fixture.config.plant(fault);
        let inner = fixture.clone();
        let bad = fixture.life(async move |cache| {
            fill(&*cache, 0..BLOCKS, 1).await;
            flush(&*cache).await;
            set(&inner, no_reads());
            read_all(&cache).await;
            set(&inner, Faults::default());
            seconds(65).await;
            number(&cache, "bad_blocks")
        });
        bad.unwrap()
    };
    assert_eq!((bad_after(None), bad_after(Some(Fault::NeverReadAgain))), (0, BLOCKS));
}

/// Clients and writeback work through outages of any kind, again and again, and the power goes.
#[test]
fn outages_beside_clients_and_power_cuts_lose_nothing() {
    seeds::run(40, |seed| {
        let options = ["", "ordered", "max_age 1000"][(seed % 3) as usize];
        let watermarks = "high_watermark 20 low_watermark 0 autocommit_time 10";
        let fixture = Fixture::seeded(seed, 128, 2048, &format!("{watermarks} {options}"));
        let mut flushed = vec![0; 128];
        for life in 0..3 {
            let (inner, before) = (fixture.clone(), flushed.clone());
            let ended = fixture.life(async move |cache| {
                let (mut versions, mut durable) = (before.clone(), before);
                for round in 1..20u64 {
                    let dice = |below| inner.world.borrow_mut().rng.below(below);
                    let block = dice(128);
                    let version = life * 1000 + round;
                    let outage = dice(4) == 0;
                    if outage {
                        set(&inner, no_reads());
                    }
                    if put(&*cache, block, version).await.is_ok() {
                        versions[block as usize] = version;
                    }
                    get(&*cache, dice(128)).await.ok();
                    reactor::sleep(Nanos::from_millis(dice(3000))).await;
                    set(&inner, Faults::default());
                    if reactor::flush(&*cache, Class::Foreground).await.is_ok() {
                        durable.clone_from(&versions);
                    }
                }
                seconds(130).await;
                if !inner.config.ordered && number(&cache, "bad_blocks") > 0 {
                    return Err(format!("{} bad", number(&cache, "bad_blocks")));
                }
                for (block, &version) in (0..).zip(&versions) {
                    let want = if version == 0 { vec![0; BLOCK] } else { pattern(block, version) };
                    match get(&*cache, block).await {
                        Ok(data) if data == want => {}
                        Err(_) if inner.config.ordered => {}
                        _ => return Err(format!("block {block} is not version {version}")),
                    }
                }
                cache.check();
                Ok(durable)
            });
            flushed = ended.map_err(|e| e.chain())??;
        }
        let last = flushed.clone();
        let seen = fixture.life(async move |cache| {
            for (block, version) in (0..).zip(last) {
                let want = if version == 0 { vec![0; BLOCK] } else { pattern(block, version) };
                if get(&*cache, block).await != Ok(want) {
                    return Err(format!("after a restart block {block} is not version {version}"));
                }
            }
            Ok(())
        });
        seen.map_err(|e| e.chain())?
    });
}
