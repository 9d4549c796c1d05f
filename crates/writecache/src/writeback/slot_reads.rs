// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slot reads: the slots of the next dirty blocks of a sweep are read together, in the order of
//! slots and in large requests, before the runs of these blocks are picked.
//!
//! ```text
//!   sweep:          block 3    block 7,8      block 9 ...            a span, ascending
//!                      │          │  └────┐      │
//!   cache device:  ▒▒[9]▒▒[7]▒▒▒▒▒│▒▒▒▒▒▒[8]▒▒▒[3]    sorted by slot; gaps that cost less than
//!                  └─── read ─────┘  └── read ──┘     another request are read, too, and dropped
//!   memory:        [3][7][8][9] ...                   in the order of the origin: a run lies in
//!                                                     one piece, and is written from there
//! ```
//!
//! A span locks nothing. When a run is gathered, each of its blocks whose version is still the one
//! that was read is there already; the others are read by themselves. The first span takes all of
//! the memory, and the next one is read when half of it is free: the more blocks are read together,
//! the fewer and shorter are the gaps between their slots.
//!
//! What a request to the cache device and its bytes cost is measured (`policy::RequestCosts`), in
//! a short span at first. A span is read only where that takes much less time than its runs would
//! need: few dirty blocks among many slots lie too far apart.
//!
//! Invariants
//! - WC-SR1 Data of a span count only for the very version (slot and stamp, WC-M5) that its slot
//!   held when the read was submitted, and that was not only in the write buffer then; and only if
//!   the read succeeded. They are checked like others (WC-WB2).
//! - WC-SR2 The data of all spans together take at most `writeback_buffer` bytes, which the budget
//!   of the process has (BL-B1).
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Bufs, Class, Reservation, Sector, Slice};
use policy::{RequestCosts, Run};
use reactor::BioFuture;

use super::Writeback;
use crate::config::{Mode, Order};
use crate::map::SlotRef;
use crate::planted::Fault;
use crate::store::Store;

/// Longest read. Chosen: what a disk transfers in a tenth to a fifth of a millisecond, for which
/// the read of a client may have to wait.
const READ_BYTES_MAX: usize = 256 << 10;
/// Longest gap that is read: with half of it a read would still be worth a command of its own.
pub(super) const GAP_BYTES_MAX: u64 = 128 << 10;
/// Reads in flight, and bytes of them. Chosen: enough for the queue of any disk.
const READS_IN_FLIGHT: usize = 128;
const READ_BYTES_IN_FLIGHT: usize = 8 << 20;
/// The same while clients read from the origin, which may be on the same disk: a client's read
/// waits behind all that is queued there, and an elevator serves a long stream in its order.
const READ_BYTES_MAX_BESIDE_CLIENTS: usize = 64 << 10;
const READS_BESIDE_CLIENTS: usize = 8;
const READ_BYTES_BESIDE_CLIENTS: usize = 128 << 10;
/// The first span, of which the costs are learnt.
const SPAN_BYTES_FIRST: usize = 4 << 20;
/// A span takes at most this part of the process's memory that is free.
const FREE_PART: u64 = 4;
/// A span is read in at least so many batches, whose gaps may differ.
const BATCHES: usize = 8;
/// Slots of a batch with other gaps than the best. Chosen: enough to measure what they take.
const TRIED_SLOTS_MAX: usize = 512;

/// A block of a span, the version that is read, and its place in memory.
pub(super) struct SpanBlock {
    pub(super) block: u64,
    pub(super) slot_ref: SlotRef,
    pub(super) chunk: u32,
    pub(super) at: u32,
    /// Its data are in memory.
    pub(super) is_read: Cell<bool>,
}

impl SpanBlock {
    /// Whether the data of this version are in memory (WC-SR1).
    fn holds(&self, slot_ref: SlotRef, store: &Store) -> bool {
        let is_version = self.slot_ref == slot_ref || store.has_fault(Fault::SpanNotCompared);
        is_version && self.is_read.get()
    }
}

