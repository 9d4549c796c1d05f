// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often the mapping is queried, how runs are joined, and where they are written.
use std::rc::Rc;

use block::{Class, Flags, Nanos};
use proptest::prelude::*;

use super::*;
use crate::collector::OPENED_MAX;
use crate::device::PageCache;
use crate::gather::Limit;
use crate::testing::{DiskRequest, Fixture, MIB, cache, flush, pattern, write};

/// Nothing is written before a FLUSH.
const QUIET: &str = "memory 256M dirty_bytes 100M dirty_background_bytes 90M";

fn options(more: &str) -> String {
    format!("{QUIET} {more}")
}

/// Writes `dirty` pages in pieces of so many to a cache over a table, and flushes. Returns the
/// writes that each disk got.
async fn flushed(
    lab: &Fixture,
    table: &str,
    more: &str,
    dirty: Range<u64>,
    piece: usize,
) -> (Rc<PageCache>, Vec<Vec<DiskRequest>>) {
    let dm = lab.dm();
    let below = lab.map(&dm, "below", table).await;
    let cache = cache(&below, &options(more));
    for from in dirty.clone().step_by(piece) {
        write(&cache, from..(from + piece as u64).min(dirty.end), 7).await;
    }
    assert_eq!(flush(&cache).await, Ok(()));
    let seen = lab.disks.iter().map(|d| writes(d.take())).collect();
    (cache, seen)
}

fn writes(seen: Vec<DiskRequest>) -> Vec<DiskRequest> {
    seen.into_iter().filter(|s| s.op == Op::Write).collect()
}

fn get(cache: &PageCache, of: impl Fn(&IoendStats) -> &Cell<u64>) -> u64 {
    of(&cache.writeback.ioends.stats).get()
}

/// 64 MiB.
const PAGES: u64 = 16384;
const SECTORS: u64 = PAGES * 8;

#[test]
fn a_sequential_run_over_linear_is_mapped_once() {
    Fixture::new(1, SECTORS + 80).run(async |lab| {
        let table = format!("0 {SECTORS} linear a 80");
        let (cache, seen) = flushed(&lab, &table, "", 0..PAGES, 64).await;
        assert_eq!(get(&cache, |c| &c.map_calls), 1);
        assert_eq!(get(&cache, |c| &c.ioends), 64);
        assert_eq!(get(&cache, |c| &c.ioend_bytes), 64 * MIB);
        assert_eq!(cache.writeback.ioends.stats.sizes[8].get(), 64, "all of 1 MiB");
        assert!(get(&cache, |c| &c.map_checks) <= get(&cache, |c| &c.segments) + 64);
        let mut at = 80;
        for s in &seen[0] {
            assert_eq!((s.from, s.to), (at, at + 2048));
            assert_eq!((s.flags, s.class), (Flags::SYNC, Class::Foreground));
            at = s.to;
        }
    });
}

#[test]
fn single_looks_up_the_mapping_for_each_page() {
    Fixture::new(1, SECTORS).run(async |lab| {
        let table = format!("0 {SECTORS} linear a 0");
        let (cache, seen) = flushed(&lab, &table, "map_blocks single", 0..PAGES, 64).await;
        assert_eq!(get(&cache, |c| &c.map_checks), 16384);
        assert_eq!(get(&cache, |c| &c.map_calls), 1, "the answer is kept, as it was before");
        assert_eq!(seen[0].len(), 64, "and what is sent is the same");
        assert_eq!(get(&cache, |c| &c.ioends), 64);
    });
}

#[test]
fn chunks_of_a_stripe_join_and_each_is_mapped_once() {
    for single in [false, true] {
        Fixture::new(2, SECTORS / 2).run(async move |lab| {
            let table = format!("0 {SECTORS} striped 2 128 a 0 b 0");
            let more = if single { "map_blocks single" } else { "" };
            let (cache, seen) = flushed(&lab, &table, more, 0..PAGES, 64).await;
            assert_eq!(get(&cache, |c| &c.map_calls), 1024, "64 MiB in chunks of 64 KiB");
            assert_eq!(get(&cache, |c| &c.ioends), 64);
            for disk in &seen {
                assert_eq!(disk.len(), 32);
                assert!(disk.iter().all(|s| s.to - s.from == 2048));
            }
        });
    }
}

