// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling: a lone writer, and a reader by the clock beside a buffered writer.
use std::path::Path;

use super::{GIB, MIB, ROUNDS, Told, mib};
use crate::beside_local::{Local, Sample, While};
use crate::median::median;
use crate::report::{Better, Decides, Kind, Plot, Row, Section, Series};
use crate::unnamed;
use crate::wbt_sim::{
    Case, Disk, LONE_BYTES, Load, Outcome, Throttling, Writer, alone_ns, beside_ns, lone_bytes,
    main_rate, run_watched,
};

/// What the published lone writer took off, and with one request in flight.
const PUBLISHED_S: (f64, f64) = (87.5, 101.8);
const DISKS: [Disk; 3] = [Disk::Hdd, Disk::Sata, Disk::Nvme];
/// Shown of each distribution, in thousandths.
const PER_MILLE: [(usize, &str); 5] =
    [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9"), (1000, "max")];
/// Reads a second on this machine's disk.
const RATE: f64 = 500.0;
/// Seconds of each load on it: those that do not count, and those that do.
const TIME: (f64, f64) = (0.7, 2.0);

/// Percentiles of some readers as bars.
fn latencies(of: &str, readers: Vec<(&str, [f64; PER_MILLE.len()])>) -> Plot {
    let bars = |us: [f64; PER_MILLE.len()]| (0..us.len()).map(move |at| (at as f64, us[at]));
    let series = readers.into_iter().map(|(name, us)| Series::new(name, bars(us)));
    Plot {
        id: format!("read-latency-{of}"),
        title: format!("Read latency beside a writer, {of}"),
        x: "percentile of reads",
        y: "microseconds",
        kind: Kind::Bars,
        is_log: true,
        labels: PER_MILLE.map(|(_, label)| label.to_owned()).to_vec(),
        series: series.collect(),
    }
}

/// The limit of bytes; not a number where there is none.
fn kib(sample: &Sample) -> f64 {
    if sample.bytes == u64::MAX { f64::NAN } else { sample.bytes as f64 / 1024.0 }
}

/// Scale step and depth of the throttle over time.
fn throttle(of: &str, laws: &[(&str, &[Sample])]) -> [Plot; 3] {
    let series = |figure: fn(&Sample) -> f64| {
        let one = move |(name, samples): &(&str, &[Sample])| {
            Series::new(*name, samples.iter().map(|s| (s.at_ns as f64 / 1e9, figure(s))))
        };
        laws.iter().map(one).collect()
    };
    let plot = |what: &str, y, series| Plot {
        id: format!("wbt-{what}-{of}"),
        title: format!("Throttle over time: {what}, {of}"),
        x: "seconds",
        y,
        kind: Kind::Steps,
        is_log: false,
        labels: Vec::new(),
        series,
    };
    [
        plot("step", "scale step", series(|s| f64::from(s.step))),
        plot("depth", "requests of writeback in flight, at most", series(|s| f64::from(s.depth))),
        plot("bytes", "KiB of writeback in flight beside reads, at most", series(kib)),
    ]
}

pub(super) fn simulated(size: u64, told: Told<'_>) -> Result<Section, String> {
    let divisor = (LONE_BYTES / size).clamp(1, 64);
    let bytes = lone_bytes(divisor);
    // Four lone writers on the published disk; seven runs on each other one.
    let steps = (4 + 7 * DISKS.len()) as f64;
    let mut done = 0.0;
    let mut go = |disk: Disk, throttling: Throttling, load, told: Told<'_>| {
        let kind = match load {
            Load::Lone { .. } => "lone writer",
            Load::Beside { writer: false, .. } => "reader alone",
            Load::Beside { reads_per_s: None, .. } => "writer alone",
            Load::Beside { .. } => "reader beside a writer",
        };
        told(done / steps, &format!("{kind}, {}, wbt {}", disk.key(), throttling.name()));
        done += 1.0;
        let case = Case { disk, throttling, writer: Writer::Buffered, load };
        run_watched(case, true).map_err(|e| format!("{kind}, {}: {e}", disk.key()))
    };
    let mut section = Section { name: "wbt", ..Section::default() };
    let (less, lone) = (("s", Better::Less, Decides::Model), Load::Lone { bytes });

    let qd1 = Disk::Lone { queue_depth: 1 };
    let modes = [Throttling::Off, Throttling::NoRule, Throttling::Kernel, Throttling::Tail];
    let mut qd1_s = Vec::new();
    for mode in modes {
        qd1_s.push(go(qd1, mode, lone, told)?.seconds());
    }
    let [off_s, no_rule_s, kernel_s, on_s] = qd1_s[..] else { unreachable!("four modes") };
    section.rows.push(
        Row::new("lone writer, depth 1", ("no rule", &[no_rule_s]), ("on", &[on_s]), less)
            .published(PUBLISHED_S.1 / PUBLISHED_S.0)
            .limit("the same, off", off_s),
    );
    section.put("qd1_writer_alone_off_s", off_s);
    section.put("qd1_writer_alone_norule_s", no_rule_s);
    section.put("qd1_writer_alone_kernel_s", kernel_s);
    section.put("qd1_writer_alone_on_s", on_s);

    for disk in DISKS {
        let (key, rate) = (disk.key(), main_rate(disk));
        let beside = |writer, reads_per_s: Option<u64>| {
            let for_ns =
                if reads_per_s.is_some() { beside_ns(rate, divisor) } else { alone_ns(divisor) };
            Load::Beside { writer, reads_per_s, for_ns }
        };
        let lone_off = go(disk, Throttling::Off, lone, told)?;
        let lone_on = go(disk, Throttling::Tail, lone, told)?;
        let writer = go(disk, Throttling::Off, beside(true, None), told)?;
        let reader = go(disk, Throttling::Off, beside(false, Some(rate)), told)?;
        let both = beside(true, Some(rate));
        let off = go(disk, Throttling::Off, both, told)?;
        let kernel = go(disk, Throttling::Kernel, both, told)?;
        let on = go(disk, Throttling::Tail, both, told)?;

        let p99 = |o: &Outcome| o.read_us(990);
        section.rows.push(
            Row::new(
                format!("read p99 beside a writer, {key}"),
                ("off", &[p99(&off)]),
                ("on", &[p99(&on)]),
                ("us", Better::Less, Decides::Model),
            )
            .limit("the reader alone", p99(&reader)),
        );
        section.rows.push(
            Row::new(
                format!("that writer, {key}"),
                ("off", &[off.mb_per_s()]),
                ("on", &[on.mb_per_s()]),
                ("MB/s", Better::More, Decides::Model),
            )
            .limit("the writer alone", writer.mb_per_s()),
        );
        section.put(format!("{key}_writer_alone_off_s"), lone_off.seconds());
        section.put(format!("{key}_writer_alone_on_s"), lone_on.seconds());
        let who = [("alone", &reader), ("off", &off), ("kernel", &kernel), ("on", &on)];
        for (name, outcome) in who {
            section.put(format!("{key}_read_p99_{name}_us"), p99(outcome));
        }
        section.put(format!("{key}_writer_share_on"), on.mb_per_s() / writer.mb_per_s());
        let all = |o: &Outcome| PER_MILLE.map(|(n, _)| o.read_us(n));
        let readers = who.map(|(name, o)| (name, all(o))).to_vec();
        section.plots.push(latencies(&key, readers));
        let laws = [("kernel", &kernel.samples[..]), ("on", &on.samples[..])];
        section.plots.extend(throttle(&key, &laws));
    }
    section.notes.push(format!(
        "lone writer of {:.2} GB; published: {} s off, {} s with one request in flight; reads \
         took 1 to 2 s beside a writer, then tens of milliseconds. `on` is our law, by the tail \
         of the reads; {} reads a second on hdd, {} on the others",
        bytes as f64 / 1e9,
        PUBLISHED_S.0,
        PUBLISHED_S.1,
        main_rate(Disk::Hdd),
        main_rate(Disk::Nvme),
    ));
    Ok(section)
}