/// See the module.
pub(super) struct Span {
    pub(super) blocks: Vec<SpanBlock>,
    /// The blocks that are read, by slot.
    pub(super) order: Vec<u32>,
    pub(super) chunk_bytes: Vec<usize>,
    /// Its memory; nothing before it is clear that the span is read. A chunk is given back when all
    /// its blocks are written: all of them at once would take long.
    pub(super) chunks: RefCell<Vec<Option<Buf>>>,
    pub(super) memory: Option<Reservation>,
    /// How many blocks of each chunk are still to be written.
    left: Vec<Cell<usize>>,
    /// Which blocks the picking task has reached.
    reached: Cell<usize>,
    /// All reads have ended.
    is_done: Cell<bool>,
    /// Bytes of all spans.
    in_use: Rc<Cell<u64>>,
}

/// The blocks of a run in a span, and their memory.
pub(super) struct SpanRun<'a> {
    blocks: &'a [SpanBlock],
    pub(super) data: Slice,
}

impl SpanRun<'_> {
    /// The version of block `nth` that was read.
    pub(super) fn version(&self, nth: usize) -> SlotRef {
        self.blocks[nth].slot_ref
    }

    /// Whether the data of this version of block `nth` of the run are in memory (WC-SR1).
    pub(super) fn has(&self, nth: usize, slot_ref: SlotRef, store: &Store) -> bool {
        self.blocks[nth].holds(slot_ref, store)
    }
}

impl Span {
    /// A span of `blocks`, of which those in `order` are read; `used`: how many are in each chunk.
    pub(super) fn new(
        blocks: Vec<SpanBlock>,
        order: Vec<u32>,
        used: Vec<usize>,
        block_bytes: usize,
        in_use: Rc<Cell<u64>>,
    ) -> Span {
        let chunk_bytes = used.iter().map(|blocks| blocks * block_bytes).collect();
        let left = used.into_iter().map(Cell::new).collect();
        let (chunks, memory) = (RefCell::default(), None);
        let (reached, is_done) = (Cell::new(0), Cell::new(false));
        Span { blocks, order, chunk_bytes, chunks, memory, left, reached, is_done, in_use }
    }

    /// Its memory is allocated.
    pub(super) fn put_memory(&mut self, chunks: Vec<Option<Buf>>, memory: Reservation) {
        let bytes = self.chunk_bytes.iter().sum::<usize>() as u64;
        self.in_use.set(self.in_use.get() + bytes);
        (self.chunks, self.memory) = (RefCell::new(chunks), Some(memory));
    }

    /// Memory of a block and those behind it.
    fn memory_of(&self, block: &SpanBlock, bytes: usize) -> Option<Slice> {
        let (chunk, at) = (block.chunk as usize, block.at as usize);
        Some(self.chunks.borrow()[chunk].as_ref()?.slice(at..at + bytes))
    }

    /// A run is picked: blocks that were passed over will not be written from here.
    fn picked(&self, run: Run) {
        let nth = |block| self.blocks.partition_point(|b| b.block < block);
        let passed = self.reached.get()..nth(run.start);
        self.reached.set(self.reached.get().max(nth(run.end)));
        self.let_go(self.blocks.get(passed).unwrap_or_default());
    }

    /// The write of a run has ended.
    pub(super) fn written(&self, run: Run) {
        let nth = |block| self.blocks.partition_point(|b| b.block < block);
        self.let_go(&self.blocks[nth(run.start)..nth(run.end)]);
    }

    /// The memory of these blocks is not needed any more.
    fn let_go(&self, blocks: &[SpanBlock]) {
        for block in blocks {
            let chunk = block.chunk as usize;
            let left = &self.left[chunk];
            left.set(left.get().saturating_sub(1)); // 0 where it has failed before
            if left.get() == 0 && self.chunks.borrow_mut()[chunk].take().is_some() {
                self.in_use.set(self.in_use.get() - self.chunk_bytes[chunk] as u64);
            }
        }
    }

