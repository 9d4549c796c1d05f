// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A core on which an engine does what it does and nothing else counts: the disks end every request
//! at once, and the clock goes on only with timers, or by as much with each look. For
//! `make bench-paths`.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, CoreId, Flags, Limits, Nanos, Sector, Status, Target};
use lz4::block::{CompressionMode, compress_to_buffer};
use pagecache::PageCache;
use queue::{FileLeaf, Mem, MergingLeaf, Null};
use reactor::{BioFuture, Driver, Event, FileId, Msg, Reactor, Sqe};
use reproduce::compressed::data::Data;
use reproduce::compressed::{PAGE_BYTES, PAGE_SECTORS};
use sim::{Memories, Rng};
use writecache::WriteCache;
use zram::{NoFiles, Zram};

pub type Failure = Box<dyn std::error::Error>;

/// Operations before those that count: until lists have grown and writeback is in its stride.
pub const WARM: u64 = 20_000;
pub const COUNTED: u64 = 20_000;
/// Requests in flight, where nothing else is said.
pub const DEPTH: usize = 16;
pub const MIB: u64 = 2048;
/// Of the origin, and of a compressed RAM disk.
const LARGE: Sector = Sector(1024 * MIB);
/// What a request takes of the time of a throttle: its windows end as on a disk.
const TICK_NS: u64 = 50_000;

/// The clock of a machine on which nothing takes time but waiting and, for a throttle, its disk;
/// how often it was read, and what has ended.
#[derive(Clone, Default)]
struct Clock {
    now: Rc<Cell<Nanos>>,
    /// What a request takes.
    tick_ns: Rc<Cell<u64>>,
    reads: Rc<Cell<u64>>,
    done: Rc<RefCell<Vec<Event>>>,
}

impl Driver for Clock {
    fn now(&self) -> Nanos {
        self.reads.set(self.reads.get() + 1);
        self.now.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        self.now.set(Nanos(self.now.get().0 + self.tick_ns.get() * batch.len() as u64));
        let end = |sqe: Sqe| Event::Cqe { home: sqe.home, key: sqe.key, result: Status::Ok.into() };
        self.done.borrow_mut().extend(batch.drain(..).map(end));
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        out.append(&mut self.done.borrow_mut());
        if out.is_empty() {
            self.now.set(self.now.get().max(deadline.unwrap_or(self.now.get())));
        }
    }
    fn random(&mut self) -> u64 {
        4
    }
}

/// A core, and how many operations are counted on it.
pub struct CountingCore {
    clock: Clock,
    counted: u64,
    reactor: Reactor,
}

impl CountingCore {
    /// One that counts so many.
    pub fn new(counted: u64) -> CountingCore {
        let clock = Clock::default();
        let reactor = Reactor::enter(CoreId(0), Box::new(clock.clone()));
        CountingCore { clock, counted, reactor }
    }

    /// The same, with memory that outlives the process: write caches have a journal.
    pub fn with_shared_memory(self) -> CountingCore {
        self.reactor.on(|| reactor::set_shared_memory(Rc::new(Memories::with_power())));
        self
    }

    /// Memory without an engine.
    ///
    /// # Errors
    /// That the system has none left.
    pub fn memory(&self) -> Result<Rc<dyn BlockDevice>, Failure> {
        Ok(Rc::new(Mem::new("mem", LARGE)?))
    }

    /// A file, with a throttle or without.
    ///
    /// # Errors
    /// None that is known.
    pub fn leaf(&self, throttled: bool) -> Result<Rc<dyn BlockDevice>, Failure> {
        let lat_usec = if throttled { "-1" } else { "0" };
        Ok(Rc::new(self.leaf_with(Limits::new(LARGE), &[("queue/wbt_lat_usec", lat_usec)])?))
    }

    /// A file whose throttle lets three writes of writeback be in flight, by the kernel's law.
    ///
    /// # Errors
    /// None that is known.
    pub fn narrow_leaf(&self) -> Result<Rc<dyn BlockDevice>, Failure> {
        let attributes = [("queue/wbt_mode", "kernel"), ("queue/nr_requests", "16")];
        Ok(Rc::new(self.leaf_with(Limits::new(LARGE), &attributes)?))
    }

