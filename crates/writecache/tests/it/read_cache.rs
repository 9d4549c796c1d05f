// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The read cache: what enters, what does not, that writes come first, and what a restart finds.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Nanos, Op, Status, Target};
use sim::Machine;
use writecache::{Fault, WriteCache};

use crate::common::faulty_cache::{life, millis};
use crate::common::stalled::StalledDevice;
use crate::common::{
    BLOCK, Fixture, at, expect, fill, flush, get, number, pattern, put, say, suspend,
};

/// Nothing is written back unless it is asked for.
pub(crate) const READS: &str = "high_watermark 100 low_watermark 100 read_cache 1";

/// An origin of 16 MiB and a cache of 4 MiB.
fn fixture(options: &str, fault: Option<Fault>) -> Fixture {
    let mut fixture = Fixture::new(4096, 4 << 10, &format!("{READS} {options}"));
    fixture.config.plant(fault);
    fixture
}

pub(crate) async fn set(cache: &Rc<WriteCache>, name: &str, value: &str) {
    cache.clone().set_attribute(name.to_owned(), value.to_owned()).await.unwrap();
}

/// The origin alone has version 1 of these blocks.
pub(crate) async fn fill_origin(cache: &Rc<WriteCache>, blocks: Range<u64>) {
    for block in blocks {
        put(&**cache, block, 1).await.unwrap();
        if number(cache, "free_blocks") < 100 {
            say(cache, "flush").await.unwrap();
        }
    }
    say(cache, "flush").await.unwrap();
    assert_eq!(number(cache, "used_blocks"), 0);
}

/// Reads blocks in an order without streams, and waits for admissions.
pub(crate) async fn read(cache: &Rc<WriteCache>, blocks: Range<u64>, version: u64) {
    let count = blocks.end - blocks.start;
    let step = (count / 3..).find(|step| gcd(*step, count) == 1).unwrap_or(1);
    for n in 0..count {
        let block = blocks.start + n * step % count;
        expect(&**cache, block..block + 1, version).await;
    }
    millis(2).await;
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(crate) fn figures<const N: usize>(cache: &WriteCache, names: [&str; N]) -> [u64; N] {
    names.map(|name| number(cache, name))
}

pub(crate) fn admitted(cache: &WriteCache) -> u64 {
    number(cache, "read_admitted")
}

#[test]
fn a_block_that_is_read_again_is_served_by_the_cache() {
    let fixture = fixture("", None);
    let inner = fixture.clone();
    fixture
        .life(async move |cache| {
            fill_origin(&cache, 0..100).await;
            read(&cache, 0..100, 1).await;
            assert_eq!(figures(&cache, ["read_admitted", "clean_blocks"]), [0, 0]);
            assert_eq!(number(&cache, "read_refused_once"), 100);
            let hits = number(&cache, "read_hits");
            read(&cache, 0..100, 1).await;
            assert_eq!(figures(&cache, ["read_admitted", "clean_blocks"]), [100, 100]);
            assert_eq!(number(&cache, "read_hits"), hits);
            assert_eq!(number(&cache, "admitted_write_bytes"), 100 * BLOCK as u64);
            let asked = inner.world.borrow().stats(inner.origin).reads;
            read(&cache, 0..100, 1).await;
            assert_eq!(inner.world.borrow().stats(inner.origin).reads, asked);
            assert_eq!(number(&cache, "read_hits"), hits + 100);
            assert_eq!(number(&cache, "read_hit_percent"), 33);
            assert_eq!(number(&cache, "dirty_blocks"), 0);
            cache.check();
        })
        .unwrap();
}

#[test]
fn without_the_option_no_read_enters_the_cache() {
    let fixture = fixture("", None);
    fixture
        .life(async |cache| {
            set(&cache, "read_cache", "0").await;
            fill_origin(&cache, 0..100).await;
            for _ in 0..3 {
                read(&cache, 0..100, 1).await;
            }
            assert_eq!(figures(&cache, ["read_admitted", "used_blocks"]), [0, 0]);
            assert_eq!(cache.attribute("read_cache_state").unwrap(), "off");
            set(&cache, "read_cache", "1").await;
            assert_eq!(cache.attribute("read_cache_state").unwrap(), "on");
            for _ in 0..2 {
                read(&cache, 0..100, 1).await;
            }
            assert_eq!(admitted(&cache), 100);
        })
        .unwrap();
}

#[test]
fn a_long_read_enters_with_its_blocks_that_were_read_before() {
    let fixture = fixture("", None);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..256).await;
            read(&cache, 0..50, 1).await;
            read(&cache, 100..120, 1).await;
            let buf = Buf::zeroed(160 * BLOCK);
            let all = buf.all().into();
            reactor::read(&*cache, Class::Foreground, at(0), all).await.unwrap();
            for (n, data) in (0..160).zip(buf.read(|b| b.to_vec()).chunks(BLOCK)) {
                assert_eq!(data, pattern(n, 1), "block {n}");
            }
            millis(10).await;
            // The last few of the first reads are too near.
            let entered = admitted(&cache);
            assert!((54..=70).contains(&entered), "{entered}");
            read(&cache, 0..160, 1).await;
        })
        .unwrap();
}

