// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of writeback: read from its slots, checked, and written to the origin in its turn.
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Flags, Nanos, Slice, Status};
use policy::Run;
use reactor::BioFuture;
use smallvec::SmallVec;

use super::Writeback;
use super::gaps::Extent;
use super::slot_reads::{Span, SpanRun};
use super::{PickedRun, WrittenBlock};
use crate::map::{SlotRef, State};
use crate::planted::Fault;

/// What the core computes for a block of a run: measured, 0.45 ms for 256 blocks.
const GATHER_NS: u64 = 1_700;

/// One item for each block or each write of a run. Scattered blocks are runs of one block, and need
/// no allocation.
type PerBlock<T> = SmallVec<[T; 4]>;

/// A version that is read for a run.
struct RunBlock {
    block: u64,
    slot_ref: SlotRef,
    /// None if it is not known.
    crc: Option<u32>,
    /// A clean copy, to fill a gap.
    in_gap: bool,
}

/// Reads a run's blocks from their slots and writes them to the origin.
pub(super) async fn write_run(wb: Rc<Writeback>, picked: PickedRun) {
    let PickedRun { run, extent, span, job, ticket } = picked;
    let (store, began) = (&wb.store, reactor::now());
    if let Some(span) = &span {
        wb.span_is_read(span).await;
    }
    let mut good = wb.gather(run, extent.as_ref(), span.as_deref()).await;
    reactor::count_work(Nanos(GATHER_NS * run.blocks()));
    // WC-WB3. After this commit every gathered version is logged or superseded.
    let unlogged = |&(block, _): &(u64, SlotRef)| store.slots.borrow().needs_logging(block);
    if (store.commits.is_running() || good.blocks.iter().any(unlogged))
        && !store.has_fault(Fault::WritebackBeforeCommit)
    {
        store.commit().await.ok();
    }
    if store.health().is_err() {
        good.blocks.clear();
    }
    let mut written = PerBlock::with_capacity(good.blocks.len());
    let size = store.block_bytes();
    let slice = |range: &Range<u64>| {
        let at = |block: u64| usize::try_from(block - run.start).expect("within the run") * size;
        good.data.slice(at(range.start)..at(range.end))
    };
    // A disk without a cache of its own sorts only the requests in its queue: it must get the runs
    // in the order of the sweep, not in the order in which they were read.
    wb.in_flight.send_order.wait_turn(ticket).await;
    let fua = store.tuning().fua;
    let flush_errors = wb.origin_flush_errors();
    let mut parts = PerBlock::new();
    let mut failed = false;
    wb.fills.begin(&good.gaps);
    for part in good.parts() {
        let data = slice(&part.range);
        let sector = store.sector_of(part.range.start);
        let bytes = data.len() as u64;
        store.stats.origin_writes.add(1);
        store.stats.origin_write_bytes.add(bytes);
        store.stats.gap_blocks_filled.add(part.filled());
        store.stats.gap_bytes_written.add(part.filled() * size as u64);
        let class = Class::Background;
        let flags = if fua { Flags::BACKGROUND | Flags::FUA } else { Flags::BACKGROUND };
        let gap = wb.destage.sent(sector.bytes(), bytes);
        let io = reactor::write(&*wb.origin.device, flags, class, sector, data.into());
        parts.push((part, gap, io));
    }
    wb.in_flight.send_order.advance(ticket);
    for (part, gap, io) in &mut parts {
        let blocks = good.blocks[part.dirty.clone()].iter();
        let outcome = io.await;
        let part_bytes = (part.range.end - part.range.start) * size as u64;
        wb.count_ended(part_bytes, outcome.is_ok());
        match outcome {
            Err(status) if !store.has_fault(Fault::ForgetWriteError) => {
                for gap in between(&part.range, blocks.clone().map(|b| b.0)) {
                    failed = true;
                    wb.keep_gap(gap.clone(), slice(&gap)).await;
                }
                wb.write_failed(blocks.map(|b| b.0), job, status);
            }
            // WC-RT2. A flush that failed meanwhile may have lost this write.
            Ok(()) if flush_errors != wb.origin_flush_errors() => {
                wb.retry.requeue(blocks.map(|b| b.0));
            }
            _ => {
                wb.settling.volatile.set(wb.settling.volatile.get() || !fua);
                let copied = if good.copied { part.filled() } else { 0 };
                wb.destage.wrote(part_bytes, copied * size as u64, *gap);
                let one = |&(block, slot_ref): &(u64, SlotRef)| WrittenBlock {
                    block,
                    slot_ref,
                    job,
                    flush_errors,
                };
                written.extend(blocks.map(one));
            }
        }
    }
    if failed {
        store.commit().await.ok(); // WC-SP1; after an error they stay in memory
    }
    wb.fills.end(&good.gaps, failed, &wb.store);
    // Blocks that were not written stay dirty and may be picked again.
    let gaps = extent.map_or(Vec::new(), |extent| extent.gaps);
    wb.release_extent(run, &gaps, |b| {
        written.binary_search_by_key(&b, |w: &WrittenBlock| w.block).is_err()
    });
    drop(good);
    if let Some(span) = &span {
        span.written(run);
    }
    let is_written = !written.is_empty();
    wb.await_settling(written);
    if !store.has_fault(Fault::LeakedCount) {
        wb.in_flight.blocks.set(wb.in_flight.blocks.get() - run.blocks());
    }
    wb.in_flight.runs.set(wb.in_flight.runs.get() - 1);
    wb.end_run(began, is_written);
    store.waits.write_ended();
}

