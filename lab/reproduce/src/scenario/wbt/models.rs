// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling on models of disks in virtual time. The same options give the same bytes on
//! every machine. What is calibrated and what is a prediction: `docs/wbt-model.md`.
use super::{
    KEYS_PER_MILLE, MODES, MixedFigures, PER_MILLE, PUBLISHED_S, key, latencies, throttle,
};
use crate::report::{Basis, Direction, Goal, Requirement, Row, Section};
use crate::rounds::{Progress, run_parallel};
use crate::table::{Table, fixed};
use crate::wbt_sim::{
    Case, Disk, LONE_BYTES, Load, Outcome, RATES, REQUEST_BYTES, SETTLE_NS, Throttling, Writer,
    run as run_case,
};

const LAWS: [Throttling; 2] = [Throttling::Kernel, Throttling::Tail];
/// Modes on the disk of the published lone writer.
const LONE_MODES: [Throttling; 4] =
    [Throttling::Off, Throttling::NoRule, Throttling::Kernel, Throttling::Tail];
/// At most so many times shorter is the time in which the throttle adapts to a flash disk. With 4,
/// `bench wbt-sim --scale 16` shows the same reads beside a throttled writer as with 1, but for
/// 1 %; with 8 the law is not yet there when 20 reads come in a second.
const SETTLE_SCALE_MAX: u64 = 4;
const QD1: Disk = Disk::Lone { queue_depth: 1 };

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// SizeCounts and times are divided by this.
    pub scale: u64,
    pub writer: Writer,
    /// Queue depths of the disk of the published lone writer; 1 must be among them.
    pub depths: &'static [u32],
    /// Disks that a reader and a writer share.
    pub disks: &'static [Disk],
    /// Whether all rates of reads are run, not only the one of the keys without a rate.
    pub has_all_rates: bool,
}

impl Options {
    /// The options of `reproduce --sim` for so many bytes of a lone writer.
    pub fn of_bytes(bytes: u64) -> Options {
        Options {
            scale: (LONE_BYTES / bytes).clamp(1, 64),
            writer: Writer::Buffered,
            depths: &[1],
            disks: &Disk::SHARED,
            has_all_rates: false,
        }
    }

    /// All disks, depths and rates.
    pub fn all(scale: u64, writer: Writer) -> Options {
        let (depths, disks) = (&[1, 2, 4, 8, 16, 32], &Disk::SHARED);
        Options { scale, writer, depths, disks, has_all_rates: true }
    }

    fn lone_disks(&self) -> impl Iterator<Item = Disk> {
        let published = self.depths.iter().map(|depth| Disk::Lone { queue_depth: *depth });
        published.chain(self.disks.iter().copied())
    }

    fn rates(&self, disk: Disk) -> Vec<u64> {
        if self.has_all_rates { RATES.to_vec() } else { vec![main_rate(disk)] }
    }

    /// Rates of reads that leave time for a writer.
    fn shared_rates(&self, disk: Disk) -> Vec<u64> {
        self.rates(disk).into_iter().filter(|rate| disk.rates().contains(rate)).collect()
    }

    /// Whole requests only: a client whose last write ends within a page has to read that page.
    fn lone(&self) -> Load {
        Load::Lone { bytes: LONE_BYTES / self.scale / REQUEST_BYTES * REQUEST_BYTES }
    }

    /// How long the throttle adapts. At a small size a flash disk has less time for it: a second is
    /// enough, and the writer copies gigabytes in it. A rotating disk needs all of it.
    fn settle_ns(&self, disk: Disk) -> u64 {
        SETTLE_NS / if disk.is_rotating() { 1 } else { self.scale.min(SETTLE_SCALE_MAX) }
    }

    /// A writer without a reader.
    fn alone(&self, disk: Disk) -> Load {
        let for_ns = 20_000_000_000 / self.scale;
        Load::Timed { writer: true, reads_per_s: None, settle_ns: self.settle_ns(disk), for_ns }
    }

