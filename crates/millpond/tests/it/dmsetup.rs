// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program called as `dmsetup`: what it prints is what dmsetup 1.02.185 printed for devices
//! like these (blanks at ends of lines included), and an error for what it can't do.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{self, CommandOutput, Daemon};

/// A daemon, and a link to the program beside it.
pub(crate) struct Dm {
    pub(crate) daemon: Daemon,
    link: PathBuf,
}

impl Dm {
    pub(crate) fn start() -> Dm {
        let daemon = Daemon::start();
        let link = daemon.dir.path().join("dmsetup");
        std::os::unix::fs::symlink(common::MILLPOND, &link).unwrap();
        Dm { daemon, link }
    }

    /// Two linear devices on top of each other and one that is not ready; what the golden texts
    /// are about.
    fn with_three() -> Dm {
        let dm = Dm::start();
        dm.run(&["create", "low", "--table", "0 8192 linear mem:4M 0"]).ok();
        let table = "0 4096 linear low 0\n4096 8 zero\n";
        dm.run_with(&["create", "top", "-u", "u-1"], table).ok();
        dm.run(&["create", "new", "--notable"]).ok();
        dm.run(&["load", "new", "--table", "0 8 error"]).ok();
        dm
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.link);
        command.env("MILLPOND_RUN_DIR", self.daemon.run_dir()).env("LC_ALL", "C.UTF-8");
        command.current_dir(self.daemon.dir.path());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.run_with(args, "")
    }

    pub(crate) fn run_with(&self, args: &[&str], stdin: &str) -> CommandOutput {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The command may not want it.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        child.wait_with_output().unwrap().into()
    }

    /// Runs it with words that hold no blanks.
    pub(crate) fn say(&self, line: &str) -> CommandOutput {
        self.run(&line.split(' ').collect::<Vec<_>>())
    }
}

#[test]
fn create_load_and_the_rest_of_a_life_cycle_print_nothing() {
    let dm = Dm::with_three();
    std::fs::write(dm.daemon.dir.path().join("t"), "0 16 zero\n").unwrap();
    for line in ["create file t", "reload top t", "resume top", "suspend --noflush --nolockfs top"]
    {
        assert_eq!(dm.say(line).ok(), "", "{line}");
    }
    assert_eq!(dm.say("table top").ok(), "0 16 zero \n");
    for (line, stat) in [
        ("resume top", "L--w\n"),
        ("load top --table-file t", "LI-w\n"),
        ("clear top", "L--w\n"),
        ("wipe_table top", "L--w\n"),
        ("suspend -u u-1", "L-sw\n"),
        ("resume -j 999 -m 1 --addnodeonresume --readahead auto", "L--w\n"),
    ] {
        assert_eq!(dm.say(line).ok(), "", "{line}");
        assert_eq!(dm.say("info -c --noheadings -o attr -u u-1").ok(), stat, "{line}");
    }
    assert_eq!(dm.say("table top").ok(), "0 16 error \n");
    dm.run_with(&["load", "-u", "u-1"], "0 24 zero").ok();
    assert_eq!(dm.say("table --inactive top").ok(), "0 24 zero \n");
    for line in ["rename top tip", "rename low --setuuid u-2", "remove -u u-1", "mknodes low"] {
        assert_eq!(dm.say(line).ok(), "", "{line}");
    }
    assert_eq!(dm.say("setgeometry low 1 2 3 4").ok(), "");
    assert_eq!(dm.say("remove --retry --noudevsync file new").ok(), "");
    assert_eq!(dm.say("info -c --noheadings -o name,uuid").ok(), "low:u-2\n");
    assert_eq!(dm.say("remove_all").ok(), "");
    for line in ["ls", "ls --tree", "info", "info -c", "status", "table", "table --concise", "deps"]
    {
        assert_eq!(dm.say(line).ok(), "No devices found\n", "{line}");
    }
    assert_eq!(dm.say("mangle").ok(), "No devices found\n");
}

