// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cache-scale` at a small scale: it opens what it makes, the limits of memory hold, and it prints
//! the keys by which results are collected.
use format::ENTRIES_PER_UNIT;
use serde_json::Value;

#[test]
fn a_cached_block_takes_at_most_32_bytes_opening_little_more() {
    // Few enough for a test, so many that what a cache takes whatever its size is little.
    let blocks = 1_000_000.0;
    let args = ["--blocks", "1000000", "--rounds", "1", "--dir", env!("CARGO_TARGET_TMPDIR")];
    let output = super::bench("cache-scale").args(args).output();
    let output = output.expect("cargo built it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8(output.stdout).expect("it prints text");
    let last: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let number = |key: &str| last[key].as_f64().unwrap_or_else(|| panic!("{key}: {last}"));
    for case in ["dirty", "clean", "dirty_log", "ordered_log"] {
        assert!(number(&format!("{case}_cpu_s")) > 0.0);
        assert!(number(&format!("{case}_steady_rss_mib")) > 0.0);
        assert!(number(&format!("{case}_steady_bytes_per_block")) <= 32.0, "{last}");
        // Sorted runs of block numbers and the reads under way are as large for any cache. What a
        // log displaces waits aside, and the log of a small cache is longer beside it.
        let entries = number(&format!("{case}_log_records")) * ENTRIES_PER_UNIT as f64;
        let limit = 48.0 + 20.0 * entries / blocks;
        assert!(number(&format!("{case}_peak_bytes_per_block")) <= limit, "{case}: {last}");
    }
    for case in ["to_ordered", "ordered"] {
        assert!(number(&format!("{case}_cpu_s")) > 0.0);
    }
    assert!(number("dirty_log_log_records") > 1000.0, "{last}");
}
