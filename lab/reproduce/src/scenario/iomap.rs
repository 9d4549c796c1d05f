// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback of a page cache, with one map call for each page and with one for each run, in turns
//! on the same cache. A null leaf shows our own CPU time, a file adds the kernel's, a model of a
//! disk gives counts only.
use std::path::Path;

use super::units::{GIB, MIB, ROUNDS, mib};
use crate::cpu::{cpus, pin, pin_to};
use crate::iomap::pass::{MapMode, Pass, Pattern, Work, memcpy_s};
use crate::iomap::test_bed::{LeafKind, Mapping, TestBed};
use crate::median::{median, median_of, median_ratio, spread_percent};
use crate::report::{Basis, Direction, Kind, Plot, Row, Section, Series, size_bars, size_label};
use crate::rounds::{Progress, Steps, turns};
use crate::table::{Table, fixed};

/// System CPU of the published writer: 4.81 % with a call a page, 2.72 % with one a run.
const PUBLISHED_RATIO: f64 = 4.81 / 2.72;
/// The size of the device as a multiple of the dirty data.
const DEVICE_TIMES: u64 = 4;
const MAP_MODES: [MapMode; 2] = [MapMode::PerPage, MapMode::PerRun];

/// The device and the order of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub leaf: LeafKind,
    pub mapping: Mapping,
    pub pattern: Pattern,
}

impl Case {
    /// Whether its keys have no prefix: in order through one linear mapping.
    fn is_plain(self) -> bool {
        let is_plain = matches!(self.leaf, LeafKind::Null | LeafKind::Model);
        is_plain && (self.mapping, self.pattern) == (Mapping::Linear, Pattern::Seq)
    }

    fn words(self) -> [&'static str; 3] {
        [self.leaf.key(), self.mapping.key(), self.pattern.key()]
    }

    fn name(self) -> String {
        self.words().join(" ")
    }

    /// All patterns and all mappings over this leaf.
    pub fn all(leaf: LeafKind) -> Vec<Case> {
        let mut cases = Vec::new();
        for mapping in [Mapping::Linear, Mapping::Striped] {
            cases.extend([Pattern::Seq, Pattern::Rand].map(|pattern| Case {
                leaf,
                mapping,
                pattern,
            }));
        }
        cases
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The case without a prefix comes first.
    pub cases: Vec<Case>,
    /// MiB of dirty data in each case.
    pub size_mib: u64,
    pub rounds: usize,
}

impl Options {
    /// The options of `reproduce` for so many dirty bytes.
    pub fn of_bytes(bytes: u64) -> Options {
        let linear = |leaf, pattern| Case { leaf, mapping: Mapping::Linear, pattern };
        let cases = vec![
            linear(LeafKind::Null, Pattern::Seq),
            linear(LeafKind::Null, Pattern::Rand),
            linear(LeafKind::File, Pattern::Seq),
        ];
        Options { cases, size_mib: bytes / MIB, rounds: ROUNDS + 2 }
    }

    /// The options of `reproduce --sim`.
    pub fn on_models(bytes: u64) -> Options {
        let on = |mapping, pattern| Case { leaf: LeafKind::Model, mapping, pattern };
        let cases = vec![
            on(Mapping::Linear, Pattern::Seq),
            on(Mapping::Linear, Pattern::Rand),
            on(Mapping::Striped, Pattern::Seq),
        ];
        // Counts are the same in every round.
        Options { cases, size_mib: bytes / MIB, rounds: 1 }
    }
}

/// The passes of a case, one of each mode in each round.
struct Passes {
    case: Case,
    single: Vec<Pass>,
    multi: Vec<Pass>,
}

impl Passes {
    fn by(&self, ask: MapMode) -> &[Pass] {
        match ask {
            MapMode::PerPage => &self.single,
            MapMode::PerRun => &self.multi,
        }
    }

