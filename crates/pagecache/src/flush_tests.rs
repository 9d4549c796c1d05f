// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a FLUSH and a FUA write cost, what they wait for, and when they fail.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Flags, Nanos, PAGE, Target};

use super::*;
use crate::device::PageCache;
use crate::testing::{
    Fixture, MS, Probe, cache, flush, flush_by, pattern, running, try_write, write,
};

#[path = "flush_discards_tests.rs"]
mod discards;
#[path = "flush_errors_tests.rs"]
mod errors;

const QUIET: &str = "memory 64M dirty_bytes 30M dirty_background_bytes 20M";

async fn sleep_ms(ms: u64) {
    reactor::sleep(Nanos(ms * MS)).await;
}

/// A cache of the first disk, without a flusher.
fn quiet(lab: &Fixture) -> (Rc<Probe>, Rc<PageCache>) {
    let disk = lab.disks[0].clone();
    let below: Rc<dyn BlockDevice> = disk.clone();
    (disk, cache(&below, QUIET))
}

/// The same with a planted fault.
fn faulty(lab: &Fixture, fault: Option<Fault>) -> Rc<PageCache> {
    let (_, good) = quiet(lab);
    let mut config = good.store.config.clone();
    config.plant(fault);
    PageCache::new("cache", config, lab.disks[0].clone(), good.store.limits.capacity)
        .expect("the device is good")
}

/// Begins something. Its outcome is in the cell when it has ended.
fn begin(work: impl Future<Output = Result<(), Status>> + 'static) -> Rc<Cell<Option<Status>>> {
    let done = Rc::new(Cell::new(None));
    let set = done.clone();
    reactor::spawn(async move { set.set(Some(work.await.into())) });
    done
}

fn flushing(cache: &Rc<PageCache>, opener: u32) -> Rc<Cell<Option<Status>>> {
    let cache = cache.clone();
    begin(async move { flush_by(&cache, opener).await })
}

/// FLUSHes of many openers, submitted at once.
fn submit_flushes(cache: &PageCache, openers: Range<u32>) -> Vec<reactor::BioFuture> {
    let submit = |opener| {
        let (flags, class) = (Flags::empty(), Class::Foreground);
        let nothing = (Sector::ZERO, Sector::ZERO);
        reactor::io_by(Opener(opener), cache, Op::Flush, flags, class, nothing, block::Bufs::new())
    };
    openers.map(submit).collect()
}

fn count(disk: &Probe, op: Op) -> usize {
    disk.take().iter().filter(|s| s.op == op).count()
}

#[test]
fn a_flush_makes_writes_durable_with_one_flush_below() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        write(&cache, 3..9, 1).await;
        write(&cache, 100..101, 2).await;
        assert_eq!(flush(&cache).await, Ok(()));
        let seen = disk.take();
        let what: Vec<_> = seen.iter().map(|s| (s.op, s.from / 8..s.to / 8)).collect();
        assert_eq!(what, [(Op::Write, 3..9), (Op::Write, 100..101), (Op::Flush, 0..0)]);
        let mut durable = vec![0; PAGE];
        lab.world.borrow().peek_durable(lab.files[0], Sector(800), &mut durable);
        assert_eq!(durable, pattern(100, 2));
        // Nothing is left to be written.
        assert_eq!(flush(&cache).await, Ok(()));
        assert_eq!(disk.take().len(), 1);
    });
}

#[test]
fn concurrent_flushes_share_a_round() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        write(&cache, 0..9, 1).await;
        for flush in submit_flushes(&cache, 1..50) {
            assert_eq!(flush.await, Ok(()));
        }
        let seen = disk.take();
        assert_eq!(seen.iter().filter(|s| s.op == Op::Flush).count(), 1);
        assert_eq!(seen.len(), 2);
    });
}

#[test]
fn a_flush_submitted_during_another_has_its_own_round() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        disk.hold.set(true);
        write(&cache, 0..1, 1).await;
        let first = flushing(&cache, 1);
        sleep_ms(1).await;
        write(&cache, 5..6, 1).await;
        let others: Vec<_> = (2..9).map(|opener| flushing(&cache, opener)).collect();
        sleep_ms(1).await;
        disk.release();
        sleep_ms(100).await;
        assert_eq!(first.get(), Some(Status::Ok));
        assert!(others.iter().all(|f| f.get() == Some(Status::Ok)));
        let ops: Vec<_> = disk.take().iter().map(|s| s.op).collect();
        assert_eq!(ops, [Op::Write, Op::Flush, Op::Write, Op::Flush]);
    });
}

