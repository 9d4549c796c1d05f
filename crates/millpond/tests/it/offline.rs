// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs on images: inspect, recover, wipe; and what they and a daemon refuse each other.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{self, CommandOutput, Daemon, MILLPOND, folder, sh};

const BLOCK: u64 = 4096;

fn millpond(args: &[&str]) -> CommandOutput {
    sh(MILLPOND, args)
}

/// A folder with `origin.img` and a cache `cache.img` of it whose blocks 0 to 3 and 100 are dirty;
/// the daemon was killed. Returns the two paths, too.
fn killed(cache_options: &str) -> (tempfile::TempDir, String, String) {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    let words = cache_options.split_whitespace().count();
    let table = format!("0 8192 writecache s {origin} {cache} 4096 {words} {cache_options}");
    daemon.create("wc", &table);
    for (pattern, at, len) in [("0x11", 0, 4 * BLOCK), ("0x22", 100 * BLOCK, BLOCK)] {
        let write = format!("write -P {pattern} {at} {len}");
        daemon.qemu_io("wc", &[&write, "flush"]).ok();
    }
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    (dir, origin, cache)
}

/// Each byte that was written, as the origin must hold it.
fn assert_written_back(origin: &str) {
    let file = std::fs::File::open(origin).unwrap();
    let mut data = vec![0; 4 << 20];
    file.read_exact_at(&mut data, 0).unwrap();
    for (block, part) in (0..).zip(data.chunks(4096)) {
        let wanted = match block {
            0..4 => 0x11,
            100 => 0x22,
            _ => 0,
        };
        assert!(part.iter().all(|&byte| byte == wanted), "block {block}");
    }
}

fn json(message: &CommandOutput) -> serde_json::Value {
    serde_json::from_str(&message.out).unwrap()
}

#[test]
fn a_killed_cache_is_inspected_recovered_and_holds_nothing_then() {
    let (_dir, origin, cache) = killed("start_sector 64");
    let at = ["--start-sector", "64"];
    let text = millpond(&["inspect", &cache, at[0], at[1]]).ok();
    for part in ["native, version 1", "4 of 4 agree", " 5 dirty,", "0 32\n", "800 8\n", "none\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told = json(&millpond(&["inspect", &cache, at[0], at[1], "-o", "json"]));
    assert_eq!(told["dirty_ranges"], serde_json::json!([[0, 32], [800, 8]]));
    assert_eq!((&told["blocks"]["dirty"], &told["sound"]), (&5.into(), &true.into()));

    let recover = ["recover", "--cache", &cache, "--origin", &origin, at[0], at[1]];
    let before = std::fs::read(&cache).unwrap();
    let message = millpond(&[&recover[..], &["--dry-run"]].concat()).ok();
    assert!(
        message.starts_with("5 blocks (20.0 KiB) in 2 ranges would be written back"),
        "{message}"
    );
    assert!(std::fs::read(&cache).unwrap() == before, "a dry run writes nothing");
    assert!(std::fs::read(&origin).unwrap().iter().all(|&byte| byte == 0));

    let message = millpond(&recover).ok();
    assert!(message.starts_with("5 blocks (20.0 KiB) in 2 ranges written back"), "{message}");
    assert_written_back(&origin);
    let told = json(&millpond(&["inspect", &cache, at[0], at[1], "-o", "json"]));
    let blocks = &told["blocks"];
    assert_eq!((&blocks["dirty"], &blocks["clean"]), (&0.into(), &0.into()), "{told}");

    // Nothing is replayed over an origin that has changed since.
    std::fs::write(&origin, vec![7; 4 << 20]).unwrap();
    let message = millpond(&recover).ok();
    assert!(message.starts_with("0 blocks"), "{message}");
    assert!(std::fs::read(&origin).unwrap().iter().all(|&byte| byte == 7));
}

/// A block that can't be read and an origin that refuses another one: `recover` said that all but
/// the first were on the origin, and advised to wipe the cache, which alone had the second.
#[test]
fn blocks_that_the_origin_refuses_are_not_called_recovered() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 64), daemon.file("cache.img", 2));
    daemon.create("wc", &format!("0 131072 writecache s {origin} {cache} 4096 0"));
    daemon.qemu_io("wc", &["write -P 0x11 0 4096", "write -P 0x22 48M 4096", "flush"]).ok();
    daemon.signal("-KILL");
    let (_, _, _dir) = daemon.wait();
    let image = std::fs::read(&cache).unwrap();
    let is_first = |block: &[u8]| block.iter().all(|&byte| byte == 0x11);
    let slot = image.chunks(4096).position(is_first).unwrap() as u64;
    let file = std::fs::OpenOptions::new().write(true).open(&cache).unwrap();
    file.write_all_at(b"x", slot * BLOCK).unwrap();

    // No file may be written beyond 8 or 16 MiB: the shells count in units of their own.
    let limited = ["-c", "trap '' XFSZ; ulimit -f 16384; exec \"$0\" \"$@\"", MILLPOND];
    let recover = ["recover", "--cache", &cache, "--origin", &origin];
    let message = sh("sh", &[&limited[..], &recover].concat()).failed(1);
    assert!(message.contains("blocks could not be written to the origin"), "{message}");
    assert!(!message.contains("wipe") && !message.contains("all others"), "{message}");
    let message = millpond(&recover).failed(1);
    assert!(message.contains("1 blocks can't be read and stay in"), "{message}");
    let mut data = vec![0; 4096];
    std::fs::File::open(&origin).unwrap().read_exact_at(&mut data, 48 << 20).unwrap();
    assert!(data.iter().all(|&byte| byte == 0x22));
}

