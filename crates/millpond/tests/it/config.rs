// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file: devices that may be missing, attributes, and the check without a start.

use std::path::Path;

use crate::common::{CommandOutput, Daemon, MILLPOND, file_in, folder, start_fails};

const START: [&str; 2] = ["--config", "millpond.toml"];

/// A folder with a configuration and a disk of 16 MiB, `disk.img`.
fn with_config(text: &str) -> tempfile::TempDir {
    let dir = folder();
    std::fs::write(dir.path().join("millpond.toml"), text).unwrap();
    file_in(dir.path(), "disk.img", 16);
    dir
}

fn check(dir: &Path) -> CommandOutput {
    let mut command = std::process::Command::new(MILLPOND);
    command.args(["daemon", "--check-config"]).args(START).current_dir(dir);
    command.output().unwrap().into()
}

#[test]
fn the_daemon_starts_without_an_optional_device_that_is_missing() {
    let dir = with_config(
        "[[device]]\nname = 'gone'\noptional = true\ntable = '0 8 linear ./gone.img 0'\n\
         [[device]]\nname = 'above'\noptional = true\ntable = '0 8 linear gone 0'\n\
         [[device]]\nname = 'here'\ntable = '0 8 linear ./disk.img 0'\n",
    );
    let daemon = Daemon::start_in(dir, &START);
    assert_eq!(daemon.cli(&["ls"]).ok().lines().count(), 1);
    assert!(daemon.cli(&["info", "here"]).ok().contains("LIVE"));
    // A reload tries it again, and is no failure without it: it is one of the service.
    let output = daemon.cli(&["reload"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.err.matches("it is optional: the daemon goes on without it").count(), 2);
    // A saved configuration still has it, for the day when its disk is back.
    daemon.cli(&["save", "millpond.toml", "--force"]).ok();
    file_in(daemon.dir.path(), "gone.img", 1);
    let output = daemon.cli(&["reload"]);
    assert!(output.code == Some(0) && !output.err.contains("optional"), "{output:?}");
    assert_eq!(daemon.cli(&["ls"]).ok().lines().count(), 3);
    let saved = daemon.cli(&["save"]).ok();
    assert_eq!(saved.matches("optional = true").count(), 2, "{saved}");
    assert_eq!(saved.matches("[[device]]").count(), 3, "{saved}");
    daemon.signal("-TERM");
    let (status, _, _) = daemon.wait();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_missing_device_that_is_not_optional_keeps_the_daemon_down() {
    let dir = with_config("[[device]]\nname = 'gone'\ntable = '0 8 linear ./gone.img 0'\n");
    let (code, log) = start_fails(dir.path(), &START);
    assert_eq!(code, Some(3), "{log}");
    assert!(log.contains("line 2: device gone: line 1: linear: "), "{log}");
    assert!(log.contains("gone.img"), "{log}");
}

#[test]
fn attributes_are_set_in_the_order_of_the_file() {
    let dir = with_config(
        "[[device]]\nname = 'ram'\nzram = true\n[device.attributes]\ncomp_algorithm = 'zstd'\n\
         disksize = '64M'\nmem_limit = '32M'\n\
         [[device]]\nname = 'wc'\ntable = '0 8192 writecache s ./disk.img ./cache.img 4096 0'\n\
         attributes = { autocommit_blocks = 17, cleaner = true }\n",
    );
    file_in(dir.path(), "cache.img", 8);
    let daemon = Daemon::start_in(dir, &START);
    assert_eq!(daemon.cli(&["get", "ram", "disksize"]).ok().trim(), "67108864");
    assert!(daemon.cli(&["get", "ram", "comp_algorithm"]).ok().contains("[zstd]"));
    assert_eq!(daemon.cli(&["get", "wc", "autocommit_blocks"]).ok().trim(), "17");
    assert_eq!(daemon.cli(&["get", "wc", "cleaner"]).ok().trim(), "1");
}

#[test]
fn an_attribute_that_is_refused_names_its_device_and_line() {
    let device = "name = 'ram'\nzram = true\nattributes = { disksize = 'big' }\n";
    let dir = with_config(&format!("[[device]]\n{device}"));
    let (code, log) = start_fails(dir.path(), &START);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("millpond.toml: line 2: device ram: "), "{log}");
    assert!(log.contains("disksize"), "{log}");
    // An optional device without its attributes is not there at all.
    let dir = with_config(&format!("[[device]]\noptional = true\n{device}"));
    let daemon = Daemon::start_in(dir, &START);
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}

#[test]
fn a_check_of_a_good_file_disturbs_no_running_daemon() {
    let dir = with_config(
        "default_export = 'wc'\n\
         [[device]]\nname = 'low'\ntable = '0 32768 linear ./disk.img 0'\n\
         [[device]]\nname = 'wc'\ntable = '0 32768 writecache s low ./cache.img 4096 0'\n\
         [[device]]\nname = 'ram'\nzram = true\nattributes = { disksize = '1G' }\n",
    );
    file_in(dir.path(), "cache.img", 8);
    let daemon = Daemon::start_in(dir, &START);
    let files = ["disk.img", "cache.img"].map(|name| daemon.dir.path().join(name));
    let before = files.clone().map(|file| std::fs::read(file).unwrap());
    assert_eq!(check(daemon.dir.path()).ok(), "millpond.toml: 3 devices, no error found\n");
    assert!(before == files.map(|file| std::fs::read(file).unwrap()));
    assert!(daemon.cli(&["info", "wc"]).ok().contains("LIVE"));
}

#[test]
fn a_check_makes_nothing() {
    let dir = with_config("[[device]]\nname = 'd'\ntable = '0 8 linear ./disk.img 0'\n");
    let names = || {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    check(dir.path()).ok();
    assert_eq!(names(), before);
}

#[test]
fn a_check_reports_every_error_with_its_line() {
    let dir = with_config(
        "default_export = 'nobody'\nnbd = ['0.0.0.0:10809']\ncores = 17\n\
         [[device]]\nname = 'a'\ntable = '0 8 nothing'\n\
         [[device]]\nname = 'b'\ntable = '0 8 linear ./gone.img 0'\n\
         [[device]]\nname = 'c'\ntable = '0 65536 linear ./disk.img 0'\n\
         [[device]]\nname = 'd'\ntable = '0 8 linear c 65532'\n\
         [[device]]\nname = 'e'\ntable = '0 8 writecache s ./disk.img mem:8M 4096 1 bloks'\n\
         [[device]]\nname = 'f'\nzram = true\n\
         attributes = { disk_size = '1G', mm_stat = 1, mem_limit = 'x' }\n",
    );
    let text = check(dir.path()).failed(1);
    let wanted = [
        "--nbd 0.0.0.0:10809: ",
        "default_export `nobody`: ",
        "--cores 17: ",
        "line 5: device a: line 1: nothing: unknown target type",
        "line 8: device b: line 1: linear: ",
        "line 11: device c: line 1: linear: ",
        "line 14: device d: line 1: linear: ",
        "line 17: device e: line 1: writecache: Invalid optional argument `bloks`",
        "line 20: device f: attributes: no attribute `disk_size`: did you mean",
        "line 20: device f: attribute `mm_stat` is read-only",
        "line 20: device f: mem_limit",
    ];
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), wanted.len(), "{text}");
    for (line, wanted) in lines.iter().zip(wanted) {
        assert!(line.starts_with("millpond: ") && line.contains(wanted), "{wanted}: {text}");
    }
}

