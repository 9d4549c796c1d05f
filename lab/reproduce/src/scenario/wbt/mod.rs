// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling: a lone writer, and a reader at a fixed rate with a buffered writer; off,
//! with the kernel's algorithm, and with the one that limits the tail of the reads.
//!
//! ```text
//!   local   on a file of this machine, all loads in turns, several rounds
//!   models  on models of disks in virtual time, one run of each kind
//! ```
pub mod local;
pub mod models;

use crate::mixed_load::Sample;
use crate::report::{Basis, Direction, Kind, Plot, Row, Series};
use crate::wbt_sim::Throttling;

/// Seconds of the published lone writer: throttling off, and with one request in flight.
const PUBLISHED_S: (f64, f64) = (87.5, 101.8);
/// Off comes first: the others are compared with it.
const MODES: [Throttling; 3] = [Throttling::Off, Throttling::Kernel, Throttling::Tail];
/// Quantiles that are shown, in thousandths.
const PER_MILLE: [(usize, &str); 5] =
    [(500, "p50"), (900, "p90"), (990, "p99"), (999, "p99.9"), (1000, "max")];
/// Quantiles that have keys.
const KEYS_PER_MILLE: [(usize, &str); 3] = [(500, "p50"), (990, "p99"), (999, "p999")];

/// The part of a key; the default algorithm is called `on`.
fn key(mode: Throttling) -> &'static str {
    match mode {
        Throttling::Off => "off",
        Throttling::NoRule => "norule",
        Throttling::Kernel => "kernel",
        Throttling::Tail => "on",
    }
}

/// Figures of a reader and a writer at the same time, one for each round.
struct MixedFigures {
    /// The end of the names of the rows.
    of: String,
    /// One list for each of [`MODES`].
    read_p99_us: [Vec<f64>; MODES.len()],
    written: [Vec<f64>; MODES.len()],
    reader_alone_p99_us: f64,
    writer_alone: f64,
    /// The unit of the writer's figures.
    unit: &'static str,
    basis: Basis,
}

impl MixedFigures {
    /// Two rows for each algorithm: the reads and the writer, off and on.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let laws = MODES.into_iter().zip(&self.read_p99_us).zip(&self.written).skip(1);
        for ((law, read_p99_us), written) in laws {
            let of = if law == Throttling::Kernel { ", kernel's law" } else { "" };
            let of = format!("{}{of}", self.of);
            let row = |what: &str, off: &[f64], on: &[f64], unit, better| {
                let unit = (unit, better, self.basis);
                Row::new(format!("{what}{of}"), ("off", off), (key(law), on), unit)
            };
            let off_us = &self.read_p99_us[0];
            let reads = row(
                "read p99 beside a writer",
                off_us,
                read_p99_us,
                "us",
                Direction::LowerIsBetter,
            );
            rows.push(reads.limit("the reader alone", self.reader_alone_p99_us));
            let writer =
                row("that writer", &self.written[0], written, self.unit, Direction::HigherIsBetter);
            rows.push(writer.limit("the writer alone", self.writer_alone));
        }
        rows
    }
}

/// A plot of the percentiles of some readers.
fn latencies(of: &str, readers: Vec<(&str, [f64; PER_MILLE.len()])>) -> Plot {
    let bars = |us: [f64; PER_MILLE.len()]| (0..us.len()).map(move |at| (at as f64, us[at] / 1e3));
    let series = readers.into_iter().map(|(name, us)| Series::new(name, bars(us)));
    Plot {
        id: format!("read-latency-{of}"),
        title: format!("Read latency beside a writer, {of}"),
        x: "percentile of reads",
        y: "milliseconds",
        kind: Kind::Bars,
        is_log: true,
        labels: PER_MILLE.map(|(_, label)| label.to_owned()).to_vec(),
        series: series.collect(),
        marks: Vec::new(),
    }
}

/// The limit in KiB; NaN if there is none.
fn kib(sample: &Sample) -> f64 {
    if sample.bytes == u64::MAX { f64::NAN } else { sample.bytes as f64 / 1024.0 }
}

/// Plots of step, depth and byte limit of the throttle over time.
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
        marks: Vec::new(),
    };
    [
        plot("step", "scale step", series(|s| f64::from(s.step))),
        plot("depth", "requests of writeback in flight, at most", series(|s| f64::from(s.depth))),
        plot("bytes", "KiB of writeback in flight beside reads, at most", series(kib)),
    ]
}
