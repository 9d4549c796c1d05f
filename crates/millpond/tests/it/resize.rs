// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `resize` against a running daemon: the origin has grown and the device follows, clients keep
//! their connections, a kill at any moment loses nothing, and nothing shrinks unasked.
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{Daemon, MILLPOND, file_in, folder, start_fails};
use serde_json::Value;
use tempfile::TempDir;

/// A write cache whose blocks are written back one by one.
fn table(len: &str) -> String {
    format!("0 {len} writecache s ./origin.img ./cache.img 4096 2 writeback_io_bytes 4096")
}

fn configure(dir: &Path, len: &str) {
    let config = format!("[[device]]\nname = 'wc'\ntable = '{}'\n", table(len));
    std::fs::write(dir.join("pond.toml"), config).unwrap();
}

/// A folder with an origin of 16 MiB, its cache, and a configuration.
fn setup() -> TempDir {
    let dir = folder();
    file_in(dir.path(), "origin.img", 16);
    file_in(dir.path(), "cache.img", 16);
    configure(dir.path(), "32768");
    dir
}

fn start(dir: TempDir) -> Daemon {
    Daemon::start_in(dir, &["--config", "pond.toml"])
}

fn set_size(dir: &Path, name: &str, mib: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(dir.join(name)).unwrap();
    file.set_len(mib << 20).unwrap();
}

fn sectors(daemon: &Daemon, name: &str) -> u64 {
    let (_, info) = daemon.curl("GET", &format!("/v1/devices/{name}"), &[]);
    let info: Value = serde_json::from_str(&info).unwrap();
    info["size_sectors"].as_u64().unwrap()
}

fn write(daemon: &Daemon, name: &str, pattern: u8, place: &str) {
    daemon.qemu_io(name, &[&format!("write -P {pattern} {place}"), "flush"]).ok();
}

#[track_caller]
fn expect(daemon: &Daemon, name: &str, pattern: u8, place: &str) {
    let output = daemon.qemu_io(name, &[&format!("read -P {pattern} {place}")]);
    let is_right = output.code == Some(0) && !output.out.contains("failed");
    assert!(is_right, "{place} is not {pattern}: {output:?}");
}

/// A client that stays connected: it has written at 2 MiB.
fn client(daemon: &Daemon, pattern: u8) -> Child {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", &daemon.uri("wc")]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "write -P {pattern} 2M 4k").unwrap();
    let read = [&*format!("read -P {pattern} 2M 4k")];
    while daemon.qemu_io("wc", &read).out.contains("failed") {}
    child
}

/// Its output after the rest of its commands.
fn rest(mut client: Child, commands: &[&str]) -> String {
    let mut input = client.stdin.take().unwrap();
    commands.iter().for_each(|command| writeln!(input, "{command}").unwrap());
    drop(input);
    let output = client.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), output.stderr);
    format!("{out}{}", String::from_utf8_lossy(&err))
}

/// The last lines of a command that is refused.
#[track_caller]
fn refused(daemon: &Daemon, args: &[&str], why: &str) {
    let output = daemon.cli(args);
    assert!(output.code == Some(1) && output.err.contains(why), "{output:?}");
}

#[test]
fn a_volume_on_an_object_store_grows_and_never_shrinks() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("vol")).unwrap();
    let url = format!("file://{}", dir.path().join("vol").display());
    let daemon = Daemon::start_in(dir, &[]);
    let table = |size: &str| format!("0 {size} objvol {url}");
    daemon.cli(&["create", "vol", "--table", &table("8M")]).ok();
    write(&daemon, "vol", 1, "0 64k");
    refused(&daemon, &["resize", "vol"], "give a number of sectors or a size");
    daemon.cli(&["resize", "vol", "16M"]).ok();
    assert_eq!(sectors(&daemon, "vol"), 32768);
    write(&daemon, "vol", 2, "15M 64k");
    expect(&daemon, "vol", 1, "0 64k");
    let smaller = "it has 32768 sectors (16.0 MiB), and does not become smaller";
    refused(&daemon, &["resize", "vol", "8M"], smaller);
    daemon.cli(&["remove", "vol"]).ok();
    let other = "the volume has 32768 sectors, not 16384: it may have been resized";
    refused(&daemon, &["create", "vol", "--table", &table("8M")], other);
    daemon.cli(&["create", "vol", "--table", &table("16M")]).ok();
    expect(&daemon, "vol", 2, "15M 64k");
}