/// The page is on its way below with its first version when the second one is written and flushed.
#[test]
fn a_flush_writes_pages_that_were_rewritten_in_flight() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        disk.hold.set(true);
        write(&cache, 7..8, 1).await;
        let first = flushing(&cache, 1);
        sleep_ms(1).await;
        assert_eq!(disk.held(), 1);
        write(&cache, 7..8, 2).await;
        let second = flushing(&cache, 2);
        sleep_ms(1).await;
        assert_eq!((disk.held(), first.get()), (1, None), "one write of a page at a time");
        disk.release();
        sleep_ms(100).await;
        assert_eq!((first.get(), second.get()), (Some(Status::Ok), Some(Status::Ok)));
        let mut durable = vec![0; PAGE];
        lab.world.borrow().peek_durable(lab.files[0], Sector(56), &mut durable);
        assert_eq!(durable, pattern(7, 2));
    });
}

/// As above, but the first write is the flusher's.
#[test]
fn a_flush_waits_for_ioends_of_the_flusher() {
    Fixture::new(1, 8192).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = lab.disks[0].clone();
        disk.hold.set(true);
        write(&cache, 0..16, 1).await;
        cache.writeback.flusher.request();
        sleep_ms(1).await;
        assert_eq!(disk.held(), 1);
        write(&cache, 4..5, 2).await;
        let done = flushing(&cache, 1);
        sleep_ms(50).await;
        assert_eq!(done.get(), None);
        assert_eq!(count(&disk, Op::Flush), 0);
        disk.release();
        sleep_ms(50).await;
        assert_eq!(done.get(), Some(Status::Ok));
        assert_eq!(disk.take_writes().first(), Some(&(4..5)));
        assert_eq!(lab.page(0, 4), pattern(4, 2));
    });
}

#[test]
fn a_flush_ends_although_writers_never_stop() {
    Fixture::new(1, 8192).run(async |lab| {
        let (_, cache) = quiet(&lab);
        let stop = Rc::new(Cell::new(false));
        for nth in 0..4 {
            let (cache, stop) = (cache.clone(), stop.clone());
            reactor::spawn(async move {
                let mut version = 0_u8;
                while !stop.get() {
                    version = version.wrapping_add(1);
                    write(&cache, nth * 3..nth * 3 + 5, version).await;
                    reactor::sleep(Nanos(5000)).await;
                }
            });
        }
        sleep_ms(5).await;
        let begun = reactor::now();
        for _ in 0..20 {
            assert_eq!(flush(&cache).await, Ok(()));
        }
        // Two writes and a flush each, of up to 60 and 480 us.
        assert!((reactor::now() - begun).0 < 20 * MS, "{:?}", reactor::now() - begun);
        stop.set(true);
        sleep_ms(1).await;
    });
}

#[test]
fn a_flush_whose_writes_fail_fails() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        disk.bad.borrow_mut().push(80..81);
        write(&cache, 0..100, 1).await;
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Io));
        assert_eq!(count(&disk, Op::Flush), 1, "PC-FL3");
        assert!(cache.store.errors.failed.any());
        assert_eq!(cache.store.dirty_bytes(), 100 * PAGE as u64, "all of its ioend");
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Io), "tried again");
        assert_eq!(count(&disk, Op::Write), 1);
        disk.bad.borrow_mut().clear();
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
        assert_eq!(lab.page(0, 10), pattern(10, 1));
        assert!(!cache.store.errors.failed.any());
        assert_eq!(cache.writeback.ioends.stats.retries.get(), 2);
    });
}

#[test]
fn each_opener_gets_an_error_of_the_flusher_once() {
    Fixture::new(1, 8192).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = lab.disks[0].clone();
        for opener in [1, 2, 3] {
            let page = u64::from(opener);
            let put = try_write(&cache, Opener(opener), Flags::empty(), page..page + 1, 1);
            assert_eq!(put.await, Ok(()));
        }
        disk.bad.borrow_mut().push(0..100);
        cache.writeback.flusher.request();
        sleep_ms(10).await;
        disk.bad.borrow_mut().clear();
        sleep_ms(1000).await;
        assert_eq!(cache.store.dirty_bytes(), 0, "written when it was tried again");
        for opener in [1, 2, 3] {
            assert_eq!(flush_by(&cache, opener).await, Err(Status::Io));
        }
        for opener in [1, 2, 3, 4] {
            assert_eq!(flush_by(&cache, opener).await, Ok(()));
        }
    });
}

