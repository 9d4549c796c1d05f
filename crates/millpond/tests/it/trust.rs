// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations that would make data unreachable are refused or reported, by the real program and its
//! command line.

use crate::common::{self, CommandOutput, Daemon, MILLPOND, folder};

fn token(refusal: &str) -> String {
    let token = refusal.split("--force=").nth(1).unwrap();
    token.chars().take_while(char::is_ascii_hexdigit).collect()
}

/// 4 MiB of one byte, flushed.
fn dirty(daemon: &Daemon, name: &str) {
    let output = daemon.qemu_io(name, &["write -P 1 0 4M", "flush"]);
    assert_eq!(output.code, Some(0), "{output:?}");
}

fn dirty_blocks(daemon: &Daemon, name: &str) -> u64 {
    daemon.cli(&["get", name, "dirty_blocks"]).ok().trim().parse().unwrap()
}

/// A cache of files whose dirty blocks stay.
fn pond_with_dirty() -> (Daemon, String, String) {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("o.img", 16), daemon.file("c.img", 16));
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 2 high_watermark 100"));
    dirty(&daemon, "w");
    assert!(dirty_blocks(&daemon, "w") > 0);
    (daemon, origin, cache)
}

/// Tried as a new user would: a table swap that is harmless with linear took a megabyte of flushed
/// data out of sight, and `remove` left them in the cache, both without a word.
#[test]
fn dirty_blocks_are_not_hidden_without_a_word() {
    let (daemon, origin, cache) = pond_with_dirty();
    daemon.cli(&["load", "w", "--table", &format!("0 32768 linear {origin} 0")]).ok();
    let refusal = daemon.cli(&["resume", "w"]).failed(4);
    for part in [" dirty block", &*cache, &*origin, "message w 0 flush", "nothing was changed"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    let wrong = daemon.cli(&["resume", "w", "--force", "00000000"]).failed(4);
    assert!(wrong.contains("the token 00000000 does not stand for"), "{wrong}");
    assert!(dirty_blocks(&daemon, "w") > 0, "it serves on");
    daemon.cli(&["clear", "w"]).ok();
    let removed = daemon.cli(&["remove", "w"]);
    assert_eq!((removed.code, &*removed.out), (Some(0), ""), "{removed:?}");
    for part in ["warning: w: ", " dirty block", &*cache, " alone is stale", "millpond recover"] {
        assert!(removed.err.contains(part), "{part}: {removed:?}");
    }
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 0"));
    daemon.cli(&["remove", "--drain", "w"]).ok();
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 0"));
    assert_eq!(dirty_blocks(&daemon, "w"), 0);
    daemon.signal("-TERM");
    let (_, log, _) = daemon.wait();
    assert_eq!(log.matches(" stay there, and ").count(), 1, "the removal is in the log: {log}");
}

#[test]
fn the_recover_command_names_where_a_cache_begins() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("o.img", 16), daemon.file("c.img", 16));
    let options = "4 start_sector 64 high_watermark 100";
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 {options}"));
    dirty(&daemon, "w");
    let removed = daemon.cli(&["remove", "w"]);
    let command = format!("`millpond recover --cache {cache} --start-sector 64 --origin {origin}`");
    assert!(removed.err.contains(&command), "{removed:?}");
    let recover = ["recover", "--cache", &cache, "--start-sector", "64", "--origin", &origin];
    let recovered = std::process::Command::new(MILLPOND).args(recover).output().unwrap();
    assert_eq!(CommandOutput::from(recovered).code, Some(0));
}

#[test]
fn the_token_of_a_refusal_lets_it_be_done() {
    let (daemon, origin, _) = pond_with_dirty();
    daemon.cli(&["load", "w", "--table", &format!("0 32768 linear {origin} 0")]).ok();
    let token = token(&daemon.cli(&["resume", "w"]).failed(4));
    daemon.cli(&["resume", "w", &format!("--force={token}")]).ok();
    assert!(daemon.cli(&["table", "w"]).ok().contains("linear"));
}

#[test]
fn the_end_of_the_daemon_tells_what_stays_in_caches() {
    let (daemon, origin, cache) = pond_with_dirty();
    daemon.signal("-TERM");
    let (status, log, _dir) = daemon.wait();
    assert!(status.success());
    let told = log.lines().find(|line| line.contains(" dirty block")).unwrap_or_default();
    assert!([" WARN ", "\"w\"", &*cache, &*origin].iter().all(|part| told.contains(part)), "{log}");
}

