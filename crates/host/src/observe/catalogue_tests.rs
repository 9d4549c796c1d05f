// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The catalogue of all metrics, from the tables of the program: the manual, `docs/metrics.md`, is
//! made from it, and pinned. To accept a change: `MILLPOND_UPDATE_DOCS=1 cargo test -p host --lib`.
use std::path::Path;

use block::attr::{Attr, Metric, Spec, metric_specs};

use super::families::sentence;
use super::tables;
use crate::targets::manuals;

/// What is known of a metric without a daemon.
#[derive(Clone)]
struct MetricInfo {
    /// Its full name.
    name: String,
    /// `counter`, `gauge` or `histogram`.
    kind: &'static str,
    labels: &'static [&'static str],
    help: String,
}

/// All metrics by what they are of, with a title for each group.
fn metrics() -> Vec<(String, Vec<MetricInfo>)> {
    fn table<T>(
        prefix: &str,
        labels: &'static [&'static str],
        table: &'static [Attr<T>],
    ) -> Vec<MetricInfo> {
        infos(prefix, labels, metric_specs(table))
    }
    let device: &'static [&'static str] = &["device"];
    let build_info = infos(tables::MILLPOND, &["version"], vec![&tables::BUILD_INFO]);
    let process = table(tables::PROCESS_PREFIX, &[], &tables::PROCESS);
    let of_device = table(tables::DEVICE_PREFIX, device, &tables::DEVICE);
    let timed: &'static [&'static str] = &["device", "op", "le"];
    let durations = infos(tables::MILLPOND, timed, vec![&tables::REQUEST_DURATION]);
    let leaf_durations = infos(tables::LEAF_PREFIX, timed, vec![&tables::LEAF_DURATION]);
    let of_disks = table(tables::UBLK_PREFIX, &[], &tables::UBLK);
    let of_cores = table(tables::UBLK_PREFIX, &["core"], &tables::UBLK_CORE);
    let unsaved = table(tables::DEVICE_PREFIX, device, &tables::UNSAVED);
    let mut all = vec![
        ("The daemon".to_owned(), [build_info, process].concat()),
        ("The NBD server".to_owned(), table(tables::NBD_PREFIX, &[], &tables::NBD)),
        ("The FUSE export".to_owned(), table(tables::FUSE_PREFIX, &[], &tables::FUSE)),
        ("Block devices of the kernel".to_owned(), [of_disks, of_cores].concat()),
        ("Mapped devices".to_owned(), [of_device, durations].concat()),
        ("Mapped devices with a write cache".to_owned(), unsaved),
    ];
    for manual in manuals() {
        let specs = (manual.metrics)();
        if !specs.is_empty() {
            let prefix = format!("{}_{}", tables::MILLPOND, manual.name);
            let title = format!("Target `{}`: {}", manual.name, manual.about);
            all.push((title, infos(&prefix, device, specs)));
        }
    }
    let leaves = table(tables::LEAF_PREFIX, device, &tables::LEAF);
    all.push(("Leaves".to_owned(), [leaves, leaf_durations].concat()));
    let throttle = table(tables::WBT_PREFIX, device, &tables::WBT);
    all.push(("Leaves with a throttle of writeback".to_owned(), throttle));
    all
}

fn infos(
    prefix: &str,
    labels: &'static [&'static str],
    specs: Vec<&'static Spec>,
) -> Vec<MetricInfo> {
    let info = |spec: &'static Spec| {
        let metric = spec.metric.unwrap_or(Metric::GAUGE);
        let name = metric.full_name(prefix, spec.name);
        MetricInfo { name, kind: metric.kind.word(), labels, help: sentence(spec.help) }
    };
    specs.into_iter().map(info).collect()
}

#[test]
fn every_metric_has_one_name_with_its_unit() {
    let all: Vec<MetricInfo> = metrics().into_iter().flat_map(|(_, group)| group).collect();
    for (nth, metric) in all.iter().enumerate() {
        let name = &metric.name;
        let first = all.iter().position(|other| other.name == *name);
        assert_eq!(first, Some(nth), "{name} is there twice");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit()));
        assert_eq!(metric.kind == "counter", name.ends_with("_total"), "{name}");
        for unit in ["_us", "_usec", "_ms", "_ns", "_kb", "_microseconds", "_per_s"] {
            let unit_word = format!("{unit}_");
            assert!(!name.ends_with(unit) && !name.contains(&unit_word), "{name}: {unit}");
        }
    }
}

/// What stands before the tables.
const HEAD: &str = include_str!("metrics_manual.md");

#[test]
fn the_manual_of_the_metrics_is_pinned() {
    let mut page = HEAD.to_owned();
    for (title, metrics) in metrics() {
        page.push_str(&format!("\n### {title}\n\n| metric | kind | labels | meaning |\n"));
        page.push_str("|---|---|---|---|\n");
        for metric in metrics {
            let labels = metric.labels.join(", ");
            let (name, kind, help) = (&metric.name, metric.kind, &metric.help);
            page.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("MILLPOND_UPDATE_DOCS").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap() == page, "docs/metrics.md differs:\n{page}");
}