#[test]
fn a_failed_flush_below_fails_its_flushes_and_later_ones() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        for opener in 1..5 {
            let put = try_write(&cache, Opener(opener), Flags::empty(), 0..1, 1);
            assert_eq!(put.await, Ok(()));
        }
        disk.flushes_fail.set(true);
        for flush in submit_flushes(&cache, 1..4) {
            assert_eq!(flush.await, Err(Status::Timeout));
        }
        assert_eq!(count(&disk, Op::Flush), 1, "it is not sent a second time");
        disk.flushes_fail.set(false);
        assert_eq!(flush_by(&cache, 4).await, Err(Status::Timeout), "its page may be lost too");
        for opener in 1..5 {
            assert_eq!(flush_by(&cache, opener).await, Ok(()));
        }
    });
}

/// FLUSHes of these openers, each of which comes after the one before has got as far as it can; the
/// flush below that the first one has brought about fails then. What each ends with.
async fn flushes_beside_a_failing_one(
    lab: &Fixture,
    cache: &Rc<PageCache>,
    openers: &[u32],
) -> Vec<Option<Status>> {
    let disk = &lab.disks[0];
    disk.hold_ops.borrow_mut().push(Op::Flush);
    let mut flushes = Vec::new();
    for &opener in openers {
        flushes.push(flushing(cache, opener));
        sleep_ms(1).await;
    }
    assert_eq!(disk.held(), 1, "one flush below at a time");
    disk.fail_held_flush();
    disk.release();
    sleep_ms(100).await;
    flushes.iter().map(|f| f.get()).collect()
}

/// Found by an attack from outside, with a server that holds a flush and fails it: the second FLUSH
/// of a connection was submitted while the first one was under way, and should have covered the
/// same write. It had a round of its own, which found nothing to do, and its opener had got the
/// error from the first one: so it succeeded, although its data were lost.
#[test]
fn a_flush_submitted_while_another_fails_fails_too() {
    for openers in [[1, 1, 1], [1, 2, 1], [1, 2, 3]] {
        Fixture::new(1, 8192).run(async move |lab| {
            let (_, cache) = quiet(&lab);
            write(&cache, 0..4, 1).await;
            let ended = flushes_beside_a_failing_one(&lab, &cache, &openers).await;
            assert_eq!(ended, [Some(Status::Timeout); 3], "{openers:?}");
            for opener in openers {
                assert_eq!(flush_by(&cache, opener).await, Ok(()), "it was reported");
            }
        });
    }
}

/// As above; the error is the flusher's, and the second FLUSH writes the page again.
#[test]
fn a_flush_submitted_before_an_error_was_reported_fails_too() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        disk.bad.borrow_mut().push(0..8);
        disk.hold_ops.borrow_mut().push(Op::Write);
        write(&cache, 0..1, 1).await;
        let first = flushing(&cache, 1);
        sleep_ms(1).await;
        let second = flushing(&cache, 1);
        sleep_ms(1).await;
        disk.release_first();
        disk.bad.borrow_mut().clear();
        disk.release();
        sleep_ms(100).await;
        assert_eq!((first.get(), second.get()), (Some(Status::Io), Some(Status::Io)));
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
        assert_eq!(lab.page(0, 0), pattern(0, 1));
    });
}

/// The client of opener 1 loses its connection before it gets the error, and connects again.
#[test]
fn a_client_that_reconnects_gets_a_failed_flush() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        write(&cache, 0..4, 1).await;
        disk.flushes_fail.set(true);
        assert_eq!(flush_by(&cache, 2).await, Err(Status::Timeout));
        disk.flushes_fail.set(false);
        assert_eq!(flush_by(&cache, 3).await, Err(Status::Timeout), "in the place of opener 1");
        assert_eq!(flush_by(&cache, 4).await, Ok(()));
        // What was durable before was not at risk.
        write(&cache, 0..4, 2).await;
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Timeout), "it was only idle");
        assert_eq!(flush_by(&cache, 2).await, Ok(()));
        disk.flushes_fail.set(true);
        assert_eq!(flush_by(&cache, 2).await, Err(Status::Timeout));
        disk.flushes_fail.set(false);
        assert_eq!(flush_by(&cache, 5).await, Ok(()));
    });
}

