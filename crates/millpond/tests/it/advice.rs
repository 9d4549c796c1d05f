// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Warnings and refusals about the devices of a write cache, and the way out of each.
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Daemon, MILLPOND, file_in, folder, sh};
use tempfile::TempDir;

/// What it warned of; it must have succeeded.
#[track_caller]
fn warned(output: &CommandOutput) -> &str {
    assert_eq!(output.code, Some(0), "{output:?}");
    &output.err
}

fn create(daemon: &Daemon, table: &str) -> CommandOutput {
    daemon.cli(&["create", "wc", "--table", table])
}

/// The two were taken in silence when both were blank.
#[test]
fn a_cache_device_larger_than_its_origin_is_warned_of() {
    let daemon = Daemon::start();
    daemon.file("small.img", 16);
    daemon.file("large.img", 32);
    let swapped = create(&daemon, "0 - writecache s ./small.img ./large.img 4096 0");
    assert!(warned(&swapped).contains("are they swapped?"), "{swapped:?}");
    daemon.cli(&["remove", "wc"]).ok();
    daemon.cli(&["wipe", "large.img"]).ok();
    daemon.create("wc", "0 - writecache s ./large.img ./small.img 4096 0");
    // A device with a start sector is meant to be shared, and memory holds nothing of anybody.
    daemon.file("other.img", 16);
    daemon.file("shared.img", 32);
    daemon.create("part", "0 - writecache s ./other.img ./shared.img 4096 2 start_sector 8192");
    daemon.create("ram", "0 - writecache s mem:4M mem:8M 4096 0");
}

/// The advice began with the token that makes the device of its origin alone.
#[test]
fn a_new_cache_with_a_mistyped_path_is_told_to_be_made_first() {
    let daemon = Daemon::start();
    daemon.file("o.img", 16);
    let table = "0 - writecache s ./o.img ./new.img 4096 0";
    let refused = create(&daemon, table).failed(3);
    let at = |words: &str| refused.find(words).unwrap_or_else(|| panic!("{words}: {refused}"));
    assert!(at("new.img: no such file") < at("a new one has to be made first"), "{refused}");
    assert!(at("`truncate` or `lvcreate`") < at("`--force="), "{refused}");
    assert!(at("`--force=") < at("is for a cache that is lost"), "{refused}");
    assert_eq!(sh("truncate", &["-s", "16M", &path(&daemon, "new.img")]).code, Some(0));
    daemon.create("wc", table);
}

fn path(daemon: &Daemon, name: &str) -> String {
    daemon.dir.path().join(name).to_str().unwrap().to_owned()
}

