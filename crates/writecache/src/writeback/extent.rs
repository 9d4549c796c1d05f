// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gap filling: it can be faster to write the blocks between dirty ones too than to skip them: on a
//! disk with a head, and where commands are dear.
//!
//! ```text
//!   sweep ─▶ look ahead over a stretch ─▶ policy::gap_plan: which gaps? ─▶ extents, locked
//!                                                                          │
//!        all writes out and flushed ─▶ read the extents, in order ─────────┘
//!                                          │
//!        extents and plain runs, in the order of the sweep ─▶ one write each, without a break
//! ```
//!
//! A stretch is read completely before any of it is written, when no other write is in flight. Each
//! change between reading and writing costs a seek and half a rotation, and a disk with a cache of
//! its own would mix the reads with its cached writes. Extents that were cut from one filled range
//! are adjacent, so that the disk writes them without waiting for a rotation. Without a head the
//! reads of a stretch show what reads cost, and its writes what writes cost, because nothing else
//! is in flight meanwhile. The costs of such an origin are learnt from a short stretch in which
//! gaps of all lengths are filled, once writes have taken long enough for that.
//!
//! While clients read from the origin no stretch is begun, and the reading of one is stopped:
//! clients would wait for such large transfers.
//!
//! Invariants
//! - WC-GF1 (WC-I6) An extent is in `busy`, gaps included, from before its gaps are read until its
//!   write has ended: no other origin write of these blocks begins meanwhile.
//! - WC-GF2 The data of a gap come from the origin, or from a clean copy with a correct checksum
//!   that was still in its slot after it was read. Without either the write has a hole. If the
//!   write fails the data of the gaps are kept (`failed_gaps`).
//! - WC-GF3 Gaps are filled only where measured costs say that it is faster, or to measure them.
//!   None is longer than a quarter of the largest write.
//! - WC-GF5 With `gap_write_percent` all gaps that were ever locked to be filled take at most so
//!   many percent of the dirty bytes that were written before. Without it none are filled on an
//!   origin that does not rotate, but for a `flush` and in a cache that is being emptied.
use std::collections::VecDeque;
use std::ops::Range;

use block::{Buf, Class, Limits};
use policy::Run;
use policy::gap_plan::{Contents, Fill, Step, explore, fill};

use super::Writeback;
use super::gaps::{Extent, Source};
use crate::config::Order;
use crate::map::State;
use crate::planted::Fault;

/// Length of a stretch, and so the memory for it. On the models of disks 32 MiB take 2 % more time
/// than 64 MiB, and 16 MiB take 4 % more (`docs/hdd-model.md`).
const STRETCH_BYTES: u64 = 32 << 20;
/// Most dirty runs in one stretch.
const STRETCH_RUNS_MAX: usize = 1 << 14;
/// Reads in flight while a stretch is read: one that the disk executes, the next one, and two more
/// for slow hosts. A client's read waits for all of them.
const READS_IN_FLIGHT: usize = 4;
/// The same without a head, and bytes of them. Chosen: enough for the queue of any disk.
const READS_IN_FLIGHT_FLAT: usize = 32;
const READ_BYTES_IN_FLIGHT: usize = 8 << 20;
/// In so many parts a stretch is read without a head, one after the other; each shows what reads of
/// its sizes cost.
const READ_PARTS: usize = 4;
/// The longest short gap where costs are learnt.
const SHORT_GAP_BYTES: u64 = 8 << 10;
/// The longest gap is the largest write divided by this.
const GAP_PART: u64 = 4;
/// If a client has read from the origin within this time, more reads are expected. The same time as
/// in the throttle at the leaf.
const CALM_NS: u64 = 1_000_000_000;
/// Stretches between two measurements of commands.
const STRETCHES_UNMEASURED_MAX: u32 = 64;
/// Blocks of the largest origin write. Extents end at multiples of it.
fn unit(io_bytes: u32, block_size: u32, origin: &Limits) -> u64 {
    let opt = origin.io_opt_bytes;
    let aligned = if opt > 0 && opt < io_bytes { io_bytes - io_bytes % opt } else { io_bytes };
    u64::from(aligned / block_size).max(1)
}

impl Writeback {
    fn fills_gaps(&self) -> bool {
        let tuning = self.store.tuning();
        // With epochs a stretch would have to end with its epoch: not implemented.
        let sorted = tuning.writeback_order == Order::Sorted && !self.store.config.ordered;
        tuning.gaps.fill && sorted && self.gap_room() > 0
    }

