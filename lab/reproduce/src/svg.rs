// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plot as SVG, without scripts; colours are classes of the page's style.
//!
//! ```text
//!   0          LEFT                                      WIDTH
//!   ├ labels ──┼───────────────────────────────────────────┤ TOP
//!   │  of y    │            lines, steps, bars             │
//!   │          ├───────────────────────────────────────────┤ HEIGHT - BOTTOM
//!   └──────────┴────────────── labels of x ────────────────┘
//! ```
use std::fmt::Write;

use crate::html::escaped;
use crate::report::{Kind, Mark, Plot};
use crate::text::shown;

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 52.0;
/// About so many ticks on an axis.
const TICKS: f64 = 5.0;
/// The share of a group's width that its bars take.
const GROUP: f64 = 0.8;
/// Characters of labels that fit on one line.
const LABEL_CHARS: usize = 54;

/// An axis: its range, linear or logarithmic.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Axis {
    fn linear(low: f64, high: f64) -> Axis {
        let high = if high > low { high } else { low + 1.0 };
        Axis { low, high, is_log: false }
    }

    /// Whole decades around positive values.
    fn log(low: f64, high: f64) -> Axis {
        let low = 10_f64.powf(low.log10().floor());
        let high = 10_f64.powf(high.log10().ceil());
        // The smallest bar must be visible.
        let low = if low >= high { low / 10.0 } else { low };
        Axis { low: low / 2.0, high, is_log: true }
    }

    fn of(values: impl Iterator<Item = f64>, is_log: bool) -> Axis {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && (!is_log || *v > 0.0)).collect();
        let high = values.iter().copied().fold(f64::MIN, f64::max);
        let low = values.iter().copied().fold(f64::MAX, f64::min);
        match (values.is_empty(), is_log) {
            (true, _) => Axis::linear(0.0, 1.0),
            (false, true) => Axis::log(low, high),
            (false, false) => Axis::linear(low.min(0.0), high),
        }
    }

    /// The place of a value on the axis, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let (from, to) = (self.low.log10().ceil() as i32, self.high.log10().round() as i32);
            let every = usize::try_from((to - from) / 6 + 1).unwrap_or(1);
            return (from..=to).step_by(every).map(|e| 10_f64.powi(e)).collect();
        }
        let rough = (self.high - self.low) / TICKS;
        let unit = 10_f64.powf(rough.log10().floor());
        let fits = |m: &f64| m * unit >= rough;
        let step = [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * unit;
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

/// The label of a tick.
fn label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", shown(value / 1e6)),
        v if v >= 1e4 => format!("{}k", shown(value / 1e3)),
        _ => {
            let text = shown(value);
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        }
    }
}

fn x_at(part: f64) -> f64 {
    LEFT + part * (WIDTH - LEFT - RIGHT)
}

fn y_at(part: f64) -> f64 {
    HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
}

/// Draws the plot. Its data carry the class `mark`.
pub(crate) fn draw(plot: &Plot) -> String {
    let all = || plot.series.iter().flat_map(|s| s.points.iter());
    let marked = plot.marks.iter().filter_map(|mark| match mark {
        Mark::Published { y, .. } => Some(*y),
        Mark::Line { .. } => None,
    });
    let y = Axis::of(all().map(|p| p.1).chain(marked), plot.is_log);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(&plot.title)
    );
    for tick in y.ticks() {
        let at = y_at(y.part(tick));
        line(&mut out, "grid", (LEFT, at), (WIDTH - RIGHT, at));
        text(&mut out, "end", (LEFT - 6.0, at + 4.5), &label(tick));
    }
    match plot.kind {
        Kind::Bars => bars(&mut out, plot, &y),
        Kind::Lines | Kind::Steps => {
            let lines_at: Vec<(f64, &str)> = plot.marks.iter().filter_map(line_mark).collect();
            let marks = lines_at.iter().map(|(x, _)| *x);
            let x = Axis::of(all().map(|p| p.0).chain(marks), false);
            for tick in x.ticks() {
                text(
                    &mut out,
                    "middle",
                    (x_at(x.part(tick)), HEIGHT - BOTTOM + 18.0),
                    &label(tick),
                );
            }
            for (nth, (place, label)) in lines_at.iter().enumerate() {
                let at = x_at(x.part(*place));
                line(&mut out, "reference", (at, TOP), (at, y_at(0.0)));
                // On the side of the line that has more room.
                let (class, gap) =
                    if x.part(*place) > 0.5 { ("end", -6.0) } else { ("start", 6.0) };
                let row = y_at(0.0) - 10.0 - 16.0 * nth as f64;
                text(&mut out, class, (at + gap, row), label);
            }
            for (nth, series) in plot.series.iter().enumerate() {
                lines(&mut out, (nth, plot.kind), &series.points, (&x, &y));
            }
        }
    }
    line(&mut out, "axis", (LEFT, y_at(0.0)), (WIDTH - RIGHT, y_at(0.0)));
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    text(&mut out, "middle name", (middle, HEIGHT - 6.0), plot.x);
    out.push_str("</svg>");
    out
}

