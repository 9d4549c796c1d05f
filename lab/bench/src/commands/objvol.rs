// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-objvol`: a volume on a model of an object store, in virtual time: how much of the
//! store's bandwidth small random writes get, how many flushes a second there are, alone and below
//! an `ordered` write cache, what readers cost, and what garbage collection writes. And in real
//! time, how much CPU the opening of a large volume takes.
mod garbage;

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;

use bench::output::{finish, progress};
use bench::store_model::StoreModel;
use block::{BlockDevice, Buf, Class, Flags, Nanos, Op, Sector, Target};
use objvol::{Geometry, ObjectStore, OpenOptions, RequestCounts, Volume};
use reproduce::cpu::cpu_seconds;
use reproduce::report::{Goal, Requirement, Section};
use reproduce::table::{Table, fixed};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, Rng, World, WorldRef};
use writecache::{Config, WriteCache};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const EXTENTS_DEFAULT: u64 = 1_000_000;
/// The store: answers of S3 in the same region, and a line of 2 Gbit/s.
const LATENCY: Nanos = Nanos::from_millis(50);
const BYTES_PER_S: u64 = 250_000_000;
/// Segments of the usual volume, and how many are in flight.
const SEGMENT: u64 = 4 << 20;
const WINDOW: u64 = 8;
/// Clients that write at once.
const CLIENTS: u64 = 32;
const VOLUME: Sector = Sector((4 << 30) / 512);
/// Cache devices below which the bandwidth is measured; the goal is of the last one.
const CACHES_MIB: [u64; 2] = [64, 256];
/// Volume of the reads, and those at random.
const READ_VOLUME: u64 = 256 * MIB;
const RANDOM_READS: u64 = 2000;

/// Measures a volume on a model of an object store
///
/// All but the last table is in virtual time: the same arguments print the same figures on every
/// machine. A goal that is missed makes the exit status 1. Stores of others are not compared:
/// docs/performance.md has a run beside s3backer by hand.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-objvol
  make bench-objvol ARGS='--mib 64 --extents 100000'")]
pub(crate) struct Args {
    /// MiB that are written at random, for the bandwidth
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u64).range(8..=4096))]
    mib: u64,
    /// Seconds (virtual) in which flushes are counted
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// Overwrites of a volume of 32 MiB with small segments, for what garbage collection writes
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(10_000..=10_000_000))]
    overwrites: u64,
    /// The same of a volume of 1 GiB with usual segments, which the goals are of; 0: none
    #[arg(long, value_name = "N", default_value_t = 3_200_000,
          value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    usual_overwrites: u64,
    /// Extents of the volume of a TiB whose opening takes CPU
    #[arg(long, value_name = "N", default_value_t = EXTENTS_DEFAULT,
          value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    extents: u64,
}

/// Runs `work` on a simulated machine with a store.
fn in_model<T: 'static, F: Future<Output = Result<T, String>> + 'static>(
    work: impl FnOnce(StoreModel, WorldRef) -> F,
) -> Result<T, String> {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let store = StoreModel::new(LATENCY, BYTES_PER_S);
    let done = machine.block_on(work(store, world));
    machine.kill();
    done.map_err(|_| "no power cut was planned".to_owned())?
}

fn options() -> OpenOptions {
    OpenOptions::new("bench", 0)
}

/// Makes a volume in the store, and opens it.
async fn make(store: &StoreModel, geometry: &Geometry) -> Result<Rc<Volume>, String> {
    let store: Rc<dyn ObjectStore> = Rc::new(store.clone());
    objvol::create(store.clone(), geometry, &options()).await.map_err(|e| e.chain())?;
    Volume::open(store, options()).await.map_err(|e| e.chain())
}

/// An `ordered` write cache over a volume, on a fast disk of so many MiB.
async fn cache_over(
    volume: &Rc<Volume>,
    world: &WorldRef,
    mib: u64,
) -> Result<Rc<WriteCache>, String> {
    let device = {
        let mut world = world.borrow_mut();
        let model = Box::new(Uniform::new(8, 20_000, 60_000));
        let spec = DiskSpec::new("cache", Sector(mib * MIB / 512), model);
        let disk = world.add_disk(DiskSpec { keeps_history: false, ..spec });
        world.leaf(disk)
    };
    let words = ["s", "far", "cache", "4096", "1", "ordered"];
    let config = Config::parse(&words).map_err(|e| e.chain())?;
    let cache = WriteCache::new("wc", config, volume.clone(), device, VOLUME);
    let cache = cache.map_err(|e| e.chain())?;
    cache.clone().resume().await.map_err(|e| e.chain())?;
    Ok(cache)
}

