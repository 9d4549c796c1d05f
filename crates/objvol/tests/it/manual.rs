// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The man page agrees with the code: its table lines are parsed, its defaults are those of the
//! code, and it has all attributes of the target.
use objvol::{MANUAL, TargetConfig};

const PAGE: &str = include_str!("../../objvol.md");

/// The first cells of the rows of a part.
fn rows(part: &str, cells: usize) -> Vec<Vec<&'static str>> {
    let part = PAGE.split(&format!("\n## {part}\n")).nth(1).expect("a part");
    let part = part.split("\n## ").next().expect("it ends");
    let first = |row: &'static str| row.split('|').map(str::trim).skip(1).take(cells).collect();
    let rows = part.lines().filter(|line| line.starts_with("| ")).map(first);
    rows.filter(|row: &Vec<&str>| !["option", "attribute", "variable"].contains(&row[0])).collect()
}

#[test]
fn every_table_line_in_the_man_page_parses() {
    let lines: Vec<&str> = PAGE.split('\'').filter(|part| part.contains(" objvol s3:")).collect();
    assert_eq!(lines.len(), 2);
    for line in lines {
        let args: Vec<&str> = line.split(' ').skip(3).collect();
        TargetConfig::parse(&args).unwrap_or_else(|e| panic!("{line}: {e}"));
    }
}

#[test]
fn the_man_page_has_every_option_with_its_default() {
    let specs = (MANUAL.specs)();
    let options: Vec<[&str; 2]> = specs
        .iter()
        .filter(|spec| spec.form != block::attr::OptionForm::Never)
        .map(|spec| {
            let is_flag = spec.form == block::attr::OptionForm::Name;
            [spec.name, if is_flag { "" } else { spec.default }]
        })
        .collect();
    assert_eq!(rows("PARAMETERS", 2), options);
}

#[test]
fn the_man_page_has_every_attribute_and_no_other() {
    let specs = (MANUAL.specs)();
    let attributes: Vec<[&str; 1]> = specs
        .iter()
        .filter(|spec| spec.form == block::attr::OptionForm::Never)
        .map(|spec| [spec.name])
        .collect();
    assert_eq!(rows("STATUS", 1), attributes);
}
