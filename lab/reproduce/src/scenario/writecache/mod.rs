// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache: in LRU order, sorted, with gaps filled, and with gaps filled from
//! clean copies; with and without a concurrent reader.
//!
//! ```text
//!   local   on files of this machine, all kinds in turns, several rounds
//!   models  on models of disks in virtual time, one run of each kind
//! ```
pub mod local;
pub mod models;

use super::units::MIB;
use crate::flush::{
    BLOCK_BYTES, Outcome, PUBLISHED_PERCENT, Scale, Strategy, cache_device_sectors, percentile,
};
use crate::median::{median, median_at, median_of, median_ratio, ratios, spread_percent};
use crate::report::{
    Basis, Direction, Kind as PlotKind, Mark, Plot, Row, Section, Series, size_bars,
};
use crate::table::{Table, fixed};

/// Dirty bytes of the published run.
pub(super) const PUBLISHED_BYTES: u64 = Scale::PUBLISHED.cache_blocks * BLOCK_BYTES;
/// 99.2 s in LRU order, 44.0 s sorted.
const PUBLISHED_RATIO: f64 = 99.2 / 44.0;
const STRATEGIES: [Strategy; 4] =
    [Strategy::Lru, Strategy::Sorted, Strategy::GapFill, Strategy::GapKnown];

/// Bytes of the files of origin and cache device, and of the file for plain writes.
pub(super) fn disk_bytes(size: u64) -> u64 {
    let scale = Scale::of_dirty(size);
    let slots = scale.slots(PUBLISHED_PERCENT, Strategy::GapKnown);
    let two = scale.origin_blocks * BLOCK_BYTES + cache_device_sectors(slots).bytes();
    two + size + MIB
}

/// A strategy of writeback, with or without a concurrent reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    strategy: Strategy,
    is_read: bool,
}

impl Kind {
    fn words(self) -> String {
        let beside = if self.is_read { " beside a reader" } else { "" };
        format!("flush{beside}, {}", self.strategy.name())
    }
}

/// When a read was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    AtRest,
    InFlush,
}

/// The flushes of one dirty set on one disk, one of each kind in each round.
#[derive(Default)]
struct FlushRuns {
    runs: Vec<(Kind, Vec<Outcome>)>,
}

const FLUSH_FIGURES: [&str; 11] = [
    "seconds",
    "+-%",
    "of lru",
    "MiB/s",
    "origin I/Os",
    "bytes an I/O",
    "MiB written",
    "MiB read",
    "flushes",
    "slot reads",
    "MiB of them",
];
const READ_FIGURES: [&str; 6] =
    ["p50 at rest", "p50 in flush", "p99 at rest", "p99 in flush", "ratio", "flush s"];

impl FlushRuns {
    fn push(&mut self, kind: Kind, outcome: Outcome) {
        match self.runs.iter_mut().find(|(seen, _)| *seen == kind) {
            Some((_, outcomes)) => outcomes.push(outcome),
            None => self.runs.push((kind, vec![outcome])),
        }
    }

    /// The outcomes of all rounds; empty if there is no flush of this kind.
    fn of(&self, strategy: Strategy, is_read: bool) -> &[Outcome] {
        let found = self.runs.iter().find(|(kind, _)| *kind == Kind { strategy, is_read });
        found.map_or(&[], |(_, outcomes)| outcomes)
    }

    fn seconds(&self, strategy: Strategy) -> Vec<f64> {
        self.of(strategy, false).iter().map(Outcome::seconds).collect()
    }

    /// Strategies that were run with a reader.
    fn read_strategies(&self) -> impl Iterator<Item = Strategy> {
        STRATEGIES.into_iter().filter(|strategy| !self.of(*strategy, true).is_empty())
    }

    fn read_us(&self, strategy: Strategy, phase: Phase, per_cent: usize) -> Vec<f64> {
        let of = |outcome: &Outcome| {
            let sorted_ns = match phase {
                Phase::AtRest => &outcome.idle_read_ns,
                Phase::InFlush => &outcome.flush_read_ns,
            };
            percentile(sorted_ns, per_cent).map_or(f64::NAN, |ns| ns as f64 / 1e3)
        };
        self.of(strategy, true).iter().map(of).collect()
    }

    /// Cells as [`FLUSH_FIGURES`] has their titles.
    fn flush_figures(&self, strategy: Strategy) -> Vec<String> {
        let (outcomes, s) = (self.of(strategy, false), self.seconds(strategy));
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        let figures = [
            (median(&s), 3),
            (if s.len() > 1 { spread_percent(&s) } else { f64::NAN }, 0),
            // Ratios are taken within a round, in which the disk was the same.
            (median_ratio(&self.seconds(Strategy::Lru), &s), 2),
            (median_of(outcomes, Outcome::mib_per_s), 2),
            (median_of(outcomes, |o| o.origin_writes as f64), 0),
            (median_of(outcomes, |o| o.mean_io_bytes() as f64), 0),
            (median_of(outcomes, |o| mib(o.origin_write_bytes)), 0),
            (median_of(outcomes, |o| mib(o.origin_read_bytes)), 0),
            (median_of(outcomes, |o| o.origin_flushes as f64), 0),
            (median_of(outcomes, |o| o.slot_reads as f64), 0),
            (median_of(outcomes, |o| mib(o.slot_read_bytes)), 0),
        ];
        figures.map(|(figure, digits)| fixed(figure, digits)).to_vec()
    }

