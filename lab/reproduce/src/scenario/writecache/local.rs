// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache on files of this machine.
use std::path::Path;

use block::Nanos;

use super::super::units::{MIB, ROUNDS, mib};
use super::{FLUSH_FIGURES, FlushRuns, Kind, READ_FIGURES, STRATEGIES};
use crate::compressed::platform::Local;
use crate::compressed::writeback::sequential;
use crate::flush::{BLOCK_BYTES, PUBLISHED_PERCENT, Plan, Reads, Scale, Strategy};
use crate::flush_disk::TestBed;
use crate::median::median;
use crate::report::{Basis, Section};
use crate::rounds::{Progress, Steps, turns};
use crate::table::{Table, fixed};

/// Strategies that are run with a reader, too.
pub const READ_STRATEGIES: [Strategy; 2] = [Strategy::Lru, Strategy::GapFill];

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The folder of the files.
    pub dir: &'a Path,
    pub scale: Scale,
    /// Dirty blocks in per cent of the origin.
    pub dirty_percent: u64,
    pub rounds: usize,
    /// Limit of writes of writeback in flight; 0: only the cache's own limit.
    pub jobs: u32,
    pub reads: Reads,
    /// Strategies that are run, and those that are run with a reader, too.
    pub strategies: &'a [Strategy],
    pub read_strategies: &'a [Strategy],
    /// Whether the origin is treated as a rotating disk; if none, as it says.
    pub rotational: Option<bool>,
}

impl<'a> Options<'a> {
    /// The options of `reproduce` for so many dirty bytes.
    pub fn of_dirty(dir: &'a Path, bytes: u64) -> Options<'a> {
        Options {
            dir,
            scale: Scale::of_dirty(bytes),
            dirty_percent: PUBLISHED_PERCENT,
            rounds: ROUNDS,
            jobs: 0,
            reads: Reads { every: Nanos::from_millis(2), idle: 1000 },
            strategies: &STRATEGIES,
            read_strategies: &READ_STRATEGIES,
            rotational: None,
        }
    }

    fn plan(&self, kind: Kind, nth: u64) -> Plan {
        let Options { scale, dirty_percent: fill_percent, jobs, .. } = *self;
        let reads = kind.is_read.then_some(self.reads);
        let watched = !kind.is_read;
        Plan { scale, strategy: kind.strategy, fill_percent, reads, jobs, nth, watched }
    }
}

/// Runs the scenario.
///
/// # Errors
/// The error of the file system or the cache.
pub fn run(options: &Options<'_>, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "making files");
    let test_bed = TestBed::new(options.dir, options.scale.origin_blocks, options.rotational)?;
    let kind = |is_read| move |strategy: &Strategy| Kind { strategy: *strategy, is_read };
    let kinds: Vec<Kind> = options
        .strategies
        .iter()
        .map(kind(false))
        .chain(options.read_strategies.iter().map(kind(true)))
        .collect();
    let mut steps = Steps::new(progress, options.rounds * kinds.len() + 2);
    let mut nth = 0;
    let mut flush = |kind: Kind, steps: &mut Steps<'_>| {
        steps.next(&kind.words());
        nth += 1;
        test_bed.run(options.plan(kind, nth))
    };
    // The first flush is not measured: it pays for the first use of the disk.
    flush(Kind { strategy: Strategy::GapKnown, is_read: false }, &mut steps)?;
    let mut seen = FlushRuns::default();
    for (_, at) in turns(options.rounds, kinds.len()) {
        seen.push(kinds[at], flush(kinds[at], &mut steps)?);
    }
    steps.next("plain sequential writes");
    let dirty_bytes = options.scale.dirty_blocks(options.dirty_percent) * BLOCK_BYTES;
    let platform = Local::new(options.dir, dirty_bytes + MIB)?;
    let plain: Result<Vec<_>, _> =
        (0..options.rounds).map(|_| sequential(&platform, dirty_bytes)).collect();
    let plain_s = median(&plain?.iter().map(|p| p.0).collect::<Vec<_>>());
    section(options, &test_bed, &seen, plain_s)
}

fn section(
    options: &Options<'_>,
    test_bed: &TestBed,
    seen: &FlushRuns,
    plain_s: f64,
) -> Result<Section, String> {
    let origin_bytes = options.scale.origin_blocks * BLOCK_BYTES;
    let dirty = mib(options.scale.dirty_blocks(options.dirty_percent) * BLOCK_BYTES);
    let rotates = if test_bed.limits()?.rotational { "rotates" } else { "does not rotate" };
    let whose = if options.rotational.is_some() { "is taken for one that" } else { "says that it" };
    let disk = format!("the disk {whose} {rotates}: gaps are filled only where that is faster");
    let limit = ("plain writes, no flush", plain_s);
    let mut section = Section {
        name: "writecache",
        rows: seen.rows(limit, Basis::Disk),
        plots: seen.plots(),
        ..Section::default()
    };
    section.put("size_mib", (origin_bytes / MIB) as f64);
    section.put("dirty_percent", options.dirty_percent as f64);
    section.put("jobs", f64::from(options.jobs));
    seen.put(&mut section, "");
    section.put("plain_s", plain_s);

    let title = format!(
        "{dirty} of random dirty 4 KiB blocks over {}, each written once; then one `flush`; \
         medians of {} rounds",
        mib(origin_bytes),
        options.rounds
    );
    let mut flushes = Table::new(title, &["way"], &FLUSH_FIGURES);
    for strategy in options.strategies {
        flushes.row(&[strategy.name()], seen.flush_figures(*strategy));
    }
    flushes.row(&["plain writes, no flush"], [fixed(plain_s, 3)]);
    flushes.note(format!("files in {}; {disk}", options.dir.display()));
    let title = format!(
        "A reader of random blocks, {} a second, us",
        1_000_000_000 / options.reads.every.0
    );
    let mut reads = Table::new(title, &["way"], &READ_FIGURES);
    seen.read_rows(&mut reads, &[]);
    section.tables = vec![flushes, reads];
    section
        .notes
        .push(format!("{dirty} of random dirty 4 KiB blocks over {}; {disk}", mib(origin_bytes)));
    Ok(section)
}