    /// WC-GF5: bytes of gaps that may be written now.
    fn gap_room(&self) -> u64 {
        let rotates = self.origin.limits.rotational || self.store.config.assumed_costs.is_some();
        let is_asked_for = || self.jobs.flush.borrow().is_some() || self.is_emptied();
        let Some(percent) = self.store.tuning().gaps.write_percent else {
            return if rotates || is_asked_for() { u64::MAX } else { 0 };
        };
        let stats = &self.store.stats;
        let dirty = stats.origin_write_bytes.get().saturating_sub(stats.gap_bytes_written.get());
        let most = u128::from(dirty) * u128::from(percent) / 100;
        let ignored = self.store.has_fault(Fault::GapsBeyondRoom);
        let locked = if ignored { 0 } else { self.destage.gap_bytes.get() };
        u64::try_from(most).unwrap_or(u64::MAX).saturating_sub(locked)
    }

    /// Whether batches must be large because costs are being measured for the first time.
    pub(super) fn needs_sample(&self) -> bool {
        self.destage.has_sample() && self.is_measuring()
    }

    /// Whether picking must wait until the last batch was measured.
    pub(super) fn is_waiting_for_sample(&self) -> bool {
        self.needs_sample() || (self.settling.blocks.get() > 0 && self.is_measuring())
    }

    /// Whether costs are being measured; not while writers are slowed: batches are small then, and
    /// must not wait.
    fn is_measuring(&self) -> bool {
        let is_known = self.destage.model.borrow().are_sweeps_known();
        self.fills_gaps() && !is_known && !self.in_batches()
    }

    /// Whether no client reads from the origin, or the costs are assumed.
    pub(super) fn is_calm(&self) -> bool {
        if self.store.config.assumed_costs.is_some() {
            return true;
        }
        let since_ns = |at| reactor::now().0.saturating_sub(at);
        self.origin.last_read_ns.get().is_none_or(|at| since_ns(at) > CALM_NS)
    }

    /// Blocks of the largest origin write.
    pub(super) fn io_blocks(&self) -> u64 {
        let io_bytes = self.store.tuning().writeback_io_bytes.min(self.origin.limits.max_io_bytes);
        u64::from(io_bytes / self.store.config.block_size).max(1)
    }

    /// Decides which gaps of the next stretch of the sweep to fill (of at most `dirty_max` dirty
    /// blocks); locks these extents and reads their gaps. Ends early when `stop` returns true.
    pub(super) async fn plan_stretch(&self, dirty_max: u64, stop: &impl Fn() -> bool) {
        if !self.fills_gaps() || !self.is_calm() {
            return;
        }
        let is_learning = self.destage.wants_exploring();
        let costs = self.destage.costs();
        if costs.is_none() && !is_learning {
            return;
        }
        // A block that the origin refuses is written alone, so that its neighbours succeed.
        if self.destage.has_stretch() || self.retry.blocks() > 0 {
            return;
        }
        let is_decided = |(_, start): &(Source, u64)| {
            let (round, end) = self.destage.decided.get();
            round == self.picker.sweep.borrow().wraps() && *start < end
        };
        if self.next_from().as_ref().is_none_or(is_decided) {
            return;
        }
        if costs.is_some() {
            self.begin_or_end_measuring(stop).await;
        }
        let Some((from, start)) = self.next_from().filter(|_| !stop()) else { return };
        let mut runs = self.runs_ahead(from, start, dirty_max);
        let plain_left = self.destage.plain_left.get();
        runs.truncate(plain_left.unwrap_or(usize::MAX));
        let decided = runs.last().map_or(start + 1, |run| run.end);
        self.destage.decided.set((self.picker.sweep.borrow().wraps(), decided));
        if let Some(left) = plain_left {
            return self.destage.plain_left.set(Some(left.saturating_sub(runs.len().max(1))));
        }
        self.destage.from.set(from);
        let (steps, room) = (self.steps(&runs), self.gap_room());
        let fills = match costs.filter(|_| !is_learning) {
            Some(costs) => fill(&costs, &steps, room),
            None => explore(&steps, SHORT_GAP_BYTES, room),
        };
        if is_learning {
            self.destage.explores();
        } else {
            self.destage.planned(fills.contains(&Fill::Read));
        }
        let mut at = 0;
        while at < runs.len() {
            let same = fills[at + 1..].iter().take_while(|fill| **fill != Fill::Skip).count();
            if same > 0 {
                self.lock_filled(&runs[at..=at + same], &fills[at + 1..=at + same]);
            }
            at += same + 1;
        }
        if self.destage.has_stretch() {
            let unmeasured = &self.destage.stretches_unmeasured;
            unmeasured.set(unmeasured.get() + 1);
        }
        if self.destage.stretch.borrow().iter().any(|extent| extent.reads) {
            self.read_stretch(stop).await;
        }
    }

