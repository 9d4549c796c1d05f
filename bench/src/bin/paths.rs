// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-paths`: what one operation of 4 KiB takes on the hot paths of the write cache and
//! of the compressed RAM disk, counted.
//!
//! ```text
//!   instructions   callgrind, of two runs that differ only in length: what both do cancels out
//!   allocations    in the part that only the longer one has
//!   clock reads    the same; the clock stands still but for timers
//! ```
//!
//! An engine stands on memory that ends every request at once. Copies, checksums and compression
//! count; the row `memory` is a write without an engine.
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::rc::Rc;

use bench::counted::Count;
use block::{BlockDevice, Buf, Class, CoreId, Flags, Nanos, Sector, Status, Target};
use queue::Mem;
use reactor::{BioFuture, Driver, Event, Msg, Reactor, Sqe};
use reproduce::compressed::data::Data;
use reproduce::compressed::{PAGE_BYTES, PAGE_SECTORS};
use serde_json::{Map, json};
use sim::Rng;
use writecache::WriteCache;
use zram::{NoFiles, Zram};

const USAGE: &str = "usage: paths [NAME...]   or, what is counted: paths --run NAME OPERATIONS";
/// Operations before those that count: until lists have grown and writeback is in its stride.
const WARM: u64 = 20_000;
const COUNTED: u64 = 20_000;
/// Requests in flight, where nothing else is said.
const DEPTH: usize = 16;
const MIB: u64 = 2048;
/// Of the origin, and of a compressed RAM disk.
const LARGE: Sector = Sector(1024 * MIB);

const PATHS: [(&str, &str); 14] = [
    ("memory", "write of memory, no engine"),
    ("wc-write", "write cache: write over a dirty block"),
    ("wc-write-new", "write of a new block, and a writeback"),
    ("wc-write-pmem", "the same in mode p"),
    ("wc-write-fua", "write with FUA, alone"),
    ("wc-flush", "write, then flush, alone"),
    ("wc-read-hit", "read of a cached block"),
    ("wc-read-miss", "read of another"),
    ("zram-write", "zram, lz4: write that half compresses, over another"),
    ("zram-write-same", "write of one word, over another"),
    ("zram-write-huge", "write that does not compress, over another"),
    ("zram-read", "read of a page that half compresses"),
    ("zram-read-same", "read of a page of one word"),
    ("zram-writeback", "writeback of an idle page, packed"),
];

type Failure = Box<dyn std::error::Error>;

/// Counts a path of so many operations.
fn run(path: &str, counted: u64) -> Result<(), Failure> {
    let lab = Lab::new(counted);
    let (half, same) = (Some(Data::Half), None);
    match path {
        "memory" => lab.writes(Rc::new(Mem::new("mem", LARGE)?), 4096, half),
        "wc-write" => lab.writes(lab.cache("s", 512 * MIB)?, 4096, half),
        "wc-write-new" => lab.writes(lab.cache("s", 32 * MIB)?, 1 << 18, half),
        "wc-write-pmem" => lab.writes(lab.cache("p", 32 * MIB)?, 1 << 18, half),
        "wc-write-fua" => lab.durable_writes(lab.cache("s", 512 * MIB)?, Flags::FUA),
        "wc-flush" => lab.durable_writes(lab.cache("s", 512 * MIB)?, Flags::empty()),
        "wc-read-hit" => lab.reads(lab.cache("s", 512 * MIB)?, 4096, Some(half)),
        "wc-read-miss" => lab.reads(lab.cache("s", 512 * MIB)?, 4096, None),
        "zram-write" => lab.writes(lab.zram()?, 1 << 14, half),
        "zram-write-same" => lab.writes(lab.zram()?, 1 << 14, same),
        "zram-write-huge" => lab.writes(lab.zram()?, 1 << 14, Some(Data::Random)),
        "zram-read" => lab.reads(lab.zram()?, 1 << 14, Some(half)),
        "zram-read-same" => lab.reads(lab.zram()?, 1 << 14, Some(same)),
        "zram-writeback" => lab.write_back(&lab.zram()?),
        other => Err(format!("{other}: no such path; {USAGE}").into()),
    }
}

/// The clock of a machine on which nothing takes time but waiting, and how often it was read.
#[derive(Clone, Default)]
struct Clock {
    now: Rc<Cell<Nanos>>,
    reads: Rc<Cell<u64>>,
}

