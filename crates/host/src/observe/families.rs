// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot in Prometheus' text format.
use std::collections::BTreeMap;
use std::fmt::Write;

use block::attr::{Attr, Metric, MetricKind, Spec};
use block::latency::{BOUNDS, LatencyCounts, bound};
use block::metric::seconds;

use super::process::ProcessFigures;
use super::snapshot::{OPS, Snapshot};
use super::tables;

/// Values of labels by their names.
type Labels<'a> = [(&'static str, &'a str)];

/// One metric with all its samples.
#[derive(Debug)]
struct Family {
    kind: MetricKind,
    help: &'static str,
    /// The samples' lines.
    lines: String,
}

/// All metrics, in the order in which they came.
#[derive(Debug, Default)]
struct Families {
    order: Vec<String>,
    by_name: BTreeMap<String, Family>,
}

/// All metrics now.
pub(crate) fn text(snapshot: &Snapshot) -> String {
    let mut all = Families::default();
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    all.add(tables::MILLPOND, &tables::BUILD_INFO, &version, 1);
    all.add_table(tables::PROCESS_PREFIX, &tables::PROCESS, &[], &ProcessFigures::read());
    all.add_table(tables::NBD_PREFIX, &tables::NBD, &[], &snapshot.nbd);
    if let Some(fuse) = &snapshot.fuse {
        all.add_table(tables::FUSE_PREFIX, &tables::FUSE, &[], fuse);
    }
    if let Some(ublk) = &snapshot.ublk {
        all.add_table(tables::UBLK_PREFIX, &tables::UBLK, &[], ublk);
        for (core, stats) in &ublk.by_core {
            let core = core.0.to_string();
            all.add_table(tables::UBLK_PREFIX, &tables::UBLK_CORE, &[("core", &core)], stats);
        }
    }
    for device in &snapshot.devices {
        let labels = [("device", device.name.as_str())];
        all.add_table(tables::DEVICE_PREFIX, &tables::DEVICE, &labels, device);
        if let Some(unsaved) = &device.unsaved {
            all.add_table(tables::DEVICE_PREFIX, &tables::UNSAVED, &labels, unsaved);
        }
        let duration = (tables::MILLPOND, &tables::REQUEST_DURATION);
        all.add_histograms(duration, &device.name, &device.latencies);
    }
    for engine in &snapshot.engines {
        let prefix = format!("{}_{}", tables::MILLPOND, engine.kind);
        for (spec, value) in &engine.figures {
            all.add(&prefix, spec, &[("device", &engine.device)], *value);
        }
    }
    for leaf in &snapshot.leaves {
        let labels = [("device", leaf.name.as_str())];
        all.add_table(tables::LEAF_PREFIX, &tables::LEAF, &labels, leaf);
        if let Some(latencies) = &leaf.latencies {
            let duration = (tables::LEAF_PREFIX, &tables::LEAF_DURATION);
            all.add_histograms(duration, &leaf.name, latencies);
        }
        if let Some(report) = &leaf.throttle {
            all.add_table(tables::WBT_PREFIX, &tables::WBT, &labels, report);
        }
    }
    all.text()
}

impl Families {
    fn add_table<T>(
        &mut self,
        prefix: &str,
        table: &'static [Attr<T>],
        labels: &Labels<'_>,
        of: &T,
    ) {
        for (spec, value) in block::attr::metrics(table, of) {
            self.add(prefix, spec, labels, value);
        }
    }

    fn add(&mut self, prefix: &str, spec: &'static Spec, labels: &Labels<'_>, value: u64) {
        let metric = spec.metric.unwrap_or(Metric::GAUGE);
        let name = metric.full_name(prefix, spec.name);
        let line = line(&name, labels, &metric.text(value));
        self.family(name, metric.kind, spec.help).lines.push_str(&line);
    }

