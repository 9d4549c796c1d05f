// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `uncache` and `replace-cache` against a running daemon: clients keep their connections, nothing
//! is lost by a kill at any moment, and a table that still names an old cache does no harm.
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Daemon, MILLPOND, file_in, folder, start_fails};
use serde_json::Value;
use tempfile::TempDir;

/// A write cache whose blocks are written back one by one.
fn table(cache: &str) -> String {
    format!("0 32768 writecache s ./origin.img ./{cache} 4096 2 writeback_io_bytes 4096")
}

fn config(cache: &str) -> String {
    format!("[[device]]\nname = 'wc'\ntable = '{}'\n", table(cache))
}

/// A folder with an origin, two cache devices, and a configuration with the first.
fn setup() -> TempDir {
    let dir = folder();
    for (name, mib) in [("origin.img", 16), ("cache.img", 16), ("new.img", 8)] {
        file_in(dir.path(), name, mib);
    }
    std::fs::write(dir.path().join("pond.toml"), config("cache.img")).unwrap();
    dir
}

fn start(dir: TempDir) -> Daemon {
    Daemon::start_in(dir, &["--config", "pond.toml"])
}

fn fill(daemon: &Daemon, pattern: u8) {
    daemon.qemu_io("wc", &[&format!("write -P {pattern} 0 1M"), "flush"]).ok();
}

#[track_caller]
fn expect(daemon: &Daemon, pattern: u8, place: &str) {
    let output = daemon.qemu_io("wc", &[&format!("read -P {pattern} {place}")]);
    let is_right = output.code == Some(0) && !output.out.contains("failed");
    assert!(is_right, "{place} is not {pattern}: {output:?}");
}

fn kind(daemon: &Daemon) -> String {
    let lines = daemon.cli(&["table", "wc", "-o", "json"]).ok();
    let lines: Value = serde_json::from_str(&lines).unwrap();
    lines[0]["target"].as_str().unwrap().to_owned()
}

/// A client that stays connected: its second half begins when it gets a line.
fn client(daemon: &Daemon, pattern: u8) -> Child {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &daemon.uri("wc")]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.as_mut().unwrap();
    std::io::Write::write_all(input, format!("write -P {pattern} 2M 4k\n").as_bytes()).unwrap();
    child
}

/// It writes, reads and flushes, and all succeeds.
fn goes_on(mut client: Child, pattern: u8) {
    let mut input = client.stdin.take().unwrap();
    let commands = format!("read -P {pattern} 2M 4k\nwrite -P {pattern} 3M 4k\nflush\n");
    std::io::Write::write_all(&mut input, commands.as_bytes()).unwrap();
    drop(input);
    let output = client.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("failed"), "{output:?}");
    assert_eq!(text.matches("4096/4096").count(), 3, "{text}");
}

