// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stacks of pure mappings over memory: remapped in place, and cloned at every layer.
use std::path::Path;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, LocalFuture, Op, Sector};
use dm::{Dm, Resolver};
use queue::Mem;
use sim::{Machine, World};

use super::{Told, mib};
use crate::mapped::{Group, RANDREAD_512, Shape, Timed, time};
use crate::report::{Better, Decides, Kind, Plot, Row, Section, Series};

/// Published, 512 B reads by 12 jobs: 1970 MiB/s with a clone, 2238 without.
const PUBLISHED_RATIO: f64 = 2238.0 / 1970.0;
const SHAPES: [Shape; 5] =
    [Shape::Raw, Shape::Linear, Shape::Layers3, Shape::CloneLinear, Shape::CloneLayers3];
const TURNS: u32 = 15;
const TURN_MS: u32 = 100;
/// Requests that are counted in virtual time.
const REQUESTS: u64 = 10_000;
const READ_BYTES: usize = 512;

/// What one of the shapes came to, by its place in [`SHAPES`].
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
    }
}

pub(super) fn real(program: &Path, size: u64, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "random reads of 512 B, all stacks in turns");
    let group = Group {
        key: "",
        what: "",
        leaf: format!("mem:{size}"),
        sectors: size / 512,
        load: RANDREAD_512,
        shapes: &SHAPES,
    };
    let timed = time(program, &group, TURNS, TURN_MS)?;
    let of = |shape: Shape| -> Result<&Timed, String> {
        timed.iter().find(|t| t.shape == shape).ok_or_else(|| format!("no {}", shape.key()))
    };
    let raw = of(Shape::Raw)?;
    let mut section = Section { name: "noclone", ..Section::default() };
    for (what, clone, in_place) in [
        ("linear", Shape::CloneLinear, Shape::Linear),
        ("three layers", Shape::CloneLayers3, Shape::Layers3),
    ] {
        let row = Row::new(
            what,
            ("clone", &of(clone)?.turns_iops),
            ("in place", &of(in_place)?.turns_iops),
            ("IOPS", Better::More, Decides::Cpu),
        )
        .limit("the memory below", raw.iops);
        section.rows.push(if in_place == Shape::Linear {
            row.published(PUBLISHED_RATIO)
        } else {
            row
        });
    }
    for t in &timed {
        section.put(format!("{}_iops", t.shape.key()), t.iops);
    }
    section.put("ns_per_layer", of(Shape::Layers3)?.more_ns / 3.0);
    let points = timed.iter().enumerate().map(|(at, t)| (at as f64, t.iops / 1e6));
    let series = vec![Series::new("random reads", points)];
    section.plots.push(bars("million reads a second", "Mappings over memory", series));
    section.notes.push(format!(
        "{} of memory, random reads of 512 B, depth 32, one job, in process; instructions, \
         allocations and the way through FUSE need valgrind and fio: make bench-noclone",
        mib(size)
    ));
    Ok(section)
}

/// Knows one memory.
struct One(Rc<Mem>);

impl Resolver for One {
    fn open(&self, _word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let leaf: Rc<dyn BlockDevice> = self.0.clone();
        Box::pin(async move { Ok(leaf) })
    }
}

/// Bios at the leaf and clones that one request comes to.
async fn count(shape: Shape, size: u64) -> Result<(f64, f64), Error> {
    let (mem, sectors) = (Rc::new(Mem::new("mem", Sector::from_bytes(size))?), size / 512);
    let dm = Dm::new(Rc::new(One(mem.clone())));
    let layers = ["low", "mid", "top"];
    let mut top: Rc<dyn BlockDevice> = mem.clone();
    let mut devices = Vec::new();
    for nth in 0..usize::try_from(shape.layers()).expect("few layers") {
        let below = if nth == 0 { "mem" } else { layers[nth - 1] };
        let table = match nth {
            1 => format!("0 {sectors} striped 2 128 {below} 0 {below} {}", sectors / 2),
            _ => format!("0 {sectors} linear {below} 0"),
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

pub(super) fn simulated(size: u64, told: Told<'_>) -> Result<Section, String> {
    told(0.0, "requests through all stacks, counted");
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
    for (what, clone, in_place) in [
        ("linear", Shape::CloneLinear, Shape::Linear),
        ("three layers", Shape::CloneLayers3, Shape::Layers3),
    ] {
        section.rows.push(Row::new(
            format!("clones, {what}"),
            ("clone", &[of(clone).1]),
            ("in place", &[of(in_place).1]),
            ("a request", Better::Less, Decides::Count),
        ));
        section.rows.push(Row::new(
            format!("bios at the leaf, {what}"),
            ("clone", &[of(clone).0]),
            ("in place", &[of(in_place).0]),
            ("a request", Better::Less, Decides::Count),
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