#[test]
fn a_grown_origin_is_followed_under_a_client() {
    let daemon = start(setup());
    write(&daemon, "wc", 0x5a, "0 1M");
    let before = client(&daemon, 7);
    set_size(daemon.dir.path(), "origin.img", 32);
    let output = daemon.cli(&["resize", "wc"]);
    assert_eq!(
        (output.code, &*output.out),
        (Some(0), "wc: 32.0 MiB (65536 sectors), was 16.0 MiB\n")
    );
    assert!(output.err.contains("pond.toml has another table of wc"), "{}", output.err);
    let text = rest(before, &["read -P 7 2M 4k", "write -P 8 3M 4k", "flush", "length"]);
    assert!(!text.contains("failed") && text.contains("16 MiB"), "{text}");
    write(&daemon, "wc", 0x33, "31M 1M");
    let again = daemon.cli(&["resize", "wc", "-o", "json"]);
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["sectors_before"], 65536);
    assert_eq!(again["device"]["size_sectors"], 65536);
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    // The table of before would hide blocks.
    let (code, log) = start_fails(dir.path(), &["--config", "pond.toml"]);
    assert!(code == Some(1) && log.contains("Make a table of 65536 sectors"), "{log}");
    configure(dir.path(), "-");
    let daemon = start(dir);
    for (pattern, place) in [(0x5a, "0 1M"), (7, "2M 4k"), (8, "3M 4k"), (0x33, "31M 1M")] {
        expect(&daemon, "wc", pattern, place);
    }
}

/// A client that stays connected notices nothing, and a kill finds the cache as large as it was.
#[test]
fn a_cache_follows_its_device_under_a_client() {
    let daemon = start(setup());
    write(&daemon, "wc", 0x5a, "0 1M");
    let before = client(&daemon, 7);
    let same = daemon.cli(&["resize", "wc", "--cache"]);
    let ok = same.code == Some(0) && same.out.ends_with("blocks), as before\n");
    assert!(ok, "{same:?}");
    set_size(daemon.dir.path(), "cache.img", 40);
    let output = daemon.cli(&["resize", "wc", "--cache"]);
    let is_grown =
        output.out.contains("/cache.img: 38.") && output.out.contains("blocks), was 15.");
    assert!(output.code == Some(0) && is_grown, "{output:?}");
    assert_eq!(sectors(&daemon, "wc"), 32768);
    let text = rest(before, &["read -P 7 2M 4k", "write -P 8 3M 4k", "flush", "length"]);
    assert!(!text.contains("failed") && text.contains("16 MiB"), "{text}");
    write(&daemon, "wc", 0x33, "4M 12M");
    let (_, answer) = daemon.curl("POST", "/v1/devices/wc/resize", &["-d", "{\"cache\": true}"]);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let blocks = answer["caches"][0]["blocks"].as_u64().unwrap();
    assert_eq!(answer["caches"][0]["blocks_before"], blocks);
    let (_, both) = daemon.curl(
        "POST",
        "/v1/devices/wc/resize",
        &["-d", "{\"cache\": true, \"size_bytes\": 512}"],
    );
    assert!(both.contains("with `cache` the size is that of the cache device"), "{both}");
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();
    let daemon = start(dir);
    let total = daemon.cli(&["get", "wc", "total_blocks"]).ok();
    assert_eq!(total.trim(), blocks.to_string());
    for (pattern, place) in [(0x5a, "0 1M"), (7, "2M 4k"), (8, "3M 4k"), (0x33, "4M 12M")] {
        expect(&daemon, "wc", pattern, place);
    }
    let shown = daemon.cli(&["inspect", "./cache.img"]);
    eprintln!("{shown:?}");
    daemon.signal("-TERM");
    assert!(daemon.wait().0.success());
}

