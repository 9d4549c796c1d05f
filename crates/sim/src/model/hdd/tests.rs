// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disk model against figures: the published run, data sheets, and common sense.

use super::*;
use crate::model::drive;
use crate::rng::Rng;

const BLOCK: u64 = 4096;
const RUN_BLOCKS_MAX: u64 = 256;

/// Sorted runs and LRU order with the kernel's forward merge, of the same random dirty blocks.
fn both_orders(span_blocks: u64, dirty_blocks: usize, seed: u64) -> (Vec<Cmd>, Vec<Cmd>) {
    let mut lru: Vec<u64> = (0..span_blocks).collect();
    Rng::new(seed).shuffle(&mut lru);
    lru.truncate(dirty_blocks);
    let mut dirty = vec![false; usize::try_from(span_blocks).unwrap()];
    for &block in &lru {
        dirty[usize::try_from(block).unwrap()] = true;
    }
    let merged = |order: &mut dyn Iterator<Item = u64>| {
        let mut dirty = dirty.clone();
        let mut cmds = Vec::new();
        for first in order {
            let run = dirty[usize::try_from(first).unwrap()..].iter_mut();
            let run = run.take(RUN_BLOCKS_MAX as usize);
            match run.map_while(|d| std::mem::take(d).then_some(())).count() as u64 {
                0 => {}
                n => cmds.push(Cmd::write(first * BLOCK, n * BLOCK)),
            }
        }
        cmds
    };
    (merged(&mut (0..span_blocks)), merged(&mut lru.iter().copied()))
}

/// Written bytes after which a host sends a flush, as writecache does (its `SETTLE_BYTES`).
const FLUSH_EVERY_BYTES: u64 = 64 << 20;
const FLUSH_ID: u64 = u64::MAX;

/// Seconds until all is on the medium, and how many flushes it took: a host that keeps `depth`
/// commands in flight, one flush at a time beside them, and sends one more in the end.
fn flushed_by(params: HddParams, cmds: &[Cmd], depth: usize) -> (f64, u32) {
    let mut hdd = Hdd::new(params);
    let (mut now, mut next, mut in_flight, mut done) = (0, 0, 0, Vec::new());
    let (mut written_bytes, mut flushing, mut flushes) = (0, false, 0);
    loop {
        while in_flight < depth && next < cmds.len() {
            hdd.submit(now, next as u64, cmds[next]);
            next += 1;
            in_flight += 1;
        }
        let last = in_flight == 0 && written_bytes > 0;
        if !flushing && (written_bytes >= FLUSH_EVERY_BYTES || last) {
            hdd.submit(now, FLUSH_ID, Cmd::flush());
            (written_bytes, flushing, flushes) = (0, true, flushes + 1);
        }
        if in_flight == 0 && !flushing {
            return (now as f64 / 1e9, flushes);
        }
        now = hdd.next_event().expect("something is in flight");
        hdd.pop_done(now, &mut done);
        for id in done.drain(..) {
            if id == FLUSH_ID {
                flushing = false;
                continue;
            }
            in_flight -= 1;
            let cmd = &cmds[usize::try_from(id).unwrap()];
            written_bytes += if cmd.kind == Kind::Write { cmd.len_bytes } else { 0 };
        }
    }
}

fn flushed_s(params: HddParams, cmds: &[Cmd], depth: usize) -> f64 {
    flushed_by(params, cmds, depth).0
}

#[test]
fn the_published_run_takes_44_s_sorted_and_99_s_in_lru_order() {
    let (sorted, lru) = both_orders((2 << 30) / BLOCK, 1006 * 256, 1);
    for depth in [256, 8192] {
        for (order, cmds, published_s) in [("sorted", &sorted, 44.0), ("lru", &lru, 99.2)] {
            let (s, flushes) = flushed_by(HddParams::published(), cmds, depth);
            println!("depth {depth}, {order}: {} runs, {flushes} flushes, {s:.2} s", cmds.len());
            assert!((s / published_s - 1.0).abs() < 0.05, "{order}: {s} s");
            assert!(flushes > 2, "{order}: {flushes} flushes");
        }
    }
}

