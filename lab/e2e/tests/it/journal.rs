// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal in memory that a killed daemon leaves: who finds it and applies it, and which ones
//! are ignored or refused. That kills undo nothing while clients write: `doors::crash`.

use std::path::{Path, PathBuf};

use e2e::process::Ended;
use e2e::stamp::{BLOCK_BYTES, fill, version_of};
use e2e::test_bed::TestBed;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 64;
/// Nothing is committed, nor written back, before somebody asks for it.
const CALM: &str = "high_watermark 100 low_watermark 100 autocommit_time 3600000";
const HEADER_BYTES: usize = 4096;

fn bed() -> TestBed {
    TestBed::with_cache(16 * MIB, 8 * MIB, CALM)
}

/// Writes a version of every block, without a flush.
fn write(bed: &TestBed, version: u64) {
    let mut client = bed.connect("wc");
    let mut data = vec![0; BLOCK_BYTES];
    for block in 0..BLOCKS {
        fill(&mut data, block, version);
        client.write(block * BLOCK_BYTES as u64, &data).unwrap();
    }
}

/// The version that each block has; they have the same.
fn version(bed: &TestBed) -> u64 {
    let mut client = bed.connect("wc");
    let mut data = vec![0; BLOCK_BYTES];
    let versions = (0..BLOCKS).map(|block| {
        client.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
        version_of(&data, block).unwrap()
    });
    let versions: Vec<u64> = versions.collect();
    assert!(versions.iter().all(|v| *v == versions[0]), "{versions:?}");
    versions[0]
}

/// A bed whose daemon was killed: version 1 was flushed, version 2 was not.
fn killed() -> TestBed {
    let mut bed = bed();
    write(&bed, 1);
    bed.connect("wc").flush().unwrap();
    write(&bed, 2);
    assert_eq!(bed.attribute("wc", "journal_changes"), BLOCKS);
    bed.kill();
    bed
}