#[test]
fn scattered_pages_over_linear_are_mapped_once_too() {
    Fixture::new(1, SECTORS).run(async |lab| {
        let dm = lab.dm();
        let below = lab.map(&dm, "below", &format!("0 {SECTORS} linear a 0")).await;
        let cache = cache(&below, QUIET);
        for page in (0..PAGES).step_by(37) {
            write(&cache, page..page + 1, 3).await;
        }
        assert_eq!(flush(&cache).await, Ok(()));
        let pages = PAGES.div_ceil(37);
        assert_eq!(get(&cache, |c| &c.map_calls), 1);
        assert_eq!((get(&cache, |c| &c.ioends), get(&cache, |c| &c.segments)), (pages, pages));
        assert_eq!(cache.writeback.ioends.stats.sizes[0].get(), pages);
        // Ascending.
        let seen = lab.disks[0].take_writes();
        assert!(seen.is_sorted_by_key(|w| w.start));
        // Another pass uses the same answer.
        write(&cache, 5..6, 4).await;
        assert_eq!(flush(&cache).await, Ok(()));
        assert_eq!(get(&cache, |c| &c.map_calls), 1);
    });
}

#[test]
fn an_ioend_has_256_segments_at_most() {
    Fixture::new(1, SECTORS).run(async |lab| {
        let dm = lab.dm();
        let below = lab.map(&dm, "below", &format!("0 {SECTORS} linear a 0")).await;
        let cache = cache(&below, &options("ioend_bytes 16M"));
        // From the end to the beginning: no writer looks sequential, and folios are small.
        for page in (0..1000).rev() {
            write(&cache, page..page + 1, 3).await;
        }
        assert_eq!(get(&cache, |c| &c.segments), 0);
        assert_eq!(flush(&cache).await, Ok(()));
        let segments: Vec<_> =
            writes(lab.disks[0].take()).iter().map(|s| (s.segments, s.to - s.from)).collect();
        assert_eq!(segments, [(256, 2048), (256, 2048), (256, 2048), (232, 232 * 8)]);
    });
}

#[test]
fn an_ioend_is_no_larger_than_the_device_allows() {
    Fixture::with(1, SECTORS, |limits| limits.max_io_bytes = 256 << 10).run(async |lab| {
        let table = format!("0 {SECTORS} linear a 0");
        let (cache, seen) = flushed(&lab, &table, "ioend_bytes 4M", 0..1024, 64).await;
        assert_eq!(get(&cache, |c| &c.ioends), 16);
        assert!(seen[0].iter().all(|s| s.to - s.from == 512));
    });
}

#[test]
fn bytes_beyond_the_end_of_the_device_are_not_written() {
    Fixture::new(1, 1003).run(async |lab| {
        let below: Rc<dyn BlockDevice> = lab.disks[0].clone();
        let cache = cache(&below, QUIET);
        write(&cache, 0..126, 9).await;
        assert_eq!(flush(&cache).await, Ok(()));
        assert_eq!(get(&cache, |c| &c.ioend_bytes), 1003 * 512);
        assert_eq!(writes(lab.disks[0].take()).last().unwrap().to, 1003);
        assert_eq!(lab.page(0, 125), pattern(125, 9)[..3 * 512]);
    });
}

#[test]
fn a_page_that_two_extents_share_is_divided_by_the_device_below() {
    Fixture::new(2, 8192).run(async |lab| {
        // The second line begins in the middle of page 12.
        let table = "0 100 linear a 0\n100 924 linear b 3";
        let (cache, seen) = flushed(&lab, table, "", 0..128, 128).await;
        let spans = |of: &[DiskRequest]| of.iter().map(|s| (s.from, s.to)).collect::<Vec<_>>();
        assert_eq!(spans(&seen[0]), [(0, 96), (96, 100)]);
        assert_eq!(spans(&seen[1]), [(3, 7), (7, 927)]);
        assert_eq!(get(&cache, |c| &c.ioend_bytes), 128 * 4096);
        let mut half = vec![0; 2048];
        lab.world.borrow().peek(lab.files[1], Sector(3), &mut half);
        assert_eq!(half, pattern(12, 7)[2048..]);
    });
}