/// A new table makes a new cache, which reports the errors that the old one has not reported.
#[test]
fn the_cache_of_a_new_table_reports_unreported_errors() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, first) = quiet(&lab);
        first.clone().resume().await.expect("it resumes");
        write(&first, 0..4, 1).await;
        disk.flushes_fail.set(true);
        assert_eq!(flush_by(&first, 2).await, Err(Status::Timeout));
        disk.flushes_fail.set(false);
        let (_, next) = quiet(&lab);
        first.clone().suspend().await.expect("everything is written");
        next.clone().resume().await.expect("it resumes");
        next.clone().take_over(first).await;
        assert_eq!(flush_by(&next, 1).await, Err(Status::Timeout), "its write was lost");
        assert_eq!(flush_by(&next, 1).await, Ok(()));
        assert_eq!(flush_by(&next, 2).await, Ok(()), "it was reported before");
    });
}

/// A page is on its way below while a flush there fails: the failure may have found it in the
/// device's cache, so it is written again.
#[test]
fn pages_in_flight_while_a_flush_fails_are_written_again() {
    Fixture::new(1, 8192).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = lab.disks[0].clone();
        write(&cache, 0..1, 1).await;
        disk.hold_ops.borrow_mut().push(Op::Flush);
        let first = flushing(&cache, 1);
        sleep_ms(10).await;
        disk.hold.set(true);
        write(&cache, 8..10, 1).await;
        cache.writeback.flusher.request();
        sleep_ms(10).await;
        assert_eq!(disk.held(), 2);
        disk.fail_held_flush();
        disk.release();
        sleep_ms(10).await;
        assert_eq!(first.get(), Some(Status::Timeout));
        disk.take();
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
        let what: Vec<_> = disk.take().iter().map(|s| (s.op, s.from / 8..s.to / 8)).collect();
        assert_eq!(what, [(Op::Write, 8..10), (Op::Flush, 0..0)]);
        assert!(!cache.store.errors.failed.any());
    });
}

/// Zeroes of pages 20 to 29, of which 22 and 23 are dirty, are below while a flush there fails,
/// which opener 1 gets. Returns the outcome of the zeroes.
async fn zeroes_beside_a_failing_flush(
    lab: &Fixture,
    cache: &Rc<PageCache>,
    op: Op,
    flags: Flags,
) -> Option<Status> {
    let disk = &lab.disks[0];
    write(cache, 0..1, 1).await;
    write(cache, 20..30, 1).await;
    disk.hold_ops.borrow_mut().push(Op::Flush);
    let first = flushing(cache, 1);
    sleep_ms(10).await;
    write(cache, 22..24, 2).await;
    disk.hold_ops.borrow_mut().push(op);
    let inner = cache.clone();
    let zeroes = begin(async move {
        let (at, class) = ((Sector(160), Sector(80)), Class::Normal);
        reactor::io_by(Opener(1), &*inner, op, flags, class, at, block::Bufs::new()).await
    });
    sleep_ms(10).await;
    assert_eq!(disk.held(), 2);
    disk.fail_held_flush();
    sleep_ms(10).await;
    assert_eq!(first.get(), Some(Status::Timeout));
    disk.release();
    sleep_ms(10).await;
    assert_eq!(flush_by(cache, 1).await, Ok(()), "it was reported");
    zeroes.get()
}

/// The cache cannot send the zeroes again, so the client must. Found by the attack tests: zeroes
/// were acknowledged after the flush below had failed, and no FLUSH reported them.
#[test]
fn zeroes_in_flight_while_a_flush_fails_end_in_an_error() {
    for (op, flags, outcome) in [
        (Op::WriteZeroes, Flags::empty(), Status::Io),
        (Op::Discard, Flags::empty(), Status::Io),
        (Op::WriteZeroes, Flags::FUA, Status::Ok),
    ] {
        Fixture::new(1, 8192).run(async move |lab| {
            let (_, cache) = quiet(&lab);
            let ended = zeroes_beside_a_failing_flush(&lab, &cache, op, flags).await;
            assert_eq!(ended, Some(outcome), "{op} {flags:?}");
            if outcome != Status::Ok {
                assert_eq!(lab.page(0, 23), pattern(23, 2), "what was dirty is written");
            }
        });
    }
}

