// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs, counted exactly: allocations, queries of the mapping below, writes and flushes of the
//! devices, and memory.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::idle_driver;
use crate::common::{Fixture, Rig, Shape, config};
use block::{BlockDevice, Buf, Bufs, Class, Flags, Sector, Target};
use pagecache::{Config, PageCache};
use queue::{Mem, Null};
use reactor::Reactor;
use sim::model::Uniform;
use sim::{DiskSpec, DiskStats, Rng, World};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
/// Nothing is written back before a FLUSH.
const LAZY: &str = "dirty_writeback_centisecs 0 dirty_bytes 64M dirty_background_bytes 63M";

fn at(page: u64) -> Sector {
    Sector(page * 8)
}

/// A cache over a device in memory, resumed.
fn cache(reactor: &Reactor, below: Rc<dyn BlockDevice>, config: Config) -> Rc<PageCache> {
    let len = below.limits().capacity;
    let cache = PageCache::new("pc", config, below, len).expect("a cache");
    let resuming = cache.clone();
    reactor.block_on(async move { resuming.resume().await.expect("resume") });
    cache
}

fn mem(mib: u64) -> Rc<dyn BlockDevice> {
    Rc::new(Mem::new("mem", Sector(mib * 2048)).expect("memory"))
}

/// Allocations of `count` rounds of `work`, after as many that warm up.
fn allocations(
    reactor: &Reactor,
    cache: &Rc<PageCache>,
    count: u64,
    work: impl AsyncFn(&PageCache, u64) + Copy + 'static,
) -> u64 {
    let run = |rounds| {
        let cache = cache.clone();
        reactor.block_on(async move {
            for nth in 0..rounds {
                work(&cache, nth).await;
            }
        });
    };
    run(count);
    let few = allocation_counter::measure(|| run(1)).count_total;
    assert!(few > 0, "starting a task allocates, so the counter counts");
    let many = allocation_counter::measure(|| run(count + 1)).count_total;
    many - few
}

async fn put(dev: &dyn BlockDevice, page: u64, bufs: Bufs) {
    let done = reactor::write(dev, Flags::empty(), Class::Normal, at(page), bufs).await;
    assert_eq!(done, Ok(()));
}

async fn get(dev: &dyn BlockDevice, page: u64, bufs: Bufs) {
    assert_eq!(reactor::read(dev, Class::Foreground, at(page), bufs).await, Ok(()));
}

thread_local! {
    /// Data of all requests, so that none is allocated.
    static DATA: RefCell<Option<Bufs>> = const { RefCell::new(None) };
}

fn data() -> Bufs {
    DATA.with_borrow_mut(|d| d.get_or_insert_with(|| Buf::zeroed(PAGE).into()).clone())
}

#[test]
fn a_read_hit_and_a_write_hit_allocate_nothing() {
    let reactor = idle_driver::core();
    let cache = cache(&reactor, mem(16), config(LAZY, 128 << 20, None));
    let page = |nth: u64| nth * 7 % 4096;
    let writes =
        allocations(&reactor, &cache, 5000, async move |c, n| put(c, page(n), data()).await);
    assert_eq!(writes, 0, "write hits");
    let reads =
        allocations(&reactor, &cache, 5000, async move |c, n| get(c, page(n), data()).await);
    assert_eq!(reads, 0, "read hits");
}

/// A number of `cache_stat`.
fn cache_stat(reactor: &Reactor, cache: &Rc<PageCache>, name: &'static str) -> u64 {
    let cache = cache.clone();
    reactor.block_on(async move {
        let stat = cache.get_attribute("cache_stat".to_owned()).await.expect("an attribute");
        let stat = stat.to_string();
        let found = stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok());
        found.expect("there")
    })
}

#[test]
fn a_write_hit_reads_the_clock_once_and_a_read_hit_never() {
    const COUNT: u64 = 1000;
    let reactor = idle_driver::core();
    let cache = cache(&reactor, mem(16), config(LAZY, 128 << 20, None));
    let looks = |reads: bool| {
        let cache = cache.clone();
        reactor.block_on(async move {
            put(&*cache, 7, data()).await;
            let before = idle_driver::clock_reads();
            for _ in 0..COUNT {
                if reads { get(&*cache, 7, data()).await } else { put(&*cache, 7, data()).await }
            }
            idle_driver::clock_reads() - before
        })
    };
    assert_eq!((looks(false), looks(true)), (COUNT, 0));
}

/// Each miss is served by a kept task; the remaining allocations are nodes of the indices.
#[test]
fn a_read_miss_starts_no_task() {
    const COUNT: u64 = 20_000;
    let reactor = idle_driver::core();
    let cache = cache(&reactor, mem(512), config("read_ahead_kb 0", 16 << 20, None));
    // A step that is prime to the pages of the device: none comes again before all have.
    let page = |nth: u64| nth * 65_537 % (512 * 256);
    let made =
        allocations(&reactor, &cache, COUNT, async move |c, n| get(c, page(n), data()).await);
    assert!(
        cache_stat(&reactor, &cache, "read_misses") >= 2 * COUNT,
        "all of them were to be misses"
    );
    assert!(made < COUNT / 2, "{made} allocations for {COUNT} misses");
}

/// The 4096 pages of 16 MiB make 17 folios when each is as large as its writer's run.
#[test]
fn small_writes_in_order_make_few_folios() {
    let reactor = idle_driver::core();
    let cache = cache(&reactor, mem(16), config(LAZY, 128 << 20, None));
    let writing = cache.clone();
    reactor.block_on(async move {
        for page in 0..4096 {
            put(&*writing, page, data()).await;
        }
    });
    assert_eq!(cache_stat(&reactor, &cache, "folios"), 17);
}

