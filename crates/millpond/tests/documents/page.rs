// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of `--metrics` in a real browser.
use std::path::Path;
use std::process::Command;

use crate::common::{Daemon, sh};

/// Chromium without a window, on the page at `url`; returns its standard output.
fn chromium(dir: &Path, url: &str, args: &[&str]) -> String {
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    command.args(["--no-first-run", "--disable-background-networking"]);
    command.args(["--disable-component-update", "--disable-sync", "--enable-logging=stderr"]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    // The page asks every two seconds; the browser's clock does not wait for ours.
    command.arg("--virtual-time-budget=5000").args(args).arg(url);
    let output = command.output();
    let output = output.unwrap_or_else(|e| panic!("chromium: {e}; scripts/setup.sh installs it"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("CONSOLE"), "the page has something to complain of: {text}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_page_shows_devices_and_live_numbers_on_any_screen() {
    let daemon = Daemon::start_with(&["--metrics", "127.0.0.1:0"]);
    let after = daemon.ready.split_once(" metrics=").unwrap().1;
    let url = format!("http://{}/", after.split_whitespace().next().unwrap());
    daemon.create("po<b>nd", "0 2048 writecache s mem:1M mem:2M 4096 0");
    assert_eq!(daemon.qemu_io("po%3Cb%3End", &["write 0 64k", "read 0 4k"]).code, Some(0));
    for width in [420, 1280] {
        let size = format!("--window-size={width},1600");
        let dom = chromium(daemon.dir.path(), &url, &["--dump-dom", &size]);
        let body = dom.split_once("<main>").unwrap().1;
        let body = body.split_once("</main>").unwrap().0;
        for shown in
            ["<h3>po&lt;b&gt;nd</h3>", "64.0 KiB dirty", "read hits: 100 % of 1 blocks read"]
        {
            assert!(body.contains(shown), "no `{shown}` at {width}: {body}");
        }
        assert!(dom.contains("all is well") && dom.contains("% CPU"), "not live: {dom}");
        let picture = daemon.dir.path().join(format!("{width}.png"));
        let to = format!("--screenshot={}", picture.display());
        chromium(daemon.dir.path(), &url, &[&to, &size]);
        let png = std::fs::read(&picture).unwrap();
        assert!(png.starts_with(b"\x89PNG") && png.len() > 10_000, "{} bytes", png.len());
    }
}

#[test]
fn a_browser_may_run_nothing_but_the_page() {
    let daemon = Daemon::start_with(&["--metrics", "127.0.0.1:0"]);
    let after = daemon.ready.split_once(" metrics=").unwrap().1;
    let url = format!("http://{}/", after.split_whitespace().next().unwrap());
    let head = sh("curl", &["-s", "-I", &url]).out.to_lowercase();
    assert!(head.contains("content-security-policy: default-src 'none'; "), "{head}");
    assert!(!head.contains("unsafe"), "{head}");
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
}
