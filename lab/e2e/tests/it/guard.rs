// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `guard_origin` before real file systems, a member of a RAID and a partition table: the origin
//! alone is nothing to the system's tools, and is itself again after `uncache`, and after the loss
//! of its cache.
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::process::{Ended, run};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// What an origin can hold that tools look for: how it is made, and what finds it.
pub(crate) struct Content {
    /// What `blkid` prints of it.
    pub(crate) label: &'static str,
    bytes: u64,
    make: fn(&Path),
    /// The program that `make` needs besides.
    maker: &'static str,
    /// A program that checks or describes it.
    check: &'static [&'static str],
    /// What that prints, with exit code 0, if it finds it.
    found: &'static str,
}

pub(crate) const EXT4: Content = Content {
    label: "TYPE=\"ext4\"",
    bytes: 64 * MIB,
    make: |image| make(&["mkfs.ext4", "-q", "-F"], image),
    maker: "mkfs.ext4",
    check: &["e2fsck", "-fn"],
    found: "Pass 5",
};
pub(crate) const XFS: Content = Content {
    label: "TYPE=\"xfs\"",
    bytes: 320 * MIB,
    make: |image| make(&["mkfs.xfs", "-q"], image),
    maker: "mkfs.xfs",
    check: &["xfs_repair", "-n", "-f"],
    found: "",
};
const BTRFS: Content = Content {
    label: "TYPE=\"btrfs\"",
    bytes: 128 * MIB,
    make: make_btrfs,
    maker: "mkfs.btrfs",
    check: &["btrfs", "check"],
    found: "no error found",
};
const GPT: Content = Content {
    label: "PTTYPE=\"gpt\"",
    bytes: 64 * MIB,
    make: |image| make(&["sgdisk", "-n", "1:0:0"], image),
    maker: "sgdisk",
    check: &["sgdisk", "-i", "1"],
    found: "Partition unique GUID",
};
const RAID: Content = Content {
    label: "TYPE=\"linux_raid_member\"",
    bytes: 64 * MIB,
    make: make_raid_member,
    maker: "mdadm",
    check: &["mdadm", "--examine"],
    found: "- correct",
};

impl Content {
    pub(crate) fn are_tools_here(&self) -> bool {
        clients(&[self.maker, self.check[0], "blkid"])
    }

