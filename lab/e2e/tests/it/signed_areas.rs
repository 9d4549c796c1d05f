// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device that holds dirty blocks of a write cache, or what went with an option: what overwrites
//! a device by itself refuses it, by whatever way it gets there, and what maps it is named in the
//! log.
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use e2e::loops::Loop;
use e2e::process::{Ended, run};
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

use crate::guard::{LIMIT, MIB, millpond};

const DIRTY_BYTES: usize = MIB as usize;

/// A daemon, an origin and a cache device with 256 dirty blocks of a cache that was removed.
struct RemovedCache {
    bed: TestBed,
}

impl RemovedCache {
    fn new(options: &str) -> RemovedCache {
        let files = [("o.img", 64 * MIB), ("c.img", 16 * MIB)];
        let bed = TestBed::start(&files, &[]);
        let held = RemovedCache { bed };
        let words = options.split_whitespace().count();
        let line = format!("0 131072 writecache s ./o.img ./c.img 4096 {words} {options}");
        held.create("wc", &line).ok().unwrap();
        let mut client = held.bed.connect("wc");
        client.write(0, &vec![0xaa; DIRTY_BYTES]).unwrap();
        client.flush().unwrap();
        drop(client);
        held.remove("wc");
        held
    }

    /// Removes a device, as soon as its client has gone.
    #[track_caller]
    fn remove(&self, name: &str) {
        let give_up = clock() + LIMIT.as_secs_f64();
        loop {
            let removed = self.verb(&["remove", name]);
            match removed.stderr.contains("device is in use") && clock() < give_up {
                true => pause(Duration::from_millis(20)),
                false => return drop(removed.ok().unwrap()),
            }
        }
    }

    fn verb(&self, args: &[&str]) -> Ended {
        let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
        let mut command = Command::new(program);
        command.arg("--run-dir").arg(self.bed.dir().join("run")).current_dir(self.bed.dir());
        run(command.args(args), LIMIT).unwrap()
    }

    fn create(&self, name: &str, table: &str) -> Ended {
        self.verb(&["create", name, "--table", table])
    }

    fn cache(&self) -> PathBuf {
        self.bed.path("c.img")
    }

    /// The cache is as it was, and its blocks get to the origin.
    #[track_caller]
    fn is_recovered(&self, options: &[&str]) {
        let (cache, origin) = (self.cache(), self.bed.path("o.img"));
        let mut args = vec!["recover", "--cache", cache.to_str().unwrap()];
        args.extend(["--origin", origin.to_str().unwrap()].iter().chain(options));
        self.verb(&args).ok().unwrap();
        assert!(fs::read(origin).unwrap()[..DIRTY_BYTES].iter().all(|byte| *byte == 0xaa));
    }

    #[track_caller]
    fn refuses(&self, table: &str) -> String {
        let before = fs::read(self.cache()).unwrap();
        let refused = self.create("x", table);
        assert_ne!(refused.code, 0, "{table} is accepted");
        assert!(refused.stderr.contains("holds 256 dirty blocks"), "{}", refused.stderr);
        assert!(refused.stderr.contains("millpond wipe"), "{}", refused.stderr);
        assert!(fs::read(self.cache()).unwrap() == before, "nothing was changed");
        refused.stderr
    }

