// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon's life: start with a config, end by signal or by force, start again.

use std::os::unix::fs::PermissionsExt;

use crate::common::{self, Daemon, MILLPOND, file_in, folder, sh, start_fails};

fn with_config(text: &str) -> tempfile::TempDir {
    let dir = folder();
    std::fs::write(dir.path().join("pond.toml"), text).expect("a writable folder");
    dir
}

const STACK: &str = "default_export = 'top'

[[device]]
name = 'low'
table = '0 32768 linear ./disk.img 0'

[[device]]
name = 'top'
uuid = 'u-1'
table = '''
0 16384 linear low 0
16384 16384 linear low 16384
'''
";

#[test]
fn sigterm_settles_everything_and_exits_0() {
    let daemon = Daemon::start();
    let disk = daemon.file("disk.img", 16);
    daemon.create("d", "0 32768 linear ./disk.img 0");
    assert_eq!(daemon.qemu_io("d", &["write -P 5 1M 1M"]).code, Some(0));
    daemon.signal("-TERM");
    let (status, log, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    let bytes = std::fs::read(disk).unwrap();
    assert!(bytes[1 << 20..2 << 20].iter().all(|b| *b == 5));
    let left: Vec<_> = std::fs::read_dir(dir.path().join("run")).unwrap().collect();
    assert_eq!(left.len(), 1, "only the lock stays: {left:?}");
}

#[test]
fn sigint_does_too_even_with_a_device_suspended_under_a_client() {
    let daemon = Daemon::start();
    daemon.create("d", "0 2048 linear mem:1M 0");
    daemon.cli(&["suspend", "d"]).ok();
    std::thread::scope(|s| {
        let client = s.spawn(|| daemon.qemu_io("d", &["write 0 4k"]));
        // Open count 1: the client is there, and its write waits or will.
        while !daemon.cli(&["info", "d"]).ok().contains("Open count:        1") {}
        daemon.signal("-INT");
        let output = client.join().unwrap();
        assert_ne!(output.code, None, "{output:?}");
    });
    let (status, log, _) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// All had settled, and yet the daemon ended with 1: a device was "being removed".
#[test]
fn sigterm_beside_a_removal_exits_0() {
    let daemon = Daemon::start();
    daemon.create("slow", "0 16384 delay mem:8M 0 0");
    daemon.create("d", "0 2048 writecache s mem:1M slow 4096 0");
    assert_eq!(daemon.qemu_io("d", &["write 0 64k"]).code, Some(0));
    daemon.cli(&["load", "slow", "--table", "0 16384 delay mem:8M 0 1500"]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    std::thread::scope(|s| {
        let removal = s.spawn(|| daemon.cli(&["remove", "d"]));
        // It is suspended for its removal, and its commit is slow.
        while daemon.cli(&["message", "d", "0", "clear_stats"]).code == Some(0) {}
        daemon.signal("-TERM");
        removal.join().unwrap();
    });
    let (status, log, _) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("all devices are settled"), "{log}");
}

#[test]
fn after_kill_9_the_config_brings_everything_back() {
    let dir = with_config(STACK);
    file_in(dir.path(), "disk.img", 16);
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    assert_eq!(daemon.qemu_io("", &["write -P 6 8M 64k", "flush"]).code, Some(0));
    daemon.signal("-KILL");
    let (status, _, dir) = daemon.wait();
    assert_eq!(status.code(), None);
    assert!(dir.path().join("run/control.sock").exists(), "kill -9 leaves its sockets");

    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    assert_eq!(daemon.cli(&["ls"]).ok(), "low\t(999:0)\ntop\t(999:1)\n");
    let output = daemon.qemu_io("top", &["read -P 6 8M 64k"]);
    assert!(output.code == Some(0) && !output.out.contains("failed"), "{output:?}");
}

#[test]
fn a_write_cache_survives_kill_9_with_what_was_flushed() {
    let dir = with_config(
        "[[device]]\nname = 'wc'\ntable = '0 65536 writecache s ./origin.img ./cache.img 4096 0'\n",
    );
    file_in(dir.path(), "origin.img", 32);
    file_in(dir.path(), "cache.img", 16);
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    assert_eq!(daemon.qemu_io("wc", &["write -P 7 4M 256k", "flush"]).code, Some(0));
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml"]);
    let output = daemon.qemu_io("wc", &["read -P 7 4M 256k"]);
    assert!(output.code == Some(0) && !output.out.contains("failed"), "{output:?}");
    daemon.cli(&["message", "wc", "0", "flush"]).ok();
    daemon.signal("-TERM");
    let (status, log, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    let origin = std::fs::read(dir.path().join("origin.img")).unwrap();
    assert!(origin[4 << 20..][..256 << 10].iter().all(|b| *b == 7));
}

#[test]
fn a_config_that_cannot_be_had_names_file_line_and_device() {
    for (text, code, parts) in [
        ("[[device]]\nname = 'd'\ntabel = ''", 1, ["config pond.toml: line", "`tabel`"]),
        (
            "\n[[device]]\nname = 'd'\ntable = '0 8 nothing'",
            1,
            ["config pond.toml: line 3: device d: line 1: nothing: ", "unknown target type"],
        ),
        ("cores = 17", 1, ["--cores 17", "1 to 16 are allowed"]),
        ("nbd = ['0.0.0.0:10809']", 1, ["0.0.0.0:10809", "--allow-remote"]),
    ] {
        let dir = with_config(text);
        let (got, log) = start_fails(dir.path(), &["--config", "pond.toml"]);
        assert_eq!(got, Some(code), "{text}: {log}");
        assert!(parts.iter().all(|p| log.contains(p)), "{text}: {log}");
    }
}

#[test]
fn a_second_daemon_on_a_run_dir_is_refused() {
    let daemon = Daemon::start();
    let (code, log) = start_fails(daemon.dir.path(), &[]);
    assert_eq!(code, Some(4));
    assert!(log.contains(&format!("a daemon runs there already (pid {})", daemon.pid())), "{log}");
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}

#[test]
fn a_file_in_use_by_another_daemon_is_busy() {
    let daemon = Daemon::start();
    let disk = daemon.file("disk.img", 1);
    daemon.create("d", &format!("0 2048 linear {disk} 0"));
    let other = Daemon::start();
    let err = other.cli(&["create", "d", "--table", &format!("0 2048 linear {disk} 0")]).failed(4);
    assert!(err.contains(&disk) && err.contains("EBUSY"), "{err}");
    daemon.cli(&["remove", "d"]).ok();
    other.create("d", &format!("0 2048 linear {disk} 0"));
}

#[test]
fn sockets_are_the_owners_alone() {
    let daemon = Daemon::start();
    let mode = |path: &str| {
        let meta = std::fs::metadata(daemon.run_dir().join(path)).unwrap();
        meta.permissions().mode() & 0o777
    };
    assert_eq!((mode(""), mode("control.sock"), mode("nbd.sock")), (0o700, 0o600, 0o600));
}

#[test]
fn nbd_and_http_are_served_where_they_are_asked_for() {
    let daemon = Daemon::start_with(&["--nbd", "127.0.0.1:0", "--nbd", "unix:more.sock"]);
    daemon.create("d", "0 2048 linear mem:1M 0");
    let version = daemon.cli(&["version", "-o", "json"]).ok();
    let version: serde_json::Value = serde_json::from_str(&version).unwrap();
    let nbd: Vec<&str> =
        version["nbd"].as_array().unwrap().iter().flat_map(|v| v.as_str()).collect();
    assert_eq!(nbd.len(), 3, "{nbd:?}");
    let more = nbd[2].strip_prefix("unix:").unwrap();
    for uri in [format!("nbd://{}/d", nbd[1]), format!("nbd+unix:///?socket={more}")] {
        let output = common::qemu_io(&uri, &["write 0 64k", "read 0 64k"]);
        assert_eq!(output.code, Some(0), "{uri}: {output:?}");
    }
}

#[test]
fn a_daemon_of_several_cores_serves_and_ends_as_one_of_one() {
    let daemon = Daemon::start_with(&["--cores", "3"]);
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let name = |t: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(t.unwrap().path().join("comm")).unwrap().trim().to_owned()
    };
    let mut cores: Vec<String> = threads.map(name).filter(|n| n.starts_with("core")).collect();
    cores.sort();
    assert_eq!(cores, ["core0", "core1", "core2"]);
    assert!(daemon.cli(&["version"]).ok().ends_with("Cores:             3\n"));
    daemon.create("d", "0 2048 linear mem:1M 0");
    // Other cores follow swaps of tables, and hold none up.
    daemon.cli(&["load", "d", "--table", "0 2048 linear mem:1M,other 0"]).ok();
    daemon.cli(&["resume", "d"]).ok();
    let output = common::qemu_io(&daemon.uri("d"), &["write 0 64k", "read 0 64k"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    daemon.signal("-TERM");
    let (status, log, _dir) = daemon.wait();
    assert!(status.success() && log.contains("all devices are settled"), "{log}");
}

#[test]
fn run_gives_a_command_a_device_and_exits_with_its_status() {
    let dir = folder();
    let disk = file_in(dir.path(), "disk.img", 4);
    let table = format!("0 8192 linear {disk} 0");
    let script = "qemu-io -f raw -c 'write -P 3 1M 1M' \"$MILLPOND_URI\" >&2 &&
        test -S \"$MILLPOND_SOCKET\" && \"$0\" ls && exit 7";
    let output = sh(
        MILLPOND,
        &["run", "--table", &table, "--name", "d", "--", "sh", "-c", script, MILLPOND],
    );
    assert_eq!((output.code, output.out.as_str()), (Some(7), "d\t(999:0)\n"), "{output:?}");
    assert!(std::fs::read(disk).unwrap()[1 << 20..2 << 20].iter().all(|b| *b == 3));

    let run =
        |command: &[&str]| sh(MILLPOND, &[&["run", "--table", "0 8 zero", "--"], command].concat());
    assert_eq!(run(&["true"]).code, Some(0));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).code, Some(137));
    assert_eq!(
        run(&["sh", "-c", "trap 'exit 5' TERM; kill -TERM $PPID; while :; do :; done"]).code,
        Some(5)
    );
    let output = run(&["/nonexistent/command"]);
    assert!(output.code == Some(127) && output.err.contains("/nonexistent/command"), "{output:?}");
    let err = sh(MILLPOND, &["run", "--table", "0 8 nothing", "--", "true"]).failed(1);
    assert!(
        err.contains("run: --table: device pond: line 1: ") && err.contains("unknown target type"),
        "{err}"
    );
}

/// The file of a leaf shrinks under the daemon: the log names what failed, where and why.
#[test]
fn a_failing_device_is_told_with_operation_sector_and_cause() {
    let daemon = Daemon::start();
    let path = daemon.file("shrinks.img", 1);
    daemon.create("d", &format!("0 2048 linear {path} 0"));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let output = daemon.qemu_io("d", &["read 64k 4k"]);
    assert!(output.out.contains("Input/output error") || output.err.contains("Input/output error"));
    daemon.signal("-TERM");
    let (_, log, _dir) = daemon.wait();
    let line =
        log.lines().find(|l| l.contains("cause=I/O error")).unwrap_or_else(|| panic!("{log}"));
    for part in [path.as_str(), "op=read", "sector=128", "cause=I/O error", "failures=1"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn many_events_of_a_kind_are_summed_up_in_the_log() {
    let daemon = Daemon::start();
    daemon.create("buf", "0 2048 buffered mem:1M");
    let socket = daemon.run_dir().join("control.sock");
    let url = "http://millpond/v1/devices/buf/attributes/dirty_seconds";
    let mut args = vec!["-s", "-X", "PUT", "-d", r#"{"value": "5"}"#, "--unix-socket"];
    args.push(socket.to_str().unwrap());
    args.extend([url; 200]);
    assert_eq!(sh("curl", &args).code, Some(0));
    // The second is over, and the summary logged.
    assert_eq!(sh("sleep", &["1.5"]).code, Some(0));
    daemon.signal("-TERM");
    let log = daemon.wait().1;
    let lines = log.lines().filter(|line| line.contains("attribute set")).count();
    let summary = log.lines().find(|line| line.contains("more events of buf in this second"));
    assert!((10..100).contains(&lines) && summary.is_some(), "{lines} lines: {log}");
}
