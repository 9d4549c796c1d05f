// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling on a file of this machine: a reader at a fixed rate, a writer, and both.
//! Percentiles and rates are medians over the rounds, so that one stall of the machine does not
//! decide.
use std::path::Path;

use super::super::units::{GIB, MIB, ROUNDS, mib};
use super::{
    KEYS_PER_MILLE, MODES, MixedFigures, PER_MILLE, PUBLISHED_S, key, latencies, throttle,
};
use crate::median::{median, spread_percent};
use crate::mixed_load::{Devices, LoadResult, Local};
use crate::report::{Basis, Direction, Row, Section};
use crate::rounds::{Progress, Steps, turns};
use crate::table::{Table, fixed};
use crate::tmpfile;
use crate::wbt_sim::Throttling;

/// The prefix of the keys: the disk of this machine.
const MODEL: &str = "disk";
/// The largest page cache of the writer.
pub(crate) const MEMORY_MIB_MAX: u64 = 256;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub rounds: usize,
    /// Seconds of each load: unmeasured ones, then measured ones.
    pub time: (f64, f64),
    /// Reads a second of each reader; the keys without a rate belong to the last one.
    pub rates: Vec<f64>,
    /// The size of the file: half of it is read, half is written.
    pub file_bytes: u64,
    /// Memory of the writer's page cache.
    pub memory_mib: u64,
}

impl Options {
    /// The options of `reproduce`, with a file of four times `bytes`.
    pub fn of_bytes(bytes: u64) -> Options {
        Options {
            rounds: ROUNDS,
            time: (0.7, 2.0),
            rates: vec![500.0],
            file_bytes: 4 * bytes,
            memory_mib: (bytes / MIB).clamp(16, MEMORY_MIB_MAX),
        }
    }
}

/// Runs the scenario in this process, on an unnamed file in `dir`.
///
/// # Errors
/// The error of the file system or of a device.
pub fn run(dir: &Path, options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "making files");
    let file = tmpfile::make(dir, options.file_bytes);
    let file = file.map_err(|e| format!("{}: {e}", dir.display()))?;
    let local = Local::new(&tmpfile::path(&file), options.file_bytes, options.memory_mib)?;
    run_on(&local, options, progress)
}

/// Runs the scenario on these devices.
///
/// # Errors
/// The error of a device.
pub fn run_on(
    devices: &impl Devices,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Section, String> {
    let mut results = Results::new(options);
    let loads = options.rates.len() + MODES.len() * (1 + options.rates.len());
    let mut steps = Steps::new(progress, options.rounds * loads);
    let load = |round: usize, rate: Option<f64>, writes, what: &str, steps: &mut Steps<'_>| {
        steps.next(what);
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round as u64 + 1);
        devices.run(rate, writes, options.time, seed)
    };
    for (round, at) in turns(options.rounds, MODES.len()) {
        if at == round % MODES.len() {
            for (rate, alone) in options.rates.iter().zip(&mut results.alone) {
                let read = load(round, Some(*rate), false, "reader alone", &mut steps)?;
                alone.push(read_us(&read)?);
            }
        }
        let (name, seen) = (key(MODES[at]), &mut results.modes[at]);
        set(devices, MODES[at])?;
        let what = format!("writer alone, wbt {name}");
        let alone = load(round, None, true, &what, &mut steps)?;
        seen.alone_mib_per_s.push(written(&alone)?);
        for (rate, mixed) in options.rates.iter().zip(&mut seen.mixed) {
            let what = format!("reader beside a writer, wbt {name}");
            let both = load(round, Some(*rate), true, &what, &mut steps)?;
            mixed.mib_per_s.push(written(&both)?);
            mixed.reads.push(read_us(&both)?);
            mixed.last = both;
        }
        if MODES[at] != Throttling::Off {
            seen.stats = devices.attribute("queue/wbt_stats")?;
        }
    }
    Ok(results.section())
}

fn set(devices: &impl Devices, mode: Throttling) -> Result<(), String> {
    if mode == Throttling::Off {
        return devices.set_attribute("queue/wbt_lat_usec", "0");
    }
    devices.set_attribute("queue/wbt_mode", mode.name())?;
    devices.set_attribute("queue/wbt_lat_usec", "-1")
}

/// Latencies of a round, one for each of [`PER_MILLE`].
type Reads = [f64; PER_MILLE.len()];

