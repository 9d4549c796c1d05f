// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `wbt` at a small scale: it runs, and prints the keys by which results are collected.
use serde_json::Value;

#[test]
fn the_last_line_is_json_with_all_collected_keys() {
    let args = ["--rounds", "1", "--seconds", "0.3", "--warm-up", "0.1", "--rates", "100,400"];
    let place = ["--size-mib", "64", "--memory-mib", "16", "--dir", env!("CARGO_TARGET_TMPDIR")];
    let output = super::bench("wbt").args(args).args(place).output();
    let output = output.expect("cargo built it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8(output.stdout).expect("it prints text");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    for key in [
        "disk_writer_alone_off_s",
        "disk_writer_alone_on_s",
        "disk_read_p99_alone_us",
        "disk_read_p99_off_us",
        "disk_read_p99_on_us",
        "disk_100_read_p999_kernel_us",
        "disk_writer_share_on",
    ] {
        assert!(last[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {last}");
    }
}