/// It offered a `--force` that the verb does not have.
#[test]
fn a_replacement_that_is_not_there_is_refused_without_a_token() {
    let daemon = Daemon::start();
    daemon.file("o.img", 16);
    daemon.file("c.img", 16);
    daemon.create("wc", "0 - writecache s ./o.img ./c.img 4096 0");
    let refused = daemon.cli(&["replace-cache", "wc", "./new.img"]).failed(3);
    for part in ["new.img: no such file", "made first", "nothing was changed"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(!refused.contains("force") && !refused.contains("OLD data"), "{refused}");
    daemon.file("new.img", 16);
    daemon.cli(&["replace-cache", "wc", "./new.img"]).ok();
}

/// It was `active` in lists, whatever its problems were.
#[test]
fn a_device_with_problems_is_failing_in_lists() {
    let daemon = Daemon::start();
    daemon.file("o.img", 16);
    daemon.file("c.img", 16);
    let table = "0 - writecache s ./o.img ./c.img 4096 0";
    daemon.create("wc", table);
    daemon.cli(&["remove", "wc"]).ok();
    std::fs::rename(path(&daemon, "c.img"), path(&daemon, "away.img")).unwrap();
    let refused = create(&daemon, table).failed(3);
    let token = refused.split("--force=").nth(1).unwrap().split('`').next().unwrap();
    let forced = daemon.cli(&["create", "wc", "--table", table, "--force", token]);
    warned(&forced);
    let state = || {
        let lines = daemon.cli(&["show"]).ok();
        let line = lines.lines().nth(1).unwrap();
        line.split_ascii_whitespace().nth(3).unwrap().to_owned()
    };
    assert_eq!(state(), "failing");
    std::fs::rename(path(&daemon, "away.img"), path(&daemon, "c.img")).unwrap();
    daemon.cli(&["load", "wc", "--table", table]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    assert_eq!(state(), "active");
}

#[test]
fn a_backing_device_that_is_too_small_says_how_much_it_needs() {
    let daemon = Daemon::start();
    for (bytes, options, needed) in [
        (512, "2 backing_dev ./b.img", "at least a page of 4096 bytes is needed"),
        (
            4096,
            "4 backing_dev ./b.img shards 2",
            "at least 2 pages of 4096 bytes, one for each part, are needed",
        ),
    ] {
        let file = std::fs::File::create(path(&daemon, "b.img")).unwrap();
        file.set_len(bytes).unwrap();
        let table = format!("0 2048 zram lz4 {options}");
        let refused = daemon.cli(&["create", "z", "--table", &table]).failed(1);
        let has = format!("it has {bytes} bytes, which are too few: {needed}");
        assert!(refused.contains(&has), "{refused}");
        file.set_len(1 << 20).unwrap();
        daemon.create("z", &table);
        daemon.cli(&["remove", "z"]).ok();
    }
}

/// A server of `origin.img` that offers no FLUSH and refuses one, as nbdkit does; killed when
/// dropped.
struct NoFlush(std::process::Child);

impl NoFlush {
    fn start(dir: &Path) -> NoFlush {
        let (image, socket) = (dir.join("origin.img"), dir.join("far.sock"));
        let dd = |words: &str| format!("dd {words} iflag=count_bytes,skip_bytes status=none");
        let image = image.display();
        let read = format!("pread={}", dd(&format!("if={image} skip=$4 count=$3")));
        let write = format!(
            "pwrite=dd of={image} seek=$4 oflag=seek_bytes conv=notrunc bs=64k status=none"
        );
        let mut command = Command::new("nbdkit");
        command.args(["-f", "-U"]).arg(&socket);
        command.args(["eval", "get_size=echo 16777216", "can_write=exit 0", &read, &write]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("nbdkit; scripts/setup.sh installs it");
        while !socket.exists() {
            std::thread::yield_now();
        }
        NoFlush(child)
    }
}

impl Drop for NoFlush {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn can_flush(daemon: &Daemon, name: &str) -> (bool, bool) {
    let info = sh("nbdinfo", &[&daemon.uri(name)]);
    assert_eq!(info.code, Some(0), "{info:?}");
    (info.out.contains("can_flush: true"), info.out.contains("can_fua: true"))
}

/// The device offered no FLUSH, so that an fsync of a client made nothing durable, and a client
/// that flushed the origin was refused by its server.
#[test]
fn a_cache_over_an_origin_without_flush_has_one_of_its_own() {
    let dir = folder();
    file_in(dir.path(), "origin.img", 16);
    let _server = NoFlush::start(dir.path());
    let daemon = Daemon::start_in(dir, &[]);
    daemon.file("c.img", 8);
    let far = format!("nbd+unix:///?socket={}", path(&daemon, "far.sock"));
    let table = format!("0 32768 writecache s {far} ./c.img 4096 0");
    let created = create(&daemon, &table);
    let text = warned(&created);
    assert!(text.contains("offers no FLUSH: a FLUSH of this device makes durable"), "{text}");
    assert_eq!(can_flush(&daemon, "wc"), (true, true));
    daemon.create("above", "0 8192 linear wc 0");
    for (name, holder) in [("wc", "the cache holds"), ("above", "the cache of wc holds")] {
        let shown = daemon.cli(&["show", name]).ok();
        let line = shown.lines().find(|line| line.starts_with("  FLUSH ")).expect("a line of it");
        assert!(line.contains(holder) && line.contains("sock offers none"), "{line}");
    }
    daemon.cli(&["remove", "above"]).ok();
    daemon.qemu_io("wc", &["write -P 7 1M 64k", "flush"]).ok();
    daemon.cli(&["flush", "wc"]).ok();
    let origin = std::fs::read(path(&daemon, "origin.img")).unwrap();
    assert!(origin[1 << 20..][..64 << 10].iter().all(|byte| *byte == 7));
    daemon.qemu_io("wc", &["write -P 8 2M 64k", "flush"]).ok();
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    let daemon = Daemon::start_in(dir, &[]);
    warned(&create(&daemon, &table));
    let read = daemon.qemu_io("wc", &["read -P 7 1M 64k", "read -P 8 2M 64k"]);
    assert!(!read.out.contains("failed"), "{read:?}");
    // A cache that is lost with the daemon has none, nor has one over an origin that is.
    daemon.create("ram", "0 16384 zram lz4");
    daemon.create("ram2", "0 16384 zram lz4");
    daemon.file("o.img", 16);
    daemon.file("c2.img", 4);
    for (name, devices) in [("a", "./o.img ram"), ("b", "ram2 ./c2.img")] {
        let table = format!("0 16384 writecache s {devices} 4096 0");
        warned(&daemon.cli(&["create", name, "--table", &table]));
    }
    for name in ["a", "b"] {
        assert_eq!(can_flush(&daemon, name), (false, false), "{name}");
        let shown = daemon.cli(&["show", name]).ok();
        assert!(shown.contains("none is offered: what is written is gone"), "{shown}");
    }
}

/// A daemon that has a small file system at `small` of its folder; `None` where nobody may mount.
fn with_small_file_system(dir: TempDir) -> Option<Daemon> {
    if sh("unshare", &["-m", "true"]).code != Some(0) {
        println!("skipped: needs the right to mount");
        return None;
    }
    std::fs::create_dir(dir.path().join("small")).unwrap();
    let script = "mount -t tmpfs -o size=8M small small && exec \"$0\" daemon --run-dir run";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, MILLPOND]).current_dir(dir.path());
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    Some(Daemon::ready(dir, child).unwrap_or_else(|(_, log)| panic!("no daemon: {log}")))
}

/// All was well until the file system was full, and then the cache failed.
#[test]
fn a_sparse_cache_file_without_room_to_grow_is_warned_of() {
    let Some(daemon) = with_small_file_system(folder()) else { return };
    let pid = daemon.pid().to_string();
    let inside = |command: &str| {
        let dir = daemon.dir.path().to_str().unwrap();
        let within = ["-t", &pid, "-m", "sh", "-c", "cd \"$0\" && eval \"$1\"", dir, command];
        let output = sh("nsenter", &within);
        assert_eq!(output.code, Some(0), "{output:?}");
    };
    daemon.file("o.img", 64);
    inside("truncate -s 4M small/fits.img; truncate -s 16M small/c.img");
    let table = |file: &str| format!("0 - writecache s ./o.img ./small/{file} 4096 0");
    let fits = create(&daemon, &table("fits.img"));
    assert!(!warned(&fits).contains("sparse"), "{fits:?}");
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0));
    let warning = create(&daemon, &table("c.img"));
    let text = warned(&warning);
    for part in ["small/c.img is sparse: it may need ", "MiB more", "MiB free", "Make room there"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(daemon.cli(&["remove", "wc"]).code, Some(0));
    inside("mount -o remount,size=64M small");
    let keeps = text.split('`').find(|words| words.starts_with("fallocate ")).unwrap();
    inside(keeps);
    let reserved = create(&daemon, &table("c.img"));
    assert!(!warned(&reserved).contains("sparse"), "{reserved:?}");
    inside("dd if=/dev/zero of=small/rest bs=1M count=1000 2>&1 || true");
    let written = daemon.qemu_io("wc", &["write -P 7 0 8M", "flush"]);
    assert!(!written.out.contains("failed"), "{written:?}");
}