fn read_us(of: &LoadResult) -> Result<Reads, String> {
    let all = of.latency_ns.as_ref().filter(|h| !h.is_empty()).ok_or("nothing was read")?;
    Ok(PER_MILLE.map(|(n, _)| all.value_at_quantile(n as f64 / 1e3) as f64 / 1e3))
}

fn written(of: &LoadResult) -> Result<f64, String> {
    let bytes = of.written_bytes_per_s.filter(|b| *b > 0.0).ok_or("nothing was written")?;
    Ok(bytes / MIB as f64)
}

/// One quantile of each round.
fn rounds_of(reads: &[Reads], per_mille: usize) -> Vec<f64> {
    let at = PER_MILLE.iter().position(|(n, _)| *n == per_mille).expect("one that is shown");
    reads.iter().map(|us| us[at]).collect()
}

fn us(reads: &[Reads], per_mille: usize) -> f64 {
    median(&rounds_of(reads, per_mille))
}

/// The figures of one mode, one for each round.
#[derive(Default)]
struct ModeRuns {
    alone_mib_per_s: Vec<f64>,
    /// For each rate.
    mixed: Vec<MixedResults>,
    /// `wbt_stats` of the throttle at the end.
    stats: String,
}

#[derive(Default)]
struct MixedResults {
    mib_per_s: Vec<f64>,
    reads: Vec<Reads>,
    last: LoadResult,
}

struct Results<'a> {
    options: &'a Options,
    /// The reader alone: for each rate a list of the rounds.
    alone: Vec<Vec<Reads>>,
    modes: [ModeRuns; MODES.len()],
}

