// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `show` and `flush`: what people ask about a device, and its caches written back.

use crate::common::{Daemon, Load};

/// A write cache of 8 MiB before an origin of 32 MiB, with 1 MiB dirty and unflushed.
fn dirty_cache(daemon: &Daemon) -> String {
    let (origin, cache) = (daemon.file("origin.img", 32), daemon.file("cache.img", 8));
    daemon.create("wc", &format!("0 65536 writecache s {origin} {cache} 4096 0"));
    let output = daemon.qemu_io("wc", &["write -P 7 4M 1M"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    origin
}

#[test]
fn show_prints_what_is_dirty_in_bytes_and_percent() {
    let daemon = Daemon::start();
    dirty_cache(&daemon);
    daemon.create("z", "0 8 zero");
    let text = daemon.cli(&["show", "wc"]).ok();
    for part in ["size                  32.0 MiB", "dirty                 1.0 MiB (14 %)"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains("errors                origin 0, cache 0, checksums 0"), "{text}");
    let lines = daemon.cli(&["show"]).ok();
    let line = |n: usize| lines.lines().nth(n).unwrap().split_ascii_whitespace().collect();
    let rows: [Vec<&str>; 3] = [line(0), line(1), line(2)];
    assert_eq!(rows[0], ["NAME", "SIZE", "STATE", "OPEN", "TARGET", "DIRTY"]);
    assert_eq!(rows[1][..2], ["wc", "32.0"]);
    assert_eq!(rows[2], ["z", "4.0", "KiB", "active", "0", "zero", "-"]);
}

#[test]
fn the_json_of_show_has_sizes_in_bytes() {
    let daemon = Daemon::start();
    dirty_cache(&daemon);
    daemon.create("ram", "0 8192 zram lz4");
    daemon.create("buf", "0 8192 buffered mem:4M");
    let out = daemon.cli(&["show", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let of = |name: &str| json.as_array().unwrap().iter().find(|d| d["name"] == name).unwrap();
    assert_eq!(of("wc")["size_bytes"], 32 << 20);
    assert_eq!(of("wc")["figures"]["dirty_bytes"], 1 << 20);
    assert_eq!(of("wc")["devices"].as_array().unwrap().len(), 2);
    assert_eq!(of("ram")["figures"]["data_bytes"], 0);
    assert_eq!(of("buf")["figures"]["dirty_bytes"], 0);
    let out = daemon.cli(&["show", "ram", "-o", "json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["targets"], serde_json::json!(["zram"]));
}

#[test]
fn flush_brings_the_origin_up_to_date() {
    let daemon = Daemon::start();
    let origin = dirty_cache(&daemon);
    daemon.cli(&["flush", "wc"]).ok();
    let data = std::fs::read(origin).unwrap();
    assert!(data[4 << 20..][..1 << 20].iter().all(|byte| *byte == 7));
    assert!(daemon.cli(&["show", "wc"]).ok().contains("dirty                 0 bytes"));
}

#[test]
fn flush_of_a_suspended_or_unknown_device_is_refused() {
    let daemon = Daemon::start();
    dirty_cache(&daemon);
    daemon.cli(&["suspend", "wc"]).ok();
    let text = daemon.cli(&["flush", "wc"]).failed(4);
    assert!(text.contains("flush wc: it is suspended: resume it first"), "{text}");
    let text = daemon.cli(&["flush", "wd"]).failed(3);
    assert!(text.contains("no such device"), "{text}");
}

/// A client that writes 4 KiB every 10 ms or so.
#[test]
fn show_has_the_rates_of_clients() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8192 delay mem:4M 0 10");
    assert!(!daemon.cli(&["show", "d"]).ok().contains("requests/s"));
    let load = Load::on(&daemon, "d", 4096);
    let out = daemon.cli(&["show", "d", "-o", "json"]).ok();
    let text = daemon.cli(&["show", "d"]).ok();
    drop(load);
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rate = |name: &str| shown["rates"][name].as_u64().unwrap_or_else(|| panic!("{out}"));
    let requests = rate("requests_per_second");
    assert!((1..=100).contains(&requests), "{out}");
    assert_eq!(rate("read_bytes_per_second"), 0);
    assert!((4096..=100 * 4096).contains(&rate("written_bytes_per_second")), "{out}");
    assert!(text.contains("clients               read 0 bytes/s, written "), "{text}");
}