    /// The runs, and the gaps before them.
    fn steps(&self, runs: &[Run]) -> Vec<Step> {
        let bytes_of = |blocks: u64| blocks * u64::from(self.store.config.block_size);
        let step = |(n, run): (usize, &Run)| {
            let before = n.checked_sub(1).map_or(run.start, |m| runs[m].end);
            let gap = before..run.start;
            let bytes = bytes_of(gap.end - gap.start);
            Step { run: bytes_of(run.blocks()), gap: bytes, contents: self.contents(&gap) }
        };
        runs.iter().enumerate().map(step).collect()
    }

    /// When commands have not been measured for long, some runs are written without filling gaps,
    /// to measure them. A flush before them and one after them separate their time from that of
    /// other writes.
    async fn begin_or_end_measuring(&self, stop: &impl Fn() -> bool) {
        let destage = &self.destage;
        if destage.stretches_unmeasured.get() >= STRETCHES_UNMEASURED_MAX {
            self.quiet(stop).await;
            destage.stretches_unmeasured.set(0);
            let commands = usize::try_from(2 * destage.measured_commands.get());
            destage.plain_left.set(Some(commands.expect("at most twice the longest")));
        } else if destage.plain_left.get() == Some(0) {
            self.quiet(stop).await;
            destage.plain_left.set(None);
        }
    }

    /// Waits until no write is in flight and all written blocks are flushed.
    async fn quiet(&self, stop: &impl Fn() -> bool) {
        self.destage.wants_quiet.set(true);
        self.store.waits.settle.wake_all();
        let quiet = || self.in_flight.runs.get() == 0 && self.pending() == 0;
        self.store.waits.writes_ended.wait_for(|| quiet() || stop()).await;
        self.destage.wants_quiet.set(false);
    }

