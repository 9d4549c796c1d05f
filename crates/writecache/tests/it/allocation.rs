// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which runs read as zeroes, while blocks are written back, evicted, and written around the cache.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, Sector, Target};
use sim::{HoleFinder, Machine, Rng};
use writecache::{Fault, WriteCache};

use crate::common::{BLOCK, BLOCK_SECTORS, Fixture, at, pattern, put, say};

/// Everything is written back at once.
const EAGER: &str = "high_watermark 0 low_watermark 0 autocommit_time 1";
/// Nothing is committed or written back unless it is asked for.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
/// Blocks of the client that asks, and of the one that fills the cache beside it.
const ASKED: u64 = 32;
const BLOCKS: u64 = 96;
/// Requests of a run.
const STEPS: u32 = 400;

/// Which version of each block the client has written; 0 is zeroes.
type Model = Rc<RefCell<Vec<u64>>>;

/// A cache whose origin tells its holes.
fn over_holes(
    fixture: &Fixture,
    delays: impl Fn() -> [Nanos; 2] + 'static,
) -> (Machine, Rc<WriteCache>) {
    let machine = Machine::boot(&fixture.world, 1);
    let disk = fixture.world.borrow().leaf(fixture.origin);
    let origin = HoleFinder::over(&fixture.world, disk, delays);
    let Fixture { config, sectors, .. } = fixture.clone();
    let device = fixture.leaf(fixture.cache);
    (machine, WriteCache::new("wc", config, origin, device, sectors).unwrap())
}

/// Asks once, and returns how many sectors read as zeroes; `None` if one of them does not.
async fn ask(cache: &WriteCache, model: &Model, from: u64, len: u64) -> Option<u64> {
    let mut zero = 0;
    let mut before = Sector(from);
    for (run, len) in cache.zero_runs(Sector(from), Sector(len)).await {
        assert!(run >= before && len > Sector::ZERO, "ascending, and none is empty");
        before = run + len;
        for sector in run.0..run.0 + len.0 {
            let block = usize::try_from(sector / BLOCK_SECTORS).unwrap();
            if model.borrow()[block] != 0 {
                return None;
            }
            zero += 1;
        }
    }
    assert!(before <= Sector(from + len), "within what was asked for");
    Some(zero)
}

/// A block of this version; zeroes if that is 0.
async fn write(cache: &WriteCache, block: u64, version: u64) {
    let data = if version == 0 { vec![0; BLOCK] } else { pattern(block, version) };
    let data = Buf::copy_of(&data).into();
    reactor::write(cache, Flags::empty(), Class::Normal, at(block), data).await.unwrap();
}

/// One client writes, zeroes and asks, another one fills the cache. Returns whether all sectors
/// that were told to be zeroes were, and how many there were.
fn run(seed: u64, options: &str, fault: Option<Fault>) -> Option<u64> {
    let mut fixture = Fixture::seeded(seed, BLOCKS, 1024, options);
    fixture.config.plant(fault);
    let delay = RefCell::new(Rng::new(seed));
    let any = move || Nanos(delay.borrow_mut().below(3_000_000));
    let (machine, cache) = over_holes(&fixture, move || [any(), any()]);
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        let (beside, ended) = (cache.clone(), Rc::new(Cell::new(false)));
        let end = ended.clone();
        reactor::spawn(async move {
            let mut rng = Rng::new(seed + 1);
            for version in 1.. {
                if end.get() {
                    break;
                }
                put(&*beside, rng.range(ASKED, BLOCKS), version).await.unwrap();
                if rng.chance_per_mille(100) {
                    say(&beside, "flush").await.unwrap();
                }
            }
        });
        let mut rng = Rng::new(seed);
        let model: Model = Rc::new(RefCell::new(vec![0; usize::try_from(BLOCKS).unwrap()]));
        let mut zero = Some(0);
        for version in 1..=u64::from(STEPS) {
            let block = rng.below(ASKED);
            match rng.below(10) {
                0..4 => {
                    write(&cache, block, version).await;
                    model.borrow_mut()[usize::try_from(block).unwrap()] = version;
                }
                4..6 => {
                    let len = rng.range(1, 1 + (ASKED - block).min(8));
                    let range =
                        usize::try_from(block).unwrap()..usize::try_from(block + len).unwrap();
                    let (class, none) = (Class::Normal, Flags::empty());
                    let sectors = Sector(len * BLOCK_SECTORS);
                    match reactor::write_zeroes(&*cache, none, class, at(block), sectors).await {
                        Ok(()) => {}
                        Err(_) => {
                            for block in block..block + len {
                                write(&cache, block, 0).await;
                            }
                        }
                    }
                    model.borrow_mut()[range].fill(0);
                }
                _ => {
                    let from = rng.below(ASKED * BLOCK_SECTORS);
                    let len = rng.range(1, 1 + ASKED * BLOCK_SECTORS - from);
                    let found = ask(&cache, &model, from, len).await;
                    zero = zero.zip(found).map(|(before, now)| before + now);
                    if zero.is_none() {
                        break;
                    }
                }
            }
        }
        ended.set(true);
        while Rc::strong_count(&ended) > 1 {
            reactor::sleep(Nanos::from_millis(1)).await;
        }
        cache.clone().suspend().await.unwrap();
        zero
    });
    machine.kill();
    done.expect("no power cut was planned")
}

const OPTIONS: [&str; 3] = ["", "ordered", "cleaner"];

#[test]
fn what_is_told_to_be_zeroes_reads_as_zeroes() {
    for options in OPTIONS {
        for seed in 1..=8 {
            let zero = run(seed, &format!("{EAGER} {options}"), None);
            assert!(zero.expect("a sector with data") > 100, "`{options}`, seed {seed}");
        }
    }
}

#[test]
fn zero_runs_that_look_at_the_cache_only_late_are_caught() {
    let right = |seed| run(seed, EAGER, Some(Fault::ZeroRunsLookLate)).is_some();
    assert!(!(1..=40).all(right), "the fault was not found");
}

/// A block that is not in the cache is written, and its write to the origin fails and leaves
/// zeroes, between question and answer. It never read as zeroes. Whether that is known.
fn failed_write_is_no_hole(fault: Option<Fault>) -> bool {
    let mut fixture = Fixture::new(BLOCKS, 1024, MANUAL);
    fixture.config.plant(fault);
    fixture.world.borrow_mut().poke(fixture.origin, at(5), &pattern(5, 1));
    let (machine, cache) = over_holes(&fixture, || [Nanos::from_millis(5), Nanos::ZERO]);
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        let zeroes = cache.zero_runs(Sector::ZERO, Sector(BLOCKS * BLOCK_SECTORS));
        let beside = cache.clone();
        reactor::spawn(async move {
            reactor::sleep(Nanos::from_millis(1)).await;
            put(&*beside, 5, 2).await.unwrap();
            fixture.world.borrow_mut().poke(fixture.origin, at(5), &[0; BLOCK]);
        });
        let found = zeroes.await;
        let expected = [(Sector::ZERO, at(5)), (at(6), at(BLOCKS - 6))];
        assert!(found == expected || found == [(Sector::ZERO, at(BLOCKS))], "{found:?}");
        cache.clone().suspend().await.unwrap();
        found == expected
    });
    machine.kill();
    done.expect("no power cut was planned")
}

#[test]
fn zero_runs_that_look_at_the_cache_only_early_are_caught() {
    assert!(failed_write_is_no_hole(None));
    assert!(!failed_write_is_no_hole(Some(Fault::ZeroRunsLookEarly)));
}