#[test]
fn caches_that_can_not_grow_are_refused_with_why() {
    let daemon = Daemon::start();
    let dir = daemon.dir.path();
    for (name, options, why) in [
        ("dm", "2 format dm", "a cache of the kernel's format can't grow"),
        ("little", "0", "which is too little to move the metadata there"),
    ] {
        file_in(dir, &format!("{name}.ssd"), 16);
        let table = format!("0 32768 writecache s mem:16M,{name} ./{name}.ssd 4096 {options}");
        daemon.create(name, &table);
        let bytes = if name == "little" { (16 << 20) + (128 << 10) } else { 32 << 20 };
        let file = std::fs::OpenOptions::new().write(true).open(dir.join(format!("{name}.ssd")));
        file.unwrap().set_len(bytes).unwrap();
        let error = daemon.cli(&["resize", name, "--cache"]).failed(1);
        assert!(error.contains(why), "{error}");
        write(&daemon, name, 3, "0 1M");
        expect(&daemon, name, 3, "0 1M");
    }
    daemon.create("lin", "0 - linear mem:1M 0");
    let error = daemon.cli(&["resize", "lin", "--cache"]).failed(1);
    assert!(error.contains("its table has no write cache"), "{error}");
    daemon.cli(&["resize", "lin", "1M", "--cache"]).failed(2);
}

#[test]
fn a_loaded_table_sees_that_its_file_has_grown() {
    let daemon = Daemon::start();
    daemon.file("a.img", 16);
    daemon.create("a", "0 - linear ./a.img 0");
    daemon.create("above", "0 8 linear a 0");
    write(&daemon, "a", 1, "0 16M");
    let longer = "0 65536 linear ./a.img 0";
    let error = daemon.cli(&["load", "a", "--table", longer]).failed(1);
    assert!(error.contains("too small"), "{error}");
    set_size(daemon.dir.path(), "a.img", 32);
    daemon.cli(&["load", "a", "--table", longer]).ok();
    daemon.cli(&["resume", "a"]).ok();
    assert_eq!(sectors(&daemon, "a"), 65536);
    write(&daemon, "a", 2, "16M 16M");
    expect(&daemon, "a", 1, "0 16M");
    expect(&daemon, "a", 2, "16M 16M");
    // A device above grows when it is asked to.
    assert_eq!(sectors(&daemon, "above"), 8);
    daemon.cli(&["resize", "above"]).ok();
    assert_eq!(sectors(&daemon, "above"), 65536);
    expect(&daemon, "above", 2, "16M 16M");
}

#[test]
fn every_target_over_a_grown_file_grows() {
    let daemon = Daemon::start();
    let dir = daemon.dir.path();
    let tables = [
        ("lin", "0 - linear ./lin.img 8"),
        ("str", "0 - striped 2 128 ./str.img 0 ./str2.img 0"),
        ("buf", "0 - buffered ./buf.img 2 memory 8M"),
        ("dly", "0 - delay ./dly.img 0 0"),
        ("two", "0 2048 zero\n2048 - linear ./two.img 0"),
        ("wdm", "0 - writecache s ./wdm.img mem:8M 4096 2 format dm"),
        ("wor", "0 - writecache s ./wor.img mem:9M 4096 1 ordered"),
    ];
    for (name, table) in tables {
        file_in(dir, &format!("{name}.img"), 16);
        if name == "str" {
            file_in(dir, "str2.img", 16);
        }
        daemon.create(name, table);
        let before = sectors(&daemon, name);
        write(&daemon, name, 0x11, "8M 1M");
        set_size(dir, &format!("{name}.img"), 32);
        if name == "str" {
            set_size(dir, "str2.img", 32);
        }
        daemon.cli(&["resize", name]).ok();
        let grown = if name == "str" { 65536 } else { 32768 };
        assert_eq!(sectors(&daemon, name), before + grown, "{name}");
        write(&daemon, name, 0x22, "17M 1M");
        expect(&daemon, name, 0x11, "8M 1M");
        expect(&daemon, name, 0x22, "17M 1M");
    }
}