fn journal(bed: &TestBed) -> PathBuf {
    let files = std::fs::read_dir(bed.path("run")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_journal = |path: &PathBuf| path.to_string_lossy().contains("/journal-");
    let found: Vec<PathBuf> = files.filter(is_journal).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Changes the journal's file.
fn change(bed: &TestBed, change: impl FnOnce(&mut [u8])) {
    let path = journal(bed);
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Changes the header, and makes its checksum right.
fn change_header(bed: &TestBed, at: usize) {
    change(bed, |bytes| {
        let header = &mut bytes[..HEADER_BYTES];
        header[at] ^= 1;
        header[12..16].fill(0);
        let crc = format::checksum(header);
        header[12..16].copy_from_slice(&crc.to_le_bytes());
    });
}

fn tool(bed: &TestBed, verb: &str, args: &[&str]) -> Ended {
    let mut command =
        std::process::Command::new(e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap());
    command.arg("--run-dir").arg(bed.path("run")).arg(verb).args(args);
    e2e::process::run(&mut command, std::time::Duration::from_secs(120)).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_next_daemon_applies_it_and_says_so() {
    let mut bed = killed();
    bed.start_again();
    assert_eq!(version(&bed), 2);
    let log = bed.daemon().log();
    assert!(
        log.contains(&format!("{BLOCKS} changes that it had acknowledged were found")),
        "{log}"
    );
    assert_eq!(bed.verb(&["get", "wc", "journal"]).trim(), "in memory");
    // An orderly end leaves a journal without changes, and the daemon after that removes it.
    bed.terminate();
    bed.start_again();
    assert_eq!(version(&bed), 2);
    bed.terminate();
}

#[test]
fn one_of_an_earlier_boot_is_ignored_and_said() {
    let mut bed = killed();
    change_header(&bed, 32);
    bed.start_again();
    assert_eq!(version(&bed), 1, "what was flushed is there");
    let log = bed.daemon().log();
    assert!(log.contains(&format!("with {BLOCKS} changes was ignored")), "{log}");
    assert!(log.contains("before this start of the machine"), "{log}");
    bed.terminate();
}

#[test]
fn one_of_another_cache_is_ignored_and_said() {
    let mut bed = killed();
    change_header(&bed, 16);
    bed.start_again();
    assert_eq!(version(&bed), 1);
    let log = bed.daemon().log();
    assert!(log.contains("it is of another cache"), "{log}");
    bed.terminate();
}

/// Another daemon has used the cache meanwhile; it keeps its journals elsewhere.
#[test]
fn one_that_another_run_directory_outdates_is_ignored() {
    let mut bed = killed();
    std::fs::rename(bed.path("run"), bed.path("away")).unwrap();
    bed.start_again();
    assert_eq!(version(&bed), 1, "it did not have the journal");
    write(&bed, 3);
    bed.kill();
    std::fs::rename(bed.path("run"), bed.path("away2")).unwrap();
    std::fs::rename(bed.path("away"), bed.path("run")).unwrap();
    bed.start_again();
    assert_eq!(version(&bed), 1, "the journal of version 2 is an old one");
    let log = bed.daemon().log();
    assert!(log.contains("was opened since by a process without this journal"), "{log}");
    bed.terminate();
}

#[test]
fn one_with_a_gap_is_refused_with_its_file_named() {
    let mut bed = killed();
    change(&bed, |bytes| {
        let at = HEADER_BYTES + 48 * (BLOCKS as usize + 20);
        bytes[at..at + 48].fill(0);
    });
    let path = journal(&bed);
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    let refused = e2e::daemon::Daemon::restart(&program, bed.dir()).unwrap_err();
    assert!(refused.contains(text(&path)) && refused.contains("can't be used"), "{refused}");
    // Without it the cache is as it was at its last commit.
    std::fs::remove_file(path).unwrap();
    bed.start_again();
    assert_eq!(version(&bed), 1);
    bed.terminate();
}

#[test]
fn a_symlink_in_its_place_is_not_followed() {
    let mut bed = killed();
    let path = journal(&bed);
    std::fs::remove_file(&path).unwrap();
    let target = bed.path("victim");
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    bed.start_again();
    assert_eq!(version(&bed), 1);
    let state = bed.verb(&["get", "wc", "journal"]);
    assert!(state.starts_with("none: ") && state.contains("symbolic links"), "{state}");
    let log = bed.daemon().log();
    assert!(log.contains("writes that no FLUSH followed may be lost"), "{log}");
    assert_eq!(std::fs::read_to_string(target).unwrap(), "precious");
    bed.terminate();
}

#[test]
fn inspect_shows_it_and_recover_applies_it() {
    let bed = killed();
    let (cache, origin, path) = (bed.path("cache.img"), bed.path("origin.img"), journal(&bed));
    let shown = tool(&bed, "inspect", &[text(&path)]).ok().unwrap();
    assert!(shown.contains(&format!("{BLOCKS} that the cache device may not know")), "{shown}");
    let json = tool(&bed, "inspect", &[text(&path), "-o", "json"]).ok().unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["change_count"], &json["changes"][0]["op"]),
        (&BLOCKS.into(), &"write".into())
    );
    let shown = tool(&bed, "inspect", &[text(&cache)]).ok().unwrap();
    assert!(shown.contains(&format!("{BLOCKS} changes of the journal in memory")), "{shown}");
    let args = ["--cache", text(&cache), "--origin", text(&origin)];
    let shown = tool(&bed, "recover", &args).ok().unwrap();
    assert!(shown.starts_with(&format!("{BLOCKS} blocks (")), "{shown}");
    let data = std::fs::read(&origin).unwrap();
    let versions = (0..BLOCKS).zip(data.chunks_exact(BLOCK_BYTES));
    assert!(versions.map(|(block, data)| version_of(data, block)).all(|v| v == Some(2)));
    let shown = tool(&bed, "inspect", &[text(&cache)]).ok().unwrap();
    assert!(!shown.contains("journal"), "it is used up: {shown}");
}

/// Somebody has recovered the cache where its journal was not found, and used the origin.
#[test]
fn one_of_a_cache_that_was_recovered_is_ignored() {
    let mut bed = killed();
    let (cache, origin) = (bed.path("cache.img"), bed.path("origin.img"));
    std::fs::rename(bed.path("run"), bed.path("away")).unwrap();
    let args = ["--cache", text(&cache), "--origin", text(&origin)];
    tool(&bed, "recover", &args).ok().unwrap();
    std::fs::rename(bed.path("away"), bed.path("run")).unwrap();
    bed.start_again();
    assert_eq!(version(&bed), 1, "what the origin has counts");
    assert_eq!(bed.attribute("wc", "dirty_blocks"), 0);
    let log = bed.daemon().log();
    assert!(log.contains("was opened since by a process without this journal"), "{log}");
    bed.terminate();
}

#[test]
fn recover_takes_a_token_to_go_on_without_it() {
    let mut bed = killed();
    // Another daemon uses the cache, and is killed, too.
    std::fs::rename(bed.path("run"), bed.path("away")).unwrap();
    bed.start_again();
    write(&bed, 3);
    bed.connect("wc").flush().unwrap();
    bed.kill();
    std::fs::remove_dir_all(bed.path("run")).unwrap();
    std::fs::rename(bed.path("away"), bed.path("run")).unwrap();
    let (cache, origin) = (bed.path("cache.img"), bed.path("origin.img"));
    let args = ["--cache", text(&cache), "--origin", text(&origin)];
    let refused = tool(&bed, "recover", &args);
    let told = &refused.stderr;
    assert_eq!(refused.code, 1, "{told}");
    assert!(told.contains("would not get the newest writes"), "{told}");
    assert!(told.contains(&format!("with {BLOCKS} changes, does not count")), "{told}");
    let token = told.split("--force ").nth(1).unwrap();
    let token: String = token.chars().take_while(char::is_ascii_hexdigit).collect();
    tool(&bed, "recover", &[&args[..], &["--force", &token]].concat()).ok().unwrap();
    let data = std::fs::read(&origin).unwrap();
    assert_eq!(version_of(&data[..BLOCK_BYTES], 0), Some(3));
}

/// Attack 3, break 1: copies of one cache in one run directory wrote to one journal, and after a
/// `kill -9` data of one were applied over FLUSHed data of the other.
#[test]
fn a_copy_of_a_cache_device_is_refused_beside_the_original() {
    let files = [("o1.img", 16 << 20), ("o2.img", 16 << 20), ("c1.img", 16 << 20)];
    let table = |bed: &TestBed, nth: u32| {
        let path = |kind: &str| bed.path(&format!("{kind}{nth}.img")).display().to_string();
        format!("0 32768 writecache s {} {} 4096 0", path("o"), path("c"))
    };
    let bed = TestBed::start(&files, &[]);
    let create = |bed: &TestBed, nth: u32| {
        let (name, table) = (format!("w{nth}"), table(bed, nth));
        bed.daemon().try_verb(&["create", &name, "--table", &table]).unwrap()
    };
    assert_eq!(create(&bed, 1).code, 0);
    bed.verb(&["remove", "w1"]);
    std::fs::copy(bed.path("c1.img"), bed.path("c2.img")).unwrap();
    assert_eq!(create(&bed, 1).code, 0);
    let mut client = bed.connect("w1");
    for block in 0..50 {
        client.write(block * 4096, &[1; 4096]).unwrap();
    }
    client.flush().unwrap();
    let refused = create(&bed, 2);
    assert_eq!(refused.code, 4, "{}", refused.complaint());
    for part in ["c1.img", "c2.img", "copy of the other", "Remove the device of that one"] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    // Its own table may be loaded again, and an upgrade hands the journal over.
    bed.verb(&["load", "w1", "--table", &table(&bed, 1)]);
    bed.verb(&["resume", "w1"]);
    bed.verb(&["upgrade"]);
    assert_eq!(create(&bed, 2).code, 4);
    client.write(50 * 4096, &[1; 4096]).unwrap();
    drop(client);
    // The way out.
    bed.verb(&["remove", "w1"]);
    assert_eq!(create(&bed, 2).code, 0);
    let mut other = bed.connect("w2");
    other.write(0, &[2; 4096]).unwrap();
    drop(other);
    bed.verb(&["remove", "w2"]);
    assert_eq!(create(&bed, 1).code, 0);
    let (mut client, mut data) = (bed.connect("w1"), [0; 4096]);
    for block in 0..51 {
        client.read(block * 4096, &mut data).unwrap();
        assert_eq!(data, [1; 4096], "block {block}");
    }
    drop(client);
    // The successor is no child of this test.
    bed.verb(&["stop"]);
}