#[test]
fn planted_faults_around_a_failed_flush_are_detected() {
    Fixture::new(1, 8192).run(async |lab| {
        let cache = faulty(&lab, Some(Fault::SampleAtEnd));
        write(&cache, 0..4, 1).await;
        let ended = flushes_beside_a_failing_one(&lab, &cache, &[1, 1]).await;
        assert_eq!(ended, [Some(Status::Timeout), Some(Status::Ok)]);
    });
    Fixture::new(1, 8192).run(async |lab| {
        let cache = faulty(&lab, Some(Fault::SkipNewOpeners));
        write(&cache, 0..4, 1).await;
        lab.disks[0].flushes_fail.set(true);
        assert_eq!(flush_by(&cache, 2).await, Err(Status::Timeout));
        lab.disks[0].flushes_fail.set(false);
        assert_eq!(flush_by(&cache, 3).await, Ok(()));
    });
    Fixture::new(1, 8192).run(async |lab| {
        let cache = faulty(&lab, Some(Fault::TrustWritesDuringFailedFlush));
        let (op, flags) = (Op::WriteZeroes, Flags::empty());
        let ended = zeroes_beside_a_failing_flush(&lab, &cache, op, flags).await;
        assert_eq!(ended, Some(Status::Ok));
    });
}

#[test]
fn a_fua_write_costs_one_write_with_fua() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        write(&cache, 40..60, 1).await;
        assert_eq!(try_write(&cache, Opener(1), Flags::FUA, 10..14, 2).await, Ok(()));
        let seen = disk.take();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].from, seen[0].to), (80, 112));
        assert_eq!(seen[0].flags, Flags::FUA | Flags::SYNC);
        let mut durable = vec![0; PAGE];
        lab.world.borrow().peek_durable(lab.files[0], Sector(88), &mut durable);
        assert_eq!(durable, pattern(11, 2));
    });
}

#[test]
fn a_fua_write_larger_than_an_ioend_costs_a_flush() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        assert_eq!(try_write(&cache, Opener(1), Flags::FUA, 0..512, 2).await, Ok(()));
        let what: Vec<_> = disk.take().iter().map(|s| (s.op, s.flags)).collect();
        let write = (Op::Write, Flags::SYNC);
        assert_eq!(what, [write, write, (Op::Flush, Flags::empty())]);
    });
}

#[test]
fn a_device_without_a_cache_is_sent_no_flushes() {
    Fixture::with(1, 8192, |limits| limits.volatile_cache = false).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        assert_eq!(try_write(&cache, Opener(1), Flags::FUA, 0..2, 2).await, Ok(()));
        write(&cache, 4..5, 1).await;
        assert_eq!(flush(&cache).await, Ok(()));
        let what: Vec<_> = disk.take().iter().map(|s| (s.op, s.flags)).collect();
        assert_eq!(what, [(Op::Write, Flags::SYNC); 2]);
    });
}

#[test]
fn fua_of_a_page_in_flight_waits_for_it_and_flushes() {
    Fixture::new(1, 8192).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = lab.disks[0].clone();
        disk.hold.set(true);
        write(&cache, 0..16, 1).await;
        cache.writeback.flusher.request();
        sleep_ms(1).await;
        let inner = cache.clone();
        let done = begin(async move { try_write(&inner, Opener(1), Flags::FUA, 4..6, 2).await });
        sleep_ms(20).await;
        assert_eq!((disk.held(), done.get()), (1, None));
        disk.release();
        sleep_ms(20).await;
        assert_eq!(done.get(), Some(Status::Ok));
        let what: Vec<_> = disk.take().iter().map(|s| (s.op, s.from / 8..s.to / 8)).collect();
        assert_eq!(what, [(Op::Write, 0..16), (Op::Write, 4..6), (Op::Flush, 0..0)]);
    });
}

#[test]
fn fua_fails_only_when_a_write_of_its_own_pages_fails() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        disk.bad.borrow_mut().push(80..88);
        assert_eq!(try_write(&cache, Opener(1), Flags::FUA, 10..11, 2).await, Err(Status::Io));
        assert_eq!(try_write(&cache, Opener(1), Flags::FUA, 11..12, 2).await, Ok(()));
    });
}

/// A page of the FUA write went below in the background, and the flush that should have covered it
/// has failed: the flush that the FUA write brings about can't cover it any more.
#[test]
fn fua_does_not_trust_a_flush_after_a_failed_one() {
    Fixture::new(1, 8192).run(async |lab| {
        let (disk, cache) = quiet(&lab);
        let before = cache.store.errors.flush_errors();
        write(&cache, 0..1, 1).await;
        disk.flushes_fail.set(true);
        assert_eq!(flush_by(&cache, 7).await, Err(Status::Timeout));
        disk.flushes_fail.set(false);
        assert_eq!(cache.writeback.sync_range(&cache.store, 0..1, before).await, Err(Status::Io));
        let now = cache.store.errors.flush_errors();
        assert_eq!(cache.writeback.sync_range(&cache.store, 0..1, now).await, Ok(()));
    });
}
