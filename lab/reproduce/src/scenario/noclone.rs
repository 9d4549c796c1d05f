// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stacks of pure mappings over memory: bios remapped in place, or cloned at every layer.
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, LocalFuture, Op, Sector};
use dm::{Dm, Resolver};
use queue::Mem;
use sim::{Machine, World};

use super::units::mib;
use crate::dm_bench::{Group, RANDREAD_512, SHAPES, Shape, Timing, time};
use crate::median::spread_percent;
use crate::report::{Basis, Direction, Kind, Mark, Plot, Row, Section, Series};
use crate::rounds::{Progress, Steps};
use crate::table::{Table, fixed};

/// Published, 512 B reads by 12 jobs: 1970 MiB/s with a clone, 2238 without.
const PUBLISHED_RATIO: f64 = 2238.0 / 1970.0;
const STRIPED: &[Shape] = &[Shape::Raw, Shape::Striped, Shape::CloneStriped];
/// Pairs of shapes: cloned at every layer, and remapped in place.
const PAIRS: [(&str, Shape, Shape); 2] = [
    ("linear", Shape::CloneLinear, Shape::Linear),
    ("three layers", Shape::CloneLayers3, Shape::Layers3),
];
/// Requests that are counted in virtual time.
const REQUESTS: u64 = 10_000;
const READ_BYTES: usize = 512;
/// Less memory than this gives no figures to compare: processors cache most of it. Chosen.
const TRIAL_BYTES: u64 = 16 << 20;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The first group, random reads of 512 B, has keys without a prefix.
    pub groups: Vec<Group>,
    pub turns: u32,
    pub turn_ms: u32,
}

impl Options {
    /// The options of `reproduce` for so much memory. A small size is a trial: it has
    /// fewer turns, and shorter ones.
    pub fn of_bytes(bytes: u64) -> Options {
        let groups = groups(bytes).into_iter().take(1).collect();
        let (turns, turn_ms) = if bytes < TRIAL_BYTES { (5, 20) } else { (15, 100) };
        Options { groups, turns, turn_ms }
    }
}

/// All groups that are timed: over so much memory, and over a null device.
pub fn groups(bytes: u64) -> Vec<Group> {
    let memory = |key, what, load, shapes| Group {
        key,
        what,
        leaf: format!("mem:{bytes}"),
        sectors: bytes / 512,
        load,
        shapes,
    };
    vec![
        memory("", "memory, randread 512 B, depth 32, 1 job", RANDREAD_512, &SHAPES),
        memory(
            "jobs2_",
            "memory, randread 512 B, depth 32, 2 jobs",
            &["--rw", "randread", "--bs", "512", "--iodepth", "32", "--jobs", "2"],
            &SHAPES,
        ),
        memory(
            "bs64k_",
            "memory, randread 64 KiB, depth 32, 1 job",
            &["--rw", "randread", "--bs", "64K", "--iodepth", "32"],
            STRIPED,
        ),
        // Writes: the null device fills the buffers of reads with zeroes, SPDK's does not.
        Group {
            key: "null_",
            what: "null, randwrite 4 KiB, depth 64, 1 job",
            leaf: "null:1G".into(),
            sectors: 1 << 21,
            load: &["--rw", "randwrite", "--bs", "4K", "--iodepth", "64"],
            shapes: &SHAPES,
        },
    ]
}

/// Runs the groups with the load generator.
///
/// # Errors
/// The error of the program.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Section, String> {
    let mut section = Section { name: "noclone", ..Section::default() };
    let mut steps = Steps::new(progress, options.groups.len());
    for group in &options.groups {
        steps.next(&format!("{}, all stacks in turns", group.what));
        let timed = time(group, options.turns, options.turn_ms)?;
        section.tables.push(table(group, &timed));
        put(&mut section, group, &timed);
        if group.key.is_empty() {
            section.rows = rows(&timed);
            let points = timed.iter().enumerate().map(|(at, t)| (at as f64, t.iops / 1e6));
            let series = vec![Series::new("random reads", points)];
            let mut plot = bars("million reads a second", "Mappings over memory", series);
            plot.marks.extend(published(&timed));
            section.plots.push(plot);
            section.notes.push(format!(
                "{} of memory, random reads of 512 B, depth 32, one job, in process; \
                 instructions, allocations and the way through FUSE need valgrind and fio: make \
                 bench-noclone",
                mib(group.sectors * 512)
            ));
        }
    }
    Ok(section)
}

fn rows(timed: &[Timing]) -> Vec<Row> {
    let turns = |shape| {
        let found = timed.iter().find(|t| t.shape == shape);
        found.map_or(&[][..], |t| &t.turns_iops)
    };
    let raw_iops = timed.iter().find(|t| t.shape == Shape::Raw).map_or(f64::NAN, |t| t.iops);
    let row = |(what, clone, in_place)| {
        let (before, after) = (("clone", turns(clone)), ("in place", turns(in_place)));
        let row = Row::new(what, before, after, ("IOPS", Direction::HigherIsBetter, Basis::Cpu));
        let row = row.limit("the memory below", raw_iops);
        if in_place == Shape::Linear { row.published(PUBLISHED_RATIO) } else { row }
    };
    PAIRS.map(row).to_vec()
}

fn table(group: &Group, timed: &[Timing]) -> Table {
    let head = ["IOPS", "+-%", "to raw", "ns", "ns over raw", "ns a layer"];
    let mut table = Table::new(group.what, &[""], &head);
    for t in timed {
        let figures = [
            (t.iops, 0),
            (spread_percent(&t.turns_iops), 0),
            (t.ratio, 3),
            (1e9 / t.iops, 1),
            (t.more_ns, 1),
            (t.more_ns / f64::from(t.shape.layers().max(1)), 1),
        ];
        table.row(&[t.shape.key()], figures.map(|(figure, digits)| fixed(figure, digits)));
    }
    table
}