    /// A row for each strategy with a reader, as [`READ_FIGURES`].
    fn read_rows(&self, table: &mut Table, texts: &[&str]) {
        for strategy in self.read_strategies() {
            let us = |phase, per_cent| median(&self.read_us(strategy, phase, per_cent));
            let [rest, flush] = [Phase::AtRest, Phase::InFlush].map(|phase| us(phase, 99));
            let figures = [
                (us(Phase::AtRest, 50), 0),
                (us(Phase::InFlush, 50), 0),
                (rest, 0),
                (flush, 0),
                (flush / rest, 2),
                (median_of(self.of(strategy, true), Outcome::seconds), 3),
            ];
            let texts = [texts, &[strategy.name()]].concat();
            table.row(&texts, figures.map(|(figure, digits)| fixed(figure, digits)));
        }
    }

    fn put(&self, section: &mut Section, prefix: &str) {
        let was_run = |strategy: &Strategy| !self.of(*strategy, false).is_empty();
        for strategy in STRATEGIES.into_iter().chain([Strategy::SortedAlone]).filter(was_run) {
            let (name, outcomes) = (strategy.name(), self.of(strategy, false));
            section.put(format!("{prefix}{name}_s"), median(&self.seconds(strategy)));
            let mut put = |what: &str, figure: fn(&Outcome) -> u64| {
                let counted = median_of(outcomes, |o| figure(o) as f64);
                section.put(format!("{prefix}{name}_{what}"), counted);
            };
            put("ios", |o| o.origin_writes);
            put("mean_io_bytes", Outcome::mean_io_bytes);
            put("write_bytes", |o| o.origin_write_bytes);
            put("read_bytes", |o| o.origin_read_bytes);
            put("origin_flushes", |o| o.origin_flushes);
            put("slot_reads", |o| o.slot_reads);
            put("slot_read_bytes", |o| o.slot_read_bytes);
        }
        for strategy in self.read_strategies() {
            // The keys of the default strategy have no prefix.
            let owner = match strategy {
                Strategy::GapFill => String::new(),
                Strategy::Lru | Strategy::Sorted | Strategy::SortedAlone | Strategy::GapKnown => {
                    format!("{}_", strategy.name())
                }
            };
            for (phase, name) in [(Phase::AtRest, "idle"), (Phase::InFlush, "flush")] {
                let us = median(&self.read_us(strategy, phase, 99));
                section.put(format!("{prefix}{owner}foreground_p99_{name}_us"), us);
            }
        }
    }

    fn rows(&self, limit: (&'static str, f64), basis: Basis) -> Vec<Row> {
        let [lru, sorted, gap_fill, gap_known] = STRATEGIES.map(|strategy| self.seconds(strategy));
        let unit = ("s", Direction::LowerIsBetter, basis);
        let limited = |row: Row| row.limit(limit.0, limit.1);
        let p99_us = |strategy, phase| self.read_us(strategy, phase, 99);
        let reads = Row::new(
            "read p99 beside the flush",
            ("lru", &p99_us(Strategy::Lru, Phase::InFlush)),
            ("default", &p99_us(Strategy::GapFill, Phase::InFlush)),
            ("us", Direction::LowerIsBetter, basis),
        );
        vec![
            limited(Row::new("flush, sorted", ("lru", &lru), ("sorted", &sorted), unit))
                .published(PUBLISHED_RATIO),
            limited(Row::new("flush, gaps filled", ("lru", &lru), ("gap fill", &gap_fill), unit)),
            limited(Row::new("flush, gaps known", ("lru", &lru), ("gap known", &gap_known), unit)),
            reads.limit("the reader at rest", median(&p99_us(Strategy::GapFill, Phase::AtRest))),
        ]
    }

    fn plots(&self) -> Vec<Plot> {
        // The round of the row "flush, sorted", so that the plots show what the table says.
        let compared = ratios(&self.seconds(Strategy::Lru), &self.seconds(Strategy::Sorted));
        let round = median_at(&compared);
        let shown = |strategy: Strategy| self.of(strategy, false).get(round?);
        let published = shown(Strategy::Lru).map(|lru| Mark::Line {
            x: lru.seconds() / PUBLISHED_RATIO,
            label: "sorted, by the published ratio".into(),
        });
        let of_rounds = match (round, compared.len()) {
            (Some(nth), rounds @ 2..) => format!(" (round {} of {rounds})", nth + 1),
            _ => String::new(),
        };
        let progress = |strategy: Strategy| {
            let points = shown(strategy).into_iter().flat_map(|o| {
                let all = o.dirty_blocks as f64;
                let point = move |(ns, n): &(u64, u64)| (*ns as f64 / 1e9, *n as f64 / all * 100.0);
                o.progress.iter().map(point)
            });
            Series::new(strategy.name().replace('_', " "), points)
        };
        let sizes =
            [(Strategy::Lru, "lru"), (Strategy::Sorted, "sorted"), (Strategy::GapFill, "gap fill")]
                .map(|(strategy, name)| {
                    (name, shown(strategy).map(|o| o.write_sizes.clone()).unwrap_or_default())
                });
        vec![
            Plot {
                id: "flush-progress".into(),
                title: format!("Flush of a write cache: blocks sent to the origin{of_rounds}"),
                x: "seconds",
                y: "% of the dirty blocks",
                kind: PlotKind::Lines,
                is_log: false,
                labels: Vec::new(),
                series: STRATEGIES.map(progress).to_vec(),
                marks: published.into_iter().collect(),
            },
            size_bars(
                ("origin-io-sizes", "Writes to the origin by size"),
                ("up to so many bytes", "writes"),
                &sizes,
            ),
        ]
    }
}
