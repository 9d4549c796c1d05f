// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run on its way: read from its slots, checked, written to the origin in turn.
use std::rc::Rc;

use block::{Buf, Class, Flags, Slice, Status};
use policy::Run;
use smallvec::SmallVec;

use super::{Picked, Written};
use crate::cache::Cache;
use crate::config::Mutation;
use crate::slots::{Held, State};

/// Reads a run's blocks from their slots and writes them to the origin.
pub(super) async fn write_run(cache: Rc<Cache>, Picked { run, job, ticket }: Picked) {
    let wb = &cache.writeback;
    let good = cache.gather(run).await;
    // WB3. What was gathered is superseded or in this commit.
    let unsaid = |&(block, _): &(u64, Held)| cache.slots.borrow().is_changed(block);
    if (cache.commits.is_running() || good.blocks.iter().any(unsaid))
        && !cache.mutation(Mutation::WritebackBeforeCommit)
    {
        cache.commit().await.ok();
    }
    let good = if cache.health().is_ok() { good } else { Gathered { blocks: vec![], ..good } };
    let mut written = Vec::with_capacity(good.blocks.len());
    let size = cache.block_bytes();
    // A disk without a cache of its own sorts no more than its queue holds: it must get the runs in
    // the order of the sweep, whichever were read first.
    wb.turns.come(ticket).await;
    let fua = cache.tuning().fua;
    let doubt = cache.origin_doubt();
    let mut parts = SmallVec::<[_; 1]>::new();
    let mut at = 0;
    while at < good.blocks.len() {
        let contiguous = |n: usize| good.blocks[n].0 == good.blocks[at].0 + (n - at) as u64;
        let end = (at..good.blocks.len()).find(|&n| !contiguous(n)).unwrap_or(good.blocks.len());
        let first = good.blocks[at].0;
        let from = usize::try_from(first - run.start).expect("within the run") * size;
        let data = good.buf.slice(from..from + (end - at) * size);
        let sector = cache.sector_of(first);
        cache.stats.origin_writes.add(1);
        cache.stats.origin_write_bytes.add(data.len() as u64);
        let flags = if fua { Flags::BACKGROUND | Flags::FUA } else { Flags::BACKGROUND };
        let class = Class::Background;
        parts.push((at..end, reactor::write(&*cache.origin, flags, class, sector, data.into())));
        at = end;
    }
    wb.turns.pass_on(ticket);
    for (part, io) in parts {
        let blocks = good.blocks[part].iter();
        match io.await {
            Err(status) if !cache.mutation(Mutation::ForgetWriteError) => {
                cache.write_failed(blocks.map(|b| b.0), job, status);
            }
            // RT2. It is not said of what a flush took with it that failed meanwhile.
            Ok(()) if doubt != cache.origin_doubt() => wb.retry.again(blocks.map(|b| b.0)),
            _ => {
                wb.volatile.set(wb.volatile.get() || !fua);
                let one = |&(block, held): &(u64, Held)| Written { block, held, job, doubt };
                written.extend(blocks.map(one));
            }
        }
    }
    // What was not written stays dirty and may be picked again.
    wb.release(
        (run.start..run.end)
            .filter(|b| written.binary_search_by_key(b, |w: &Written| w.block).is_err()),
    );
    wb.written.borrow_mut().extend(written);
    wb.in_flight_blocks.set(wb.in_flight_blocks.get() - run.blocks());
    wb.in_flight_runs.set(wb.in_flight_runs.get() - 1);
    cache.changed.wake_all();
}

/// A run's data, and which of its blocks are good.
struct Gathered {
    buf: Buf,
    blocks: Vec<(u64, Held)>,
}

impl Cache {
    /// Reads every block of the run that is still dirty, and checks it (WB2).
    async fn gather(&self, run: Run) -> Gathered {
        let size = self.block_bytes();
        let count = usize::try_from(run.blocks()).expect("at most writeback_io_bytes");
        let buf = Buf::alloc(count * size);
        let mut blocks = Vec::with_capacity(count);
        let mut reads = Vec::new();
        {
            let slots = self.slots.borrow();
            for block in run.start..run.end {
                if let Some(found) = slots.find(block).filter(|f| f.state == State::Dirty) {
                    blocks.push((block, found.held, found.crc));
                }
            }
        }
        let mut at = 0;
        while at < blocks.len() {
            let (first, held, _) = blocks[at];
            let mut end = at + 1;
            while end < blocks.len()
                && blocks[end].0 == first + (end - at) as u64
                && blocks[end].1.slot as usize == held.slot as usize + (end - at)
            {
                end += 1;
            }
            let from = usize::try_from(first - run.start).expect("within the run") * size;
            let data = buf.slice(from..from + (end - at) * size);
            let sector = self.slot_sector(held.slot);
            let io = reactor::read(&*self.device, Class::Background, sector, data.into());
            reads.push((at..end, io));
            at = end;
        }
        let mut good = Vec::with_capacity(blocks.len());
        for (range, io) in reads {
            let together = io.await;
            for &(block, held, crc) in &blocks[range] {
                let from = usize::try_from(block - run.start).expect("within the run") * size;
                let read = match together {
                    Ok(()) => Ok(()),
                    // Only one of them may be unreadable.
                    Err(_) => self.read_slot(held, buf.slice(from..from + size)).await,
                };
                let mut slots = self.slots.borrow_mut();
                if !slots.is_intact(held) {
                    continue; // superseded, and its slot used again: the newer version is dirty
                }
                let sum = || buf.slice(from..from + size).read(format::checksum);
                if read.is_err() && self.mutation(Mutation::WriteBackUnreadable) {
                    good.push((block, held));
                } else if let Err(status) = read {
                    drop(slots);
                    self.cache_read_failed(block, held, status);
                } else if crc.is_none_or(|crc| sum() == crc) {
                    good.push((block, held));
                } else {
                    // Never to the origin: the block reads as an error until it is rewritten.
                    slots.quarantine(block, held);
                    self.stats.checksum_errors.add(1);
                }
            }
        }
        Gathered { buf, blocks: good }
    }

    async fn read_slot(&self, held: Held, data: Slice) -> Result<(), Status> {
        let sector = self.slot_sector(held.slot);
        reactor::read(&*self.device, Class::Background, sector, data.into()).await
    }
}
