// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When the flusher writes, in what order, how much at once, and how it retries.
use std::rc::Rc;

use block::{Class, Flags, Opener, PAGE, Sector, Status, Target};
use sim::{Machine, RunEnd};

use super::*;
use crate::testing::{Fixture, MIB, MS, flush, flush_by, pattern, running, try_write, write};

const QUIET: &str = "memory 64M dirty_bytes 30M dirty_background_bytes 20M";
/// Background writeback begins at 1 MiB.
const EAGER: &str = "memory 64M dirty_bytes 30M dirty_background_bytes 1M";

async fn sleep_ms(ms: u64) {
    reactor::sleep(Nanos(ms * MS)).await;
}

#[test]
fn dirty_pages_above_the_background_threshold_are_written() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        write(&cache, 0..256, 1).await;
        sleep_ms(100).await;
        assert!(disk.take().is_empty(), "1 MiB is not above 1 MiB");
        write(&cache, 256..257, 1).await;
        sleep_ms(100).await;
        let seen = disk.take();
        assert_eq!(seen.iter().map(|s| (s.to - s.from) / 8).sum::<u64>(), 257, "all, up to 4 MiB");
        let background = |s: &crate::testing::DiskRequest| {
            s.flags == Flags::BACKGROUND && s.class == Class::Background
        };
        assert!(seen.iter().all(background));
        assert_eq!(cache.store.dirty_bytes(), 0);
        assert_eq!(lab.page(0, 256), pattern(256, 1));
    });
}

#[test]
fn background_writeback_ascends_from_its_cursor_and_wraps() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        // Every other page of 16 MiB: more than a chunk.
        disk.hold.set(true);
        for page in (0..4096).step_by(2) {
            write(&cache, page..page + 1, 1).await;
        }
        sleep_ms(10).await;
        disk.release();
        sleep_ms(100).await;
        let starts: Vec<_> = disk.take_writes().iter().map(|w| w.start).collect();
        assert!(starts.is_sorted(), "{starts:?}");
        assert!(cache.store.dirty_bytes() <= MIB);
        let cursor = cache.writeback.flusher.cursor.get();
        assert!(cursor > 0 && cursor >= *starts.last().unwrap());
        // What lies before the cursor comes after what lies behind it.
        for page in (0..600).step_by(2) {
            write(&cache, page..page + 1, 2).await;
        }
        sleep_ms(100).await;
        let starts: Vec<_> = disk.take_writes().iter().map(|w| w.start).collect();
        let turn = starts.iter().position(|s| *s < cursor).unwrap();
        assert!(starts[..turn].is_sorted() && starts[turn..].is_sorted());
        assert!(starts[..turn].iter().all(|s| *s >= cursor));
    });
}

#[test]
fn ioends_in_flight_are_bounded() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        disk.hold.set(true);
        // 24 MiB in large folios.
        for at in (0..6144).step_by(256) {
            write(&cache, at..at + 256, 1).await;
        }
        sleep_ms(10).await;
        assert_eq!(disk.held(), 16);
        assert_eq!(cache.writeback.ioends.in_flight_bytes(), 16 * MIB);
        disk.release();
        assert_eq!(flush(&cache).await, Ok(()));
        // Scattered pages: many more, but not without end.
        disk.hold.set(true);
        for page in (0..4096).step_by(3) {
            write(&cache, page..page + 1, 2).await;
        }
        sleep_ms(10).await;
        assert_eq!(disk.held(), 256);
        disk.release();
        sleep_ms(100).await;
        assert!(cache.store.dirty_bytes() <= MIB);
    });
}

