// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All runs of the bench, what they say, and what they should say.
use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{
    Case, Disk, LONE_BYTES, Load, Outcome, RATES, REQUEST_BYTES, SETTLE_NS, Throttling, Writer,
};

/// Depths at which a lone writer is tried on the disk of the published one.
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const LAWS: [Throttling; 2] = [Throttling::Kernel, Throttling::Tail];
/// Off first: the others are compared with it.
const MODES: [Throttling; 3] = [Throttling::Off, Throttling::Kernel, Throttling::Tail];
/// What the published lone writer took off, and with one request in flight.
const PUBLISHED_S: (f64, f64) = (87.5, 101.8);

/// The rate that the keys without one are for.
pub(crate) fn main_rate(disk: Disk) -> u64 {
    if disk.is_rotating() { 20 } else { 500 }
}

/// At least 1200 reads, so that the 99.9th percentile is not the longest.
pub(crate) fn beside_ns(rate: u64, scale: u64) -> u64 {
    let seconds = match rate {
        20 => 60,
        500 => 12,
        _ => 6,
    };
    seconds * 1_000_000_000 / scale
}

/// How long a writer without a reader is watched.
pub(crate) fn alone_ns(scale: u64) -> u64 {
    20_000_000_000 / scale
}

/// In whole requests: a client that ends within a page has to read it.
pub(crate) fn lone_bytes(scale: u64) -> u64 {
    LONE_BYTES / scale / REQUEST_BYTES * REQUEST_BYTES
}

/// The runs, with sizes and times divided by `scale`.
pub fn cases(scale: u64, writer: Writer) -> Vec<Case> {
    let mut cases = Vec::new();
    let case = |disk, throttling, load| Case { disk, throttling, writer, load };
    let lone = Load::Lone { bytes: lone_bytes(scale) };
    for queue_depth in DEPTHS {
        let disk = Disk::Lone { queue_depth };
        cases.extend(MODES.map(|throttling| case(disk, throttling, lone)));
    }
    let disk = Disk::Lone { queue_depth: 1 };
    cases.push(case(disk, Throttling::NoRule, lone));
    for disk in Disk::SHARED {
        cases.extend(MODES.map(|throttling| case(disk, throttling, lone)));
        let load = Load::Beside { writer: true, reads_per_s: None, for_ns: alone_ns(scale) };
        cases.push(case(disk, Throttling::Off, load));
        for rate in RATES {
            let load = |writer| {
                let for_ns = beside_ns(rate, scale);
                Load::Beside { writer, reads_per_s: Some(rate), for_ns }
            };
            cases.push(case(disk, Throttling::Off, load(false)));
            if disk.rates().contains(&rate) {
                cases.extend(MODES.map(|throttling| case(disk, throttling, load(true))));
            }
        }
    }
    cases
}

/// Something that a figure should be at most or at least.
#[derive(Clone, Debug)]
pub struct Goal {
    pub what: String,
    pub figure: f64,
    pub bound: f64,
    pub at_most: bool,
    /// Ours beyond what was asked for.
    pub beyond: bool,
}

impl Goal {
    pub fn is_met(&self) -> bool {
        if self.at_most { self.figure <= self.bound } else { self.figure >= self.bound }
    }
}

/// All outcomes.
pub struct Results {
    pub scale: u64,
    pub writer: Writer,
    pub rows: Vec<(Case, Outcome)>,
}

impl Results {
    fn of(&self, disk: Disk, throttling: Throttling, load: Load) -> &Outcome {
        let wanted = Case { disk, throttling, writer: self.writer, load };
        let row = self.rows.iter().find(|(case, _)| *case == wanted);
        &row.expect("cases() has every run that is asked for").1
    }

    fn lone(&self, disk: Disk, throttling: Throttling) -> &Outcome {
        let bytes = lone_bytes(self.scale);
        self.of(disk, throttling, Load::Lone { bytes })
    }

    /// How much longer a lone writer takes than off, per cent.
    fn loss(&self, disk: Disk, throttling: Throttling) -> f64 {
        let seconds = |t| self.lone(disk, t).seconds();
        (seconds(throttling) / seconds(Throttling::Off) - 1.0) * 100.0
    }

    fn writer(&self, disk: Disk) -> &Outcome {
        let for_ns = alone_ns(self.scale);
        let load = Load::Beside { writer: true, reads_per_s: None, for_ns };
        self.of(disk, Throttling::Off, load)
    }

    fn reader(&self, disk: Disk, rate: u64) -> &Outcome {
        let for_ns = beside_ns(rate, self.scale);
        let load = Load::Beside { writer: false, reads_per_s: Some(rate), for_ns };
        self.of(disk, Throttling::Off, load)
    }

