// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache on files of this machine.
use std::path::Path;

use block::Nanos;

use super::super::{MIB, ROUNDS, mib};
use super::{FLUSH_FIGURES, Kind, READ_FIGURES, Seen, WAYS};
use crate::compressed::place::Local;
use crate::compressed::writeback::sequential;
use crate::flush::{BLOCK_BYTES, PUBLISHED_PERCENT, Plan, Reads, Scale, Way};
use crate::flush_disk::Ground;
use crate::median::median;
use crate::report::{Decides, Section};
use crate::rounds::{Steps, Told, turns};
use crate::table::{Table, fixed};

/// Those with a reader beside them.
const READ_WAYS: [Way; 2] = [Way::Lru, Way::GapFill];

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Where the files are made.
    pub dir: &'a Path,
    pub scale: Scale,
    /// Of the origin is so much dirty.
    pub dirty_percent: u64,
    pub rounds: usize,
    /// Writes of writeback in flight; 0 is no limit but the cache's own.
    pub jobs: u32,
    pub reads: Reads,
    /// Whether the origin is taken for a disk that rotates; what it says itself when nothing.
    pub rotational: Option<bool>,
}

impl<'a> Options<'a> {
    /// As `millpond reproduce` runs it, with so many dirty bytes.
    pub fn of_dirty(dir: &'a Path, bytes: u64) -> Options<'a> {
        Options {
            dir,
            scale: Scale::of_dirty(bytes),
            dirty_percent: PUBLISHED_PERCENT,
            rounds: ROUNDS,
            jobs: 0,
            reads: Reads { every: Nanos::from_millis(2), idle: 1000 },
            rotational: None,
        }
    }

    fn plan(&self, kind: Kind, nth: u64) -> Plan {
        let Options { scale, dirty_percent: fill_percent, jobs, .. } = *self;
        let reads = kind.is_read.then_some(self.reads);
        let watched = !kind.is_read;
        Plan { scale, way: kind.way, fill_percent, reads, jobs, nth, watched }
    }
}

/// Runs it.
///
/// # Errors
/// What the file system or the cache said.
pub fn run(options: &Options<'_>, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "making files");
    let ground = Ground::new(options.dir, options.scale.origin_blocks, options.rotational)?;
    let kinds: Vec<Kind> = WAYS
        .map(|way| Kind { way, is_read: false })
        .into_iter()
        .chain(READ_WAYS.map(|way| Kind { way, is_read: true }))
        .collect();
    let mut steps = Steps::new(told, options.rounds * kinds.len() + 2);
    let mut nth = 0;
    let mut flush = |kind: Kind, steps: &mut Steps<'_>| {
        steps.next(&kind.words());
        nth += 1;
        ground.run(options.plan(kind, nth))
    };
    // What is first pays for what nobody has written before.
    flush(Kind { way: Way::GapKnown, is_read: false }, &mut steps)?;
    let mut seen = Seen::default();
    for (_, at) in turns(options.rounds, kinds.len()) {
        seen.push(kinds[at], flush(kinds[at], &mut steps)?);
    }
    steps.next("plain sequential writes");
    let dirty_bytes = options.scale.dirty_blocks(options.dirty_percent) * BLOCK_BYTES;
    let place = Local::new(options.dir, dirty_bytes + MIB)?;
    let plain: Result<Vec<_>, _> =
        (0..options.rounds).map(|_| sequential(&place, dirty_bytes)).collect();
    let plain_s = median(&plain?.iter().map(|p| p.0).collect::<Vec<_>>());
    section(options, &ground, &seen, plain_s)
}

fn section(
    options: &Options<'_>,
    ground: &Ground,
    seen: &Seen,
    plain_s: f64,
) -> Result<Section, String> {
    let origin_bytes = options.scale.origin_blocks * BLOCK_BYTES;
    let dirty = mib(options.scale.dirty_blocks(options.dirty_percent) * BLOCK_BYTES);
    let rotates = if ground.limits()?.rotational { "rotates" } else { "does not rotate" };
    let whose = if options.rotational.is_some() { "is taken for one that" } else { "says that it" };
    let disk = format!("the disk {whose} {rotates}: gaps are filled only where that is faster");
    let limit = ("plain writes, no flush", plain_s);
    let mut section = Section {
        name: "writecache",
        rows: seen.rows(limit, Decides::Disk),
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
    for way in WAYS {
        flushes.row(&[way.name()], seen.flush_figures(way));
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
