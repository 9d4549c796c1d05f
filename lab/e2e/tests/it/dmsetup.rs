// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published procedures with dmsetup's own commands, by a link to the program.
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::fio::Fio;
use e2e::process::{Ended, Job, run};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// A daemon without devices, and dmsetup beside it.
struct Published {
    bed: TestBed,
    link: PathBuf,
}

impl Published {
    fn start(files: &[(&str, u64)]) -> Published {
        let bed = TestBed::start(files, &[]);
        let link = bed.path("dmsetup");
        let program = millpond(Build::Workspace).unwrap();
        std::os::unix::fs::symlink(program, &link).unwrap();
        Published { bed, link }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.link);
        command.args(args).current_dir(self.bed.dir());
        command.env("MILLPOND_RUN_DIR", self.bed.path("run")).env("LC_ALL", "C.UTF-8");
        command
    }

    fn ended(&self, args: &[&str]) -> Ended {
        run(&mut self.command(args), LIMIT).unwrap()
    }

    fn dmsetup(&self, args: &[&str]) -> String {
        let ended = self.ended(args);
        assert_eq!((ended.code, &*ended.stderr), (0, ""), "{args:?}: {}", ended.complaint());
        ended.stdout
    }
}

/// The write cache's: fill it by random writes, flush it by a message, look at it, take it away.
#[test]
fn dmsetup_creates_flushes_and_replaces_a_write_cache() {
    if !clients(&["fio"]) {
        return;
    }
    let it = Published::start(&[("origin.img", 64 * MIB), ("cache.img", 32 * MIB)]);
    let sectors = 64 * MIB / 512;
    let cached = format!("0 {sectors} writecache s ./origin.img ./cache.img 4096 0");
    it.dmsetup(&["create", "mycache", "--table", &cached]);
    let fio = Fio::new(it.bed.dir(), &it.bed.uri("mycache"));
    let fio = fio.with(["--rw=randwrite", "--size=8m", "--iodepth=16", "--end_fsync=1"]);
    assert_eq!(fio.run(LIMIT).unwrap().writes, 8 * MIB / 4096);

    let status = it.dmsetup(&["status", "mycache"]);
    let words: Vec<&str> = status.split_whitespace().collect();
    assert_eq!((words[..4].join(" "), words.len()), (format!("0 {sectors} writecache 0"), 17));
    assert_eq!(it.dmsetup(&["message", "mycache", "0", "flush"]), "");
    let status = it.dmsetup(&["status", "mycache"]);
    let words: Vec<&str> = status.split_whitespace().collect();
    assert_eq!((words[3], words[6]), ("0", "0"), "no error, nothing under writeback: {status}");
    assert_eq!(it.bed.attribute("mycache", "dirty_blocks"), 0);

    let waiting = Job::start(&mut it.command(&["wait", "mycache"])).unwrap();
    it.dmsetup(&["suspend", "/dev/mapper/mycache"]);
    assert!(it.dmsetup(&["info", "mycache"]).contains("State:             SUSPENDED\n"));
    let linear = format!("0 {sectors} linear ./origin.img 0");
    it.dmsetup(&["load", "mycache", "--table", &linear]);
    it.dmsetup(&["resume", "mycache"]);
    assert!(it.dmsetup(&["table", "mycache"]).ends_with("/origin.img 0\n"));
    let open = it.dmsetup(&["info", "-c", "--noheadings", "-o", "name,open"]);
    assert!(["mycache:0\n", "mycache:1\n"].contains(&&*open), "{open}");
    assert!(waiting.is_running(), "nothing has happened to wait for");
    it.dmsetup(&["remove", "--retry", "mycache"]);
    assert_eq!(waiting.wait(LIMIT).unwrap().code, 0, "a removal is an event");
    assert_eq!(it.dmsetup(&["ls"]), "No devices found\n");
}

/// A stack of devices, as scripts build, list and remove them.
#[test]
fn a_stack_is_listed_as_a_tree_and_removed_from_the_top() {
    let it = Published::start(&[]);
    it.dmsetup(&["create", "low", "--table", "0 65536 linear mem:32M 0"]);
    it.dmsetup(&["create", "mid", "-u", "LVM-x", "--table", "0 65536 striped 1 128 low 0"]);
    it.dmsetup(&["create", "top", "--table", "0 65536 linear /dev/mapper/mid 0"]);
    assert_eq!(
        it.dmsetup(&["ls", "--tree"]),
        "top (999:2)\n └─mid (999:1)\n    └─low (999:0)\n       └─(mem:32M)\n"
    );
    assert_eq!(
        it.dmsetup(&["info", "-c", "--noheadings", "-o", "name,open,devnos_used,names_using_dev"]),
        "low:1:mem:32M:mid\nmid:1:999:0:top\ntop:0:999:1:\n"
    );
    let busy = it.ended(&["remove", "low"]);
    assert_eq!(busy.code, 1);
    assert!(busy.stderr.ends_with("Command failed.\n"), "{}", busy.stderr);
    let printed = it.dmsetup(&["table", "--concise"]);
    it.dmsetup(&["remove", "top", "-f"]);
    it.dmsetup(&["remove", "-u", "LVM-x"]);
    it.dmsetup(&["remove_all"]);
    it.dmsetup(&["create", "--concise", printed.trim_end()]);
    assert_eq!(it.dmsetup(&["table", "--concise"]), printed);
}