const ONE: &str = "[[device]]\nname = 'one'\ntable = '0 8 linear ./disk.img 0'\n";

/// Adds to the configuration file of a daemon.
fn change(daemon: &Daemon, from: &str, to: &str) {
    let file = daemon.dir.path().join("millpond.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, text.replace(from, to)).unwrap();
}

#[test]
fn reload_creates_new_devices_and_changes_no_other() {
    let daemon = Daemon::start_in(with_config(ONE), &START);
    let reload = || daemon.cli(&["reload"]);
    assert_eq!(reload().ok(), "");
    let new = "'0 16 linear ./disk.img 8'\n[[device]]\nname = 'two'\ntable = '0 8 linear one 0'\n";
    change(&daemon, "'0 8 linear ./disk.img 0'\n", new);
    let output = reload();
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!(output.out, "two\n");
    assert!(output.err.contains("line 2: device one: it exists and differs"), "{output:?}");
    assert!(daemon.cli(&["table", "one"]).ok().starts_with("0 8 linear "));
    change(&daemon, "name = 'one'", "name = 'uno'");
    let output = reload();
    assert!(output.err.contains("device one: it is not in the file any more"), "{output:?}");
    assert!(output.err.contains("device uno: ") || output.out == "uno\n", "{output:?}");
}

/// A file whose tables name devices as `/dev/mapper/NAME` or by their numbers was said to be wrong,
/// and the daemon started with it.
#[test]
fn the_check_knows_devices_by_all_their_names() {
    let device = |(name, below): (&str, &str)| {
        format!("[[device]]\nname = '{name}'\ntable = '0 8 linear {below} 0'\n")
    };
    let names = [("a", "./disk.img"), ("b", "/dev/mapper/a"), ("c", "999:0"), ("d", "dm-1")];
    let dir = with_config(&names.map(device).concat());
    assert!(check(dir.path()).ok().contains("4 devices, no error found"));
    let daemon = Daemon::start_in(dir, &START);
    assert_eq!(daemon.cli(&["ls"]).ok().lines().count(), 4);
    daemon.cli(&["remove", "d", "c", "b", "a"]).ok();
    let dir = with_config(&[("a", "999:1"), ("b", "999:1")].map(device).concat());
    assert_eq!(check(dir.path()).failed(3).lines().count(), 2, "neither is there yet");
}

/// The file was compared with what it had been at the start: a table that it had by now was said to
/// be another one, and so was each device that was saved since.
#[test]
fn the_file_is_compared_as_it_is_now() {
    let cached = "[[device]]\nname = 'one'\n\
                  table = '0 8192 writecache s ./origin.img ./cache.img 4096 1 no_guard'\n";
    let dir = with_config(cached);
    for (name, mib) in [("origin.img", 4), ("cache.img", 2)] {
        file_in(dir.path(), name, mib);
    }
    let daemon = Daemon::start_in(dir, &START);
    change(
        &daemon,
        "writecache s ./origin.img ./cache.img 4096 1 no_guard",
        "linear ./origin.img 0",
    );
    assert!(daemon.cli(&["uncache", "one"]).ok().contains("holds nothing"));
    assert_eq!(daemon.cli(&["reload"]).ok(), "");
    daemon.create("two", "0 8 zero");
    daemon.cli(&["load", "one", "--table", "0 8 linear ./origin.img 8"]).ok();
    daemon.cli(&["resume", "one"]).ok();
    let warned = daemon.cli(&["resize", "one", "8K"]);
    assert!(warned.err.contains("has another table of one"), "{warned:?}");
    daemon.cli(&["save", "millpond.toml", "--force"]).ok();
    assert_eq!(daemon.cli(&["reload"]).ok(), "");
    change(&daemon, "0 8 zero", "0 16 zero");
    let warned = daemon.cli(&["reload"]);
    assert!(warned.err.contains("device two: it exists and differs"), "{warned:?}");
}

/// The runbook advises a length of `-`, and each `resize` warned of it as another table.
#[test]
fn a_length_of_the_whole_device_is_no_other_table() {
    let daemon = Daemon::start_in(with_config(&ONE.replace("0 8 ", "0 - ")), &START);
    let disk = std::fs::File::options().write(true).open(daemon.dir.path().join("disk.img"));
    disk.unwrap().set_len(32 << 20).unwrap();
    assert!(daemon.cli(&["resize", "one"]).ok().contains("was 16.0 MiB"));
    daemon.cli(&["load", "one", "--table", "0 8 linear ./disk.img 8"]).ok();
    daemon.cli(&["resume", "one"]).ok();
    let warned = daemon.cli(&["resize", "one"]);
    assert!(warned.err.contains("has another table of one"), "{warned:?}");
}

#[test]
fn reload_reports_what_it_can_not_apply() {
    let daemon = Daemon::start_in(with_config(ONE), &START);
    let new = "cores = 2\n[[device]]\nname = 'bad'\ntable = '0 8 linear ./gone.img 0'\n[[device]]";
    change(&daemon, "[[device]]", new);
    let output = daemon.cli(&["reload"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("take effect at the next start"), "{output:?}");
    assert!(output.err.contains("line 3: device bad: line 1: linear: "), "{output:?}");
    change(&daemon, "[[device]]", "[[devices]]");
    let text = daemon.cli(&["reload"]).failed(1);
    assert!(text.contains("unknown field `devices`"), "{text}");
    assert_eq!(daemon.cli(&["ls"]).ok().lines().count(), 1);
}

#[test]
fn sighup_reads_the_file_again() {
    let daemon = Daemon::start_in(with_config(ONE), &START);
    change(&daemon, "[[device]]", "[[device]]\nname = 'two'\ntable = '0 8 zero'\n[[device]]");
    daemon.signal("-HUP");
    // Each look takes a process of its own, a millisecond at least.
    let created = (0..10_000).any(|_| daemon.cli(&["ls"]).ok().lines().count() == 2);
    assert!(created, "it is not created");
    // One that can't be read changes nothing, and ends nothing.
    change(&daemon, "[[device]]", "[[");
    daemon.signal("-HUP");
    assert_eq!(daemon.cli(&["ls"]).ok().lines().count(), 2);
    daemon.signal("-TERM");
    let (status, log, _) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("created=1 failed=0"), "{log}");
}

#[test]
fn reload_needs_a_file_or_a_name() {
    let daemon = Daemon::start();
    let text = daemon.cli(&["reload"]).failed(1);
    assert!(text.contains("started without --config"), "{text}");
    daemon.create("d", "0 8 zero");
    daemon.cli(&["reload", "d", "--table", "0 16 zero"]).ok();
    daemon.cli(&["resume", "d"]).ok();
    assert_eq!(daemon.cli(&["table", "d"]).ok(), "0 16 zero \n");
}

#[test]
fn stop_returns_when_the_daemon_has_ended() {
    let daemon = Daemon::start_in(with_config(ONE), &START);
    daemon.cli(&["stop"]).ok();
    // The same run directory is free at once.
    let (status, log, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("shutting down, by request"), "{log}");
    let daemon = Daemon::start_in(dir, &START);
    daemon.cli(&["stop", "--no-wait"]).ok();
    let (status, _, dir) = daemon.wait();
    assert_eq!(status.code(), Some(0));
    let run = dir.path().join("run");
    let mut command = std::process::Command::new(MILLPOND);
    let output = command.arg("--run-dir").arg(run).arg("stop").output().unwrap();
    let text = CommandOutput::from(output).failed(1);
    assert!(text.contains("no daemon answers"), "{text}");
}

/// Its first line is opened, or its table is live and its cache formatted, before it fails: nothing
/// of it stays open, and its name is free.
#[test]
fn a_device_that_fails_half_way_leaves_nothing_behind() {
    let dir = with_config(
        "[[device]]\nname = 'a'\noptional = true\n\
         table = \"\"\"\n0 8 linear ./disk.img 0\n8 8 linear ./gone.img 0\n\"\"\"\n\
         [[device]]\nname = 'b'\noptional = true\n\
         table = '0 8192 writecache s ./origin.img ./cache.img 4096 0'\n\
         attributes = { low_watermark = 10, high_watermark = 101 }\n",
    );
    for name in ["origin.img", "cache.img"] {
        file_in(dir.path(), name, 8);
    }
    let daemon = Daemon::start_in(dir, &START);
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
    // They are free for other processes,
    let tool = |args: &[&str]| -> CommandOutput {
        let mut command = std::process::Command::new(MILLPOND);
        command.args(args).current_dir(daemon.dir.path());
        command.output().unwrap().into()
    };
    for files in [["origin.img", "cache.img"], ["disk.img", "cache.img"]] {
        let other = folder();
        let second = Daemon::start_in(other, &[]);
        for (nth, file) in files.into_iter().enumerate() {
            let table = format!("0 8 linear {}/{file} 0", daemon.dir.path().display());
            second.create(&format!("x{nth}"), &table);
        }
    }
    assert!(tool(&["inspect", "cache.img"]).out.contains("superblock"), "it was formatted");
    // and for devices of these names.
    daemon.create("a", "0 8 linear ./disk.img 0");
    daemon.create("b", "0 8192 writecache s ./origin.img ./cache.img 4096 0");
}
