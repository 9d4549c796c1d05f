// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a scenario: rows of a table, series of plots, keys of a JSON object.
use serde_json::{Map, Value, json};

use crate::median::{median_at, ratios};
use crate::table::{Table, fixed};

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    LowerIsBetter,
    HigherIsBetter,
}

/// What limits a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// A model of a disk.
    Model,
    /// The disk of this machine.
    Disk,
    /// The CPU of this machine.
    Cpu,
    /// Nothing of the machine: the figure is a count.
    Count,
}

impl Basis {
    /// The text of the table and of the JSON.
    pub fn word(self) -> &'static str {
        match self {
            Basis::Model => "model",
            Basis::Disk => "this disk",
            Basis::Cpu => "this CPU",
            Basis::Count => "counted",
        }
    }
}

/// The best value that any method can reach.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub what: &'static str,
    /// In the unit of the row.
    pub value: f64,
}

/// One comparison: a mechanism off and on.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub what: String,
    pub before_is: &'static str,
    pub after_is: &'static str,
    /// Both of the same round: the one with the median ratio.
    pub before: f64,
    pub after: f64,
    pub unit: &'static str,
    pub direction: Direction,
    /// How many times better `after` is in that round; none if that is not finite.
    pub ratio: Option<f64>,
    /// The ratios of all rounds.
    pub ratios: Vec<f64>,
    /// The published ratio.
    pub published: Option<f64>,
    pub limit: Option<Limit>,
    pub basis: Basis,
}

impl Row {
    /// A row of the figures of all rounds; `before[n]` and `after[n]` are of the same round.
    pub fn new(
        what: impl Into<String>,
        (before_is, before): (&'static str, &[f64]),
        (after_is, after): (&'static str, &[f64]),
        (unit, direction, basis): (&'static str, Direction, Basis),
    ) -> Row {
        let ratios = match direction {
            Direction::LowerIsBetter => ratios(before, after),
            Direction::HigherIsBetter => ratios(after, before),
        };
        let of_round = |all: &[f64], nth: usize| all.get(nth).copied();
        let round = median_at(&ratios);
        let at = |all: &[f64]| round.and_then(|nth| of_round(all, nth)).unwrap_or(f64::NAN);
        let ratio = at(&ratios);
        Row {
            what: what.into(),
            before_is,
            after_is,
            before: at(before),
            after: at(after),
            unit,
            direction,
            ratio: ratio.is_finite().then_some(ratio),
            ratios,
            published: None,
            limit: None,
            basis,
        }
    }

    /// Adds the published ratio.
    #[must_use]
    pub fn published(self, ratio: f64) -> Row {
        Row { published: Some(ratio), ..self }
    }

    /// Adds the limit.
    #[must_use]
    pub fn limit(self, what: &'static str, value: f64) -> Row {
        Row { limit: Some(Limit { what, value }), ..self }
    }

    /// The smallest and the largest ratio of the rounds; none of a single round.
    pub fn range(&self) -> Option<(f64, f64)> {
        let are_finite = self.ratios.len() > 1 && self.ratios.iter().all(|r| r.is_finite());
        let all = || self.ratios.iter().copied();
        are_finite.then(|| (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max)))
    }

    /// Whether the rounds agree; none of a single round.
    pub fn verdict(&self) -> Option<String> {
        let ((low, high), rounds) = (self.range()?, self.ratios.len());
        Some(match () {
            () if low > 1.0 => format!("better in all {rounds} rounds"),
            () if high < 1.0 => format!("worse in all {rounds} rounds"),
            () if low == high => format!("the same in all {rounds} rounds"),
            () => "noise exceeds effect".to_owned(),
        })
    }

    /// The ratio that a method at the limit would have.
    pub fn limit_ratio(&self) -> Option<f64> {
        let of_limit = self.ratio? / self.share()?;
        of_limit.is_finite().then_some(of_limit)
    }

    /// The share of the limit that is reached.
    pub fn share(&self) -> Option<f64> {
        let limit = self.limit.as_ref()?.value;
        let share = match self.direction {
            Direction::LowerIsBetter => limit / self.after,
            Direction::HigherIsBetter => self.after / limit,
        };
        share.is_finite().then_some(share)
    }

    fn json(&self, scenario: &str) -> Value {
        let limit = self.limit.as_ref();
        json!({
            "scenario": scenario,
            "what": self.what,
            "before_is": self.before_is,
            "before": figure(self.before),
            "after_is": self.after_is,
            "after": figure(self.after),
            "unit": self.unit,
            "ratio": self.ratio.map(figure),
            "ratio_low": self.range().map(|(low, _)| figure(low)),
            "ratio_high": self.range().map(|(_, high)| figure(high)),
            "rounds": self.ratios.len(),
            "verdict": self.verdict(),
            "published_ratio": self.published,
            "limit_is": limit.map(|l| l.what),
            "limit": limit.map(|l| figure(l.value)),
            "share_of_limit": self.share().map(figure),
            "decides": self.basis.word(),
        })
    }
}

/// A JSON number of six digits; whole numbers, such as counts, keep all digits.
pub(crate) fn figure(value: f64) -> Value {
    if !value.is_finite() {
        return Value::Null;
    }
    let is_whole = |value: f64| value.fract() == 0.0 && value.abs() < 1e15;
    if is_whole(value) {
        return json!(value as i64);
    }
    let unit = 10_f64.powi(5 - value.abs().log10().floor() as i32);
    let rounded = (value * unit).round() / unit;
    if is_whole(rounded) { json!(rounded as i64) } else { json!(rounded) }
}

/// The kind of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From point to point.
    Lines,
    /// Each point holds until the next.
    Steps,
    /// Groups of bars, one for each label; x is the index of the label.
    Bars,
}

/// One line, or the bars of one colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A series of these points.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), points: points.into_iter().collect() }
    }
}