    fn rounds(&self, ask: MapMode, figure: fn(&Pass) -> f64) -> Vec<f64> {
        self.by(ask).iter().map(figure).collect()
    }

    fn middle(&self, ask: MapMode, figure: fn(&Pass) -> f64) -> f64 {
        median_of(self.by(ask), figure)
    }

    fn multi_over_single(&self) -> f64 {
        let [single, multi] = MAP_MODES.map(|ask| self.rounds(ask, writeback));
        median_ratio(&multi, &single)
    }

    /// CPU time of writeback divided by that of copying in.
    fn over_copy(&self) -> f64 {
        self.middle(MapMode::PerRun, |p| p.writeback_cpu_s / p.copy_cpu_s)
    }

    fn row(
        &self,
        what: &str,
        figure: fn(&Pass) -> f64,
        per: f64,
        (unit, basis): (&'static str, Basis),
    ) -> Row {
        let of = |ask| self.by(ask).iter().map(|p| figure(p) / per).collect::<Vec<_>>();
        Row::new(
            format!("{what}, {}", self.case.name()),
            ("once a page", &of(MapMode::PerPage)),
            ("once a run", &of(MapMode::PerRun)),
            (unit, Direction::LowerIsBetter, basis),
        )
    }
}

fn writeback(pass: &Pass) -> f64 {
    pass.writeback_cpu_s
}

fn whole(pass: &Pass) -> f64 {
    pass.copy_cpu_s + pass.writeback_cpu_s
}

/// Runs the scenario with unnamed files in `dir`; on one CPU if CPU time is measured.
///
/// # Errors
/// The error of the file system or of a device.
pub fn run(dir: &Path, options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    let is_model = options.cases.iter().all(|case| case.leaf == LeafKind::Model);
    let home = cpus();
    if let Some(cpu) = home.first().filter(|_| !is_model) {
        pin(*cpu).map_err(|e| format!("cannot pin to CPU {cpu}: {e}"))?;
    }
    let done = measure(dir, options, progress);
    if !is_model {
        pin_to(&home).map_err(|e| format!("cannot unpin: {e}"))?;
    }
    Ok(done?.section())
}

fn measure<'a>(
    dir: &Path,
    options: &'a Options,
    progress: Progress<'_>,
) -> Result<Results<'a>, String> {
    let mut steps = Steps::new(progress, options.cases.len());
    let (mut all, mut memcpy) = (Vec::new(), Vec::new());
    for case in &options.cases {
        steps.next(&format!("writeback, {}", case.name()));
        let bytes = options.size_mib * MIB * DEVICE_TIMES;
        let test_bed = TestBed::new(case.leaf, case.mapping, bytes, dir)?;
        all.push(pass_by_turns(&test_bed, *case, options)?);
        if case.leaf != LeafKind::Model {
            memcpy.push(memcpy_s(options.size_mib));
        }
    }
    Ok(Results { options, all, memcpy })
}

fn pass_by_turns(test_bed: &TestBed, case: Case, options: &Options) -> Result<Passes, String> {
    let work = Work::new(test_bed, case.pattern, options.size_mib)?;
    let mut passes = Passes { case, single: Vec::new(), multi: Vec::new() };
    let mut nth = 0;
    let mut run = |ask, compare| {
        nth += 1;
        work.run(ask, nth, compare)
    };
    if case.leaf != LeafKind::Model {
        // The first pass of each mode is not measured: it pays for new memory.
        for ask in MAP_MODES {
            run(ask, true)?;
        }
    }
    for (round, at) in turns(options.rounds, MAP_MODES.len()) {
        let pass = run(MAP_MODES[at], round + 1 == options.rounds)?;
        match MAP_MODES[at] {
            MapMode::PerPage => passes.single.push(pass),
            MapMode::PerRun => passes.multi.push(pass),
        }
    }
    work.end()?;
    Ok(passes)
}

