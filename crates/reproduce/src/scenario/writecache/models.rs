// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache on models of disks in virtual time, and what a full cache sustains.
//!
//! The same options give the same bytes on every machine. What is calibrated and what is a
//! prediction: `docs/hdd-model.md`.
use super::super::mib;
use super::{FLUSH_FIGURES, Kind, PUBLISHED_BYTES, Phase, READ_FIGURES, Seen, WAYS};
use crate::flush::{BLOCK_BYTES, Outcome, PUBLISHED_PERCENT, Scale, Way};
use crate::flush_sim::{self, Case, Disk, one_pass_s};
use crate::flush_steady::{self, Steady};
use crate::median::median;
use crate::report::{Asked, Decides, Goal, Section};
use crate::rounds::{Told, side_by_side};
use crate::table::{Table, fixed};

/// The ways that leave reads to the disk.
const READ_WAYS: [Way; 3] = [Way::Lru, Way::Sorted, Way::GapFill];
const STEADY_WAYS: [Way; 2] = [Way::Sorted, Way::GapFill];
/// A full cache is measured on an eighth of the sizes: it writes everything many times.
const STEADY_DIVISOR: u64 = 8;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub scale: Scale,
    /// The published one at least.
    pub disks: &'static [Disk],
    /// Of the origin is so much dirty; the published part at least.
    pub dirty_percents: &'static [u64],
    /// Whether a full cache is measured, too.
    pub has_steady: bool,
    /// Whether a flush is asked how far it is, for a plot. Who asks comes between the tasks of the
    /// cache, and may move a figure by a percent.
    pub has_progress: bool,
}

impl Options {
    /// As `millpond reproduce --sim` runs it, with so many dirty bytes.
    pub fn of_dirty(bytes: u64) -> Options {
        Options {
            scale: Scale::of_dirty(bytes),
            disks: &[Disk::Published],
            dirty_percents: &[PUBLISHED_PERCENT],
            has_steady: false,
            has_progress: true,
        }
    }

    /// All that there is, with the published sizes divided by `by`.
    pub fn divided(by: u64) -> Options {
        Options {
            scale: Scale::divided(by),
            disks: &[Disk::Published, Disk::Textbook],
            dirty_percents: &[10, 25, PUBLISHED_PERCENT, 90],
            has_steady: true,
            has_progress: false,
        }
    }

    fn is_full_size(&self) -> bool {
        self.scale == Scale::PUBLISHED
    }

    fn steady_scale(&self) -> Scale {
        let Scale { origin_blocks, cache_blocks } = self.scale;
        Scale {
            origin_blocks: origin_blocks / STEADY_DIVISOR,
            cache_blocks: cache_blocks / STEADY_DIVISOR,
        }
    }

    /// Those that take longest first.
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &disk in self.disks {
            if self.has_steady {
                jobs.extend(STEADY_WAYS.map(|way| Job::Steady(disk, way)));
            }
            let case = |way, fill_percent, reader| Case { disk, way, fill_percent, reader };
            for &fill in self.dirty_percents {
                jobs.extend(WAYS.map(|way| Job::Flush(case(way, fill, false))).into_iter().rev());
            }
            jobs.extend(READ_WAYS.map(|way| Job::Flush(case(way, PUBLISHED_PERCENT, true))));
        }
        jobs
    }
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Steady(Disk, Way),
    Flush(Case),
}

enum Came {
    Steady(Steady),
    Flush(Box<Outcome>),
}

impl Job {
    fn run(self, options: &Options) -> Result<Came, String> {
        match self {
            Job::Flush(case) => {
                let watched = options.has_progress && !case.reader;
                let outcome = flush_sim::run_watched(options.scale, case, watched)?;
                Ok(Came::Flush(Box::new(outcome)))
            }
            Job::Steady(disk, way) => {
                flush_steady::run(options.steady_scale(), disk, way).map(Came::Steady)
            }
        }
    }

    fn words(self, came: &Came) -> String {
        match (self, came) {
            (Job::Flush(case), Came::Flush(outcome)) => {
                let Case { disk, way, fill_percent, reader } = case;
                let kind = Kind { way, is_read: reader }.words();
                let (disk, s) = (disk.name(), outcome.seconds());
                format!("{kind}, {disk}, {fill_percent} % dirty: {s:.2} s")
            }
            (Job::Steady(disk, way), Came::Steady(steady)) => {
                let (disk, way, writes) = (disk.name(), way.name(), steady.writes_per_s);
                format!("full cache, {way}, {disk}: {writes:.0} writes a second")
            }
            (_, _) => unreachable!("of each job comes what it is"),
        }
    }
}