    /// The run's part of the span, if all of it lies in one piece.
    pub(super) fn find(&self, run: Run, block_bytes: usize) -> Option<SpanRun<'_>> {
        let count = usize::try_from(run.blocks()).ok()?;
        let first = self.blocks.partition_point(|b| b.block < run.start);
        let blocks = self.blocks.get(first..first + count)?;
        let (first, last) = (blocks.first()?, blocks.last()?);
        let is_whole = first.block == run.start && last.block + 1 == run.end;
        if !is_whole || first.chunk != last.chunk {
            return None;
        }
        Some(SpanRun { blocks, data: self.memory_of(first, count * block_bytes)? })
    }

    /// Copies a version of a block, if it is in memory (WC-SR1).
    pub(super) fn copy(
        &self,
        (block, slot_ref): (u64, SlotRef),
        to: &Slice,
        at: usize,
        block_bytes: usize,
        store: &Store,
    ) -> bool {
        let nth = self.blocks.partition_point(|b| b.block < block);
        let Some(found) = self.blocks.get(nth).filter(|b| b.block == block) else { return false };
        if !found.holds(slot_ref, store) {
            return false;
        }
        let Some(data) = self.memory_of(found, block_bytes) else { return false };
        let to = to.slice(at..at + block_bytes);
        data.read(|block| to.write(|out| out.copy_from_slice(block)));
        true
    }

    pub(super) fn end(&self) -> u64 {
        self.blocks.last().map_or(0, |b| b.block + 1)
    }

    /// The end of the read that begins with the slot of `order[at]`, and whether it may go on.
    pub(super) fn read_end(&self, at: usize, gap_blocks: u32, blocks_max: u32) -> usize {
        let slot = |nth: usize| self.blocks[self.order[nth] as usize].slot_ref.slot;
        let (first, mut end) = (slot(at), at + 1);
        while end < self.order.len()
            && slot(end) - slot(end - 1) - 1 <= gap_blocks
            && slot(end) - first < blocks_max
        {
            end += 1;
        }
        end
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let chunks = self.chunks.get_mut().iter().zip(&self.chunk_bytes);
        let left: usize = chunks.filter(|(chunk, _)| chunk.is_some()).map(|(_, bytes)| bytes).sum();
        self.in_use.set(self.in_use.get() - left as u64);
    }
}

/// How far spans are planned.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Planned {
    #[default]
    Nowhere,
    /// Up to this block of this round of the sweep.
    UpTo { round: u64, end: u64 },
    /// Up to there runs read their own slots, because a span was not worth it.
    AloneUpTo { round: u64, end: u64 },
}

/// The state of slot reads.
#[derive(Default)]
pub(super) struct SlotReads {
    /// Spans whose runs are not all picked; ascending.
    spans: RefCell<VecDeque<Rc<Span>>>,
    pub(super) costs: RefCell<RequestCosts>,
    /// Bytes of all spans in memory, each of which has a reference.
    in_use: Rc<Cell<u64>>,
    /// Spans whose reads have not ended.
    reading: Cell<usize>,
    planned: Cell<Planned>,
    /// Batches of reads that have begun.
    batches: Cell<u64>,
}

impl Writeback {
    /// Whether the next span may be planned now.
    fn wants_span(&self) -> bool {
        // First what mostly says no, and costs little.
        let is_flush = self.jobs.flush.borrow().is_some();
        if self.slot_reads.reading.get() > 0 || !(is_flush || self.is_emptied()) {
            return false;
        }
        let is_alone = match self.slot_reads.planned.get() {
            Planned::AloneUpTo { round, end } => {
                let sweep = self.picker.sweep.borrow();
                round == sweep.wraps() && sweep.cursor() < end
            }
            Planned::UpTo { .. } | Planned::Nowhere => false,
        };
        let tuning = self.store.tuning();
        !is_alone
            && !self.in_batches()
            && self.span_buffer() > 0
            && self.slot_reads.in_use.get() <= self.span_buffer() / 2
            && !self.is_limited()
            && self.store.config.mode == Mode::Ssd
            && tuning.writeback_order == Order::Sorted
            && !self.destage.has_stretch()
            && self.retry.blocks() == 0
    }

