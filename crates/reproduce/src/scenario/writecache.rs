// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache: in LRU order, sorted, with gaps filled.
use std::path::Path;

use block::Nanos;

use super::{MIB, ROUNDS, Told, mib};
use crate::compressed::place::Local;
use crate::compressed::writeback::sequential;
use crate::flush::{BLOCK_BYTES, Outcome, PUBLISHED_PERCENT, Plan, Reads, Scale, Way};
use crate::flush::{cache_device_sectors, percentile};
use crate::flush_disk::Ground;
use crate::flush_sim::{Case, Disk, one_pass_s, run_watched};
use crate::median::median;
use crate::report::{Better, Decides, Kind, Plot, Row, Section, Series, size_bars};

/// Dirty bytes of the published run.
pub(super) const PUBLISHED_BYTES: u64 = Scale::PUBLISHED.cache_blocks * BLOCK_BYTES;
/// 99.2 s in LRU order, 44.0 s sorted.
const PUBLISHED_RATIO: f64 = 99.2 / 44.0;
const WAYS: [Way; 4] = [Way::Lru, Way::Sorted, Way::GapFill, Way::GapKnown];
/// Those with a reader beside them.
const READ_WAYS: [Way; 2] = [Way::Lru, Way::GapFill];
/// On this machine's disk.
const READS: Reads = Reads { every: Nanos::from_millis(2), idle: 1000 };

/// What the two files take.
pub(super) fn disk_bytes(size: u64) -> u64 {
    let scale = Scale::of_dirty(size);
    let slots = scale.slots(PUBLISHED_PERCENT, Way::GapKnown);
    scale.origin_blocks * BLOCK_BYTES + cache_device_sectors(slots).bytes()
}

/// Outcomes of the rounds.
#[derive(Default)]
struct Seen {
    ways: [Vec<Outcome>; WAYS.len()],
    reads: [Vec<Outcome>; READ_WAYS.len()],
}

impl Seen {
    fn seconds(&self, way: Way) -> Vec<f64> {
        let nth = WAYS.iter().position(|w| *w == way).expect("one of them");
        self.ways[nth].iter().map(Outcome::seconds).collect()
    }
}

fn p99_us(sorted_ns: &[u64]) -> f64 {
    percentile(sorted_ns, 99).map_or(f64::NAN, |ns| ns as f64 / 1e3)
}

pub(super) fn simulated(size: u64, told: Told<'_>) -> Result<Section, String> {
    let scale = Scale::of_dirty(size);
    let mut seen = Seen::default();
    let case = |way, reader| {
        let (disk, fill_percent) = (Disk::Published, PUBLISHED_PERCENT);
        Case { disk, way, fill_percent, reader }
    };
    // In parts of the time that all take.
    let mut done = 0.0;
    for (nth, way) in WAYS.into_iter().enumerate() {
        told(done, &format!("flush, {}", way.name()));
        seen.ways[nth].push(run_watched(scale, case(way, false), true)?);
        done += if way == Way::GapKnown { 0.4 } else { 0.14 };
    }
    for (nth, way) in READ_WAYS.into_iter().enumerate() {
        told(done, &format!("flush beside a reader, {}", way.name()));
        seen.reads[nth].push(run_watched(scale, case(way, true), false)?);
        done += 0.09;
    }
    let bound_s = one_pass_s(scale, Disk::Published);
    let limit = ("one pass over the origin", bound_s);
    let mut section = section(&seen, limit, Decides::Model);
    section.put("bound_s", bound_s);
    section.notes.push(format!(
        "{} of random dirty 4 KiB blocks over {}; the model of a 7200 rpm disk is calibrated to \
         the published pair at {}, the rest is prediction",
        mib(scale.cache_blocks * BLOCK_BYTES),
        mib(scale.origin_blocks * BLOCK_BYTES),
        mib(PUBLISHED_BYTES),
    ));
    Ok(section)
}

