// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guarded origin on which somebody has run a repair: `fsck.ext4 -y` and `xfs_repair` find a
//! backup superblock by themselves, and write over the guard. The cache refuses the origin, and
//! each way that it names ends with all of its blocks on the origin, or given up.
use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::process::{Ended, run};
use e2e::test_bed::{TestBed, clients};

use crate::guard::{Content, EXT4, LIMIT, MIB, XFS, blkid, millpond, tool};

const USED: &str = "was used, or restored, without its cache";
/// What only the cache has: at these MiB of the origin.
const DIRTY_MIB: [u64; 2] = [8, 40];

/// A guarded origin with dirty blocks in its cache, which a repair has written over.
struct Repaired {
    bed: TestBed,
    label: &'static str,
}

impl Repaired {
    fn ext4() -> Option<Repaired> {
        let tools = EXT4.are_tools_here() && clients(&["fsck.ext4"]);
        tools.then(|| Repaired::by(&EXT4, &["fsck.ext4", "-y"]))
    }

    fn xfs() -> Option<Repaired> {
        XFS.are_tools_here().then(|| Repaired::by(&XFS, &["xfs_repair", "-f"]))
    }

    fn by(content: &Content, repair: &[&str]) -> Repaired {
        let mut bed = content.behind_a_guard();
        let mut client = bed.connect("wc");
        for at in DIRTY_MIB {
            client.write(at * MIB, &data()).unwrap();
        }
        client.flush().unwrap();
        drop(client);
        bed.kill();
        let repaired = Repaired { bed, label: content.label };
        assert_eq!(blkid(&repaired.origin()).code, 2, "it is guarded");
        let ended = tool(repair, &repaired.origin());
        let found = blkid(&repaired.origin());
        assert!(found.stdout.contains(content.label), "{}", ended.complaint());
        repaired
    }

    fn origin(&self) -> std::path::PathBuf {
        self.bed.path("origin.img")
    }

    fn recover(&self, args: &[&str]) -> Ended {
        let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
        let mut recover = Command::new(program);
        recover.arg("--run-dir").arg(self.bed.dir().join("run")).arg("recover");
        recover.arg("--cache").arg(self.bed.path("cache.img"));
        recover.arg("--origin").arg(self.origin());
        run(recover.args(args), LIMIT).unwrap()
    }

    /// A device of the cache for as long as a command runs.
    fn open(&self, options: &str) -> Ended {
        let sectors = fs::metadata(self.origin()).unwrap().len() / 512;
        let words = options.split_whitespace().count();
        let (origin, cache) = (self.origin(), self.bed.path("cache.img"));
        let (origin, cache) = (origin.display(), cache.display());
        let table = format!("0 {sectors} writecache s {origin} {cache} 4096 {words} {options}");
        let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
        let mut command = Command::new(program);
        command.arg("--run-dir").arg(self.bed.dir().join("run"));
        run(command.args(["run", "--table", &table, "--", "true"]), LIMIT).unwrap()
    }

    #[track_caller]
    fn has_all_blocks(&self) {
        let origin = fs::read(self.origin()).unwrap();
        for at in DIRTY_MIB {
            assert!(origin[(at * MIB) as usize..].starts_with(&data()), "{at} MiB");
        }
        assert!(blkid(&self.origin()).stdout.contains(self.label));
    }

    /// No cache guards it: it is as any other origin.
    #[track_caller]
    fn is_free(&self) {
        let inspected = millpond(&["inspect"], &self.origin());
        assert!(!inspected.stdout.contains("guarded"), "{}", inspected.stdout);
        fs::write(self.bed.path("cache.img"), vec![0; 32 * MIB as usize]).unwrap();
        self.open("guard_origin").ok().unwrap();
    }

    fn is_refused_and_inspected(&self, damaged: &str) {
        for options in ["guard_origin", "no_guard"] {
            let refused = self.open(options);
            assert!(refused.code != 0 && refused.stderr.contains(USED), "{}", refused.complaint());
            assert!(refused.stderr.contains("adopt_origin"), "{}", refused.stderr);
            assert!(refused.stderr.contains("`millpond recover --cache"), "{}", refused.stderr);
        }
        let inspected = millpond(&["inspect"], &self.origin());
        assert_eq!(inspected.code, 1, "{}", inspected.complaint());
        for shown in [damaged, "adopt_origin", "with a token"] {
            assert!(inspected.stdout.contains(shown), "{shown}: {}", inspected.stdout);
        }
        let before = fs::read(self.origin()).unwrap();
        let dry = self.recover(&["--dry-run"]);
        assert!(dry.code == 1 && dry.stderr.contains(USED), "{}", dry.complaint());
        let dry = millpond(&["recover", "--dry-run", "--without-cache"], &self.origin());
        assert!(dry.code == 1 && dry.stderr.contains("--force"), "{}", dry.complaint());
        assert!(fs::read(self.origin()).unwrap() == before, "nothing was changed");
    }