/// The ranges of `range` between `blocks`, which ascend.
fn between(range: &Range<u64>, blocks: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = range.start;
    for block in blocks.chain([range.end]) {
        if at < block {
            gaps.push(at..block);
        }
        at = block + 1;
    }
    gaps
}

/// One origin write: consecutive blocks. `dirty` selects those of the gathered blocks that are in
/// it.
struct OriginWrite {
    range: Range<u64>,
    dirty: Range<usize>,
}

impl OriginWrite {
    fn filled(&self) -> u64 {
        self.range.end - self.range.start - self.dirty.len() as u64
    }
}

/// The data of a run: which of its blocks are good, and which gaps have data; both ascending.
struct RunData {
    data: Slice,
    blocks: PerBlock<(u64, SlotRef)>,
    gaps: Vec<Range<u64>>,
    /// The data of the gaps are copies from the cache: the origin was not read.
    copied: bool,
}

impl RunData {
    /// The writes of the run: each as long as possible, and with at least one dirty block.
    fn parts(&self) -> PerBlock<OriginWrite> {
        let mut parts = PerBlock::<OriginWrite>::new();
        let mut gaps = self.gaps.iter().cloned().peekable();
        let mut take = |range: Range<u64>, dirty: Range<usize>| match parts.last_mut() {
            Some(part) if part.range.end == range.start => {
                (part.range.end, part.dirty.end) = (range.end, dirty.end);
            }
            _ => parts.push(OriginWrite { range, dirty }),
        };
        for (n, &(block, _)) in self.blocks.iter().enumerate() {
            while let Some(gap) = gaps.next_if(|gap| gap.start < block) {
                take(gap, n..n);
            }
            take(block..block + 1, n..n + 1);
        }
        gaps.for_each(|gap| take(gap, self.blocks.len()..self.blocks.len()));
        parts.retain(|part| !part.dirty.is_empty());
        parts
    }
}

impl Writeback {
    /// A write of the origin has ended.
    fn count_ended(&self, bytes: u64, is_ok: bool) {
        self.destage.ended(bytes, is_ok);
        self.store.stats.written_back_bytes.add(if is_ok { bytes } else { 0 });
    }

    /// The origin has completed these writes; they wait for a flush of it.
    fn await_settling(&self, written: PerBlock<WrittenBlock>) {
        if self.store.slots.borrow_mut().sent_in_phase(written.iter().map(|w| w.block)) {
            self.recheck(); // the next epoch can be written
        }
        self.settling.written.borrow_mut().extend(written);
    }

    /// Reads every block of the run that is still dirty, and checks it (WC-WB2). In an extent it
    /// also reads clean copies for gaps that were not read from the origin (WC-GF2).
    async fn gather(&self, run: Run, extent: Option<&Extent>, span: Option<&Span>) -> RunData {
        let size = self.store.block_bytes();
        let count = usize::try_from(run.blocks()).expect("at most writeback_io_bytes");
        let gaps = extent.map_or(&[][..], |extent| &extent.gaps);
        let origin = extent.and_then(|extent| extent.origin.clone());
        let mut known = if origin.is_some() { gaps.to_vec() } else { Vec::new() };
        let wants_copies = origin.is_none();
        let in_place = span.filter(|_| extent.is_none()).and_then(|span| span.find(run, size));
        let data = match &in_place {
            Some(in_place) => in_place.data.clone(),
            None => origin.unwrap_or_else(|| Buf::alloc(count * size)).all(),
        };
        let blocks = self.to_gather(run, gaps, wants_copies, in_place.as_ref());
        let mut reads = self.read_slots(&blocks, (run.start, &data), span, in_place.as_ref());
        let mut good = PerBlock::with_capacity(blocks.len());
        for (range, io) in &mut reads {
            let together = match io {
                Some(io) => io.await,
                None => Ok(()), // of the span, or from the write buffer
            };
            for &RunBlock { block, slot_ref, crc, in_gap } in &blocks[range.clone()] {
                let from = usize::try_from(block - run.start).expect("within the run") * size;
                let read = match together {
                    Ok(()) => Ok(()),
                    // Perhaps only one of the blocks is unreadable: read each by itself.
                    Err(_) => self.read_slot(slot_ref, data.slice(from..from + size)).await,
                };
                let unchecked = in_gap && self.store.has_fault(Fault::GapFillUnchecked);
                if !self.store.slots.borrow().is_intact(slot_ref) && !unchecked {
                    continue; // superseded, and its slot was reused: the newer version is dirty
                }
                let sum = || data.slice(from..from + size).read(|b| self.store.config.checksum(b));
                let sum = |crc| sum() == crc;
                if in_gap {
                    // WC-GF2. A damaged copy leaves a hole.
                    if unchecked || (read.is_ok() && crc.is_none_or(sum)) {
                        known.push(block..block + 1);
                    }
                } else if read.is_err() && self.store.has_fault(Fault::WriteBackUnreadable) {
                    good.push((block, slot_ref));
                } else if let Err(status) = read {
                    self.cache_read_failed(block, slot_ref, status);
                } else if crc.is_none_or(sum) {
                    good.push((block, slot_ref));
                } else {
                    // It is never written to the origin: reads of the block fail until it is
                    // written again.
                    self.drop_rotten(block, slot_ref);
                }
            }
        }
        if wants_copies {
            self.store.stats.gap_blocks_copied.add(known.len() as u64);
        }
        RunData { data, blocks: good, gaps: known, copied: wants_copies }
    }

