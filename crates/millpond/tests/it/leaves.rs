// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves by their names: what tables stand on has attributes too, while a table has it open.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{Daemon, file_in, sh};

#[test]
fn an_open_leaf_has_attributes_by_any_path_to_it() {
    let daemon = Daemon::start();
    let path = daemon.file("disk.img", 4);
    std::os::unix::fs::symlink(&path, daemon.dir.path().join("link.img")).unwrap();
    let text = daemon.cli(&["get", &path, "size"]).failed(3);
    let (hint, none) =
        ("no such device: allowed are mapped devices and the leaves", "now none (ENXIO)\n");
    assert!(text.contains(hint) && text.ends_with(none), "{text}");

    daemon.create("d", "0 4096 linear ./disk.img 0");
    for name in [&path, "./disk.img", "./link.img"] {
        assert_eq!(daemon.cli(&["get", name, "size"]).ok(), "8192\n", "{name}");
    }
    let all = daemon.cli(&["get", &path]).ok();
    for line in ["size 8192\n", "ro 0\n", "queue/logical_block_size ", "stat "] {
        assert!(all.contains(line), "{line}: {all}");
    }
    assert!(!all.contains("wbt_stats"), "it has many lines: {all}");
    let json = daemon.cli(&["get", &path, "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["size"], 8192);
    // By HTTP its name is percent-coded.
    let coded = path.replace('/', "%2F");
    let url = format!("http://millpond/v1/devices/{coded}/attributes/size");
    let socket = daemon.run_dir().join("control.sock");
    let text = sh("curl", &["-sS", "--unix-socket", &socket.display().to_string(), &url]);
    assert_eq!(text.ok(), r#"{"value":8192}"#);

    let text = daemon.cli(&["get", "./other.img", "size"]).failed(3);
    assert!(text.contains("other.img: no such device") && text.contains(&path), "{text}");
    daemon.cli(&["remove", "d"]).ok();
    daemon.cli(&["get", &path, "size"]).failed(3);
}

#[test]
fn missing_and_read_only_attributes_of_a_leaf_are_refused() {
    let daemon = Daemon::start();
    let path = daemon.file("disk.img", 4);
    daemon.create("d", "0 4096 linear ./disk.img 0\n4096 8 linear mem:4M 0");
    let text = daemon.cli(&["get", &path, "queue/nothing"]).failed(3);
    let wanted = format!("{path}: no attribute `queue/nothing`: ");
    assert!(text.contains(&wanted), "{text}");
    daemon.cli(&["set", &path, "queue/nothing", "1"]).failed(3);
    let text = daemon.cli(&["set", &path, "size", "1"]).failed(1);
    assert_eq!(text, format!("millpond: set {path}: attribute `size` is read-only (EACCES)\n"));
    for verb in [
        &["get", "mem:4M", "queue/wbt_lat_usec"][..],
        &["set", "mem:4M", "queue/wbt_lat_usec", "0"],
    ] {
        let text = daemon.cli(verb).failed(3);
        assert!(
            text.contains("`queue/wbt_lat_usec`, for it is in memory and has no queue"),
            "{text}"
        );
    }
    // A word without a slash is a mapped device's name.
    let text = daemon.cli(&["get", "disk.img"]).failed(3);
    let wanted = "millpond: get disk.img: no such device: `millpond ls` lists those that there are";
    assert_eq!(text, format!("{wanted} (ENXIO)\n"));
}

#[test]
fn the_throttle_of_a_file_is_read_and_set_by_its_path() {
    let daemon = Daemon::start();
    let path = daemon.file("disk.img", 4);
    daemon.create("d", "0 4096 linear ./disk.img 0");
    let get = |attribute: &str| daemon.cli(&["get", &path, attribute]).ok();
    assert_eq!(get("queue/wbt_mode"), "[tail] kernel\n");
    assert_ne!(get("queue/wbt_lat_usec"), "0\n", "on by default");
    assert!(get("queue/wbt_stats").lines().count() > 5);
    for (attribute, value, shown) in [
        ("queue/wbt_mode", "kernel", "tail [kernel]\n"),
        ("queue/wbt_lat_usec", "2500", "2500\n"),
        ("queue/wbt_lat_usec", "0", "0\n"),
        ("queue/nr_requests", "32", "32\n"),
    ] {
        assert_eq!(daemon.cli(&["set", "./disk.img", attribute, value]).ok(), "");
        assert_eq!(get(attribute), shown, "{attribute}");
    }
    for (attribute, value, allowed) in [
        (
            "queue/wbt_lat_usec",
            "-2",
            "-1, or 0 to 10000000 us, or a time with us, ms, s, m or h, is allowed",
        ),
        ("queue/wbt_mode", "fast", "tail or kernel"),
        ("queue/nr_requests", "0", "a number from 1 to 65536 is allowed"),
    ] {
        let text = daemon.cli(&["set", &path, attribute, value]).failed(1);
        let wanted = format!("{attribute}: `{value}`: {allowed}");
        assert!(text.starts_with(&format!("millpond: set {path}: ")), "{text}");
        assert!(text.contains(&wanted), "{text}");
    }
    let text = daemon.cli(&["set", &path, "queue/wbt_stats", "1"]).failed(1);
    assert!(text.contains("EACCES"), "{text}");
}

#[test]
fn files_on_one_disk_share_a_throttle_while_one_is_open() {
    let daemon = Daemon::start();
    let paths = ["a.img", "b.img", "c.img"].map(|name| daemon.file(name, 4));
    let device = std::fs::metadata(daemon.dir.path()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let is_on_disk = Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists();
    let target = |path: &str| daemon.cli(&["get", path, "queue/wbt_lat_usec"]).ok();
    daemon.create("a", "0 8 linear ./a.img 0");
    let default = target(&paths[0]);
    daemon.create("b", "0 8 linear ./b.img 0");
    daemon.cli(&["set", &paths[0], "queue/wbt_lat_usec", "2500"]).ok();
    let shared = if is_on_disk { "2500\n" } else { &default };
    assert_eq!(target(&paths[1]), shared);
    daemon.cli(&["remove", "a"]).ok();
    daemon.create("c", "0 8 linear ./c.img 0");
    assert_eq!([&paths[1], &paths[2]].map(|path| target(path)), [shared, shared]);
    for name in ["b", "c"] {
        daemon.cli(&["remove", name]).ok();
    }
    daemon.create("a", "0 8 linear ./a.img 0");
    assert_eq!(target(&paths[0]), default);
}

/// A leaf on no disk that the kernel shows has a throttle of its own: a file in memory, and
/// persistent memory in any case.
#[test]
fn what_lies_on_no_disk_shares_no_throttle() {
    let daemon = Daemon::start();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (a, b) = (file_in(memory.path(), "a.img", 4), file_in(memory.path(), "b.img", 4));
    let (mapped, plain) =
        (format!("pmem:{}", daemon.file("mapped.img", 4)), daemon.file("c.img", 4));
    let leaves = [&a, &b, &mapped, &plain];
    for (nth, path) in leaves.iter().enumerate() {
        // It may print that it is not persistent memory.
        let (name, table) = (format!("d{nth}"), format!("0 8 linear {path} 0"));
        assert_eq!(daemon.cli(&["create", &name, "--table", &table]).code, Some(0), "{path}");
        let usec = (1000 + nth).to_string();
        daemon.cli(&["set", path, "queue/wbt_lat_usec", &usec]).ok();
    }
    for (nth, path) in leaves.iter().enumerate() {
        let target = daemon.cli(&["get", path, "queue/wbt_lat_usec"]).ok();
        assert_eq!(target, format!("{}\n", 1000 + nth), "{path}");
    }
}

/// A link to the directory of a volume, or another line of the device that had it, hid that there
/// was one: a second device took it over, and every request to the first failed with ESTALE.
#[test]
fn a_volume_has_one_device_by_whatever_name() {
    let daemon = Daemon::start();
    let dir = daemon.dir.path();
    for name in ["one", "two"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("one", dir.join("link")).unwrap();
    let url = |name: &str| format!("file://{}/{name}", dir.display());
    let (one, two) = (url("one"), url("two"));
    daemon.create("a", &format!("0 8192 objvol {one}\n8192 8192 objvol {two}"));
    daemon.qemu_io("a", &["write -P 1 0 8M"]).ok();
    for name in ["one", "two", "link"] {
        let table = format!("0 8192 objvol {}", url(name));
        let refused = daemon.cli(&["create", "b", "--table", &table]).failed(4);
        assert!(refused.contains("is the volume of device a"), "{refused}");
    }
    daemon.qemu_io("a", &["flush", "read -P 1 0 8M"]).ok();
}

/// The limits that clients see, without a mount: docs/ublk.md sends readers there.
#[test]
fn attributes_of_the_tree_are_read_by_get() {
    let daemon = Daemon::start();
    daemon.cli(&["create", "lin", "--table", "0 8192 linear mem:4M 0"]).ok();
    daemon.cli(&["create", "z", "--table", "0 8192 zram lz4"]).ok();
    for (device, attribute, value) in [
        ("lin", "queue/physical_block_size", "512"),
        ("lin", "queue/write_cache", "write through"),
        ("lin", "queue/fua", "0"),
        ("lin", "queue/iostats", "0"),
        ("lin", "size", "8192"),
        ("lin", "dev", "999:0"),
        ("lin", "dm/suspended", "0"),
        ("z", "queue/physical_block_size", "4096"),
        ("z", "queue/discard_max_bytes", "2199023255040"),
    ] {
        assert_eq!(daemon.cli(&["get", device, attribute]).ok().trim_end(), value, "{attribute}");
    }
    let e = daemon.cli(&["set", "lin", "queue/fua", "1"]).failed(1);
    assert!(e.contains("lin") && e.contains("queue/fua") && e.contains("EACCES"), "{e}");
    let e = daemon.cli(&["get", "lin", "queue/nothing"]).failed(3);
    assert!(e.contains("no attribute `queue/nothing`"), "{e}");
}