/// Runs it.
///
/// # Errors
/// What the cache answered when it was not what it should have been.
pub fn run(options: &Options, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "flushes on models of disks");
    let jobs = options.jobs();
    let came = side_by_side(&jobs, |job| job.run(options), Job::words, told)?;
    let (mut flushes, mut steadies) = (Vec::<(Disk, u64, Seen)>::new(), Vec::new());
    for &disk in options.disks {
        flushes.extend(options.dirty_percents.iter().map(|fill| (disk, *fill, Seen::default())));
    }
    for (job, came) in jobs.into_iter().zip(came) {
        match (job, came) {
            (Job::Steady(disk, way), Came::Steady(steady)) => steadies.push((disk, way, steady)),
            (Job::Flush(case), Came::Flush(outcome)) => {
                let of = |(disk, fill, _): &&mut (Disk, u64, Seen)| {
                    (*disk, *fill) == (case.disk, case.fill_percent)
                };
                let seen = flushes.iter_mut().find(of).expect("jobs() runs what is there");
                seen.2.push(Kind { way: case.way, is_read: case.reader }, *outcome);
            }
            (_, _) => unreachable!("of each job comes what it is"),
        }
    }
    Ok(Results { options: *options, flushes, steadies }.section())
}

struct Results {
    options: Options,
    /// By disk and how much is dirty.
    flushes: Vec<(Disk, u64, Seen)>,
    steadies: Vec<(Disk, Way, Steady)>,
}

/// What the published run took.
fn published_s(way: Way) -> Option<f64> {
    match way {
        Way::Sorted => Some(44.0),
        Way::Lru => Some(99.2),
        Way::GapFill | Way::GapKnown => None,
    }
}

impl Results {
    fn seen(&self, disk: Disk, fill_percent: u64) -> &Seen {
        let of = |(d, fill, _): &&(Disk, u64, Seen)| (*d, *fill) == (disk, fill_percent);
        &self.flushes.iter().find(of).expect("the options name it").2
    }

    fn seconds(&self, disk: Disk, way: Way, fill_percent: u64) -> f64 {
        median(&self.seen(disk, fill_percent).seconds(way))
    }

    fn section(&self) -> Section {
        let Options { scale, disks, .. } = self.options;
        let bound_s = one_pass_s(scale, Disk::Published);
        let published = self.seen(Disk::Published, PUBLISHED_PERCENT);
        let mut section = Section {
            name: "writecache",
            rows: published.rows(("one pass over the origin", bound_s), Decides::Model),
            plots: published.plots(),
            ..Section::default()
        };
        section.tables.extend([self.flush_table(), self.read_table()]);
        if self.options.has_steady {
            section.tables.insert(1, self.steady_table());
            section.goals = self.goals();
        }
        for &disk in disks {
            self.put(&mut section, disk);
        }
        section.notes.push(format!(
            "{} of random dirty 4 KiB blocks over {}; the model of a 7200 rpm disk is calibrated \
             to the published pair at {}, the rest is prediction",
            mib(scale.cache_blocks * BLOCK_BYTES),
            mib(scale.origin_blocks * BLOCK_BYTES),
            mib(PUBLISHED_BYTES),
        ));
        section
    }

    fn flush_table(&self) -> Table {
        let title = format!(
            "Virtual time. Random dirty 4 KiB blocks over {}, each written once; then one `flush`",
            mib(self.options.scale.origin_blocks * BLOCK_BYTES)
        );
        let figures = [&FLUSH_FIGURES[..], &["measured s", "error %"]].concat();
        let mut table = Table::new(title, &["HDD model", "dirty", "way"], &figures);
        for (disk, fill, seen) in &self.flushes {
            let (name, dirty) = (disk.name(), format!("{fill} %"));
            for way in WAYS {
                let mut figures = seen.flush_figures(way);
                let was = published_s(way).filter(|_| {
                    let is_calibrated = *disk == Disk::Published && *fill == PUBLISHED_PERCENT;
                    is_calibrated && self.options.is_full_size()
                });
                if let Some(was_s) = was {
                    let error = (median(&seen.seconds(way)) / was_s - 1.0) * 100.0;
                    figures.extend([fixed(was_s, 1), format!("{error:+.1}")]);
                }
                table.row(&[name, &dirty, way.name()], figures);
            }
            let bound_s = one_pass_s(self.options.scale, *disk);
            table.row(&[name, &dirty, "bound"], [fixed(bound_s, 3)]);
        }
        table.note(format!(
            "cache on an NVMe model, origin on a 7200 rpm model: docs/hdd-model.md; calibrated: \
             `published`, {PUBLISHED_PERCENT} %, lru and sorted; the rest is prediction; bound: \
             one pass over the origin"
        ));
        table
    }