async fn write(device: &dyn BlockDevice, block: u64, data: &Buf) -> Result<(), String> {
    let sectors = data.len() as u64 / 512;
    let range = (Sector(block * sectors), Sector(sectors));
    let (flags, bufs) = (Flags::empty(), data.all().into());
    let written = reactor::io(device, Op::Write, flags, Class::Normal, range, bufs).await;
    written.map_err(|status| format!("block {block}: {status}"))
}

/// Runs tasks that work until `next` has no more numbers, and waits for all.
async fn run_clients<F: Future<Output = Result<(), String>> + 'static>(
    count: u64,
    mut client: impl FnMut(u64) -> F,
) -> Result<(), String> {
    let (left, failed) = (Rc::new(Cell::new(count)), Rc::new(Cell::new(None)));
    let ended = Rc::new(reactor::WaitList::new());
    for nth in 0..count {
        let (work, left, failed, ended) =
            (client(nth), left.clone(), failed.clone(), ended.clone());
        reactor::spawn(async move {
            if let Err(why) = work.await {
                failed.set(Some(why));
            }
            left.set(left.get() - 1);
            ended.wake_all();
        });
    }
    ended.wait_for(|| left.get() == 0).await;
    failed.take().map_or(Ok(()), Err)
}

fn seconds_since(began: Nanos) -> f64 {
    (reactor::now().0 - began.0) as f64 / 1e9
}

/// MB/s of PUTs of whole segments, as many at once as a volume sends.
async fn plain_puts(store: StoreModel, mib: u64) -> Result<f64, String> {
    let (began, next) = (reactor::now(), Rc::new(Cell::new(0u64)));
    let count = (mib * MIB).div_ceil(SEGMENT);
    run_clients(WINDOW, |_| {
        let (store, next) = (store.clone(), next.clone());
        async move {
            let object = Buf::zeroed(usize::try_from(SEGMENT).map_err(|e| e.to_string())?);
            while next.get() < count {
                next.set(next.get() + 1);
                let put = store.put_absent(&next.get().to_string(), object.clone()).await;
                put.map_err(|e| e.to_string())?;
            }
            Ok(())
        }
    })
    .await?;
    Ok((count * SEGMENT) as f64 / 1e6 / seconds_since(began))
}

/// MB/s of random writes of 4 KiB by many clients, until the store has all.
async fn random_writes(
    device: Rc<dyn BlockDevice>,
    mib: u64,
    settle: impl Future<Output = Result<(), String>>,
) -> Result<f64, String> {
    let (began, left) = (reactor::now(), Rc::new(Cell::new(mib * MIB / BLOCK)));
    run_clients(CLIENTS, |nth| {
        let (device, left, mut rng) = (device.clone(), left.clone(), Rng::new(nth + 1));
        async move {
            let data = Buf::zeroed(usize::try_from(BLOCK).map_err(|e| e.to_string())?);
            while left.get() > 0 {
                left.set(left.get() - 1);
                write(&*device, rng.below(VOLUME.0 * 512 / BLOCK), &data).await?;
            }
            Ok(())
        }
    })
    .await?;
    settle.await?;
    Ok((mib * MIB) as f64 / 1e6 / seconds_since(began))
}

async fn flush(device: &dyn BlockDevice) -> Result<(), String> {
    reactor::flush(device, Class::Foreground).await.map_err(|status| status.to_string())
}

/// Has the cache write everything back.
async fn write_back(cache: &Rc<WriteCache>) -> Result<(), String> {
    let flushed = cache.clone().message(vec!["flush".to_owned()]).await;
    flushed.map(drop).map_err(|e| e.chain())
}

/// Writes of 4 KiB with a flush each, by so many clients, in a second.
async fn flushes(
    device: Rc<dyn BlockDevice>,
    clients: u64,
    time: Nanos,
    settle: impl Future<Output = Result<(), String>>,
) -> Result<f64, String> {
    let (began, count) = (reactor::now(), Rc::new(Cell::new(0u64)));
    run_clients(clients, |nth| {
        let (device, count, mut rng) = (device.clone(), count.clone(), Rng::new(nth + 1));
        async move {
            let data = Buf::zeroed(usize::try_from(BLOCK).map_err(|e| e.to_string())?);
            while reactor::now() < began + time {
                write(&*device, rng.below(VOLUME.0 * 512 / BLOCK), &data).await?;
                flush(&*device).await?;
                count.set(count.get() + 1);
            }
            Ok(())
        }
    })
    .await?;
    settle.await?;
    Ok(count.get() as f64 / seconds_since(began))
}