pub(super) fn real(dir: &Path, size: u64, told: Told<'_>) -> Result<Section, String> {
    let scale = Scale::of_dirty(size);
    let mut seen = Seen::default();
    told(0.0, "making files");
    let ground = Ground::new(dir, scale.origin_blocks, None)?;
    let kinds = WAYS.len() + READ_WAYS.len();
    let steps = (ROUNDS * kinds + 2) as f64;
    let mut nth = 0_u32;
    let mut run = |way: Way, reads: Option<Reads>, told: Told<'_>| {
        let beside = if reads.is_some() { " beside a reader" } else { "" };
        told(f64::from(nth) / steps, &format!("flush{beside}, {}", way.name()));
        nth += 1;
        let fill_percent = PUBLISHED_PERCENT;
        let watched = reads.is_none();
        ground.run(Plan { scale, way, fill_percent, reads, jobs: 0, nth: u64::from(nth), watched })
    };
    // What is first pays for what nobody has written before.
    run(Way::GapKnown, None, told)?;
    for round in 0..ROUNDS {
        for turn in 0..kinds {
            let at = (turn + round) % kinds;
            match at.checked_sub(WAYS.len()) {
                None => seen.ways[at].push(run(WAYS[at], None, told)?),
                Some(at) => seen.reads[at].push(run(READ_WAYS[at], Some(READS), told)?),
            }
        }
    }
    told(1.0 - 1.0 / steps, "plain sequential writes");
    let dirty = scale.cache_blocks * BLOCK_BYTES;
    let place = Local::new(dir, dirty + MIB)?;
    let plain: Result<Vec<_>, _> = (0..ROUNDS).map(|_| sequential(&place, dirty)).collect();
    let plain_s = median(&plain?.iter().map(|p| p.0).collect::<Vec<_>>());
    let limit = ("plain writes, no flush", plain_s);
    let mut section = section(&seen, limit, Decides::Disk);
    let rotates = if ground.limits()?.rotational { "rotates" } else { "does not rotate" };
    section.notes.push(format!(
        "{} of random dirty 4 KiB blocks over {}; the disk says that it {rotates}: gaps are \
         filled only where that is faster",
        mib(dirty),
        mib(scale.origin_blocks * BLOCK_BYTES),
    ));
    Ok(section)
}

/// Which of the reader's latencies.
type LatenciesOf = fn(&Outcome) -> &[u64];

fn idle(outcome: &Outcome) -> &[u64] {
    &outcome.idle_read_ns
}

fn flush(outcome: &Outcome) -> &[u64] {
    &outcome.flush_read_ns
}

fn section(seen: &Seen, limit: (&'static str, f64), decides: Decides) -> Section {
    let [lru, sorted, gap_fill, gap_known] = WAYS.map(|way| seen.seconds(way));
    let unit = ("s", Better::Less, decides);
    let limited = |row: Row| row.limit(limit.0, limit.1);
    let mut section = Section { name: "writecache", ..Section::default() };
    section.rows = vec![
        limited(Row::new("flush, sorted", ("lru", &lru), ("sorted", &sorted), unit))
            .published(PUBLISHED_RATIO),
        limited(Row::new("flush, gaps filled", ("lru", &lru), ("gap fill", &gap_fill), unit)),
        limited(Row::new("flush, gaps known", ("lru", &lru), ("gap known", &gap_known), unit)),
    ];
    let us = |nth: usize, of: LatenciesOf| -> Vec<f64> {
        seen.reads[nth].iter().map(|o| p99_us(of(o))).collect()
    };
    let idle_us = median(&us(1, idle));
    section.rows.push(
        Row::new(
            "read p99 beside the flush",
            ("lru", &us(0, flush)),
            ("default", &us(1, flush)),
            ("us", Better::Less, decides),
        )
        .limit("the reader at rest", idle_us),
    );
    for (way, outcomes) in WAYS.iter().zip(&seen.ways) {
        let name = way.name();
        section.put(format!("{name}_s"), median(&seen.seconds(*way)));
        let of = |figure: fn(&Outcome) -> u64| {
            median(&outcomes.iter().map(|o| figure(o) as f64).collect::<Vec<_>>())
        };
        section.put(format!("{name}_ios"), of(|o| o.origin_writes));
        section.put(format!("{name}_mean_io_bytes"), of(Outcome::mean_io_bytes));
    }
    section.put("foreground_p99_idle_us", idle_us);
    section.put("foreground_p99_flush_us", median(&us(1, flush)));
    section.plots = plots(seen);
    section
}

fn plots(seen: &Seen) -> Vec<Plot> {
    let last = |way: usize| seen.ways[way].last();
    let progress = |nth: usize| {
        let points = last(nth).into_iter().flat_map(|o| {
            let all = o.dirty_blocks as f64;
            let point = move |(ns, n): &(u64, u64)| (*ns as f64 / 1e9, *n as f64 / all * 100.0);
            o.progress.iter().map(point)
        });
        Series::new(WAYS[nth].name().replace('_', " "), points)
    };
    let sizes = [(0, "lru"), (1, "sorted"), (2, "gap fill")]
        .map(|(nth, name)| (name, last(nth).map(|o| o.write_sizes.clone()).unwrap_or_default()));
    vec![
        Plot {
            id: "flush-progress".into(),
            title: "Flush of a write cache: blocks on the origin".into(),
            x: "seconds",
            y: "% of the dirty blocks",
            kind: Kind::Lines,
            is_log: false,
            labels: Vec::new(),
            series: (0..WAYS.len()).map(progress).collect(),
        },
        size_bars(
            ("origin-io-sizes", "Writes to the origin by size"),
            ("up to so many bytes", "writes"),
            &sizes,
        ),
    ]
}