#[test]
fn the_listings_are_dmsetups() {
    let dm = Dm::with_three();
    for (line, want) in [
        ("ls", "low\t(999:0)\nnew\t(999:2)\ntop\t(999:1)\n"),
        ("ls -o blkdevname", "low\t(dm-0)\nnew\t(dm-2)\ntop\t(dm-1)\n"),
        ("ls -o devname", "low\t(low)\nnew\t(new)\ntop\t(top)\n"),
        ("ls --target linear", "low\t(999, 0)\ntop\t(999, 1)\n"),
        ("ls --target nope", ""),
        ("deps top", "1 dependencies\t: (999, 0)\n"),
        (
            "deps",
            "low: 1 dependencies\t: (mem:4M)\nnew: 0 dependencies\t:\n\
                  top: 1 dependencies\t: (999, 0)\n",
        ),
        ("deps -o devname top", "1 dependencies\t: (low)\n"),
        ("deps -o blkdevname top", "1 dependencies\t: (dm-0)\n"),
        ("status", "low: 0 8192 linear \nnew: \ntop: 0 4096 linear \ntop: 4096 8 zero \n"),
        ("status top", "0 4096 linear \n4096 8 zero \n"),
        (
            "status low top --noflush",
            "low: 0 8192 linear \ntop: 0 4096 linear \n\
                                      top: 4096 8 zero \n",
        ),
        ("status --target zero", "top: 4096 8 zero \n"),
        ("status top --target linear", "0 4096 linear \n"),
        ("status low --target zero", ""),
        ("status new", "\n"),
        ("table --showkeys low", "0 8192 linear mem:4M 0\n"),
        ("table --inactive new", "0 8 error \n"),
        (
            "table --concise",
            "low,,0,rw,0 8192 linear mem:4M 0;new,,2,rw;\
                             top,u-1,1,rw,0 4096 linear low 0,4096 8 zero \n",
        ),
        ("table --concise --target zero", "top,u-1,1,rw,4096 8 zero \n"),
        ("mangle top", "top: u-1: name and UUID already in correct form\n"),
        ("mangle low", "low: [no UUID]: name already in correct form\n"),
        ("target-version zero", "zero             v1.2.0\n"),
    ] {
        assert_eq!(dm.say(line).ok(), want, "{line}");
    }
    assert!(dm.say("targets").ok().contains("linear           v1."));
    let version = env!("CARGO_PKG_VERSION");
    for line in ["version", "--version"] {
        assert_eq!(
            dm.say(line).ok(),
            format!("Library version:   {version}\nDriver version:    {version}\n")
        );
    }
}

#[test]
fn info_is_dmsetups() {
    let dm = Dm::with_three();
    let top = "Name:              top\n\
               State:             ACTIVE\n\
               Read Ahead:        0\n\
               Tables present:    LIVE\n\
               Open count:        0\n\
               Event number:      0\n\
               Major, minor:      999, 1\n\
               Number of targets: 2\n\
               UUID: u-1\n\n";
    for line in [
        "info top",
        "-v info top",
        "info -u u-1",
        "-j 999 -m 1 info",
        "info /dev/mapper/top",
        "info /dev/dm-1",
        "info /anywhere/dev/top",
        "info /anywhere/dev/mapper/top",
    ] {
        assert_eq!(dm.say(line).ok(), top, "{line}");
    }
    assert_eq!(dm.say("table -v top").ok(), format!("{top}0 4096 linear low 0\n4096 8 zero \n"));
    assert_eq!(dm.say("deps -v top").ok(), format!("{top}1 dependencies\t: (999, 0)\n"));
    let verbose = dm.say("suspend -v top").ok();
    assert_eq!(verbose, top.replace("ACTIVE", "SUSPENDED"));
}