#[test]
fn old_pages_are_written_and_no_timer_runs_while_all_is_clean() {
    let lab = Fixture::new(1, 65536);
    let machine = Machine::boot(&lab.world, 1);
    let inner = lab.clone();
    let cache = machine.block_on(async move { running(&inner, QUIET).await }).unwrap();
    assert_eq!(machine.run(|| false), RunEnd::Idle, "no timer runs");
    let (inner, writer) = (lab.clone(), cache.clone());
    let begun = lab.world.borrow().now();
    let work = async move {
        write(&writer, 0..4, 1).await;
        sleep_ms(4000).await;
        write(&writer, 100..104, 1).await;
        sleep_ms(25_000).await;
        assert_eq!(inner.disks[0].take(), []);
        sleep_ms(7_000).await;
        // Checked every 5 s, written when 30 s old.
        let seen: Vec<_> =
            inner.disks[0].take().iter().map(|s| (s.at_ms - begun.0 / MS, s.from / 8)).collect();
        assert_eq!(seen, [(30_000, 0), (35_000, 100)]);
        assert_eq!(writer.store.dirty_bytes(), 0);
    };
    machine.block_on(work).unwrap();
    assert_eq!(machine.run(|| false), RunEnd::Idle);
    let idle_at = lab.world.borrow().now();
    assert!((idle_at - begun).0 <= 40_000 * MS, "a timer ran on until {idle_at:?}");
    machine.kill();
}

#[test]
fn an_interval_of_zero_means_never_and_a_new_one_counts_at_once() {
    Fixture::new(1, 65536).run(async |lab| {
        let more = "dirty_writeback_centisecs 0 dirty_expire_centisecs 100";
        let cache = running(&lab, &format!("{QUIET} {more}")).await;
        write(&cache, 0..4, 1).await;
        sleep_ms(100_000).await;
        assert!(lab.disks[0].take().is_empty());
        let set = cache.clone().set_attribute("dirty_writeback_centisecs".into(), "50".into());
        assert!(set.await.is_ok());
        sleep_ms(600).await;
        assert_eq!(lab.disks[0].take_writes().first(), Some(&(0..4)));
    });
}

#[test]
fn failed_pages_are_retried_with_growing_pauses() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(8000..8008);
        for page in (0..2048).step_by(2) {
            write(&cache, page..page + 1, 1).await;
        }
        sleep_ms(20_000).await;
        let (bad, good): (Vec<_>, Vec<_>) =
            disk.take().into_iter().partition(|s| s.from <= 8000 && 8000 < s.to);
        assert_eq!(good.len(), 1023, "the others are written at once");
        let times: Vec<_> = bad.windows(2).map(|w| w[1].at_ms - w[0].at_ms).collect();
        assert_eq!(times, [100, 200, 400, 800, 1600, 3200, 6400]);
        assert_eq!(cache.store.errors.failed.since().map(|(_, pages)| pages), Some(1));
        assert!(cache.store.is_stuck(), "nothing else is left to be written");
        // Something else is, and is not held up.
        for page in (1..600).step_by(2) {
            write(&cache, page..page + 1, 1).await;
        }
        sleep_ms(100).await;
        assert!(!cache.store.is_stuck() && cache.store.errors.failed.any());
        disk.bad.borrow_mut().clear();
        sleep_ms(10_000).await;
        assert!(!cache.store.errors.failed.any());
        assert_eq!(lab.page(0, 1000), pattern(1000, 1));
    });
}

/// A page that can't be written takes its ioend with it, but not for long.
#[test]
fn the_second_retry_writes_the_pages_beside_a_bad_one() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(804..805);
        write(&cache, 0..512, 1).await;
        sleep_ms(50).await;
        assert_eq!(cache.store.errors.failed.since().map(|(_, pages)| pages), Some(256));
        sleep_ms(100).await;
        assert_eq!(cache.store.errors.failed.since().map(|(_, pages)| pages), Some(256));
        sleep_ms(200).await;
        assert_eq!(cache.store.errors.failed.since().map(|(_, pages)| pages), Some(1));
        assert_eq!(lab.page(0, 99), pattern(99, 1));
        assert_eq!(lab.page(0, 101), pattern(101, 1));
        // A page that is written beside it later does not fail with it.
        write(&cache, 90..110, 2).await;
        assert_eq!(flush(&cache).await, Err(Status::Io));
        assert_eq!(cache.store.errors.failed.since().map(|(_, pages)| pages), Some(1));
        assert_eq!(cache.store.dirty_bytes(), PAGE as u64);
        assert_eq!(lab.page(0, 101), pattern(101, 2));
    });
}

