// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener of `--metrics`: what it shows, what it refuses, and that nobody can hold it.
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::{Daemon, folder, sh};

const LISTEN: [&str; 2] = ["--metrics", "127.0.0.1:0"];

/// A request; returns status and body.
fn curl(daemon: &Daemon, path: &str, options: &[&str]) -> (String, String) {
    let url = format!("http://{}{path}", address(daemon));
    let mut args = vec!["-s", "-m", "20", "-w", "\n%{http_code}"];
    args.extend(options);
    args.push(&url);
    let out = sh("curl", &args).out;
    let (body, status) = out.rsplit_once('\n').unwrap();
    (status.into(), body.into())
}

/// The same, once no snapshot of before is shown any more.
fn curl_later(daemon: &Daemon, path: &str) -> (String, String) {
    assert_eq!(sh("sleep", &["0.15"]).code, Some(0));
    curl(daemon, path, &[])
}

fn address(daemon: &Daemon) -> &str {
    let after = daemon.ready.split_once(" metrics=").expect("the ready line has it").1;
    after.split_whitespace().next().unwrap()
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "no `{line}` in\n{text}");
    }
}

#[test]
fn metrics_show_devices_leaves_and_the_process() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("wc", "0 2048 writecache s mem:1M mem:2M 4096 0");
    assert_eq!(daemon.qemu_io("wc", &["write 0 64k", "read 0 4k"]).code, Some(0));
    let (status, text) = curl(&daemon, "/metrics", &[]);
    assert_eq!(status, "200");
    assert_lines(
        &text,
        &[
            "# TYPE process_cpu_seconds_total counter",
            "# HELP millpond_device_size_bytes Size of the live table.",
            "millpond_device_size_bytes{device=\"wc\"} 1048576",
            "millpond_device_unsaved_bytes{device=\"wc\"} 65536",
            "millpond_device_lost_bytes{device=\"wc\"} 0",
            "millpond_writecache_reads_total{device=\"wc\"} 1",
            "millpond_writecache_read_hits_total{device=\"wc\"} 1",
            "millpond_writecache_drain_active{device=\"wc\"} 0",
            "# TYPE millpond_writecache_throttled_seconds_total counter",
        ],
    );
    let version = format!("millpond_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    assert_lines(&text, &[&version]);
    let memory = text.lines().find_map(|l| l.strip_prefix("process_resident_memory_bytes "));
    assert!(memory.is_some_and(|n| n.parse::<u64>().unwrap() > 1 << 20), "{text}");
}

/// The value of a sample.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample));
    let line = line.unwrap_or_else(|| panic!("no `{sample}` in\n{text}"));
    line.trim().parse().unwrap()
}

#[test]
fn a_slow_request_is_in_the_bucket_of_its_time() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("slow", "0 2048 delay mem:1M 0 100");
    assert_eq!(daemon.qemu_io("slow", &["read 0 4k", "read 8k 4k"]).code, Some(0));
    let (_, text) = curl(&daemon, "/metrics", &[]);
    let sample = |end: &str| {
        let labels = format!("device=\"slow\",op=\"read\",le=\"{end}\"");
        value(&text, &format!("millpond_request_duration_seconds_bucket{{{labels}}}"))
    };
    let total =
        value(&text, "millpond_request_duration_seconds_count{device=\"slow\",op=\"read\"}");
    assert!(total >= 2.0, "{total}");
    assert_eq!((sample("0.067108864"), sample("+Inf")), (0.0, total), "{text}");
    assert_eq!(sample("8.589934592"), total, "{text}");
}

#[test]
fn a_leaf_on_a_file_has_times_of_its_own() {
    let daemon = Daemon::start_with(&LISTEN);
    let file = daemon.file("disk.img", 1);
    daemon.create("d", &format!("0 2048 linear {file} 0"));
    assert_eq!(daemon.qemu_io("d", &["write 0 4k", "flush"]).code, Some(0));
    let (_, text) = curl(&daemon, "/metrics", &[]);
    for op in ["write", "flush"] {
        let labels = format!("device=\"{file}\",op=\"{op}\"");
        let name = "millpond_queue_request_duration_seconds";
        assert!(value(&text, &format!("{name}_count{{{labels}}}")) >= 1.0);
        assert!(value(&text, &format!("{name}_sum{{{labels}}}")) > 0.0);
    }
}