#[test]
fn info_in_columns_is_dmsetups() {
    let dm = Dm::with_three();
    let end = " ".repeat(28);
    for (line, want) in [
        (
            "info -c",
            format!(
                "Name             Maj Min Stat Open Targ Event  UUID{end}\n\
                 low              999   0 L--w    1    1      0     {end}\n\
                 new              999   2 -I-w    0    0      0     {end}\n\
                 top              999   1 L--w    0    2      0 u-1 {end}\n"
            ),
        ),
        ("info -c --noheadings -o name,open", "low:1\nnew:0\ntop:0\n".into()),
        ("info -C --noheadings top", "top:999:1:L--w:0:2:0:u-1\n".into()),
        ("info -c -o name,open --rows", "Name low new top\nOpen 1 0 0\n".into()),
        ("info -c --separator | -o name,minor", "Name|Min\nlow|0\nnew|2\ntop|1\n".into()),
        (
            "info -c --nameprefixes --unquoted -o name,uuid --noheadings",
            "DM_NAME=low:DM_UUID=\nDM_NAME=new:DM_UUID=\nDM_NAME=top:DM_UUID=u-1\n".into(),
        ),
        (
            "info -c -O -open,minor -o minor,name",
            "Min Name            \n  0 low             \n  1 top             \n  \
             2 new             \n"
                .into(),
        ),
        (
            "info -c -o +read_ahead top",
            format!(
                "Name             Maj Min Stat Open Targ Event  UUID{end} RAhead\n\
                 top              999   1 L--w    0    2      0 u-1 {end}      0\n"
            ),
        ),
        (
            "info -c -o tables_loaded,suspended,readonly,devno,device_count,devs_used",
            "Tables   Suspended Read-only DevNo #Devs DevNamesUsed    \n\
             Live     Active    Writeable 999:0     1                 \n\
             Inactive Active    Writeable 999:2     0                 \n\
             Live     Active    Writeable 999:1     1 low             \n"
                .into(),
        ),
        (
            "info -c -o devnos_used,device_ref_count,names_using_dev,devnos_using_dev",
            "DevNosUsed       #Refs RefNames RefDevNos\n\
             mem:4M               1 top      999:1    \n                     0                   \n\
             999:0                0                   \n"
                .into(),
        ),
        ("splitname v--g-lv-real", "VG   LV   LVLayer\nv-g  lv   real   \n".into()),
        ("splitname vg-lv LVM -o lv_name --noheadings", "lv\n".into()),
    ] {
        assert_eq!(dm.say(line).ok(), want, "{line}");
    }
    assert!(dm.say("info -c -o help").ok().contains("names_using_dev"));
}

#[test]
fn trees_are_dmsetups() {
    let dm = Dm::with_three();
    for (line, want) in [
        ("ls --tree", "new (999:2)\ntop (999:1)\n └─low (999:0)\n    └─(mem:4M)\n"),
        ("ls --tree -o ascii,nodevice", "new\ntop\n `-low\n"),
        (
            "ls --tree -o utf,inverted,active,open,uuid",
            "(mem:4M)\n └─low (999:0) [ACTIVE, 1, ]\n    └─top (999:1) [ACTIVE, 0, u-1]\n\
             new (999:2) [ACTIVE, 0, ]\n",
        ),
    ] {
        assert_eq!(dm.say(line).ok(), want, "{line}");
    }
    let mut plain = dm.command();
    plain.args(["ls", "--tree"]).env("LC_ALL", "C");
    let text: CommandOutput = plain.output().unwrap().into();
    assert_eq!(text.ok(), "new (999:2)\ntop (999:1)\n `-low (999:0)\n    `-(mem:4M)\n");
}

#[test]
fn messages_exec_and_names_with_blanks_go_where_they_should() {
    let dm = Dm::start();
    dm.run(&["create", "my dev", "--table", "0 8 zero"]).ok();
    assert_eq!(
        dm.run(&["info", "-c", "--noheadings", "-o", "name,mangled_name"]).ok(),
        "my dev:my\\x20dev\n"
    );
    assert_eq!(dm.run(&["table", "my\\x20dev"]).ok(), "0 8 zero \n");
    assert_eq!(dm.run(&["table", "/dev/mapper/my\\x20dev"]).ok(), "0 8 zero \n");
    assert_eq!(dm.run(&["ls", "--exec", "echo is  at"]).ok(), "is at /dev/mapper/my\\x20dev\n");
    let mut exec = dm.command();
    exec.args(["ls", "--target", "zero", "--exec", "echo"]).env("DM_DEV_DIR", "/pond/dev");
    let text: CommandOutput = exec.output().unwrap().into();
    assert_eq!(text.ok(), "/pond/dev/mapper/my\\x20dev\n");
    dm.daemon.file("origin.img", 8);
    dm.run(&["create", "wc", "--table", "0 16384 writecache s ./origin.img mem:4M 4096 0"]).ok();
    assert_eq!(dm.say("message wc 0 flush").ok(), "");
    assert_eq!(dm.say("message /dev/mapper/wc 0 clear_stats").ok(), "");
    assert!(dm.say("status wc").ok().starts_with("0 16384 writecache 0 "));
    let refused = dm.say("message wc 0 bogus").failed(1);
    assert!(refused.starts_with("device-mapper: message ioctl on wc  failed: Invalid argument\n"));
    assert!(refused.ends_with("Command failed.\n"), "{refused}");
}