    fn is_recovered_by_force(&self) {
        let refused = self.recover(&[]);
        assert!(refused.code == 1 && refused.stderr.contains(USED), "{}", refused.complaint());
        let token = tokens(&refused.stderr).remove(0);
        let dry = self.recover(&["--dry-run", "--force", &token]);
        assert!(dry.code == 0 && dry.stdout.contains("would be"), "{}", dry.complaint());
        self.recover(&["--force", &token]).ok().unwrap();
        self.has_all_blocks();
        self.is_free();
    }

    fn is_adopted_by_a_table(&self, options: &str) {
        self.open(options).ok().unwrap();
        // Once is enough.
        self.recover(&[]).ok().unwrap();
        self.has_all_blocks();
        self.is_free();
    }

    fn adopt_by_the_configuration(mut self) {
        let path = self.bed.dir().join("millpond.toml");
        let config = fs::read_to_string(&path).unwrap();
        let adopts = config.replace("4096 1 guard_origin", "4096 2 guard_origin adopt_origin");
        assert!(adopts != config);
        fs::write(&path, adopts).unwrap();
        self.bed.start_again();
        self.bed.verb(&["uncache", "wc"]);
        self.bed.kill();
        self.has_all_blocks();
    }

    /// The origin counts: the cache is given up, then what is left of the guard.
    fn is_given_up(&self, decision: usize) {
        let cache = self.bed.path("cache.img");
        let refused = millpond(&["wipe"], &cache);
        let token = tokens(&refused.stderr).remove(0);
        millpond(&["wipe", "--force", &token], &cache).ok().unwrap();
        let refused = millpond(&["recover", "--without-cache"], &self.origin());
        assert_eq!(refused.code, 1, "{}", refused.complaint());
        let tokens = tokens(&refused.stderr);
        let Some(token) = tokens.get(decision) else {
            assert!(refused.stderr.contains("in neither of its slots"), "{}", refused.stderr);
            return;
        };
        let wrong = millpond(&["recover", "--force", "1234", "--without-cache"], &self.origin());
        assert!(wrong.code == 1 && wrong.stderr.contains("does not stand for"), "{}", wrong.stderr);
        let by_force = ["recover", "--force", token, "--without-cache"];
        millpond(&by_force, &self.origin()).ok().unwrap();
        assert!(blkid(&self.origin()).stdout.contains(self.label));
        self.is_free();
    }
}

fn data() -> Vec<u8> {
    (0..65536_u32).map(|n| (n * 7 % 251) as u8).collect()
}

/// The tokens that a refusal offers.
fn tokens(refusal: &str) -> Vec<String> {
    let words = refusal.split("--force ").skip(1);
    words.map(|rest| rest.chars().take_while(char::is_ascii_alphanumeric).collect()).collect()
}

#[test]
fn an_ext4_that_fsck_has_repaired_is_refused_with_ways_out() {
    let Some(repaired) = Repaired::ext4() else { return };
    repaired.is_refused_and_inspected("damaged     from sectors 0\n");
    repaired.is_recovered_by_force();
}

#[test]
fn an_ext4_that_fsck_has_repaired_is_adopted() {
    let Some(repaired) = Repaired::ext4() else { return };
    repaired.is_adopted_by_a_table("guard_origin adopt_origin");
    let Some(repaired) = Repaired::ext4() else { return };
    repaired.is_adopted_by_a_table("no_guard adopt_origin");
    let Some(repaired) = Repaired::ext4() else { return };
    repaired.adopt_by_the_configuration();
}

#[test]
fn an_ext4_that_fsck_has_repaired_counts_without_its_cache() {
    for decision in [0, 1] {
        let Some(repaired) = Repaired::ext4() else { return };
        repaired.is_given_up(decision);
    }
}

#[test]
fn an_xfs_that_was_repaired_is_refused_with_ways_out() {
    let Some(repaired) = Repaired::xfs() else { return };
    repaired.is_refused_and_inspected("damaged     from sectors 0\n");
    repaired.is_recovered_by_force();
}

#[test]
fn an_xfs_that_was_repaired_is_adopted() {
    let Some(repaired) = Repaired::xfs() else { return };
    repaired.is_adopted_by_a_table("guard_origin adopt_origin");
}

#[test]
fn an_xfs_that_was_repaired_counts_without_its_cache() {
    for decision in [0, 1] {
        let Some(repaired) = Repaired::xfs() else { return };
        repaired.is_given_up(decision);
    }
}

/// What boot does finds nothing, and changes nothing.
#[test]
fn a_check_at_boot_is_stopped_by_the_guard() {
    if !EXT4.are_tools_here() || !clients(&["fsck.ext4"]) {
        return;
    }
    let mut bed = EXT4.behind_a_guard();
    bed.kill();
    let origin = bed.path("origin.img");
    let before = fs::read(&origin).unwrap();
    let checked = tool(&["fsck.ext4", "-p"], &origin);
    assert!(checked.code & 8 != 0, "{}", checked.complaint());
    assert!(fs::read(Path::new(&origin)).unwrap() == before);
}