struct Results<'a> {
    options: &'a Options,
    all: Vec<Passes>,
    /// CPU seconds of a memcpy of as much data, for each case; empty in virtual time.
    memcpy: Vec<f64>,
}

impl Results<'_> {
    fn gib(&self) -> f64 {
        (self.options.size_mib * MIB) as f64 / GIB
    }

    fn mib(&self) -> f64 {
        self.options.size_mib as f64
    }

    fn section(&self) -> Section {
        let mut section = Section { name: "iomap", plots: self.plots(), ..Section::default() };
        let dirty = mib(self.options.size_mib * MIB);
        if self.memcpy.is_empty() {
            let counted = ("a MiB", Basis::Count);
            let rows =
                self.all.iter().map(|p| p.row("map calls", |p| p.map_calls, self.mib(), counted));
            section.rows = rows.collect();
            section.notes.push(format!(
                "{dirty} dirty; virtual time has no CPU: what can be counted exactly is, and the \
                 published CPU ratio of {PUBLISHED_RATIO:.2} is the matter of a run on a machine"
            ));
        } else {
            section.rows = self.cpu_rows();
            section.notes.push(format!(
                "{dirty} dirty; CPU of this process with all its threads, the copy not counted in \
                 `writeback`; `null` takes everything at once, over `file` the kernel's CPU \
                 counts too"
            ));
        }
        section.tables = vec![self.table(), self.size_table()];
        self.put(&mut section);
        section
    }

    fn cpu_rows(&self) -> Vec<Row> {
        let unit = ("CPU s a GiB", Basis::Cpu);
        let row = |passes: &Passes| {
            let row = passes.row("writeback", writeback, self.gib(), unit);
            // The published run wrote in order.
            let is_same = passes.case.pattern == Pattern::Seq;
            if is_same { row.published(PUBLISHED_RATIO) } else { row }
        };
        let mut rows: Vec<Row> = self.all.iter().map(row).collect();
        let memcpy_s_per_gib = median(&self.memcpy) / self.gib();
        let row = self.all[0].row("copy and writeback", whole, self.gib(), unit);
        rows.push(row.limit("memcpy of the data", memcpy_s_per_gib));
        rows
    }

    fn plots(&self) -> Vec<Plot> {
        let calls = |name: &str, ask: MapMode| {
            let calls = |p: &Passes| p.middle(ask, |p| p.map_calls) / self.mib();
            Series::new(name, self.all.iter().enumerate().map(|(at, p)| (at as f64, calls(p))))
        };
        let names: Vec<String> = self.all.iter().map(|p| p.case.name()).collect();
        let sizes: Vec<(&str, _)> = names
            .iter()
            .zip(&self.all)
            .filter_map(|(name, p)| Some((name.as_str(), p.multi.last()?.sizes.clone())))
            .collect();
        vec![
            Plot {
                id: "map-calls".into(),
                title: "Map calls of writeback".into(),
                x: "leaf, mapping, pattern",
                y: "calls a MiB",
                kind: Kind::Bars,
                is_log: true,
                labels: names.clone(),
                series: vec![
                    calls("once a page", MapMode::PerPage),
                    calls("once a run", MapMode::PerRun),
                ],
                marks: Vec::new(),
            },
            size_bars(
                ("ioend-sizes", "Ioends by size, once a run"),
                ("up to so many bytes", "ioends"),
                &sizes,
            ),
        ]
    }

    fn table(&self) -> Table {
        let title = format!(
            "CPU ms a GiB; {} MiB dirty, of a device of {} MiB; medians of {} rounds",
            self.options.size_mib,
            self.options.size_mib * DEVICE_TIMES,
            self.options.rounds
        );
        let figures = [
            "copy in",
            "single",
            "+-%",
            "multi",
            "+-%",
            "multi/single",
            "multi/copy in",
            "all/memcpy",
            "calls a MiB: single",
            "multi",
            "asked a MiB: single",
            "multi",
        ];
        let mut table = Table::new(title, &[""], &figures);
        let ms = |s: f64, digits| fixed(s / self.gib() * 1e3, digits);
        for passes in &self.all {
            let mut figures = vec![ms(passes.middle(MapMode::PerRun, |p| p.copy_cpu_s), 1)];
            for ask in MAP_MODES {
                let runs = passes.rounds(ask, writeback);
                figures.extend([ms(median(&runs), 2), fixed(spread_percent(&runs), 0)]);
            }
            figures.push(fixed(passes.multi_over_single(), 3));
            figures.push(fixed(passes.over_copy(), 3));
            figures.push(fixed(passes.middle(MapMode::PerRun, whole) / median(&self.memcpy), 2));
            for counted in [|p: &Pass| p.map_calls, |p: &Pass| p.map_questions] {
                let per_mib = |ask| fixed(passes.middle(ask, counted) / self.mib(), 2);
                figures.extend(MAP_MODES.map(per_mib));
            }
            table.row(&[&passes.case.name()], figures);
        }
        let spread = fixed(spread_percent(&self.memcpy), 0);
        table.note(format!("memcpy of as much: {}, +-{spread} %", ms(median(&self.memcpy), 1)));
        table
    }

    fn size_table(&self) -> Table {
        let title = "ioends by size, of one pass (multi)";
        let mut table = Table::new(title, &["", "up to so many bytes: how many"], &[]);
        for passes in &self.all {
            let Some(pass) = passes.multi.last() else { continue };
            let sizes = pass.sizes.iter().map(|(kib, n)| format!("{}: {n}", size_label(*kib)));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            table.row(&[&passes.case.name(), &sizes], []);
        }
        table
    }

    fn put(&self, section: &mut Section) {
        for passes in &self.all {
            self.put_case(section, &format!("{}_", passes.case.words().join("_")), passes);
            if passes.case.is_plain() {
                self.put_case(section, "", passes);
            }
        }
        if !self.memcpy.is_empty() {
            section.put("memcpy_cpu_s_per_gib", median(&self.memcpy) / self.gib());
        }
    }

    fn put_case(&self, section: &mut Section, prefix: &str, passes: &Passes) {
        let mut put = |name: &str, value: f64| section.put(format!("{prefix}{name}"), value);
        for ask in MAP_MODES {
            let word = ask.word();
            put(
                &format!("{word}_map_calls_per_mib"),
                passes.middle(ask, |p| p.map_calls) / self.mib(),
            );
            let asked = passes.middle(ask, |p| p.map_questions) / self.mib();
            put(&format!("{word}_map_questions_per_mib"), asked);
            put(&format!("{word}_ioends"), passes.middle(ask, |p| p.ioends));
        }
        // Virtual time has no CPU time.
        if !self.memcpy.is_empty() {
            for ask in MAP_MODES {
                let word = ask.word();
                let cpu_s = passes.middle(ask, writeback) / self.gib();
                put(&format!("{word}_cpu_s_per_gib"), cpu_s);
                let all_s = passes.middle(ask, whole) / self.gib();
                put(&format!("{word}_with_copy_cpu_s_per_gib"), all_s);
            }
            let copy_s = passes.middle(MapMode::PerRun, |p| p.copy_cpu_s) / self.gib();
            put("copy_cpu_s_per_gib", copy_s);
            put("multi_over_single_cpu", passes.multi_over_single());
            put("multi_over_copy_cpu", passes.over_copy());
        }
        let Some(pass) = passes.multi.last() else { return };
        let name = |kib: u64| if kib == u64::MAX { "larger".into() } else { kib.to_string() };
        let sizes = pass.sizes.iter().map(|(kib, n)| (name(*kib), (*n).into())).collect();
        section.keys.insert(format!("{prefix}ioends_by_kib"), serde_json::Value::Object(sizes));
    }
}