#[test]
fn a_concise_list_that_was_printed_can_be_read_again() {
    let dm = Dm::start();
    let list = "a,u\\,1,7,rw,0 8 linear mem:4K\\,x 0,8 8 zero;b,,,,0 8 linear a 0";
    dm.run(&["create", "--concise", list]).ok();
    let printed = dm.say("table --concise").ok();
    assert_eq!(printed, "a,u\\,1,7,rw,0 8 linear mem:4K\\,x 0,8 8 zero ;b,,0,rw,0 8 linear a 0\n");
    dm.say("remove_all").ok();
    dm.run_with(&["create", "--concise"], &printed).ok();
    assert_eq!(dm.say("table --concise").ok(), printed);
}

#[test]
fn wait_ends_with_the_next_event() {
    let dm = Dm::start();
    dm.run(&["create", "bad", "--table", "0 16 error"]).ok();
    dm.run(&["create", "d", "--table", "0 16 striped 1 8 bad 0"]).ok();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| dm.say("wait d").ok());
        // Whether it waits already or not: it waits for an event number other than 0.
        assert_ne!(dm.daemon.qemu_io("d", &["read 0 4k"]).code, Some(0));
        assert_eq!(waiter.join().unwrap(), "");
    });
    let seen = dm.say("info -c --noheadings -o events d").ok();
    assert_ne!(seen, "0\n");
    let shown = dm.say("wait -v d 0").ok();
    assert!(shown.contains(&format!("Event number:      {seen}")), "{shown}");
}

#[test]
fn what_fails_ends_with_1_and_says_dmsetups_line_and_the_cause() {
    let dm = Dm::with_three();
    for (line, parts) in [
        ("info nope", &["Device does not exist.\n", "Device nope not found\n"][..]),
        ("info -c nope", &["Device does not exist.\n"]),
        ("status nope", &["Device does not exist.\n"]),
        (
            "table nope",
            &["device-mapper: table ioctl on nope  failed: No such device or address\n"],
        ),
        ("deps nope", &["deps ioctl on nope  failed", "Device nope not found\n"]),
        (
            "remove nope",
            &[
                "remove ioctl on nope  failed: No such device or address\n",
                "Device nope not found\n",
            ],
        ),
        ("remove low", &["remove ioctl on low  failed: Device or resource busy\n", "top", "EBUSY"]),
        ("rename low top", &["rename ioctl on low  failed: Device or resource busy\n", "EEXIST"]),
        (
            "create low --notable",
            &["create ioctl on low  failed: Device or resource busy\n", "exists already"],
        ),
        ("suspend nope", &["suspend ioctl on nope  failed"]),
        ("resume nope", &["resume ioctl on nope  failed"]),
        ("wait nope", &["waitevent ioctl on nope  failed"]),
        ("load nope t", &["Couldn't open 't' for reading."]),
        ("-u zz info", &["Device does not exist.\n"]),
        ("info /dev/nowhere/low", &["Device /dev/nowhere/low not found\n"]),
        ("info /dev/dm-99", &["Device does not exist.\n"]),
        ("create a/b --notable", &["Name \"a/b\" invalid. It contains \"/\".\n"]),
        ("create", &["Please provide a name for the new device.\n"]),
        ("create x -r --notable", &["--readonly: not supported"]),
        (
            "create x -n -j 999 -m 1",
            &["create ioctl on x  failed: Device or resource busy\n", "minor number 1 is top's"],
        ),
        ("create x -n -j 999 -m 1048576", &["Invalid argument", "at most 1048575 is allowed"]),
        ("create x -n -j 7 -m 3", &["major number 7: that of all devices is 999"]),
        ("remove", &["No device specified.\n"]),
        ("load", &["Please specify device.\n"]),
        ("load low --notable", &["--notable only available when creating new device.\n"]),
        ("message low x flush", &["Invalid sector.\n"]),
        ("wait low x", &["event number `x`"]),
        ("stats list", &["stats: not supported"]),
        ("measure low", &["measure: not supported"]),
        ("info -c -S open>0", &["--select: not supported"]),
        ("status --inactive", &["status --inactive: not supported"]),
        ("ls --tree -o compact", &["compact: not supported"]),
        ("info -c -o colour", &["names_using_dev", "Unrecognised field: colour\n"]),
        ("info -c -O colour", &["Unrecognised field: colour\n"]),
        ("target-version nope", &["target-version ioctl on nope  failed: Invalid argument\n"]),
        ("udevcomplete 0", &["Incorrect cookie value.\n"]),
    ] {
        let e = dm.say(line).failed(1);
        assert!(
            parts.iter().all(|p| e.contains(p)) && e.ends_with("Command failed.\n"),
            "{line}: {e}"
        );
    }
    for (line, part) in [
        ("frobnicate", "Unknown command.\nUsage: dmsetup "),
        ("ls low", "Incorrect number of arguments.\nUsage: dmsetup "),
        ("message low", "Incorrect number of arguments.\nUsage: dmsetup "),
        ("--table", "Couldn't process command line.\n"),
        ("info -m 1", "Please specify both major number and minor number.\n"),
        ("ls -o colour", "Option not recognised: colour.\nCouldn't process command line.\n"),
        ("ls --tree -o colour", "Tree options not recognised: colour.\n"),
    ] {
        let e = dm.say(line).failed(1);
        assert!(e.contains(part), "{line}: {e}");
    }
    let e = dm.run(&["create", "x", "--table", "0 8 linear nobody 0"]).failed(1);
    assert!(e.starts_with("device-mapper: reload ioctl on x  failed: "), "{e}");
    assert!(e.contains("line 1: linear: ") && e.ends_with("Command failed.\n"), "{e}");
    // What comes before what fails is done.
    let text = dm.say("status low nope top");
    assert_eq!((text.code, text.out.as_str()), (Some(1), "low: 0 8192 linear \n"));
    assert_eq!(dm.say("remove top nope low").failed(1).lines().count(), 3);
    assert_eq!(dm.say("ls").ok(), "low\t(999:0)\nnew\t(999:2)\n");
}