impl Results<'_> {
    fn new(options: &Options) -> Results<'_> {
        let seen = || {
            let mixed = options.rates.iter().map(|_| MixedResults::default()).collect();
            ModeRuns { mixed, ..ModeRuns::default() }
        };
        let alone = options.rates.iter().map(|_| Vec::new()).collect();
        Results { options, alone, modes: MODES.map(|_| seen()) }
    }

    fn section(&self) -> Section {
        let mut section = Section { name: "wbt", ..Section::default() };
        section.tables = self.mixed_tables();
        section.tables.push(self.alone_table());
        section.tables.extend(self.stats_tables());
        section.rows = self.lone_rows();
        let Some(main) = self.options.rates.len().checked_sub(1) else { return section };
        section.rows.extend(self.mixed(main).rows());
        self.put(&mut section);
        let of = |name, reads: &[Reads]| (name, PER_MILLE.map(|(n, _)| us(reads, n)));
        let both =
            MODES.iter().zip(&self.modes).map(|(m, seen)| of(key(*m), &seen.mixed[main].reads));
        let readers = std::iter::once(of("alone", &self.alone[main])).chain(both).collect();
        section.plots.push(latencies("this disk", readers));
        let laws: Vec<_> = MODES
            .iter()
            .zip(&self.modes)
            .skip(1)
            .map(|(mode, seen)| (key(*mode), &seen.mixed[main].last.samples[..]))
            .collect();
        section.plots.extend(throttle("this disk", &laws));
        section.notes.push(format!(
            "a file of {}, four times the size; {} reads of 4 KiB a second beside a buffered \
             writer; {} rounds, each load {} s; `on` is our law, by the tail of the \
             reads; published: what throttling took of a lone writer at depth 1",
            mib(self.options.file_bytes),
            self.options.rates[main],
            self.options.rounds,
            self.options.time.1
        ));
        section
    }

    /// Seconds for one GiB.
    fn lone_s(&self, mode: usize) -> Vec<f64> {
        let seconds = |mib: &f64| GIB / (mib * MIB as f64);
        self.modes[mode].alone_mib_per_s.iter().map(seconds).collect()
    }

    fn lone_rows(&self) -> Vec<Row> {
        let off_s = self.lone_s(0);
        let row = |law: usize, what: &str| {
            let unit = ("s", Direction::LowerIsBetter, Basis::Disk);
            let row = Row::new(what, ("off", &off_s), (key(MODES[law]), &self.lone_s(law)), unit);
            let off_s = row.before;
            row.published(PUBLISHED_S.0 / PUBLISHED_S.1).limit("the same, off", off_s)
        };
        vec![row(1, "lone writer, a GiB, kernel's law"), row(2, "lone writer, a GiB")]
    }

    fn mixed(&self, rate: usize) -> MixedFigures {
        let of = |mode: usize| &self.modes[mode].mixed[rate];
        MixedFigures {
            of: String::new(),
            read_p99_us: std::array::from_fn(|mode| rounds_of(&of(mode).reads, 990)),
            written: std::array::from_fn(|mode| of(mode).mib_per_s.clone()),
            reader_alone_p99_us: us(&self.alone[rate], 990),
            writer_alone: median(&self.modes[0].alone_mib_per_s),
            unit: "MiB/s",
            basis: Basis::Disk,
        }
    }

    /// The throughput of the writer with a reader, divided by that without.
    fn share(&self, mode: usize, rate: usize) -> f64 {
        let seen = &self.modes[mode];
        median(&seen.mixed[rate].mib_per_s) / median(&seen.alone_mib_per_s)
    }

    fn mixed_tables(&self) -> Vec<Table> {
        let head = [
            "p50",
            "p99",
            "p99.9",
            "max",
            "p99/alone",
            "p99.9/alone",
            "MiB/s",
            "+-%",
            "of alone",
            "of off",
        ];
        let table = |(nth, rate): (usize, &f64)| {
            let title = format!("reader: 4 KiB, {rate} a second; latency from when due, us");
            let mut table = Table::new(title, &[""], &head);
            let reads = |reads: &[Reads]| {
                let over = |n| us(reads, n) / us(&self.alone[nth], n);
                let figures = [500, 990, 999, 1000].map(|n| fixed(us(reads, n), 0));
                figures.into_iter().chain([fixed(over(990), 2), fixed(over(999), 2)])
            };
            table.row(&["alone"], reads(&self.alone[nth]));
            let off = median(&self.modes[0].mixed[nth].mib_per_s);
            for (at, seen) in self.modes.iter().enumerate() {
                let rates = &seen.mixed[nth].mib_per_s;
                let writer = [
                    fixed(median(rates), 0),
                    fixed(spread_percent(rates), 0),
                    fixed(self.share(at, nth), 2),
                    fixed(median(rates) / off, 2),
                ];
                let name = format!("beside, wbt {}", MODES[at].name());
                table.row(&[&name], reads(&seen.mixed[nth].reads).chain(writer));
            }
            table
        };
        self.options.rates.iter().enumerate().map(table).collect()
    }

    fn alone_table(&self) -> Table {
        let mut table = Table::new("writer alone", &[""], &["MiB/s", "+-%"]);
        for (mode, seen) in MODES.iter().zip(&self.modes) {
            let rates = &seen.alone_mib_per_s;
            let figures = [fixed(median(rates), 0), fixed(spread_percent(rates), 0)];
            table.row(&[&format!("wbt {}", mode.name())], figures);
        }
        table
    }

    fn stats_tables(&self) -> impl Iterator<Item = Table> {
        MODES.iter().zip(&self.modes).filter(|(_, seen)| !seen.stats.is_empty()).map(
            |(mode, seen)| {
                let title = format!("queue/wbt_stats, {}, at the end:", mode.name());
                let mut table = Table::new(title, &[], &[]);
                table.note(seen.stats.trim_end());
                table
            },
        )
    }

    fn put(&self, section: &mut Section) {
        for (at, mode) in MODES.iter().enumerate() {
            let name = format!("{MODEL}_writer_alone_{}_s", key(*mode));
            section.put(name, median(&self.lone_s(at)));
        }
        for (nth, rate) in self.options.rates.iter().enumerate() {
            // The keys of the last rate are repeated without it.
            for prefix in [format!("{MODEL}_{rate}"), MODEL.to_owned()] {
                for (per_mille, name) in KEYS_PER_MILLE {
                    let mut put = |who: &str, reads: &[Reads]| {
                        let name = format!("{prefix}_read_{name}_{who}_us");
                        section.put(name, us(reads, per_mille));
                    };
                    put("alone", &self.alone[nth]);
                    for (mode, seen) in MODES.iter().zip(&self.modes) {
                        put(key(*mode), &seen.mixed[nth].reads);
                    }
                }
                for (at, mode) in MODES.iter().enumerate() {
                    let name = format!("{prefix}_writer_share_{}", key(*mode));
                    section.put(name, self.share(at, nth));
                }
            }
        }
    }
}