impl Driver for Clock {
    fn now(&self) -> Nanos {
        self.reads.set(self.reads.get() + 1);
        self.now.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        assert!(batch.is_empty(), "no files here");
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, _out: &mut Vec<Event>) {
        self.now.set(self.now.get().max(deadline.unwrap_or(self.now.get())));
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A core, and how many operations are counted on it.
struct Lab {
    clock: Clock,
    counted: u64,
    reactor: Reactor,
}

impl Lab {
    fn new(counted: u64) -> Lab {
        let clock = Clock::default();
        let reactor = Reactor::enter(CoreId(0), Box::new(clock.clone()));
        Lab { clock, counted, reactor }
    }

    /// A write cache of `sectors`.
    fn cache(&self, mode: &str, sectors: u64) -> Result<Rc<dyn BlockDevice>, Failure> {
        let config = writecache::Config::parse(&[mode, "origin", "cache", "4096", "0"])?;
        let origin = Rc::new(Mem::new("origin", LARGE)?);
        let device = Rc::new(Mem::new("cache", Sector(sectors))?);
        let cache = WriteCache::new("wc", config, origin, device, LARGE)?;
        self.reactor.block_on(cache.clone().resume())?;
        Ok(cache)
    }

    /// A compressed RAM disk.
    fn zram(&self) -> Result<Rc<Zram>, Failure> {
        let args = ["lz4", "4", "backing_dev", "mem", "compressed_writeback", "1"];
        let config = zram::Config::parse(&args, LARGE, &NoFiles)?;
        let backing = Rc::new(Mem::new("mem", LARGE)?);
        let zram = Zram::new("zram", config, Some(backing), vec![CoreId(0)])?;
        self.reactor.block_on(zram.clone().resume())?;
        Ok(zram)
    }

    /// Does `op` with each of the numbers, so many beside each other as begin when they are made.
    fn each<F>(
        &self,
        depth: usize,
        numbers: Range<u64>,
        op: impl Fn(u64) -> F + 'static,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Status>> + 'static,
    {
        let ended = self.reactor.block_on(async move {
            let mut flight = VecDeque::with_capacity(depth);
            for number in numbers {
                if flight.len() == depth {
                    flight.pop_front().expect("it is full").await?;
                }
                flight.push_back(op(number));
            }
            for rest in flight {
                rest.await?;
            }
            Ok::<_, Status>(())
        });
        ended.map_err(|status| status.to_string().into())
    }

    /// Tells what `work` took of what is counted here.
    fn count(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        let (before, mut outcome) = (self.clock.reads.get(), Ok(()));
        let memory = allocation_counter::measure(|| outcome = work());
        println!("{} {}", memory.count_total, self.clock.reads.get() - before);
        outcome
    }

    /// Warms up, and counts the rest.
    fn warm_and_count<F>(
        &self,
        depth: usize,
        op: impl Fn(u64) -> F + Clone + 'static,
    ) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Status>> + 'static,
    {
        self.each(depth, 0..WARM, op.clone())?;
        self.count(|| self.each(depth, WARM..WARM + self.counted, op))
    }

    /// Writes of blocks of `0..blocks` by chance.
    fn writes(
        &self,
        device: Rc<dyn BlockDevice>,
        blocks: u64,
        data: Option<Data>,
    ) -> Result<(), Failure> {
        let pool = pool(data);
        self.warm_and_count(DEPTH, move |nth| {
            write(&device, &pool, Flags::empty(), nth, chance(nth, blocks))
        })
    }

    /// Writes of new blocks, each made durable by itself: by a flush if not with FUA.
    fn durable_writes(&self, device: Rc<dyn BlockDevice>, flags: Flags) -> Result<(), Failure> {
        let pool = pool(Some(Data::Half));
        self.warm_and_count(1, move |nth| {
            let device = device.clone();
            let written = write(&device, &pool, flags, nth, chance(nth, 4096));
            async move {
                written.await?;
                match flags.contains(Flags::FUA) {
                    true => Ok(()),
                    false => reactor::flush(&*device, Class::Foreground).await,
                }
            }
        })
    }

    /// Reads of blocks of `0..blocks` by chance, which hold `data` if anything.
    fn reads(
        &self,
        device: Rc<dyn BlockDevice>,
        blocks: u64,
        data: Option<Option<Data>>,
    ) -> Result<(), Failure> {
        if let Some(data) = data {
            let (device, pool) = (device.clone(), pool(data));
            let fill = move |nth| write(&device, &pool, Flags::empty(), nth, nth);
            self.each(DEPTH, 0..blocks, fill)?;
        }
        let bufs = pool(None);
        self.warm_and_count(DEPTH, move |nth| {
            let to = bufs[nth as usize % bufs.len()].all().into();
            reactor::read(&*device, Class::Normal, sector(chance(nth, blocks)), to)
        })
    }

    /// Writes pages back.
    fn write_back(&self, zram: &Rc<Zram>) -> Result<(), Failure> {
        let (device, pool) = (zram.clone() as Rc<dyn BlockDevice>, pool(Some(Data::Half)));
        let fill = move |nth| write(&device, &pool, Flags::empty(), nth, nth);
        self.each(DEPTH, 0..WARM + COUNTED, fill)?;
        let write_back = |pages: Range<u64>| {
            let which = format!("page_indexes={}-{}", pages.start, pages.end - 1);
            let done = zram.clone().set_attribute("writeback".into(), which);
            Ok(self.reactor.block_on(done)?)
        };
        write_back(0..WARM)?;
        self.count(|| match self.counted {
            0 => Ok(()),
            counted => write_back(WARM..WARM + counted),
        })
    }
}

/// Buffers of contents that differ; of one word where there are no data.
fn pool(data: Option<Data>) -> Rc<[Buf]> {
    let page = |nth| {
        let buf = Buf::zeroed(PAGE_BYTES);
        if let Some(data) = data {
            buf.write(|page| data.fill(nth, page));
        }
        buf
    };
    (0..256).map(page).collect()
}

fn write(
    device: &Rc<dyn BlockDevice>,
    pool: &[Buf],
    flags: Flags,
    nth: u64,
    block: u64,
) -> BioFuture {
    let data = pool[nth as usize % pool.len()].all().into();
    reactor::write(&**device, flags, Class::Normal, sector(block), data)
}

fn chance(nth: u64, blocks: u64) -> u64 {
    Rng::new(nth).below(blocks)
}

fn sector(block: u64) -> Sector {
    Sector(block * PAGE_SECTORS)
}

/// What one operation of a path takes.
struct Taken {
    instructions: f64,
    allocations: f64,
    clock_reads: f64,
}

fn measure(path: &str) -> Result<Taken, Failure> {
    let total = |operations: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--run", path, &operations.to_string()]);
        let (instructions, said) = Count::Instructions.of(&command)?;
        let mut numbers = said.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next().ok_or("two numbers were to come");
        Ok::<_, Failure>((instructions, next()??, next()??))
    };
    let (short, long) = (total(0)?, total(COUNTED)?);
    let each = |short: f64, long: f64| (long - short) / COUNTED as f64;
    Ok(Taken {
        instructions: each(short.0, long.0),
        allocations: each(short.1, long.1),
        clock_reads: each(short.2, long.2),
    })
}

fn table(names: &[String]) -> Result<(), Failure> {
    if let Some(other) = names.iter().find(|name| PATHS.iter().all(|(path, _)| path != name)) {
        return Err(format!("{other}: no such path; {USAGE}").into());
    }
    let wanted = |path: &str| names.is_empty() || names.iter().any(|name| name == path);
    let mut keys = Map::new();
    let head = ["instructions", "allocations", "clock reads"];
    println!("{:16} {:>12} {:>12} {:>12}", "", head[0], head[1], head[2]);
    for (path, what) in PATHS.iter().filter(|(path, _)| wanted(path)) {
        let Taken { instructions, allocations, clock_reads } = measure(path)?;
        println!("{path:16} {instructions:12.1} {allocations:12.3} {clock_reads:12.2}   {what}");
        keys.insert(path.replace('-', "_"), json!(instructions));
    }
    println!("{}", json!({ "bench": "paths", "instructions": keys }));
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match &words[..] {
        [run_word, path, count] if run_word == "--run" => {
            count.parse().map_err(Into::into).and_then(|count| run(path, count))
        }
        names => table(names),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("paths: {e}");
            ExitCode::FAILURE
        }
    }
}
