// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program called as `dmsetup`, where scripts notice the kernel: the states, echoes, orders and
//! errors that dmsetup 1.02.185 printed on Linux 7.3.4, with our numbers and words for devices.

use crate::common::Daemon;
use crate::dmsetup::Dm;

/// `create --notable`, `load`, `resume`: what a script that polls sees.
#[test]
fn a_device_without_a_table_is_active_and_can_be_resumed() {
    let dm = Dm::start();
    let columns = "info -c --noheadings -o attr,tables_loaded,suspended n";
    dm.say("create n --notable").ok();
    assert_eq!(dm.say(columns).ok(), "---w:None:Active\n");
    let info = dm.say("info n").ok();
    assert!(info.contains("State:             ACTIVE\n"), "{info}");
    assert!(info.contains("Tables present:    None\n"), "{info}");
    assert_eq!(dm.say("resume n").ok(), "");
    assert_eq!(dm.say(columns).ok(), "---w:None:Active\n");
    dm.run(&["load", "n", "--table", "0 8 zero"]).ok();
    assert_eq!(dm.say(columns).ok(), "-I-w:Inactive:Active\n");
    dm.say("resume n").ok();
    assert_eq!(dm.say(columns).ok(), "L--w:Live:Active\n");
    // From standard input, and empty.
    dm.run_with(&["create", "e"], "").ok();
    assert_eq!(dm.say("info -c --noheadings -o attr e").ok(), "---w\n");
    // Suspended, it needs a table.
    dm.say("suspend e").ok();
    assert_eq!(dm.say("info -c --noheadings -o attr e").ok(), "--sw\n");
    let e = dm.say("resume e").failed(1);
    assert!(e.starts_with("device-mapper: resume ioctl on e  failed: Invalid argument\n"), "{e}");
}

