// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that fills and stays full before rotating disks, in virtual time: how long writes wait
//! from the first to the last, and how many get through.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::common::{Fixture, number, put};
use block::Nanos;
use sim::DiskSpec;
use sim::model::HddParams;

/// Blocks written, as a multiple of those of the cache.
const ROUNDS: u64 = 6;
/// The longest wait that the disk can be blamed for: a few scattered blocks and a flush.
const PHYSICS_MS: f64 = 30.0;
/// The longest and the usual wait, as multiples of the mean of the steady state. The first is the
/// pacer's: no block costs more than 8 times what it costs at the setpoint.
const WORST_OF_MEAN: f64 = 8.0;
const P99_OF_MEAN: f64 = 3.0;

#[derive(Clone, Copy)]
struct Case {
    disk: (&'static str, HddParams),
    high: u32,
    low: u32,
    mib: u64,
    writers: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { disk: (disk, _), high, low, mib, writers } = self;
        write!(f, "{disk} {high}/{low}, {mib} MiB, {writers} writers")
    }
}

/// When each write began and how long it took, in order of their ends.
fn waits(case: Case) -> Vec<(u64, u64)> {
    let options = format!("high_watermark {} low_watermark {}", case.high, case.low);
    let mut fixture = Fixture::new(65536, case.mib << 10, &options);
    let spec = DiskSpec::hdd("hdd", fixture.sectors, case.disk.1);
    fixture.origin = fixture.world.borrow_mut().add_disk(spec);
    let waits = Rc::new(RefCell::new(Vec::new()));
    let seen = waits.clone();
    fixture
        .life(async move |cache| {
            let writes = ROUNDS * number(&cache, "total_blocks");
            let (next, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(case.writers)));
            for _ in 0..case.writers {
                let (cache, next, running) = (cache.clone(), next.clone(), running.clone());
                let seen = seen.clone();
                reactor::spawn(async move {
                    while next.get() < writes {
                        let n: u64 = next.replace(next.get() + 1);
                        let began = reactor::now();
                        // No error: each write gets in.
                        put(&*cache, n * 7919 % 65536, n).await.unwrap();
                        seen.borrow_mut().push((began.0, reactor::now().saturating_sub(began).0));
                    }
                    running.set(running.get() - 1);
                });
            }
            while running.get() > 0 {
                reactor::sleep(Nanos::from_millis(10)).await;
            }
            cache.check();
        })
        .unwrap();
    waits.take()
}

/// Writes per second of the steady state before writeback went in batches and in order (commit
/// dbce150): disk, watermarks, MiB of the cache, one writer and four. Smoothness must not be bought
/// with these; the lowest today is 6 % below (published, 100/100, 2 MiB, four writers), most are
/// above.
const THROUGHPUT_BEFORE: [(&str, u32, u32, u64, [f64; 2]); 12] = [
    ("textbook", 50, 45, 2, [737.0, 739.0]),
    ("textbook", 50, 45, 16, [1750.0, 1746.0]),
    ("textbook", 90, 80, 2, [398.0, 435.0]),
    ("textbook", 90, 80, 16, [1812.0, 1833.0]),
    ("textbook", 100, 100, 2, [693.0, 672.0]),
    ("textbook", 100, 100, 16, [1773.0, 1740.0]),
    ("published", 50, 45, 2, [660.0, 688.0]),
    ("published", 50, 45, 16, [1877.0, 1895.0]),
    ("published", 90, 80, 2, [384.0, 445.0]),
    ("published", 90, 80, 16, [1344.0, 1416.0]),
    ("published", 100, 100, 2, [661.0, 699.0]),
    ("published", 100, 100, 16, [1397.0, 1386.0]),
];

/// The first fill counts too. Before, single writes waited for up to 2.2 s, 3,000 times the mean.
#[test]
fn a_filling_cache_slows_writers_to_writebacks_rate_smoothly() {
    let mut faults = Vec::new();
    for (name, high, low, mib, before) in THROUGHPUT_BEFORE {
        let params = match name {
            "textbook" => HddParams::textbook(),
            _ => HddParams::published(),
        };
        for (writers, before_per_s) in [1, 4].into_iter().zip(before) {
            let case = Case { disk: (name, params), high, low, mib, writers };
            let mut waits = waits(case);
            let (first, steady) = waits.split_at(waits.len() / 2);
            let span_ns = steady.last().unwrap().0 - steady[0].0;
            let per_s = steady.len() as f64 * 1e9 / span_ns as f64;
            let ms = |ns: u64| ns as f64 / 1e6;
            let mean = ms(steady.iter().map(|w| w.1).sum::<u64>()) / steady.len() as f64;
            let worst = |part: &[(u64, u64)]| ms(part.iter().map(|w| w.1).max().unwrap());
            let (worst_first, worst_steady) = (worst(first), worst(steady));
            waits.sort_unstable_by_key(|w| w.1);
            let p99 = ms(waits[waits.len() * 99 / 100].1);
            let line = format!(
                "{case}: worst {worst_first:.1} ms while it fills, then {worst_steady:.1} ms, \
                 99 % {p99:.2} ms, mean {mean:.2} ms, {per_s:.0}/s (before {before_per_s:.0}/s)"
            );
            println!("{line}");
            let smooth = worst_first.max(worst_steady) <= PHYSICS_MS.max(WORST_OF_MEAN * mean)
                && p99 <= P99_OF_MEAN * mean;
            if !smooth || per_s < 0.92 * before_per_s {
                faults.push(line);
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