#[test]
fn another_origin_is_refused_with_a_token_that_takes_it() {
    let (dir, origin, cache) = killed("");
    let copy = dir.path().join("copy.img").to_str().unwrap().to_owned();
    std::fs::copy(&origin, &copy).unwrap();
    let recover = ["recover", "--cache", &cache, "--origin", &copy];
    let message = millpond(&recover).failed(1);
    assert!(message.contains("it is another device, or a copy; nothing was changed"), "{message}");
    let wrong = millpond(&[&recover[..], &["--force", "00000000"]].concat()).failed(1);
    assert!(wrong.contains("the token 00000000 does not stand for"), "{wrong}");
    let token = message.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    millpond(&[&recover[..], &["--force", token]].concat()).ok();
    assert_written_back(&copy);
    assert!(std::fs::read(&origin).unwrap().iter().all(|&byte| byte == 0));

    let small = common::file_in(dir.path(), "small.img", 3);
    let message = millpond(&["recover", "--cache", &cache, "--origin", &small]).failed(1);
    assert!(message.contains("has 6144 sectors, the cache is of an origin of 8192"), "{message}");
    let large = common::file_in(dir.path(), "large.img", 5);
    let message = millpond(&["recover", "--cache", &cache, "--origin", &large]).failed(1);
    assert!(message.contains("has 10240 sectors, the cache's own has 8192"), "{message}");
}

/// A `resize` that was killed has grown the origin alone. `recover` took it for another one, which
/// the daemon does not.
#[test]
fn an_origin_of_its_own_that_has_grown_needs_no_token() {
    let (_dir, origin, cache) = killed("");
    let file = std::fs::OpenOptions::new().write(true).open(&origin).unwrap();
    file.set_len(5 << 20).unwrap();
    millpond(&["recover", "--cache", &cache, "--origin", &origin]).ok();
    file.set_len(4 << 20).unwrap();
    assert_written_back(&origin);
}

#[test]
fn a_copy_of_the_origin_is_refused_unless_the_table_allows_it() {
    let (dir, origin, cache) = killed("");
    let copy = dir.path().join("copy.img").to_str().unwrap().to_owned();
    std::fs::copy(&origin, &copy).unwrap();
    let daemon = Daemon::start_in(dir, &[]);
    let table = format!("0 8192 writecache s {copy} {cache} 4096");
    let message = daemon.cli(&["create", "wc", "--table", &format!("{table} 0")]).failed(1);
    assert!(message.contains("holds 5 blocks (5 dirty) of another origin"), "{message}");
    daemon.create("wc", &format!("{table} 1 adopt_origin"));
    daemon.qemu_io("wc", &["read -P 0x22 409600 4096"]).ok();
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0)); // with a word about what stays
    daemon.create("wc", &format!("{table} 0"));
}

