// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-pmem-copy`: methods to copy into persistent memory, at lengths of 64 B to 64 KiB:
//! non-temporal stores, and an ordinary copy whose lines are written back by each instruction that
//! this CPU has.
//!
//! Two patterns: `lone`, a fence after every copy, as a FUA write has it; and `burst`, one fence
//! after 64 copies, as a flush after many writes has it. The memory is ordinary: on persistent
//! memory every figure is higher, and the relation of the methods may differ.
use std::process::ExitCode;

use reproduce::clock;
use reproduce::median::{median, spread_percent};
use serde_json::json;
use uring::copy::{self, Method};

const LENGTHS: [usize; 11] = [64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 16384, 65536];
/// Copies before a fence in a burst.
const BURST: usize = 64;
/// Far more than caches keep, so that a line is not there when its turn comes again.
const TARGET_BYTES: usize = 256 << 20;
/// Runs of each method and length, by turns.
const RUNS: usize = 5;
/// Bytes that a run copies; fewer for short lengths, whose copies take longer by the byte.
const RUN_BYTES: usize = 32 << 20;

/// Nanoseconds a copy of `len` bytes, with a fence after every `burst` of them.
fn measure(method: Method, len: usize, burst: usize, to: &mut [u8], from: &[u8]) -> f64 {
    let count = (RUN_BYTES / len.max(512) / burst).max(1);
    let piece = len * burst;
    let places = to.len() / piece;
    let begin = clock();
    for n in 0..count {
        // A stride that is no multiple of a page, and comes to every place.
        let at = n * 7919 % places * piece;
        copy::copy_parts_and_fence(method, &mut to[at..at + piece], &from[..piece], len);
    }
    (clock() - begin) * 1e9 / (count * burst) as f64
}

/// Measures copies into persistent memory by each method that this CPU has
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_: &Args) -> ExitCode {
    let methods = copy::methods();
    if methods.is_empty() {
        println!("this CPU has no instruction for it");
        println!("{}", json!({ "bench": "pmem-copy", "rows": [] }));
        return ExitCode::SUCCESS;
    }
    let mut to = vec![1; TARGET_BYTES];
    let from = vec![2; LENGTHS[LENGTHS.len() - 1] * BURST];
    let mut rows = Vec::new();
    for (pattern, burst) in [("lone", 1), ("burst", BURST)] {
        print!("{pattern:>8}");
        methods.iter().for_each(|(name, _)| print!(" {name:>12} ns"));
        println!("  best        MB/s");
        for len in LENGTHS {
            let mut times = vec![Vec::new(); methods.len()];
            for _ in 0..RUNS {
                for ((_, method), times) in methods.iter().zip(&mut times) {
                    times.push(measure(*method, len, burst, &mut to, &from));
                }
            }
            let medians: Vec<f64> = times.iter().map(|t| median(t)).collect();
            let best = (0..methods.len()).min_by(|&a, &b| medians[a].total_cmp(&medians[b]));
            let best = best.expect("there are methods");
            print!("{len:>8}");
            medians.iter().for_each(|ns| print!(" {ns:>15.1}"));
            println!("  {:<10} {:>6.0}", methods[best].0, len as f64 * 1e3 / medians[best]);
            let figures = methods.iter().zip(&times).zip(&medians);
            let figures = figures.map(|(((name, _), times), ns)| {
                let spread = spread_percent(times);
                ((*name).to_owned(), json!({ "ns": ns, "spread_percent": spread }))
            });
            let figures: serde_json::Map<_, _> = figures.collect();
            rows.push(json!({
                "pattern": pattern, "bytes": len, "best": methods[best].0, "methods": figures,
            }));
        }
    }
    println!("{}", json!({ "bench": "pmem-copy", "burst": BURST, "rows": rows }));
    ExitCode::SUCCESS
}
