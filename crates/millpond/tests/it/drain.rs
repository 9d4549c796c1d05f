// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond drain` against a running daemon: it writes everything back, can be stopped by a signal
//! and continued, and reports what is left.

use std::process::{Command, Stdio};

use crate::common::{self, Daemon};

const MIB: usize = 1 << 20;

/// A write cache with a MiB of dirty blocks, which are written back one by one, and its origin.
fn dirty(daemon: &Daemon) -> String {
    let (origin, cache) = (daemon.file("origin.img", 16), daemon.file("cache.img", 16));
    daemon.create(
        "wc",
        &format!("0 32768 writecache s {origin} {cache} 4096 2 writeback_io_bytes 4096"),
    );
    daemon.qemu_io("wc", &["write -P 0x5a 0 1M", "flush"]).ok();
    assert_eq!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "256\n");
    origin
}

fn assert_drained(daemon: &Daemon, origin: &str) {
    assert_eq!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n");
    let bytes = std::fs::read(origin).unwrap_or_else(|e| panic!("{origin}: {e}"));
    assert!(bytes[..MIB].iter().all(|b| *b == 0x5a), "the origin does not hold what was written");
}

#[test]
fn a_drain_writes_everything_back_within_its_time() {
    let daemon = Daemon::start();
    let origin = dirty(&daemon);
    let text = daemon.cli(&["drain", "wc", "--within", "3s", "--p99", "50ms", "-o", "json"]).ok();
    let text: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&text["device"], &text["drained"]), (&"wc".into(), &true.into()));
    assert_drained(&daemon, &origin);
    daemon.cli(&["drain", "wc"]).ok(); // nothing is left
    let error = daemon.cli(&["drain", "nope"]).failed(3);
    assert!(error.contains("nope"), "{error}");
    let error = daemon.cli(&["drain", "wc", "--rate", "0"]).failed(2);
    assert!(error.contains("positive number of bytes"), "{error}");
    // The log has how long each took.
    daemon.signal("-TERM");
    let (_, log, _) = daemon.wait();
    let ends: Vec<&str> = log.lines().filter(|line| line.contains("command has ended")).collect();
    assert_eq!(ends.len(), 2, "{log}");
    for end in ends {
        let (_, seconds) = end.split_once(" seconds=").unwrap_or_else(|| panic!("{end}"));
        let seconds = seconds.split_whitespace().next().unwrap().trim_matches('"');
        assert!(seconds.parse::<f64>().is_ok_and(|s| s < 60.0), "{end}");
    }
}

#[test]
fn a_stopped_drain_reports_the_rest_and_can_be_started_again() {
    let daemon = Daemon::start();
    let origin = dirty(&daemon);
    // At this rate it takes 256 seconds.
    let run_dir = daemon.run_dir();
    let mut slow = Command::new(common::MILLPOND);
    slow.arg("--run-dir").arg(&run_dir).args(["drain", "wc", "--rate", "4K"]);
    let slow = slow.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !daemon.cli(&["get", "wc", "drain_state"]).ok().starts_with("running") {
        assert_ne!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n", "it was not slow");
    }
    let busy = daemon.cli(&["drain", "wc"]).failed(4);
    assert!(busy.contains("a drain is running"), "{busy}");
    common::sh("kill", &["-INT", &slow.id().to_string()]).ok();
    let slow = slow.wait_with_output().unwrap();
    let error = String::from_utf8(slow.stderr).unwrap();
    assert_eq!(slow.status.code(), Some(1), "{error}");
    assert!(error.contains("drain stopped") && error.contains("of 256 blocks are left"), "{error}");
    assert_eq!(daemon.cli(&["get", "wc", "drain_state"]).ok(), "idle\n");
    assert_ne!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n");
    daemon.cli(&["drain", "wc"]).ok();
    assert_drained(&daemon, &origin);
}

#[test]
fn a_drain_outlives_its_client_and_another_can_stop_it() {
    let daemon = Daemon::start();
    dirty(&daemon);
    let put = |value: &str, limit: &str| {
        let body = format!("{{\"value\": \"{value}\"}}");
        daemon.curl("PUT", "/v1/devices/wc/attributes/drain", &["-m", limit, "-d", &body])
    };
    // At this rate it takes 256 seconds; the client waits for a tenth of one.
    assert_eq!(put("rate=4096", "0.1").0, "000");
    let state = || daemon.cli(&["get", "wc", "drain_state"]).ok();
    while !state().starts_with("running done=") {
        assert_ne!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n", "it was not slow");
    }
    let (status, text) = put("", "30");
    assert!(status == "409" && text.contains("a drain is running"), "{status} {text}");
    assert_eq!(put("stop", "30").0, "200");
    while state() != "idle\n" {
        std::thread::yield_now();
    }
    let (status, text) = put("within=soon", "30");
    assert!(status == "400" && text.contains("`within=SECONDS` (1 to "), "{status} {text}");
}