    #[track_caller]
    fn warns(&self, words: &[&str]) {
        let give_up = clock() + LIMIT.as_secs_f64();
        while !self.bed.daemon().log().lines().any(|line| words.iter().all(|w| line.contains(w))) {
            assert!(clock() < give_up, "no line with {words:?}: {}", self.bed.daemon().log());
            pause(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_zram_refuses_a_backing_device_with_dirty_blocks() {
    let held = RemovedCache::new("");
    held.refuses("0 262144 zram lz4 2 backing_dev ./c.img");
    // By attributes.
    held.verb(&["create", "z", "--zram"]).ok().unwrap();
    let path = held.cache();
    held.verb(&["set", "z", "backing_dev", path.to_str().unwrap()]).ok().unwrap();
    let refused = held.verb(&["set", "z", "disksize", "16M"]);
    assert!(refused.code != 0 && refused.stderr.contains("dirty blocks"), "{}", refused.stderr);
    held.is_recovered(&[]);
    // Nothing is lost any more.
    held.create("x", "0 262144 zram lz4 2 backing_dev ./c.img").ok().unwrap();
}

#[test]
fn a_zram_takes_dirty_blocks_with_the_token_or_after_a_wipe() {
    let held = RemovedCache::new("");
    let table = "0 262144 zram lz4 2 backing_dev ./c.img";
    let refusal = held.refuses(table);
    let token = refusal.split("--force=").nth(1).unwrap().split('`').next().unwrap();
    let token = format!("--force={token}");
    held.verb(&["create", "x", &token, "--table", table]).ok().unwrap();
    let held = RemovedCache::new("");
    held.refuses(table);
    let refused = millpond(&["wipe"], &held.cache());
    let token = refused.stderr.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    millpond(&["wipe", "--force", token], &held.cache()).ok().unwrap();
    held.create("x", table).ok().unwrap();
}

#[test]
fn a_zram_refuses_dirty_blocks_behind_mappings_and_at_an_offset() {
    let held = RemovedCache::new("");
    held.create("lin", "0 32768 linear ./c.img 0").ok().unwrap();
    held.refuses("0 262144 zram lz4 2 backing_dev lin");
    held.remove("lin");
    // The slots, without the superblock.
    held.create("slots", "0 24576 linear ./c.img 8192").ok().unwrap();
    held.refuses("0 262144 zram lz4 2 backing_dev slots");
    let partition = RemovedCache::new("start_sector 2048");
    partition.refuses("0 262144 zram lz4 2 backing_dev ./c.img");
    partition.is_recovered(&["--start-sector", "2048"]);
}

#[test]
fn a_zram_refuses_dirty_blocks_on_a_loop_device() {
    let held = RemovedCache::new("");
    let Some(device) = Loop::on(&held.cache()) else { return };
    let table = format!("0 262144 zram lz4 2 backing_dev {}", device.device().display());
    held.refuses(&table);
}

#[test]
fn a_zram_refuses_a_guarded_origin() {
    let held = RemovedCache::new("guard_origin");
    let guarded = held.create("x", "0 262144 zram lz4 2 backing_dev ./o.img");
    assert!(guarded.code != 0 && guarded.stderr.contains("guards it"), "{}", guarded.stderr);
}

/// The kernel's zram takes it without a word.
#[test]
fn a_zram_warns_of_the_file_system_that_it_will_write_over() {
    let held = RemovedCache::new("");
    held.bed.make_file("fs.img", 16 * MIB);
    let file = fs::File::options().write(true).open(held.bed.path("fs.img")).unwrap();
    file.write_all_at(b"XFSB", 0).unwrap();
    let made = held.create("x", "0 262144 zram lz4 2 backing_dev ./fs.img");
    assert_eq!(made.code, 0, "{}", made.complaint());
    for part in ["fs.img: it holds an XFS file system", "destroys", "remove the zram now"] {
        assert!(made.stderr.contains(part), "{part}: {}", made.stderr);
    }
    held.remove("x");
    let kept = fs::read(held.bed.path("fs.img")).unwrap();
    assert!(kept.starts_with(b"XFSB"), "nothing was written yet");
}

#[test]
fn a_zram_takes_a_cache_that_holds_nothing_of_its_own() {
    let held = RemovedCache::new("");
    let line = "0 131072 writecache s ./o.img ./c.img 4096 0";
    held.create("wc", line).ok().unwrap();
    held.verb(&["drain", "wc"]).ok().unwrap();
    held.remove("wc");
    held.create("x", "0 262144 zram lz4 2 backing_dev ./c.img").ok().unwrap();
    held.warns(&["without dirty blocks"]);
}