    fn both(&self, disk: Disk, rate: u64, throttling: Throttling) -> &Outcome {
        let for_ns = beside_ns(rate, self.scale);
        let load = Load::Beside { writer: true, reads_per_s: Some(rate), for_ns };
        self.of(disk, throttling, load)
    }

    /// What the writer beside a reader keeps of what it has alone.
    fn share(&self, disk: Disk, rate: u64, throttling: Throttling) -> f64 {
        self.both(disk, rate, throttling).mb_per_s() / self.writer(disk).mb_per_s()
    }

    fn ratio(&self, disk: Disk, rate: u64, throttling: Throttling, per_mille: usize) -> f64 {
        let alone = self.reader(disk, rate).read_us(per_mille);
        self.both(disk, rate, throttling).read_us(per_mille) / alone
    }

    /// What our law is judged by.
    pub fn goals(&self) -> Vec<Goal> {
        let tail = Throttling::Tail;
        let mut goals = Vec::new();
        let mut goal = |what, figure, bound, at_most, beyond| {
            goals.push(Goal { what, figure, bound, at_most, beyond });
        };
        let depths = DEPTHS.map(|queue_depth| Disk::Lone { queue_depth });
        for disk in depths.into_iter().chain(Disk::SHARED) {
            let what = format!("{}: loss of a lone writer, %", disk.key());
            goal(what, self.loss(disk, tail), 1.0, true, false);
        }
        for disk in Disk::SHARED {
            for &rate in disk.rates() {
                let name = format!("{}, {rate} reads a second", disk.key());
                let bound = if disk.is_rotating() { 4.0 } else { 2.0 };
                let p99 = self.ratio(disk, rate, tail, 990);
                goal(format!("{name}: read p99, times alone"), p99, bound, true, false);
                let share = self.share(disk, rate, tail);
                goal(format!("{name}: share of the writer"), share, 0.7, false, false);
                if !disk.is_rotating() {
                    let p999 = self.ratio(disk, rate, tail, 999);
                    goal(format!("{name}: read p99.9, times alone"), p999, 3.0, true, true);
                    goal(format!("{name}: share of the writer"), share, 0.85, false, true);
                }
            }
        }
        goals
    }

