// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Disks, exports and files that take no writes: what is made over them is read-only at every door,
//! and a write cache over them is refused before it acknowledges anything.
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::loops::{Loop, Mounted};
use e2e::mounted::{file, fuse};
use e2e::process::{Process, run};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use nbd::wire::ExportFlags;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// A loop device that is read-only.
struct ReadOnlyLoop(String);

impl ReadOnlyLoop {
    fn on(file: &Path) -> Option<ReadOnlyLoop> {
        let mut losetup = Command::new("losetup");
        let ended = run(losetup.args(["--find", "--show", "-r"]).arg(file), LIMIT).unwrap();
        if ended.code != 0 {
            println!("skipped: needs loop devices, and root: {}", ended.complaint());
            return None;
        }
        Some(ReadOnlyLoop(ended.stdout.trim().into()))
    }
}

impl Drop for ReadOnlyLoop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").args(["-d", &self.0]), LIMIT);
    }
}

fn bed() -> Option<TestBed> {
    fuse().then(|| {
        let files = [("r.img", 16 * MIB), ("w.img", 16 * MIB), ("c.img", 16 * MIB)];
        TestBed::start_mounted(&files, &[])
    })
}

/// All that is made over `word`, of 16 MiB, takes no writes.
fn takes_no_writes(bed: &TestBed, word: &str) {
    let create = |name: &str, table: &str| bed.daemon().verb(&["create", name, "--table", table]);
    let writable = bed.path("w.img");
    let (writable, cache) = (writable.display(), bed.path("c.img"));
    create("lin", &format!("0 32768 linear {word} 0")).unwrap();
    create("above", "0 8192 linear lin 64").unwrap();
    create("str", &format!("0 32768 striped 2 128 {word} 0 {writable} 0")).unwrap();
    for name in ["lin", "above", "str"] {
        let mut client = bed.connect(name);
        let flags = ExportFlags::from_bits(client.flags()).unwrap();
        assert!(flags.contains(ExportFlags::READ_ONLY), "{name}: {flags:?}");
        assert!(!flags.intersects(ExportFlags::TRIM | ExportFlags::WRITE_ZEROES), "{name}");
        let refused = client.write(0, &[1; 4096]).unwrap_err().to_string();
        assert!(refused.ends_with("error 1"), "{name}: {refused}");
        client.read(0, &mut [0; 4096]).unwrap();
        client.flush().unwrap();
        assert!(bed.verb(&["info", name]).contains("READ-ONLY"), "{name}");
        assert_eq!(bed.verb(&["get", name, "ro"]).trim(), "1", "{name}");
        let path = file(bed, name);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o222, 0, "{name}");
        assert!(fs::File::options().write(true).open(&path).is_err(), "{name}");
    }
    let cache = cache.display();
    for table in [
        format!("0 32768 writecache s {word} {cache} 4096 0"),
        format!("0 32768 writecache s {writable} {word} 4096 0"),
        format!("0 32768 buffered {word}"),
        format!("0 32768 zram zstd 2 backing_dev {word}"),
        format!("0 8192 writecache s above {cache} 4096 0"),
    ] {
        let refused = create("wc", &table).unwrap_err();
        assert!(refused.contains("read-only") && refused.contains("takes no writes"), "{refused}");
    }
    let blank = fs::read(bed.path("c.img")).unwrap();
    assert!(blank.iter().all(|byte| *byte == 0), "a refused cache is not made");
    for name in ["above", "lin", "str"] {
        let give_up = clock() + LIMIT.as_secs_f64();
        while let Err(e) = bed.daemon().verb(&["remove", name]) {
            assert!(clock() < give_up, "{e}");
            pause(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_read_only_loop_device_is_read_only_at_every_door() {
    let Some(bed) = bed() else { return };
    let Some(device) = ReadOnlyLoop::on(&bed.path("r.img")) else { return };
    takes_no_writes(&bed, &device.0);
}

#[test]
fn a_read_only_export_is_read_only_at_every_door() {
    if !clients(&["nbdkit"]) {
        return;
    }
    let Some(bed) = bed() else { return };
    let _server = serve(&bed, &["-r"]);
    takes_no_writes(&bed, &far(&bed));
}

/// A server of `r.img`.
fn serve(bed: &TestBed, options: &[&str]) -> Process {
    let socket = bed.path("nbdkit.sock");
    let _ = fs::remove_file(&socket); // of the one before
    let mut nbdkit = Command::new("nbdkit");
    nbdkit.arg("-f").args(options).arg("-U").arg(&socket).arg("file").arg(bed.path("r.img"));
    let server = Process::start(&mut nbdkit).unwrap();
    let give_up = clock() + LIMIT.as_secs_f64();
    while !socket.exists() {
        assert!(clock() < give_up, "nbdkit does not start");
        pause(Duration::from_millis(20));
    }
    server
}

fn far(bed: &TestBed) -> String {
    format!("nbd+unix:///?socket={}", bed.path("nbdkit.sock").display())
}

/// What is over `word`, of 16 MiB, learns of it, when `close` has made it read-only, and goes on
/// after `open`.
fn becomes_read_only(bed: &TestBed, word: &str, close: impl FnOnce(), open: impl FnOnce()) {
    let create = |name: &str, table: &str| bed.verb(&["create", name, "--table", table]);
    create("lin", &format!("0 16384 linear {word} 0"));
    create("above", "0 8192 linear lin 64");
    let cache = bed.path("c.img");
    create("below", &format!("0 16384 linear {word} 16384"));
    create("wc", &format!("0 16384 writecache s below {} 4096 0", cache.display()));
    let names = ["lin", "above"];
    let mut clients = names.map(|name| bed.connect(name));
    let says = |name: &str| bed.verb(&["show", name]).contains("has become read-only");
    clients.iter_mut().for_each(|client| client.write(0, &[1; 4096]).unwrap());
    let mut cached = bed.connect("wc");
    close();
    for client in &mut clients {
        let refused = client.write(0, &[2; 4096]).unwrap_err().to_string();
        assert!(refused.ends_with("error 1"), "EPERM: {refused}");
        let mut data = [0; 4096];
        client.read(0, &mut data).unwrap();
        assert_eq!(data, [1; 4096]);
    }
    // A write cache has what is written meanwhile.
    cached.write(0, &[2; 4096]).unwrap();
    cached.flush().unwrap();
    let refused = bed.daemon().verb(&["flush", "wc"]).unwrap_err();
    assert!(refused.contains("read-only device"), "{refused}");
    for name in ["lin", "above", "below", "wc"] {
        assert!(says(name), "{name}: {}", bed.verb(&["show", name]));
    }
    open();
    // A client of a server that was started again has to notice that first.
    let give_up = clock() + LIMIT.as_secs_f64();
    while let Err(e) = bed.daemon().verb(&["flush", "wc"]) {
        assert!(clock() < give_up, "{e}");
        pause(Duration::from_millis(20));
    }
    clients.iter_mut().for_each(|client| client.write(0, &[3; 4096]).unwrap());
    for name in ["lin", "above", "below", "wc"] {
        assert!(!says(name), "{name}");
    }
}

/// Its writes were I/O errors, and nothing said why.
#[test]
fn a_disk_that_is_made_read_only_while_it_is_open_is_named() {
    let Some(bed) = bed() else { return };
    let Some(device) = Loop::on(&bed.path("r.img")) else { return };
    let set = |how: &str| {
        run(Command::new("blockdev").arg(how).arg(device.device()), LIMIT).unwrap().ok().unwrap();
    };
    let word = device.device().display().to_string();
    becomes_read_only(&bed, &word, || set("--setro"), || set("--setrw"));
    drop(bed);
    drop(device);
}

/// The device failed for ever, reads and all.
#[test]
fn an_export_that_comes_back_read_only_is_named_and_read() {
    if !clients(&["nbdkit"]) {
        return;
    }
    let Some(bed) = bed() else { return };
    let server = std::cell::RefCell::new(Some(serve(&bed, &[])));
    let restart = |options: &[&str]| {
        drop(server.take());
        server.replace(Some(serve(&bed, options)));
    };
    becomes_read_only(&bed, &far(&bed), || restart(&["-r"]), || restart(&[]));
}

#[test]
fn an_image_on_a_read_only_file_system_is_served() {
    let Some(bed) = bed() else { return };
    for dir in ["images", "ro"] {
        fs::create_dir(bed.path(dir)).unwrap();
    }
    fs::write(bed.path("images/r.img"), vec![7; 16 * MIB as usize]).unwrap();
    let options = ["--bind", "-o", "ro"];
    let mounted = match Mounted::new(&options, &bed.path("images"), &bed.path("ro")) {
        Ok(mounted) => mounted,
        Err(e) => return println!("skipped: needs root: {e}"),
    };
    let image = bed.path("ro/r.img");
    let table = format!("0 - linear {} 0", image.display());
    bed.verb(&["create", "iso", "--table", &table]);
    let mut data = [0; 4096];
    let mut client = bed.connect("iso");
    client.read(0, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    drop(client);
    let give_up = clock() + LIMIT.as_secs_f64();
    while let Err(e) = bed.daemon().verb(&["remove", "iso"]) {
        assert!(clock() < give_up, "{e}");
        pause(Duration::from_millis(20));
    }
    takes_no_writes(&bed, &image.display().to_string());
    drop(bed);
    drop(mounted);
}

/// The bytes at the end that make no sector.
#[test]
fn bytes_that_are_not_served_are_named() {
    let Some(bed) = bed() else { return };
    bed.make_file("odd.img", 1_000_000);
    let table = format!("0 - linear {} 0", bed.path("odd.img").display());
    let program = e2e::binary::millpond(e2e::binary::Build::Workspace).unwrap();
    let mut create = Command::new(program);
    create.arg("--run-dir").arg(bed.dir().join("run"));
    let made = run(create.args(["create", "odd", "--table", &table]), LIMIT).unwrap();
    assert!(made.code == 0 && made.stderr.contains("last 64 bytes"), "{}", made.complaint());
    assert!(bed.daemon().log().contains("last 64 bytes"), "{}", bed.daemon().log());
}