#[test]
fn during_a_flush_the_head_writes_no_later_request() {
    let mut hdd = Hdd::new(HddParams::published());
    let (mut now, mut next, mut done) = (0, 0, Vec::new());
    let mut write = |hdd: &mut Hdd, now| {
        // Every second MiB first, what lies between them later: nearer to the head, all the time.
        let at = if next < 100 { 2 * next } else { 2 * (next - 100) + 1 };
        hdd.submit(now, next, Cmd::write(at << 20, BLOCK));
        next += 1;
    };
    (0..100).for_each(|_| write(&mut hdd, 0));
    while done.len() < 100 {
        now = hdd.next_event().unwrap();
        hdd.pop_done(now, &mut done);
    }
    let covered = hdd.writes.len() as u64 + 1; // one is being written
    assert!(covered > 90, "the medium is slower than the link: {covered}");
    hdd.submit(now, FLUSH_ID, Cmd::flush());
    (0..50).for_each(|_| write(&mut hdd, now));
    // A second flush while the first waits, and something after it too.
    let mut second_sent = false;
    while !done.contains(&FLUSH_ID) {
        now = hdd.next_event().unwrap();
        hdd.pop_done(now, &mut done);
        if done.len() == 150 && !second_sent {
            second_sent = true;
            hdd.submit(now, FLUSH_ID - 1, Cmd::flush());
            (0..50).for_each(|_| write(&mut hdd, now));
        }
    }
    assert!(second_sent, "cached writes are acknowledged while a flush waits");
    let used = |hdd: &Hdd| hdd.cache_used_bytes / BLOCK;
    assert_eq!(used(&hdd), 100, "what came after the first flush is still in the cache");
    while !done.contains(&(FLUSH_ID - 1)) {
        now = hdd.next_event().unwrap();
        hdd.pop_done(now, &mut done);
    }
    assert_eq!(used(&hdd), 50, "what came after the second flush is still in the cache");
    while let Some(t) = hdd.next_event() {
        hdd.pop_done(t, &mut done);
    }
    assert_eq!((used(&hdd), hdd.late_writes, done.len()), (0, 0, 202));
}

#[test]
fn consecutive_flushes_stall_no_read_and_lose_no_fua_write() {
    let mut hdd = Hdd::new(HddParams { cache_bytes: 8 << 20, ..HddParams::published() });
    let mut rng = Rng::new(5);
    let (mut next, mut done) = (0, Vec::new());
    let mut submit = |hdd: &mut Hdd, now, cmd| {
        hdd.submit(now, next, cmd);
        next += 1;
        next - 1
    };
    for _ in 0..2_000 {
        submit(&mut hdd, 0, Cmd::write(rng.below(1 << 20) * BLOCK, BLOCK));
    }
    hdd.pop_done(30_000_000, &mut done);
    let mut flush = submit(&mut hdd, 30_000_000, Cmd::flush());
    let fua = submit(&mut hdd, 30_000_000, Cmd { fua: true, ..Cmd::write(7 << 30, BLOCK) });
    let mut read = submit(&mut hdd, 30_000_000, Cmd::read(100 << 30, BLOCK));
    let mut reads = 0;
    done.clear();
    while !done.contains(&fua) {
        let now = hdd.next_event().expect("the write is in flight");
        assert!(now < 20_000_000_000, "the write starves");
        let seen = done.len();
        hdd.pop_done(now, &mut done);
        for &id in &done[seen..] {
            if id == flush {
                flush = submit(&mut hdd, now, Cmd::flush());
            } else if id == read {
                reads += 1;
                read = submit(&mut hdd, now, Cmd::read(rng.below(100 << 18) * BLOCK, BLOCK));
            } else {
                // The cache never gets empty.
                submit(&mut hdd, now, Cmd::write(rng.below(1 << 20) * BLOCK, BLOCK));
            }
        }
    }
    assert!(reads > 100, "{reads} reads");
}

#[test]
fn sorted_is_never_slower_than_lru_at_other_fill_levels() {
    for (name, params) in
        [("published", HddParams::published()), ("textbook", HddParams::textbook())]
    {
        for dirty_per_cent in [1, 10, 50] {
            let span: u64 = 32_768;
            let dirty = usize::try_from(span * dirty_per_cent / 100).unwrap();
            let (sorted, lru) = both_orders(span, dirty, 2);
            let (sorted_s, lru_s) =
                (flushed_s(params, &sorted, 1024), flushed_s(params, &lru, 1024));
            println!("{name} {dirty_per_cent} %: sorted {sorted_s:.2} s, lru {lru_s:.2} s");
            assert!(sorted_s <= lru_s * 1.01, "{name} {dirty_per_cent} %: {sorted_s} > {lru_s}");
        }
    }
}