#[test]
fn memory_is_bound_to_one_percent() {
    const LIMIT: u64 = 256 * MIB;
    let reactor = idle_driver::core();
    let mut made = None;
    let memory = allocation_counter::measure(|| {
        let below: Rc<dyn BlockDevice> = Rc::new(Null::new("null", Sector(4096 * 2048)));
        let cache = cache(&reactor, below, config("read_ahead_kb 0", LIMIT, None));
        let reading = cache.clone();
        reactor.block_on(async move {
            let mut rng = Rng::new(3);
            for _ in 0..100_000 {
                get(&*reading, rng.below(4096 * 256), data()).await;
            }
            // And folios of other sizes beside them.
            let large: Bufs = Buf::zeroed(64 * PAGE).into();
            for _ in 0..200 {
                get(&*reading, rng.below(4096 * 4) * 64, large.clone()).await;
            }
        });
        made = Some(cache);
    });
    let cache = made.expect("it was made");
    let used = cache_stat(&reactor, &cache, "memory_used_bytes");
    let taken = u64::try_from(memory.bytes_current).expect("it takes memory");
    println!("limit {LIMIT}, shown {used}, taken {taken}");
    assert!((LIMIT / 100 * 97..=LIMIT).contains(&used), "{used} of {LIMIT} bytes are shown");
    assert!(taken <= LIMIT / 100 * 101, "{taken} bytes are taken, {LIMIT} are allowed");
}

/// A lab with quiet disks of `pages`.
fn lab(shape: Shape, pages: u64, options: &str) -> Fixture {
    let config = config(&format!("{LAZY} {options}"), 64 << 20, None);
    Fixture::new(World::calm(1), shape, pages * 8, config, |world, name, capacity| {
        let model = Uniform::new(1, 20_000, 60_000);
        world.borrow_mut().add_disk(DiskSpec::new(name, capacity, Box::new(model)))
    })
}

/// Writes `pages` in the given order and flushes. Returns the map calls, map checks and ioends of
/// that, and the requests that each disk got.
fn flushed(
    shape: Shape,
    options: &str,
    pages: Vec<u64>,
    each: usize,
) -> (u64, u64, u64, Vec<DiskStats>) {
    let lab = lab(shape, 4096, options);
    let inner = lab.clone();
    lab.run(async move |rig: Rig| {
        let buf: Bufs = Buf::zeroed(PAGE * each).into();
        for page in pages {
            put(&*rig.device, page, buf.clone()).await;
        }
        let flush = reactor::flush(&*rig.device, Class::Foreground).await;
        assert_eq!(flush, Ok(()));
        let stats = inner.sets[0].iter().map(|disk| inner.world.borrow().stats(*disk)).collect();
        let number = async |name| rig.number("ioend_stats", name).await;
        (number("map_calls").await, number("map_checks").await, number("ioends").await, stats)
    })
}

#[test]
fn a_mapping_is_queried_once_an_extent() {
    // Everything, in order and in 4 KiB folios at random.
    let ordered: Vec<u64> = (0..4096).collect();
    let mut shuffled = ordered.clone();
    let mut rng = Rng::new(5);
    (1..shuffled.len()).rev().for_each(|n| shuffled.swap(n, rng.index(n + 1)));
    for pages in [ordered, shuffled] {
        let asked = |shape, options| flushed(shape, options, pages.clone(), 1).0;
        for options in ["", "map_blocks single"] {
            assert_eq!(asked(Shape::Plain, options), 1, "{options}");
            assert_eq!(asked(Shape::Linear, options), 2, "{options}");
            // Chunks of 64 KiB.
            assert_eq!(asked(Shape::Striped(2, 128), options), 256, "{options}");
        }
    }
}

#[test]
fn single_looks_up_each_page_and_multi_each_run() {
    let pages = || (0..64).map(|n| n * 64).collect::<Vec<u64>>();
    let checks = |options| flushed(Shape::Plain, options, pages(), 16).1;
    assert_eq!(checks("map_blocks multi"), 64);
    assert_eq!(checks("map_blocks single"), 64 * 16);
}

#[test]
fn the_chunks_of_a_stripe_become_one_write_a_disk() {
    // 2 MiB in chunks of 64 KiB: 1 MiB to each disk, which is one ioend.
    let (_, _, ioends, stats) = flushed(Shape::Striped(2, 128), "", vec![0], 512);
    assert_eq!(ioends, 2);
    for disk in stats {
        let DiskStats { writes, write_bytes, flushes, reads, .. } = disk;
        assert_eq!((writes, write_bytes, flushes, reads), (1, MIB, 1, 0));
    }
}

#[test]
fn random_writes_of_neighbours_become_large_writes() {
    let mut pages: Vec<u64> = (0..1024).collect();
    let mut rng = Rng::new(9);
    (1..pages.len()).rev().for_each(|n| pages.swap(n, rng.index(n + 1)));
    let (_, _, ioends, stats) = flushed(Shape::Plain, "", pages, 1);
    // 4 MiB in ioends of 256 runs of a page each.
    assert_eq!(ioends, 4);
    let DiskStats { writes, write_bytes, flushes, .. } = stats[0];
    assert_eq!((writes, write_bytes, flushes), (4, 4 * MIB, 1));
}