    fn reader(&self, disk: Disk, rate: u64, writer: bool) -> Load {
        // At least 1200 reads, so that the 99.9th percentile is not the longest.
        let seconds = match rate {
            20 => 60,
            500 => 12,
            _ => 6,
        };
        let for_ns = seconds * 1_000_000_000 / self.scale;
        Load::Timed { writer, reads_per_s: Some(rate), settle_ns: self.settle_ns(disk), for_ns }
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let case = |disk, throttling, load| Case { disk, throttling, writer: self.writer, load };
        cases.push(case(QD1, Throttling::NoRule, self.lone()));
        for disk in self.lone_disks() {
            cases.extend(MODES.map(|throttling| case(disk, throttling, self.lone())));
        }
        for &disk in self.disks {
            cases.push(case(disk, Throttling::Off, self.alone(disk)));
            for rate in self.rates(disk) {
                cases.push(case(disk, Throttling::Off, self.reader(disk, rate, false)));
            }
            for rate in self.shared_rates(disk) {
                cases.extend(MODES.map(|mode| case(disk, mode, self.reader(disk, rate, true))));
            }
        }
        cases
    }
}

/// The rate of the keys without a rate.
fn main_rate(disk: Disk) -> u64 {
    if disk.is_rotating() { 20 } else { 500 }
}

fn words(case: Case) -> String {
    let load = match case.load {
        Load::Lone { bytes } => format!("lone writer of {} MB", bytes / 1_000_000),
        Load::Timed { writer: true, reads_per_s: None, .. } => "writer alone".to_owned(),
        Load::Timed { writer, reads_per_s, .. } => {
            let beside = if writer { " beside a writer" } else { "" };
            format!("{} reads a second{beside}", reads_per_s.unwrap_or(0))
        }
    };
    format!("{load}, {}, wbt {}", case.disk.key(), case.throttling.name())
}

/// Runs the scenario.
///
/// # Errors
/// A request that failed, or a run that did not end.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "writers and readers on models of disks");
    let cases = options.cases();
    let work = |case| run_case(case).map_err(|e| format!("{}: {e}", words(case)));
    let describe = |case, o: &Outcome| {
        // A lone writer has no reads, and a lone reader writes nothing.
        let figure = |value: f64, what: &str| {
            if value.is_finite() { format!("{value:.1} {what}") } else { format!("no {what}") }
        };
        let (read, written) = (o.read_us(990), o.mb_per_s());
        format!("{}: {}, {}", words(case), figure(read, "us read p99"), figure(written, "MB/s"))
    };
    let outcomes = run_parallel(&cases, work, describe, progress)?;
    let runs = cases.into_iter().zip(outcomes).collect();
    Ok(Results { options: *options, runs }.section())
}

struct Results {
    options: Options,
    runs: Vec<(Case, Outcome)>,
}

impl Results {
    fn of(&self, disk: Disk, throttling: Throttling, load: Load) -> &Outcome {
        let wanted = Case { disk, throttling, writer: self.options.writer, load };
        let run = self.runs.iter().find(|(case, _)| *case == wanted);
        &run.expect("cases() has every run that is asked for").1
    }

    fn lone_s(&self, disk: Disk, throttling: Throttling) -> f64 {
        self.of(disk, throttling, self.options.lone()).seconds()
    }

    /// How much longer a lone writer takes than with throttling off, in per cent.
    fn loss(&self, disk: Disk, throttling: Throttling) -> f64 {
        (self.lone_s(disk, throttling) / self.lone_s(disk, Throttling::Off) - 1.0) * 100.0
    }

    fn writer(&self, disk: Disk) -> &Outcome {
        self.of(disk, Throttling::Off, self.options.alone(disk))
    }

    fn reader(&self, disk: Disk, rate: u64) -> &Outcome {
        self.of(disk, Throttling::Off, self.options.reader(disk, rate, false))
    }

    fn both(&self, disk: Disk, rate: u64, throttling: Throttling) -> &Outcome {
        self.of(disk, throttling, self.options.reader(disk, rate, true))
    }

    /// The throughput of the writer with a reader, divided by that without.
    fn share(&self, disk: Disk, rate: u64, throttling: Throttling) -> f64 {
        self.both(disk, rate, throttling).mb_per_s() / self.writer(disk).mb_per_s()
    }

    fn ratio(&self, disk: Disk, rate: u64, throttling: Throttling, per_mille: usize) -> f64 {
        let alone = self.reader(disk, rate).read_us(per_mille);
        self.both(disk, rate, throttling).read_us(per_mille) / alone
    }

