// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by the tests of the cache: a small world with an origin and a cache device, block
//! contents that identify block and version, and access to the media.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod failing;
pub(crate) mod faulty_cache;
pub(crate) mod growable;
pub(crate) mod journal_plan;
pub(crate) mod kernel;
pub(crate) mod life;
pub(crate) mod mode_switch;
pub(crate) mod operator;
pub(crate) mod origin_history;
pub(crate) mod ram;
pub(crate) mod random_options;
pub(crate) mod recorded;
pub(crate) mod recording;
pub(crate) mod sha256;
pub(crate) mod stalled;
pub(crate) mod suspend_gate;
pub(crate) mod whole;

use std::pin::Pin;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, Flags, Sector, Status, Target};
use format::{Entry, Geometry, Kind, Op, RecordHeader, Superblock, UNIT, decode_record};
use reactor::FileId;
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World, WorldRef};
use writecache::{Config, WriteCache};

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCK_SECTORS: u64 = 8;
/// Bits of a unit that tests flip: in the magic, and in the zeroes behind all fields.
pub(crate) const BITS: [(u64, u32); 2] = [(0, 0), (4095, 7)];

/// A world with two disks, and the table line of a cache on them.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) world: WorldRef,
    pub(crate) origin: FileId,
    pub(crate) cache: FileId,
    pub(crate) config: Config,
    pub(crate) sectors: Sector,
}

impl Fixture {
    /// `blocks` of 4096 bytes on the origin and `cache_kib` of cache device.
    pub(crate) fn new(blocks: u64, cache_kib: u64, options: &str) -> Fixture {
        Fixture::seeded(1, blocks, cache_kib, options)
    }

    pub(crate) fn seeded(seed: u64, blocks: u64, cache_kib: u64, options: &str) -> Fixture {
        Fixture::within(World::calm(seed), seed, blocks, cache_kib, options)
    }

    /// In a world that the caller provides.
    pub(crate) fn within(
        world: WorldRef,
        seed: u64,
        blocks: u64,
        cache_kib: u64,
        options: &str,
    ) -> Fixture {
        let sectors = Sector(blocks * BLOCK_SECTORS);
        let disk = |name: &str, capacity, seed| {
            let model = Uniform::new(seed, 20_000, 60_000);
            world.borrow_mut().add_disk(DiskSpec::new(name, capacity, Box::new(model)))
        };
        let origin = disk("origin", sectors, seed);
        let cache = disk("cache", Sector(cache_kib * 2), seed + 1);
        Fixture { world, origin, cache, config: config(4096, options), sectors }
    }

    /// The default: 256 blocks, and a cache device of 1 MiB.
    pub(crate) fn small(options: &str) -> Fixture {
        Fixture::new(256, 1024, options)
    }

    pub(crate) fn leaf(&self, file: FileId) -> Rc<dyn BlockDevice> {
        self.world.borrow().leaf(file)
    }

    /// The target, not yet opened.
    pub(crate) fn target(&self) -> Rc<WriteCache> {
        let (origin, cache) = (self.leaf(self.origin), self.leaf(self.cache));
        WriteCache::new("wc", self.config.clone(), origin, cache, self.sectors).unwrap()
    }