    /// A file of blocks of 4096 bytes, which merges sectors, without a throttle.
    ///
    /// # Errors
    /// None that is known.
    pub fn merging_leaf(&self) -> Result<Rc<dyn BlockDevice>, Failure> {
        let limits = Limits { logical_block_bytes: 4096, ..Limits::new(LARGE) };
        let leaf = self.leaf_with(limits, &[("queue/wbt_lat_usec", "0")])?;
        Ok(Rc::new(MergingLeaf::new(leaf)))
    }

    fn leaf_with(&self, limits: Limits, attributes: &[(&str, &str)]) -> Result<FileLeaf, Failure> {
        self.clock.tick_ns.set(TICK_NS);
        let leaf = FileLeaf::new("leaf", FileId(0), limits);
        for (name, value) in attributes {
            leaf.wbt().set(name, value)?;
        }
        Ok(leaf)
    }

    /// A page cache with these options, over so much memory, or over what keeps nothing if none.
    ///
    /// # Errors
    /// What is wrong with the options, or that the system has no memory left.
    pub fn page_cache(
        &self,
        options: &str,
        memory: Option<Sector>,
    ) -> Result<Rc<dyn BlockDevice>, Failure> {
        let config = pagecache::Config::parse(&options.split(' ').collect::<Vec<_>>())?;
        let (below, len): (Rc<dyn BlockDevice>, _) = match memory {
            Some(len) => (Rc::new(Mem::new("mem", len)?), len),
            None => (Rc::new(Null::new("null", Sector(100 * LARGE.0))), Sector(100 * LARGE.0)),
        };
        let cache = PageCache::new("buf", config, below, len)?;
        self.reactor.block_on(cache.clone().resume())?;
        Ok(cache)
    }

    /// A write cache of `sectors`.
    ///
    /// # Errors
    /// That the system has no memory left.
    pub fn cache(&self, mode: &str, sectors: u64) -> Result<Rc<dyn BlockDevice>, Failure> {
        self.cache_with_buffer(mode, sectors, 0)
    }

    /// A write cache with a write buffer of so many bytes.
    ///
    /// # Errors
    /// That the system has no memory left.
    pub fn cache_with_buffer(
        &self,
        mode: &str,
        sectors: u64,
        write_buffer: u32,
    ) -> Result<Rc<dyn BlockDevice>, Failure> {
        Ok(self.write_cache(mode, sectors, write_buffer)?)
    }

    fn write_cache(
        &self,
        mode: &str,
        sectors: u64,
        write_buffer: u32,
    ) -> Result<Rc<WriteCache>, Failure> {
        let mut config = writecache::Config::parse(&[mode, "origin", "cache", "4096", "0"])?;
        config.write_buffer = write_buffer;
        let origin = Rc::new(Mem::new("origin", LARGE)?);
        let device = Rc::new(Mem::new("cache", Sector(sectors))?);
        let cache = WriteCache::new("wc", config, origin, device, LARGE)?;
        self.reactor.block_on(cache.clone().resume())?;
        Ok(cache)
    }

    /// Writes back the blocks of a write cache, of each four that are neighbours one, which were
    /// written in another order.
    ///
    /// # Errors
    /// What that ended with.
    pub fn write_back_cache(&self) -> Result<(), Failure> {
        let cache = self.write_cache("s", 512 * MIB, 0)?;
        let (device, pool) = (cache.clone() as Rc<dyn BlockDevice>, pool(Some(Data::Half)));
        self.each(DEPTH, 0..COUNTED, move |nth| {
            // Odd, so that each comes once.
            let place = nth * 7919 % COUNTED;
            write(&device, &pool, Flags::empty(), nth, place * 4 + random(4)(place))
        })?;
        self.count(|| match self.counted {
            0 => Ok(()),
            _ => Ok(self.reactor.block_on(cache.write_back())?),
        })
    }