#[test]
fn long_streams_never_enter() {
    let fixture = fixture("sequential_read_cutoff 65536", None);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..600).await;
            for _ in 0..3 {
                expect(&*cache, 0..300, 1).await;
                millis(2).await;
                let buf = Buf::zeroed(64 * BLOCK);
                let all = buf.all().into();
                reactor::read(&*cache, Class::Foreground, at(400), all).await.unwrap();
            }
            // The beginning of a stream is no stream yet.
            assert!(admitted(&cache) <= 20, "{}", admitted(&cache));
            assert!(number(&cache, "read_refused_sequential") >= 3 * (280 + 64));
            set(&cache, "sequential_read_cutoff", "0").await;
            for _ in 0..3 {
                expect(&*cache, 0..300, 1).await;
            }
            millis(2).await;
            assert!(admitted(&cache) >= 300);
        })
        .unwrap();
}

#[test]
fn the_budget_of_a_day_is_kept() {
    let fixture = fixture("read_admit_bytes_per_day 40960", None);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..100).await;
            for _ in 0..3 {
                read(&cache, 0..100, 1).await;
            }
            assert_eq!(figures(&cache, ["read_admitted", "clean_blocks"]), [10, 10]);
            assert!(number(&cache, "read_refused_budget") >= 150);
            millis(25 * 3_600_000).await;
            read(&cache, 0..100, 1).await;
            assert_eq!(admitted(&cache), 20);
        })
        .unwrap();
}

#[test]
fn what_was_admitted_is_there_after_a_restart() {
    for with_power_cut in [false, true] {
        let fixture = fixture("autocommit_time 50", None);
        let inner = fixture.clone();
        let machine = Machine::boot(&fixture.world, 1);
        let cache = fixture.target();
        let done = machine.block_on(async move {
            cache.clone().resume().await.unwrap();
            fill_origin(&cache, 0..100).await;
            read(&cache, 0..100, 1).await;
            read(&cache, 0..100, 1).await;
            assert_eq!(admitted(&cache), 100);
            // Twice: first the data are made durable, then the log names them.
            match with_power_cut {
                true => millis(200).await,
                false => suspend(&cache).await,
            }
        });
        done.expect("no power cut was planned");
        machine.power_cut();
        fixture
            .life(async move |cache| {
                assert_eq!(figures(&cache, ["clean_blocks", "dirty_blocks"]), [100, 0]);
                let asked = inner.world.borrow().stats(inner.origin).reads;
                read(&cache, 0..100, 1).await;
                assert_eq!(inner.world.borrow().stats(inner.origin).reads, asked);
                assert_eq!(number(&cache, "checksum_errors"), 0);
                assert_eq!(number(&cache, "metadata_write_bytes") % 4096, 0);
            })
            .unwrap();
    }
}

/// Reads blocks, of which all enter the cache.
async fn admit_all(cache: &Rc<WriteCache>, blocks: Range<u64>) {
    for from in blocks.clone().step_by(100) {
        let some = from..blocks.end.min(from + 100);
        read(cache, some.clone(), 1).await;
        read(cache, some, 1).await;
    }
}

/// The least slots that are free while clients read and reclaim can make no room; and how many it
/// keeps.
fn least_free_slots(fault: Option<Fault>) -> (u64, u64) {
    let found = Rc::new(Cell::new((0, 0)));
    let seen = found.clone();
    held(&fixture("", fault), async move |cache, _, device| {
        fill_origin(&cache, 100..1200).await;
        device.hold(|bio| bio.op == Op::Flush);
        admit_all(&cache, 100..1200).await;
        let slots = number(&cache, "total_blocks");
        seen.set((slots - number(&cache, "used_blocks"), slots / 16));
        device.release();
        millis(10).await;
        admit_all(&cache, 0..100).await;
        assert!(number(&cache, "clean_blocks") > slots * 3 / 4, "they enter again");
    });
    found.get()
}

