// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache fails with changes that it has acknowledged and not made durable, and its table is
//! loaded again. Then FLUSH works, and the changes are lost: the next FLUSH of each client that may
//! have lost some fails (WC-LO1), once.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::{BLOCK_SECTORS, Fixture, at, pattern};
use block::{Buf, Bufs, Class, Flags, Op, Opener, Sector, Status, Target};
use sim::{Faults, Machine, seeds};
use writecache::{CacheEvent, Fault, WriteCache};

/// Nothing is made durable but by a FLUSH or a suspend.
const MANUAL: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
const BLOCKS: u64 = 64;

fn fixture(seed: u64) -> Fixture {
    Fixture::seeded(seed, BLOCKS, 512, MANUAL)
}

fn boot(fixture: &Fixture) -> Machine {
    Machine::boot(&fixture.world, 1)
}

fn fail_flushes(fixture: &Fixture, per_mille: u32) {
    let faults = Faults { flush_error_per_mille: per_mille, ..Faults::default() };
    fixture.world.borrow_mut().set_faults(fixture.cache, faults);
}

async fn load(fixture: &Fixture) -> Rc<WriteCache> {
    let cache = fixture.target();
    cache.clone().resume().await.unwrap();
    cache
}

/// Loads the table again, as `dm` does.
async fn reload(fixture: &Fixture, old: Rc<WriteCache>) -> Rc<WriteCache> {
    // A commit may fail here; the second time there is nothing to do.
    let _ = old.clone().suspend().await;
    old.clone().suspend().await.unwrap();
    fail_flushes(fixture, 0);
    let new = load(fixture).await;
    new.clone().take_over(old).await;
    new
}

async fn io(
    cache: &WriteCache,
    opener: u32,
    op: Op,
    flags: Flags,
    block: u64,
) -> Result<(), Status> {
    let class = Class::Foreground;
    let (place, bufs) = if op == Op::Write {
        ((at(block), Sector(BLOCK_SECTORS)), Bufs::from(Buf::copy_of(&pattern(block, 1))))
    } else {
        ((Sector::ZERO, Sector::ZERO), Bufs::new())
    };
    reactor::io_by(Opener(opener), cache, op, flags, class, place, bufs).await
}

async fn write(cache: &WriteCache, opener: u32, block: u64) -> Result<(), Status> {
    io(cache, opener, Op::Write, Flags::empty(), block).await
}

async fn flush(cache: &WriteCache, opener: u32) -> Result<(), Status> {
    io(cache, opener, Op::Flush, Flags::empty(), 0).await
}

fn run(fixture: &Fixture, work: impl AsyncFnOnce(Fixture) + 'static) {
    let machine = boot(fixture);
    let fixture = fixture.clone();
    machine.block_on(async move { work(fixture).await }).unwrap();
    machine.kill();
}

#[test]
fn each_client_of_a_failed_cache_gets_one_error() {
    run(&fixture(1), async move |fixture| {
        let cache = load(&fixture).await;
        let lost = Rc::new(Cell::new(0));
        for opener in [1, 2, 3] {
            write(&cache, opener, u64::from(opener) * 4).await.unwrap();
        }
        flush(&cache, 3).await.unwrap();
        write(&cache, 1, 5).await.unwrap();
        write(&cache, 2, 9).await.unwrap();
        fail_flushes(&fixture, 1000);
        assert_eq!(flush(&cache, 1).await, Err(Status::Io));
        let _ = cache.clone().suspend().await;
        fail_flushes(&fixture, 0);
        let next = load(&fixture).await;
        let requests = lost.clone();
        next.on_event(move |trouble| {
            if let CacheEvent::Lost { requests: n } = trouble {
                requests.set(n);
            }
        });
        next.clone().take_over(cache).await;
        assert_eq!(lost.get(), 2, "the event counts blocks 5 and 9");
        assert_eq!(flush(&next, 1).await, Ok(()), "it had its error before");
        assert_eq!(flush(&next, 2).await, Err(Status::Io), "block 9 is gone");
        assert_eq!(flush(&next, 2).await, Ok(()), "once");
        assert_eq!(flush(&next, 7).await, Ok(()), "it came later");
    });
}