/// The bandwidth, and the goal.
fn bandwidth(args: &Args, section: &mut Section) -> Result<(), String> {
    let mib = args.mib;
    let plain = in_model(|store, _| plain_puts(store, mib))?;
    let alone = in_model(|store, _| async move {
        let volume = make(&store, &Geometry::new(VOLUME)).await?;
        random_writes(volume.clone(), mib, async { flush(&*volume).await }).await
    })?;
    let cached = |cache_mib| {
        in_model(move |store, world| async move {
            let volume = make(&store, &Geometry::new(VOLUME)).await?;
            let cache = cache_over(&volume, &world, cache_mib).await?;
            random_writes(cache.clone(), mib, async { write_back(&cache).await }).await
        })
    };
    let [small, cached] = CACHES_MIB.map(cached);
    let (small, cached) = (small?, cached?);
    let mut table = Table::new(
        format!("{mib} MiB in random writes of 4 KiB by {CLIENTS} clients (virtual time)"),
        &["written to"],
        &["MB/s", "of PUTs"],
    );
    for (name, figure) in [
        (format!("PUTs of 4 MiB, {WINDOW} at once"), plain),
        ("the volume".to_owned(), alone),
        (format!("an ordered cache of {} MiB over it", CACHES_MIB[0]), small),
        (format!("an ordered cache of {} MiB over it", CACHES_MIB[1]), cached),
    ] {
        table.row(&[&name], [fixed(figure, 1), fixed(figure / plain, 2)]);
    }
    section.tables.push(table);
    section.put("put_mb_s", plain);
    section.put("volume_mb_s", alone);
    section.put("cached_small_mb_s", small);
    section.put("cached_mb_s", cached);
    section.goals.push(Goal {
        what: "random writes through the cache, of plain PUTs".to_owned(),
        figure: cached / plain,
        bound: 0.9,
        is_at_most: false,
        requirement: Requirement::Required,
    });
    Ok(())
}

/// Flushes a second, and the goal.
fn flush_rates(args: &Args, section: &mut Section) -> Result<(), String> {
    let time = Nanos::from_secs(args.seconds);
    let mut table = Table::new(
        format!("writes of 4 KiB, each with a flush, for {} s (virtual time)", args.seconds),
        &["written to"],
        &["flushes/s"],
    );
    let alone = |clients| {
        in_model(move |store, _| async move {
            let volume = make(&store, &Geometry::new(VOLUME)).await?;
            flushes(volume, clients, time, async { Ok(()) }).await
        })
    };
    let (one, many) = (alone(1)?, alone(CLIENTS)?);
    let cached = in_model(|store, world| async move {
        let volume = make(&store, &Geometry::new(VOLUME)).await?;
        let cache = cache_over(&volume, &world, CACHES_MIB[0]).await?;
        flushes(cache.clone(), 1, time, async { write_back(&cache).await }).await
    })?;
    let each = 1e9 / LATENCY.0 as f64;
    for (name, figure) in [
        ("a PUT for each flush".to_owned(), each),
        ("the volume, one client".to_owned(), one),
        (format!("the volume, {CLIENTS} clients"), many),
        (format!("an ordered cache of {} MiB over it, one client", CACHES_MIB[0]), cached),
    ] {
        table.row(&[&name], [fixed(figure, 1)]);
    }
    table.note("of the cache: until the store has all that was flushed");
    section.tables.push(table);
    section.put("volume_flushes_per_s", one);
    section.put("volume_flushes_per_s_many", many);
    section.put("cached_flushes_per_s", cached);
    section.goals.push(Goal {
        what: "flushes a second through the cache, of a PUT each".to_owned(),
        figure: cached / each,
        bound: 10.0,
        is_at_most: false,
        requirement: Requirement::Required,
    });
    Ok(())
}

