// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The REST API by curl, as docs/api.md has it, and its bounds.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Daemon, sh};
use serde_json::{Value, json};

fn parsed(answer: (String, String)) -> (String, Value) {
    let json = serde_json::from_str(&answer.1).unwrap_or_else(|e| panic!("{}: {e}", answer.1));
    (answer.0, json)
}

#[test]
fn a_device_lives_its_life_by_curl() {
    let daemon = Daemon::start();
    let post = |path: &str, body: &str| parsed(daemon.curl("POST", path, &["-d", body]));
    let get = |path: &str| parsed(daemon.curl("GET", path, &[]));

    let (status, made) = post("/v1/devices", r#"{"name": "d", "table": "0 8 zero"}"#);
    assert_eq!((status.as_str(), &made["device"]["name"]), ("200", &json!("d")));
    assert_eq!(made["warnings"], json!([]));
    assert_eq!(get("/v1/devices").1[0]["size_sectors"], json!(8));
    assert_eq!(get("/v1/devices/d").1["live_table"], json!(true));
    let line = json!([{"start": 0, "length": 8, "target": "zero", "params": ""}]);
    assert_eq!(get("/v1/devices/d/table").1, line);
    assert_eq!(get("/v1/devices/d/status").1, line);
    assert_eq!(get("/v1/devices/d/deps").1, json!([]));
    let own = get("/v1/devices/d/attributes").1;
    assert_eq!(own["queue/iostats"], json!(0));
    assert_eq!(own.as_object().map(|all| all.len()), Some(4), "and stat, ro, doors: {own}");
    assert_eq!(post("/v1/devices/d/load", r#"{"table": "0 16 zero"}"#).0, "200");
    assert_eq!(get("/v1/devices/d").1["inactive_table"], json!(true));
    assert_eq!(post("/v1/devices/d/suspend", "").0, "200");
    assert_eq!(get("/v1/devices/d").1["suspended"], json!(true));
    assert_eq!(post("/v1/devices/d/resume", "").0, "200");
    assert_eq!(get("/v1/devices/d").1["size_sectors"], json!(16));
    assert_eq!(post("/v1/devices/d/clear", "{}").0, "200");
    assert_eq!(post("/v1/devices/d/rename", r#"{"name": "a b#c"}"#).0, "200");
    assert_eq!(get("/v1/devices/a%20b%23c/wait?event=0").1, json!({"event_nr": 1}));
    let (status, output) = post("/v1/devices/a%20b%23c/message", r#"{"words": ["x"]}"#);
    assert_eq!((status.as_str(), &output["kind"]), ("400", &json!("invalid")));
    assert_eq!(daemon.curl("DELETE", "/v1/devices/a%20b%23c", &[]), ("200".into(), "{}".into()));
    assert_eq!(get("/v1/devices").1, json!([]));
    assert_eq!(get("/v1/version").1["pid"], json!(daemon.pid()));
    assert!(get("/v1/targets").1.as_array().unwrap().len() > 5);
}

#[test]
fn failures_are_json_with_kind_errno_and_message() {
    let daemon = Daemon::start();
    let (status, body) = parsed(daemon.curl("GET", "/v1/devices/nope", &[]));
    assert_eq!(status, "404");
    assert_eq!(body, json!({"kind": "not_found", "errno": 6, "message": "nope: no such device"}));
    for (method, path, body, want) in [
        ("GET", "/v2", "", "404"),
        ("POST", "/v1/devices", "{", "400"),
        ("POST", "/v1/devices", r#"{"name": "d", "tabel": ""}"#, "400"),
        ("POST", "/v1/devices", r#"{"name": "a/b"}"#, "400"),
        ("DELETE", "/v1/devices/d?forec=true", "", "400"),
        ("PUT", "/v1/devices/nope/attributes/x", r#"{"value": "1"}"#, "404"),
    ] {
        let (status, body) = parsed(daemon.curl(method, path, &["-d", body]));
        assert_eq!(status, want, "{method} {path}: {body}");
        assert!(body["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
    }
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n");
}

#[test]
fn a_body_beyond_the_bound_is_refused() {
    let daemon = Daemon::start();
    let path = daemon.dir.path().join("body");
    std::fs::write(&path, vec![b' '; 2 << 20]).unwrap();
    let body = format!("@{}", path.display());
    let (status, output) = daemon.curl("POST", "/v1/devices", &["--data-binary", &body]);
    assert_eq!(status, "400", "{output}");
    assert!(output.contains("1048576"), "{output}");
}

#[test]
fn requests_of_web_pages_are_refused() {
    let daemon = Daemon::start();
    let (status, output) =
        daemon.curl("GET", "/v1/devices", &["-H", "Origin: http://evil.example"]);
    assert_eq!(status, "403", "{output}");
}

#[test]
fn metrics_count_what_went_through() {
    let daemon = Daemon::start();
    daemon.create("d", "0 2048 linear mem:1M 0");
    assert_eq!(daemon.qemu_io("d", &["write 0 64k", "read 0 4k"]).code, Some(0));
    let (status, text) = daemon.curl("GET", "/metrics", &[]);
    assert_eq!(status, "200");
    for line in [
        "# TYPE millpond_nbd_requests_total counter",
        "millpond_queue_write_bytes_total{device=\"mem:1M\"} 65536",
        "millpond_queue_read_bytes_total{device=\"mem:1M\"} 4096",
        "millpond_queue_errors_total{device=\"mem:1M\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn metrics_tell_the_state_of_every_write_cache() {
    let daemon = Daemon::start();
    daemon.create("wc", "0 2048 writecache s mem:1M mem:2M 4096 0");
    assert_eq!(daemon.qemu_io("wc", &["write 0 64k"]).code, Some(0));
    let (_, text) = daemon.curl("GET", "/metrics", &[]);
    for line in [
        "# TYPE millpond_writecache_writeback_errors_total counter",
        "# TYPE millpond_writecache_failing_blocks gauge",
        "millpond_writecache_writeback_errors_total{device=\"wc\"} 0",
        "millpond_writecache_dirty_blocks{device=\"wc\"} 16",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn metrics_have_the_numbers_of_zram_and_of_the_page_cache() {
    let pond = Daemon::start();
    pond.create("z", "0 2048 zram lz4");
    pond.create("d", "0 2048 zram lz4");
    pond.create("buf", "0 2048 buffered mem:1M");
    for device in ["z", "buf"] {
        assert_eq!(pond.qemu_io(device, &["write -P 7 0 64k"]).code, Some(0));
    }
    let (_, text) = pond.curl("GET", "/metrics", &[]);
    for line in [
        "# TYPE millpond_zram_same_pages gauge",
        "# TYPE millpond_zram_failed_reads_total counter",
        "millpond_zram_same_pages{device=\"z\"} 16",
        "millpond_zram_same_pages{device=\"d\"} 0",
        "# TYPE millpond_buffered_cached_bytes gauge",
        "# HELP millpond_buffered_errors_total Errors of writeback.",
        "millpond_buffered_cached_bytes{device=\"buf\"} 65536",
        "millpond_buffered_errors_total{device=\"buf\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn a_client_that_goes_while_it_waits_disturbs_nobody() {
    let daemon = Daemon::start();
    daemon.create("d", "0 8 zero");
    for _ in 0..100 {
        let (status, _) = daemon.curl("GET", "/v1/devices/d/wait", &["-m", "0.01"]);
        assert_eq!(status, "000");
    }
    daemon.cli(&["remove", "d"]).ok();
}

/// Port 0 is any port: the line is the only place that says which one it is.
#[test]
fn the_ready_line_has_the_address_of_http() {
    let daemon = Daemon::start_with(&["--http", "127.0.0.1:0"]);
    let socket = format!(" control=unix:{} ", daemon.run_dir().join("control.sock").display());
    let (_, after) = daemon.ready.split_once(&socket).unwrap_or_else(|| panic!("{}", daemon.ready));
    let addr = after.strip_prefix("control=127.0.0.1:").map(|port| format!("127.0.0.1:{port}"));
    let addr = addr.unwrap_or_else(|| panic!("{}", daemon.ready));
    assert!(!addr.ends_with(":0"), "{addr}");
    daemon.create("d", "0 8 zero");
    let devices = sh("curl", &["-s", "-m", "5", &format!("http://{addr}/v1/devices")]).ok();
    assert!(devices.contains(r#""name":"d""#), "{devices}");
}

#[test]
fn another_user_is_refused_even_if_the_socket_admits_him() {
    if sh("id", &["-u"]).out.trim() != "0" {
        eprintln!("skipped: needs root to become another user");
        return;
    }
    // A folder that all may enter, unlike ours.
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &std::path::Path, bits| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(bits)).unwrap();
    };
    mode(dir.path(), 0o755);
    let socket = dir.path().join("open.sock");
    let daemon = Daemon::start_with(&["--http", &format!("unix:{}", socket.display())]);
    mode(&socket, 0o666);
    let socket = socket.to_str().unwrap();
    let curl = ["curl", "-s", "--unix-socket", socket, "http://millpond/v1/devices"];
    assert_eq!(sh(curl[0], &curl[1..]).out, "[]");
    let other = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let output = sh("setpriv", &[&other[..], &curl].concat());
    assert_ne!(output.code, Some(0), "{output:?}");
    assert_eq!(output.out, "");
    drop(daemon);
}