/// What was seen of one mode in the rounds.
#[derive(Default)]
struct Seen {
    alone_mib_per_s: Vec<f64>,
    beside_mib_per_s: Vec<f64>,
    reads: Vec<[f64; PER_MILLE.len()]>,
    samples: Vec<Sample>,
}

fn read_us(of: &While) -> Result<[f64; PER_MILLE.len()], String> {
    let all = of.latency_ns.as_ref().filter(|h| !h.is_empty()).ok_or("nothing was read")?;
    Ok(PER_MILLE.map(|(n, _)| all.value_at_quantile(n as f64 / 1e3) as f64 / 1e3))
}

fn written(of: &While) -> Result<f64, String> {
    let bytes = of.written_bytes_per_s.filter(|b| *b > 0.0).ok_or("nothing was written")?;
    Ok(bytes / MIB as f64)
}

pub(super) fn real(dir: &Path, size: u64, told: Told<'_>) -> Result<Section, String> {
    let bytes = 4 * size;
    told(0.0, "making files");
    let file = unnamed::make(dir, bytes).map_err(|e| format!("{}: {e}", dir.display()))?;
    let memory_mib = (size / MIB).clamp(16, 256);
    let local = Local::new(&unnamed::path(&file), bytes, memory_mib)?;
    let modes = [("off", "0"), ("on", "-1")];
    let steps = (ROUNDS * (1 + 2 * modes.len())) as f64;
    let mut nth = 0.0;
    let mut go = |what: &str, rate: Option<f64>, writes, told: Told<'_>| {
        told(nth / steps, what);
        nth += 1.0;
        local.run(rate, writes, TIME, 0x9e37_79b9 + nth as u64)
    };
    let (mut alone, mut seen) = (Vec::new(), [Seen::default(), Seen::default()]);
    for round in 0..ROUNDS {
        alone.push(read_us(&go("reader alone", Some(RATE), false, told)?)?);
        for turn in 0..modes.len() {
            let at = (turn + round) % modes.len();
            let (name, value) = modes[at];
            local.set("queue/wbt_lat_usec", value)?;
            let lone = go(&format!("writer alone, wbt {name}"), None, true, told)?;
            let both = go(&format!("reader beside a writer, wbt {name}"), Some(RATE), true, told)?;
            seen[at].alone_mib_per_s.push(written(&lone)?);
            seen[at].beside_mib_per_s.push(written(&both)?);
            seen[at].reads.push(read_us(&both)?);
            seen[at].samples = both.samples;
        }
    }
    let [off, on] = &seen;
    let of = |rounds: &[[f64; PER_MILLE.len()]], at: usize| -> Vec<f64> {
        rounds.iter().map(|us| us[at]).collect()
    };
    let p99 = |rounds: &[[f64; PER_MILLE.len()]]| of(rounds, 2);
    let seconds =
        |rates: &[f64]| -> Vec<f64> { rates.iter().map(|mib| GIB / (mib * MIB as f64)).collect() };
    let more = ("MiB/s", Better::More, Decides::Disk);
    let (off_s, on_s) = (seconds(&off.alone_mib_per_s), seconds(&on.alone_mib_per_s));
    let mut section = Section { name: "wbt", ..Section::default() };
    section.rows = vec![
        Row::new(
            "lone writer, a GiB",
            ("off", &off_s),
            ("on", &on_s),
            ("s", Better::Less, Decides::Disk),
        )
        .published(PUBLISHED_S.0 / PUBLISHED_S.1)
        .limit("the same, off", median(&off_s)),
        Row::new(
            "read p99 beside a writer",
            ("off", &p99(&off.reads)),
            ("on", &p99(&on.reads)),
            ("us", Better::Less, Decides::Disk),
        )
        .limit("the reader alone", median(&p99(&alone))),
        Row::new("that writer", ("off", &off.beside_mib_per_s), ("on", &on.beside_mib_per_s), more)
            .limit("the writer alone", median(&off.alone_mib_per_s)),
    ];
    section.put("disk_writer_alone_off_s", median(&off_s));
    section.put("disk_writer_alone_on_s", median(&on_s));
    let share = median(&on.beside_mib_per_s) / median(&on.alone_mib_per_s);
    section.put("disk_writer_share_on", share);
    let readers = [("alone", &alone), ("off", &off.reads), ("on", &on.reads)];
    for (name, rounds) in readers {
        section.put(format!("disk_read_p99_{name}_us"), median(&p99(rounds)));
    }
    let middle =
        |rounds: &[[f64; PER_MILLE.len()]]| std::array::from_fn(|at| median(&of(rounds, at)));
    let bars = readers.map(|(name, rounds)| (name, middle(rounds))).to_vec();
    section.plots.push(latencies("this disk", bars));
    section.plots.extend(throttle("this disk", &[("on", &on.samples)]));
    section.notes.push(format!(
        "a file of {}; {RATE} reads of 4 KiB a second beside a buffered writer; {ROUNDS} rounds, \
         each load {} s; published: what throttling took of a lone writer at depth 1",
        mib(bytes),
        TIME.1
    ));
    Ok(section)
}
