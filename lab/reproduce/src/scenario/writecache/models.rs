// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache on models of disks in virtual time, and what a full cache sustains.
//!
//! The same options give the same bytes on every machine. What is calibrated and what is a
//! prediction: `docs/hdd-model.md`.
use super::super::units::mib;
use super::{FLUSH_FIGURES, FlushRuns, Kind, PUBLISHED_BYTES, Phase, READ_FIGURES, STRATEGIES};
use crate::flush::{BLOCK_BYTES, Outcome, PUBLISHED_PERCENT, Scale, Strategy};
use crate::flush_sim::{self, Case, Disk};
use crate::flush_steady::{self, Steady};
use crate::median::median;
use crate::report::{Basis, Goal, Requirement, Section};
use crate::rounds::{Progress, run_parallel};
use crate::table::{Table, fixed};

/// Strategies whose reads go to the disk.
const READ_STRATEGIES: [Strategy; 3] = [Strategy::Lru, Strategy::Sorted, Strategy::GapFill];
const STEADY_STRATEGIES: [Strategy; 2] = [Strategy::Sorted, Strategy::GapFill];
/// A full cache is measured on an eighth of the sizes: it writes everything many times.
const STEADY_DIVISOR: u64 = 8;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub scale: Scale,
    /// The published one at least.
    pub disks: &'static [Disk],
    /// Disks without a head; for them only flushes are measured, without a reader.
    pub flat_disks: &'static [Disk],
    /// Of the origin is so much dirty; the published part at least.
    pub dirty_percents: &'static [u64],
    /// Whether a full cache is measured, too.
    pub has_steady: bool,
    /// Whether a flush is asked how far it is, for a plot. Who asks comes between the tasks of the
    /// cache, and may move a figure by a percent.
    pub has_progress: bool,
}

impl Options {
    /// As `reproduce --sim` runs it, with so many dirty bytes.
    pub fn of_dirty(bytes: u64) -> Options {
        Options {
            scale: Scale::of_dirty(bytes),
            disks: &[Disk::Published],
            flat_disks: &[],
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
            flat_disks: &[Disk::Nvme, Disk::Cloud],
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

    fn flushes_of(&self, disk: Disk) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &fill_percent in self.dirty_percents {
            let case = |strategy| Case { disk, strategy, fill_percent, reader: false };
            jobs.extend(STRATEGIES.map(|strategy| Job::Flush(case(strategy))).into_iter().rev());
        }
        jobs
    }

    fn all_disks(&self) -> impl Iterator<Item = Disk> {
        self.disks.iter().chain(self.flat_disks).copied()
    }

    /// Those that take longest first.
    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &disk in self.disks {
            if self.has_steady {
                jobs.extend(STEADY_STRATEGIES.map(|strategy| Job::Steady(disk, strategy)));
            }
            jobs.extend(self.flushes_of(disk));
            let read =
                |strategy| Case { disk, strategy, fill_percent: PUBLISHED_PERCENT, reader: true };
            jobs.extend(READ_STRATEGIES.map(|strategy| Job::Flush(read(strategy))));
        }
        jobs.extend(self.flat_disks.iter().flat_map(|disk| self.flushes_of(*disk)));
        jobs
    }
}

/// One job of the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Steady(Disk, Strategy),
    Flush(Case),
}

enum JobResult {
    Steady(Steady),
    Flush(Box<Outcome>),
}

impl Job {
    fn run(self, options: &Options) -> Result<JobResult, String> {
        match self {
            Job::Flush(case) => {
                let watched = options.has_progress && !case.reader;
                let outcome = flush_sim::run_watched(options.scale, case, watched)?;
                Ok(JobResult::Flush(Box::new(outcome)))
            }
            Job::Steady(disk, strategy) => {
                flush_steady::run(options.steady_scale(), disk, strategy).map(JobResult::Steady)
            }
        }
    }

