// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `iomap` at a small scale: it measures what it says, and prints the keys by which results are
//! collected.
use serde_json::Value;

#[test]
fn one_map_call_a_run_or_a_page_and_both_write_the_same() {
    let dir = env!("CARGO_TARGET_TMPDIR");
    let args = ["--size-mib", "8", "--rounds", "1", "--dir", dir];
    let output = super::bench("iomap").args(args).output();
    let output = output.expect("cargo built it");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let out = String::from_utf8(output.stdout).expect("it prints text");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let number = |key: &str| last[key].as_f64().unwrap_or_else(|| panic!("{key}: {last}"));
    for key in ["single_cpu_s_per_gib", "multi_cpu_s_per_gib", "copy_cpu_s_per_gib"] {
        assert!(number(key) > 0.0, "{key}");
    }
    assert_eq!(number("single_map_calls_per_mib"), 256.0);
    assert!(number("multi_map_calls_per_mib") <= 1.0);
    // Nobody's way of asking makes other writes.
    for case in ["null_linear_seq", "file_linear_rand", "null_striped_seq", "file_striped_seq"] {
        let ioends = ["single", "multi"].map(|ask| number(&format!("{case}_{ask}_ioends")));
        assert_eq!(ioends[0], ioends[1], "{case}");
    }
    assert_eq!(last["null_striped_seq_ioends_by_kib"]["1024"], 8, "stripes join: {last}");
}