    /// A compressed RAM disk.
    ///
    /// # Errors
    /// That the system has no memory left.
    pub fn zram(&self) -> Result<Rc<Zram>, Failure> {
        let args = ["lz4", "4", "backing_dev", "mem", "compressed_writeback", "1"];
        let config = zram::Config::parse(&args, LARGE, &NoFiles)?;
        let backing = Rc::new(Mem::new("mem", LARGE)?);
        let zram = Zram::new("zram", config, Some(backing), vec![CoreId(0)])?;
        self.reactor.block_on(zram.clone().resume())?;
        Ok(zram)
    }

    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// How many operations it counts.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
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
    pub(crate) fn count(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
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

    /// Writes of the blocks that `at` says.
    ///
    /// # Errors
    /// What a write ended with.
    pub fn writes(
        &self,
        device: Rc<dyn BlockDevice>,
        at: impl Fn(u64) -> u64 + Copy + 'static,
        data: Option<Data>,
    ) -> Result<(), Failure> {
        let pool = pool(data);
        self.warm_and_count(DEPTH, move |nth| write(&device, &pool, Flags::empty(), nth, at(nth)))
    }

    /// So many requests at once: reads, writes of writeback, or both by turns.
    ///
    /// # Errors
    /// What one of them ended with.
    pub fn beside(
        &self,
        device: Rc<dyn BlockDevice>,
        depth: usize,
        (reads, writes): (bool, bool),
    ) -> Result<(), Failure> {
        let (pool, at) = (pool(None), in_order);
        self.warm_and_count(depth, move |nth| {
            let buf: block::Bufs = pool[0].all().into();
            if reads && (nth % 2 == 0 || !writes) {
                return reactor::read(&*device, Class::Foreground, sector(at(nth)), buf);
            }
            let (flags, class) = (Flags::BACKGROUND, Class::Background);
            reactor::write(&*device, flags, class, sector(at(nth)), buf)
        })
    }

    /// Writes of new blocks, each made durable by itself: by a flush if not with FUA.
    ///
    /// # Errors
    /// What one of them ended with.
    pub fn durable_writes(&self, device: Rc<dyn BlockDevice>, flags: Flags) -> Result<(), Failure> {
        let pool = pool(Some(Data::Half));
        self.warm_and_count(1, move |nth| {
            let device = device.clone();
            let written = write(&device, &pool, flags, nth, random(4096)(nth));
            async move {
                written.await?;
                match flags.contains(Flags::FUA) {
                    true => Ok(()),
                    false => reactor::flush(&*device, Class::Foreground).await,
                }
            }
        })
    }

    /// Writes all of `0..blocks` once.
    ///
    /// # Errors
    /// What a write ended with.
    pub fn fill(
        &self,
        device: Rc<dyn BlockDevice>,
        blocks: u64,
        data: Option<Data>,
    ) -> Result<(), Failure> {
        let pool = pool(data);
        self.each(DEPTH, 0..blocks, move |nth| write(&device, &pool, Flags::empty(), nth, nth))
    }

    /// Reads of the blocks that `at` says.
    ///
    /// # Errors
    /// What a read ended with.
    pub fn reads(
        &self,
        device: Rc<dyn BlockDevice>,
        at: impl Fn(u64) -> u64 + Copy + 'static,
    ) -> Result<(), Failure> {
        let bufs = pool(None);
        self.warm_and_count(DEPTH, move |nth| {
            let to = bufs[nth as usize % bufs.len()].all().into();
            reactor::read(&*device, Class::Normal, sector(at(nth)), to)
        })
    }

    /// Compresses pages as a zram does, without one.
    ///
    /// # Errors
    /// What the compressor ended with.
    pub fn compress(&self, data: Data) -> Result<(), Failure> {
        let pool = pool(Some(data));
        let mut object = vec![0; PAGE_BYTES];
        let mut compress = |pages: Range<u64>| {
            for nth in pages {
                let buf = &pool[nth as usize % pool.len()];
                let mode = Some(CompressionMode::FAST(1));
                buf.read(|page| compress_to_buffer(page, mode, false, &mut object))?;
            }
            Ok(())
        };
        compress(0..WARM)?;
        self.count(|| compress(WARM..WARM + self.counted))
    }

    /// Writes pages back.
    ///
    /// # Errors
    /// What that ended with.
    pub fn write_back(&self, zram: &Rc<Zram>) -> Result<(), Failure> {
        self.fill(zram.clone(), WARM + COUNTED, Some(Data::Half))?;
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

/// One of so many blocks.
pub fn random(blocks: u64) -> impl Fn(u64) -> u64 + Copy {
    move |nth| Rng::new(nth).below(blocks)
}

/// One behind the other.
pub fn in_order(nth: u64) -> u64 {
    nth
}

fn sector(block: u64) -> Sector {
    Sector(block * PAGE_SECTORS)
}
