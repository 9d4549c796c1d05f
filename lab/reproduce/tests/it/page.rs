// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page in a real browser.
use std::path::Path;
use std::process::{Command, Output};

/// Every plot of a simulated run.
const PLOTS: [&str; 23] = [
    "headline",
    "flush-progress",
    "origin-io-sizes",
    "read-latency-hdd",
    "read-latency-hdd_nocache",
    "read-latency-sata",
    "read-latency-nvme",
    "wbt-step-hdd",
    "wbt-step-hdd_nocache",
    "wbt-step-sata",
    "wbt-step-nvme",
    "wbt-depth-hdd",
    "wbt-depth-hdd_nocache",
    "wbt-depth-sata",
    "wbt-depth-nvme",
    "wbt-bytes-hdd",
    "wbt-bytes-hdd_nocache",
    "wbt-bytes-sata",
    "wbt-bytes-nvme",
    "map-calls",
    "ioend-sizes",
    "batch-sizes",
    "mappings",
];

/// Chromium without a window, which talks to nobody, on a page in `dir`.
fn chromium(dir: &Path, page: &str, args: &[&str]) -> Output {
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]);
    command.args(["--no-first-run", "--disable-background-networking"]);
    command.args(["--disable-component-update", "--disable-sync", "--enable-logging=stderr"]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display())).args(args);
    command.arg(format!("file://{}", dir.join(page).display()));
    let output = command.output().unwrap_or_else(|e| {
        panic!("chromium: {e}; scripts/setup.sh installs it");
    });
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("CONSOLE"), "the page has something to complain of: {text}");
    output
}

/// The width that the content of `page.html` takes in a viewport so wide: more than that is behind
/// a scroll bar.
fn content_width(dir: &Path, viewport: u32) -> u32 {
    let page = std::fs::read_to_string(dir.join("page.html")).unwrap();
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!(
        "<!DOCTYPE html><body><iframe width=\"{viewport}\" height=\"900\" style=\"border: 0\" \
         srcdoc=\"{page}\"></iframe><script>\
         document.querySelector('iframe').onload = function () {{ \
         document.body.setAttribute('data-width', \
         this.contentDocument.documentElement.scrollWidth); }}</script></body>"
    );
    std::fs::write(dir.join("frame.html"), frame).unwrap();
    let args = ["--dump-dom", "--virtual-time-budget=5000", "--window-size=1400,1000"];
    let dom = String::from_utf8(chromium(dir, "frame.html", &args).stdout).unwrap();
    let width = dom.split_once("data-width=\"").and_then(|(_, rest)| rest.split_once('"'));
    width.unwrap_or_else(|| panic!("no width: {dom}")).0.parse().unwrap()
}

#[test]
fn the_page_shows_every_plot_in_a_browser() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let mut command = Command::new(crate::REPRODUCE);
    command.args(["all", "--sim", "--size", "4M", "--html"]).arg(&page);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let dom = chromium(dir.path(), "page.html", &["--dump-dom"]).stdout;
    let dom = String::from_utf8(dom).unwrap();
    for id in PLOTS {
        let figure = dom.split_once(&format!("<figure id=\"{id}\">"));
        let figure = figure.and_then(|(_, rest)| rest.split_once("</figure>"));
        let (figure, _) = figure.unwrap_or_else(|| panic!("no plot {id}: {dom}"));
        let marks = figure.matches("class=\"mark").count();
        assert!(marks > 0 && figure.contains("<svg"), "{id} has no marks: {figure}");
        assert!(!figure.contains("NaN") && !figure.contains("inf"), "{id}: {figure}");
    }
    for foreign in ["<script", "src=", "http:", "https:", "@import", "url("] {
        assert!(!dom.contains(foreign), "the page holds `{foreign}`");
    }
    // Rows of all scenarios, as a browser has read them.
    assert_eq!(dom.matches("<tr>").count(), 5 + 30, "five heads and the rows");

    // A window can't be as narrow as a telephone; a frame can.
    for viewport in [420, 1280] {
        let width = content_width(dir.path(), viewport);
        assert!(width <= viewport, "{width} wide in a viewport of {viewport}");
    }

    let picture = dir.path().join("page.png");
    let to = format!("--screenshot={}", picture.display());
    chromium(dir.path(), "page.html", &[&to, "--window-size=500,1200"]);
    let png = std::fs::read(&picture).unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    // One colour all over would be a few hundred bytes.
    assert!(png.len() > 20_000, "{} bytes", png.len());
}
