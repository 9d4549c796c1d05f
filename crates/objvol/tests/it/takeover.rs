// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several writers fight for one volume: each opens it while others are at work, stand still for
//! hours, or die; the store lies, and goes away. Every opening finds a prefix of what the writer
//! before it did, with all that was flushed. And the proof that the judge is awake: planted faults
//! are each caught.
use std::cell::Cell;
use std::rc::Rc;

use block::Nanos;
use objvol::{Fault, create};
use sim::{Machine, RunEnd, World, WorldRef, seeds};

use crate::bucket::{Bucket, BucketRef, Connection, Lies};
use crate::catalogue::Catalogue;
use crate::judge::{self, WriterLog};
use crate::writer::{Setup, Writer, run_bounded};

/// Writers of a seed, each on a core of its own, beside the one that makes the volume and the one
/// that reads it at the end.
const WRITERS_MAX: u64 = 6;
/// Longer than any request is late.
const QUIET: Nanos = Nanos::from_secs(3 * 3600);
/// Virtual time after which a seed hangs.
const HANGS: Nanos = Nanos::from_secs(72 * 3600);

enum Event {
    Kill(usize),
    Pause(usize, Nanos),
    Outage(Nanos),
}

fn draw_events(world: &WorldRef, writers: usize) -> Vec<(Nanos, Event)> {
    let rng = &mut world.borrow_mut().rng;
    let span = rng.pick(&[5_000_000_000, 60_000_000_000, 600_000_000_000, 3600 * 1_000_000_000]);
    let mut events = Vec::new();
    for _ in 0..rng.below(12) {
        let at = Nanos(rng.below(span));
        let writer = rng.index(writers);
        let long = rng.pick(&[1_000_000_000, 20_000_000_000, 3600 * 1_000_000_000]);
        let until = at + Nanos(rng.below(long));
        events.push((
            at,
            match rng.below(8) {
                0 | 1 => Event::Kill(writer),
                2 => Event::Outage(until),
                _ => Event::Pause(writer, until),
            },
        ));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

pub(crate) fn simulate(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    simulate_with(seed, fault, None, 0)
}

/// With read-ahead: the writers scan the volume.
pub(crate) fn simulate_ahead(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    simulate_with(seed, fault, None, 16 << 20)
}

/// With a catalogue the writers make and delete snapshots, which others read.
pub(crate) fn simulate_with(
    seed: u64,
    fault: Option<Fault>,
    catalogue: Option<&Rc<Catalogue>>,
    read_ahead: u64,
) -> Result<(), String> {
    let world = World::new(seed);
    let setup = Setup { read_ahead, ..Setup::draw(&world, fault) };
    let bucket = Bucket::new(&world);
    let count = world.borrow_mut().rng.range(2, WRITERS_MAX + 1);
    let mut machine = Machine::boot(&world, u16::try_from(count).unwrap() + 2);
    let store = Connection::new(&bucket);
    let made = machine.block_on(async move {
        create(Rc::new(store), &setup.geometry(), &setup.options("maker")).await
    });
    made.unwrap().map_err(|e| e.chain())?;
    let lies = Lies::draw(&mut world.borrow_mut().rng);
    bucket.borrow_mut().set_lies(lies);
    let stamps = Rc::new(Cell::new(0));
    let writers: Vec<Rc<Writer>> = (0..count)
        .map(|n| {
            let mut writer = Writer::of(&world, &bucket, setup, &format!("host{n}"), &stamps);
            writer.catalogue = catalogue.cloned();
            Rc::new(writer)
        })
        .collect();
    let span =
        world.borrow_mut().rng.pick(&[1, 5_000_000_000, 100_000_000_000, 7200 * 1_000_000_000]);
    for (core, writer) in (1..).zip(&writers) {
        let (start, requests, closes) = {
            let rng = &mut world.borrow_mut().rng;
            (Nanos(rng.below(span)), rng.range(1, 150), rng.chance_per_mille(300))
        };
        let late = world.borrow_mut().rng.pick(&[0, 0, 0, 0, 500, 900]);
        writer.connection.delay_segments(late);
        let writer = writer.clone();
        machine.spawn(core, async move {
            reactor::sleep(start).await;
            writer.work(requests, closes).await;
        });
    }
    if let Some(catalogue) = catalogue {
        let connection = Connection::new(&bucket);
        let reader = catalogue.clone().read_some(world.clone(), connection, setup);
        machine.spawn(u16::try_from(count).unwrap() + 1, reader);
    }
    run(&world, &bucket, &mut machine, &writers)?;
    finish(&world, &bucket, machine, &writers, &stamps)
}

/// Lets the writers work while things happen to them.
fn run(
    world: &WorldRef,
    bucket: &BucketRef,
    machine: &mut Machine,
    writers: &[Rc<Writer>],
) -> Result<(), String> {
    let catalogue = writers[0].catalogue.as_ref();
    let failure = || {
        let of_writers = writers.iter().find_map(|writer| writer.failure.borrow().clone());
        of_writers.or_else(|| catalogue.and_then(|catalogue| catalogue.failure.borrow().clone()))
    };
    for (at, event) in draw_events(world, writers.len()) {
        machine.run(|| world.borrow().now() >= at || failure().is_some());
        match event {
            Event::Kill(nth) => {
                machine.kill_process(u16::try_from(nth + 1).unwrap());
                writers[nth].has_ended.set(true);
            }
            Event::Pause(nth, until) => writers[nth].connection.pause_until(until),
            Event::Outage(until) => bucket.borrow_mut().set_outage(until),
        }
    }
    let have_ended = || writers.iter().all(|writer| writer.has_ended.get());
    let is_late = || world.borrow().now() > HANGS;
    let ended = machine.run(|| have_ended() || failure().is_some() || is_late());
    if let Some(why) = failure() {
        return Err(why);
    }
    if ended != RunEnd::Until || is_late() {
        return Err("the writers hang".into());
    }
    Ok(())
}

/// All writers die, everything that is late lands, and one more opens the volume, closes it, and
/// another one finds what it left.
fn finish(
    world: &WorldRef,
    bucket: &BucketRef,
    mut machine: Machine,
    writers: &[Rc<Writer>],
    stamps: &Rc<Cell<u64>>,
) -> Result<(), String> {
    let setup = writers[0].setup;
    let catalogue = writers[0].catalogue.clone();
    if catalogue.is_some() {
        machine.kill_process(u16::try_from(writers.len() + 1).unwrap());
    }
    for core in 1..=writers.len() {
        machine.kill_process(u16::try_from(core).unwrap());
    }
    machine.block_on(async { reactor::sleep(QUIET).await }).unwrap();
    bucket.borrow_mut().set_lies(Lies::default());
    let last = ["reader", "checker"].map(|host| Writer::new(world, bucket, setup, host, stamps));
    for (reader, requests) in last.iter().zip([30, 0]) {
        run_bounded(&machine, world, reader.clone().work(requests, true))
            .map_err(|stop| format!("{stop:?}"))?;
        if let Some(why) = reader.failure.borrow().clone() {
            return Err(why);
        }
    }
    let all = writers.iter().chain(&last);
    let logs: Vec<WriterLog> = all.map(|writer| writer.log.borrow().clone()).collect();
    if std::env::var("MILLPOND_SEED").is_ok() {
        for l in &logs {
            eprintln!("{} {:x?} flushed {} {:x?}", l.epoch, l.view, l.flushed, l.changes);
        }
        eprintln!("{setup:?}");
    }
    judge::check(&logs)?;
    let Some(catalogue) = catalogue else { return Ok(()) };
    let judged = catalogue.judge(Connection::new(bucket), setup, logs);
    run_bounded(&machine, world, judged).map_err(|stop| format!("{stop:?}"))?
}

#[test]
fn every_opening_finds_what_was_flushed_before_it() {
    seeds::run(300, |seed| simulate(seed, None));
}

#[test]
fn what_is_read_ahead_is_what_was_written_last() {
    seeds::run(200, |seed| simulate_ahead(seed, None));
}