#[test]
fn a_cache_is_taken_away_under_a_client() {
    let daemon = start(setup());
    fill(&daemon, 0x5a);
    let before = client(&daemon, 7);
    let output = daemon.cli(&["uncache", "wc", "-o", "json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.err.contains("pond.toml has another table of wc"), "{}", output.err);
    let done: Value = serde_json::from_str(&output.out).unwrap();
    assert!(done["freed"][0].as_str().unwrap().ends_with("/cache.img"), "{done}");
    assert_eq!(done["table"][0]["target"], "linear");
    goes_on(before, 7);
    expect(&daemon, 0x5a, "0 1M");
    let error = daemon.cli(&["uncache", "wc"]).failed(1);
    assert!(error.contains("no line of its table is a write cache"), "{error}");
    assert_eq!(daemon.cli(&["uncache", "nope"]).code, Some(3));
    // The device is free, and blank after `wipe`, which needs no token.
    let state = daemon.cli(&["inspect", "cache.img", "-o", "json"]).ok();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!((&state["blocks"]["dirty"], &state["blocks"]["clean"]), (&0.into(), &0.into()));
    // What is written past it now is not hidden when an old configuration attaches it again.
    fill(&daemon, 0x33);
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    let daemon = start(dir);
    assert_eq!(kind(&daemon), "writecache");
    expect(&daemon, 0x33, "0 1M");
}

#[test]
fn an_origin_that_fails_leaves_the_cache_in_use() {
    let daemon = Daemon::start();
    daemon.create("slow", "0 32768 linear mem:16M 0");
    daemon.create("wc", "0 32768 writecache s slow mem:8M 4096 0");
    fill(&daemon, 0x11);
    let bad = "0 32768 flakey mem:16M 0 0 60 1 error_writes";
    daemon.cli(&["load", "slow", "--table", bad]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    let error = daemon.cli(&["uncache", "wc"]).failed(1);
    assert!(error.contains("could not be written to the origin"), "{error}");
    assert_eq!(kind(&daemon), "writecache");
    daemon.qemu_io("wc", &["write -P 0x22 0 64k", "flush"]).ok();
    expect(&daemon, 0x22, "0 64k");
    daemon.cli(&["load", "slow", "--table", "0 32768 linear mem:16M 0"]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    let text = daemon.cli(&["uncache", "wc"]).ok();
    assert_eq!(text, "wc: mem:8M holds nothing and is free\n");
    expect(&daemon, 0x22, "0 64k");
}

#[test]
fn a_replaced_cache_is_refused_until_it_is_wiped() {
    let daemon = start(setup());
    fill(&daemon, 0x5a);
    let before = client(&daemon, 9);
    let refused = daemon.cli(&["replace-cache", "wc", "./origin.img"]).failed(1);
    assert!(refused.contains("origin"), "{refused}");
    let text = daemon.cli(&["replace-cache", "wc", "./new.img"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.err.contains("pond.toml has another table of wc"), "{}", text.err);
    goes_on(before, 9);
    fill(&daemon, 0x44);
    assert_ne!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n");
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    // The old configuration would hide what only the new cache has.
    let (code, log) = start_fails(dir.path(), &["--config", "pond.toml"]);
    assert!(code == Some(1) && log.contains("replace-cache") && log.contains("new.img"), "{log}");
    std::fs::write(dir.path().join("pond.toml"), config("new.img")).unwrap();
    let daemon = start(dir);
    expect(&daemon, 0x44, "0 1M");
    let state = daemon.cli(&["inspect", "cache.img"]).ok();
    assert!(state.contains("new.img has replaced it"), "{state}");
    // And back again.
    assert_eq!(daemon.cli(&["replace-cache", "wc", "./cache.img"]).code, Some(1));
    expect(&daemon, 0x44, "0 1M");
    daemon.cli(&["wipe", "cache.img"]).ok();
    assert_eq!(daemon.cli(&["replace-cache", "wc", "./cache.img"]).code, Some(0));
    expect(&daemon, 0x44, "0 1M");
}

/// They would come back over what has been written since.
#[test]
fn a_cache_with_blocks_of_before_does_not_come_in() {
    let daemon = Daemon::start();
    for name in ["origin.img", "used.img", "cache.img"] {
        daemon.file(name, 16);
    }
    let table = |cache: &str| format!("0 32768 writecache s ./origin.img ./{cache} 4096 0");
    daemon.create("wc", &table("used.img"));
    fill(&daemon, 0x11);
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0));
    daemon.create("wc", &table("cache.img"));
    fill(&daemon, 0x22);
    let before = client(&daemon, 7);
    let error = daemon.cli(&["replace-cache", "wc", "./used.img"]).failed(1);
    assert!(error.contains("used.img: it holds 256 dirty and 0 clean blocks"), "{error}");
    // It was refused before anything was written back.
    let dirty = daemon.cli(&["get", "wc", "dirty_blocks"]).ok();
    assert!(dirty.trim().parse::<u64>().unwrap() >= 256, "{dirty}");
    goes_on(before, 7);
    expect(&daemon, 0x22, "0 1M");
    daemon.cli(&["flush", "wc"]).ok();
    expect(&daemon, 0x22, "0 1M");
    // What it holds stays there, until it is wiped.
    let state = daemon.cli(&["inspect", "used.img", "-o", "json"]).ok();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(state["blocks"]["dirty"], 256, "{state}");
    let refused = daemon.cli(&["wipe", "used.img"]).failed(1);
    let token = refused.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    assert_eq!(daemon.cli(&["wipe", "used.img", "--force", token]).code, Some(0));
    daemon.cli(&["replace-cache", "wc", "./used.img"]).ok();
    expect(&daemon, 0x22, "0 1M");
}

/// It said that the cache `holds nothing`, of no name.
#[test]
fn a_cache_replaced_by_itself_is_the_cache_already() {
    let daemon = start(setup());
    fill(&daemon, 0x11);
    let done = daemon.cli(&["replace-cache", "wc", "./cache.img"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.ends_with("/cache.img is the cache already\n"), "{done:?}");
    expect(&daemon, 0x11, "0 1M");
    assert_eq!(kind(&daemon), "writecache");
}

/// The advice to wipe the old cache had no start sector: it would have wiped what is before it.
#[test]
fn the_start_sector_of_a_replaced_cache_is_in_the_advice() {
    let dir = setup();
    let old = table("cache.img").replace(" 4096 2 ", " 4096 4 start_sector 8192 ");
    let config = |table: &str| format!("[[device]]\nname = 'wc'\ntable = '{table}'\n");
    std::fs::write(dir.path().join("pond.toml"), config(&old)).unwrap();
    let daemon = start(dir);
    fill(&daemon, 0x21);
    let words = ["replace-cache", "wc", "./new.img", "--start-sector", "64"];
    let done = daemon.cli(&words);
    assert_eq!(done.code, Some(0), "{done:?}");
    for part in ["new.img with start_sector 64 is its cache", "cache.img with start_sector 8192 "] {
        assert!(done.out.contains(part), "{part}: {done:?}");
    }
    fill(&daemon, 0x22);
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    let (code, log) = start_fails(dir.path(), &["--config", "pond.toml"]);
    let advice = "cache.img --start-sector 8192` makes it blank";
    assert!(code == Some(1) && log.contains(advice), "{log}");
    assert!(log.contains("new.img with start_sector 64 in the table"), "{log}");
    let new = table("new.img").replace(" 4096 2 ", " 4096 4 start_sector 64 ");
    std::fs::write(dir.path().join("pond.toml"), config(&new)).unwrap();
    let daemon = start(dir);
    expect(&daemon, 0x22, "0 1M");
    daemon.cli(&["wipe", "cache.img", "--start-sector", "8192"]).ok();
    let back = ["replace-cache", "wc", "./cache.img", "--start-sector", "8192"];
    assert_eq!(daemon.cli(&back).code, Some(0));
    expect(&daemon, 0x22, "0 1M");
}

/// Kills the daemon at ever later moments of a verb, and starts it again each time.
#[expect(clippy::disallowed_methods, reason = "the moment of the kill is the point of the test")]
fn killed(verb: &[&str], caches: [&str; 2]) {
    let mut dir = setup();
    let mut ended = 0;
    for round in 0..6 {
        let daemon = start(dir);
        let pattern = 0x60 + round;
        fill(&daemon, pattern);
        let mut command = Command::new(MILLPOND);
        command.arg("--run-dir").arg(daemon.run_dir()).args(verb).current_dir(daemon.dir.path());
        let mut verb = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(25 * u64::from(round)));
        daemon.signal("-KILL");
        let (_, _, left) = daemon.wait();
        ended += u32::from(verb.wait().unwrap().success());
        let daemon = restart(left, caches);
        expect(&daemon, pattern, "0 1M");
        daemon.signal("-TERM");
        dir = daemon.wait().2;
        if caches[0] != caches[1] && start_is_replaced(&dir, caches) {
            let old = dir.path().join(caches[0]);
            let wiped = Command::new(MILLPOND).arg("wipe").arg(old).status().unwrap();
            assert!(wiped.success());
            std::fs::copy(dir.path().join("new.img"), dir.path().join("cache.img")).unwrap();
            file_in(dir.path(), "new.img", 8);
            std::fs::write(dir.path().join("pond.toml"), config(caches[0])).unwrap();
        }
    }
    eprintln!("{ended} of 6 ended");
}

/// Starts the daemon, with the new cache if it refuses the old one, as the operator does. The mark
/// of the old cache may reach its file after the death of the daemon that wrote it: only the start
/// knows whether it is there.
fn restart(dir: TempDir, caches: [&str; 2]) -> Daemon {
    match Daemon::try_start_in(dir, &["--config", "pond.toml"]) {
        Ok(daemon) => daemon,
        Err((dir, log)) => {
            let is_refused = caches[0] != caches[1] && log.contains("`replace-cache` has put");
            assert!(is_refused, "no daemon: {log}");
            std::fs::write(dir.path().join("pond.toml"), config(caches[1])).unwrap();
            start(dir)
        }
    }
}

fn start_is_replaced(dir: &TempDir, caches: [&str; 2]) -> bool {
    let text = std::fs::read_to_string(dir.path().join("pond.toml")).unwrap();
    text.contains(caches[1])
}

#[test]
fn uncache_killed_at_any_moment_loses_nothing() {
    killed(&["uncache", "wc"], ["cache.img", "cache.img"]);
}

#[test]
fn replace_cache_killed_at_any_moment_loses_nothing() {
    killed(&["replace-cache", "wc", "./new.img"], ["cache.img", "new.img"]);
}

/// A cache that the configuration file makes guards its origin, and so does the one that takes its
/// place, though no table asks for it.
#[test]
fn a_new_cache_of_the_configuration_guards_its_origin() {
    let daemon = start(setup());
    let guarded = || daemon.cli(&["get", "wc", "guarded_ranges"]).ok();
    assert_eq!(guarded(), "2\n");
    fill(&daemon, 7);
    assert_eq!(daemon.cli(&["replace-cache", "wc", "./new.img"]).code, Some(0));
    assert_eq!(guarded(), "2\n");
    expect(&daemon, 7, "0 1M");
    assert_eq!(daemon.cli(&["uncache", "wc"]).code, Some(0));
    let origin = std::fs::read(daemon.dir.path().join("origin.img")).unwrap();
    assert!(origin[..1 << 20].iter().all(|byte| *byte == 7), "uncache gives it back");
    // A command makes one with a guard only if it is asked to.
    daemon.cli(&["remove", "wc"]).ok();
    file_in(daemon.dir.path(), "other.img", 8);
    daemon.cli(&["create", "wc", "--table", &table("other.img")]).ok();
    assert_eq!(guarded(), "0\n");
}

/// A guarded origin in a table without its cache has what clients saw.
#[test]
fn a_guard_goes_when_another_table_has_the_origin() {
    let dir = setup();
    let line = table("cache.img").replace(" 4096 2 ", " 4096 3 guard_origin ");
    let config = format!("[[device]]\nname = 'wc'\ntable = '{line}'\n");
    std::fs::write(dir.path().join("pond.toml"), config).unwrap();
    let daemon = start(dir);
    daemon.qemu_io("wc", &["write -P 7 0 1M", "write -P 7 15M 1M", "flush"]).ok();
    assert_eq!(daemon.cli(&["get", "wc", "guarded_ranges"]).ok(), "2\n");
    let linear = "0 32768 linear ./origin.img 0";
    daemon.cli(&["load", "wc", "--table", linear]).ok();
    let refused = daemon.cli(&["resume", "wc"]).failed(4);
    assert!(refused.contains("would hide"), "{refused}");
    daemon.cli(&["message", "wc", "0", "flush_on_suspend"]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    assert_eq!(kind(&daemon), "linear");
    expect(&daemon, 7, "0 1M");
    expect(&daemon, 7, "15M 1M");
    daemon.cli(&["load", "wc", "--table", &line]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    assert_eq!(daemon.cli(&["get", "wc", "guarded_ranges"]).ok(), "2\n");
    expect(&daemon, 7, "0 1M");
    daemon.cli(&["remove", "wc"]).ok();
    let origin = std::fs::read(daemon.dir.path().join("origin.img")).unwrap();
    assert!(origin[..1 << 20].iter().all(|byte| *byte == 7), "remove gives it back");
}
