// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rates, order and text of `top`.
use tokio::time::Instant;

use super::*;
use crate::show::Summary;
use crate::top::sample::Stat;

fn client(id: &str, device: &str, read: u64, written: u64, requests: u64) -> api::Client {
    api::Client {
        id: id.into(),
        device: Some(device.into()),
        peer: "pid 7 (uid 0)".into(),
        requests_in_flight: Some(2),
        read_bytes: Some(read),
        written_bytes: Some(written),
        requests: Some(requests),
        ..api::Client::default()
    }
}

fn device(name: &str, drain_state: &str, stat: Option<Stat>) -> DeviceSample {
    device_with(Summary::for_tests(name, 1 << 20, 1), drain_state, stat)
}

/// A write cache with so many times what it has done before.
fn cache(name: &str, times: u64) -> Summary {
    let once = [
        ("reads", 40),
        ("read_hits", 30),
        ("writes", 8),
        ("write_hits", 4),
        ("read_refused_once", 70),
        ("read_refused_sequential", 6),
        ("read_refused_budget", 0),
        ("data_write_bytes", 128 << 10),
        ("admitted_write_bytes", 4096),
        ("metadata_write_bytes", 4096),
    ];
    let figures = once.map(|(figure, count)| (figure, count * times));
    Summary::for_tests(name, 1 << 20, 1).with_figures(&figures)
}

fn device_with(summary: Summary, drain_state: &str, stat: Option<Stat>) -> DeviceSample {
    DeviceSample { summary, drain_state: Some(drain_state.into()), stat }
}

fn sample(at: Instant, devices: Vec<DeviceSample>, clients: Vec<api::Client>) -> Sample {
    let daemon = api::Version {
        version: "1.2.3".into(),
        pid: 42,
        pid_namespace: None,
        cores: 1,
        nbd: Vec::new(),
        default_export: None,
    };
    Sample { at, daemon, devices, clients }
}

/// Two samples, two seconds apart.
pub(in crate::top) fn view(sort: Sort) -> View {
    let begin = Instant::now();
    let stat = |requests, busy_ms| Some(Stat { requests, busy_ms, ..Stat::default() });
    let before = sample(
        begin,
        vec![device_with(cache("a", 1), "idle", None), device("b", "idle", stat(10, 5))],
        vec![client("nbd1", "a", 4096, 0, 10)],
    );
    let after = sample(
        begin + Duration::from_secs(2),
        vec![
            device_with(cache("a", 2), "running done=45 total=100 rate=1", None),
            device("b", "idle", stat(30, 25)),
        ],
        vec![client("nbd1", "a", 12_288, 2048, 30), client("nbd2", "a", 0, 2048, 2)],
    );
    View::new(sort, Duration::from_secs(1)).updated(before).updated(after)
}

#[test]
fn rates_are_what_clients_moved_or_what_the_device_counts() {
    let view = view(Sort::Name);
    let [a, b] = view.devices() else { panic!("two devices") };
    let want = Rates { read: 4096.0, written: 2048.0, requests: 11.0 };
    assert_eq!((a.rates, a.latency_ms, &*a.state), (Some(want), None, "drain 45 %"));
    assert_eq!((b.rates.unwrap().requests, b.latency_ms), (10.0, Some(1.0)));
}

#[test]
fn a_write_cache_has_hits_refusals_and_causes() {
    let view = view(Sort::Name);
    let [a] = view.caches() else { panic!("one write cache") };
    assert_eq!((a.read_hit_percent, a.write_hit_percent), (Some(75), Some(50)));
    assert_eq!(a.refused, [Some(35.0), Some(3.0), Some(0.0)]);
    assert_eq!(a.written, [Some(65_536.0), Some(2048.0), Some(2048.0)]);
}

#[test]
fn the_text_has_a_line_for_each_device_and_client() {
    let text = view(Sort::Name).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "millpond 1.2.3 pid 42: 2 devices, 2 clients; every 1s, by name");
    assert!(lines[3].starts_with("a       1.0 MiB  drain 45 %  4.0 KiB  2.0 KiB"), "{text}");
    assert!(lines[7].starts_with("a      75 %   50 %   35      3      0"), "{text}");
    assert!(lines[10].starts_with("nbd1    a       pid 7 (uid 0)  0s     2"), "{text}");
    assert!(lines.iter().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn keys_sort_reverse_pause_and_change_the_interval() {
    let mut view = view(Sort::Name);
    let names = |view: &View| view.devices().iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    view.press(Key::Char('r'));
    assert_eq!(names(&view), ["b", "a"]);
    view.press(Key::Char('r'));
    for sorted in ["read", "write", "requests", "dirty", "name"] {
        view.press(Key::Char('s'));
        assert_eq!(view.sort.name(), sorted);
    }
    view.press(Key::Char('p'));
    assert!(view.is_paused() && view.title().ends_with("PAUSED"));
    for _ in 0..9 {
        view.press(Key::Char('+'));
    }
    assert_eq!(view.interval(), INTERVALS.1);
    for _ in 0..12 {
        view.press(Key::Char('-'));
    }
    assert_eq!(view.interval(), INTERVALS.0);
    view.press(Key::Down);
    view.press(Key::Down);
    assert_eq!(names(&view), ["b"]);
    view.press(Key::Up);
    assert_eq!(names(&view).len(), 2);
}