    /// The tables for people.
    ///
    /// # Errors
    /// Of `out`.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Virtual time. Models, and what of them is calibrated: docs/wbt-model.md.\n"
        )?;
        self.print_lone(out)?;
        self.print_beside(out)?;
        self.print_goals(out)
    }

    fn print_lone(&self, out: &mut impl Write) -> io::Result<()> {
        let gb = lone_bytes(self.scale) as f64 / 1e9;
        writeln!(
            out,
            "A lone writer, {gb:.2} GB in order, on the disk of the published one (qd1)"
        )?;
        writeln!(out, "{:18} {:>9} {:>8} {:>11}", "wbt", "seconds", "loss", "measured s")?;
        let qd1 = Disk::Lone { queue_depth: 1 };
        let rows = [
            (Throttling::Off, Some(PUBLISHED_S.0)),
            (Throttling::NoRule, Some(PUBLISHED_S.1)),
            (Throttling::Kernel, None),
            (Throttling::Tail, None),
        ];
        for (throttling, measured) in rows {
            let (s, loss) = (self.lone(qd1, throttling).seconds(), self.loss(qd1, throttling));
            write!(out, "{:18} {s:9.2} {loss:+6.2} %", throttling.name())?;
            match measured.filter(|_| self.scale == 1) {
                Some(was) => writeln!(out, " {was:11.1}  calibrated")?,
                None => writeln!(out)?,
            }
        }
        writeln!(out, "\nPrediction: the same on other disks (qdN: that disk with depth N)")?;
        writeln!(
            out,
            "{:12} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "model", "off s", "kernel s", "loss", "tail s", "loss"
        )?;
        let depths = DEPTHS.map(|queue_depth| Disk::Lone { queue_depth });
        for disk in depths.into_iter().chain(Disk::SHARED) {
            let off = self.lone(disk, Throttling::Off).seconds();
            write!(out, "{:12} {off:9.2}", disk.key())?;
            for law in LAWS {
                let (s, loss) = (self.lone(disk, law).seconds(), self.loss(disk, law));
                write!(out, " {s:9.2} {loss:+7.2} %")?;
            }
            writeln!(out)?;
        }
        writeln!(out)
    }

    fn print_beside(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Prediction: a reader of random 4 KiB by the clock beside a writer that never stops. \
             Microseconds; reads count\nfrom {} s on, `first` is the longest before that.",
            SETTLE_NS / 1_000_000_000
        )?;
        writeln!(
            out,
            "{:12} {:>7} {:13} {:>9} {:>9} {:>9} {:>7} {:>7} {:>9} {:>9} {:>6}",
            "model",
            "reads/s",
            "wbt",
            "p50",
            "p99",
            "p99.9",
            "p99 x",
            "p99.9 x",
            "first",
            "MB/s",
            "share"
        )?;
        for disk in Disk::SHARED {
            let mb_per_s = self.writer(disk).mb_per_s();
            writeln!(
                out,
                "{:12} {:>7} {:13} {:51} {mb_per_s:9.1}",
                disk.key(),
                "-",
                "writer alone",
                ""
            )?;
            for rate in RATES {
                self.print_rate(out, disk, rate)?;
            }
        }
        writeln!(out)
    }

    fn print_rate(&self, out: &mut impl Write, disk: Disk, rate: u64) -> io::Result<()> {
        let alone = self.reader(disk, rate);
        let times = |o: &Outcome| {
            let [p50, p99, p999] = [500, 990, 999].map(|p| o.read_us(p));
            format!("{p50:9.0} {p99:9.0} {p999:9.0}")
        };
        write!(out, "{:12} {rate:7} {:13} {}", disk.key(), "reader alone", times(alone))?;
        if !disk.rates().contains(&rate) {
            return writeln!(out, "  fills the disk alone: not judged");
        }
        writeln!(out)?;
        for throttling in MODES {
            let o = self.both(disk, rate, throttling);
            let ratio = |p| self.ratio(disk, rate, throttling, p);
            writeln!(
                out,
                "{:12} {rate:7} {:13} {} {:7.2} {:7.2} {:9.0} {:9.1} {:6.3}",
                disk.key(),
                throttling.name(),
                times(o),
                ratio(990),
                ratio(999),
                o.early_max_us(),
                o.mb_per_s(),
                self.share(disk, rate, throttling)
            )?;
        }
        Ok(())
    }

    fn print_goals(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Goals (our law; `beyond`: more than was asked for)")?;
        for goal in self.goals() {
            let Goal { what, figure, bound, at_most, beyond } = &goal;
            let sign = if *at_most { "<=" } else { ">=" };
            let met = if goal.is_met() { "met" } else { "MISSED" };
            let beyond = if *beyond { ", beyond" } else { "" };
            writeln!(out, "{what:52} {figure:8.3} {sign} {bound:5.2}  {met}{beyond}")?;
        }
        writeln!(out)
    }

    /// The last line.
    pub fn json(&self) -> Value {
        let mut keys = Map::new();
        let mut put = |key: String, figure: f64, unit: f64| {
            keys.insert(key, json!((figure * unit).round() / unit));
        };
        let qd1 = Disk::Lone { queue_depth: 1 };
        let no_rule = self.lone(qd1, Throttling::NoRule).seconds();
        put("qd1_writer_alone_norule_s".to_owned(), no_rule, 1e3);
        let depths = DEPTHS.map(|queue_depth| Disk::Lone { queue_depth });
        for disk in depths.into_iter().chain(Disk::SHARED) {
            let names = [
                (Throttling::Off, "off"),
                (Throttling::Kernel, "kernel"),
                (Throttling::Tail, "on"),
            ];
            for (throttling, name) in names {
                let seconds = self.lone(disk, throttling).seconds();
                put(format!("{}_writer_alone_{name}_s", disk.key()), seconds, 1e3);
            }
        }
        for disk in Disk::SHARED {
            for &rate in disk.rates() {
                let mut prefixes = vec![format!("{}_{rate}", disk.key())];
                if rate == main_rate(disk) {
                    prefixes.push(disk.key());
                }
                for prefix in prefixes {
                    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p999", 999)] {
                        let mut read = |who, o: &Outcome| {
                            let key = format!("{prefix}_read_{name}_{who}_us");
                            put(key, o.read_us(per_mille), 10.0);
                        };
                        read("alone", self.reader(disk, rate));
                        read("off", self.both(disk, rate, Throttling::Off));
                        read("kernel", self.both(disk, rate, Throttling::Kernel));
                        read("on", self.both(disk, rate, Throttling::Tail));
                    }
                    for (throttling, name) in [
                        (Throttling::Off, "off"),
                        (Throttling::Kernel, "kernel"),
                        (Throttling::Tail, "on"),
                    ] {
                        let share = self.share(disk, rate, throttling);
                        put(format!("{prefix}_writer_share_{name}"), share, 1e4);
                    }
                }
            }
        }
        let missed = self.goals().into_iter().filter(|goal| !goal.is_met() && !goal.beyond);
        let missed: Vec<String> = missed.map(|goal| goal.what).collect();
        keys.insert("missed".to_owned(), json!(missed));
        Value::Object(keys)
    }
}