    /// The dirty runs of a stretch that begins at `start`.
    fn runs_ahead(&self, from: Source, start: u64, dirty_max: u64) -> Vec<Run> {
        let bytes = self.destage.stretch_bytes(STRETCH_BYTES);
        let end_max = start + (bytes / u64::from(self.store.config.block_size)).max(1);
        let (mut runs, mut dirty) = (Vec::<Run>::new(), 0);
        let mut at = start;
        while let Some(block) = self.next_eligible(from, at)
            && block < end_max
            && dirty < dirty_max
        {
            let full = runs.len() == STRETCH_RUNS_MAX;
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ if full => break,
                _ => runs.push(Run { start: block, end: block + 1 }),
            }
            dirty += 1;
            at = block + 1;
        }
        runs
    }

    /// Where the data of a gap would come from.
    fn contents(&self, gap: &Range<u64>) -> Contents {
        let is_locked = self.locks.is_awaited(gap) || !self.locks.is_free(gap);
        if gap.end - gap.start > self.io_blocks() / GAP_PART || is_locked {
            return Contents::Closed;
        }
        let slots = self.store.slots.borrow();
        let is_copied = |b| slots.find(b).is_some_and(|found| found.state == State::Clean);
        if gap.clone().all(is_copied) { Contents::Known } else { Contents::Unknown }
    }

    /// Locks runs with the gaps between them, in adjacent extents (WC-GF1).
    fn lock_filled(&self, runs: &[Run], fills: &[Fill]) {
        let unit = unit(
            self.store.tuning().writeback_io_bytes.min(self.origin.limits.max_io_bytes),
            self.store.config.block_size,
            &self.origin.limits,
        );
        let (start, end) = (runs[0].start, runs[runs.len() - 1].end);
        let gaps = runs.windows(2).map(|two| two[0].end..two[1].start);
        let gaps: Vec<_> = gaps.zip(fills).collect();
        let mut first_gap = 0;
        let mut at = start;
        while at < end {
            let cut = ((at / unit + 1) * unit).min(end);
            first_gap += gaps[first_gap..].iter().take_while(|(gap, _)| gap.end <= at).count();
            let inside = gaps[first_gap..].iter().take_while(|(gap, _)| gap.start < cut);
            let mut extent = Extent {
                run: Run { start: at, end: cut },
                gaps: Vec::new(),
                origin: None,
                reads: false,
            };
            for (gap, fill) in inside {
                extent.gaps.push(gap.start.max(at)..gap.end.min(cut));
                extent.reads |= **fill == Fill::Read;
            }
            let filled: u64 = extent.gaps.iter().map(|gap| gap.end - gap.start).sum();
            let gap_bytes = filled * u64::from(self.store.config.block_size);
            self.destage.gap_bytes.set(self.destage.gap_bytes.get() + gap_bytes); // WC-GF5
            self.locks.lock_run(Run { start: at, end: cut });
            if self.store.has_fault(Fault::GapFillUnlocked) {
                extent.gaps.iter().for_each(|gap| self.locks.remove(gap));
            }
            self.in_flight
                .picked_blocks
                .set(self.in_flight.picked_blocks.get() + cut - at - filled);
            self.destage.stretch.borrow_mut().push_back(extent);
            at = cut;
        }
    }

    /// Reads the extents that need it, in their order, when no write is in flight.
    async fn read_stretch(&self, stop: &impl Fn() -> bool) {
        let moves_a_head = self.destage.model.borrow().moves_a_head();
        if moves_a_head {
            self.quiet(stop).await;
        } else {
            let ended = || self.in_flight.runs.get() == 0;
            self.store.waits.writes_ended.wait_for(|| ended() || stop()).await;
        }
        let ranges: Vec<(usize, Run)> = {
            let stretch = self.destage.stretch.borrow();
            let reads = stretch.iter().enumerate().filter(|(_, extent)| extent.reads);
            reads.map(|(n, extent)| (n, extent.run)).collect()
        };
        let parts = if moves_a_head { 1 } else { READ_PARTS };
        for part in ranges.chunks(ranges.len().div_ceil(parts).max(1)) {
            let began = reactor::now().0;
            let (reads, bytes) = self.read_extents(part, moves_a_head, stop).await;
            self.store.stats.gap_bytes_read.add(bytes);
            let (mut model, elapsed_ns) =
                (self.destage.model.borrow_mut(), reactor::now().0 - began);
            model.read(bytes, elapsed_ns);
            model.reads_took(reads, bytes, elapsed_ns);
        }
    }

    /// Reads these extents of the stretch; returns how many it has read, and bytes.
    async fn read_extents(
        &self,
        ranges: &[(usize, Run)],
        moves_a_head: bool,
        stop: &impl Fn() -> bool,
    ) -> (u64, u64) {
        let most = if moves_a_head { READS_IN_FLIGHT } else { READS_IN_FLIGHT_FLAT };
        let (mut reads, mut bytes, mut bytes_in_flight) = (0, 0, 0);
        let mut ranges = ranges.iter();
        let mut reading = VecDeque::new();
        loop {
            while reading.len() < most
                && bytes_in_flight < READ_BYTES_IN_FLIGHT
                && self.is_calm()
                && !stop()
                && let Some(&(n, run)) = ranges.next()
            {
                let len = usize::try_from(run.blocks()).expect("at most writeback_io_bytes");
                let buf = Buf::alloc(len * self.store.block_bytes());
                let (at, all) = (self.store.sector_of(run.start), buf.all().into());
                let io = reactor::read(&*self.origin.device, Class::Background, at, all);
                bytes_in_flight += buf.len();
                reading.push_back((n, buf, io));
            }
            let Some((n, buf, io)) = reading.pop_front() else { break };
            bytes_in_flight -= buf.len();
            // A gap that can't be read is not filled. A client that reads it gets the error.
            if io.await.is_ok() {
                (reads, bytes) = (reads + 1, bytes + buf.len() as u64);
                self.destage.stretch.borrow_mut()[n].origin = Some(buf);
            }
        }
        (reads, bytes)
    }

    /// While there is a stretch: the source of its runs, and the next extent if the sweep has
    /// reached it.
    pub(super) fn next_of_stretch(&self) -> Option<(Source, Option<Extent>)> {
        let from = self.destage.from.get();
        let start = self.destage.stretch.borrow().front()?.run.start;
        let cursor = self.picker.sweep.borrow().cursor();
        let is_before = self.next_eligible(from, cursor).is_some_and(|block| block < start);
        if is_before && self.store.tuning().writeback_order == Order::Sorted {
            return Some((from, None));
        }
        let extent = self.destage.stretch.borrow_mut().pop_front()?;
        self.picker.sweep.borrow_mut().advance_to(extent.run.end);
        Some((from, Some(extent)))
    }

    /// Unlocks the extents that will not be written.
    pub(super) fn drop_stretch(&self) {
        let stretch = self.destage.stretch.take();
        for extent in stretch {
            self.release_extent(extent.run, &extent.gaps, |_| true);
        }
    }
}

impl Writeback {
    /// The write of an extent has ended: unlocks its gaps, and those of its other blocks that
    /// `which` selects.
    pub(super) fn release_extent(
        &self,
        run: Run,
        gaps: &[Range<u64>],
        which: impl Fn(u64) -> bool,
    ) {
        let in_gap = |block: u64| {
            let next = gaps.partition_point(|gap| gap.end <= block);
            gaps.get(next).is_some_and(|gap| gap.contains(&block))
        };
        self.release((run.start..run.end).filter(|&block| !in_gap(block) && which(block)));
        if !self.store.has_fault(Fault::GapFillUnlocked) {
            for gap in gaps {
                self.locks.unlock(gap, &self.store);
            }
        }
    }
}
