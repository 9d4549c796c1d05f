// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write cache: filled by random writes, then flushed under `time`.
//!
//! ```text
//!   dmsetup create mycache --table '0 4194304 writecache s ORIGIN CACHE 4096 0'
//!   fio --rw=randwrite --bs=4k --iodepth=20 --direct=1 --filename=DIR/dev/mapper/mycache ...
//!   time dmsetup message mycache 0 flush
//! ```
use super::PATIENCE;
use super::site::{Site, sha256};
use crate::Result;
use crate::fio::Fio;

/// Sizes. fio writes as much as the origin has: every block once, in random order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The origin.
    pub origin_bytes: u64,
    /// The cache.
    pub cache_bytes: u64,
}

impl Sizes {
    /// As published.
    pub const FULL: Sizes = Sizes { origin_bytes: 4_194_304 * 512, cache_bytes: 1006 << 20 };
}

/// In which order the cache writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ours, and the published "after".
    Sorted,
    /// The published "before".
    Lru,
}

impl Order {
    /// The end of the table's line; the default needs no word, as in the published line.
    fn options(self) -> &'static str {
        match self {
            Order::Sorted => "0",
            Order::Lru => "2 writeback_order lru",
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filled {
    /// Writes a second while filling, what was written back meanwhile included.
    pub fill_iops: f64,
    /// Blocks that were dirty when the flush began.
    pub dirty_blocks: u64,
    /// How long the flush took.
    pub flush_s: f64,
    /// Writes to the origin by the flush.
    pub origin_writes: u64,
}

/// Runs the procedure on new files. `seed` decides on places and data.
pub fn run(site: &Site, sizes: Sizes, order: Order, seed: u64) -> Result<Filled> {
    site.make_disk("origin.img", sizes.origin_bytes)?;
    site.make_disk("cache.img", sizes.cache_bytes)?;
    let (origin, cache) = (site.path("origin.img"), site.path("cache.img"));
    let table = format!(
        "0 {} writecache s {} {} 4096 {}",
        sizes.origin_bytes / 512,
        origin.display(),
        cache.display(),
        order.options()
    );
    site.create("mycache", &table)?;
    let device = site.mapped("mycache");
    let job = |fio: Fio| {
        fio.with(["--ioengine=libaio", "--direct=1", "--rw=randwrite", "--iodepth=20"])
            .with([&format!("--size={}", sizes.origin_bytes), &format!("--randseed={seed}")])
            .with(["--verify=crc32c", "--verify_fatal=1"])
    };
    let fill = job(Fio::on_file(site.dir(), &device)).with(["--do_verify=0"]).run(PATIENCE)?;
    if fill.writes != sizes.origin_bytes / 4096 {
        return Err(format!("fio wrote {} blocks only", fill.writes));
    }

    let dirty_blocks = site.attribute("mycache", "dirty_blocks")?;
    if dirty_blocks == 0 {
        return Err("no block is dirty: this flush would show nothing".into());
    }
    let before = site.attribute("mycache", "origin_writes")?;
    let flush_s = site.time_dmsetup(&["message", "mycache", "0", "flush"])?;
    let origin_writes = site.attribute("mycache", "origin_writes")? - before;
    let left = site.attribute("mycache", "dirty_blocks")?;
    if left != 0 {
        return Err(format!("{left} blocks are dirty after the flush"));
    }

    // EE-P1: the origin, seen without any of our code on the way, holds what was written.
    let served = sha256(&device)?;
    site.remove("mycache")?;
    let stored = sha256(&origin)?;
    if served != stored {
        return Err(format!("the device was {served}, its origin is {stored}"));
    }
    let verify = job(Fio::on_file(site.dir(), &origin)).with(["--verify_only"]).run(PATIENCE)?;
    if verify.reads != fill.writes {
        return Err(format!("fio has verified {} blocks only", verify.reads));
    }
    Ok(Filled { fill_iops: fill.write_iops, dirty_blocks, flush_s, origin_writes })
}
