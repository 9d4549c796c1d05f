// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One direction of a run, reading or writing, as fio prints it.
use std::fmt::Write;

use block::Nanos;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// The percentiles that are printed, as fio names them.
const PERCENTILES: [(&str, f64); 6] = [
    ("50.000000", 0.5),
    ("90.000000", 0.9),
    ("95.000000", 0.95),
    ("99.000000", 0.99),
    ("99.900000", 0.999),
    ("99.990000", 0.9999),
];

/// Rates of one direction, of one job or of all.
pub(crate) struct Side<'a> {
    pub(crate) ios: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Nanos,
    pub(crate) latency_ns: &'a Histogram<u64>,
}

impl Side<'_> {
    fn seconds(&self) -> f64 {
        (self.elapsed.0.max(1)) as f64 / 1e9
    }

    fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds()
    }

    fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds()
    }

    pub(crate) fn json(&self) -> Value {
        let l = self.latency_ns;
        let some = !l.is_empty();
        let percentile = PERCENTILES.map(|(name, q)| (name.into(), json!(l.value_at_quantile(q))));
        let percentile: Map<String, Value> = percentile.into_iter().filter(|_| some).collect();
        json!({
            "io_bytes": self.bytes,
            "io_kbytes": self.bytes >> 10,
            "bw_bytes": self.bytes_per_s().round(),
            "bw": (self.bytes_per_s() / 1024.0).round(),
            "iops": self.iops(),
            "runtime": self.elapsed.0 / 1_000_000,
            "runtime_ns": self.elapsed.0,
            "total_ios": self.ios,
            "clat_ns": {
                "min": if some { l.min() } else { 0 },
                "max": l.max(),
                "mean": if some { l.mean() } else { 0.0 },
                "stddev": if some { l.stdev() } else { 0.0 },
                "N": l.len(),
                "percentile": percentile,
            },
        })
    }

    pub(crate) fn text(&self, out: &mut String, name: &str) {
        let (mib, mb) = (self.bytes_per_s() / f64::from(1 << 20), self.bytes_per_s() / 1e6);
        let moved = size(self.bytes);
        let ms = self.elapsed.0 / 1_000_000;
        let iops = count(self.iops());
        put(out, format_args!("  {name}: IOPS={iops}, BW={mib:.1}MiB/s ({mb:.1}MB/s)"));
        put(out, format_args!("({moved}/{ms}msec)\n"));
        let l = self.latency_ns;
        if l.is_empty() {
            return;
        }
        let (unit, by) =
            if l.value_at_quantile(0.5) >= 10_000 { ("usec", 1e3) } else { ("nsec", 1.0) };
        let scaled = |ns: u64| ns as f64 / by;
        let (min, max) = (scaled(l.min()), scaled(l.max()));
        let (mean, dev) = (l.mean() / by, l.stdev() / by);
        put(
            out,
            format_args!(
                "    clat ({unit}): min={min:.0}, max={max:.0}, avg={mean:.2}, stdev={dev:.2}, \
                 samples={}\n",
                l.len()
            ),
        );
        put(out, format_args!("    clat percentiles ({unit}):\n     |"));
        for (name, q) in PERCENTILES {
            let value = scaled(l.value_at_quantile(q));
            put(out, format_args!(" {}th=[{value:.0}]", &name[..5]));
        }
        out.push('\n');
    }
}

pub(crate) fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a string takes everything");
}

/// A number with k or M, as fio writes IOPS.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n >= 1e7 => format!("{:.2}M", n / 1e6),
        n if n >= 1e6 => format!("{:.3}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 10.0 * f64::from(1 << 30) => format!("{:.1}GiB", b / f64::from(1 << 30)),
        b if b >= 10.0 * f64::from(1 << 20) => format!("{:.1}MiB", b / f64::from(1 << 20)),
        b => format!("{:.1}KiB", b / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_short() {
        for (n, text) in
            [(999.4, "999"), (12_345.0, "12.3k"), (2.5e6, "2.500M"), (1.234e7, "12.34M")]
        {
            assert_eq!(count(n), text);
        }
    }
}