    /// One life of the process: the cache is opened, `work` is done, and the process is killed.
    pub(crate) fn life<T: 'static>(
        &self,
        work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
    ) -> Result<T, Error> {
        self.life_of(self.target(), work)
    }

    /// The same of another target over this world.
    pub(crate) fn life_of<T: 'static>(
        &self,
        target: Rc<WriteCache>,
        work: impl AsyncFnOnce(Rc<WriteCache>) -> T + 'static,
    ) -> Result<T, Error> {
        self.live(target.clone(), Box::pin(async move { work(target).await }))
    }

    /// As [`Fixture::life_of`]: compiled once for all tests whose work returns the same.
    fn live<T: 'static>(
        &self,
        target: Rc<WriteCache>,
        work: Pin<Box<dyn Future<Output = T>>>,
    ) -> Result<T, Error> {
        let machine = Machine::boot(&self.world, 1);
        let done = machine.block_on(async move {
            target.resume().await?;
            Ok(work.await)
        });
        machine.kill();
        done.expect("no power cut was planned")
    }

    /// The error with which the cache refuses to open.
    pub(crate) fn refusal(&self) -> String {
        self.life(async |_| ()).expect_err("the cache opened").chain()
    }

    pub(crate) fn peek(&self, file: FileId, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.world.borrow().peek(file, Sector::from_bytes(offset), &mut out);
        out
    }

    /// Bytes of the cache area, from `offset` of the area.
    pub(crate) fn area(&self, offset: u64, len: usize) -> Vec<u8> {
        self.peek(self.cache, self.config.start_sector.bytes() + offset, len)
    }

    pub(crate) fn poke_area(&self, offset: u64, data: &[u8]) {
        let at = self.config.start_sector + Sector::from_bytes(offset);
        self.world.borrow_mut().poke(self.cache, at, data);
    }

    pub(crate) fn flip(&self, offset: u64, bit: u32) {
        let at = self.config.start_sector.bytes() + offset;
        self.world.borrow_mut().flip_bit(self.cache, at, bit);
    }

    /// All bytes of the cache device.
    pub(crate) fn image(&self) -> Vec<u8> {
        let capacity = self.leaf(self.cache).limits().capacity.bytes();
        self.peek(self.cache, 0, usize::try_from(capacity).unwrap())
    }

    pub(crate) fn superblock(&self) -> Superblock {
        Superblock::decode(0, &self.area(0, UNIT)).expect("copy 0 is good")
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.superblock().geometry()
    }

    /// Record `seq`, if the log has it.
    pub(crate) fn record(&self, seq: u64) -> Option<(RecordHeader, Vec<Entry>)> {
        let unit = self.area(self.geometry().log_offset(seq), UNIT);
        let record = decode_record(&unit, &self.superblock().uuid).ok()?;
        let fits = record.header.kind == Kind::Log && record.header.seq == seq;
        fits.then(|| (record.header, record.entries().collect()))
    }

    /// The newest record of the log.
    pub(crate) fn last_record(&self) -> u64 {
        let start = self.superblock().checkpoint.log_start_seq;
        (start..).take_while(|&seq| self.record(seq).is_some()).last().expect("a record")
    }

    /// The slot of a block according to the log.
    pub(crate) fn slot_of(&self, block: u64) -> u32 {
        let start = self.superblock().checkpoint.log_start_seq;
        let entries = (start..).map_while(|seq| self.record(seq)).flat_map(|r| r.1);
        let here = entries.filter(|e| e.block == block && matches!(e.op, Op::Write | Op::Clean));
        here.last().expect("the block is in the log").slot
    }

    /// Flips a bit of the cached data of a block.
    pub(crate) fn rot_data_of(&self, block: u64) {
        self.flip(self.geometry().slot_offset(self.slot_of(block)) + 1234, 5);
    }

    /// The data of a block on the origin.
    pub(crate) fn origin_block(&self, block: u64) -> Vec<u8> {
        self.peek(self.origin, block * BLOCK as u64, BLOCK)
    }
}

pub(crate) fn config(block_size: u32, options: &str) -> Config {
    let count = options.split_whitespace().count();
    let line = format!("s origin cache {block_size} {count} {options}");
    // Tests of the buffer ask for one.
    let buffer = if options.contains("write_buffer") { None } else { Some(0) };
    let mut config = Config::parse(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
    config.write_buffer = buffer.unwrap_or(config.write_buffer);
    config
}

/// Contents that no other block and no other version has.
pub(crate) fn pattern(block: u64, version: u64) -> Vec<u8> {
    let mut x = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ version.wrapping_mul(0xD1B5_4A32_D192);
    let mut word = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        x
    };
    (0..BLOCK / 8).flat_map(|_| word().to_le_bytes()).collect()
}

pub(crate) fn at(block: u64) -> Sector {
    Sector(block * BLOCK_SECTORS)
}

pub(crate) async fn put_with(
    dev: &dyn BlockDevice,
    flags: Flags,
    block: u64,
    version: u64,
) -> Result<(), Status> {
    let data = Buf::copy_of(&pattern(block, version));
    reactor::write(dev, flags, Class::Normal, at(block), data.into()).await
}

pub(crate) async fn put(dev: &dyn BlockDevice, block: u64, version: u64) -> Result<(), Status> {
    put_with(dev, Flags::empty(), block, version).await
}

pub(crate) async fn get(dev: &dyn BlockDevice, block: u64) -> Result<Vec<u8>, Status> {
    let buf = Buf::zeroed(BLOCK);
    let read = reactor::read(dev, Class::Foreground, at(block), buf.all().into()).await;
    read.map(|()| buf.read(<[u8]>::to_vec))
}

/// Writes a block, which must succeed.
pub(crate) async fn fill(dev: &dyn BlockDevice, blocks: std::ops::Range<u64>, version: u64) {
    for block in blocks {
        assert_eq!(put(dev, block, version).await, Ok(()), "block {block}");
    }
}

pub(crate) async fn flush(dev: &dyn BlockDevice) {
    assert_eq!(reactor::flush(dev, Class::Foreground).await, Ok(()));
}

/// Checks that blocks hold a version.
pub(crate) async fn expect(dev: &dyn BlockDevice, blocks: std::ops::Range<u64>, version: u64) {
    for block in blocks {
        let found = get(dev, block).await;
        assert!(found == Ok(pattern(block, version)), "block {block} is not version {version}");
    }
}

pub(crate) async fn say(cache: &Rc<WriteCache>, word: &str) -> Result<String, Error> {
    cache.clone().message(vec![word.to_owned()]).await
}

pub(crate) async fn suspend(cache: &Rc<WriteCache>) {
    cache.clone().suspend().await.expect("suspend");
}

/// An attribute that is a number.
pub(crate) fn number(cache: &WriteCache, name: &str) -> u64 {
    cache.attribute(name).unwrap().number().unwrap()
}

/// The status fields.
pub(crate) fn fields(cache: &WriteCache) -> Vec<u64> {
    cache.status().split(' ').map(|field| field.parse().unwrap()).collect()
}