fn line_mark(mark: &Mark) -> Option<(f64, &str)> {
    match mark {
        Mark::Line { x, label } => Some((*x, label)),
        Mark::Published { .. } => None,
    }
}

/// The diamond of a published value around a point of a plot.
pub(crate) fn diamond(out: &mut String, (x, y): (f64, f64), value: f64) {
    let _ = write!(
        out,
        "<path class=\"published\" d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"><title>published: {}</title>\
         </path>",
        y - 5.0,
        shown(value)
    );
}

fn lines(
    out: &mut String,
    (nth, kind): (usize, Kind),
    points: &[(f64, f64)],
    (x, y): (&Axis, &Axis),
) {
    let mut path = String::new();
    let mut last = None;
    for &(px, py) in points.iter().filter(|p| p.0.is_finite() && p.1.is_finite()) {
        let (px, py) = (x_at(x.part(px)), y_at(y.part(py)));
        let _ = match (last, kind) {
            (None, _) => write!(path, "M{px:.1} {py:.1}"), // this cannot fail
            (Some(_), Kind::Steps) => write!(path, "H{px:.1}V{py:.1}"),
            (Some(_), Kind::Lines | Kind::Bars) => write!(path, "L{px:.1} {py:.1}"),
        };
        last = Some(py);
    }
    if last.is_some() {
        let _ = write!(out, "<path class=\"mark line s{nth}\" d=\"{path}\"/>");
    }
}

fn bars(out: &mut String, plot: &Plot, y: &Axis) {
    let groups = plot.labels.len().max(1) as f64;
    let width = GROUP / groups / plot.series.len().max(1) as f64;
    for (nth, series) in plot.series.iter().enumerate() {
        for &(at, value) in series.points.iter().filter(|p| p.1.is_finite() && p.1 > 0.0) {
            let left = (at + (1.0 - GROUP) / 2.0) / groups + nth as f64 * width;
            let (from, to) = (x_at(left), x_at(left + width * 0.94));
            let (top, base) = (y_at(y.part(value)), y_at(0.0));
            let title = format!("{}: {}", series.name, shown(value));
            let _ = write!(
                out,
                "<rect class=\"mark s{nth}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                 height=\"{:.1}\"><title>{}</title></rect>",
                to - from,
                (base - top).max(1.0),
                escaped(&title)
            );
        }
    }
    for mark in &plot.marks {
        if let Mark::Published { group, y: value } = mark {
            let at = x_at((*group as f64 + 0.5) / groups);
            diamond(out, (at, y_at(y.part(*value))), *value);
        }
    }
    let chars: usize = plot.labels.iter().map(|l| l.chars().count() + 1).sum();
    let every = chars.div_ceil(LABEL_CHARS).max(1);
    for (nth, name) in plot.labels.iter().enumerate() {
        // Labels that would overlap alternate between two lines.
        let row = if every > 1 { nth % 2 } else { 0 };
        let at = x_at((nth as f64 + 0.5) / groups);
        text(out, "middle", (at, HEIGHT - BOTTOM + 16.0 + 14.0 * row as f64), name);
    }
}

fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
    let _ = write!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let _ =
        write!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Mark, Series};

    fn plot(kind: Kind, is_log: bool, points: &[(f64, f64)]) -> Plot {
        Plot {
            id: "p".into(),
            title: "a < b".into(),
            x: "x",
            y: "y",
            kind,
            is_log,
            labels: vec!["one".into(), "two & three".into()],
            series: vec![Series::new("s", points.iter().copied())],
            marks: vec![match kind {
                Kind::Bars => Mark::Published { group: 1, y: 1000.0 },
                Kind::Lines | Kind::Steps => Mark::Line { x: 1.5, label: "as published".into() },
            }],
        }
    }

    #[test]
    fn finite_points_are_drawn_inside_and_texts_are_escaped() {
        let points = [(0.0, 1.0), (1.0, 100.0), (2.0, f64::NAN)];
        let bars = draw(&plot(Kind::Bars, true, &points));
        assert_eq!(bars.matches("<rect class=\"mark").count(), 2, "{bars}");
        assert!(bars.contains("a &lt; b") && bars.contains("two &amp; three"), "{bars}");
        assert!(!bars.contains("NaN"), "{bars}");
        // At the top, for the axis goes up to it, and above the middle of the second label.
        let published =
            "class=\"published\" d=\"M366.5 7.0l5 5l-5 5l-5 -5z\"><title>published: 1000<";
        assert!(bars.contains(published), "{bars}");
        let steps = draw(&plot(Kind::Steps, false, &points));
        assert_eq!(steps.matches("mark line").count(), 1, "{steps}");
        assert!(steps.contains("M62.0 225.8H265.0V12.0"), "{steps}");
        assert!(steps.contains("as published") && steps.contains("class=\"reference\""), "{steps}");
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Axis::linear(0.0, 99.2).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(Axis::log(3.0, 40_000.0).ticks(), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        assert_eq!(label(35_000.0), "35k");
    }

    #[test]
    fn a_plot_without_points_is_empty() {
        let empty = draw(&plot(Kind::Lines, false, &[]));
        assert!(empty.ends_with("</svg>") && !empty.contains("mark"), "{empty}");
    }
}
