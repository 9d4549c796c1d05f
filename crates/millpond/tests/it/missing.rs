// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device whose cache device is missing: refused, or by force read-only over its origin, which
//! stays as it is, until the cache is back.
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Daemon, file_in, folder, sh, start_fails};
use tempfile::TempDir;

const TABLE: &str = "0 32768 writecache s ./origin.img ./cache.img 4096 2 high_watermark 100";

const UNGUARDED: &str =
    "0 32768 writecache s ./origin.img ./cache.img 4096 3 no_guard high_watermark 100";

fn configure(dir: &TempDir, more: &str) {
    configure_table(dir, TABLE, more);
}

fn configure_table(dir: &TempDir, table: &str, more: &str) {
    let config = format!("[[device]]\nname = 'wc'\ntable = '{table}'\n{more}");
    std::fs::write(dir.path().join("pond.toml"), config).unwrap();
}

/// The origin has pattern 1, the cache pattern 2 for the first half of it; and the cache is away.
fn without_its_cache() -> TempDir {
    without_the_cache_of(TABLE)
}

fn without_the_cache_of(table: &str) -> TempDir {
    let dir = folder();
    file_in(dir.path(), "origin.img", 16);
    file_in(dir.path(), "cache.img", 16);
    configure_table(&dir, table, "");
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    daemon.qemu_io("wc", &["write -P 1 0 1M", "flush"]).ok();
    daemon.cli(&["flush", "wc"]).ok();
    daemon.qemu_io("wc", &["write -P 2 0 512k", "flush"]).ok();
    daemon.signal("-KILL");
    let dir = daemon.wait().2;
    let path = |name: &str| dir.path().join(name);
    std::fs::rename(path("cache.img"), path("away.img")).unwrap();
    dir
}

fn token_of(text: &str) -> String {
    let from = text.split("--force=").nth(1).unwrap_or_else(|| panic!("no token: {text}"));
    from.split('`').next().unwrap().to_owned()
}

#[track_caller]
fn expect(daemon: &Daemon, name: &str, pattern: u8, place: &str) {
    let uri = daemon.uri(name);
    let read = format!("read -P {pattern} {place}");
    let output = sh("qemu-io", &["-r", "-f", "raw", "-c", &read, &uri]);
    let is_right = output.code == Some(0) && !output.out.contains("failed");
    assert!(is_right, "{place} of {name} is not {pattern}: {output:?}");
}

#[track_caller]
fn is_refused(output: &CommandOutput, why: &str) {
    let text = format!("{}{}", output.out, output.err);
    assert!(text.contains(why), "{output:?}");
}

