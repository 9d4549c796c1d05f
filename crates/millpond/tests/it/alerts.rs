// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The alerts for Prometheus, and the manual of the metrics: checked by promtool, and against the
//! metrics of a daemon with every kind of device.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::common::{Daemon, sh};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus")
}

fn promtool(args: &[&str], file: &str) {
    let path = folder().join(file);
    let args = [args, &[path.to_str().unwrap()]].concat();
    let output = sh("promtool", &args);
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn the_alerts_are_valid_rules() {
    promtool(&["check", "rules"], "alerts.yml");
}

#[test]
fn the_alerts_fire_when_they_should_and_only_then() {
    promtool(&["test", "rules"], "alerts_test.yml");
}

/// Names of metrics in a text, without the ends that histograms have.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|w| w.starts_with("millpond_") || w.starts_with("process_"));
    ours.map(|word| word.trim_end_matches("_bucket").to_owned()).collect()
}

/// The metrics of a daemon that has every kind of device and clients by NBD.
fn exported() -> BTreeSet<String> {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 4));
    daemon.create("wc", &format!("0 8192 writecache s {origin} {cache} 4096 2 max_age 1h"));
    daemon.create("buf", "0 2048 buffered mem:1M");
    daemon.create("z", "0 2048 zram lz4");
    for device in ["wc", "buf", "z"] {
        assert_eq!(daemon.qemu_io(device, &["write 0 64k", "flush"]).code, Some(0));
    }
    let (_, text) = daemon.curl("GET", "/metrics", &[]);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_alerts_is_exported() {
    let rules = std::fs::read_to_string(folder().join("alerts.yml")).unwrap();
    let (asked, exported) = (names(&rules), exported());
    assert!(asked.len() > 10, "{asked:?}");
    let missing: Vec<&String> = asked.difference(&exported).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_manual_lists_every_metric_that_is_exported() {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let listed = names(&std::fs::read_to_string(manual).unwrap());
    let missing: Vec<String> = exported().difference(&listed).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}