/// The map of dirty data of a device.
fn dirty_map(daemon: &Daemon, name: &str) -> Vec<u64> {
    let (_, text) = curl_later(daemon, "/status.json");
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let devices = status["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["name"] == name).unwrap();
    let cells = device["dirty_map"].as_array().unwrap().iter();
    cells.map(|cell| cell.as_u64().unwrap()).collect()
}

#[test]
fn the_map_shows_where_dirty_data_lie() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("wc", "0 8192 writecache s mem:4M mem:8M 4096 0");
    daemon.create("buf", "0 8192 buffered mem:5M");
    for name in ["wc", "buf"] {
        let cell = (4 << 20) / 64;
        // nbdcopy sends no flush, after which a page cache has nothing dirty, and no holes.
        let image = daemon.file(&format!("{name}.img"), 4);
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        for at in [0, 40 * cell] {
            file.write_all_at(&vec![7; 65_536], at).unwrap();
        }
        sh("nbdcopy", &["--destination-is-zero", &image, &daemon.uri(name)]).ok();
        let map = dirty_map(&daemon, name);
        let dirty: Vec<usize> = (0..map.len()).filter(|nth| map[*nth] > 0).collect();
        assert_eq!((map.len(), dirty.as_slice()), (64, &[0, 40][..]), "{name}: {map:?}");
        assert_eq!((map[0], map[40]), (65_536, 65_536), "{name}");
    }
}

#[test]
fn nothing_can_be_changed_by_the_listener_of_metrics() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("d", "0 8 zero");
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for path in ["/v1/devices/d", "/v1/stop", "/metrics", "/healthz"] {
            assert_eq!(curl(&daemon, path, &["-X", method]).0, "405", "{method} {path}");
        }
    }
    for path in ["/v1/devices", "/v1/version", "/metrics/x", "//metrics"] {
        assert_eq!(curl(&daemon, path, &[]).0, "404", "{path}");
    }
    let (status, head) = curl(&daemon, "/metrics", &["-I"]);
    assert_eq!(status, "200", "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert_eq!(daemon.cli(&["ls"]).ok(), "d\t(999:0)\n");
}

#[test]
fn a_name_of_another_host_is_refused_on_loopback() {
    let daemon = Daemon::start_with(&LISTEN);
    assert_eq!(curl(&daemon, "/metrics", &["-H", "Host: evil.example"]).0, "403");
    assert_eq!(curl(&daemon, "/healthz", &["-H", "Host: localhost"]).0, "200");
}

#[test]
fn health_is_503_with_reasons_while_the_origin_fails() {
    let daemon = Daemon::start_with(&LISTEN);
    assert_eq!(curl(&daemon, "/healthz", &[]), ("200".into(), "ok, 0 devices\n".into()));
    daemon.create("slow", "0 2048 linear mem:1M 0");
    daemon.create("wc", "0 2048 writecache s slow mem:2M 4096 0");
    assert_eq!(daemon.qemu_io("wc", &["write 0 64k", "flush"]).code, Some(0));
    assert_eq!(curl_later(&daemon, "/healthz").0, "200");
    daemon.cli(&["load", "slow", "--table", "0 2048 error"]).ok();
    daemon.cli(&["suspend", "slow"]).ok();
    daemon.cli(&["resume", "slow"]).ok();
    assert_ne!(daemon.cli(&["message", "wc", "0", "flush"]).code, Some(0));
    let (status, text) = curl_later(&daemon, "/healthz");
    assert_eq!(status, "503", "{text}");
    assert!(text.starts_with("wc: the origin refuses 16 dirty blocks"), "{text}");
}