fn put(section: &mut Section, group: &Group, timed: &[Timing]) {
    for t in timed {
        let key = |what: &str| format!("{}{}_{what}", group.key, t.shape.key());
        section.put(key("iops"), t.iops);
        if t.shape != Shape::Raw {
            section.put(key("ratio"), t.ratio);
            section.put(key("more_ns"), t.more_ns);
        }
        if t.shape == Shape::Layers3 && group.key.is_empty() {
            section.put("ns_per_layer", t.more_ns / f64::from(t.shape.layers()));
        }
    }
}

/// Where the published ratio would put linear, given how it is here with a clone.
fn published(timed: &[Timing]) -> Option<Mark> {
    let clone = timed.iter().find(|t| t.shape == Shape::CloneLinear)?;
    let group = timed.iter().position(|t| t.shape == Shape::Linear)?;
    Some(Mark::Published { group, y: clone.iops * PUBLISHED_RATIO / 1e6 })
}

/// A plot of bars, one for each of [`SHAPES`].
fn bars(y: &'static str, title: &str, series: Vec<Series>) -> Plot {
    Plot {
        id: "mappings".into(),
        title: title.to_owned(),
        x: "stack",
        y,
        kind: Kind::Bars,
        is_log: false,
        labels: SHAPES.map(|s| s.key().replace('_', " ")).to_vec(),
        series,
        marks: Vec::new(),
    }
}

/// Resolves every name to one memory device.
struct SingleLeaf(Rc<Mem>);

impl Resolver for SingleLeaf {
    fn open(&self, _word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let leaf: Rc<dyn BlockDevice> = self.0.clone();
        Box::pin(async move { Ok(leaf) })
    }
}

/// Bios at the leaf and clones for each request.
async fn count(shape: Shape, size: u64) -> Result<(f64, f64), Error> {
    let (mem, sectors) = (Rc::new(Mem::new("mem", Sector::from_bytes(size))?), size / 512);
    let dm = Dm::new(Rc::new(SingleLeaf(mem.clone())));
    let layers = ["low", "mid", "top"];
    let mut top: Rc<dyn BlockDevice> = mem.clone();
    let mut devices = Vec::new();
    for nth in 0..usize::try_from(shape.layers()).expect("few layers") {
        let below = if nth == 0 { "mem" } else { layers[nth - 1] };
        let is_striped = nth == 1 || matches!(shape, Shape::Striped | Shape::CloneStriped);
        let table = if is_striped {
            format!("0 {sectors} striped 2 128 {below} 0 {below} {}", sectors / 2)
        } else {
            format!("0 {sectors} linear {below} 0")
        };
        let device = dm.create(layers[nth], None, Some(&table)).await?;
        if shape.key().starts_with("clone") {
            dm.set_attribute(layers[nth], "mapping", "clone").await?;
        }
        top = device.clone();
        devices.push(device);
    }
    let buf = Buf::alloc(READ_BYTES);
    let before = mem.stats().of(Op::Read).ios;
    for nth in 0..REQUESTS {
        let at = Sector(nth * 7919 % sectors);
        let read = reactor::read(&*top, Class::Foreground, at, buf.all().into()).await;
        read.map_err(|status| Error::io(format!("a read: {status}")))?;
    }
    let bios = (mem.stats().of(Op::Read).ios - before) as f64;
    let clones = devices.iter().map(|d| d.clones()).sum::<u64>() as f64;
    Ok((bios / REQUESTS as f64, clones / REQUESTS as f64))
}

pub(super) fn simulated(size: u64, progress: Progress<'_>) -> Result<Section, String> {
    progress(0.0, "requests through all stacks, counted");
    let mut counted = Vec::new();
    for shape in SHAPES {
        let machine = Machine::boot(&World::calm(1), 1);
        let done = machine.block_on(count(shape, size));
        let done = done.map_err(|ended| format!("the simulation stopped: {ended:?}"))?;
        counted.push((shape, done.map_err(|e| e.chain())?));
    }
    let of = |shape: Shape| {
        let found = counted.iter().find(|(s, _)| *s == shape).expect("all shapes are counted");
        found.1
    };
    let mut section = Section { name: "noclone", ..Section::default() };
    for (what, clone, in_place) in PAIRS {
        section.rows.push(Row::new(
            format!("clones, {what}"),
            ("clone", &[of(clone).1]),
            ("in place", &[of(in_place).1]),
            ("a request", Direction::LowerIsBetter, Basis::Count),
        ));
        section.rows.push(Row::new(
            format!("bios at the leaf, {what}"),
            ("clone", &[of(clone).0]),
            ("in place", &[of(in_place).0]),
            ("a request", Direction::LowerIsBetter, Basis::Count),
        ));
    }
    for (shape, (bios, clones)) in &counted {
        section.put(format!("{}_bios_per_request", shape.key()), *bios);
        section.put(format!("{}_clones_per_request", shape.key()), *clones);
    }
    let clones = counted.iter().enumerate().map(|(at, (_, (_, clones)))| (at as f64, *clones));
    let bios = counted.iter().enumerate().map(|(at, (_, (bios, _)))| (at as f64, *bios));
    let series = vec![Series::new("bios at the leaf", bios), Series::new("clones", clones)];
    section.plots.push(bars("a request", "Mappings over memory: what a request comes to", series));
    section.notes.push(format!(
        "virtual time has no CPU: clones and bios are counted over {REQUESTS} requests; a clone is \
         one allocation. Published, with a clone and without: {PUBLISHED_RATIO:.2} times as fast"
    ));
    Ok(section)
}
