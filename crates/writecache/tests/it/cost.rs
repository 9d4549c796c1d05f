// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What things cost, counted exactly: requests and flushes of the devices, and memory.

use std::ops::Range;
use std::rc::Rc;

use crate::common::ram::Bench;
use crate::common::recording::RecordingDevice;
use crate::common::{BLOCK, Fixture, at, config, fill, flush, number, pattern, put, put_with, say};
use block::{Buf, Class, Flags, Op, Sector, Target};
use sim::{DiskStats, Machine, Rng};
use writecache::WriteCache;

/// What `work` asks a disk of the fixture for.
fn cost_of(
    disk: fn(&Fixture) -> reactor::FileId,
    prepare: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
    work: impl AsyncFnOnce(Rc<WriteCache>) + 'static,
) -> DiskStats {
    let fixture = Fixture::new(4096, 32 << 10, "autocommit_time 3600000");
    let (inner, file) = (fixture.clone(), disk(&fixture));
    let (before, after) = fixture
        .life(async move |cache| {
            prepare(cache.clone()).await;
            let before = inner.world.borrow().stats(file);
            work(cache).await;
            let after = inner.world.borrow().stats(file);
            (before, after)
        })
        .unwrap();
    DiskStats {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        flushes: after.flushes - before.flushes,
        discards: after.discards - before.discards,
        read_bytes: after.read_bytes - before.read_bytes,
        write_bytes: after.write_bytes - before.write_bytes,
    }
}

fn cache_cost(work: impl AsyncFnOnce(Rc<WriteCache>) + 'static) -> DiskStats {
    cost_of(|fixture| fixture.cache, async |_| (), work)
}

fn writes(blocks: u64, flushes: u64) -> DiskStats {
    let write_bytes = blocks * BLOCK as u64;
    DiskStats { writes: blocks, write_bytes, flushes, ..DiskStats::default() }
}

#[test]
fn a_write_costs_one_write_of_the_cache_device() {
    let cost = cache_cost(async |cache| fill(&*cache, 7..8, 1).await);
    assert_eq!(cost, writes(1, 0));
}

#[test]
fn a_lone_flush_costs_one_record_write_and_one_flush() {
    let cost = cache_cost(async |cache| {
        fill(&*cache, 7..8, 1).await;
        flush(&*cache).await;
    });
    assert_eq!(cost, writes(2, 1));
}

#[test]
fn a_fua_write_costs_the_same() {
    let cost = cache_cost(async |cache| {
        assert_eq!(put_with(&*cache, Flags::FUA, 7, 1).await, Ok(()));
    });
    assert_eq!(cost, writes(2, 1));
}

#[test]
fn a_flush_of_an_overwritten_block_costs_the_same() {
    let prepare = async |cache: Rc<WriteCache>| {
        fill(&*cache, 7..8, 1).await;
        flush(&*cache).await;
    };
    let cost = cost_of(
        |fixture| fixture.cache,
        prepare,
        async |cache| {
            fill(&*cache, 7..8, 2).await;
            flush(&*cache).await;
        },
    );
    assert_eq!(cost, writes(2, 1));
}

#[test]
fn concurrent_flushes_share_one_record_write_and_one_flush() {
    let prepare = async |cache: Rc<WriteCache>| fill(&*cache, 0..20, 1).await;
    let cost = cost_of(
        |fixture| fixture.cache,
        prepare,
        async |cache| {
            let flushes: Vec<_> =
                (0..50).map(|_| reactor::flush(&*cache, Class::Foreground)).collect();
            for flush in flushes {
                assert_eq!(flush.await, Ok(()));
            }
        },
    );
    assert_eq!(cost, writes(1, 1));
}

#[test]
fn concurrent_fua_writes_share_two_commits_at_most() {
    let cost = cache_cost(async |cache| {
        let puts = (0..50).map(|block| {
            let data = Buf::copy_of(&pattern(block, 1));
            reactor::write(&*cache, Flags::FUA, Class::Normal, at(block * 3), data.into())
        });
        for put in puts.collect::<Vec<_>>() {
            assert_eq!(put.await, Ok(()));
        }
    });
    // One commit may run while the rest of the writes come in; that rest shares the next, but for
    // writes that end while that one runs.
    assert!(cost.flushes <= 3, "{cost:?}");
}

