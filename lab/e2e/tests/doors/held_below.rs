// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapped device below an engine, on one core or divided among two, is suspended, resized and
//! given another table while clients write: nobody waits for what it holds itself.
#![expect(clippy::disallowed_methods, reason = "clients that wait need threads of their own")]

use std::fs::OpenOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use e2e::process::Job;
use e2e::stamp::fill;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);
const ROUNDS: u64 = 5;

/// Four clients that write, on both cores.
struct Writers {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Writers {
    fn begin(bed: &TestBed, device: &str) -> Writers {
        let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let threads = (0..4_u64).map(|nth| {
            let mut client = bed.connect(device);
            let (stop, written) = (stop.clone(), written.clone());
            std::thread::spawn(move || {
                // A few kinds of data, so that a compressed RAM disk has pages to write back.
                let mut data = [0; 4096];
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    fill(&mut data, nth, round);
                    client.write((round * 4 + nth) % 2048 * 4096, &data).unwrap();
                    if round % 16 == 0 {
                        client.flush().unwrap();
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Writers { stop, written, threads }
    }

    /// Waits for writes that begin now.
    fn go_on(&self, why: &str) {
        let (before, begun) = (self.written.load(Ordering::Relaxed), clock());
        while self.written.load(Ordering::Relaxed) < before + 50 {
            assert!(clock() - begun < 20.0, "{why}: nobody writes");
            pause(Duration::from_millis(2));
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A verb that has to end.
fn ends(bed: &TestBed, args: &[&str]) {
    let job = Job::start(&mut bed.daemon().command(args)).unwrap();
    let ended = job.wait(LIMIT).unwrap_or_else(|e| panic!("{args:?} has not ended: {e}"));
    assert_eq!(ended.code, 0, "{args:?}: {}", ended.complaint());
}

/// All that stops the bios of `low`, below `top`.
fn change_below(bed: &TestBed, low: &str, top: &str, file: &str) {
    let writers = Writers::begin(bed, top);
    let path = bed.path(file).display().to_string();
    let mut mib = 64;
    for round in 0..ROUNDS {
        writers.go_on("before");
        ends(bed, &["suspend", low]);
        pause(Duration::from_millis(30));
        // Another device is not concerned.
        ends(bed, &["suspend", "other"]);
        ends(bed, &["resume", "other"]);
        ends(bed, &["resume", low]);
        writers.go_on("after a suspend");
        // Who has to wait for `low` delays no other.
        ends(bed, &["suspend", low]);
        pause(Duration::from_millis(30));
        let waits = Job::start(&mut bed.daemon().command(&["suspend", top])).unwrap();
        pause(Duration::from_millis(30));
        ends(bed, &["suspend", "other"]);
        ends(bed, &["resume", "other"]);
        ends(bed, &["resume", low]);
        assert_eq!(waits.wait(LIMIT).unwrap().code, 0);
        ends(bed, &["resume", top]);
        writers.go_on("after a suspend of both");
        ends(bed, &["load", low, "--table", &table(mib, &path)]);
        ends(bed, &["resume", low]);
        writers.go_on("after another table");
        if round % 2 == 0 {
            mib += 16;
            let grown = OpenOptions::new().write(true).open(bed.path(file)).unwrap();
            grown.set_len(mib * MIB).unwrap();
            ends(bed, &["resize", low]);
            writers.go_on("after a resize");
        }
    }
    writers.end();
}

fn table(mib: u64, file: &str) -> String {
    format!("0 {} linear {file} 0", mib * 2048)
}

fn two_cores(file: &str, others: &[(&str, u64)], devices: &[(&str, &str)]) -> TestBed {
    let mut files = vec![(file, 64 * MIB)];
    files.extend(others);
    let low = table(64, &format!("./{file}"));
    let mut all = vec![("low", &*low), ("other", "0 2048 linear mem:1M 0")];
    all.extend(devices);
    TestBed::start_with("cores = 2", &files, &all)
}

#[test]
fn a_cache_device_changes_under_load() {
    let w = "0 131072 writecache s mem:64M low 4096 0";
    let bed = two_cores("cache.img", &[], &[("w", w)]);
    change_below(&bed, "low", "w", "cache.img");
    // The runbook: the cache device has grown.
    ends(&bed, &["resize", "w", "--cache"]);
}

#[test]
fn an_origin_of_a_cache_changes_under_load() {
    let w = "0 131072 writecache s low ./cache.img 4096 4 high_watermark 5 low_watermark 1";
    let bed = two_cores("origin.img", &[("cache.img", 32 * MIB)], &[("w", w)]);
    change_below(&bed, "low", "w", "origin.img");
}

#[test]
fn a_mapping_over_a_cache_lives_on_while_that_changes() {
    let w = "0 131072 writecache s mem:64M low 4096 0";
    let top = "0 131072 linear w 0";
    let bed = two_cores("cache.img", &[], &[("w", w), ("top", top)]);
    change_below(&bed, "low", "top", "cache.img");
}

#[test]
fn a_backing_device_below_zram_on_two_cores_changes_under_load() {
    let bed = two_cores("back.img", &[], &[("z", "0 65536 zram lz4 2 backing_dev low")]);
    change_below(&bed, "low", "z", "back.img");
}
