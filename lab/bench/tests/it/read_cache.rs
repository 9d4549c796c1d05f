// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `read-cache` at a small scale: what it prints is a function of its arguments, and a hot set is
//! kept.
use serde_json::Value;

fn read_cache() -> String {
    let args = ["--reads", "15000", "--blocks", "8192"];
    let output = super::bench("read-cache").args(args).output().expect("cargo built it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

#[test]
fn two_runs_print_the_same_and_the_hot_set_stays() {
    let (first, second) = (read_cache(), read_cache());
    assert_eq!(first, second);
    let last = first.lines().last().expect("it prints something");
    let last: Value = serde_json::from_str(last).expect("the last line is JSON");
    let figure = |key: &str| last[key].as_f64().unwrap_or_else(|| panic!("{key}: {last}"));
    for shape in ["hot_set", "hot_set_scan", "hot_set_others_once"] {
        assert!(figure(&format!("{shape}_hit_ratio")) > 0.97, "{shape}: {last}");
    }
    assert!(figure("hot_set_scan_lru_hit_ratio") < 0.9, "the scan is one: {last}");
    for shape in ["zipf_0_8", "zipf_1_0", "zipf_1_2"] {
        let of_s3 =
            figure(&format!("{shape}_hit_ratio")) / figure(&format!("{shape}_s3_fifo_hit_ratio"));
        assert!(of_s3 > 0.9, "{shape}: {of_s3}");
        let written = figure(&format!("{shape}_bytes_per_hit"))
            / figure(&format!("{shape}_lru_bytes_per_hit"));
        assert!(written < 0.5, "{shape}: {written}");
        assert!(figure(&format!("{shape}_mean_us")) < figure(&format!("{shape}_off_mean_us")));
    }
}
