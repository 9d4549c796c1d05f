// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as text for a terminal, and as Markdown for `docs/performance.md`.
use std::fmt::Write;

use crate::report::{Report, Row, Section};
use crate::table;

const HEAD: [&str; 10] = [
    "scenario",
    "before",
    "after",
    "unit",
    "ratio",
    "published",
    "limit",
    "of limit",
    "rounds",
    "decides",
];

/// A figure with about three digits.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 100.0 || v.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

/// Microseconds from which on a row is in milliseconds.
const AS_MILLISECONDS: f64 = 10_000.0;

/// The unit in which a row is shown, and how many of its own units that is.
fn unit(row: &Row) -> (&'static str, f64) {
    let is_long = row.unit == "us" && row.before.max(row.after) >= AS_MILLISECONDS;
    if is_long { ("ms", 1000.0) } else { (row.unit, 1.0) }
}

/// The ratio with its range over the rounds: `2.25 (2.10 to 2.41)`.
fn ratio(row: &Row) -> String {
    let range = row.range().map(|(low, high)| format!(" ({} to {})", shown(low), shown(high)));
    maybe(row.ratio) + &range.unwrap_or_default()
}

/// The cells of a row, as in [`head`].
pub(crate) fn cells(row: &Row) -> [String; 10] {
    let (unit, per) = unit(row);
    let named = |value: f64, is: &str| format!("{} ({is})", shown(value / per));
    let dash = || "-".to_owned();
    [
        row.what.clone(),
        named(row.before, row.before_is),
        named(row.after, row.after_is),
        unit.to_owned(),
        ratio(row),
        maybe(row.published),
        row.limit.as_ref().map_or_else(dash, |limit| named(limit.value, limit.what)),
        row.share().map_or_else(dash, |share| format!("{:.0} %", share * 100.0)),
        row.verdict().unwrap_or_else(dash),
        row.basis.word().to_owned(),
    ]
}

/// Titles of the columns.
pub(crate) fn head() -> [&'static str; 10] {
    HEAD
}

/// The first sentence of a report: where its figures come from.
pub(crate) fn preface(report: &Report) -> String {
    if report.is_simulated {
        "Virtual time on models of disks: the same bytes on every machine. What of the models is \
         calibrated: docs/hdd-model.md, docs/wbt-model.md."
            .to_owned()
    } else {
        "Real time on files of this machine, in rounds in which off and on alternate. Before and \
         after are of the round with the median ratio; behind it is the range over all rounds."
            .to_owned()
    }
}

impl Report {
    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = preface(self) + "\n";
        for (name, value) in self.run.iter().chain(&self.facts) {
            let _ = writeln!(out, "{name}: {value}"); // this cannot fail
        }
        for section in &self.sections {
            let _ = writeln!(out, "\n{}", section.name);
            if let Some(error) = &section.error {
                let _ = writeln!(out, "  could not be run: {error}");
            }
            out.push_str(&aligned(section));
            for note in &section.notes {
                let _ = writeln!(out, "  note: {note}");
            }
        }
        out
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let mut out = preface(self) + "\n\n";
        for (name, value) in self.run.iter().chain(&self.facts) {
            let _ = writeln!(out, "- {name}: {}", cell(value));
        }
        for section in &self.sections {
            let _ = writeln!(out, "\n### {}\n", section.name);
            if let Some(error) = &section.error {
                let _ = writeln!(out, "Could not be run: {}", cell(error));
                continue;
            }
            let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
            out.push_str(&line(HEAD.map(str::to_owned).to_vec()));
            out.push_str(&line(vec!["---".to_owned(); HEAD.len()]));
            for row in &section.rows {
                out.push_str(&line(cells(row).map(|c| cell(&c)).to_vec()));
            }
            if !section.notes.is_empty() {
                out.push('\n');
            }
            for note in &section.notes {
                let _ = writeln!(out, "- {}", cell(note));
            }
        }
        out
    }
}

/// The text with characters escaped that would end a cell.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn aligned(section: &Section) -> String {
    if section.rows.is_empty() {
        return String::new();
    }
    let head = HEAD.map(str::to_owned).to_vec();
    let rows = section.rows.iter().map(|row| cells(row).to_vec());
    table::aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), HEAD.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Basis, Direction};

    #[test]
    fn markdown_has_a_line_for_each_row_and_no_cell_ends_early() {
        let row = Row::new(
            "a | b",
            ("off", &[2.0]),
            ("on", &[1.0]),
            ("s", Direction::LowerIsBetter, Basis::Disk),
        );
        let section = Section { name: "x", rows: vec![row], ..Section::default() };
        let (run, facts) = (Vec::new(), Vec::new());
        let report = Report { is_simulated: false, run, facts, sections: vec![section] };
        let text = report.markdown();
        assert!(text.contains("| a \\| b | 2 (off) | 1 (on) | s | 2 | - | - | - | - |"), "{text}");
    }

    #[test]
    fn a_row_of_long_times_is_in_milliseconds_and_has_its_range() {
        let row = Row::new(
            "read p99",
            ("off", &[90_000.0, 80_000.0]),
            ("on", &[3000.0, 4000.0]),
            ("us", Direction::LowerIsBetter, Basis::Disk),
        )
        .limit("alone", 1500.0);
        let want = [
            "read p99",
            "90 (off)",
            "3 (on)",
            "ms",
            "30 (20 to 30)",
            "-",
            "1.50 (alone)",
            "50 %",
            "better in all 2 rounds",
            "this disk",
        ];
        assert_eq!(cells(&row), want);
    }

    #[test]
    fn figures_are_shown_with_few_digits() {
        let all = [44.03, 2.254, 0.123, 0.01234, 12_345.6, 0.0].map(shown);
        assert_eq!(all, ["44.0", "2.25", "0.12", "0.0123", "12346", "0"]);
    }
}