    /// The versions of a run that are read: block, version, checksum, and whether it is in a gap.
    fn to_gather(
        &self,
        run: Run,
        gaps: &[Range<u64>],
        wants_copies: bool,
        in_place: Option<&SpanRun<'_>>,
    ) -> PerBlock<RunBlock> {
        let mut blocks = PerBlock::new();
        let slots = self.store.slots.borrow();
        let mut gaps = gaps.iter().peekable();
        for block in run.start..run.end {
            while gaps.next_if(|gap| gap.end <= block).is_some() {}
            // A block of a gap that has become dirty since is written in a later run.
            let in_gap = gaps.peek().is_some_and(|gap| gap.contains(&block));
            if in_gap && !wants_copies {
                continue;
            }
            let copy = || slots.find(block).filter(|f| f.state == State::Clean);
            let found = match (in_gap, in_place) {
                (true, _) => copy().map(|f| (f.slot_ref, f.crc)),
                (false, None) => slots.to_write(block),
                (false, Some(of_span)) => {
                    let expected = of_span.version((block - run.start) as usize);
                    slots.to_write_most_likely(block, expected)
                }
            };
            if let Some((slot_ref, crc)) = found {
                blocks.push(RunBlock { block, slot_ref, crc, in_gap });
            }
        }
        blocks
    }

    /// Begins to read blocks into the memory of their run, of which `data` is that from `start` on:
    /// neighbours in both together; nothing is in flight for those that are in memory.
    fn read_slots(
        &self,
        blocks: &[RunBlock],
        (start, data): (u64, &Slice),
        span: Option<&Span>,
        in_place: Option<&SpanRun<'_>>,
    ) -> PerBlock<(Range<usize>, Option<BioFuture>)> {
        let size = self.store.block_bytes();
        let place =
            |n: usize| usize::try_from(blocks[n].block - start).expect("within the run") * size;
        let in_buffer = |n: usize| {
            let is_there = self.take_buffered(blocks[n].slot_ref, data, place(n));
            is_there && !self.store.has_fault(Fault::WritebackPastBuffer)
        };
        let in_span = |n: usize| {
            let RunBlock { block, slot_ref, in_gap, .. } = blocks[n];
            match in_place {
                Some(in_place) => in_place.has(place(n) / size, slot_ref, &self.store),
                // An extent lies beside what was read for its gaps, a long run in several chunks.
                None => span.filter(|_| !in_gap).is_some_and(|span| {
                    span.copy((block, slot_ref), data, place(n), size, &self.store)
                }),
            }
        };
        let follows = |n: usize| {
            let (before, next) = (&blocks[n - 1], &blocks[n]);
            next.block == before.block + 1 && next.slot_ref.slot == before.slot_ref.slot + 1
        };
        let mut reads = PerBlock::new();
        let mut at = 0;
        while at < blocks.len() {
            let mut end = at + 1;
            if in_span(at) || in_buffer(at) {
                reads.push((at..end, None));
                at = end;
                continue;
            }
            while end < blocks.len()
                && follows(end)
                && self.store.buffered(blocks[end].slot_ref.slot).is_none()
                && !in_span(end)
            {
                end += 1;
            }
            let to = data.slice(place(at)..place(at) + (end - at) * size);
            let sector = self.store.slot_sector(blocks[at].slot_ref.slot);
            let io = reactor::read(&*self.store.device, Class::Background, sector, to.into());
            reads.push((at..end, Some(io)));
            at = end;
        }
        reads
    }

    /// Copies a version from the write buffer, if it is there.
    fn take_buffered(&self, slot_ref: SlotRef, run: &Slice, at: usize) -> bool {
        let Some(data) = self.store.buffered(slot_ref.slot) else { return false };
        let to = run.slice(at..at + data.len());
        data.read(|block| to.write(|out| out.copy_from_slice(block)));
        true
    }

    async fn read_slot(&self, slot_ref: SlotRef, data: Slice) -> Result<(), Status> {
        let sector = self.store.slot_sector(slot_ref.slot);
        reactor::read(&*self.store.device, Class::Background, sector, data.into()).await
    }
}
