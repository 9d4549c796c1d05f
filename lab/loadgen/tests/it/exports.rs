// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports of daemons, and of a server that says nothing.
use std::net::TcpListener;

use e2e::clock;
use e2e::test_bed::TestBed;

use crate::{json, loadgen, loadgen_in};

const SIZE: u64 = 8 << 20;
/// Longer than a server may be silent here.
const WAIT_S: f64 = 60.0;

/// A person reads it, and may paste it: the slashes of the path are as they were typed.
#[test]
fn an_export_is_shown_by_a_uri_with_a_plain_path() {
    let bed = TestBed::start(&[], &[("d", "0 2048 linear mem:1M 0")]);
    let socket = bed.daemon().socket();
    let relative = socket.strip_prefix(bed.dir()).unwrap().display();
    let uri = format!("nbd+unix:///d?socket={relative}");
    let args = ["--uri", &uri, "--rw", "randread", "--number-ios", "100"];
    let text = loadgen_in(bed.dir(), &args).ok();
    let line = format!("{}: rw=randread, ", bed.uri("d"));
    assert!(text.starts_with(&line) && text.contains("read: IOPS="), "{text}");
}

#[test]
fn one_daemon_is_the_origin_of_another_and_both_are_driven() {
    let files = [("disk.img", SIZE)];
    let below = TestBed::start(&files, &[("disk", "0 16384 linear ./disk.img 0")]);
    let uri = below.uri("disk");
    let above = TestBed::start(&[], &[("top", &format!("0 16384 linear {uri} 0"))]);
    for uri in [uri, above.uri("top")] {
        let args = ["--uri", &uri, "--rw", "randrw", "--iodepth", "32", "--jobs", "2"];
        let report = json(&[&args[..], &["--verify", "--number-ios", "2000"]].concat());
        assert!(report.to_string().contains("verif"), "{report}");
    }
}

#[test]
fn the_error_names_a_silent_server_and_the_awaited_reply() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = silent.local_addr().unwrap().to_string();
    let began = clock();
    let err = loadgen(&["--uri", &format!("nbd://{peer}/disk?timeout=1s")]).failed(1);
    let want = format!("{peer}: the server said nothing within 1 s: waited for its greeting");
    assert!(err.contains(&want), "{err}");
    assert!(clock() - began < WAIT_S);
}
