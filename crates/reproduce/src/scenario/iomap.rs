// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback of a page cache: the mapping called once a page, and once a run.
use std::path::Path;

use super::{GIB, MIB, ROUNDS, Told, mib};
use crate::cpu::{cpus, pin, pin_to};
use crate::iomap::ground::{Ground, LeafKind, Mapping};
use crate::iomap::pass::{Ask, Pass, Pattern, Work, memcpy_s};
use crate::median::median;
use crate::report::{Better, Decides, Kind, Plot, Row, Section, Series, size_bars};

/// System CPU of the published writer: 4.81 % with a call a page, 2.72 % with one a run.
const PUBLISHED_RATIO: f64 = 4.81 / 2.72;
/// The device is so many times as large as what is dirty.
const DEVICE_TIMES: u64 = 4;

/// Passes of one leaf, mapping and pattern.
struct Passes {
    name: String,
    single: Vec<Pass>,
    multi: Vec<Pass>,
}

impl Passes {
    fn of(passes: &[Pass], field: impl Fn(&Pass) -> f64) -> Vec<f64> {
        passes.iter().map(field).collect()
    }

    fn row(
        &self,
        what: &str,
        field: fn(&Pass) -> f64,
        per: f64,
        (unit, decides): (&'static str, Decides),
    ) -> Row {
        let of = |passes| Passes::of(passes, |p| field(p) / per);
        let (single, multi) = (of(&self.single), of(&self.multi));
        Row::new(
            format!("{what}, {}", self.name),
            ("once a page", &single),
            ("once a run", &multi),
            (unit, Better::Less, decides),
        )
    }
}

fn measure(
    ground: &Ground,
    name: String,
    pattern: Pattern,
    (size_mib, rounds): (u64, usize),
) -> Result<Passes, String> {
    let work = Work::new(ground, pattern, size_mib)?;
    let mut passes = Passes { name, single: Vec::new(), multi: Vec::new() };
    let mut nth = 0;
    let mut run = |ask, compare| {
        nth += 1;
        work.run(ask, nth, compare)
    };
    if rounds > 1 {
        // What is first pays for memory that nobody had before.
        for ask in [Ask::Single, Ask::Multi] {
            run(ask, true)?;
        }
    }
    for round in 0..rounds {
        let compare = round + 1 == rounds;
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => passes.single.push(run(Ask::Single, compare)?),
                _ => passes.multi.push(run(Ask::Multi, compare)?),
            }
        }
    }
    work.end()?;
    Ok(passes)
}

fn plots(all: &[Passes], per_mib: f64) -> Vec<Plot> {
    let calls = |name: &str, of: fn(&Passes) -> &[Pass]| {
        let calls = |p: &Passes| median(&Passes::of(of(p), |p| p.map_calls)) / per_mib;
        Series::new(name, all.iter().enumerate().map(|(at, p)| (at as f64, calls(p))))
    };
    let sizes: Vec<(&str, _)> =
        all.iter().filter_map(|p| Some((p.name.as_str(), p.multi.last()?.sizes.clone()))).collect();
    vec![
        Plot {
            id: "map-calls".into(),
            title: "Map calls of writeback".into(),
            x: "leaf, mapping, pattern",
            y: "calls a MiB",
            kind: Kind::Bars,
            is_log: true,
            labels: all.iter().map(|p| p.name.clone()).collect(),
            series: vec![calls("once a page", |p| &p.single), calls("once a run", |p| &p.multi)],
        },
        size_bars(
            ("ioend-sizes", "Ioends by size, once a run"),
            ("up to so many bytes", "ioends"),
            &sizes,
        ),
    ]
}

fn keys_of_calls(section: &mut Section, of: &Passes, size_mib: u64) {
    let per_mib = |passes: &[Pass]| median(&Passes::of(passes, |p| p.map_calls)) / size_mib as f64;
    section.put("single_map_calls_per_mib", per_mib(&of.single));
    section.put("multi_map_calls_per_mib", per_mib(&of.multi));
}