#[test]
fn a_flush_with_nothing_new_costs_nothing() {
    let prepare = async |cache: Rc<WriteCache>| {
        fill(&*cache, 0..20, 1).await;
        flush(&*cache).await;
    };
    let cost = cost_of(|fixture| fixture.cache, prepare, async |cache| flush(&*cache).await);
    assert_eq!(cost, DiskStats::default());
}

#[test]
fn foreground_writes_and_flushes_do_not_touch_the_origin() {
    let cost = cost_of(
        |fixture| fixture.origin,
        async |_| (),
        async |cache| {
            fill(&*cache, 0..200, 1).await;
            flush(&*cache).await;
        },
    );
    assert_eq!(cost, DiskStats::default());
}

/// Blocks in a random order that repeats itself.
fn shuffled(blocks: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut blocks: Vec<u64> = blocks.collect();
    Rng::new(42).shuffle(&mut blocks);
    blocks
}

/// A cache whose devices are tapped, open, on a machine of its own.
struct Tapped {
    cache: Rc<WriteCache>,
    over_origin: Rc<RecordingDevice>,
    over_cache: Rc<RecordingDevice>,
    /// Last: the others need it while they are dropped.
    machine: Machine,
}

fn tapped(fixture: &Fixture) -> Tapped {
    let machine = Machine::boot(&fixture.world, 1);
    let over_origin = RecordingDevice::over(fixture.leaf(fixture.origin));
    let over_cache = RecordingDevice::over(fixture.leaf(fixture.cache));
    let (origin, below) = (over_origin.clone(), over_cache.clone());
    let cache =
        WriteCache::new("wc", fixture.config.clone(), origin, below, fixture.sectors).unwrap();
    let target = cache.clone();
    machine.block_on(async move { target.resume().await.unwrap() }).unwrap();
    over_cache.take();
    over_origin.take();
    Tapped { machine, cache, over_origin, over_cache }
}

#[test]
fn a_burst_of_random_writes_takes_ascending_contiguous_slots() {
    let t = tapped(&Fixture::new(4096, 32 << 10, ""));
    let cache = t.cache.clone();
    let burst = async move {
        let puts: Vec<_> = shuffled(0..4096)[..256]
            .iter()
            .map(|&block| {
                let data = Buf::copy_of(&pattern(block, 1));
                reactor::write(&*cache, Flags::empty(), Class::Normal, at(block), data.into())
            })
            .collect();
        for put in puts {
            assert_eq!(put.await, Ok(()));
        }
    };
    t.machine.block_on(burst).unwrap();
    let seen = t.over_cache.take();
    assert_eq!(seen.len(), 256);
    assert!(seen.iter().all(|(op, _)| *op == Op::Write));
    assert!(seen.windows(2).all(|pair| pair[0].1.end == pair[1].1.start), "{seen:?}");
}