#[test]
fn reads_leave_the_slots_that_are_kept_for_writers() {
    let (least, kept) = least_free_slots(None);
    assert!((kept - 1..=kept).contains(&least), "{least} of {kept}");
}

#[test]
fn reads_that_take_the_last_slots_are_caught() {
    assert_eq!(least_free_slots(Some(Fault::AdmitLastSlots)).0, 0);
}

/// Time that a burst of writes takes in a cache that is empty, or full of clean blocks.
fn burst_ns(is_full: bool) -> u64 {
    let fixture = Fixture::new(20_000, 32 << 10, READS);
    fixture
        .life(async move |cache| {
            fill_origin(&cache, 0..20_000).await;
            let slots = number(&cache, "total_blocks");
            if is_full {
                admit_all(&cache, 10_000..10_000 + slots).await;
            }
            let clean = number(&cache, "clean_blocks");
            assert!(clean == 0 || clean > slots * 3 / 4, "{clean} of {slots}");
            let began = reactor::now();
            let next = Rc::new(Cell::new(0));
            let (writers, ended) = (8, Rc::new(Cell::new(0)));
            for _ in 0..writers {
                let (cache, next, ended) = (cache.clone(), next.clone(), ended.clone());
                reactor::spawn(async move {
                    while next.get() < slots / 2 {
                        let n: u64 = next.replace(next.get() + 1);
                        put(&*cache, n, 2).await.unwrap();
                    }
                    ended.set(ended.get() + 1);
                });
            }
            while ended.get() < writers {
                reactor::sleep(Nanos(100_000)).await;
            }
            let took = reactor::now().0 - began.0;
            assert_eq!(number(&cache, "dirty_blocks"), slots / 2);
            expect(&*cache, 0..slots / 2, 2).await;
            took
        })
        .unwrap()
}

#[test]
fn a_burst_over_clean_blocks_is_as_fast_as_into_an_empty_cache() {
    let (empty, full) = (burst_ns(false), burst_ns(true));
    println!("empty: {empty} ns, full of clean blocks: {full} ns");
    assert!(full <= empty * 103 / 100, "{empty} ns, then {full} ns");
}

#[test]
fn a_scan_of_blocks_that_are_read_once_keeps_the_hot_ones() {
    let fixture = fixture("", None);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..4096).await;
            for _ in 0..3 {
                read(&cache, 0..400, 1).await;
            }
            let hits = number(&cache, "read_hits");
            read(&cache, 400..4096, 1).await;
            read(&cache, 0..400, 1).await;
            assert_eq!(number(&cache, "read_hits"), hits + 400);
        })
        .unwrap();
}

#[test]
fn a_failed_read_enters_nothing() {
    life(&fixture("", None), async |w| {
        fill_origin(&w.cache, 0..100).await;
        read(&w.cache, 0..100, 1).await;
        w.origin.refuse(Op::Read, 7..8);
        assert_eq!(get(&*w.cache, 7).await, Err(Status::Io));
        millis(5).await;
        assert_eq!(figures(&w.cache, ["read_admitted", "used_blocks"]), [0, 0]);
        assert_eq!(number(&w.cache, "read_admissions_lost"), 1);
        w.origin.repair();
        read(&w.cache, 0..100, 1).await;
        assert_eq!(admitted(&w.cache), 100);
    });
}

#[test]
fn a_slot_that_refuses_its_data_costs_nobody_an_error() {
    life(&fixture("", None), async |w| {
        fill_origin(&w.cache, 0..100).await;
        read(&w.cache, 0..100, 1).await;
        w.device.refuse(Op::Write, 0..1 << 20);
        read(&w.cache, 0..100, 1).await;
        w.device.repair();
        assert_eq!(figures(&w.cache, ["read_admitted", "used_blocks", "error"]), [0, 0, 0]);
        read(&w.cache, 0..100, 1).await;
        assert_eq!(admitted(&w.cache), 100);
        w.cache.check();
    });
}