pub(super) fn simulated(size: u64, told: Told<'_>) -> Result<Section, String> {
    let size_mib = size / MIB;
    let mut all = Vec::new();
    let cases = [
        (Mapping::Linear, Pattern::Seq),
        (Mapping::Linear, Pattern::Rand),
        (Mapping::Striped, Pattern::Seq),
    ];
    for (nth, (mapping, pattern)) in cases.into_iter().enumerate() {
        let name = [mapping.key(), pattern.key()].join(" ");
        told(nth as f64 / cases.len() as f64, &format!("writeback, {name}"));
        let bytes = size_mib * MIB * DEVICE_TIMES;
        let ground = Ground::new(LeafKind::Model, mapping, bytes, Path::new("/"))?;
        all.push(measure(&ground, name, pattern, (size_mib, 1))?);
    }
    let mut section = Section { name: "iomap", ..Section::default() };
    let per_mib = size_mib as f64;
    let counted = Decides::Count;
    for passes in &all {
        section.rows.push(passes.row("map calls", |p| p.map_calls, per_mib, ("a MiB", counted)));
    }
    keys_of_calls(&mut section, &all[0], size_mib);
    section.plots = plots(&all, per_mib);
    section.notes.push(format!(
        "{} dirty; virtual time has no CPU: what can be counted exactly is, and the published \
         CPU ratio of {PUBLISHED_RATIO:.2} is the matter of a run on a machine",
        mib(size_mib * MIB)
    ));
    Ok(section)
}

pub(super) fn real(dir: &Path, size: u64, told: Told<'_>) -> Result<Section, String> {
    let home = cpus();
    if let Some(cpu) = home.first() {
        pin(*cpu).map_err(|e| format!("cannot pin to CPU {cpu}: {e}"))?;
    }
    let done = pinned(dir, size / MIB, told);
    pin_to(&home).map_err(|e| format!("cannot unpin: {e}"))?;
    done
}

fn pinned(dir: &Path, size_mib: u64, told: Told<'_>) -> Result<Section, String> {
    let cases = [
        (LeafKind::Null, Pattern::Seq),
        (LeafKind::Null, Pattern::Rand),
        (LeafKind::File, Pattern::Seq),
    ];
    let (mut all, mut memcpy) = (Vec::new(), Vec::new());
    for (nth, (leaf, pattern)) in cases.into_iter().enumerate() {
        let name = [leaf.key(), "linear", pattern.key()].join(" ");
        told(nth as f64 / cases.len() as f64, &format!("writeback, {name}"));
        let bytes = size_mib * MIB * DEVICE_TIMES;
        let ground = Ground::new(leaf, Mapping::Linear, bytes, dir)?;
        all.push(measure(&ground, name, pattern, (size_mib, ROUNDS + 2))?);
        memcpy.push(memcpy_s(size_mib));
    }
    let gib = (size_mib * MIB) as f64 / GIB;
    let memcpy_s_per_gib = median(&memcpy) / gib;
    let mut section = Section { name: "iomap", ..Section::default() };
    let unit = ("CPU s a GiB", Decides::Cpu);
    for passes in &all {
        let row = passes.row("writeback", |p| p.writeback_cpu_s, gib, unit);
        // What was published was written in order.
        let is_same = passes.name.ends_with(Pattern::Seq.key());
        section.rows.push(if is_same { row.published(PUBLISHED_RATIO) } else { row });
    }
    let whole = |p: &Pass| p.copy_cpu_s + p.writeback_cpu_s;
    let row = all[0].row("copy and writeback", whole, gib, unit);
    section.rows.push(row.limit("memcpy of the data", memcpy_s_per_gib));
    let plain = &all[0];
    let per_gib =
        |passes: &[Pass], field: fn(&Pass) -> f64| median(&Passes::of(passes, field)) / gib;
    section.put("single_cpu_s_per_gib", per_gib(&plain.single, |p| p.writeback_cpu_s));
    section.put("multi_cpu_s_per_gib", per_gib(&plain.multi, |p| p.writeback_cpu_s));
    section.put("copy_cpu_s_per_gib", per_gib(&plain.multi, |p| p.copy_cpu_s));
    section.put("memcpy_cpu_s_per_gib", memcpy_s_per_gib);
    keys_of_calls(&mut section, plain, size_mib);
    section.plots = plots(&all, size_mib as f64);
    section.notes.push(format!(
        "{} dirty; CPU of this process with all its threads, the copy not counted in `writeback`; \
         `null` takes everything at once, over `file` the kernel's CPU counts too",
        mib(size_mib * MIB)
    ));
    Ok(section)
}