/// Collected while the table was one, sent when it is another.
#[test]
fn ioends_collected_by_an_old_mapping_are_mapped_again() {
    Fixture::new(2, 8192).run(async |lab| {
        let dm = lab.dm();
        let below = lab.map(&dm, "below", "0 4096 linear a 0").await;
        let cache = cache(&below, QUIET);
        write(&cache, 0..32, 5).await;
        let (store, ioends) = (&cache.store, &cache.writeback.ioends);
        let mut from = 0;
        let found =
            ioends.gather(store, &ioends.sync, &mut from, Limit::all_to(u64::MAX), |_| true);
        assert_eq!((found.pages, found.end), (32, true));
        ioends.sync.borrow_mut().close();
        // The new table deals out chunks of 16 sectors from sector 64 on.
        dm.load("below", "0 4096 striped 2 16 a 64 b 64").await.unwrap();
        dm.resume("below").await.unwrap();
        ioends.send_ready(store, &ioends.sync);
        assert_eq!(flush(&cache).await, Ok(()));
        assert_eq!(get(&cache, |c| &c.remaps), 1);
        assert_eq!(cache.store.folios.borrow().writing_pages(), 0);
        for disk in &lab.disks {
            let seen = writes(disk.take());
            assert_eq!(seen.len(), 1, "the chunks join: {seen:?}");
            assert_eq!((seen[0].from, seen[0].to), (64, 64 + 128));
        }
        let mut page = vec![0; 4096];
        lab.world.borrow().peek(lab.files[1], Sector(64 + 8), &mut page);
        assert_eq!(page, pattern(3, 5));
        write(&cache, 0..32, 6).await;
        assert_eq!(flush(&cache).await, Ok(()), "every folio has the pins that it should have");
        assert!(cache.store.folios.borrow().iter().all(|(_, folio)| folio.pins == 0));
    });
}

#[test]
fn a_device_that_a_table_has_dropped_is_dropped() {
    Fixture::new(2, 8192).run(async |lab| {
        let dm = lab.dm();
        let before = Rc::strong_count(&lab.disks[0]);
        let below = lab.map(&dm, "below", "0 4096 linear a 0").await;
        let cache = cache(&below, QUIET);
        write(&cache, 0..32, 5).await;
        assert_eq!(flush(&cache).await, Ok(()));
        assert!(Rc::strong_count(&lab.disks[0]) > before);
        dm.load("below", "0 4096 linear b 0").await.unwrap();
        dm.resume("below").await.unwrap();
        assert_eq!(Rc::strong_count(&lab.disks[0]), before);
        write(&cache, 8..9, 5).await;
        assert_eq!(flush(&cache).await, Ok(()));
        assert_eq!(lab.disks[1].take_writes().first(), Some(&(8..9)));
        assert_eq!(get(&cache, |c| &c.map_calls), 2);
    });
}

#[test]
fn an_ioend_that_no_run_joins_is_sent_before_the_end() {
    Fixture::new(2, SECTORS).run(async |lab| {
        // One page on the second disk, then much on the first.
        let table = format!("0 8 linear b 0\n8 {} linear a 0", SECTORS - 8);
        let (_, seen) = flushed(&lab, &table, "ioend_bytes 64K", 0..4096, 64).await;
        let order = |s: &DiskRequest| seen[0].iter().filter(|other| other.order < s.order).count();
        assert!(order(&seen[1][0]) as u64 <= OPENED_MAX);
        assert_eq!(seen[0].len(), 256);
    });
}

#[test]
fn ioends_wait_while_the_device_below_is_suspended() {
    Fixture::new(2, 8192).run(async |lab| {
        let dm = lab.dm();
        let below = lab.map(&dm, "below", "0 4096 linear a 0").await;
        let cache = cache(&below, QUIET);
        write(&cache, 0..32, 5).await;
        dm.suspend("below").await.unwrap();
        let (inner, done) = (cache.clone(), Rc::new(Cell::new(None)));
        let set = done.clone();
        reactor::spawn(async move { set.set(Some(flush(&inner).await)) });
        reactor::sleep(Nanos(1_000_000_000)).await;
        assert_eq!(done.get(), None);
        assert!(lab.disks[0].take().is_empty());
        dm.load("below", "0 4096 linear b 1024").await.unwrap();
        dm.resume("below").await.unwrap();
        reactor::sleep(Nanos(1_000_000_000)).await;
        assert_eq!(done.get(), Some(Ok(())));
        assert!(lab.disks[0].take_writes().is_empty());
        assert_eq!(lab.disks[1].take_writes().first(), Some(&(128..160)));
    });
}

