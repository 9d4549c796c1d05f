// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaves by their names: what tables stand on has attributes too, while a table has it open.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::common::{Daemon, file_in, sh};

#[test]
fn an_open_leaf_has_attributes_by_any_path_to_it() {
    let pond = Daemon::start();
    let path = pond.file("disk.img", 4);
    std::os::unix::fs::symlink(&path, pond.dir.path().join("link.img")).unwrap();
    let said = pond.cli(&["get", &path, "size"]).failed(3);
    let (hint, none) =
        ("no such device: allowed are mapped devices and the leaves", "now none (ENXIO)\n");
    assert!(said.contains(hint) && said.ends_with(none), "{said}");

    pond.create("d", "0 4096 linear ./disk.img 0");
    for name in [&path, "./disk.img", "./link.img"] {
        assert_eq!(pond.cli(&["get", name, "size"]).ok(), "8192\n", "{name}");
    }
    let all = pond.cli(&["get", &path]).ok();
    for line in ["size 8192\n", "ro 0\n", "queue/logical_block_size ", "stat "] {
        assert!(all.contains(line), "{line}: {all}");
    }
    assert!(!all.contains("wbt_stats"), "it has many lines: {all}");
    let json = pond.cli(&["get", &path, "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["size"], 8192);
    // By HTTP its name is percent-coded.
    let coded = path.replace('/', "%2F");
    let url = format!("http://millpond/v1/devices/{coded}/attributes/size");
    let socket = pond.run_dir().join("control.sock");
    let said = sh("curl", &["-sS", "--unix-socket", &socket.display().to_string(), &url]);
    assert_eq!(said.ok(), r#"{"value":8192}"#);

    let said = pond.cli(&["get", "./other.img", "size"]).failed(3);
    assert!(said.contains("other.img: no such device") && said.contains(&path), "{said}");
    pond.cli(&["remove", "d"]).ok();
    pond.cli(&["get", &path, "size"]).failed(3);
}

#[test]
fn missing_and_read_only_attributes_of_a_leaf_are_refused() {
    let pond = Daemon::start();
    let path = pond.file("disk.img", 4);
    pond.create("d", "0 4096 linear ./disk.img 0\n4096 8 linear mem:4M 0");
    let said = pond.cli(&["get", &path, "queue/nothing"]).failed(3);
    let wanted = format!("{path}: no attribute `queue/nothing`: ");
    assert!(said.contains(&wanted), "{said}");
    pond.cli(&["set", &path, "queue/nothing", "1"]).failed(3);
    let said = pond.cli(&["set", &path, "size", "1"]).failed(1);
    assert_eq!(said, format!("millpond: set {path}: attribute `size` is read-only (EACCES)\n"));
    for verb in [
        &["get", "mem:4M", "queue/wbt_lat_usec"][..],
        &["set", "mem:4M", "queue/wbt_lat_usec", "0"],
    ] {
        let said = pond.cli(verb).failed(3);
        assert!(
            said.contains("`queue/wbt_lat_usec`, for it is in memory and has no queue"),
            "{said}"
        );
    }
    // A word without a slash is a mapped device's name.
    let said = pond.cli(&["get", "disk.img"]).failed(3);
    let wanted = "millpond: get disk.img: no such device: `millpond ls` lists those that there are";
    assert_eq!(said, format!("{wanted} (ENXIO)\n"));
}

#[test]
fn the_throttle_of_a_file_is_read_and_set_by_its_path() {
    let pond = Daemon::start();
    let path = pond.file("disk.img", 4);
    pond.create("d", "0 4096 linear ./disk.img 0");
    let get = |attribute: &str| pond.cli(&["get", &path, attribute]).ok();
    assert_eq!(get("queue/wbt_mode"), "[tail] kernel\n");
    assert_ne!(get("queue/wbt_lat_usec"), "0\n", "on by default");
    assert!(get("queue/wbt_stats").lines().count() > 5);
    for (attribute, value, shown) in [
        ("queue/wbt_mode", "kernel", "tail [kernel]\n"),
        ("queue/wbt_lat_usec", "2500", "2500\n"),
        ("queue/wbt_lat_usec", "0", "0\n"),
        ("queue/nr_requests", "32", "32\n"),
    ] {
        assert_eq!(pond.cli(&["set", "./disk.img", attribute, value]).ok(), "");
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
        let said = pond.cli(&["set", &path, attribute, value]).failed(1);
        let wanted = format!("{attribute}: `{value}`: {allowed}");
        assert!(said.starts_with(&format!("millpond: set {path}: ")), "{said}");
        assert!(said.contains(&wanted), "{said}");
    }
    let said = pond.cli(&["set", &path, "queue/wbt_stats", "1"]).failed(1);
    assert!(said.contains("EACCES"), "{said}");
}

#[test]
fn files_on_one_disk_share_a_throttle_while_one_is_open() {
    let pond = Daemon::start();
    let paths = ["a.img", "b.img", "c.img"].map(|name| pond.file(name, 4));
    let device = std::fs::metadata(pond.dir.path()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let is_on_disk = Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists();
    let target = |path: &str| pond.cli(&["get", path, "queue/wbt_lat_usec"]).ok();
    pond.create("a", "0 8 linear ./a.img 0");
    let default = target(&paths[0]);
    pond.create("b", "0 8 linear ./b.img 0");
    pond.cli(&["set", &paths[0], "queue/wbt_lat_usec", "2500"]).ok();
    let shared = if is_on_disk { "2500\n" } else { &default };
    assert_eq!(target(&paths[1]), shared);
    pond.cli(&["remove", "a"]).ok();
    pond.create("c", "0 8 linear ./c.img 0");
    assert_eq!([&paths[1], &paths[2]].map(|path| target(path)), [shared, shared]);
    for name in ["b", "c"] {
        pond.cli(&["remove", name]).ok();
    }
    pond.create("a", "0 8 linear ./a.img 0");
    assert_eq!(target(&paths[0]), default);
}

/// Whatever is on no disk that the kernel shows has a throttle of its own: a file in memory, and
/// persistent memory, on whatever it lies.
#[test]
fn what_lies_on_no_disk_shares_no_throttle() {
    let pond = Daemon::start();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (a, b) = (file_in(memory.path(), "a.img", 4), file_in(memory.path(), "b.img", 4));
    let (mapped, plain) = (format!("pmem:{}", pond.file("mapped.img", 4)), pond.file("c.img", 4));
    let leaves = [&a, &b, &mapped, &plain];
    for (nth, path) in leaves.iter().enumerate() {
        // It may say that it is not persistent memory.
        let (name, table) = (format!("d{nth}"), format!("0 8 linear {path} 0"));
        assert_eq!(pond.cli(&["create", &name, "--table", &table]).code, Some(0), "{path}");
        let usec = (1000 + nth).to_string();
        pond.cli(&["set", path, "queue/wbt_lat_usec", &usec]).ok();
    }
    for (nth, path) in leaves.iter().enumerate() {
        let target = pond.cli(&["get", path, "queue/wbt_lat_usec"]).ok();
        assert_eq!(target, format!("{}\n", 1000 + nth), "{path}");
    }
}