/// Reads of so many bytes, at these places, of a volume that was written in order: MB/s, GETs, and
/// bytes that came.
async fn read_back(
    store: StoreModel,
    read_ahead: u64,
    bytes: u64,
    places: Vec<u64>,
) -> Result<[f64; 3], String> {
    let counts = Rc::new(RequestCounts::default());
    let geometry = Geometry::new(Sector(READ_VOLUME / 512));
    let shared: Rc<dyn ObjectStore> = Rc::new(store);
    let options = OpenOptions { read_ahead, counts: counts.clone(), ..options() };
    objvol::create(shared.clone(), &geometry, &options).await.map_err(|e| e.chain())?;
    let volume = Volume::open(shared, options).await.map_err(|e| e.chain())?;
    let data = Buf::zeroed(64 << 10);
    for nth in 0..READ_VOLUME / data.len() as u64 {
        write(&*volume, nth, &data).await?;
    }
    flush(&*volume).await?;
    let (began, gets, came) = (reactor::now(), counts.gets.get(), counts.get_bytes.get());
    let buf = Buf::zeroed(usize::try_from(bytes).map_err(|e| e.to_string())?);
    let count = places.len() as u64;
    for place in places {
        let (at, bufs) = (Sector(place * bytes / 512), buf.all().into());
        let read = reactor::read(&*volume, Class::Foreground, at, bufs).await;
        read.map_err(|status| format!("read {place}: {status}"))?;
    }
    let rate = (count * bytes) as f64 / 1e6 / seconds_since(began);
    let [gets, came] = [counts.gets.get() - gets, counts.get_bytes.get() - came];
    Ok([rate, gets as f64, came as f64])
}

/// What sequential and random readers cost, and the goals.
fn reads(_: &Args, section: &mut Section) -> Result<(), String> {
    let mut table = Table::new(
        format!("one reader of a volume of {} MiB (virtual time)", READ_VOLUME / MIB),
        &["reads", "read_ahead"],
        &["MB/s", "GETs", "KiB a GET"],
    );
    let mut rng = Rng::new(1);
    let random: Vec<u64> = (0..RANDOM_READS).map(|_| rng.below(READ_VOLUME / BLOCK)).collect();
    let in_order: Vec<u64> = (0..READ_VOLUME / (64 << 10)).collect();
    let cases = [("64 KiB in order", 64 << 10, in_order), ("4 KiB at random", BLOCK, random)];
    let mut figures = Vec::new();
    for (name, bytes, places) in cases {
        for read_ahead in [0, options().read_ahead] {
            let places = places.clone();
            let read = in_model(move |store, _| read_back(store, read_ahead, bytes, places))?;
            let [rate, gets, came] = read;
            let cells = [fixed(rate, 1), fixed(gets, 0), fixed(came / gets / 1024.0, 0)];
            table.row(&[name, &(read_ahead / MIB).to_string()], cells);
            figures.push(read);
        }
    }
    table.note("read_ahead in MiB");
    section.tables.push(table);
    let goals = [
        ("MiB of a GET of a sequential reader", figures[1][2] / figures[1][1] / MIB as f64, 2.0),
        (
            "bytes of random reads with read-ahead, of those without",
            figures[3][2] / figures[2][2],
            1.05,
        ),
    ];
    for (nth, (what, figure, bound)) in goals.into_iter().enumerate() {
        section.goals.push(Goal {
            what: what.to_owned(),
            figure,
            bound,
            is_at_most: nth == 1,
            requirement: Requirement::Required,
        });
    }
    section.put("sequential_mb_s", figures[1][0]);
    section.put("sequential_gets", figures[1][1]);
    section.put("random_gets", figures[3][1]);
    Ok(())
}

/// Opens the volume in `store`; returns seconds of CPU, and extents.
async fn open(store: StoreModel) -> Result<(f64, u64), String> {
    let cpu = cpu_seconds();
    let volume = Volume::open(Rc::new(store), options()).await.map_err(|e| e.chain())?;
    Ok((cpu_seconds() - cpu, volume.status().extents))
}

