// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A full write cache in virtual time: random writes without end, which are accepted as fast as
//! writeback frees slots.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, Flags, Target};
use sim::model::{Flash, FlashParams};
use sim::{DiskSpec, Machine, Rng, World};
use writecache::{Config, WriteCache};

use crate::flush::{
    BLOCK_BYTES, Scale, Strategy, cache_device_sectors, percentile, sectors, usize_of,
};
use crate::flush_sim::{Disk, finish};

/// Writers, each with one write in flight.
const WRITERS: usize = 4;
/// Writes, as a multiple of the slots. The first half is not measured.
const ROUNDS: u64 = 3;
const SEED: u64 = 1;

/// The throughput of a full cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Writes of 4 KiB that ended.
    pub writes_per_s: f64,
    /// Their latency.
    pub p99_ns: u64,
    pub worst_ns: u64,
    /// Blocks of gaps written for each block of a client.
    pub filled_per_block: f64,
}

/// Runs a cache of this scale in front of its origin.
///
/// # Errors
/// An unexpected answer of the cache.
pub fn run(scale: Scale, disk: Disk, strategy: Strategy) -> Result<Steady, String> {
    let world = World::calm(SEED);
    let (origin, device) = {
        let mut w = world.borrow_mut();
        let origin = disk.spec(sectors(scale.origin_blocks));
        let flash = Box::new(Flash::new(FlashParams::nvme()));
        let cache = DiskSpec::new("cache", cache_device_sectors(scale.cache_blocks), flash);
        (w.add_disk(origin), w.add_disk(DiskSpec { keeps_history: false, ..cache }))
    };
    let machine = Machine::boot(&world, 1);
    let fills = if strategy == Strategy::Sorted { "0" } else { "1" };
    let args = ["s", "origin", "cache", "4096", "2", "gap_fill", fills];
    let config = Config::parse(&args).map_err(|e| e.chain())?;
    let (origin, device) = (world.borrow().leaf(origin), world.borrow().leaf(device));
    let cache = WriteCache::new("bench", config, origin, device, sectors(scale.origin_blocks));
    let cache = cache.map_err(|e| e.chain())?;
    let target = cache.clone();
    finish(&machine, async move { target.resume().await })?.map_err(|e| e.chain())?;
    finish(&machine, write(cache, scale))?
}

async fn write(cache: Rc<WriteCache>, scale: Scale) -> Result<Steady, String> {
    let writes = ROUNDS * scale.cache_blocks;
    let rng = Rc::new(RefCell::new(Rng::new(SEED)));
    let (next, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(WRITERS)));
    let waits = Rc::new(RefCell::new(Vec::new()));
    let failure = Rc::new(Cell::new(None));
    let ended = Rc::new(reactor::WaitList::new());
    // When the second half began, and the gaps written by then.
    let half = Rc::new(Cell::new((0, 0)));
    let zeroes = Buf::zeroed(usize_of(BLOCK_BYTES));
    let gaps = |cache: &WriteCache| -> u64 {
        let filled = cache.attribute("gap_blocks_filled").ok();
        filled.and_then(|filled| filled.number()).unwrap_or(0)
    };
    for _ in 0..WRITERS {
        let (cache, rng, zeroes) = (cache.clone(), rng.clone(), zeroes.clone());
        let (next, running, half) = (next.clone(), running.clone(), half.clone());
        let (waits, failure, ended) = (waits.clone(), failure.clone(), ended.clone());
        reactor::spawn(async move {
            while next.get() < writes {
                let nth: u64 = next.replace(next.get() + 1);
                if nth == writes / 2 {
                    half.set((reactor::now().0, gaps(&cache)));
                }
                let at = sectors(rng.borrow_mut().below(scale.origin_blocks));
                let (flags, data) = (Flags::empty(), zeroes.all().into());
                let began = reactor::now();
                let written = reactor::write(&*cache, flags, Class::Normal, at, data).await;
                if let Err(status) = written {
                    failure.set(Some(format!("a write: {status}")));
                }
                if nth >= writes / 2 {
                    waits.borrow_mut().push(reactor::now().0 - began.0);
                }
            }
            running.set(running.get() - 1);
            ended.wake_all();
        });
    }
    ended.wait_for(|| running.get() == 0).await;
    if let Some(why) = failure.take() {
        return Err(why);
    }
    let (since_ns, gaps_before) = half.get();
    let mut waits = waits.take();
    waits.sort_unstable();
    let seconds = (reactor::now().0 - since_ns) as f64 / 1e9;
    Ok(Steady {
        writes_per_s: waits.len() as f64 / seconds,
        p99_ns: percentile(&waits, 99).unwrap_or_default(),
        worst_ns: waits.last().copied().unwrap_or_default(),
        filled_per_block: (gaps(&cache) - gaps_before) as f64 / waits.len() as f64,
    })
}
