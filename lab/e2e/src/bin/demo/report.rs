// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress lines as the story goes on, and the table at its end.
use e2e::clock;

/// Tells what happens, with times.
#[derive(Debug)]
pub(crate) struct Reporter {
    began: f64,
    phase_began: f64,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        let now = clock();
        Reporter { began: now, phase_began: now }
    }

    /// A phase begins.
    pub(crate) fn phase(&mut self, what: &str) {
        self.phase_began = clock();
        println!("[{:6.1} s] {what}", self.phase_began - self.began);
    }

    /// What came of the phase.
    pub(crate) fn done(&self, what: &str) {
        println!("           {what} ({:.1} s)", clock() - self.phase_began);
    }

    /// Seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        clock() - self.began
    }
}

/// A flush of everything, measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    pub(crate) seconds: f64,
    pub(crate) dirty_blocks: u64,
    pub(crate) origin_writes: u64,
    pub(crate) origin_write_bytes: u64,
}

impl Flush {
    fn mean_io_kib(&self) -> f64 {
        self.origin_write_bytes as f64 / self.origin_writes.max(1) as f64 / 1024.0
    }
}

/// All figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) cache_iops: f64,
    pub(crate) origin_iops: f64,
    pub(crate) sorted: Flush,
    pub(crate) lru: Flush,
}

impl Figures {
    pub(crate) fn print(&self) {
        println!();
        println!("4 KiB random writes, verified   IOPS");
        println!("  to the cache            {:10.0}", self.cache_iops);
        println!("  to the origin alone     {:10.0}", self.origin_iops);
        println!();
        println!("flush of {:9} blocks      sorted        lru", self.sorted.dirty_blocks);
        row("time, s", [self.sorted.seconds, self.lru.seconds], 2);
        let ios = [self.sorted.origin_writes, self.lru.origin_writes];
        row("origin writes", ios.map(|n| n as f64), 0);
        row("mean write, KiB", [self.sorted.mean_io_kib(), self.lru.mean_io_kib()], 1);
        println!();
        println!("measured on this machine's disk; `make bench-flush-sim` shows a hard disk");
    }
}

fn row(name: &str, values: [f64; 2], digits: usize) {
    println!("  {name:<23} {:10.digits$} {:10.digits$}", values[0], values[1]);
}