    fn words(self, result: &JobResult) -> String {
        match (self, result) {
            (Job::Flush(case), JobResult::Flush(outcome)) => {
                let Case { disk, strategy, fill_percent, reader } = case;
                let kind = Kind { strategy, is_read: reader }.words();
                let (disk, s) = (disk.name(), outcome.seconds());
                format!("{kind}, {disk}, {fill_percent} % dirty: {s:.2} s")
            }
            (Job::Steady(disk, strategy), JobResult::Steady(steady)) => {
                let (disk, strategy, writes) = (disk.name(), strategy.name(), steady.writes_per_s);
                format!("full cache, {strategy}, {disk}: {writes:.0} writes a second")
            }
            (_, _) => unreachable!("a job returns the result of its own kind"),
        }
    }
}

/// Runs the scenario.
///
/// # Errors
/// An unexpected answer of the cache.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "flushes on models of disks");
    let jobs = options.jobs();
    let results = run_parallel(&jobs, |job| job.run(options), Job::words, progress)?;
    let (mut flushes, mut steadies) = (Vec::<(Disk, u64, FlushRuns)>::new(), Vec::new());
    for disk in options.all_disks() {
        flushes
            .extend(options.dirty_percents.iter().map(|fill| (disk, *fill, FlushRuns::default())));
    }
    for (job, result) in jobs.into_iter().zip(results) {
        match (job, result) {
            (Job::Steady(disk, strategy), JobResult::Steady(steady)) => {
                steadies.push((disk, strategy, steady));
            }
            (Job::Flush(case), JobResult::Flush(outcome)) => {
                let of = |(disk, fill, _): &&mut (Disk, u64, FlushRuns)| {
                    (*disk, *fill) == (case.disk, case.fill_percent)
                };
                let seen = flushes.iter_mut().find(of).expect("jobs() runs what is there");
                seen.2.push(Kind { strategy: case.strategy, is_read: case.reader }, *outcome);
            }
            (_, _) => unreachable!("a job returns the result of its own kind"),
        }
    }
    Ok(Results { options: *options, flushes, steadies }.section())
}

struct Results {
    options: Options,
    /// By disk and percentage of dirty blocks.
    flushes: Vec<(Disk, u64, FlushRuns)>,
    steadies: Vec<(Disk, Strategy, Steady)>,
}

/// Seconds of the published run.
fn published_s(strategy: Strategy) -> Option<f64> {
    match strategy {
        Strategy::Sorted => Some(44.0),
        Strategy::Lru => Some(99.2),
        Strategy::SortedAlone | Strategy::GapFill | Strategy::GapKnown => None,
    }
}

impl Results {
    fn seen(&self, disk: Disk, fill_percent: u64) -> &FlushRuns {
        let of = |(d, fill, _): &&(Disk, u64, FlushRuns)| (*d, *fill) == (disk, fill_percent);
        &self.flushes.iter().find(of).expect("the options name it").2
    }

    fn seconds(&self, disk: Disk, strategy: Strategy, fill_percent: u64) -> f64 {
        median(&self.seen(disk, fill_percent).seconds(strategy))
    }

