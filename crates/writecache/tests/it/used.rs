// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that takes another one's place (`Target::require_empty`): with blocks of an earlier time
//! it is refused, before any of them is written back over newer data.
use block::{Class, Nanos, Target};
use sim::Machine;
use writecache::Fault;

use crate::common::{Fixture, config, fill, flush, get, pattern, put};

/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Everything is written back at once.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1";

/// What the cache device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheContents {
    Nothing,
    Clean,
    Dirty,
}

/// The device gets blocks as `held`, then the origin gets newer ones, as by another cache. Returns
/// the error with which the first cache takes the other one's place, if it does not.
fn takes_a_place(held: CacheContents, fault: Option<Fault>) -> Option<String> {
    let mut fixture = Fixture::new(64, 4096, MANUAL);
    let lazy = fixture.config.clone();
    let eager = config(4096, EAGER);
    if held == CacheContents::Clean {
        fixture.config = eager.clone();
    }
    let written = fixture.life(async move |cache| {
        if held != CacheContents::Nothing {
            fill(&*cache, 0..40, 1).await;
            flush(&*cache).await;
        }
        if held == CacheContents::Clean {
            reactor::sleep(Nanos::from_secs(10)).await;
        }
        cache.suspend().await.unwrap();
    });
    written.unwrap();
    fixture.config = eager;
    fixture.config.plant(fault);
    let (machine, target) = (Machine::boot(&fixture.world, 1), fixture.target());
    let origin = fixture.leaf(fixture.origin);
    let refusal = machine.block_on(async move {
        for block in 0..40 {
            put(&*origin, block, 2).await.unwrap();
        }
        reactor::flush(&*origin, Class::Normal).await.unwrap();
        target.require_empty();
        let resumed = target.clone().resume().await;
        // Time for a writeback.
        reactor::sleep(Nanos::from_secs(10)).await;
        let refusal = resumed.as_ref().err().map(ToString::to_string);
        if refusal.is_some() {
            // Nor is it begun by a later resume.
            assert!(target.clone().resume().await.is_err());
            reactor::sleep(Nanos::from_secs(10)).await;
        }
        target.suspend().await.unwrap();
        for block in 0..40 {
            let read = get(&*origin, block).await.unwrap();
            assert_eq!(read, pattern(block, 2), "block {block} of the origin is newer");
        }
        refusal
    });
    let refusal = refusal.unwrap();
    machine.kill();
    if refusal.is_some() {
        // What it held is still there.
        fixture.config = lazy;
        let read = fixture.life(async |cache| {
            for block in 0..40 {
                assert_eq!(get(&*cache, block).await.unwrap(), pattern(block, 1));
            }
        });
        read.unwrap();
    }
    refusal
}

#[test]
fn a_cache_with_blocks_does_not_take_anothers_place() {
    assert_eq!(takes_a_place(CacheContents::Nothing, None), None);
    let refusal = takes_a_place(CacheContents::Dirty, None).expect("it is refused");
    assert!(refusal.contains("holds 40 dirty and 0 clean blocks of an"), "{refusal}");
    let refusal = takes_a_place(CacheContents::Clean, None).expect("it is refused");
    assert!(!refusal.contains(" 0 clean"), "{refusal}");
}

/// It writes its old blocks back.
#[test]
#[should_panic(expected = "of the origin is newer")]
fn a_cache_with_blocks_that_takes_a_place_is_caught() {
    takes_a_place(CacheContents::Dirty, Some(Fault::UsedCacheTaken));
}