/// Allocations of a whole writeback, from the look at the dirty bits to the end of the ioends.
async fn allocations(cache: &PageCache, pages: Range<u64>, step: usize) -> u64 {
    for page in pages.step_by(step) {
        write(cache, page..page + 1, 1).await;
    }
    let (store, ioends) = (&cache.store, &cache.writeback.ioends);
    let work = || {
        let mut from = 0;
        loop {
            let found =
                ioends.gather(store, &ioends.sync, &mut from, Limit::all_to(u64::MAX), |_| true);
            ioends.send_ready(store, &ioends.sync);
            if found.end {
                break ioends.close(store, &ioends.sync);
            }
        }
    };
    let count = allocation_counter::measure(work).count_total;
    assert_eq!(cache.store.dirty_bytes(), 0, "the device ends each write at once");
    count
}

#[test]
fn an_ioend_of_many_segments_costs_one_allocation() {
    Fixture::new(1, 8).run(async |_| {
        let below: Rc<dyn BlockDevice> = Rc::new(queue::Null::new("null", Sector(SECTORS)));
        let cache = cache(&below, QUIET);
        // Folios of a page each, as no writer goes on from one to the next.
        allocations(&cache, 0..2048, 2).await;
        allocations(&cache, 1..2048, 2).await;
        // The lists grow until they have been used once.
        allocations(&cache, 0..2048, 1).await;
        let before = get(&cache, |c| &c.ioends);
        assert_eq!(allocations(&cache, 0..2048, 1).await, 8);
        assert_eq!(get(&cache, |c| &c.ioends), before + 8);
        allocations(&cache, 0..2048, 2).await;
        assert_eq!(allocations(&cache, 0..2048, 2).await, 0, "1024 ioends of one page");
    });
}

#[test]
fn sizes_are_counted_by_powers_of_two() {
    let classes = [512, 4096, 4097, 8192, 65536, 1 << 20, 1 << 30].map(IoendStats::size_class);
    assert_eq!(classes, [0, 0, 1, 1, 4, 8, 15]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// With any table, each dirty page is written once, at the place that the table maps it to.
    #[test]
    fn dirty_pages_land_where_the_table_says(
        table in 0usize..5,
        single: bool,
        ioend_kib in prop::sample::select(vec![4u64, 8, 64, 1024]),
        runs in prop::collection::vec((0u64..250, 1u64..20), 1..30),
    ) {
        let table = [
            "0 2003 linear a 5",
            "0 2016 striped 3 16 a 0 b 8 c 100",
            "0 2052 striped 3 12 a 0 b 4 c 100",
            "0 700 linear a 0\n700 333 linear b 1\n1033 992 striped 2 16 c 0 a 2000",
            "0 1008 striped 2 8 a 0 b 0\n1008 995 linear a 1000",
        ][table];
        Fixture::new(3, 8192).run(async move |lab| {
            let dm = lab.dm();
            let below = lab.map(&dm, "below", table).await;
            let mode = if single { "single" } else { "multi" };
            let more = format!("map_blocks {mode} ioend_bytes {ioend_kib}K");
            let cache = cache(&below, &options(&more));
            let (pages, capacity) = (cache.store.device_pages(), below.limits().capacity.0);
            let mut dirty = std::collections::BTreeSet::new();
            for (from, len) in runs {
                let run = from..(from + len).min(pages);
                if !run.is_empty() {
                    write(&cache, run.clone(), 1).await;
                    dirty.extend(run);
                }
            }
            assert_eq!(flush(&cache).await, Ok(()));
            let bytes: u64 = dirty.iter().map(|p| (capacity - p * 8).min(8) * 512).sum();
            assert_eq!(get(&cache, |c| &c.ioend_bytes), bytes);
            let seen: Vec<_> = lab.disks.iter().flat_map(|d| writes(d.take())).collect();
            assert_eq!(seen.iter().map(|s| (s.to - s.from) * 512).sum::<u64>(), bytes);
            assert!(seen.iter().all(|s| (s.to - s.from) * 512 <= ioend_kib << 10));
            assert_eq!(cache.store.dirty_bytes(), 0);
            let buf = block::Buf::zeroed(usize::try_from(capacity * 512).unwrap());
            let all = buf.all().into();
            reactor::read(&*below, Class::Normal, Sector::ZERO, all).await.unwrap();
            buf.read(|found| {
                for (page, found) in (0..).zip(found.chunks(PAGE)) {
                    let was = dirty.contains(&page).then(|| pattern(page, 1));
                    assert_eq!(found, &was.unwrap_or(vec![0; PAGE])[..found.len()], "page {page}");
                }
            });
        });
    }
}