/// An attack from outside: a `linear` over the cache device of a live cache made a second cache on
/// it, and flushed data were lost.
#[test]
fn a_second_use_of_a_live_caches_device_is_refused() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("o.img", 16), daemon.file("c.img", 16));
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 0"));
    let map = format!("0 8192 linear {cache} 0");
    let refusal = daemon.cli(&["create", "l", "--table", &map]).failed(4);
    for part in
        ["create l: line 1: linear: ", "sectors 0 to 8191 of ", &*cache, "cache device of w"]
    {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    daemon.cli(&["create", "l", "--table", &map, "--force", &token(&refusal)]).ok();
    let second = format!("0 8192 writecache s {} l 4096 0", daemon.file("p.img", 16));
    let refusal = daemon.cli(&["create", "w4", "--table", &second]).failed(4);
    assert!(refusal.contains("cache device of w (writecache)"), "{refusal}");
    assert!(!refusal.contains("--force"), "{refusal}");
    // The API returns the token in a field of its own.
    let body = format!("{{\"name\": \"m\", \"table\": \"{map}\"}}");
    let (_, answer) = daemon.curl("POST", "/v1/devices", &["-d", &body]);
    assert!(answer.contains("\"token\":\""), "{answer}");
}

#[test]
fn what_does_not_last_is_warned_of() {
    let daemon = Daemon::start_with(&["--default-export", "nope"]);
    let table = "0 32768 writecache s mem:16M,o mem:16M,c 4096 0";
    let created = daemon.cli(&["create", "w", "--table", table]);
    let warning = "w: the cache is in memory (mem:16M,c): what it holds, flushed data too, is gone \
                   when the daemon ends";
    assert!(created.err.contains(warning), "{created:?}");
    dirty(&daemon, "w");
    let removed = daemon.cli(&["remove", "w"]).err;
    let gone = "are gone with the last device that has mem:16M,c open";
    assert!(removed.contains(gone) && !removed.contains("recover"), "{removed}");
    if std::path::Path::new("/dev/shm").exists() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = common::file_in(dir.path(), "c.img", 16);
        let table = format!("0 32768 writecache s {} {cache} 4096 0", daemon.file("o.img", 16));
        let created = daemon.cli(&["create", "t", "--table", &table]);
        assert!(created.err.contains("is gone when the machine stops"), "{created:?}");
        daemon.cli(&["remove", "t"]).ok();
    } else {
        eprintln!("skipped: there is no /dev/shm");
    }
    daemon.signal("-TERM");
    let (_, log, _) = daemon.wait();
    assert!(log.contains("default export `nope`: no device has this name"), "{log}");
}

/// The daemon's folder and its end, where nothing is dirty: no word of it.
#[test]
fn a_clean_cache_is_removed_without_a_word() {
    let daemon = Daemon::start_in(folder(), &[]);
    let (origin, cache) = (daemon.file("o.img", 16), daemon.file("c.img", 16));
    daemon.create("w", &format!("0 32768 writecache s {origin} {cache} 4096 0"));
    daemon.cli(&["remove", "w"]).ok();
}

/// The cache device refuses what the write buffer has acknowledged: the data are in memory alone,
/// and neither `remove` nor another instance of the cache drops them without the token.
#[test]
fn blocks_in_memory_alone_are_not_dropped_without_token() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("o.img", 16), daemon.file("c.img", 16));
    let works = format!("0 32768 linear {cache} 0");
    let refuses = format!("0 32768 flakey {cache} 0 0 60 1 error_writes");
    let table = format!("0 32768 writecache s {origin} ssd 4096 0");
    let swap = |name: &str, table: &str| daemon.cli(&["load", name, "--table", table]).ok();
    daemon.create("ssd", &works);
    daemon.create("w", &table);
    daemon.qemu_io("w", &["write -P 0x11 0 64k", "flush"]).ok();
    swap("ssd", &refuses);
    daemon.cli(&["resume", "ssd"]).ok();
    // Without FUA: the answer comes from memory. At its end it sends a FLUSH.
    let mut client = std::process::Command::new("qemu-io");
    client.args(["-f", "raw", "-t", "writeback", "-c", "write -P 0x22 0 64k", &daemon.uri("w")]);
    let output = CommandOutput::from(client.output().unwrap());
    assert!(output.out.contains("wrote 65536/65536"), "{output:?}");
    let expect = |pattern: &str| {
        let output = daemon.qemu_io("w", &[&format!("read -P {pattern} 0 64k")]);
        assert!(output.code == Some(0) && !output.out.contains("failed"), "{output:?}");
    };
    let in_memory = daemon.cli(&["get", "w", "unwritten_blocks"]).ok();
    assert_eq!(in_memory, "16\n");
    let refusal = daemon.cli(&["remove", "w"]).failed(4);
    assert!(refusal.contains(", 16 of which are in memory alone"), "{refusal}");
    expect("0x22");
    swap("w", &table);
    let refusal = daemon.cli(&["resume", "w"]).failed(4);
    for part in [", 16 of which are in memory alone", "copy it from w", "nothing was changed"] {
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
    expect("0x22");
    // The token gives up what is in memory; the journal has it still, as after a `kill -9`, since
    // the device has refused writes and no flush (WC-J3).
    swap("ssd", &works);
    daemon.cli(&["resume", "ssd"]).ok();
    daemon.cli(&["resume", "w", "--force", &token(&refusal)]).ok();
    assert_eq!(daemon.cli(&["get", "w", "unwritten_blocks"]).ok(), "0\n");
    expect("0x22");
}