#[test]
fn a_large_write_reaches_the_cache_device_as_one() {
    let t = tapped(&Fixture::new(4096, 32 << 10, ""));
    let cache = t.cache.clone();
    let write = async move {
        let data = Buf::zeroed(256 * BLOCK);
        reactor::write(&*cache, Flags::empty(), Class::Normal, at(0), data.into()).await
    };
    t.machine.block_on(write).unwrap().unwrap();
    let seen = t.over_cache.take();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// Writes `blocks` one by one, sends `flush`, and gives the origin's writes in order, and flushes.
fn written_back(options: &str, blocks: Vec<u64>) -> (Vec<Range<u64>>, usize) {
    let t = tapped(&Fixture::new(4096, 32 << 10, options));
    let cache = t.cache.clone();
    let work = async move {
        for block in blocks {
            assert_eq!(put(&*cache, block, 1).await, Ok(()));
        }
        say(&cache, "flush").await.unwrap();
        assert_eq!(number(&cache, "dirty_blocks"), 0);
    };
    t.machine.block_on(work).unwrap();
    let seen = t.over_origin.take();
    let flushes = seen.iter().filter(|(op, _)| *op == Op::Flush).count();
    let writes = seen.into_iter().filter(|(op, _)| *op == Op::Write);
    (writes.map(|(_, sectors)| sectors.start / 8..sectors.end / 8).collect(), flushes)
}

#[test]
fn the_origin_is_written_in_the_background_class() {
    let t = tapped(&Fixture::new(4096, 32 << 10, ""));
    let cache = t.cache.clone();
    let work = async move {
        fill(&*cache, 0..500, 1).await;
        say(&cache, "flush").await.unwrap();
    };
    t.machine.block_on(work).unwrap();
    let classes = t.over_origin.take_write_classes();
    assert!(!classes.is_empty() && classes.iter().all(|c| *c == Class::Background), "{classes:?}");
}

#[test]
fn flush_gathers_each_contiguous_run_into_one_origin_write() {
    let blocks = (0..20).chain(30..40).chain(100..101).chain(200..500);
    let (mut writes, flushes) = written_back("", shuffled(blocks));
    writes.sort_unstable_by_key(|run| run.start);
    // 1 MiB is 256 blocks.
    assert_eq!(writes, [0..20, 30..40, 100..101, 200..456, 456..500]);
    assert_eq!(flushes, 1);
}

#[test]
fn an_origin_write_is_no_longer_than_writeback_io_bytes() {
    let (mut writes, _) = written_back("writeback_io_bytes 65536", shuffled(10..60));
    writes.sort_unstable_by_key(|run| run.start);
    assert_eq!(writes, [10..26, 26..42, 42..58, 58..60]);
}

#[test]
fn flush_writes_the_origin_in_ascending_order() {
    // One block at a time, so that nothing in flight can overtake.
    let (writes, _) = written_back("writeback_jobs 1", shuffled((0..500).map(|n| n * 3)));
    let expected: Vec<_> = (0..500).map(|n| n * 3..n * 3 + 1).collect();
    assert_eq!(writes, expected);
}

#[test]
fn origin_writes_overtake_only_those_in_flight() {
    let (writes, _) = written_back("", shuffled((0..1000).map(|n| n * 3)));
    assert_eq!(writes.len(), 1000);
    for (place, run) in writes.iter().enumerate() {
        let rank = usize::try_from(run.start / 3).unwrap();
        assert!(rank.abs_diff(place) <= 256, "block {} came as number {place}", run.start);
    }
}

#[test]
fn lru_order_is_the_order_of_writing() {
    let blocks = shuffled((0..500).map(|n| n * 3));
    let options = "writeback_jobs 1 writeback_order lru";
    let (writes, _) = written_back(options, blocks.clone());
    let order: Vec<u64> = writes.iter().map(|run| run.start).collect();
    assert_eq!(order, blocks);
}

/// Opens a cache of 512-byte blocks on RAM disks.
fn open_ram(bench: &Bench, options: &str) -> Rc<WriteCache> {
    let (origin, cache) = (bench.origin.clone(), bench.cache.clone());
    let sectors = origin.limits().capacity;
    let target = WriteCache::new("wc", config(512, options), origin, cache, sectors).unwrap();
    let opening = target.clone();
    bench.reactor.block_on(async move { opening.resume().await.unwrap() });
    target
}

/// Bytes that a cache of this size takes when it is full of dirty blocks, and the number of them.
fn memory_when_dirty(area: Sector, origin: Sector) -> (u64, u64) {
    let bench = Bench::new(origin, area);
    let mut cache = None;
    let mut rng = Rng::new(7);
    let memory = allocation_counter::measure(|| {
        let open = open_ram(&bench, "high_watermark 100 low_watermark 100");
        let total = number(&open, "total_blocks");
        let target = open.clone();
        let fill = async move {
            let buf = Buf::zeroed(512);
            while number(&target, "dirty_blocks") < total - total / 8 {
                for _ in 0..256 {
                    let (at, flags) = (Sector(rng.below(origin.0)), Flags::empty());
                    let data = buf.all().into();
                    reactor::write(&*target, flags, Class::Normal, at, data).await.unwrap();
                }
            }
        };
        bench.reactor.block_on(fill);
        cache = Some((open, total));
    });
    let (_cache, total) = cache.unwrap();
    (u64::try_from(memory.bytes_current).unwrap(), total)
}

#[test]
fn a_full_cache_takes_at_most_32_bytes_of_memory_a_block() {
    // The index doubles at 7/8 of a power of two, 2^18 here: it is emptiest just above.
    let area = Sector(122 * 2048);
    // The pool of buffers, which all devices of a core share, is filled and not counted.
    memory_when_dirty(area, area);
    // Dirty blocks lie side by side, or far apart.
    for origin_mib in [512, 4096] {
        let origin = Sector(origin_mib * 2048);
        let (bytes, blocks) = memory_when_dirty(area, origin);
        let each = bytes as f64 / blocks as f64;
        println!("{blocks} blocks before {origin_mib} MiB: {each:.1} bytes each");
        assert!(each <= 32.0, "{bytes} bytes for {blocks} blocks");
    }
}

/// A cache of `cache_mib` MiB in blocks of 512 bytes, before an origin of 64 MiB.
fn small(cache_mib: u64) -> (Rc<WriteCache>, Bench) {
    let bench = Bench::new(Sector(64 * 2048), Sector(cache_mib * 2048));
    (open_ram(&bench, ""), bench)
}

async fn write_sector(cache: &WriteCache, buf: &Buf, at: u64) {
    let written =
        reactor::write(cache, Flags::empty(), Class::Normal, Sector(at), buf.all().into());
    written.await.unwrap();
}

/// Allocations of each operation, after as many that are not counted.
fn allocations(
    (cache, bench): &(Rc<WriteCache>, Bench),
    count: u64,
    op: impl AsyncFn(&WriteCache, &Buf, u64) + Clone + 'static,
) -> f64 {
    let run = |numbers: Range<u64>| {
        let (cache, op) = (cache.clone(), op.clone());
        bench.reactor.block_on(async move {
            let buf = Buf::zeroed(512);
            for number in numbers {
                op(&cache, &buf, number).await;
            }
        });
    };
    run(0..count);
    let memory = allocation_counter::measure(|| run(count..2 * count));
    memory.count_total as f64 / count as f64
}

#[test]
fn a_write_over_a_block_allocates_nothing() {
    let each = allocations(&small(16), 10_000, async |cache, buf, number| {
        write_sector(cache, buf, number * 7 % 100).await;
    });
    assert!(each < 0.001, "{each}");
}

#[test]
fn a_write_beside_writeback_allocates_hardly_anything() {
    let fixture = small(4);
    let each = allocations(&fixture, 20_000, async |cache, buf, number| {
        write_sector(cache, buf, number * 9973 % (64 * 2048)).await;
    });
    assert!(number(&fixture.0, "origin_writes") > 20_000, "scattered blocks go back one by one");
    assert!(each < 0.5, "{each}");
}

#[test]
fn a_write_and_a_flush_allocate_only_for_bitmaps() {
    let each = allocations(&small(16), 2_000, async |cache, buf, number| {
        write_sector(cache, buf, number * 7 % 1000).await;
        flush(cache).await;
    });
    assert!(each < 4.1, "{each}");
}

#[test]
fn a_write_and_a_flush_wake_no_task_that_has_nothing_to_do() {
    // The cache goes before the core that runs it.
    let fixture = small(16);
    let (cache, bench) = &fixture;
    let once = |at: u64| {
        let cache = cache.clone();
        bench.polls(async move {
            write_sector(&cache, &Buf::zeroed(512), at).await;
            flush(&*cache).await;
        })
    };
    once(1);
    // The client's task before and after each request, and the task that serves the flush: at its
    // beginning, between its record and its flush of the cache device, and at its end. The write
    // needs none.
    assert_eq!(once(2), 3 + 3);
}
