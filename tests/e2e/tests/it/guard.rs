// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `guard_origin` with real file systems: the origin alone is nothing to the system's tools, and is
//! the file system again after `uncache`, and after the loss of its cache.
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::process::{Ended, run};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);

/// A file system and the programs that make and check it.
struct FileSystem {
    name: &'static str,
    bytes: u64,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    bytes: 64 * MIB,
    make: &["mkfs.ext4", "-q", "-F"],
    check: &["e2fsck", "-fn"],
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    bytes: 320 * MIB,
    make: &["mkfs.xfs", "-q"],
    check: &["xfs_repair", "-n", "-f"],
};

impl FileSystem {
    fn are_tools_here(&self) -> bool {
        clients(&[self.make[0], self.check[0], "blkid"])
    }

    /// A guarded write cache over an origin with this file system, which came through the cache.
    fn behind_a_guard(&self) -> TestBed {
        let bed = TestBed::with_cache(self.bytes, 32 * MIB, "guard_origin");
        bed.make_file("fs.img", self.bytes);
        let image = bed.path("fs.img");
        tool(self.make, &image).ok().unwrap();
        let data = fs::read(&image).unwrap();
        let mut client = bed.connect("wc");
        for (n, piece) in data.chunks(MIB as usize).enumerate() {
            if piece.iter().any(|byte| *byte != 0) {
                client.write(n as u64 * MIB, piece).unwrap();
            }
        }
        client.flush().unwrap();
        drop(client);
        bed.verb(&["message", "wc", "0", "flush"]);
        bed
    }

    /// The origin is this file system, byte for byte what clients saw.
    #[track_caller]
    fn is_back(&self, bed: &TestBed) {
        let origin = bed.path("origin.img");
        assert!(fs::read(&origin).unwrap() == fs::read(bed.path("fs.img")).unwrap());
        let found = blkid(&origin);
        assert!(found.stdout.contains(&format!("TYPE=\"{}\"", self.name)), "{}", found.stdout);
        tool(self.check, &origin).ok().unwrap();
    }

    /// Nothing finds this file system on the origin.
    #[track_caller]
    fn is_hidden(&self, bed: &TestBed) {
        let origin = bed.path("origin.img");
        let found = blkid(&origin);
        assert_eq!((found.code, &*found.stdout), (2, ""), "blkid finds something");
        let checked = tool(self.check, &origin);
        assert_ne!(checked.code, 0, "{} finds a file system", self.check[0]);
    }

    fn comes_back_after_a_kill_and_uncache(&self) {
        let mut bed = self.behind_a_guard();
        assert_eq!(bed.attribute("wc", "guarded_ranges"), 2);
        self.is_hidden(&bed);
        bed.kill();
        self.is_hidden(&bed);
        bed.start_again();
        bed.verb(&["uncache", "wc"]);
        self.is_back(&bed);
    }
}

fn tool(words: &[&str], image: &Path) -> Ended {
    run(Command::new(words[0]).args(&words[1..]).arg(image), LIMIT).unwrap()
}

fn blkid(image: &Path) -> Ended {
    tool(&["blkid", "-p"], image)
}

fn millpond(args: &[&str], image: &Path) -> Ended {
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    run(Command::new(program).args(args).arg(image), LIMIT).unwrap()
}

#[test]
fn a_guarded_ext4_is_hidden_until_its_cache_is_taken_away() {
    if EXT4.are_tools_here() {
        EXT4.comes_back_after_a_kill_and_uncache();
    }
}

#[test]
fn a_guarded_xfs_is_hidden_until_its_cache_is_taken_away() {
    if XFS.are_tools_here() {
        XFS.comes_back_after_a_kill_and_uncache();
    }
}

#[test]
fn a_guarded_ext4_comes_back_without_its_cache() {
    if !EXT4.are_tools_here() {
        return;
    }
    let mut bed = EXT4.behind_a_guard();
    bed.kill();
    let origin = bed.path("origin.img");
    let inspected = millpond(&["inspect"], &origin);
    assert_eq!(inspected.code, 0, "{}", inspected.complaint());
    let shown = ["guarded", "cache.img", "--without-cache"];
    assert!(shown.iter().all(|word| inspected.stdout.contains(word)), "{}", inspected.stdout);
    let dry = millpond(&["recover", "--dry-run", "--without-cache"], &origin);
    assert!(dry.code == 0 && dry.stdout.contains("would be given back"), "{}", dry.complaint());
    EXT4.is_hidden(&bed);
    millpond(&["recover", "--without-cache"], &origin).ok().unwrap();
    EXT4.is_back(&bed);
    let again = millpond(&["recover", "--without-cache"], &origin);
    assert!(again.code == 1 && again.stderr.contains("no write cache guards it"));
    // The cache turns up again.
    let table = format!(
        "0 {} writecache s {} {} 4096 1 guard_origin",
        EXT4.bytes / 512,
        origin.display(),
        bed.path("cache.img").display()
    );
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    let mut command = Command::new(program);
    let refused = run(command.args(["run", "--table", &table, "--", "true"]), LIMIT).unwrap();
    assert!(refused.code != 0, "{}", refused.complaint());
    assert!(refused.stderr.contains("without its cache"), "{}", refused.stderr);
    EXT4.is_back(&bed);
}

#[test]
fn recover_gives_a_guarded_origin_back() {
    if !EXT4.are_tools_here() {
        return;
    }
    let mut bed = EXT4.behind_a_guard();
    let mut client = bed.connect("wc");
    client.write(8 * MIB, &[0x5a; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    bed.kill();
    let wiped = millpond(&["wipe"], &bed.path("cache.img"));
    assert_eq!(wiped.code, 1, "the cache has what the origin does not");
    let (origin, cache) = (bed.path("origin.img"), bed.path("cache.img"));
    let (origin, cache) = (origin.to_str().unwrap(), cache.to_str().unwrap());
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    let mut recover = Command::new(program);
    recover.arg("--run-dir").arg(bed.dir().join("run"));
    let args = ["recover", "--cache", cache, "--origin", origin];
    run(recover.args(args), LIMIT).unwrap().ok().unwrap();
    let data = fs::read(origin).unwrap();
    let at = 8 * MIB as usize;
    assert_eq!(data[at..at + 4096], [0x5a; 4096]);
    assert!(blkid(Path::new(origin)).stdout.contains("ext4"));
    millpond(&["wipe"], Path::new(cache)).ok().unwrap();
}