/// A cache on devices that may hold requests back.
fn held(
    fixture: &Fixture,
    work: impl AsyncFnOnce(Rc<WriteCache>, Rc<StalledDevice>, Rc<StalledDevice>) + 'static,
) {
    let machine = Machine::boot(&fixture.world, 1);
    let origin = StalledDevice::over(fixture.leaf(fixture.origin));
    let device = StalledDevice::over(fixture.leaf(fixture.cache));
    let config = fixture.config.clone();
    let cache =
        WriteCache::new("wc", config, origin.clone(), device.clone(), fixture.sectors).unwrap();
    let done = machine.block_on(async move {
        cache.clone().resume().await.unwrap();
        fill_origin(&cache, 0..100).await;
        read(&cache, 0..100, 1).await;
        work(cache, origin, device).await;
    });
    machine.power_cut();
    done.expect("no power cut was planned");
}

#[test]
fn a_write_beats_the_admission_of_its_block() {
    let fixture = fixture("", None);
    held(&fixture, async |cache, _, device| {
        // The data of the admission are on their way to their slot.
        device.hold(|bio| bio.op == Op::Write);
        expect(&*cache, 7..8, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1);
        device.hold(|_| false);
        put(&*cache, 7, 2).await.unwrap();
        device.release();
        millis(5).await;
        assert_eq!(figures(&cache, ["read_admitted", "read_admissions_lost"]), [0, 1]);
        expect(&*cache, 7..8, 2).await;
        say(&cache, "flush").await.unwrap();
        expect(&*cache, 7..8, 2).await;
    });
    fixture.life(async |cache| expect(&*cache, 7..8, 2).await).unwrap();
}

#[test]
fn a_discard_and_a_writeback_beat_the_admission_too() {
    let fixture = fixture("", None);
    held(&fixture, async |cache, origin, _| {
        // The origin has answered nothing yet when the blocks change there.
        origin.hold(|bio| bio.op == Op::Read);
        for block in [7, 8] {
            let cache = cache.clone();
            reactor::spawn(async move { get(&*cache, block).await.map(drop).unwrap() });
        }
        millis(5).await;
        assert_eq!(origin.count(), 2);
        let (class, len) = (Class::Normal, block::Sector(8));
        reactor::discard(&*cache, class, at(7), len).await.unwrap();
        put(&*cache, 8, 2).await.unwrap();
        say(&cache, "flush").await.unwrap();
        origin.release();
        millis(5).await;
        assert_eq!(figures(&cache, ["read_admitted", "read_admissions_lost"]), [0, 2]);
        expect(&*cache, 8..9, 2).await;
    });
}

#[test]
fn a_client_that_changes_its_memory_changes_no_cached_block() {
    let fixture = fixture("", None);
    held(&fixture, async |cache, _, device| {
        device.hold(|bio| bio.op == Op::Write);
        let buf = Buf::zeroed(BLOCK);
        reactor::read(&*cache, Class::Foreground, at(7), buf.all().into()).await.unwrap();
        assert_eq!(buf.read(<[u8]>::to_vec), pattern(7, 1));
        buf.write(|data| data.fill(0xee));
        millis(5).await;
        device.release();
        millis(5).await;
        assert_eq!(admitted(&cache), 1);
        expect(&*cache, 7..8, 1).await;
    });
}

/// Whether a suspend ends while the data of an admission are written.
fn suspend_overtakes_an_admission(fault: Option<Fault>) -> bool {
    let overtakes = Rc::new(Cell::new(false));
    let seen = overtakes.clone();
    held(&fixture("", fault), async move |cache, _, device| {
        device.hold(|bio| bio.op == Op::Write && bio.class == Class::Background);
        expect(&*cache, 7..8, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1);
        let ended = Rc::new(Cell::new(false));
        let (tell, suspending) = (ended.clone(), cache.clone());
        reactor::spawn(async move {
            suspend(&suspending).await;
            tell.set(true);
        });
        millis(1000).await;
        seen.set(ended.get());
        device.release();
        millis(1000).await;
        assert!(ended.get());
    });
    overtakes.get()
}

#[test]
fn a_suspend_waits_for_admissions() {
    assert!(!suspend_overtakes_an_admission(None));
}

#[test]
fn a_suspend_that_does_not_wait_for_admissions_is_caught() {
    assert!(suspend_overtakes_an_admission(Some(Fault::AdmissionUnguarded)));
}