    fn section(&self) -> Section {
        let [no_rule_s, on_s] =
            [Throttling::NoRule, Throttling::Tail].map(|mode| self.lone_s(QD1, mode));
        let unit = ("s", Direction::LowerIsBetter, Basis::Model);
        let lone =
            Row::new("lone writer, depth 1", ("no rule", &[no_rule_s]), ("on", &[on_s]), unit)
                .published(PUBLISHED_S.1 / PUBLISHED_S.0)
                .limit("the same, off", self.lone_s(QD1, Throttling::Off));
        let mut section = Section {
            name: "wbt",
            rows: vec![lone],
            tables: vec![self.published_table(), self.lone_table(), self.mixed_table()],
            goals: self.goals(),
            ..Section::default()
        };
        for &disk in self.options.disks {
            section.rows.extend(self.mixed(disk).rows());
            self.plot(&mut section, disk);
        }
        self.put(&mut section);
        let Load::Lone { bytes } = self.options.lone() else { unreachable!("it is lone") };
        section.notes.push(format!(
            "lone writer of {:.2} GB; published: {} s off, {} s with one request in flight; reads \
             took 1 to 2 s beside a writer, then tens of milliseconds. `on` is our law, by the \
             tail of the reads; {} reads a second on hdd, {} on the others",
            bytes as f64 / 1e9,
            PUBLISHED_S.0,
            PUBLISHED_S.1,
            main_rate(Disk::Hdd),
            main_rate(Disk::Nvme),
        ));
        section
    }

    fn mixed(&self, disk: Disk) -> MixedFigures {
        let rate = main_rate(disk);
        MixedFigures {
            of: format!(", {}", disk.key()),
            read_p99_us: MODES.map(|mode| vec![self.both(disk, rate, mode).read_us(990)]),
            written: MODES.map(|mode| vec![self.both(disk, rate, mode).mb_per_s()]),
            reader_alone_p99_us: self.reader(disk, rate).read_us(990),
            writer_alone: self.writer(disk).mb_per_s(),
            unit: "MB/s",
            basis: Basis::Model,
        }
    }

    fn plot(&self, section: &mut Section, disk: Disk) {
        let rate = main_rate(disk);
        let both = |mode| (key(mode), self.both(disk, rate, mode));
        let alone = ("alone", self.reader(disk, rate));
        let all = |o: &Outcome| PER_MILLE.map(|(n, _)| o.read_us(n));
        let readers = std::iter::once(alone).chain(MODES.map(both));
        let readers = readers.map(|(name, o)| (name, all(o))).collect();
        section.plots.push(latencies(&disk.key(), readers));
        let laws = LAWS.map(|mode| (key(mode), &self.both(disk, rate, mode).samples[..]));
        section.plots.extend(throttle(&disk.key(), &laws));
    }

    fn published_table(&self) -> Table {
        let Load::Lone { bytes } = self.options.lone() else { unreachable!("it is lone") };
        let title = format!(
            "Virtual time. A lone writer, {:.2} GB in order, on the disk of the published one \
             (qd1)",
            bytes as f64 / 1e9
        );
        let mut table = Table::new(title, &["wbt"], &["seconds", "loss %", "measured s"]);
        for mode in LONE_MODES {
            let measured = match mode {
                Throttling::Off => Some(PUBLISHED_S.0),
                Throttling::NoRule => Some(PUBLISHED_S.1),
                Throttling::Kernel | Throttling::Tail => None,
            };
            let measured = measured.filter(|_| self.options.scale == 1);
            let figures = [fixed(self.lone_s(QD1, mode), 2), self.loss_cell(QD1, mode)];
            let measured = measured.map(|s| fixed(s, 1));
            table.row(&[mode.name()], figures.into_iter().chain(measured));
        }
        table.note("models, and what of them is calibrated: docs/wbt-model.md");
        table
    }

    fn loss_cell(&self, disk: Disk, mode: Throttling) -> String {
        format!("{:+.2}", self.loss(disk, mode))
    }

    fn lone_table(&self) -> Table {
        let title = "Prediction: the same on other disks (qdN: that disk with depth N)";
        let figures = ["off s", "kernel s", "loss %", "tail s", "loss %"];
        let mut table = Table::new(title, &["model"], &figures);
        for disk in self.options.lone_disks() {
            let mut figures = vec![fixed(self.lone_s(disk, Throttling::Off), 2)];
            for law in LAWS {
                figures.extend([fixed(self.lone_s(disk, law), 2), self.loss_cell(disk, law)]);
            }
            table.row(&[&disk.key()], figures);
        }
        table
    }

