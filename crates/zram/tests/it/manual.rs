// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The man page agrees with the code: its table lines are parsed, and what the target lists is
//! in it.
use block::Sector;
use zram::{Config, NoFiles, Settings};

const MANUAL: &str = include_str!("../../zram.md");

#[test]
fn every_table_line_in_the_man_page_parses_and_is_shown_again() {
    let lines: Vec<&str> =
        MANUAL.split('\'').filter(|part| part.starts_with("0 8388608 zram")).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let args: Vec<&str> = line.split(' ').skip(3).collect();
        Config::parse(&args, Sector(8_388_608), &NoFiles).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

/// The attributes that the page sets, one after the other.
#[test]
fn the_attributes_that_the_man_page_sets_can_be_set() {
    let mut settings = Settings::new();
    let writes = MANUAL.lines().filter_map(|line| line.strip_prefix("millpond set zram0 "));
    let mut seen = 0;
    for write in writes {
        let (name, value) = write.split_once(' ').expect("a name and a value");
        if name != "backing_dev" {
            let got = settings.set(name, value, &NoFiles);
            // Commands need a size: what they refuse is that, and no word of theirs.
            assert!(
                got.as_ref().is_ok_and(|start| start.is_some() == (name == "disksize"))
                    || got.as_ref().is_err_and(|e| e.to_string().contains("set disksize first")),
                "{write}: {got:?}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn the_man_page_has_every_attribute_and_every_option() {
    // The message that refuses an option lists those that there are.
    let refusal = Config::parse(&["lz4", "1", "bogus"], Sector(8), &NoFiles).unwrap_err();
    let refusal = refusal.to_string();
    let options = refusal.split(": ").last().expect("a list").trim_start_matches("there are ");
    assert_eq!(options.split(", ").count(), 14, "{options}");
    let names = block::attr::names(&Settings::new().attributes());
    for word in names.into_iter().chain(options.split(", ")) {
        let is_listed = |before: &str| MANUAL.contains(&format!("{before} {word}"));
        assert!(is_listed("|") || is_listed(","), "{word} is not in the man page");
    }
}

#[test]
fn the_man_page_gives_the_modes() {
    let settings = Settings::new();
    for row in MANUAL.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, names, mode, ..] = cells[..] else { continue };
        let modes = ["R", "RW", "RC", "W", "C", "W!"];
        if !modes.contains(&mode) {
            continue;
        }
        for name in names.split(", ") {
            let known = settings.attributes().into_iter().find(|spec| spec.name == name);
            let access = known.unwrap_or_else(|| panic!("{name} is no attribute")).access;
            assert_eq!(access.reads(), mode.contains('R'), "{name}: {mode}");
            assert_eq!(access.writes(), mode.contains(['W', 'C']), "{name}: {mode}");
        }
    }
}

#[test]
fn the_man_page_gives_the_defaults() {
    let settings = Settings::new();
    for option in [
        "backing_dev",
        "compressed_writeback",
        "writeback_batch_size",
        "writeback_inflight",
        "writeback_limit",
        "writeback_limit_enable",
        "auto_writeback_idle",
        "auto_writeback_watermark",
        "auto_writeback_budget",
        "auto_writeback_order",
    ] {
        let default = settings.get(option).expect("it can be read");
        let row = format!("| {option} | {default} |");
        assert!(MANUAL.contains(&row), "{row}");
    }
}