#[test]
fn a_loss_is_not_wiped_without_the_current_token() {
    let (dir, origin, cache) = killed("");
    let message = millpond(&["wipe", &cache]).failed(1);
    assert!(message.contains("holds 5 dirty blocks (20.0 KiB)"), "{message}");
    let stale = message.split("--force ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    // The cache goes on working: the token is stale.
    let daemon = Daemon::start_in(dir, &[]);
    daemon.create("wc", &format!("0 8192 writecache s {origin} {cache} 4096 0"));
    daemon.qemu_io("wc", &["write -P 0x33 8192 4096", "flush"]).ok();
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0)); // with a word about what stays
    let message = millpond(&["wipe", &cache, "--force", &stale]).failed(1);
    assert!(message.contains("does not stand for what is there now"), "{message}");
    let token = message.split("`--force ").last().unwrap().split('`').next().unwrap();
    assert!(millpond(&["wipe", &cache, "--force", token]).ok().contains("is blank"));
    assert!(millpond(&["inspect", &cache]).ok().contains("none: it is blank"));
    // A blank one, and one that was written back, need no word.
    millpond(&["wipe", &cache]).ok();
    daemon.create("wc", &format!("0 8192 writecache s {origin} {cache} 4096 0"));
    daemon.cli(&["remove", "wc"]).ok();
    millpond(&["wipe", &cache]).ok();
    let foreign = common::file_in(daemon.dir.path(), "foreign.img", 1);
    std::fs::write(&foreign, vec![1; 1 << 20]).unwrap();
    let message = millpond(&["wipe", &foreign]).failed(1);
    assert!(message.contains("holds something that is no cache"), "{message}");
    assert!(std::fs::read(&foreign).unwrap().iter().all(|&byte| byte == 1));
}

/// Sets a bit of `incompat` in all superblocks, as a later version may, and that version's name.
fn mark_as_of_a_later_version(cache: &str) {
    let file = std::fs::File::options().read(true).write(true).open(cache).unwrap();
    for copy in 0..format::SUPERBLOCK_COPIES {
        let (mut unit, at) = ([0; format::UNIT], format::Geometry::superblock_offset(copy));
        file.read_exact_at(&mut unit, at).unwrap();
        (unit[8], unit[136], unit[152]) = (7, 0x20, 1);
        unit[160..174].copy_from_slice(b"millpond 1.2.0");
        unit[12..16].fill(0);
        let crc = format::checksum(&unit);
        unit[12..16].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&unit, at).unwrap();
    }
}

#[test]
fn a_cache_of_a_later_version_is_refused_by_every_verb() {
    let (dir, origin, cache) = killed("");
    mark_as_of_a_later_version(&cache);
    let before = std::fs::read(&cache).unwrap();
    let what = "it uses features of a later version of millpond (incompat 0x20), written by \
                millpond 1.2.0";
    let way_out = "open it with that version, or one after it";
    let shown = millpond(&["inspect", &cache]);
    assert_eq!(shown.code, Some(1));
    let told = json(&millpond(&["inspect", &cache, "-o", "json"]));
    assert_eq!((told["format"].as_str(), told["sound"].as_bool()), (Some("later"), Some(false)));
    let later = &told["later"];
    assert_eq!((later["incompat"].as_u64(), later["ro_compat"].as_u64()), (Some(32), Some(0)));
    assert_eq!(later["written_by"].as_str(), Some("millpond 1.2.0"));
    assert_eq!(later["way_out"].as_str(), Some(way_out));
    let recover = ["recover", "--cache", &cache, "--origin", &origin];
    let wipe = millpond(&["wipe", &cache]).failed(1);
    let daemon = Daemon::start_in(dir, &[]);
    let table = format!("0 8192 writecache s {origin} {cache} 4096 0");
    let created = daemon.cli(&["create", "wc", "--table", &table]).failed(1);
    daemon.create("other", &format!("0 8192 writecache s mem:4M {} 4096 0", daemon.file("o", 2)));
    let replaced = daemon.cli(&["replace-cache", "other", &cache]).failed(1);
    for why in [shown.out, millpond(&recover).failed(1), wipe.clone(), created, replaced] {
        assert!(why.contains(what) && why.contains(way_out), "{why}");
        let is_wrong = ["neither", "unknown", "damaged", "is blank"];
        assert!(!is_wrong.iter().any(|word| why.contains(word)), "{why}");
    }
    assert!(std::fs::read(&cache).unwrap() == before, "it was changed");
    let token = wipe.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    assert!(millpond(&["wipe", &cache, "--force", token]).ok().contains("is blank"));
    daemon.create("wc", &table);
}