    fn steady_table(&self) -> Table {
        let title =
            format!("A full cache, random writes without end, 1/{STEADY_DIVISOR} of the sizes");
        let figures = ["writes/s", "p99 us", "worst us", "gaps a block"];
        let mut table = Table::new(title, &["HDD model", "way"], &figures);
        for (disk, way, s) in &self.steadies {
            let figures = [
                fixed(s.writes_per_s, 0),
                (s.p99_ns / 1000).to_string(),
                (s.worst_ns / 1000).to_string(),
                fixed(s.filled_per_block, 2),
            ];
            table.row(&[disk.name(), way.name()], figures);
        }
        table
    }

    fn read_table(&self) -> Table {
        let title = format!(
            "A reader of random blocks, 25 a second, beside the flush, {PUBLISHED_PERCENT} % \
             dirty, us"
        );
        let mut table = Table::new(title, &["HDD model", "way"], &READ_FIGURES);
        for &disk in self.options.disks {
            self.seen(disk, PUBLISHED_PERCENT).read_rows(&mut table, &[disk.name()]);
        }
        table
    }

    fn put(&self, section: &mut Section, disk: Disk) {
        let prefix = if disk == Disk::Textbook { "textbook_" } else { "" };
        section.put(format!("{prefix}bound_s"), one_pass_s(self.options.scale, disk));
        self.seen(disk, PUBLISHED_PERCENT).put(section, prefix);
        for way in WAYS {
            for fill in self.options.dirty_percents.iter().filter(|f| **f != PUBLISHED_PERCENT) {
                let s = self.seconds(disk, way, *fill);
                section.put(format!("{prefix}{}_{fill}_percent_s", way.name()), s);
            }
        }
        for (_, way, steady) in self.steadies.iter().filter(|(of, _, _)| *of == disk) {
            let name = way.name();
            section.put(format!("{prefix}{name}_steady_writes_per_s"), steady.writes_per_s);
            section.put(format!("{prefix}{name}_steady_p99_us"), steady.p99_ns as f64 / 1e3);
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let asked = if self.options.is_full_size() { Asked::Plainly } else { Asked::AtFullSize };
        let mut goals = Vec::new();
        let mut at_most = |what: String, bound, figure| {
            goals.push(Goal { what, figure, bound, is_at_most: true, asked });
        };
        let published = |way| self.seconds(Disk::Published, way, PUBLISHED_PERCENT);
        let part = published(Way::Sorted) / published(Way::Lru);
        at_most("sorted, part of lru".to_owned(), 1.0 / 2.25, part);
        at_most("gaps filled, seconds".to_owned(), 30.0, published(Way::GapFill));
        at_most("gaps known, seconds".to_owned(), 16.0, published(Way::GapKnown));
        for &disk in self.options.disks {
            let name = disk.name();
            for fill in self.options.dirty_percents {
                let of = |way| self.seconds(disk, way, *fill);
                let part = of(Way::GapFill) / of(Way::Sorted);
                at_most(format!("{name}, {fill} %: gaps filled, part of sorted"), 1.02, part);
            }
            let seen = self.seen(disk, PUBLISHED_PERCENT);
            let us = |phase| median(&seen.read_us(Way::GapFill, phase, 99));
            let times = us(Phase::InFlush) / us(Phase::AtRest);
            at_most(format!("{name}: p99 of reads, times idle"), 2.0, times);
            let steady = |way| {
                let of = |(d, w, _): &&(Disk, Way, Steady)| (*d, *w) == (disk, way);
                self.steadies.iter().find(of).map_or(f64::NAN, |(_, _, s)| s.writes_per_s)
            };
            let part = steady(Way::Sorted) / steady(Way::GapFill);
            at_most(format!("{name}: full cache, sorted as part of gaps filled"), 1.0 / 0.9, part);
        }
        goals
    }
}
