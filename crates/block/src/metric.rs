// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the numbers of attributes are named and written in Prometheus' format: base units, times in
//! seconds, `_total` behind what only grows.
use crate::Nanos;
use crate::value::TimeUnit;

/// How a number develops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts of times, by how long they were.
    Histogram,
}

impl MetricKind {
    /// The format's word.
    pub const fn word(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// How the number of an attribute is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// How it develops.
    pub kind: MetricKind,
    /// Its name, where that is not the attribute's.
    name: Option<&'static str>,
    /// The unit of a time, which is exported in seconds.
    time: Option<TimeUnit>,
}

impl Metric {
    /// A counter with the attribute's name and unit.
    pub const COUNTER: Metric = Metric { kind: MetricKind::Counter, name: None, time: None };
    /// A gauge with the attribute's name and unit.
    pub const GAUGE: Metric = Metric { kind: MetricKind::Gauge, name: None, time: None };
    /// A histogram with the attribute's name.
    pub const HISTOGRAM: Metric = Metric { kind: MetricKind::Histogram, name: None, time: None };

    /// The same with a name of its own.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Metric {
        Metric { name: Some(name), ..self }
    }

    /// The same for a time, which the attribute has in `unit`.
    #[must_use]
    pub const fn of_time(self, unit: TimeUnit) -> Metric {
        Metric { time: Some(unit), ..self }
    }

    /// The full name of the metric of an attribute: `PREFIX_NAME`.
    pub fn full_name(&self, prefix: &str, attribute: &str) -> String {
        let name = self.name.unwrap_or(attribute);
        let end = if self.kind == MetricKind::Counter { "_total" } else { "" };
        format!("{prefix}_{name}{end}")
    }

    /// A value as the format has it.
    pub fn text(&self, value: u64) -> String {
        match self.time {
            Some(unit) => seconds(Nanos(value.saturating_mul(unit.one().0))),
            None => value.to_string(),
        }
    }
}

/// A time in seconds, exactly.
pub fn seconds(time: Nanos) -> String {
    let (whole, rest) = (time.0 / 1_000_000_000, time.0 % 1_000_000_000);
    let digits = format!("{whole}.{rest:09}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_units_and_total() {
        let reads = Metric::COUNTER.full_name("millpond_zram", "bd_reads");
        assert_eq!(reads, "millpond_zram_bd_reads_total");
        assert_eq!(Metric::GAUGE.full_name("process", "open_fds"), "process_open_fds");
        let paused = Metric::COUNTER.named("paused_seconds").of_time(TimeUnit::Microsecond);
        assert_eq!(paused.full_name("b", "paused_usec"), "b_paused_seconds_total");
        assert_eq!(paused.text(1_500_000), "1.5");
    }

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in
            [(0, "0"), (1, "0.000000001"), (16_384, "0.000016384"), (3_000_000_000, "3")]
        {
            assert_eq!(seconds(Nanos(ns)), text);
        }
    }
}