#[test]
fn remove_all_leaves_what_is_open_and_force_replaces_its_table() {
    let dm = Dm::start();
    dm.run(&["create", "low", "--table", "0 8 zero"]).ok();
    dm.run(&["create", "free", "--table", "0 8 linear low 0"]).ok();
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", &dm.daemon.uri("low")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu-io; scripts/setup.sh installs it");
    let open = || dm.say("info -c --noheadings -o open low").ok();
    while open() != "2\n" {
        std::thread::yield_now();
    }
    let text = dm.say("remove_all");
    assert_eq!((text.code, text.out.as_str()), (Some(0), ""), "{text:?}");
    assert!(text.err.starts_with("Unable to remove 1 device(s).\nmillpond: "), "{text:?}");
    assert_eq!(dm.say("ls").ok(), "low\t(999:0)\n");
    assert_eq!(dm.say("table low").ok(), "0 8 zero \n");
    let text = dm.say("remove_all --force");
    assert_eq!(text.code, Some(0), "{text:?}");
    assert_eq!(dm.say("table low").ok(), "0 8 error \n");
    drop(client.stdin.take());
    client.wait().unwrap();
    dm.say("remove --retry low").ok();
}

#[test]
fn what_is_for_udev_is_taken() {
    let dm = Dm::start();
    for (line, want) in [
        ("udevcreatecookie", ""),
        ("udevreleasecookie 0xd4d1234", ""),
        ("udevcomplete 0xd4d1234", "DM_COOKIE_COMPLETED=0xd4d1234   \n"),
        (
            "udevcomplete_all -y",
            "0 semaphores with keys prefixed by 3405 (0xd4d) destroyed. 0 \
                                 skipped.\n",
        ),
        (
            "udevcookies",
            "Cookie       Semid      Value      Last semop time           Last change \
                         time\n",
        ),
        (
            "udevflags 0x00320000",
            "DM_UDEV_DISABLE_SUBSYSTEM_RULES_FLAG='1'\n\
            DM_UDEV_LOW_PRIORITY_FLAG='1'\nDM_UDEV_DISABLE_LIBRARY_FALLBACK_FLAG='1'\n",
        ),
        ("mknodes", ""),
    ] {
        assert_eq!(dm.say(line).ok(), want, "{line}");
    }
    let all = "--noudevrules --noudevsync --verifyudev --checks --yes --noopencount --udevcookie 1 \
               --manglename auto -U 0 -G 0 -M 600 ls";
    assert_eq!(dm.say(all).ok(), "No devices found\n");
    assert!(dm.say("help").ok().starts_with("Usage: dmsetup "));
    assert_eq!(dm.say("create -h").ok(), dm.say("help").ok());
}

