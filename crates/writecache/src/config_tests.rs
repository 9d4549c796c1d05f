// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table lines: what is taken, what is refused, and what comes back.
use block::Nanos;

use super::*;

fn parse(line: &str) -> Result<Config, Error> {
    Config::parse(&line.split_whitespace().collect::<Vec<_>>())
}

#[test]
fn the_line_comes_back_with_options_in_the_kernels_order() {
    let line = "s /dev/o /dev/c 4096 6 low_watermark 40 HIGH_WATERMARK 60 start_sector 1024";
    let config = parse(line).unwrap();
    assert_eq!(config.tuning.high_watermark, 60);
    assert_eq!(
        config.table(),
        "s /dev/o /dev/c 4096 6 start_sector 1024 high_watermark 60 low_watermark 40"
    );
}

#[test]
fn of_a_repeated_option_the_last_wins() {
    let config = parse("s o c 512 4 autocommit_time 5 autocommit_time 7").unwrap();
    assert_eq!(config.tuning.autocommit_time, Nanos::from_millis(7));
    assert_eq!(config.table(), "s o c 512 2 autocommit_time 7");
}

#[test]
fn an_option_that_only_made_it_faster_is_taken_and_dropped() {
    let config = parse("s o c 4096 4 READ_AHEAD 16M read_cache 1").unwrap();
    assert_eq!(config.table(), "s o c 4096 2 read_cache 1");
    assert!(parse("s o c 4096 1 read_ahead").is_ok(), "its value may be missing: nobody reads it");
    assert!(config.with_option("read_ahead", "1M").is_err(), "there is no such attribute");
}

#[test]
fn values_within_the_kernels_ranges_only_are_taken() {
    for (option, limit, beyond) in [
        ("high_watermark", "100", "101"),
        ("writeback_jobs", "4294967295", "4294967296"),
        ("autocommit_blocks", "4294967295", "4294967296"),
        ("autocommit_time", "3600000", "3600001"),
        ("max_age", "86400000", "86400001"),
        ("pause_writeback", "60000", "60001"),
    ] {
        let config = parse(&format!("s o c 4096 2 {option} {limit}")).unwrap();
        assert_eq!(config.table(), format!("s o c 4096 2 {option} {limit}"));
        assert_eq!(config.option_value(option).unwrap(), limit);
        parse(&format!("s o c 4096 2 {option} {beyond}")).unwrap_err();
        config.with_option(option, beyond).unwrap_err();
    }
    parse("s o c 4096 4 high_watermark 40 low_watermark 40").unwrap();
}

#[test]
fn zero_jobs_mean_unlimited_and_zero_autocommit_blocks_is_taken() {
    let config = parse("s o c 4096 4 writeback_jobs 0 autocommit_blocks 0").unwrap();
    assert_eq!((config.tuning.writeback_jobs, config.tuning.autocommit_blocks), (0, 0));
}

#[test]
fn bad_lines_get_the_kernels_text_and_name_the_argument() {
    for (line, text) in [
        ("", "Bad arguments"),
        ("s", "Bad arguments"),
        ("x o c 4096 0", "Bad arguments: mode `x`"),
        ("s o c 4095 0", "Invalid block size `4095`"),
        ("s o c 8192 0", "Invalid block size `8192`"),
        ("s o c 256 0", "Invalid block size `256`"),
        ("s o c 4k 0", "Invalid block size `4k`"),
        ("s o c 4096", "Bad arguments"),
        ("s o c 4096 99", "Invalid number of feature args `99`"),
        ("s o c 4096 2 high_watermark", "Invalid number of feature args `2`"),
        (
            "s o c 4096 2 high_watermark 101",
            "high_watermark: `101`: a number from 0 to 100 percent",
        ),
        ("s o c 4096 2 high_watermark x", "high_watermark: `x`"),
        ("s o c 4096 1 bogus", "Invalid optional argument `bogus`"),
        ("s o c 4096 1 high_watermark", "high_watermark has no value"),
        ("s o c 4096 2 PARTS 2", "parts: millpond 0.2 was the last version with this option"),
        ("s o c 4096 2 parts 1", "open it with millpond 0.2, `millpond drain` it there"),
        ("s o c 4096 2 autocommit_time 3600001", "autocommit_time: `3600001`"),
        ("s o c 4096 0 extra", "`extra` follows"),
        ("s o c 4096 2 writeback_order random", "sorted or lru"),
        ("s o c 4096 2 writeback_io_bytes 5000", "multiple of the block size"),
        (
            "s o c 4096 4 high_watermark 10 low_watermark 20",
            "High watermark must be greater than or equal to low watermark",
        ),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.to_string().contains(text), "`{line}`: {error}");
    }
}