    fn section(&self) -> Section {
        let Options { scale, disks, flat_disks, .. } = self.options;
        let bound_s = Disk::Published.bound_s(scale, PUBLISHED_PERCENT);
        let published = self.seen(Disk::Published, PUBLISHED_PERCENT);
        let mut section = Section {
            name: "writecache",
            rows: published.rows(("one pass over the origin", bound_s), Basis::Model),
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
        for &disk in flat_disks {
            self.put_flat(&mut section, disk);
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
        let mut table = Table::new(title, &["disk model", "dirty", "way"], &figures);
        for (disk, fill, seen) in &self.flushes {
            let (name, dirty) = (disk.name(), format!("{fill} %"));
            for strategy in STRATEGIES {
                let mut figures = seen.flush_figures(strategy);
                let was = published_s(strategy).filter(|_| {
                    let is_calibrated = *disk == Disk::Published && *fill == PUBLISHED_PERCENT;
                    is_calibrated && self.options.is_full_size()
                });
                if let Some(was_s) = was {
                    let error = (median(&seen.seconds(strategy)) / was_s - 1.0) * 100.0;
                    figures.extend([fixed(was_s, 1), format!("{error:+.1}")]);
                }
                table.row(&[name, &dirty, strategy.name()], figures);
            }
            let bound_s = disk.bound_s(self.options.scale, *fill);
            table.row(&[name, &dirty, "bound"], [fixed(bound_s, 3)]);
        }
        table.note(format!(
            "cache on an NVMe model, origin on a model: docs/hdd-model.md; calibrated: \
             `published`, {PUBLISHED_PERCENT} %, lru and sorted; the rest is prediction; bound: \
             one pass over the origin, and without a head the best gaps to fill"
        ));
        table
    }

    fn steady_table(&self) -> Table {
        let title =
            format!("A full cache, random writes without end, 1/{STEADY_DIVISOR} of the sizes");
        let figures = ["writes/s", "p99 us", "worst us", "gaps a block"];
        let mut table = Table::new(title, &["HDD model", "way"], &figures);
        for (disk, strategy, s) in &self.steadies {
            let figures = [
                fixed(s.writes_per_s, 0),
                (s.p99_ns / 1000).to_string(),
                (s.worst_ns / 1000).to_string(),
                fixed(s.filled_per_block, 2),
            ];
            table.row(&[disk.name(), strategy.name()], figures);
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
        let bound_s = disk.bound_s(self.options.scale, PUBLISHED_PERCENT);
        section.put(format!("{prefix}bound_s"), bound_s);
        self.seen(disk, PUBLISHED_PERCENT).put(section, prefix);
        for strategy in STRATEGIES {
            for fill in self.options.dirty_percents.iter().filter(|f| **f != PUBLISHED_PERCENT) {
                let s = self.seconds(disk, strategy, *fill);
                section.put(format!("{prefix}{}_{fill}_percent_s", strategy.name()), s);
            }
        }
        for (_, strategy, steady) in self.steadies.iter().filter(|(of, _, _)| *of == disk) {
            let name = strategy.name();
            section.put(format!("{prefix}{name}_steady_writes_per_s"), steady.writes_per_s);
            section.put(format!("{prefix}{name}_steady_p99_us"), steady.p99_ns as f64 / 1e3);
        }
    }

    fn put_flat(&self, section: &mut Section, disk: Disk) {
        let name = disk.name();
        for &fill in self.options.dirty_percents {
            let bound_s = disk.bound_s(self.options.scale, fill);
            section.put(format!("{name}_bound_{fill}_percent_s"), bound_s);
            for strategy in STRATEGIES {
                let s = self.seconds(disk, strategy, fill);
                section.put(format!("{name}_{}_{fill}_percent_s", strategy.name()), s);
            }
        }
    }

    fn goals(&self) -> Vec<Goal> {
        let requirement = if self.options.is_full_size() {
            Requirement::Required
        } else {
            Requirement::FullSizeOnly
        };
        let mut goals = Vec::new();
        let mut at_most = |what: String, bound, figure| {
            goals.push(Goal { what, figure, bound, is_at_most: true, requirement });
        };
        let published = |strategy| self.seconds(Disk::Published, strategy, PUBLISHED_PERCENT);
        let part = published(Strategy::Sorted) / published(Strategy::Lru);
        at_most("sorted, part of lru".to_owned(), 1.0 / 2.25, part);
        at_most("gaps filled, seconds".to_owned(), 30.0, published(Strategy::GapFill));
        at_most("gaps known, seconds".to_owned(), 16.0, published(Strategy::GapKnown));
        for &disk in self.options.disks {
            let name = disk.name();
            for fill in self.options.dirty_percents {
                let of = |strategy| self.seconds(disk, strategy, *fill);
                let part = of(Strategy::GapFill) / of(Strategy::Sorted);
                at_most(format!("{name}, {fill} %: gaps filled, part of sorted"), 1.02, part);
            }
            let seen = self.seen(disk, PUBLISHED_PERCENT);
            let us = |phase| median(&seen.read_us(Strategy::GapFill, phase, 99));
            let times = us(Phase::InFlush) / us(Phase::AtRest);
            at_most(format!("{name}: p99 of reads, times idle"), 2.0, times);
            let steady = |strategy| {
                let of = |(d, w, _): &&(Disk, Strategy, Steady)| (*d, *w) == (disk, strategy);
                self.steadies.iter().find(of).map_or(f64::NAN, |(_, _, s)| s.writes_per_s)
            };
            let part = steady(Strategy::Sorted) / steady(Strategy::GapFill);
            at_most(format!("{name}: full cache, sorted as part of gaps filled"), 1.0 / 0.9, part);
        }
        goals
    }
}