/// Somebody has saved the journal that a killed daemon left, by a hard link, so nobody takes it:
/// `recover` wants a token for a cache that may lack writes, and `wipe` wiped it without a word.
#[test]
fn a_cache_whose_journal_is_unreadable_is_wiped_by_token() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    daemon.create("wc", &format!("0 8192 writecache s {origin} {cache} 4096 0"));
    daemon.cli(&["flush", "wc"]).ok();
    // It ends behind the write, and without a flush.
    let write = ["-c", "write -P 0x11 0 4096", "-c", "abort"];
    let uri = daemon.uri("wc");
    let written = sh("qemu-io", &[&["-t", "writeback", "-f", "raw", &uri][..], &write].concat());
    assert_eq!(written.code, None, "{written:?}");
    daemon.signal("-KILL");
    let run_dir = daemon.run_dir();
    let (_, _, _dir) = daemon.wait();
    let files = std::fs::read_dir(&run_dir).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut journals = files.filter(|path| name(path).starts_with("journal-"));
    std::fs::hard_link(journals.next().unwrap(), run_dir.join("saved")).unwrap();
    let wipe = ["--run-dir", run_dir.to_str().unwrap(), "wipe", &cache];
    let refused = millpond(&wipe).failed(1);
    assert!(refused.contains("nothing was changed. `--force "), "{refused}");
    let token = refused.split("--force ").nth(1).unwrap().split('`').next().unwrap();
    assert!(millpond(&[&wipe[..], &["--force", token]].concat()).ok().contains("is blank"));
}

#[test]
fn what_a_daemon_has_open_is_in_use_and_the_daemon_is_named() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    let table = format!("0 8192 writecache s {origin} {cache} 4096 0");
    daemon.create("wc", &table);
    let by = format!("is in use, by process {} (millpond", daemon.pid());
    let other = Daemon::start();
    for message in [
        millpond(&["inspect", &cache]),
        millpond(&["wipe", &cache]),
        millpond(&["recover", "--cache", &cache, "--origin", &origin]),
        other.cli(&["create", "second", "--table", &table]),
        other.cli(&["create", "second", "--table", &format!("0 8192 linear {origin} 0")]),
    ] {
        let message = message.failed(4);
        let path = if message.contains(&cache) { &cache } else { &origin };
        assert!(
            message.contains(&format!("{path}: {by}")) && message.contains("EBUSY"),
            "{message}"
        );
    }
    // The daemon names the device that uses the image.
    let link = daemon.dir.path().join("link.img");
    std::os::unix::fs::symlink(&cache, &link).unwrap();
    for args in [
        &["inspect", &cache][..],
        &["wipe", link.to_str().unwrap()],
        &["recover", "--cache", "./cache.img", "--origin", &origin],
    ] {
        let message = daemon.cli(args).failed(4);
        assert!(message.ends_with("(millpond), for its device wc (EBUSY)\n"), "{message}");
    }
    daemon.cli(&["remove", "wc"]).ok();
    other.create("second", &table);
}