    /// A guarded write cache over an origin with this content, which came through the cache.
    pub(crate) fn behind_a_guard(&self) -> TestBed {
        let bed = TestBed::with_cache(self.bytes, 32 * MIB, "guard_origin");
        bed.make_file("fs.img", self.bytes);
        let image = bed.path("fs.img");
        (self.make)(&image);
        assert!(self.is_found_on(&image), "{} finds nothing of its own", self.check[0]);
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

    fn is_found_on(&self, image: &Path) -> bool {
        let checked = tool(self.check, image);
        checked.code == 0 && checked.stdout.contains(self.found)
    }

    /// The origin has this content, byte for byte what clients saw.
    #[track_caller]
    fn is_back(&self, bed: &TestBed) {
        let origin = bed.path("origin.img");
        assert!(fs::read(&origin).unwrap() == fs::read(bed.path("fs.img")).unwrap());
        let found = blkid(&origin);
        assert!(found.stdout.contains(self.label), "{}", found.stdout);
        assert!(self.is_found_on(&origin), "{} finds nothing", self.check[0]);
    }

    /// Nothing finds this content on the origin.
    #[track_caller]
    fn is_hidden(&self, bed: &TestBed) {
        let origin = bed.path("origin.img");
        let found = blkid(&origin);
        assert_eq!((found.code, &*found.stdout), (2, ""), "blkid finds something");
        assert!(!self.is_found_on(&origin), "{} finds it", self.check[0]);
    }

    fn comes_back_after_a_kill_and_uncache(&self, mut bed: TestBed) {
        assert_eq!(bed.attribute("wc", "guarded_ranges"), 2);
        self.is_hidden(&bed);
        bed.kill();
        self.is_hidden(&bed);
        bed.start_again();
        bed.verb(&["uncache", "wc"]);
        self.is_back(&bed);
    }

    fn comes_back_without_its_cache(&self, mut bed: TestBed) {
        bed.kill();
        self.is_hidden(&bed);
        let inspected = millpond(&["inspect"], &bed.path("origin.img"));
        assert!(inspected.stdout.contains("cache.img"), "{}", inspected.stdout);
        millpond(&["recover", "--without-cache"], &bed.path("origin.img")).ok().unwrap();
        self.is_back(&bed);
    }
}

fn make(words: &[&str], image: &Path) {
    tool(words, image).ok().unwrap();
}

/// `mkfs.btrfs` looks at each mount of the machine, and fails at a FUSE mount of another test whose
/// daemon has been killed. Such a mount is there for a moment only.
fn make_btrfs(image: &Path) {
    let give_up = clock() + LIMIT.as_secs_f64();
    loop {
        match tool(&["mkfs.btrfs", "-q"], image).ok() {
            Err(e) if e.contains("cannot check mount status") && clock() < give_up => {}
            made => return drop(made.unwrap()),
        }
        pause(Duration::from_millis(100));
    }
}

/// Writes what `mdadm --create` writes to a member of a mirror with superblock 1.2, 4 KiB from the
/// begin (`struct mdp_superblock_1` of Linux): the driver that would do it needs a kernel with md.
fn make_raid_member(image: &Path) {
    let sectors = fs::metadata(image).unwrap().len() / 512;
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..][..bytes.len()].copy_from_slice(bytes);
    put(0, &0xa92b_4efc_u32.to_le_bytes());
    put(4, &1_u32.to_le_bytes()); // the major version
    put(16, &[0x5c; 16]); // the array
    put(32, b"host:pond");
    put(72, &1_u32.to_le_bytes()); // the level
    put(80, &(sectors - 2048).to_le_bytes()); // sectors of each member
    put(92, &2_u32.to_le_bytes()); // members
    put(128, &2048_u64.to_le_bytes()); // the first sector of the data
    put(136, &(sectors - 2048).to_le_bytes());
    put(144, &8_u64.to_le_bytes()); // the sector of this superblock
    put(168, &[0x1e; 16]); // this member
    put(200, &17_u64.to_le_bytes()); // events
    put(208, &u64::MAX.to_le_bytes()); // all of it is in sync
    put(220, &128_u32.to_le_bytes()); // roles
    put(256, &[0, 0, 1, 0]); // members 0 and 1
    // Roles that are not used.
    put(260, &[0xff; 252]);
    let words = block.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let sum: u64 = words.sum();
    let folded = (sum & 0xffff_ffff) + (sum >> 32);
    block[216..220].copy_from_slice(&(folded as u32).to_le_bytes());
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&block, 4096).unwrap();
}

pub(crate) fn tool(words: &[&str], image: &Path) -> Ended {
    run(Command::new(words[0]).args(&words[1..]).arg(image), LIMIT).unwrap()
}

pub(crate) fn blkid(image: &Path) -> Ended {
    tool(&["blkid", "-p"], image)
}

pub(crate) fn millpond(args: &[&str], image: &Path) -> Ended {
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    run(Command::new(program).args(args).arg(image), LIMIT).unwrap()
}

#[test]
fn a_guarded_ext4_is_hidden_until_its_cache_is_taken_away() {
    if EXT4.are_tools_here() {
        EXT4.comes_back_after_a_kill_and_uncache(EXT4.behind_a_guard());
    }
}

#[test]
fn a_guarded_xfs_is_hidden_until_its_cache_is_taken_away() {
    if XFS.are_tools_here() {
        XFS.comes_back_after_a_kill_and_uncache(XFS.behind_a_guard());
    }
}

#[test]
fn a_guarded_btrfs_is_hidden_until_its_cache_is_taken_away() {
    if BTRFS.are_tools_here() {
        BTRFS.comes_back_after_a_kill_and_uncache(BTRFS.behind_a_guard());
    }
}

#[test]
fn a_guarded_gpt_is_hidden_until_its_cache_is_taken_away() {
    if GPT.are_tools_here() {
        GPT.comes_back_after_a_kill_and_uncache(GPT.behind_a_guard());
    }
}

#[test]
fn a_guarded_raid_member_is_hidden_until_it_is_uncached() {
    if RAID.are_tools_here() {
        RAID.comes_back_after_a_kill_and_uncache(RAID.behind_a_guard());
    }
}

#[test]
fn others_come_back_without_their_cache() {
    for content in [XFS, BTRFS, GPT, RAID] {
        if content.are_tools_here() {
            content.comes_back_without_its_cache(content.behind_a_guard());
        }
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