#[test]
fn a_flush_retries_failed_pages_at_once() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(0..8);
        write(&cache, 0..1, 1).await;
        assert_eq!(flush(&cache).await, Err(Status::Io));
        sleep_ms(2000).await;
        disk.bad.borrow_mut().clear();
        disk.take();
        let begun = reactor::now();
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Io), "of the retries meanwhile");
        assert_eq!(flush_by(&cache, 1).await, Ok(()));
        assert!((reactor::now() - begun).0 < 10 * MS);
        assert_eq!(lab.page(0, 0), pattern(0, 1));
    });
}

#[test]
fn a_discard_of_failed_pages_ends_the_failure() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(0..80);
        write(&cache, 0..10, 1).await;
        cache.writeback.flusher.request();
        sleep_ms(50).await;
        assert!(cache.store.errors.failed.any());
        let discard = reactor::discard(&*cache, Class::Normal, Sector(0), Sector(80));
        assert_eq!(discard.await, Ok(()));
        assert!(!cache.store.errors.failed.any());
        assert_eq!(cache.store.dirty_bytes(), 0);
    });
}

#[test]
fn a_dead_device_makes_the_cache_stuck_until_it_returns() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(0..65536);
        for at in (0..1024).step_by(128) {
            write(&cache, at..at + 128, 1).await;
        }
        sleep_ms(50).await;
        assert!(
            cache.store.errors.failed.any() && !cache.store.is_stuck(),
            "it has not been retried"
        );
        sleep_ms(100).await;
        assert!(cache.store.is_stuck());
        let tried = disk.take().len();
        assert!(tried <= 16, "each page once, and once more: {tried}");
        disk.bad.borrow_mut().clear();
        sleep_ms(1000).await;
        assert!(!cache.store.is_stuck() && !cache.store.errors.failed.any());
        assert_eq!(cache.store.dirty_bytes(), 0);
        let text = cache.store.errors.describe().unwrap();
        assert!(text.contains("8 errors, the last: a: write at sector "), "{text}");
    });
}

#[test]
fn no_write_begins_after_the_flusher_was_stopped() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, EAGER).await;
        let disk = &lab.disks[0];
        disk.hold.set(true);
        for at in (0..4096).step_by(128) {
            write(&cache, at..at + 128, 1).await;
        }
        sleep_ms(1).await;
        let inner = cache.clone();
        let stopped = Rc::new(Cell::new(false));
        let set = stopped.clone();
        reactor::spawn(async move {
            inner.writeback.flusher.stop(&inner.writeback.ioends).await;
            set.set(true);
        });
        sleep_ms(1).await;
        disk.release();
        sleep_ms(100).await;
        assert!(stopped.get());
        assert_eq!(cache.store.folios.borrow().writing_pages(), 0);
        disk.take();
        for at in (0..4096).step_by(128) {
            write(&cache, at..at + 128, 2).await;
        }
        sleep_ms(60_000).await;
        assert!(disk.take().is_empty());
        cache.clone().resume().await.expect("it resumes");
        sleep_ms(100).await;
        assert!(cache.store.dirty_bytes() <= MIB);
    });
}

#[test]
fn suspend_fails_only_when_a_page_could_not_be_written() {
    Fixture::new(1, 65536).run(async |lab| {
        let cache = running(&lab, QUIET).await;
        let disk = &lab.disks[0];
        disk.bad.borrow_mut().push(0..8);
        let put = try_write(&cache, Opener(1), Flags::empty(), 0..1, 1);
        assert_eq!(put.await, Ok(()));
        let refused = cache.clone().suspend().await.expect_err("the page is lost").chain();
        assert!(refused.contains("a: write at sector 0"), "{refused}");
        disk.bad.borrow_mut().clear();
        assert!(cache.clone().suspend().await.is_ok(), "an old error is not one of this suspend");
        assert_eq!(lab.page(0, 0), pattern(0, 1));
        cache.clone().resume().await.unwrap();
        assert_eq!(flush_by(&cache, 1).await, Err(Status::Io), "but the opener gets the error");
    });
}