#[test]
fn odd_arguments_are_errors_and_never_a_panic() {
    let dm = Dm::start();
    let huge = "x".repeat(100_000);
    let bad = OsString::from_vec(vec![b'x', 0xff, 0xfe]);
    let devices = ["", " ", "-", "..", "/", "//", "%00", "a\nb", "ö", &huge, "\\x", "/dev/"];
    let verbs: &[&[&str]] = &[
        &["info"],
        &["info", "-c"],
        &["status"],
        &["table"],
        &["table", "--concise"],
        &["deps"],
        &["remove"],
        &["suspend"],
        &["resume"],
        &["clear"],
        &["wipe_table"],
        &["mangle"],
        &["wait"],
        &["load", "--table", "0 8 zero"],
        &["rename", "--setuuid", "u"],
        &["message", "--", "0", "flush"],
        &["setgeometry", "1", "2", "3", "4"],
    ];
    for verb in verbs {
        for device in devices {
            // The device stands behind the verb.
            let mut args = verb.to_vec();
            let behind = args.iter().position(|a| a.parse::<u32>().is_ok() || *a == "u");
            args.insert(behind.unwrap_or(args.len()), device);
            let text = dm.run(&args);
            assert_eq!(text.code, Some(1), "{verb:?} {:.20}: {:.300}", device, text.err);
            assert!(!text.err.contains("panicked"), "{verb:?}: {:.300}", text.err);
        }
        let mut command = dm.command();
        command.args(*verb).arg(&bad).stdin(Stdio::null());
        let text: CommandOutput = command.output().unwrap().into();
        assert!(text.failed(1).contains("not UTF-8"), "{verb:?}");
    }
    for args in [
        &["create", "", "-n"][..],
        &["create", &huge, "-n"],
        &["create", "a\nb", "-n"],
        &["create", "x", "-n", "-u", &huge],
        &["create", "x", "--table", &huge],
        &["create", "--concise", &huge],
        &["-u", &huge, "info"],
        &["-j", &huge, "-m", "1", "info"],
        &["info", "-c", "-o", &huge],
        &["splitname"],
        &["udevflags", &huge],
        &[&huge],
        &[""],
        &[],
    ] {
        let text = dm.run(args);
        assert_eq!(text.code, Some(1), "{:.300}", text.err);
        assert!(!text.err.contains("panicked"), "{:.300}", text.err);
    }
    // Cut somewhere, it would be other tables.
    let long = "0 8 zero\n#".repeat(200_000);
    for args in [&["create", "x"][..], &["create", "--concise"]] {
        let e = dm.run_with(args, &long).failed(1);
        assert!(e.contains("standard input: at most 1048576 bytes"), "{e:.300}");
    }
    assert_eq!(dm.say("ls").ok(), "No devices found\n");
}

#[test]
fn without_a_daemon_it_says_where_one_should_be() {
    let dir = common::folder();
    let link = dir.path().join("dmsetup");
    std::os::unix::fs::symlink(common::MILLPOND, &link).unwrap();
    let run_dir = dir.path().join("run");
    let mut command = Command::new(link);
    command.args(["remove", "x"]).env("MILLPOND_RUN_DIR", &run_dir);
    let text: CommandOutput = command.output().unwrap().into();
    let e = text.failed(1);
    assert!(e.contains(&format!("{}/control.sock", run_dir.display())), "{e}");
    assert!(
        e.starts_with("millpond: no daemon answers") && e.ends_with("Command failed.\n"),
        "{e}"
    );
}
