// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader of a stream and a random reader, each with one request at a time, over a disk that
//! spins: what each gets with and without `read_ahead`.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Class, Nanos, Sector, Target};
use reproduce::report::{Goal, Requirement, Section};
use reproduce::table::{Table, fixed};
use sim::model::{HddParams, Uniform};
use sim::{DiskSpec, Machine, Rng, World};
use writecache::{Config, WriteCache};

use super::BLOCK;

/// The disk: 64 GiB, so that a random read takes a long way of the head.
const BLOCKS: u64 = 16 << 20;
/// How long each pair of readers works.
const WORK: Nanos = Nanos(20_000_000_000);
/// How much faster a stream beside random reads must be, by its requests; what is left of these.
const FASTER_MIN: [(u64, f64); 2] = [(1, 40.0), (16, 3.0)];
const RANDOM_LEFT_MIN: f64 = 0.85;
/// Random reads alone.
const ALONE_LEFT_MIN: f64 = 1.0;

/// What the readers got in a second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    stream_mb: f64,
    random: f64,
}

/// Who reads: a stream by requests of so many blocks, and a random reader.
#[derive(Clone, Copy, Debug)]
struct Readers {
    stream_blocks: u64,
    random: bool,
}

fn run(readers: Readers, read_ahead: &str) -> Result<Rates, String> {
    let world = World::calm(1);
    let (origin, device) = {
        let mut w = world.borrow_mut();
        let spec = DiskSpec::hdd("origin", Sector(BLOCKS * BLOCK / 512), HddParams::textbook());
        let origin = w.add_disk(DiskSpec { keeps_data: false, ..spec });
        let model = Box::new(Uniform::new(2, 60_000, 90_000));
        let spec = DiskSpec::new("cache", Sector(64 << 11), model);
        let device = w.add_disk(DiskSpec { keeps_history: false, ..spec });
        (w.leaf(origin), w.leaf(device))
    };
    let line = format!("s origin cache 4096 4 read_cache 1 read_ahead {read_ahead}");
    let config = Config::parse(&line.split(' ').collect::<Vec<_>>()).map_err(|e| e.to_string())?;
    let sectors = Sector(BLOCKS * BLOCK / 512);
    let cache =
        WriteCache::new("wc", config, origin, device, sectors).map_err(|e| e.to_string())?;
    let machine = Machine::boot(&world, 1);
    let done = machine.block_on(async move {
        cache.clone().resume().await.map_err(|e| e.to_string())?;
        let counts = [Rc::new(Cell::new(0u64)), Rc::new(Cell::new(0u64))];
        let [streamed, random] = counts.clone();
        if readers.stream_blocks > 0 {
            let (cache, blocks) = (cache.clone(), readers.stream_blocks);
            reactor::spawn(async move {
                let mut at = 0;
                while read(&cache, at, blocks).await {
                    at += blocks;
                    streamed.set(at);
                }
            });
        }
        if readers.random {
            let cache = cache.clone();
            reactor::spawn(async move {
                let mut rng = Rng::new(3);
                while read(&cache, rng.below(BLOCKS), 1).await {
                    random.set(random.get() + 1);
                }
            });
        }
        reactor::sleep(WORK).await;
        let [streamed, random] = counts.map(|count| count.get() as f64);
        let seconds = WORK.0 as f64 / 1e9;
        Ok(Rates { stream_mb: streamed * BLOCK as f64 / 1e6 / seconds, random: random / seconds })
    });
    machine.kill();
    done.map_err(|_| "no power cut was planned".to_owned())?
}

/// Reads blocks; false when they do not lie on the device, or it is gone.
async fn read(cache: &Rc<WriteCache>, first: u64, blocks: u64) -> bool {
    if first + blocks > BLOCKS {
        return false;
    }
    let buf = Buf::alloc(usize::try_from(blocks * BLOCK).expect("of a request"));
    let at = Sector(first * BLOCK / 512);
    reactor::read(&**cache, Class::Foreground, at, buf.all().into()).await.is_ok()
}

/// Adds the rows, figures and goals of streams.
pub(super) fn add(section: &mut Section) -> Result<(), String> {
    let mut table = Table::new(
        "a stream and random reads of 4 KiB, one request each at a time (virtual time)".to_owned(),
        &["readers"],
        &["stream MB/s", "read ahead", "random/s", "read ahead"],
    );
    let mut goal = |what: String, figure: f64, bound: f64| {
        let requirement = Requirement::Required;
        section.goals.push(Goal { what, figure, bound, is_at_most: false, requirement });
    };
    let mut figures = Vec::new();
    for (name, stream_blocks, random) in [
        ("random", 0, true),
        ("stream of 4 KiB", 1, false),
        ("stream of 64 KiB", 16, false),
        ("stream of 4 KiB, random", 1, true),
        ("stream of 64 KiB, random", 16, true),
    ] {
        let readers = Readers { stream_blocks, random };
        let (off, on) = (run(readers, "0")?, run(readers, "16M")?);
        let rates = [off.stream_mb, on.stream_mb, off.random, on.random];
        table.row(&[name], rates.map(|rate| fixed(rate, 1)));
        let key = name.replace([' ', ','], "_").replace("__", "_");
        for (of, rate) in ["stream_mb_off", "stream_mb", "random_off", "random"].iter().zip(rates) {
            figures.push((format!("{key}_{of}"), rate));
        }
        match (stream_blocks > 0, random) {
            (false, _) => {
                goal(
                    format!("{name}: reads of those without"),
                    on.random / off.random,
                    ALONE_LEFT_MIN,
                );
            }
            (true, true) => {
                let bound = FASTER_MIN.into_iter().find(|(blocks, _)| *blocks == stream_blocks);
                let bound = bound.map_or(f64::NAN, |(_, faster)| faster);
                goal(format!("{name}: the stream's rate"), on.stream_mb / off.stream_mb, bound);
                goal(format!("{name}: random reads"), on.random / off.random, RANDOM_LEFT_MIN);
            }
            (true, false) => {}
        }
    }
    figures.into_iter().for_each(|(key, rate)| section.put(key, rate));
    section.tables.push(table);
    section.notes.push("read ahead: with read_ahead 16M; the disk reads nothing ahead".to_owned());
    Ok(())
}