/// Virtual seconds of an opening that reads the heads of all segments, each of 1024 writes as one
/// of 4 MiB in blocks of 4 KiB; and their number.
async fn heads(store: StoreModel, writes: u64) -> Result<(f64, u64), String> {
    let geometry = Geometry { segment_bytes: 512 << 10, ..Geometry::new(Sector((1 << 40) / 512)) };
    let shared: Rc<dyn ObjectStore> = Rc::new(store);
    let seldom = OpenOptions { checkpoint_every: u64::MAX, gc_threshold: 0, ..options() };
    objvol::create(shared.clone(), &geometry, &seldom).await.map_err(|e| e.chain())?;
    let volume = Volume::open(shared.clone(), seldom.clone()).await.map_err(|e| e.chain())?;
    let (data, mut rng) = (Buf::zeroed(512), Rng::new(1));
    for _ in 0..writes {
        write(&*volume, rng.below((1 << 40) / 512), &data).await?;
    }
    flush(&*volume).await?;
    let segments = volume.status().durable;
    let began = reactor::now();
    drop(Volume::open(shared, seldom).await.map_err(|e| e.chain())?);
    Ok((seconds_since(began), segments))
}

/// CPU of opening a volume of a TiB with so many extents: from heads of segments, and from a
/// checkpoint; and what that costs.
fn opening(args: &Args, section: &mut Section) -> Result<(), String> {
    let extents = args.extents;
    let figures = in_model(move |store, _| async move {
        let geometry = Geometry::new(Sector((1 << 40) / 512));
        let shared: Rc<dyn ObjectStore> = Rc::new(store.clone());
        let seldom = OpenOptions { checkpoint_every: u64::MAX, gc_threshold: 0, ..options() };
        objvol::create(shared.clone(), &geometry, &seldom).await.map_err(|e| e.chain())?;
        let volume = Volume::open(shared, seldom).await.map_err(|e| e.chain())?;
        let (data, mut rng) = (Buf::zeroed(512), Rng::new(1));
        for _ in 0..extents {
            write(&*volume, rng.below((1 << 40) / 512), &data).await?;
        }
        flush(&*volume).await?;
        let from_heads = open(store.clone()).await?;
        let again = Volume::open(Rc::new(store.clone()), options()).await;
        let again = again.map_err(|e| e.chain())?;
        write(&*again, 0, &data).await?;
        flush(&*again).await?;
        let (cpu, before) = (cpu_seconds(), store.checkpoint_bytes());
        again.checkpoint().await.map_err(|e| e.chain())?;
        let checkpoint = (cpu_seconds() - cpu, store.checkpoint_bytes() - before);
        again.close().await.map_err(|e| e.chain())?;
        Ok(([from_heads, open(store).await?], checkpoint))
    })?;
    let (figures, (checkpoint_cpu, checkpoint_bytes)) = figures;
    let (heads_s, segments) = in_model(move |store, _| heads(store, extents))?;
    section.put("open_from_heads_virtual_s", heads_s);
    section.put("checkpoint_bytes", checkpoint_bytes as f64);
    section.put("checkpoint_cpu_s", checkpoint_cpu);
    let mut table = Table::new(
        format!("opening a volume of 1 TiB with {extents} writes at random"),
        &["from"],
        &["extents", "CPU s"],
    );
    for (name, (cpu, found)) in ["heads of segments", "a checkpoint"].into_iter().zip(figures) {
        table.row(&[name], [found.to_string(), fixed(cpu, 2)]);
        section.put(format!("open_from_{}_cpu_s", name.replace(' ', "_")), cpu);
        section.goals.push(Goal {
            what: format!("CPU seconds of an opening from {name}"),
            figure: cpu,
            bound: 2.0,
            is_at_most: true,
            requirement: Requirement::Required,
        });
    }
    table.note(format!(
        "its checkpoint: one PUT of {} MB, {} s of CPU",
        fixed(checkpoint_bytes as f64 / 1e6, 1),
        fixed(checkpoint_cpu, 2)
    ));
    table.note(format!(
        "{} s of virtual time where {segments} segments of 1024 writes each come behind it",
        fixed(heads_s, 1)
    ));
    section.tables.push(table);
    Ok(())
}

fn bench(args: &Args) -> Result<Section, String> {
    let mut section = Section::default();
    type Part = fn(&Args, &mut Section) -> Result<(), String>;
    let parts: [(&str, Part); 5] = [
        ("bandwidth", bandwidth),
        ("flushes", flush_rates),
        ("reads", reads),
        ("garbage", garbage::garbage),
        ("opening", opening),
    ];
    for (nth, (name, part)) in parts.into_iter().enumerate() {
        progress(nth as f64 / 5.0, name);
        part(args, &mut section)?;
    }
    let (latency, line) = (LATENCY.0 / 1_000_000, BYTES_PER_S / 1_000_000);
    section.notes.push(format!("the store answers after {latency} ms, its line has {line} MB/s"));
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("objvol", bench(args))
}
