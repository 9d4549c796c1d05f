// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The first chart of the page: how many times better each row is, beside what was published and
//! what no method can pass.
//!
//! ```text
//!   writecache: flush, sorted                                      2.30
//!   1 ████████████████├──┤                 the bar, and its range over the rounds
//!               ◆ published        │ limit
//! ```
use std::fmt::Write;

use crate::html::escaped;
use crate::report::{Report, Row};
use crate::svg::diamond;
use crate::text::shown;

const WIDTH: f64 = 480.0;
/// Left of the bars, and right of them.
const MARGIN: f64 = 8.0;
/// Of a row: a line of text, and the bar.
const ROW: f64 = 34.0;
/// Of the axis below.
const AXIS: f64 = 24.0;
/// A limit that is farther off than this is not drawn, so that bars stay visible. Chosen.
const RATIO_MAX: f64 = 1000.0;

/// The figure; empty without rows that have a ratio.
pub(crate) fn figure(report: &Report) -> String {
    let rows: Vec<(&str, &Row)> = report
        .sections
        .iter()
        .flat_map(|section| section.rows.iter().map(|row| (section.name, row)))
        .filter(|(_, row)| row.ratio.is_some_and(|ratio| ratio > 0.0))
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<figure id=\"headline\"><figcaption>How many times better\
         <small>ratio of after to before, logarithmic; above 1 is better</small></figcaption>\n{}\
         <ul><li><span class=\"s1\"></span>measured, with its range over the rounds</li>\
         <li><span class=\"published\"></span>published</li>\
         <li><span class=\"limit\"></span>limit of any method</li></ul></figure>\n",
        draw(&rows)
    )
}

/// The logarithmic axis of ratios.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(rows: &[(&str, &Row)]) -> Axis {
        let values = rows.iter().flat_map(|(_, row)| {
            let range = row.range().map_or([None, None], |(low, high)| [Some(low), Some(high)]);
            let limit = row.limit_ratio().filter(|limit| *limit <= RATIO_MAX);
            [row.ratio, row.published, limit].into_iter().chain(range).flatten()
        });
        let values: Vec<f64> = values.filter(|value| *value > 0.0 && value.is_finite()).collect();
        let low = values.iter().copied().fold(0.9, f64::min);
        let high = values.iter().copied().fold(2.0, f64::max);
        Axis { low: low * 0.9, high: high * 1.1 }
    }

    fn x(&self, ratio: f64) -> f64 {
        let part = (ratio / self.low).ln() / (self.high / self.low).ln();
        MARGIN + part.clamp(0.0, 1.0) * (WIDTH - 2.0 * MARGIN)
    }

    /// Round ratios within the axis.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let all = [0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0];
        let (low, high) = (self.low, self.high);
        all.into_iter().filter(move |tick| (low..=high).contains(tick))
    }
}

fn draw(rows: &[(&str, &Row)]) -> String {
    let axis = Axis::of(rows);
    let bottom = rows.len() as f64 * ROW;
    let height = bottom + AXIS;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"How many times better\">"
    );
    for tick in axis.ticks() {
        let (x, class) = (axis.x(tick), if tick == 1.0 { "axis" } else { "grid" });
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 17.0,
            shown(tick)
        ); // this cannot fail
    }
    for (nth, (section, row)) in rows.iter().enumerate() {
        of_row(&mut out, (section, row), &axis, nth as f64 * ROW);
    }
    out.push_str("</svg>");
    out
}

fn of_row(out: &mut String, (section, row): (&str, &Row), axis: &Axis, top: f64) {
    let ratio = row.ratio.expect("rows without one were left out");
    let (from, to) = (axis.x(ratio.min(1.0)), axis.x(ratio.max(1.0)));
    let (name, value) = (escaped(&format!("{section}: {}", row.what)), shown(ratio));
    let (text, bar, middle) = (top + 13.0, top + 18.0, top + 23.0);
    let _ = write!(
        out,
        "<text class=\"start row\" x=\"{MARGIN}\" y=\"{text:.1}\">{name}</text>\
         <text class=\"end row\" x=\"{:.1}\" y=\"{text:.1}\">{value}</text>\
         <rect class=\"mark s1\" x=\"{from:.1}\" y=\"{bar:.1}\" width=\"{:.1}\" height=\"10\">\
         <title>{name}: {value}</title></rect>",
        WIDTH - MARGIN,
        (to - from).max(1.0)
    );
    if let Some((low, high)) = row.range().filter(|(low, _)| *low > 0.0) {
        let (low, high) = (axis.x(low), axis.x(high));
        let _ = write!(
            out,
            "<path class=\"range\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} \
             {:.1}v8\"/>",
            middle - 4.0,
            middle - 4.0
        );
    }
    if let Some(limit) = row.limit_ratio().filter(|limit| *limit <= RATIO_MAX) {
        let x = axis.x(limit);
        let _ = write!(out, "<path class=\"limit\" d=\"M{x:.1} {:.1}v14\"/>", bar - 2.0);
    }
    if let Some(published) = row.published {
        diamond(out, (axis.x(published), middle), published);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Basis, Direction, Section};

    fn report(rows: Vec<Row>) -> Report {
        let section = Section { name: "x", rows, ..Section::default() };
        Report { is_simulated: false, run: Vec::new(), facts: Vec::new(), sections: vec![section] }
    }

    fn row(after: &[f64]) -> Row {
        let unit = ("s", Direction::LowerIsBetter, Basis::Disk);
        Row::new("a < b", ("off", &[2.0, 2.0]), ("on", after), unit)
    }

    #[test]
    fn a_row_has_its_bar_range_published_value_and_limit() {
        let drawn = figure(&report(vec![row(&[1.0, 0.5]).published(3.0).limit("best", 0.25)]));
        let classes = ["mark s1\" x", "range\" d", "published\" d", "limit\" d"];
        for class in classes {
            assert_eq!(drawn.matches(&format!("class=\"{class}")).count(), 1, "{class}: {drawn}");
        }
        assert!(drawn.contains("x: a &lt; b") && !drawn.contains("NaN"), "{drawn}");
    }

    #[test]
    fn without_ratios_there_is_no_chart() {
        assert_eq!(figure(&report(Vec::new())), "");
        assert_eq!(figure(&report(vec![row(&[0.0, 0.0])])), "");
    }
}