/// Files of --fuse have the new size, and so have those that are open: their requests come from
/// other cores.
#[test]
fn an_open_file_of_a_cache_that_has_grown_is_longer() {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return eprintln!("skipped: needs /dev/fuse");
    }
    let dir = setup();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let daemon = Daemon::start_in(dir, &["--config", "pond.toml", "--fuse", "files"]);
    let path = daemon.dir.path().join("files/dev/mapper/wc");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[5; 4096], 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 16 << 20);
    assert!(file.write_all_at(&[6; 4096], 20 << 20).is_err());
    set_size(daemon.dir.path(), "origin.img", 32);
    assert_eq!(daemon.cli(&["resize", "wc"]).code, Some(0));
    assert_eq!(file.metadata().unwrap().len(), 32 << 20);
    file.write_all_at(&[6; 4096], 20 << 20).unwrap();
    file.sync_all().unwrap();
    let mut read = [0; 4096];
    file.read_exact_at(&mut read, 20 << 20).unwrap();
    assert_eq!(read, [6; 4096]);
    drop(file);
    expect(&daemon, "wc", 6, "20M 4k");
    expect(&daemon, "wc", 5, "0 4k");
    daemon.signal("-TERM");
    assert!(daemon.wait().0.success());
}

#[test]
fn what_can_not_be_resized_is_refused_with_why() {
    let daemon = Daemon::start();
    daemon.file("a.img", 16);
    daemon.create("ram", "0 32768 zram zstd 0");
    daemon.create("mem", "0 - linear mem:16M 0");
    daemon.create("two", "0 8192 linear ./a.img 0\n8192 8192 linear ./a.img 16384");
    daemon.cli(&["create", "none", "--notable"]).ok();
    let refused = [
        (&["resize", "ram"][..], 1, "this line has no device below that could grow or shrink"),
        (&["resize", "ram", "32M"], 1, "this line has no device below"),
        (&["resize", "none"], 1, "it has no live table"),
        (&["resize", "nope"], 3, "no such device"),
        (&["resize", "two", "4M"], 1, "it begins at sector 8192, beyond 8192 sectors (4.0 MiB)"),
        (&["resize", "two", "64M"], 1, "too small for target"),
        (&["resize", "two", "1000"], 1, "must be a multiple of 512 bytes"),
        (&["resize", "two", "0"], 2, "at least a sector is needed"),
    ];
    for (verb, code, why) in refused {
        let error = daemon.cli(verb).failed(code);
        assert!(error.contains(why), "{verb:?}: {error}");
    }
    let same = daemon.cli(&["resize", "mem"]);
    assert_eq!((same.code, &*same.out), (Some(0), "mem: 16.0 MiB (32768 sectors), as before\n"));
    assert!(same.err.contains("mem:16M: its name has its size"), "{}", same.err);
    let uri = daemon.uri("two");
    daemon.create("far", &format!("0 - linear {uri} 0"));
    let same = daemon.cli(&["resize", "far"]);
    assert!(same.err.contains("an NBD server tells the size"), "{same:?}");
    daemon.cli(&["suspend", "two"]).ok();
    let error = daemon.cli(&["resize", "two", "12M"]).failed(4);
    assert!(error.contains("it is suspended"), "{error}");
    daemon.cli(&["resume", "two"]).ok();
}

#[test]
fn a_device_shrinks_only_with_the_token_of_what_is_cut() {
    let daemon = start(setup());
    write(&daemon, "wc", 0x11, "0 16M");
    daemon.create("above", "0 16384 linear wc 0");
    let before = client(&daemon, 7);
    let error = daemon.cli(&["resize", "wc", "4M"]).failed(4);
    let why = "the table of above (linear) uses it up to sector 16384";
    assert!(error.contains(why), "{error}");
    let error = daemon.cli(&["resize", "wc", "8M"]).failed(4);
    let harm = "shrinks from 32768 to 16384 sectors: clients lose the last 8.0 MiB";
    assert!(error.contains(harm), "{error}");
    assert_eq!(sectors(&daemon, "wc"), 32768);
    let token = error.split("--force=").nth(1).unwrap().split('`').next().unwrap().to_owned();
    // It is the token of this size alone.
    daemon.cli(&["resize", "wc", "9M", "--force", &token]).failed(4);
    assert_eq!(daemon.cli(&["resize", "wc", "8M", "--force", &token]).code, Some(0));
    assert_eq!(sectors(&daemon, "wc"), 16384);
    // The client of before knows the old size. Beyond the new one there is no room, and nothing.
    let text = rest(before, &["write -P 9 12M 4k", "read 12M 4k", "read -P 7 2M 4k", "flush"]);
    assert!(text.contains("write failed: No space left on device"), "{text}");
    assert!(text.contains("read failed: Invalid argument"), "{text}");
    assert_eq!(text.matches("4096/4096").count(), 2, "{text}");
    let error = daemon.qemu_io("wc", &["read 12M 4k"]);
    assert!(error.code != Some(0) || error.out.contains("failed"), "{error:?}");
    // What was cut off is below as before.
    daemon.cli(&["resize", "wc"]);
    assert_eq!(sectors(&daemon, "wc"), 32768);
    expect(&daemon, "wc", 0x11, "8M 8M");
}