/// A value beside which a plot is to be judged, such as a published one.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// A place on the x axis of lines or steps.
    Line { x: f64, label: String },
    /// What a group of bars would reach, by the published ratio.
    Published { group: usize, y: f64 },
}

/// A plot of some series.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its id in the page.
    pub id: String,
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub kind: Kind,
    /// Whether the y axis is logarithmic.
    pub is_log: bool,
    /// The labels of groups of bars.
    pub labels: Vec<String>,
    pub series: Vec<Series>,
    pub marks: Vec<Mark>,
}

/// The label of the sizes up to `kib` KiB.
pub(crate) fn size_label(kib: u64) -> String {
    match kib {
        u64::MAX => "more".to_owned(),
        k if k >= 1024 => format!("{}M", k / 1024),
        k => format!("{k}K"),
    }
}

/// Bars of counts by size, a series for each of `counted`.
pub(crate) fn size_bars(
    (id, title): (&str, &str),
    (x, y): (&'static str, &'static str),
    counted: &[(&str, crate::size_counter::SizeCounts)],
) -> Plot {
    let mut sizes: Vec<u64> = counted.iter().flat_map(|(_, s)| s.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let series = |(name, of): &(&str, crate::size_counter::SizeCounts)| {
        let at = |kib: &u64| sizes.iter().position(|s| s == kib).unwrap_or(0) as f64;
        Series::new(*name, of.iter().map(|(kib, n)| (at(kib), *n as f64)))
    };
    Plot {
        id: id.to_owned(),
        title: title.to_owned(),
        x,
        y,
        kind: Kind::Bars,
        is_log: true,
        labels: sizes.iter().map(|kib| size_label(*kib)).collect(),
        series: counted.iter().map(series).collect(),
        marks: Vec::new(),
    }
}

/// Whether a goal must be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    Required,
    /// More than is required: it may be missed.
    Stretch,
    /// Required at the published sizes only, and this run has others.
    FullSizeOnly,
}

impl Requirement {
    fn word(self) -> &'static str {
        match self {
            Requirement::Required => "",
            Requirement::Stretch => "beyond",
            Requirement::FullSizeOnly => "not judged at this size",
        }
    }
}

/// A bound of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    pub what: String,
    pub figure: f64,
    pub bound: f64,
    pub is_at_most: bool,
    pub requirement: Requirement,
}

impl Goal {
    pub fn is_met(&self) -> bool {
        if self.is_at_most { self.figure <= self.bound } else { self.figure >= self.bound }
    }

    /// Whether it is missed although it is required.
    pub fn is_missed(&self) -> bool {
        !self.is_met() && self.requirement == Requirement::Required
    }

    /// A table of all goals with their results.
    pub fn table(goals: &[Goal]) -> Table {
        let mut table = Table::new(
            "Goals (`beyond`: more than is asked for)",
            &["goal"],
            &["is", "wanted", "", ""],
        );
        for goal in goals {
            let sign = if goal.is_at_most { "<=" } else { ">=" };
            let wanted = format!("{sign} {:.2}", goal.bound);
            let met = if goal.is_met() { "met" } else { "MISSED" };
            let words = [met, goal.requirement.word()].map(str::to_owned);
            let figures = [fixed(goal.figure, 3), wanted].into_iter().chain(words);
            table.row(&[&goal.what], figures);
        }
        table
    }
}

/// The result of one scenario.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    pub name: &'static str,
    /// The mechanism off and on.
    pub rows: Vec<Row>,
    /// All details, as `make bench-*` prints them.
    pub tables: Vec<Table>,
    /// Bounds that the figures must keep.
    pub goals: Vec<Goal>,
    pub plots: Vec<Plot>,
    /// Keys of the JSON object.
    pub keys: Map<String, Value>,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// Why the scenario could not be run.
    pub error: Option<String>,
}

impl Section {
    /// A scenario that could not be run.
    pub fn failed(name: &'static str, error: String) -> Section {
        Section { name, error: Some(error), ..Section::default() }
    }