#[test]
fn a_zram_that_takes_no_more_is_a_problem() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("z", "0 16384 zram lz4 2 mem_limit 1M");
    let health = curl_later(&daemon, "/healthz");
    assert_eq!(health, ("200".into(), "ok, 1 device\n".into()));
    let data = daemon.dir.path().join("random");
    let random: Vec<u8> =
        (0..4u32 << 20).map(|n| (n.wrapping_mul(n ^ 0x9e37) >> 9) as u8).collect();
    std::fs::write(&data, random).unwrap();
    assert_eq!(curl(&daemon, "/healthz", &[]).0, "200");
    let write = format!("write -s {} 0 4M", data.display());
    daemon.qemu_io("z", &[&write]);
    let (status, text) = curl_later(&daemon, "/healthz");
    assert_eq!((&*status, &*text), ("503", "z: writes fail: mem_limit is reached\n"));
    daemon.signal("-TERM");
    let (_, log, _) = daemon.wait();
    assert!(log.contains("ERROR zram: slot ") && log.contains("device=\"z\""), "{log}");
}

#[test]
fn the_age_of_dirty_data_is_shown() {
    let daemon = Daemon::start_with(&LISTEN);
    daemon.create("wc", "0 2048 writecache s mem:1M mem:2M 4096 2 max_age 1h");
    let oldest = "millpond_writecache_oldest_dirty_seconds{device=\"wc\"}";
    let (_, text) = curl(&daemon, "/metrics", &[]);
    assert_eq!(value(&text, oldest), 0.0);
    assert_eq!(value(&text, "millpond_writecache_max_age_seconds{device=\"wc\"}"), 3600.0);
    assert_eq!(daemon.qemu_io("wc", &["write 0 64k"]).code, Some(0));
    assert_eq!(sh("sleep", &["1.1"]).code, Some(0));
    let (_, text) = curl(&daemon, "/metrics", &[]);
    assert!(value(&text, oldest) >= 1.0, "{text}");
    daemon.cli(&["flush", "wc"]).ok();
    let (_, text) = curl_later(&daemon, "/metrics");
    assert_eq!(value(&text, oldest), 0.0);
}

#[test]
fn files_of_devices_are_counted() {
    let mount = folder();
    let fuse = ["--fuse", mount.path().to_str().unwrap()];
    let daemon = Daemon::start_with(&[&LISTEN[..], &fuse].concat());
    daemon.create("d", "0 2048 zero");
    let mut file = std::fs::File::open(mount.path().join("dev/mapper/d")).unwrap();
    file.read_exact(&mut [0; 4096]).unwrap();
    let (_, text) = curl(&daemon, "/metrics", &[]);
    assert_eq!(value(&text, "millpond_fuse_open_files "), 1.0);
    assert!(value(&text, "millpond_fuse_requests_total ") >= 1.0, "{text}");
    let reads = "millpond_request_duration_seconds_count{device=\"d\",op=\"read\"}";
    assert!(value(&text, reads) >= 1.0, "{text}");
    drop(file);
    // The kernel tells of a close when it has happened.
    for _ in 0..100 {
        if value(&curl_later(&daemon, "/metrics").1, "millpond_fuse_open_files ") == 0.0 {
            return;
        }
    }
    panic!("the file stays open");
}

#[test]
fn clients_that_send_nothing_hold_up_nobody() {
    let daemon = Daemon::start_with(&LISTEN);
    let mut idle: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(address(&daemon)).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
            stream
        })
        .collect();
    assert_eq!(curl(&daemon, "/healthz", &[]).0, "200");
    // The first of them was cut off for the later ones.
    let first = &mut idle[0];
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let ended = first.read(&mut [0; 1]);
    let is_reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(&ended, Ok(0)) || ended.as_ref().is_err_and(is_reset), "{ended:?}");
}

#[test]
fn a_long_request_head_is_refused() {
    let daemon = Daemon::start_with(&LISTEN);
    let header = format!("X-Long: {}", "x".repeat(16 << 10));
    let (status, _) = curl(&daemon, "/metrics", &["-H", &header]);
    assert_eq!(status, "431");
}

#[test]
fn without_the_option_nothing_listens_for_metrics() {
    let daemon = Daemon::start();
    assert!(!daemon.ready.contains("metrics="), "{}", daemon.ready);
}