    /// A histogram for each operation that there was.
    fn add_histograms(
        &mut self,
        (prefix, spec): (&str, &'static Spec),
        device: &str,
        latencies: &[LatencyCounts; OPS.len()],
    ) {
        let name = Metric::HISTOGRAM.full_name(prefix, spec.name);
        let mut lines = String::new();
        for ((_, op), counts) in OPS.iter().zip(latencies).filter(|(_, c)| c.count() > 0) {
            let labels = [("device", device), ("op", op)];
            let mut so_far = 0;
            for (nth, count) in counts.buckets.iter().enumerate() {
                so_far += count;
                let end = if nth < BOUNDS { seconds(bound(nth)) } else { "+Inf".to_owned() };
                let labels = [labels[0], labels[1], ("le", end.as_str())];
                lines.push_str(&line(&format!("{name}_bucket"), &labels, &so_far.to_string()));
            }
            lines.push_str(&line(&format!("{name}_sum"), &labels, &seconds(counts.sum)));
            lines.push_str(&line(&format!("{name}_count"), &labels, &so_far.to_string()));
        }
        self.family(name, MetricKind::Histogram, spec.help).lines.push_str(&lines);
    }

    fn family(&mut self, name: String, kind: MetricKind, help: &'static str) -> &mut Family {
        if !self.by_name.contains_key(&name) {
            self.order.push(name.clone());
        }
        self.by_name.entry(name).or_insert_with(|| Family { kind, help, lines: String::new() })
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for name in &self.order {
            let Family { kind, help, lines } = &self.by_name[name];
            let (help, kind) = (sentence(help), kind.word());
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            out.push_str(lines);
        }
        out
    }
}

fn line(name: &str, labels: &Labels<'_>, value: &str) -> String {
    if labels.is_empty() {
        return format!("{name} {value}\n");
    }
    let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
    format!("{name}{{{}}} {value}\n", labels.collect::<Vec<_>>().join(","))
}

/// A help text as a sentence.
pub(super) fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let out = line("n_total", &[("device", "/a\"b\\c\nd"), ("op", "read")], "7");
        assert_eq!(out, "n_total{device=\"/a\\\"b\\\\c\\nd\",op=\"read\"} 7\n");
    }

    #[test]
    fn buckets_of_histograms_count_all_shorter_times_too() {
        let latencies = block::latency::Latencies::default();
        for ns in [10, 20_000, 1 << 40] {
            latencies.record(block::Op::Write, block::Nanos(ns));
        }
        let mut all = Families::default();
        let counts = OPS.map(|(op, _)| latencies.counts(op));
        all.add_histograms(("p", &tables::REQUEST_DURATION), "d", &counts);
        let text = all.text();
        let name = "p_request_duration_seconds";
        for (end, count) in
            [("0.000016384", 1), ("0.000032768", 2), ("17.179869184", 2), ("+Inf", 3)]
        {
            let want = format!("{name}_bucket{{device=\"d\",op=\"write\",le=\"{end}\"}} {count}");
            assert!(text.lines().any(|line| line == want), "no {want} in {text}");
        }
        let labels = "{device=\"d\",op=\"write\"}";
        assert!(text.contains(&format!("{name}_sum{labels} 1099.511647786\n")), "{text}");
        assert!(text.contains(&format!("{name}_count{labels} 3\n")), "{text}");
        assert!(!text.contains("op=\"read\""), "{text}");
    }

    #[test]
    fn samples_of_one_metric_stand_together() {
        let mut all = Families::default();
        for device in ["a", "b"] {
            all.add("p", &tables::BUILD_INFO, &[("device", device)], 1);
            all.add("q", &tables::BUILD_INFO, &[("device", device)], 2);
        }
        let text = all.text();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let of = |prefix, device| format!("{prefix}_build_info{{device=\"{device}\"}}");
        let names = [("p", "a", 1), ("p", "b", 1), ("q", "a", 2), ("q", "b", 2)];
        assert_eq!(lines, names.map(|(prefix, device, n)| format!("{} {n}", of(prefix, device))));
    }
}