    /// Adds a key of the JSON object.
    pub fn put(&mut self, key: impl Into<String>, value: f64) {
        self.keys.insert(key.into(), figure(value));
    }

    /// Adds all of another section.
    pub fn append(&mut self, other: Section) {
        self.rows.extend(other.rows);
        self.tables.extend(other.tables);
        self.goals.extend(other.goals);
        self.plots.extend(other.plots);
        self.keys.extend(other.keys);
        self.notes.extend(other.notes);
    }
}

/// The results of all scenarios.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Whether it was measured in virtual time.
    pub is_simulated: bool,
    /// What was run: command, version, size.
    pub run: Vec<(&'static str, String)>,
    /// The description of the machine; empty in virtual time.
    pub facts: Vec<(&'static str, String)>,
    pub sections: Vec<Section>,
}

impl Report {
    /// Whether every scenario could be run.
    pub fn is_complete(&self) -> bool {
        self.sections.iter().all(|s| s.error.is_none())
    }

    /// One JSON object: all rows, and the keys of each scenario.
    pub fn json(&self) -> Value {
        let rows = self.sections.iter().flat_map(|s| s.rows.iter().map(|r| r.json(s.name)));
        let rows: Vec<Value> = rows.collect();
        let object = |pairs: &[(&'static str, String)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
            Value::Object(pairs.collect())
        };
        let mut out = Map::new();
        out.insert("bench".into(), json!("reproduce"));
        out.insert("simulated".into(), json!(self.is_simulated));
        out.insert("run".into(), object(&self.run));
        out.insert("machine".into(), object(&self.facts));
        out.insert("rows".into(), json!(rows));
        for section in &self.sections {
            let mut keys = section.keys.clone();
            keys.insert("notes".into(), json!(section.notes));
            if let Some(error) = &section.error {
                keys.insert("error".into(), json!(error));
            }
            out.insert(section.name.into(), Value::Object(keys));
        }
        Value::Object(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(direction: Direction, before: &[f64], after: &[f64]) -> Row {
        Row::new("x", ("off", before), ("on", after), ("s", direction, Basis::Model))
    }

    #[test]
    fn a_ratio_says_how_many_times_better_in_either_direction() {
        let less = row(Direction::LowerIsBetter, &[99.2], &[44.0]).limit("one pass", 14.3);
        assert!((less.ratio.unwrap() - 2.2545).abs() < 1e-3);
        assert!((less.share().unwrap() - 0.325).abs() < 1e-3);
        let more = row(Direction::HigherIsBetter, &[50.0], &[100.0]).limit("raw", 200.0);
        assert_eq!((more.ratio, more.share()), (Some(2.0), Some(0.5)));
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_and_must_be_finite() {
        let rounds = row(Direction::LowerIsBetter, &[10.0, 20.0, 90.0], &[10.0, 10.0, 10.0]);
        assert_eq!((rounds.before, rounds.ratio), (20.0, Some(2.0)));
        assert_eq!(row(Direction::LowerIsBetter, &[1.0], &[0.0]).ratio, None);
    }

    #[test]
    fn figures_and_ratio_are_of_one_round_and_agree() {
        // Found in a report: columns 0.59 and 0.61 beside a ratio of 1.26.
        let (before, after) = ([0.59, 0.90, 0.50], [0.61, 0.58, 0.65]);
        let row = row(Direction::LowerIsBetter, &before, &after);
        assert_eq!((row.before, row.after), (0.59, 0.61));
        assert!((row.ratio.unwrap() - row.before / row.after).abs() < 1e-12);
        assert_eq!(row.verdict().as_deref(), Some("noise exceeds effect"));
    }

    #[test]
    fn a_verdict_needs_rounds_that_agree() {
        let verdict = |after: &[f64]| row(Direction::LowerIsBetter, &[2.0, 2.0], after).verdict();
        assert_eq!(verdict(&[1.0, 1.5]).as_deref(), Some("better in all 2 rounds"));
        assert_eq!(verdict(&[4.0, 3.0]).as_deref(), Some("worse in all 2 rounds"));
        assert_eq!(verdict(&[2.0, 2.0]).as_deref(), Some("the same in all 2 rounds"));
        assert_eq!(verdict(&[1.0, 3.0]).as_deref(), Some("noise exceeds effect"));
        assert_eq!(verdict(&[1.0]), None);
    }

    #[test]
    fn keys_have_six_digits_and_counts_all() {
        assert_eq!(figure(44.000_049), json!(44));
        assert_eq!(figure(0.123_456_789), json!(0.123_457));
        assert_eq!(figure(1_234_567.4), json!(1_234_570));
        assert_eq!(figure(1_234_567.0), json!(1_234_567));
        assert_eq!(figure(f64::NAN), Value::Null);
        assert_eq!(figure(0.0), json!(0));
    }
}
