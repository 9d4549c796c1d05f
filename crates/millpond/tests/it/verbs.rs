// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every verb against a running daemon: its output, its errors and its exit codes.

use crate::common::{self, Daemon, MILLPOND, folder};

#[test]
fn create_and_the_listings_print_what_dmsetup_prints() {
    let daemon = Daemon::start();
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
    daemon.create("low", "0 8192 linear mem:4M 0");
    daemon.cli_with(&["create", "top", "--uuid", "u-1"], "0 4096 linear low 0\n4096 8 zero\n").ok();
    assert_eq!(daemon.cli(&["ls"]).ok(), "low\t(999:0)\ntop\t(999:1)\n");
    assert_eq!(daemon.cli(&["ls", "--target", "zero"]).ok(), "top\t(999:1)\n");
    assert_eq!(daemon.cli(&["ls", "--tree"]).ok(), "top (999:1)\n └─low (999:0)\n    └─(mem:4M)\n");
    assert_eq!(daemon.cli(&["table", "top"]).ok(), "0 4096 linear low 0\n4096 8 zero \n");
    assert_eq!(
        daemon.cli(&["status"]).ok(),
        "low: 0 8192 linear \ntop: 0 4096 linear \ntop: 4096 8 zero \n"
    );
    assert_eq!(daemon.cli(&["status", "--target", "zero"]).ok(), "top: 4096 8 zero \n");
    assert_eq!(daemon.cli(&["deps", "low"]).ok(), "1 dependencies\t: (mem:4M)\n");
    assert_eq!(
        daemon.cli(&["deps"]).ok(),
        "low: 1 dependencies\t: (mem:4M)\ntop: 1 dependencies\t: (999, 0)\n"
    );
    assert_eq!(
        daemon.cli(&["info", "top"]).ok(),
        "Name:              top\n\
         State:             ACTIVE\n\
         Read Ahead:        0\n\
         Tables present:    LIVE\n\
         Open count:        0\n\
         Event number:      0\n\
         Major, minor:      999, 1\n\
         Number of targets: 2\n\
         UUID: u-1\n\n"
    );
    assert_eq!(
        daemon.cli(&["info", "-c"]).ok(),
        format!(
            "Name             Maj Min Stat Open Targ Event  UUID{0}\n\
             low              999   0 L--w    1    1      0     {0}\n\
             top              999   1 L--w    0    2      0 u-1 {0}\n",
            " ".repeat(28)
        )
    );
    let targets = daemon.cli(&["targets"]).ok();
    for name in ["linear           v1.", "striped          v1.", "writecache       v1."] {
        assert!(targets.contains(name), "{targets}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        daemon.cli(&["version"]).ok(),
        format!(
            "Library version:   {version}\nDriver version:    {version}\nCores:             1\n"
        )
    );
}

#[test]
fn every_listing_has_json() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    for args in [
        &["status"][..],
        &["status", "d"],
        &["table"],
        &["info"],
        &["info", "d"],
        &["ls"],
        &["ls", "--tree"],
        &["deps", "d"],
        &["deps"],
        &["targets"],
        &["get", "d"],
        &["version"],
    ] {
        let out = daemon.cli(&[args, &["-o", "json"]].concat()).ok();
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(json.is_array() || json.is_object(), "{args:?}: {out}");
    }
    let out = daemon.cli(&["table", "d", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        json,
        serde_json::json!([{"start": 0, "length": 8, "target": "zero", "params": ""}])
    );
}

#[test]
fn load_resume_clear_and_suspend_move_tables_between_the_slots() {
    let daemon = Daemon::start();
    let stat = |name: &str| {
        let out = daemon.cli(&["info", "-c", name]).ok();
        out.lines().nth(1).unwrap().split_whitespace().nth(3).unwrap().to_owned()
    };
    daemon.cli(&["create", "d", "--notable"]).ok();
    assert_eq!(stat("d"), "---w");
    daemon.cli(&["load", "d", "--table", "0 8 zero"]).ok();
    assert_eq!(stat("d"), "-I-w");
    daemon.cli(&["resume", "d"]).ok();
    assert_eq!(stat("d"), "L--w");
    std::fs::write(daemon.dir.path().join("t"), "# longer\n0 16 zero\n").unwrap();
    daemon.cli(&["reload", "d", "--table-file", "t"]).ok();
    assert_eq!(stat("d"), "LI-w");
    daemon.cli(&["clear", "d"]).ok();
    assert_eq!(stat("d"), "L--w");
    daemon.cli(&["suspend", "d", "--noflush", "--nolockfs"]).ok();
    assert_eq!(stat("d"), "L-sw");
    daemon.cli_with(&["load", "d"], "0 24 zero").ok();
    daemon.cli(&["resume", "d"]).ok();
    assert_eq!(daemon.cli(&["table", "d"]).ok(), "0 24 zero \n");
}

#[test]
fn remove_rename_and_wait_know_busy_and_gone() {
    let daemon = Daemon::start();
    daemon.create("low", "0 8 linear mem:4K 0");
    daemon.create("top", "0 8 linear low 0");
    let err = daemon.cli(&["remove", "low"]).failed(4);
    assert!(err.contains("remove low: ") && err.contains("top") && err.contains("EBUSY"), "{err}");
    let err = daemon.cli(&["rename", "top", "low"]).failed(1);
    assert!(err.contains("EEXIST"), "{err}");
    daemon.cli(&["rename", "top", "tip"]).ok();
    daemon.cli(&["rename", "tip", "--setuuid", "u"]).ok();
    // The renaming was event 1.
    let event = daemon.cli(&["wait", "tip", "0", "-o", "json"]).ok();
    assert_eq!(event, "{\n  \"event_nr\": 1\n}\n");
    daemon.cli(&["remove", "tip", "low"]).ok();
    let err = daemon.cli(&["remove", "tip"]).failed(3);
    let hint = "`millpond ls` lists those that there are";
    assert_eq!(err, format!("millpond: remove tip: no such device: {hint} (ENXIO)\n"));
    for verb in [&["get", "nope"][..], &["drain", "nope"], &["set", "nope", "a", "1"]] {
        let err = daemon.cli(verb).failed(3);
        assert!(err.contains(hint), "{verb:?}: {err}");
    }
    daemon.create("a", "0 8 zero");
    daemon.create("b", "0 8 linear a 0");
    daemon.cli(&["remove_all"]).ok();
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}

#[test]
fn wait_ends_with_the_next_event() {
    let daemon = Daemon::start();
    daemon.create("bad", "0 16 error");
    daemon.create("d", "0 16 striped 1 8 bad 0");
    std::thread::scope(|s| {
        let waiter = s.spawn(|| daemon.cli(&["wait", "d", "0"]).ok());
        assert_ne!(daemon.qemu_io("d", &["read 0 4k"]).code, Some(0));
        assert_eq!(waiter.join().unwrap(), "");
    });
    assert!(!daemon.cli(&["info", "d"]).ok().contains("Event number:      0"));
}

#[test]
fn errors_say_what_was_wrong_and_what_is_allowed() {
    let daemon = Daemon::start();
    let small = daemon.file("small.img", 1);
    for (table, code, parts) in [
        ("0 8 nothing", 1, ["create d: line 1: nothing: unknown target type", "linear"]),
        ("0 8 linear nobody 0", 3, ["line 1: linear: ", "mem:SIZE"]),
        ("8 8 zero", 1, ["line 1: zero: Gap in table", "must start at 0"]),
        ("0 4096 linear ./small.img 0", 1, ["small.img too small for target", "dev_size=2048"]),
        ("0 8 linear ./nothere.img 0", 3, ["nothere.img", "ENOENT"]),
        ("0 8 writecache s mem:4M mem:4M 4096 0", 1, ["line 1: writecache: ", "the same device"]),
    ] {
        let err = daemon.cli(&["create", "d", "--table", table]).failed(code);
        assert!(parts.iter().all(|p| err.contains(p)), "{table}: {err}");
    }
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
    drop(small);
    let err = daemon.cli(&["create", "d", "--table", "0 8 zero", "--notable"]).failed(2);
    assert!(err.contains("--notable"), "{err}");
    let err = daemon.cli(&["frobnicate"]).failed(2);
    assert!(err.contains("frobnicate"), "{err}");
    daemon.create("d", "0 8 zero");
    let err = daemon.cli(&["get", "d", "colour"]).failed(3);
    assert!(err.contains("get d: no attribute `colour`"), "{err}");
    let err = daemon.cli(&["message", "d", "0", "flush"]).failed(1);
    assert!(err.contains("message d: line 1: zero: ") && err.contains("EINVAL"), "{err}");
}

/// Whatever follows, and also where help is asked for.
#[test]
fn a_verb_that_went_is_refused_with_the_ways_that_work() {
    let shrink = ["shrink-cache", "--cache", "c.img", "--origin", "o.img", "--size", "1M"];
    for args in [&shrink[..], &["shrink-cache"], &["--run-dir", "/tmp", "shrink-cache", "x"]] {
        let err = common::sh(MILLPOND, args).failed(2);
        for part in ["shrink-cache: millpond 0.2 was the last", "`millpond replace-cache", "wipe`"]
        {
            assert!(err.contains(part), "{args:?}: {err}");
        }
    }
    let err = common::sh(MILLPOND, &["reproduce", "--sim"]).failed(2);
    assert!(err.contains("reproduce: it is a program of its own"), "{err}");
    let err = common::sh(MILLPOND, &["bench", "--raw", "mem:1M"]).failed(2);
    for part in ["bench: it is a program of its own", "-p loadgen -- ", "`fio --ioengine=nbd "] {
        assert!(err.contains(part), "{err}");
    }
    let err = common::sh(MILLPOND, &["help", "shrink-cache"]).failed(3);
    assert!(err.contains("`millpond replace-cache"), "{err}");
}

#[test]
fn without_a_daemon_the_message_names_socket_and_command() {
    let dir = common::folder();
    let run_dir = dir.path().join("run").to_str().unwrap().to_owned();
    let err = common::sh(common::MILLPOND, &["--run-dir", &run_dir, "ls"]).failed(1);
    assert!(err.contains(&format!("{run_dir}/control.sock")), "{err}");
    assert!(err.contains(&format!("millpond daemon --run-dir {run_dir}")), "{err}");
}

#[test]
fn a_write_cache_is_made_written_flushed_and_asked() {
    let daemon = Daemon::start();
    daemon.file("origin.img", 32);
    daemon.file("cache.img", 16);
    daemon.create("wc", "0 65536 writecache s ./origin.img ./cache.img 4096 0");
    let text = daemon.qemu_io("wc", &["write -P 9 64k 1M", "flush", "read -P 9 64k 1M"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    let get = |attr: &str| daemon.cli(&["get", "wc", attr]).ok().trim().parse::<u64>().unwrap();
    let (dirty, writes) = (get("dirty_blocks"), get("origin_writes"));
    assert!(dirty == 256 || writes > 0, "{dirty} dirty, {writes} writes");
    daemon.cli(&["message", "wc", "0", "flush"]).ok();
    assert_eq!(get("dirty_blocks"), 0);
    let status = daemon.cli(&["status", "wc"]).ok();
    assert!(status.starts_with("0 65536 writecache 0 "), "{status}");
    assert_eq!(status.split_whitespace().count(), 3 + 14, "{status}");
    let all = daemon.cli(&["get", "wc"]).ok();
    assert!(all.contains("dirty_blocks 0\n"), "{all}");
    let err = daemon.cli(&["set", "wc", "dirty_blocks", "7"]).failed(1);
    assert!(err.contains("set wc: "), "{err}");
}

#[test]
fn a_flush_that_takes_long_shows_its_progress() {
    let daemon = Daemon::start();
    // Writes of the origin take 1.1 s, and so does the flush after them.
    daemon.create("slow", "0 65536 delay mem:32M 0 0 mem:32M 0 1100");
    let options = "4 high_watermark 99 low_watermark 98";
    daemon.create("wc", &format!("0 65536 writecache s slow mem:64M 4096 {options}"));
    assert_eq!(daemon.qemu_io("wc", &["write -P 9 0 10M"]).code, Some(0));
    let text = daemon.cli(&["message", "wc", "0", "flush"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    let line = text.err.lines().last().unwrap_or_default();
    let parts = ["millpond: flushing wc: ", " of 2560 blocks (", " blocks/s, ", " s left"];
    assert!(parts.iter().all(|p| line.contains(p)), "{text:?}");
}

/// Found by hand: two write caches formatted and filled the same cache file, side by side.
#[test]
fn a_device_is_in_one_write_cache_at_a_time() {
    let daemon = Daemon::start();
    let line = |origin: &str, cache: &str| format!("0 16384 writecache s {origin} {cache} 4096 0");
    daemon.create("a", &line("mem:8M,o1", "mem:4M,c1"));
    for (origin, cache, taken) in [
        ("mem:8M,o2", "mem:4M,c1", "mem:4M,c1"),
        ("mem:8M,o1", "mem:4M,c2", "mem:8M,o1"),
        ("mem:8M,o2", "mem:8M,o1", "mem:8M,o1"),
    ] {
        let e = daemon.cli(&["create", "b", "--table", &line(origin, cache)]).failed(4);
        let parts = ["line 1: writecache: sectors 0 to ", taken, " of a (writecache)"];
        assert!(parts.iter().all(|part| e.contains(part)), "{e}");
    }
    // The same device may name them again, under a new name too; and whoever comes after it.
    daemon.cli(&["rename", "a", "z"]).ok();
    daemon.cli(&["load", "z", "--table", &line("mem:8M,o1", "mem:4M,c1")]).ok();
    daemon.cli(&["resume", "z"]).ok();
    daemon.cli(&["remove", "z"]).ok();
    daemon.create("b", &line("mem:8M,o1", "mem:4M,c1"));
}

/// `millpond ... 2>&1 | head -1`: the next line on standard error was a panic, of `recover` in the
/// middle of its work.
#[test]
fn a_standard_error_that_nobody_reads_is_no_panic() {
    let dir = folder();
    let dmsetup = dir.path().join("dmsetup");
    std::os::unix::fs::symlink(MILLPOND, &dmsetup).unwrap();
    std::fs::write(dir.path().join("bad.toml"), "[[device]]\nname = 'a'\ntable = '0 8 no'")
        .unwrap();
    let check = ["daemon", "--config", "bad.toml", "--check-config"];
    for (program, args, code) in [
        (MILLPOND.as_ref(), &["version"][..], 0),
        (MILLPOND.as_ref(), &check, 1),
        (dmsetup.as_path(), &["info", "a"], 1),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = std::process::Command::new(program);
        command.args(args).current_dir(dir.path()).env("MILLPOND_RUN_DIR", dir.path().join("run"));
        command.stdout(std::process::Stdio::null()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(code), "{args:?}");
    }
}