    fn mixed_table(&self) -> Table {
        let title = "Prediction: a reader of random 4 KiB by the clock beside a writer that never \
                     stops, us";
        let figures = ["p50", "p99", "p99.9", "p99 x", "p99.9 x", "first", "MB/s", "share"];
        let mut table = Table::new(title, &["model", "reads/s", "wbt"], &figures);
        for &disk in self.options.disks {
            let name = disk.key();
            let blank = vec![String::new(); 6];
            let mb_per_s = fixed(self.writer(disk).mb_per_s(), 1);
            table.row(&[&name, "-", "writer alone"], blank.into_iter().chain([mb_per_s]));
            for rate in self.options.rates(disk) {
                let times =
                    |o: &Outcome| [500, 990, 999].map(|per_mille| fixed(o.read_us(per_mille), 0));
                let shown = rate.to_string();
                table.row(&[&name, &shown, "reader alone"], times(self.reader(disk, rate)));
                if !disk.rates().contains(&rate) {
                    table.note(format!("{name}: {rate} reads fill the disk alone: not judged"));
                    continue;
                }
                for mode in MODES {
                    let o = self.both(disk, rate, mode);
                    let ratio = |per_mille| fixed(self.ratio(disk, rate, mode, per_mille), 2);
                    let share = fixed(self.share(disk, rate, mode), 3);
                    let figures = [
                        ratio(990),
                        ratio(999),
                        fixed(o.early_max_us(), 0),
                        fixed(o.mb_per_s(), 1),
                        share,
                    ];
                    let figures = times(o).into_iter().chain(figures);
                    table.row(&[&name, &shown, mode.name()], figures);
                }
            }
        }
        let seconds = |disk| self.options.settle_ns(disk) as f64 / 1e9;
        table.note(match [Disk::Hdd, Disk::Nvme].map(seconds) {
            [all, flash] if all == flash => {
                format!("reads count from {all} s on, `first` is the longest before that")
            }
            [rotating, flash] => format!(
                "reads count from {rotating} s on, on flash from {flash:.2} s on; `first` is the \
                 longest before that"
            ),
        });
        table
    }

    fn put(&self, section: &mut Section) {
        let no_rule_s = self.lone_s(QD1, Throttling::NoRule);
        section.put("qd1_writer_alone_norule_s", no_rule_s);
        for disk in self.options.lone_disks() {
            for mode in MODES {
                let name = format!("{}_writer_alone_{}_s", disk.key(), key(mode));
                section.put(name, self.lone_s(disk, mode));
            }
        }
        for &disk in self.options.disks {
            for rate in self.options.shared_rates(disk) {
                self.put_mixed(section, &format!("{}_{rate}", disk.key()), (disk, rate));
                if rate == main_rate(disk) {
                    self.put_mixed(section, &disk.key(), (disk, rate));
                }
            }
        }
    }

    fn put_mixed(&self, section: &mut Section, prefix: &str, (disk, rate): (Disk, u64)) {
        for (per_mille, name) in KEYS_PER_MILLE {
            let alone = self.reader(disk, rate).read_us(per_mille);
            section.put(format!("{prefix}_read_{name}_alone_us"), alone);
            for mode in MODES {
                let us = self.both(disk, rate, mode).read_us(per_mille);
                section.put(format!("{prefix}_read_{name}_{}_us", key(mode)), us);
            }
        }
        for mode in MODES {
            let share = self.share(disk, rate, mode);
            section.put(format!("{prefix}_writer_share_{}", key(mode)), share);
        }
    }

    /// The goals of our algorithm.
    fn goals(&self) -> Vec<Goal> {
        let tail = Throttling::Tail;
        let mut goals = Vec::new();
        let mut goal = |what, figure, bound, is_at_most, requirement| {
            goals.push(Goal { what, figure, bound, is_at_most, requirement });
        };
        for disk in self.options.lone_disks() {
            let what = format!("{}: loss of a lone writer, %", disk.key());
            goal(what, self.loss(disk, tail), 1.0, true, Requirement::Required);
        }
        for &disk in self.options.disks {
            for rate in self.options.shared_rates(disk) {
                let name = format!("{}, {rate} reads a second", disk.key());
                let bound = if disk.is_rotating() { 4.0 } else { 2.0 };
                let p99 = self.ratio(disk, rate, tail, 990);
                let times = format!("{name}: read p99, times alone");
                goal(times, p99, bound, true, Requirement::Required);
                let share = self.share(disk, rate, tail);
                let shares = format!("{name}: share of the writer");
                goal(shares.clone(), share, 0.7, false, Requirement::Required);
                if !disk.is_rotating() {
                    let p999 = self.ratio(disk, rate, tail, 999);
                    let times = format!("{name}: read p99.9, times alone");
                    goal(times, p999, 3.0, true, Requirement::Stretch);
                    goal(shares, share, 0.85, false, Requirement::Stretch);
                }
            }
        }
        goals
    }
}
