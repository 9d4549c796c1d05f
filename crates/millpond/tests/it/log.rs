// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of the log: what a cache holds after a crash, that an origin is well again, and each
//! request of the API at level debug.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::{Daemon, file_in, folder};
use tempfile::TempDir;

const TABLE: &str = "0 32768 writecache s ./origin.img ./cache.img 4096 2 high_watermark 100";

/// The log of a daemon after its line `ready`, once it has ended in order; and its folder.
fn log_of(daemon: Daemon) -> (String, TempDir) {
    daemon.signal("-TERM");
    let (status, log, dir) = daemon.wait();
    assert!(status.success(), "{log}");
    (log, dir)
}

/// The lines that have `text`.
fn lines<'a>(log: &'a str, text: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn recovery_logs_how_many_blocks_the_cache_holds() {
    let dir = folder();
    file_in(dir.path(), "origin.img", 16);
    file_in(dir.path(), "cache.img", 16);
    let daemon = Daemon::start_in(dir, &[]);
    daemon.create("wc", TABLE);
    daemon.qemu_io("wc", &["write -P 1 0 256k", "flush"]).ok();
    daemon.cli(&["flush", "wc"]).ok();
    daemon.qemu_io("wc", &["write -P 2 1M 512k", "flush"]).ok();
    daemon.signal("-KILL");
    let (_, log, dir) = daemon.wait();
    assert!(lines(&log, " dirty blocks, ").is_empty(), "it was blank: {log}");
    let daemon = Daemon::start_in(dir, &[]);
    daemon.create("wc", TABLE);
    let (log, _dir) = log_of(daemon);
    let found = lines(&log, "writecache: the cache is open after ");
    let [line] = found[..] else { panic!("{found:?} in {log}") };
    assert!(line.contains("  INFO "), "{line}");
    assert!(line.ends_with(" s: 128 dirty blocks, 0 clean ones device=\"wc\""), "{line}");
}

#[test]
fn the_log_has_the_end_of_an_origins_errors_once() {
    let daemon = Daemon::start();
    let table = "0 32768 linear mem:16M 0";
    daemon.create("slow", table);
    daemon.create("wc", "0 32768 writecache s slow mem:8M 4096 2 high_watermark 100");
    daemon.qemu_io("wc", &["write -P 1 0 64k", "flush"]).ok();
    let swap = |table: &str| {
        daemon.cli(&["load", "slow", "--table", table]).ok();
        daemon.cli(&["resume", "slow"]).ok();
    };
    swap("0 32768 flakey mem:16M 0 0 60 1 error_writes");
    daemon.cli(&["flush", "wc"]).failed(1);
    swap(table);
    daemon.cli(&["flush", "wc"]).ok();
    let (log, _dir) = log_of(daemon);
    let refused = log.find("the origin refused a write at sector 0 ").expect("the error");
    let over = "the origin holds every block now that it had refused before";
    let found = lines(&log, over);
    let [line] = found[..] else { panic!("{found:?} in {log}") };
    assert!(line.contains("  INFO ") && line.ends_with(" device=\"wc\""), "{line}");
    assert!(refused < log.find(over).expect("found above"), "{log}");
}

/// The log of a daemon that gets a request, one that fails, and bytes that are none.
fn log_of_requests(level: &str) -> String {
    let daemon = Daemon::start_with_env(folder(), &[], &[("MILLPOND_LOG", level)]);
    assert_eq!(daemon.curl("GET", "/v1/devices", &[]).0, "200");
    assert_eq!(daemon.curl("GET", "/v1/devices/no%20one", &[]).0, "404");
    let mut socket = UnixStream::connect(daemon.run_dir().join("control.sock")).unwrap();
    socket.write_all(b"\x16\x03\x01 this is no HTTP\r\n\r\n").unwrap();
    // The daemon ends the connection.
    let _ = socket.read_to_end(&mut Vec::new());
    log_of(daemon).0
}

#[test]
fn each_request_of_the_api_is_a_line_at_level_debug() {
    let log = log_of_requests("debug");
    let done = lines(&log, "DEBUG control request done method=GET path=\"/v1/devices\" seconds=\"");
    assert_eq!(done.len(), 1, "{log}");
    let failed = lines(&log, "DEBUG control request failed method=GET ");
    let [line] = failed[..] else { panic!("{failed:?} in {log}") };
    assert!(line.contains(" path=\"/v1/devices/no%20one\" seconds=\"0."), "{line}");
    assert!(line.contains(" error=") && line.contains("no one"), "{line}");
    assert_eq!(lines(&log, "DEBUG control connection ended error=").len(), 1, "{log}");
    let log = log_of_requests("info");
    assert!(lines(&log, "control request").is_empty(), "{log}");
    assert!(lines(&log, "control connection").is_empty(), "{log}");
}
