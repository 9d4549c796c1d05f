// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The plan of a span: its blocks, their places in memory, and the order in which their slots are
//! read.
//!
//! A span has tens of thousands of blocks, and the core serves no client while it computes. So
//! everything here is done in pieces, and clients are served between two of them.
//!
//! Invariant
//! - WC-SR3 Between two yields a plan looks at no more than [`PIECE_BLOCKS`] blocks, sorts no more
//!   than [`PIECE_BLOCKS`] and [`GROUP_SLOTS`] slots, or allocates no more than [`PIECE_BYTES`].
use std::cell::Cell;
use std::collections::BTreeMap;

use block::{Buf, Reservation};
use reactor::yield_now;

use super::Writeback;
use super::gaps::Source;
use super::pieces::{PIECE_BLOCKS, Pieces};
use super::slot_reads::{GAP_BYTES_MAX, Span, SpanBlock};
use crate::map::SlotRef;

/// Slots that are sorted together: at most so many blocks have them. Chosen: a fifth of a
/// millisecond.
const GROUP_SLOTS: u32 = 4096;
/// Memory that is allocated between two yields. Chosen: a tenth of a millisecond, where the system
/// has to find it.
const PIECE_BYTES: usize = 256 << 10;
/// Memory of a span is allocated in chunks of so many bytes, or of one block: a piece each. A run
/// that is longer lies in several, and its blocks are copied when it is gathered.
const CHUNK_BYTES: u64 = PIECE_BYTES as u64;
/// Fewer blocks are not worth a span.
const BLOCKS_MIN: usize = 4;
/// A span must save at least a quarter of the time, because its first run has to wait for all of
/// it.
const SAVED_PART: u64 = 4;

/// The blocks of a span, while they are collected.
struct SpanPlan {
    block_bytes: usize,
    /// Blocks of the longest run, or of the longest part of one in a chunk.
    io_blocks: usize,
    /// Blocks of a chunk, and the most chunks (WC-SR2).
    chunk_blocks: usize,
    chunks_max: usize,
    blocks: Vec<SpanBlock>,
    /// How many blocks each chunk has.
    used: Vec<usize>,
    /// Where the run begins to which the last block belongs.
    run_first: usize,
    /// Places of the blocks that are read, by groups of neighbouring slots.
    groups: BTreeMap<u32, Vec<u32>>,
    reads: usize,
}

impl SpanPlan {
    /// Adds a block, which lies behind all others; `is_read`: its slot is read. Returns false, and
    /// adds nothing, if there is no memory for it.
    fn add(&mut self, block: u64, slot_ref: SlotRef, is_read: bool) -> bool {
        let goes_on = self.blocks.last().is_some_and(|last| last.block + 1 == block);
        if !goes_on || self.blocks.len() - self.run_first == self.io_blocks {
            self.run_first = self.blocks.len();
        }
        let mut chunk = self.used.len() - 1;
        if self.used[chunk] == self.chunk_blocks {
            if self.used.len() == self.chunks_max {
                return false;
            }
            // The run goes into the next chunk as a whole.
            chunk += 1;
            self.used.push(0);
            for moved in &mut self.blocks[self.run_first..] {
                (moved.chunk, moved.at) = place(chunk, self.used[chunk] * self.block_bytes);
                self.used[chunk] += 1;
            }
        }
        if is_read {
            let nth = u32::try_from(self.blocks.len()).expect("a span has less than 4 GiB");
            self.groups.entry(slot_ref.slot / GROUP_SLOTS).or_default().push(nth);
            self.reads += 1;
        }
        let (chunk, at) = place(chunk, self.used[chunk] * self.block_bytes);
        self.used[chunk as usize] += 1;
        self.blocks.push(SpanBlock { block, slot_ref, chunk, at, is_read: Cell::new(false) });
        true
    }

    /// The blocks that are read, by slot.
    async fn order(&mut self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.reads);
        let mut pieces = Pieces::of_blocks();
        for mut group in std::mem::take(&mut self.groups).into_values() {
            group.sort_unstable_by_key(|nth| self.blocks[*nth as usize].slot_ref.slot);
            order.extend_from_slice(&group);
            pieces.done(group.len()).await;
        }
        order
    }
}

/// A place in memory: a chunk, and a byte of it.
fn place(chunk: usize, at: usize) -> (u32, u32) {
    let small = |number: usize| u32::try_from(number).expect("a span has less than 4 GiB");
    (small(chunk), small(at))
}

impl Writeback {
    /// Memory of a chunk.
    pub(super) fn chunk_bytes(&self) -> u64 {
        let size = u64::from(self.store.config.block_size);
        (CHUNK_BYTES / size).max(1) * size
    }