    /// Plans the next span of the sweep, if it is time. The caller has it read, and then picks.
    /// Returns none when `stop` returns true meanwhile.
    pub(super) async fn plan_span(&self, stop: &impl Fn() -> bool) -> Option<Rc<Span>> {
        let reads = &self.slot_reads;
        if !self.wants_span() {
            return None;
        }
        let (from, next) = self.next_from()?;
        let round = self.picker.sweep.borrow().wraps();
        let start = match reads.planned.get() {
            Planned::AloneUpTo { round: of, end } if of == round && next < end => return None,
            Planned::UpTo { round: of, end } if of == round => end.max(next),
            Planned::AloneUpTo { .. } | Planned::UpTo { .. } | Planned::Nowhere => {
                reads.spans.take(); // of the round before
                next
            }
        };
        // WC-SR2. Others may need memory meanwhile, and would be refused.
        let (most, memory) = (self.span_buffer() - reads.in_use.get(), reactor::memory());
        let most = usize::try_from(most.min(memory.free() / FREE_PART)).ok()?;
        let is_measured = reads.costs.borrow().is_measured();
        let most = if is_measured { most } else { most.min(SPAN_BYTES_FIRST) };
        let span = self.span_from(from, start, most, stop).await;
        let end = span.as_ref().map_or(u64::MAX, Span::end);
        reads.planned.set(Planned::AloneUpTo { round, end });
        let mut span = span?;
        if !self.is_worth_reading(&span).await {
            return None;
        }
        let bytes = span.chunk_bytes.iter().sum::<usize>() as u64;
        span.allocate(memory.reserve(bytes, "reading dirty blocks").ok()?).await;
        let span = Rc::new(span);
        reads.planned.set(Planned::UpTo { round, end });
        reads.spans.borrow_mut().push_back(span.clone());
        reads.reading.set(reads.reading.get() + 1);
        Some(span)
    }

    /// Bytes of all spans in memory, each of which has a reference.
    pub(super) fn span_bytes(&self) -> Rc<Cell<u64>> {
        self.slot_reads.in_use.clone()
    }

    /// Memory for spans; none if half of it is not enough for a chunk.
    fn span_buffer(&self) -> u64 {
        let buffer = u64::from(self.store.tuning().writeback_buffer);
        if buffer / 2 < self.chunk_bytes() { 0 } else { buffer }
    }

    pub(super) fn read_blocks_max(&self) -> u32 {
        let bytes = if self.is_calm() { READ_BYTES_MAX } else { READ_BYTES_MAX_BESIDE_CLIENTS };
        u32::try_from(bytes / self.store.block_bytes()).unwrap_or(1).max(1)
    }

    pub(super) fn gap_blocks(&self, bytes: u64) -> u32 {
        u32::try_from(bytes / u64::from(self.store.config.block_size)).unwrap_or(0)
    }
}

/// A read of a span in flight.
struct SpanRead {
    /// Its slots, as a range of `order`.
    slots: Range<usize>,
    bytes: usize,
    batch: u64,
    io: BioFuture,
}

/// The requests of one batch; when the batch before it ended, and how many writes the origin had
/// got by then.
struct ReadBatch {
    nth: u64,
    commands: u64,
    bytes: u64,
    since_ns: u64,
    origin_writes: u64,
}

impl Writeback {
    /// Reads a span. Ends early when the cache stops: what is left is not in memory then.
    pub(super) async fn read_span(self: Rc<Writeback>, span: Rc<Span>) {
        let of_batch = span.order.len().div_ceil(BATCHES);
        let scrap = Buf::alloc(READ_BYTES_MAX);
        let (mut at, mut batch_end, mut gap_blocks) = (0, 0, 0);
        let mut nth = self.slot_reads.batches.get();
        let (mut reading, mut bytes_in_flight) = (VecDeque::<SpanRead>::new(), 0);
        let mut batch = self.begin_batch(nth);
        let stop = || self.store.life.stopping.get() || self.store.health().is_err();
        loop {
            let (reads_max, bytes_max) = match self.is_calm() {
                true => (READS_IN_FLIGHT, READ_BYTES_IN_FLIGHT),
                false => (READS_BESIDE_CLIENTS, READ_BYTES_BESIDE_CLIENTS),
            };
            while at < span.order.len()
                && reading.len() < reads_max
                && bytes_in_flight < bytes_max
                && !stop()
            {
                if at >= batch_end {
                    batch_end = at + of_batch;
                    nth = self.slot_reads.batches.get();
                    self.slot_reads.batches.set(nth + 1);
                    // While the runs of another span are written nothing can be learnt.
                    let is_alone = Rc::strong_count(&self.slot_reads.in_use) == 2;
                    let tried = if is_alone { nth } else { 0 };
                    let costs = self.slot_reads.costs.borrow();
                    let gap = costs.gap_to_try(tried, GAP_BYTES_MAX);
                    gap_blocks = self.gap_blocks(gap);
                    if costs.is_measured() && gap != costs.gap_to_try(0, GAP_BYTES_MAX) {
                        batch_end = batch_end.min(at + TRIED_SLOTS_MAX);
                    }
                }
                let end = span.read_end(at, gap_blocks, self.read_blocks_max());
                let (sector, data) = self.span_read(&span, at..end, &scrap);
                let bytes = data.len_bytes();
                self.store.stats.slot_reads.add(1);
                self.store.stats.slot_read_bytes.add(bytes as u64);
                let io = reactor::read(&*self.store.device, Class::Background, sector, data);
                reading.push_back(SpanRead { slots: at..end, bytes, batch: nth, io });
                (at, bytes_in_flight) = (end, bytes_in_flight + bytes);
            }
            let Some(SpanRead { slots, bytes, batch: of, io }) = reading.pop_front() else { break };
            let is_read = io.await.is_ok() || self.store.has_fault(Fault::SpanErrorIgnored);
            bytes_in_flight -= bytes;
            for &index in &span.order[slots] {
                span.blocks[index as usize].is_read.set(is_read);
            }
            if of != batch.nth {
                self.end_batch(&batch);
                batch = self.begin_batch(of);
            }
            (batch.commands, batch.bytes) = (batch.commands + 1, batch.bytes + bytes as u64);
        }
        self.end_batch(&batch);
        span.is_done.set(true);
        self.slot_reads.reading.set(self.slot_reads.reading.get() - 1);
        self.store.waits.slot_reads.wake_all();
        self.store.waits.pick.wake_all();
    }