/// Clean blocks that a cache still has after a suspend that flushed it.
fn left_by_a_flush(fault: Option<Fault>) -> u64 {
    let left = Rc::new(Cell::new(0));
    let seen = left.clone();
    held(&fixture("", fault), async move |cache, _, device| {
        device.hold(|bio| bio.op == Op::Write && bio.class == Class::Background);
        expect(&*cache, 7..8, 1).await;
        millis(5).await;
        assert_eq!(device.count(), 1, "the data are on their way to their slot");
        say(&cache, "flush_on_suspend").await.unwrap();
        let later = device.clone();
        reactor::spawn(async move {
            millis(100).await;
            later.release();
        });
        suspend(&cache).await;
        cache.clone().resume().await.unwrap();
        seen.set(number(&cache, "used_blocks"));
    });
    left.get()
}

/// The origin may be used without its cache then, and what the cache has would be old.
#[test]
fn nothing_enters_after_the_flush_of_a_suspend() {
    assert_eq!(left_by_a_flush(None), 0);
}

#[test]
fn a_block_that_enters_after_the_flush_of_a_suspend_is_caught() {
    assert_eq!(left_by_a_flush(Some(Fault::AdmitAfterFlush)), 1);
}

/// Blocks that enter by one read, after they were admitted and have left the cache.
fn enter_by_one_read(fault: Option<Fault>) -> u64 {
    let fixture = fixture("", fault);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..100).await;
            read(&cache, 0..100, 1).await;
            read(&cache, 0..100, 1).await;
            assert_eq!(admitted(&cache), 100);
            say(&cache, "flush").await.unwrap();
            assert_eq!(number(&cache, "used_blocks"), 0);
            read(&cache, 0..100, 1).await;
            admitted(&cache) - 100
        })
        .unwrap()
}

#[test]
fn a_block_that_has_left_needs_two_reads_again() {
    assert_eq!(enter_by_one_read(None), 0);
}

#[test]
fn a_ghost_that_outlives_its_admission_is_caught() {
    assert!(enter_by_one_read(Some(Fault::GhostKept)) > 50);
}

/// Blocks that a cache admits while it is emptied.
fn admitted_while_emptied(fault: Option<Fault>) -> u64 {
    let fixture = fixture("", fault);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..100).await;
            set(&cache, "cleaner", "1").await;
            read(&cache, 0..100, 1).await;
            read(&cache, 0..100, 1).await;
            flush(&*cache).await;
            admitted(&cache)
        })
        .unwrap()
}

#[test]
fn a_cache_that_is_emptied_admits_nothing() {
    assert_eq!(admitted_while_emptied(None), 0);
}

#[test]
fn a_cache_that_is_emptied_and_admits_is_caught() {
    assert!(admitted_while_emptied(Some(Fault::AdmitWhenEmptied)) > 0);
}

#[test]
fn a_hot_block_outlives_cold_ones() {
    let fixture = fixture("", None);
    fixture
        .life(async |cache| {
            fill_origin(&cache, 0..4096).await;
            let slots = number(&cache, "total_blocks");
            // Twice as much as fits is read again and again, and between that some blocks often.
            for round in 0..4 {
                for from in (1000..1000 + 2 * slots).step_by(100) {
                    read(&cache, from..from + 100, 1).await;
                    read(&cache, from..from + 100, 1).await;
                    read(&cache, 0..50, 1).await;
                }
                let hits = number(&cache, "read_hits");
                read(&cache, 0..50, 1).await;
                assert!(number(&cache, "read_hits") - hits >= 49, "round {round}");
            }
            cache.check();
        })
        .unwrap();
}

#[test]
fn other_formats_admit_too() {
    for options in ["format dm", "ordered", "write_buffer 1M"] {
        let fixture = fixture(&format!("autocommit_time 20 {options}"), None);
        fixture
            .life(async move |cache| {
                fill_origin(&cache, 0..100).await;
                for _ in 0..3 {
                    read(&cache, 0..100, 1).await;
                }
                assert_eq!(admitted(&cache), 100, "{options}");
                millis(100).await;
                fill(&*cache, 50..60, 2).await;
                flush(&*cache).await;
                expect(&*cache, 0..50, 1).await;
                expect(&*cache, 50..60, 2).await;
                assert!(number(&cache, "read_hits") >= 160, "{options}");
                millis(100).await;
                cache.check();
            })
            .unwrap();
        let again = fixture.clone();
        again
            .life(async move |cache| {
                expect(&*cache, 50..60, 2).await;
                expect(&*cache, 60..100, 1).await;
                cache.check();
            })
            .unwrap();
    }
}