/// Kills the daemon at ever later moments of the verb. It comes up with the table of before or the
/// one of after, and nothing is lost.
#[test]
#[expect(clippy::disallowed_methods, reason = "the moment of the kill is the point of the test")]
fn resize_killed_at_any_moment_loses_nothing() {
    let mut dir = setup();
    let (mut ended, mut mib) = (0, 16_u8);
    for round in 0..6 {
        let daemon = start(dir);
        let pattern = 0x60 + round;
        write(&daemon, "wc", pattern, "0 1M");
        mib += 1;
        set_size(daemon.dir.path(), "origin.img", mib.into());
        let mut command = Command::new(MILLPOND);
        command.arg("--run-dir").arg(daemon.run_dir()).args(["resize", "wc"]);
        let mut verb = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(25 * u64::from(round)));
        daemon.signal("-KILL");
        let (_, _, left) = daemon.wait();
        ended += u32::from(verb.wait().unwrap().success());
        let daemon = restart(left, u64::from(mib) * 2048);
        expect(&daemon, "wc", pattern, "0 1M");
        if sectors(&daemon, "wc") < u64::from(mib) * 2048 {
            daemon.cli(&["resize", "wc"]);
        }
        let last = format!("{}M 1M", mib - 1);
        write(&daemon, "wc", pattern, &last);
        daemon.signal("-KILL");
        let (_, _, left) = daemon.wait();
        let daemon = restart(left, u64::from(mib) * 2048);
        expect(&daemon, "wc", pattern, &last);
        daemon.signal("-TERM");
        dir = daemon.wait().2;
        configure(dir.path(), &(u64::from(mib) * 2048).to_string());
    }
    eprintln!("{ended} of 6 ended");
}

/// Starts the daemon, with the table of `after` sectors if its cache refuses the one of before.
fn restart(dir: TempDir, after: u64) -> Daemon {
    match Daemon::try_start_in(dir, &["--config", "pond.toml"]) {
        Ok(daemon) => daemon,
        Err((dir, log)) => {
            assert!(log.contains(&format!("Make a table of {after} sectors")), "no daemon: {log}");
            configure(dir.path(), &after.to_string());
            start(dir)
        }
    }
}

/// qemu, with reconnect-delay, does not compare the size when it has connected again.
#[test]
fn a_device_that_gets_shorter_warns_of_its_clients() {
    let daemon = Daemon::start();
    let table = |sectors: u32| format!("0 {sectors} linear mem:16M 0");
    daemon.create("wc", &table(32768));
    let client = client(&daemon, 1);
    let load = |sectors: u32| {
        daemon.cli(&["load", "wc", "--table", &table(sectors)]).ok();
        let resumed = daemon.cli(&["resume", "wc"]);
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        resumed.err
    };
    let shorter = "wc: is shorter now (8.0 MiB, was 16.0 MiB) and opened 1 times: ";
    let warning = load(16384);
    assert!(
        warning.contains(shorter) && warning.contains("qemu with reconnect-delay"),
        "{warning}"
    );
    assert_eq!(load(24576), "", "a longer one needs no warning");
    let refused = daemon.cli(&["resize", "wc", "4M"]);
    let token = refused.err.split("--force=").nth(1).unwrap().split_whitespace().next().unwrap();
    let token = token.trim_matches(|c: char| !c.is_ascii_hexdigit());
    let forced = daemon.cli(&["resize", "wc", "4M", &format!("--force={token}")]);
    assert!(
        forced.code == Some(0) && forced.err.contains("wc: is shorter now (4.0 MiB"),
        "{forced:?}"
    );
    // The way out: the clients that it shows are started again.
    assert!(daemon.cli(&["clients"]).ok().contains("wc"));
    rest(client, &[]);
    while daemon.cli(&["clients"]).ok().contains("wc") {}
    assert_eq!(load(4096), "", "nobody is there");
}