    /// The blocks of a source from `start` on, for which `bytes` of memory are enough; without that
    /// memory. Gives up when `stop` returns true.
    pub(super) async fn span_from(
        &self,
        from: Source,
        start: u64,
        bytes: usize,
        stop: &impl Fn() -> bool,
    ) -> Option<Span> {
        let block_bytes = self.store.block_bytes();
        let chunk_blocks = usize::try_from(self.chunk_bytes()).ok()? / block_bytes;
        let io_blocks = usize::try_from(self.io_blocks()).ok()?.min(chunk_blocks);
        let chunks_max = bytes / (chunk_blocks * block_bytes); // WC-SR2
        if chunks_max == 0 {
            return None;
        }
        let (blocks, used, run_first) = (Vec::new(), vec![0], 0);
        let (groups, reads) = (BTreeMap::new(), 0);
        let mut plan = SpanPlan {
            block_bytes,
            io_blocks,
            chunk_blocks,
            chunks_max,
            blocks,
            used,
            run_first,
            groups,
            reads,
        };
        let mut next = Some(start);
        while let Some(at) = next {
            next = self.add_piece(&mut plan, from, at);
            if next.is_some() {
                yield_now().await; // WC-SR3
            }
            if stop() {
                return None;
            }
        }
        if plan.reads < BLOCKS_MIN {
            return None;
        }
        let order = plan.order().await;
        Some(Span::new(plan.blocks, order, plan.used, block_bytes, self.span_bytes()))
    }

    /// Adds the next blocks of a source to a plan; returns where those behind them begin, if there
    /// are more and there is memory for them.
    fn add_piece(&self, plan: &mut SpanPlan, from: Source, start: u64) -> Option<u64> {
        let slots = self.store.slots.borrow();
        let mut blocks = Vec::with_capacity(PIECE_BLOCKS);
        let mut next = Some(start);
        while blocks.len() < PIECE_BLOCKS
            && let Some(block) = next.and_then(|at| self.next_eligible(from, at))
        {
            blocks.push(block);
            next = Some(block + 1);
        }
        let is_last = blocks.len() < PIECE_BLOCKS;
        // By themselves: the processor then waits for many of their slots at the same time.
        let versions: Vec<_> = blocks.iter().map(|&block| slots.to_write(block)).collect();
        for (block, version) in blocks.into_iter().zip(versions) {
            let Some((slot_ref, _)) = version else { continue };
            let is_read = slots.place_of(slot_ref.slot).is_none();
            if !plan.add(block, slot_ref, is_read) {
                return None;
            }
        }
        next.filter(|_| !is_last)
    }

    /// Whether the span is read in much less time than its runs would be, or shows what it takes.
    pub(super) async fn is_worth_reading(&self, span: &Span) -> bool {
        let (cost, gap) = {
            let reads = self.slot_reads.costs.borrow();
            if !reads.is_measured() {
                return true;
            }
            (reads.costs(), reads.gap_to_try(0, GAP_BYTES_MAX))
        };
        let gap_blocks = self.gap_blocks(gap);
        let slot = |nth: usize| span.blocks[span.order[nth] as usize].slot_ref.slot;
        let (mut at, mut requests, mut blocks) = (0, 0, 0);
        let mut pieces = Pieces::of_blocks();
        while at < span.order.len() {
            let end = span.read_end(at, gap_blocks, self.read_blocks_max());
            blocks += u64::from(slot(end - 1) - slot(at)) + 1;
            pieces.done(end - at).await;
            (at, requests) = (end, requests + 1);
        }
        // A run reads neighbours whose slots are neighbours, too, in one request.
        let follows = |two: &[SpanBlock]| {
            two[0].block + 1 == two[1].block && two[0].slot_ref.slot + 1 == two[1].slot_ref.slot
        };
        let mut alone = span.blocks.len() as u64;
        for at in (0..span.blocks.len()).step_by(PIECE_BLOCKS) {
            let end = (at + PIECE_BLOCKS + 1).min(span.blocks.len());
            alone -= span.blocks[at..end].windows(2).filter(|two| follows(two)).count() as u64;
            pieces.done(end - at).await;
        }
        let size = u64::from(self.store.config.block_size);
        let alone_ns = cost.time_ns(alone, span.blocks.len() as u64 * size);
        let together_ns = cost.time_ns(requests, blocks * size);
        together_ns.saturating_add(alone_ns / SAVED_PART) <= alone_ns
    }
}

impl Span {
    /// Allocates its memory, for which it has room.
    pub(super) async fn allocate(&mut self, memory: Reservation) {
        let mut pieces = Pieces::of(PIECE_BYTES);
        let mut chunks = Vec::with_capacity(self.chunk_bytes.len());
        for &bytes in &self.chunk_bytes {
            chunks.push(Some(Buf::alloc(bytes)));
            pieces.done(bytes).await;
        }
        self.put_memory(chunks, memory);
    }
}