    fn begin_batch(&self, nth: u64) -> ReadBatch {
        let (since_ns, origin_writes) = (reactor::now().0, self.store.stats.origin_writes.get());
        ReadBatch { nth, commands: 0, bytes: 0, since_ns, origin_writes }
    }

    /// Learns from a batch, if the origin got no writes meanwhile: it may be on the same disk.
    fn end_batch(&self, batch: &ReadBatch) {
        if self.store.stats.origin_writes.get() == batch.origin_writes {
            let elapsed_ns = reactor::now().0 - batch.since_ns;
            self.slot_reads.costs.borrow_mut().observe(batch.commands, batch.bytes, elapsed_ns);
        }
    }

    /// The read of some slots with the gaps between them: where it begins, and where the data go.
    fn span_read(&self, span: &Span, range: Range<usize>, scrap: &Buf) -> (Sector, Bufs) {
        let size = self.store.block_bytes();
        let block = |nth: usize| &span.blocks[span.order[nth] as usize];
        let mut data = Bufs::new();
        let mut nth = range.start;
        while nth < range.end {
            let first = block(nth);
            let mut end = nth + 1;
            // Neighbours in slots and in memory.
            while end < range.end
                && block(end).chunk == first.chunk
                && block(end).at as usize == first.at as usize + (end - nth) * size
                && block(end).slot_ref.slot as usize == first.slot_ref.slot as usize + (end - nth)
            {
                end += 1;
            }
            let memory = span.memory_of(first, (end - nth) * size);
            data.push(memory.expect("a chunk is given back after the span is read"));
            if end < range.end {
                let gap = block(end).slot_ref.slot - block(end - 1).slot_ref.slot - 1;
                if gap > 0 {
                    data.push(scrap.slice(0..gap as usize * size));
                }
            }
            nth = end;
        }
        (self.store.slot_sector(block(range.start).slot_ref.slot), data)
    }

    /// The span in which the run lies that is picked now. Drops the spans that lie before it.
    pub(super) fn span_of(&self, run: Run) -> Option<Rc<Span>> {
        let mut spans = self.slot_reads.spans.borrow_mut();
        if spans.is_empty() {
            return None;
        }
        while spans.front().is_some_and(|span| span.end() <= run.start) {
            spans.pop_front();
        }
        let span = spans.front().filter(|span| span.blocks[0].block <= run.start)?;
        span.picked(run);
        Some(span.clone())
    }

    /// Waits until the span is read.
    pub(super) async fn span_is_read(&self, span: &Span) {
        self.store.waits.slot_reads.wait_for(|| span.is_done.get()).await;
    }

    /// Drops all spans; waits for the reads in flight.
    pub(super) async fn drop_spans(&self) {
        let reads = &self.slot_reads;
        reads.spans.take();
        reads.planned.set(Planned::Nowhere);
        self.store.waits.slot_reads.wait_for(|| reads.reading.get() == 0).await;
    }
}