#[test]
fn the_third_table_reports_what_the_second_did_not() {
    run(&fixture(1), async move |fixture| {
        let cache = load(&fixture).await;
        write(&cache, 1, 1).await.unwrap();
        write(&cache, 2, 2).await.unwrap();
        fail_flushes(&fixture, 1000);
        let second = reload(&fixture, cache).await;
        assert_eq!(flush(&second, 1).await, Err(Status::Io));
        let third = reload(&fixture, second).await;
        assert_eq!(flush(&third, 2).await, Err(Status::Io));
        assert_eq!(flush(&third, 1).await, Ok(()));
        assert_eq!(flush(&third, 2).await, Ok(()));
    });
}

#[test]
fn a_cache_that_has_not_failed_hands_on_nothing() {
    run(&fixture(1), async move |fixture| {
        let cache = load(&fixture).await;
        write(&cache, 1, 1).await.unwrap();
        let next = reload(&fixture, cache).await;
        assert_eq!(flush(&next, 1).await, Ok(()), "the suspend has committed it");
    });
}

thread_local! {
    static FAILED: Cell<u64> = const { Cell::new(0) };
}

/// Clients write and flush, the cache device begins to fail flushes at some time, and tables are
/// loaded again. `owed` are the clients with a change that may be lost and that have had no failed
/// FLUSH since.
async fn any_order(fixture: Fixture) {
    let draw = |below: u64| fixture.world.borrow_mut().rng.below(below);
    let mut cache = load(&fixture).await;
    let mut owed = BTreeSet::new();
    for _ in 0..2 + draw(2) {
        let steps = 1 + draw(24);
        let fails_at = draw(steps + 8);
        for step in 0..steps {
            if step == fails_at {
                fail_flushes(&fixture, 1000);
            }
            let opener = 1 + u32::try_from(draw(4)).unwrap();
            match draw(4) {
                0 => {
                    if flush(&cache, opener).await.is_ok() {
                        owed.clear();
                    }
                    owed.remove(&opener);
                }
                1 => {
                    if io(&cache, opener, Op::Write, Flags::FUA, draw(BLOCKS)).await.is_ok() {
                        owed.clear(); // Its commit covers all that came before.
                    }
                }
                _ => {
                    if write(&cache, opener, draw(BLOCKS)).await.is_ok() {
                        owed.insert(opener);
                    }
                }
            }
        }
        let old = cache.clone();
        cache = reload(&fixture, cache).await;
        if old.attribute("error").unwrap() == "0" {
            owed.clear(); // The suspend has made all durable.
        } else {
            FAILED.set(FAILED.get() + 1);
        }
        for opener in 1..=4 {
            if draw(2) == 0 {
                let flushed = flush(&cache, opener).await;
                assert!(!(owed.remove(&opener) && flushed.is_ok()), "opener {opener} is owed one");
                assert_eq!(flush(&cache, opener).await, Ok(()), "opener {opener} gets one error");
            }
        }
    }
}

#[test]
fn a_new_table_that_forgets_losses_is_caught() {
    let found = seeds::first_failure(0..400, |seed| {
        let mut fixture = fixture(seed);
        fixture.config.plant(Some(Fault::LostWritesForgotten));
        run(&fixture, any_order);
        Ok(())
    });
    assert!(found.is_some(), "no opener missed its error in 400 seeds");
}

#[test]
fn each_client_that_lost_a_change_gets_an_error_in_any_order() {
    seeds::run(400, |seed| {
        run(&fixture(seed), any_order);
        Ok(())
    });
    if seeds::count(400) >= 20 {
        assert!(FAILED.get() > 10, "{} caches have failed", FAILED.get());
    }
}