#[test]
fn flakey_is_echoed_with_all_that_it_does() {
    let dm = Dm::start();
    for (nth, (given, echo)) in [
        ("5 0", "5 0 2 error_reads error_writes"),
        ("5 1 0", "5 1 2 error_reads error_writes"),
        ("0 5", "0 5 2 error_reads error_writes"),
        ("5 1 1 DROP_WRITES", "5 1 1 drop_writes"),
        ("5 1 2 Error_Writes error_reads", "5 1 2 error_reads error_writes"),
        (
            "5 1 6 corrupt_bio_byte 32 r 1 0 error_writes",
            "5 1 6 error_writes corrupt_bio_byte 32 r 1 0",
        ),
        (
            "5 1 4 random_write_corrupt 7 random_read_corrupt 1000000000",
            "5 1 4 random_read_corrupt 1000000000 random_write_corrupt 7",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let (name, table) = (format!("f{nth}"), format!("0 64 flakey mem:1M,{nth} 0 {given}"));
        dm.run(&["create", &name, "--table", &table]).ok();
        let want = format!("0 64 flakey mem:1M,{nth} 0 {echo}\n");
        assert_eq!(dm.run(&["table", &name]).ok(), want);
    }
    let targets = dm.say("targets").ok();
    assert!(targets.contains("flakey           v1.5.0\n"), "{targets}");
    assert!(targets.contains("delay            v1.5.0\n"), "{targets}");
}

/// The device that was opened last stands first, in every listing.
#[test]
fn dependencies_stand_as_the_kernel_lists_them() {
    let dm = Dm::start();
    dm.run(&["create", "s", "--table", "0 65536 linear mem:32M,s 0"]).ok();
    dm.run(&["create", "w", "--table", "0 65536 linear mem:32M,w 0"]).ok();
    dm.run(&["create", "st", "--table", "0 131072 striped 2 128 s 0 w 0"]).ok();
    let wc = "0 65536 writecache s mem:32M,o mem:8M,c 4096 0";
    dm.run(&["create", "wc", "--table", wc]).ok();
    assert_eq!(dm.say("deps st").ok(), "2 dependencies\t: (999, 1) (999, 0)\n");
    assert_eq!(dm.say("deps wc").ok(), "2 dependencies\t: (mem:8M,c) (mem:32M,o)\n");
    let used = "info -c --noheadings -o devs_used,devnos_used,blkdevs_used st";
    assert_eq!(dm.say(used).ok(), "w,s:999:1,999:0:dm-1,dm-0\n");
    let tree = "st (999:2)\n ├─w (999:1)\n │  └─(mem:32M,w)\n └─s (999:0)\n    └─(mem:32M,s)\n\
                wc (999:3)\n ├─(mem:8M,c)\n └─(mem:32M,o)\n";
    assert_eq!(dm.say("ls --tree").ok(), tree);
}

#[test]
fn errors_have_the_kernels_words() {
    let dm = Dm::start();
    dm.run(&["create", "a", "-u", "UB", "--table", "0 8 zero"]).ok();
    let missing = |name: &str| {
        format!("device-mapper: reload ioctl on {name}  failed: No such file or directory\n")
    };
    for table in ["0 100 linear /nonexistent/disk 0", "0 100 linear nobody 0"] {
        assert!(dm.run(&["create", "g", "--table", table]).failed(1).starts_with(&missing("g")));
        assert!(dm.run(&["load", "a", "--table", table]).failed(1).starts_with(&missing("a")));
    }
    let e = dm.say("create c -u UB --notable").failed(1);
    let busy = "device-mapper: create ioctl on c UB failed: Device or resource busy\n";
    assert!(e.starts_with(busy), "{e}");

    // dmsetup reads the table before it asks the kernel whether the name is free.
    for (table, nth) in [("0 x zero", 1), ("0 8", 1), ("0 8 zero\n\n#\n8 8", 4), ("x 8 zero", 1)] {
        let line = |from: &str| format!("Invalid format on line {nth} of table {from}.\n");
        for verb in ["create", "load"] {
            let e = dm.run(&[verb, "a", "--table", table]).failed(1);
            assert!(e.starts_with(&line("")) && e.ends_with("Command failed.\n"), "{e}");
            let e = dm.run_with(&[verb, "a"], table).failed(1);
            assert!(e.starts_with(&line("on stdin")), "{e}");
            std::fs::write(dm.daemon.dir.path().join("t"), table).unwrap();
            assert!(dm.run(&[verb, "a", "t"]).failed(1).starts_with(&line("t")));
        }
    }

    let long = "0".repeat(128);
    let too_long = format!("Name \"{long}\" too long.\nCommand failed.\n");
    for args in [
        &["create", &long, "--notable"][..],
        &["rename", "a", &long],
        &["info", &long],
        &["suspend", &long],
        &["message", &long, "0", "flush"],
    ] {
        assert_eq!(dm.run(args).failed(1), too_long, "{args:?}");
    }
    dm.run(&["create", &long[1..], "--notable"]).ok();

    let e = dm.say("message a 0").failed(1);
    let line = "device-mapper: message ioctl on a  failed: Invalid argument\n";
    assert!(e.starts_with(&format!("No message supplied.\n{line}")), "{e}");
    assert!(e.ends_with("Command failed.\n"), "{e}");
}

#[test]
fn a_suspended_write_cache_takes_the_messages_that_do_no_io() {
    let dm = Dm::start();
    let table = "0 65536 writecache s mem:32M,o mem:16M,c 4096 0";
    dm.run(&["create", "wc", "--table", table]).ok();
    dm.say("suspend wc").ok();
    let e = dm.say("message wc 0 flush").failed(1);
    let busy = "device-mapper: message ioctl on wc  failed: Device or resource busy\n";
    assert!(e.starts_with(busy), "{e}");
    for word in ["flush_on_suspend", "Clear_Stats", "cleaner"] {
        assert_eq!(dm.run(&["message", "wc", "0", word]).ok(), "", "{word}");
    }
    let e = dm.say("message wc 0 bogus").failed(1);
    assert!(e.contains("EBUSY"), "{e}");
    dm.say("resume wc").ok();
    assert_eq!(dm.daemon.cli(&["get", "wc", "cleaner"]).ok(), "1\n");
    assert_eq!(dm.say("message wc 0 flush").ok(), "");
}

/// It is not suspended, but there is nothing that a successor could open.
#[test]
fn a_device_without_a_table_is_named_before_an_upgrade() {
    let daemon = Daemon::start();
    daemon.cli(&["create", "n", "--notable"]).ok();
    let why = "it has no table: load one and resume it, or `remove n`";
    let dry_run = || {
        let answer = daemon.cli(&["upgrade", "--dry-run"]);
        format!("{}{}", answer.out, answer.err)
    };
    assert!(dry_run().contains(why), "{}", dry_run());
    let saved = daemon.cli(&["save", "new.toml"]);
    assert!(saved.err.contains("n: it has no live table"), "{saved:?}");
    daemon.cli(&["load", "n", "--table", "0 8 zero"]).ok();
    daemon.cli(&["resume", "n"]).ok();
    assert!(!dry_run().contains(why));
    daemon.cli(&["create", "m", "--notable"]).ok();
    assert!(dry_run().contains("or `remove m`"));
    daemon.cli(&["remove", "m"]).ok();
    assert!(!dry_run().contains("it has no table"));
}