#[test]
fn damage_and_absence_have_their_exit_codes() {
    let (dir, origin, cache) = killed("");
    let file = std::fs::OpenOptions::new().write(true).open(&cache).unwrap();
    file.write_all_at(b"x", 65536 + 40).unwrap();
    let message = millpond(&["inspect", &cache]);
    assert_eq!(message.code, Some(1), "{message:?}");
    assert!(message.out.contains("65536: superblock copy 1: checksum mismatch"), "{message:?}");
    for at in [0, 131_072] {
        file.write_all_at(b"x", at + 40).unwrap();
    }
    let message = millpond(&["inspect", &cache, "-o", "json"]);
    assert_eq!(message.code, Some(1), "{message:?}");
    assert_eq!(json(&message)["format"], "ruined");
    let message = millpond(&["recover", "--cache", &cache, "--origin", &origin]).failed(1);
    assert!(message.contains("is damaged: superblock copy 0"), "{message}");
    let absent = dir.path().join("absent").to_str().unwrap().to_owned();
    assert!(millpond(&["inspect", &absent]).failed(3).contains("no such file or device"));
    millpond(&["wipe", &absent]).failed(3);
    millpond(&["recover", "--cache", &cache, "--origin", &origin, "--force"]).failed(2);
}

/// A golden image, unpacked into `dir`.
fn golden(dir: &Path, name: &str) -> Option<String> {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../writecache/tests/golden");
    let packed = std::fs::File::open(images.join(format!("{name}.img.gz"))).ok()?;
    let mut image = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut image).unwrap();
    let path = dir.join(format!("{name}.img"));
    std::fs::write(&path, image).unwrap();
    Some(path.to_str().unwrap().to_owned())
}

const GOLDEN: [(&str, u64, u64); 9] = [
    ("ssd-4096-empty", 4096, 0),
    ("ssd-4096-committed", 4096, 24),
    ("ssd-4096-overwritten", 4096, 24),
    ("ssd-4096-uncommitted", 4096, 24),
    ("ssd-4096-flushed", 4096, 0),
    ("ssd-512-committed", 512, 24),
    ("ssd-512-overwritten", 512, 24),
    ("ssd-512-uncommitted", 512, 24),
    ("pmem-4096-committed", 4096, 16),
];

#[test]
fn the_kernels_images_are_told_for_what_they_are() {
    let dir = folder();
    for (name, block_size, dirty) in GOLDEN {
        let cache = golden(dir.path(), &format!("{name}.cache")).unwrap();
        let message = millpond(&["inspect", &cache, "-o", "json", "--all"]);
        assert_eq!(message.code, Some(0), "{name}: {message:?}");
        let told = json(&message);
        assert_eq!(told["format"], "dm", "{name}: {told}");
        let blocks = &told["blocks"];
        assert_eq!(blocks["block_size"], block_size, "{name}: {told}");
        assert_eq!(blocks["dirty"], dirty, "{name}: {told}");
    }
}

#[test]
fn the_kernels_images_are_recovered_to_what_the_kernel_showed() {
    let dir = folder();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../writecache/tests/golden");
    for (name, _, dirty) in GOLDEN {
        let cache = golden(dir.path(), &format!("{name}.cache")).unwrap();
        let origin = golden(dir.path(), &format!("{name}.origin"));
        let origin = origin.unwrap_or_else(|| common::file_in(dir.path(), "zeroes.img", 4));
        let recover = ["recover", "--cache", &cache, "--origin", &origin];
        let message = millpond(&recover).ok();
        assert!(message.starts_with(&format!("{dirty} blocks (")), "{name}: {message}");
        // The last 8 blocks of the uncommitted sets were never on the media (golden/README.md).
        let like = name.replace("uncommitted", "overwritten");
        let view = std::fs::read_to_string(images.join(format!("{like}.view.sha256"))).unwrap();
        let sum = sh("sha256sum", &[&origin]).ok();
        assert_eq!(sum[..64], view[..64], "{name}");
        let told = json(&millpond(&["inspect", &cache, "-o", "json"]));
        assert_eq!(told["blocks"]["dirty"], 0, "{name}: {told}");
        assert_eq!(told["blocks"]["free"], told["blocks"]["total"], "{name}: {told}");
        assert!(millpond(&recover).ok().starts_with("0 blocks"), "{name}");
        assert_eq!(sh("sha256sum", &[&origin]).ok()[..64], view[..64], "{name}, again");
    }
}