#[test]
fn a_device_without_its_cache_is_read_only_until_it_is_back() {
    let dir = without_its_cache();
    let origin = std::fs::read(dir.path().join("origin.img")).unwrap();
    let (code, log) = start_fails(dir.path(), &["--config", "pond.toml"]);
    assert!(code == Some(3) && log.contains("reads may return OLD data"), "{log}");
    configure(&dir, &format!("force = '{}'\n", token_of(&log)));
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let has_fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let mut options = vec!["--config", "pond.toml", "--metrics", "unix:m.sock"];
    if has_fuse {
        options.extend(["--fuse", "files"]);
    }
    let daemon = Daemon::start_in(dir, &options);
    daemon.create("above", "0 8 zero\n8 2048 linear wc 0");
    // Reads are of the origin.
    expect(&daemon, "wc", 1, "0 1M");
    expect(&daemon, "above", 1, "4k 512k");
    // All say so.
    let shown = daemon.cli(&["show", "wc"]).ok();
    assert!(shown.contains("active, read-only") && shown.contains("may be OLD"), "{shown}");
    let socket = daemon.dir.path().join("m.sock");
    let socket = socket.to_str().unwrap();
    let health = sh("curl", &["-s", "--unix-socket", socket, "http://x/healthz"]).out;
    assert!(health.contains("wc: its cache device") && health.contains("is missing"), "{health}");
    assert!(daemon.cli(&["status", "wc"]).ok().ends_with("writecache missing\n"));
    // No write passes a door, the attribute `ro` does not matter, and no engine stands above.
    daemon.cli(&["set", "wc", "ro", "0"]).ok();
    for name in ["wc", "above"] {
        let info = daemon.curl("GET", &format!("/v1/devices/{name}"), &[]).1;
        assert!(info.contains(r#""read_only":true"#), "{info}");
        is_refused(&daemon.qemu_io(name, &["write -P 9 4k 4k"]), "Permission denied");
        if has_fuse {
            let path = daemon.dir.path().join("files/dev/mapper").join(name);
            let error = OpenOptions::new().write(true).open(path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(30), "{error}");
        }
    }
    let engine = daemon.cli(&["create", "buf", "--table", "0 - buffered wc 2 memory 8M"]);
    is_refused(&engine, "wc is read-only: its cache device is missing");
    // Nothing replaces the cache, or hides that there is one.
    daemon.file("new.img", 16);
    for (words, has) in [
        (&["replace-cache", "wc", "./new.img"][..], "a table that has the cache "),
        (&["uncache", "wc"], "a table that has its origin instead of the cache, "),
    ] {
        let error = daemon.cli(words).failed(1);
        assert!(error.contains("cache.img is missing: ") && error.contains(has), "{error}");
        // The verb takes no token: it prints none.
        assert!(!error.contains("--force") && error.contains("`millpond load wc`"), "{error}");
    }
    is_refused(&daemon.cli(&["resize", "wc", "8M"]), "`--force=");
    daemon.cli(&["load", "wc", "--table", "0 32768 linear ./origin.img 0"]).ok();
    is_refused(&daemon.cli(&["resume", "wc"]), "unknown blocks on the missing");
    daemon.cli(&["clear", "wc"]).ok();
    let saved = daemon.cli(&["save", "-"]).out;
    assert!(!saved.contains("ro = "), "{saved}");
    assert_eq!(origin, std::fs::read(daemon.dir.path().join("origin.img")).unwrap());
    // The cache is back, while a client has the device open.
    let path = |name: &str| daemon.dir.path().join(name);
    std::fs::rename(path("away.img"), path("cache.img")).unwrap();
    daemon.cli(&["load", "wc", "--table", TABLE]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    expect(&daemon, "wc", 2, "0 512k");
    expect(&daemon, "wc", 1, "512k 512k");
    daemon.qemu_io("above", &["write -P 3 4k 4k", "flush"]).ok();
    expect(&daemon, "wc", 3, "0 4k");
    let shown = daemon.cli(&["show", "wc"]).ok();
    assert!(!shown.contains("read-only") && !shown.contains("missing"), "{shown}");
    daemon.signal("-TERM");
    assert!(daemon.wait().0.success());
}

#[test]
fn an_orderly_start_after_a_forced_one_loses_nothing() {
    let dir = without_its_cache();
    let log = start_fails(dir.path(), &["--config", "pond.toml"]).1;
    configure(&dir, &format!("force = '{}'\n", token_of(&log)));
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    let removed = daemon.cli(&["remove", "wc"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    is_refused(&removed, "origin.img alone is perhaps stale");
    // The token is that of this line of this device, and no other.
    let other = TABLE.replace("./cache.img", "./other.img");
    let token = token_of(&log);
    let refused = daemon.cli(&["create", "wc", "--table", &other, "--force", &token]).failed(3);
    assert_ne!(token_of(&refused), token);
    let forced = daemon.cli(&["create", "wc", "--table", TABLE, "--force", &token]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    is_refused(&forced, "is missing: reads are of the origin alone");
    daemon.signal("-TERM");
    let (status, _, dir) = daemon.wait();
    assert!(status.success());
    let path = |name: &str| dir.path().join(name);
    std::fs::rename(path("away.img"), path("cache.img")).unwrap();
    // With the cache the token means nothing.
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    expect(&daemon, "wc", 2, "0 512k");
    expect(&daemon, "wc", 1, "512k 512k");
    daemon.qemu_io("wc", &["write -P 4 0 4k", "flush"]).ok();
}

/// As `replace-cache` and `uncache` say of a cache that is lost for good.
#[test]
fn a_lost_cache_is_given_up_with_the_token_of_resume() {
    let dir = without_the_cache_of(UNGUARDED);
    file_in(dir.path(), "new.img", 16);
    let daemon = Daemon::start_in(dir, &[]);
    let token = token_of(&daemon.cli(&["create", "wc", "--table", UNGUARDED]).failed(3));
    daemon.cli(&["create", "wc", "--table", UNGUARDED, "--force", &token]);
    let new = UNGUARDED.replace("cache.img", "new.img");
    daemon.cli(&["load", "wc", "--table", &new]).ok();
    let refused = daemon.cli(&["resume", "wc"]).failed(4);
    // A flush can't write back what is missing.
    assert!(!refused.contains("flush") && refused.contains("cache.img back"), "{refused}");
    let token = token_of(&refused);
    daemon.cli(&["resume", "wc", "--force", &token]).ok();
    expect(&daemon, "wc", 1, "0 1M");
    daemon.qemu_io("wc", &["write -P 5 0 4k", "flush"]).ok();
    expect(&daemon, "wc", 5, "0 4k");
    assert!(!daemon.cli(&["show", "wc"]).ok().contains("missing"));
}

/// A guard is not taken over: what its origin holds is the operator's to give back.
#[test]
fn a_lost_cache_with_a_guard_is_given_up_by_recover() {
    let dir = without_its_cache();
    file_in(dir.path(), "new.img", 16);
    let daemon = Daemon::start_in(dir, &[]);
    let token = token_of(&daemon.cli(&["create", "wc", "--table", TABLE]).failed(3));
    daemon.cli(&["create", "wc", "--table", TABLE, "--force", &token]);
    let new = TABLE.replace("cache.img", "new.img");
    daemon.cli(&["load", "wc", "--table", &new]).ok();
    let token = token_of(&daemon.cli(&["resume", "wc"]).failed(4));
    let refused = daemon.cli(&["resume", "wc", "--force", &token]).failed(1);
    assert!(refused.contains("recover --without-cache"), "{refused}");
    assert_eq!(daemon.cli(&["remove", "--force", "wc"]).code, Some(0));
    daemon.cli(&["recover", "--without-cache", "origin.img"]).ok();
    daemon.cli(&["create", "wc", "--table", &new]).ok();
    expect(&daemon, "wc", 1, "0 1M");
    daemon.qemu_io("wc", &["write -P 5 0 4k", "flush"]).ok();
    expect(&daemon, "wc", 5, "0 4k");
}

/// By its name in the table, or with the `pmem:` that mode p leaves out.
#[test]
fn a_missing_cache_in_persistent_memory_comes_back() {
    for mode_and_cache in ["s ./origin.img pmem:./cache.img", "p ./origin.img ./cache.img"] {
        let table = TABLE.replace("s ./origin.img ./cache.img", mode_and_cache);
        assert_ne!(table, TABLE);
        let daemon = Daemon::start();
        daemon.file("origin.img", 16);
        daemon.file("cache.img", 16);
        // There are warnings that it is no persistent memory.
        let verb = |args: &[&str]| {
            let output = daemon.cli(args);
            assert_eq!(output.code, Some(0), "{output:?}");
        };
        verb(&["create", "wc", "--table", &table]);
        daemon.qemu_io("wc", &["write -P 1 0 1M", "flush"]).ok();
        verb(&["flush", "wc"]);
        daemon.qemu_io("wc", &["write -P 2 0 512k", "flush"]).ok();
        verb(&["remove", "wc"]);
        let path = |name: &str| daemon.dir.path().join(name);
        std::fs::rename(path("cache.img"), path("away.img")).unwrap();
        let token = token_of(&daemon.cli(&["create", "wc", "--table", &table]).failed(3));
        verb(&["create", "wc", "--table", &table, "--force", &token]);
        expect(&daemon, "wc", 1, "0 1M");
        let origin = std::fs::read(path("origin.img")).unwrap();
        std::fs::rename(path("away.img"), path("cache.img")).unwrap();
        verb(&["load", "wc", "--table", &table]);
        verb(&["resume", "wc"]);
        assert_eq!(origin, std::fs::read(path("origin.img")).unwrap());
        expect(&daemon, "wc", 2, "0 512k");
        expect(&daemon, "wc", 1, "512k 512k");
        daemon.qemu_io("wc", &["write -P 3 4k 4k", "flush"]).ok();
        verb(&["flush", "wc"]);
        expect(&daemon, "wc", 3, "4k 4k");
    }
}

/// Clients that were connected while the device took writes, of NBD and of FUSE.
#[test]
fn a_client_of_before_can_not_write_either() {
    let dir = without_its_cache();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let has_fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let options: &[&str] = if has_fuse { &["--fuse", "files"] } else { &[] };
    let daemon = Daemon::start_in(dir, options);
    daemon.create("low", "0 32768 linear mem:16M 0");
    daemon.create("top", "0 32768 linear low 0");
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &daemon.uri("top")]).stdin(Stdio::piped());
    let mut client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(client.stdin.as_mut().unwrap(), "write -P 7 2M 4k").unwrap();
    while daemon.qemu_io("top", &["read -P 7 2M 4k"]).out.contains("failed") {}
    let path = daemon.dir.path().join("files/dev/mapper/top");
    let file = has_fuse.then(|| OpenOptions::new().write(true).open(path).unwrap());
    let refused = daemon.cli(&["load", "low", "--table", TABLE]).failed(3);
    let token = token_of(&refused);
    assert_eq!(daemon.cli(&["load", "low", "--table", TABLE, "--force", &token]).code, Some(0));
    daemon.cli(&["resume", "low"]).ok();
    writeln!(client.stdin.as_mut().unwrap(), "write -P 8 0 4k\nread -P 1 0 1M\nflush").unwrap();
    let output = client.wait_with_output().unwrap();
    let out = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(out.contains("write failed: Operation not permitted"), "{out}");
    assert_eq!(out.matches("failed").count(), 1, "{out}");
    if let Some(file) = file {
        assert_eq!(file.write_at(&[8; 4096], 0).unwrap_err().raw_os_error(), Some(30));
    }
    expect(&daemon, "low", 1, "0 1M");
    daemon.signal("-TERM");
    assert!(daemon.wait().0.success());
}