#[test]
fn sequential_transfers_run_at_the_rate_of_the_medium() {
    for params in [HddParams::published(), HddParams::textbook()] {
        for (depth, make) in
            [(1, Cmd::read as fn(u64, u64) -> Cmd), (32, Cmd::read), (32, Cmd::write)]
        {
            let cmds: Vec<Cmd> = (0..1000).map(|i| make(i << 20, 1 << 20)).collect();
            let mb_per_s = (1000u64 << 20) as f64 / 1e6 / flushed_s(params, &cmds, depth);
            assert!((140.0..151.0).contains(&mb_per_s), "{mb_per_s} MB/s at depth {depth}");
        }
    }
}

#[test]
fn a_random_read_costs_seek_half_a_turn_and_the_command() {
    let mut rng = Rng::new(3);
    let cmds: Vec<Cmd> =
        (0..2000).map(|_| Cmd::read(rng.below(250_000_000) * BLOCK, BLOCK)).collect();
    let ms = flushed_s(HddParams::textbook(), &cmds, 1) * 1e3 / 2000.0;
    // 1 TB: about 8.5 ms of seek, 4.17 ms of half a turn, 0.2 ms of command.
    assert!((12.0..14.0).contains(&ms), "{ms} ms");
}

#[test]
fn a_flush_waits_for_what_was_acknowledged_and_fua_for_itself() {
    let mut hdd = Hdd::new(HddParams::published());
    let mut done = Vec::new();
    for id in 0..100 {
        hdd.submit(0, id, Cmd::write(id * 1_000_000, BLOCK));
    }
    hdd.submit(0, 100, Cmd { fua: true, ..Cmd::write(500, BLOCK) });
    hdd.pop_done(3_000_000, &mut done);
    assert_eq!(done.iter().filter(|&&id| id < 100).count(), 100, "cached writes are fast");
    hdd.submit(3_000_000, 101, Cmd::flush());
    done.clear();
    while let Some(t) = hdd.next_event() {
        hdd.pop_done(t, &mut done);
    }
    done.retain(|&id| id != 100);
    assert_eq!(done, [101]);
    assert_eq!(hdd.cache_used_bytes, 0);
    assert_eq!(hdd.late_writes, 0);
}

#[test]
fn reads_and_destage_both_make_progress() {
    let mut rng = Rng::new(4);
    let cmds: Vec<Cmd> = (0..5_000)
        .map(|i| {
            let at = rng.below(100_000) * BLOCK;
            if i % 2 == 0 { Cmd::read(at, BLOCK) } else { Cmd::write(at, 64 << 10) }
        })
        .collect();
    let s = flushed_s(HddParams::published(), &cmds, 64);
    assert!((5.0..40.0).contains(&s), "{s} s");
}

#[test]
fn a_stream_does_not_starve_a_far_read_nor_a_flush() {
    for params in [HddParams::published(), HddParams::textbook()] {
        let mut hdd = Hdd::new(params);
        let (mut now, mut next, mut done) = (0, 10, Vec::new());
        hdd.submit(0, 0, Cmd::read(500 << 30, BLOCK));
        hdd.submit(0, 1, Cmd::write(400 << 30, BLOCK));
        let (mut read_ns, mut flush_ns) = (None, None);
        let mut flushing = false;
        while read_ns.is_none() || flush_ns.is_none() {
            // Sequential reads and writes are always in flight.
            while next < 42 + done.len() as u64 {
                let at = next << 20;
                let cmd =
                    if next % 2 == 0 { Cmd::read(at, 1 << 20) } else { Cmd::write(at, 1 << 20) };
                hdd.submit(now, next, cmd);
                next += 1;
            }
            if now > 0 && !flushing {
                flushing = true;
                hdd.submit(now, 2, Cmd::flush());
            }
            now = hdd.next_event().expect("commands are in flight");
            assert!(now < 20_000_000_000, "starved: read {read_ns:?} flush {flush_ns:?}");
            let seen = done.len();
            hdd.pop_done(now, &mut done);
            for &id in &done[seen..] {
                match id {
                    0 => read_ns = Some(now),
                    2 => flush_ns = Some(now),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn rewriting_what_still_waits_in_the_cache_costs_no_second_trip() {
    let cmds: Vec<Cmd> = (0..20_000).map(|i| Cmd::write(i % 100 * (10 << 20), BLOCK)).collect();
    let s = flushed_s(HddParams::published(), &cmds, 32);
    assert!(s < 2.5, "{s} s");
    let mut hdd = Hdd::new(HddParams::published());
    drive(&mut hdd, &cmds, 32);
    let mut done = Vec::new();
    while let Some(t) = hdd.next_event() {
        hdd.pop_done(t, &mut done);
    }
    assert_eq!((hdd.cache_used_bytes, hdd.late_writes, hdd.unflushed.len()), (0, 0, 0));
}
