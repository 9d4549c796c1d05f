// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The man page says what the code does: its table lines are parsed, and what the target lists is
//! in it.

use crate::common::{Fixture, config};
use block::Target;
use writecache::Config;

const MANUAL: &str = include_str!("../../writecache.md");

#[test]
fn every_table_line_in_the_man_page_is_good() {
    let quoted = MANUAL.split('\'');
    let lines: Vec<&str> = quoted.filter(|part| part.starts_with("0 4194304 writecache")).collect();
    assert_eq!(lines.len(), 4);
    for line in lines {
        let args: Vec<&str> = line.split(' ').skip(3).collect();
        Config::parse(&args).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn the_man_page_has_every_attribute_and_every_option() {
    let attributes = block::attr::names(&Fixture::small("").target().attributes());
    // The message that refuses an option lists those that there are.
    let refusal = Config::parse(&["s", "o", "c", "4096", "1", "bogus"]).unwrap_err().to_string();
    let options = refusal.split(": ").last().unwrap().trim_start_matches("there are ");
    assert!(options.split(", ").count() >= 8, "{options}");
    for word in attributes.into_iter().chain(options.split(", ")) {
        let is_listed = |before: &str| MANUAL.contains(&format!("{before} {word}"));
        assert!(is_listed("|") || is_listed(","), "{word} is not in the man page");
    }
}

#[test]
fn the_man_page_gives_the_defaults() {
    let c = config(4096, "");
    for (option, default) in [
        ("high_watermark", u64::from(c.tuning.high_watermark)),
        ("low_watermark", u64::from(c.tuning.low_watermark)),
        ("autocommit_blocks", u64::from(c.tuning.autocommit_blocks)),
        ("autocommit_time", c.tuning.autocommit_time.0 / 1_000_000),
        ("writeback_io_bytes", u64::from(c.tuning.writeback_io_bytes)),
        ("start_sector", c.start_sector.0),
    ] {
        let row = format!("| {option} | {default} |");
        assert!(MANUAL.contains(&row), "{row}");
    }
    let p = Config::parse(&["p", "o", "c", "4096", "0"]).unwrap();
    let row = format!("| {} in mode p;", p.tuning.autocommit_blocks);
    assert!(MANUAL.contains(&row), "{row}");
    assert_eq!(c.tuning.writeback_jobs * c.block_size, 32 << 20);
}