#[test]
fn mode_p_commits_after_64_blocks_as_the_kernel_does() {
    let config = parse("P o c 4096 0").unwrap();
    assert_eq!((config.mode, config.tuning.autocommit_blocks), (Mode::Pmem, 64));
    assert_eq!(config.table(), "p o c 4096 0");
    let config = parse("p o c 4096 3 nofua autocommit_blocks 1").unwrap();
    assert_eq!(config.tuning.autocommit_blocks, 1);
    assert_eq!(config.table(), "p o c 4096 3 autocommit_blocks 1 nofua");
}

#[test]
fn options_of_the_other_mode_are_refused_as_the_kernel_does() {
    for line in ["s o c 4096 1 fua", "s o c 4096 1 nofua", "p o c 4096 2 pause_writeback 5"] {
        let error = parse(line).unwrap_err();
        assert!(error.to_string().contains("Invalid optional argument"), "{error}");
    }
}

#[test]
fn live_options_change_the_table_line_fixed_ones_are_refused() {
    let config = parse("s o c 4096 2 high_watermark 60").unwrap();
    let changed = config.with_option("High_Watermark", "70").unwrap();
    assert_eq!(changed.tuning.high_watermark, 70);
    assert_eq!(changed.table(), "s o c 4096 2 high_watermark 70");
    let error = changed.with_option("low_watermark", "71").unwrap_err();
    assert!(error.to_string().contains("High watermark must be"), "{error}");
    let error = config.with_option("start_sector", "8").unwrap_err();
    assert!(error.to_string().contains("load a new table"), "{error}");
    // As an attribute that can only be read, in every engine; it was EINVAL here.
    assert_eq!(error.kind(), block::ErrorKind::Denied);
    let error = config.with_option("hihg_watermark", "70").unwrap_err();
    assert!(error.to_string().ends_with("did you mean `high_watermark`?"), "{error}");
    assert_eq!(error.kind(), block::ErrorKind::NotFound);
}

#[test]
fn values_are_taken_with_the_units_that_every_target_takes() {
    for (given, shown) in [
        ("autocommit_time 2s", "autocommit_time 2000"),
        ("max_age 1.5m", "max_age 90000"),
        ("pause_writeback 250ms", "pause_writeback 250"),
        ("foreground_p99_target 5ms", "foreground_p99_target 5000"),
        ("writeback_io_bytes 1MiB", "writeback_io_bytes 1048576"),
        ("writeback_rate_max 10M", "writeback_rate_max 10485760"),
        ("gap_fill No", "gap_fill 0"),
        ("writeback_jobs +2", "writeback_jobs 2"),
        ("writeback_order LRU", "writeback_order lru"),
    ] {
        let config = parse(&format!("s o c 4096 2 {given}")).unwrap();
        assert_eq!(config.table(), format!("s o c 4096 2 {shown}"));
    }
    for wrong in ["autocommit_time 1500us", "writeback_io_bytes 5K", "gap_fill 2", "max_age 1d"] {
        parse(&format!("s o c 4096 2 {wrong}")).unwrap_err();
    }
}
