// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of gap filling: planned filled writes, and the measured costs of writes. The rules are
//! in `extent`.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;

use block::Buf;
use policy::Run;
use policy::destage::{Batch, CostModel, Costs, SAMPLE_NS_MIN};

use super::write_window::WriteWindow;

/// Commands of the first batch that is measured: about a tenth of a second. A larger batch would
/// leave no gaps: a disk's cache takes many writes before the first flush ends.
const MEASURED_COMMANDS: u64 = 256;
/// Commands of the largest measured batch: less than is written between two flushes.
const MEASURED_COMMANDS_MAX: u64 = 8192;

/// Length of the stretch from which the costs of an origin without a head are learnt: enough for
/// requests of all sizes. The first ones that are planned by them have half of it. Chosen.
const STRETCH_BYTES_FIRST: u64 = 8 << 20;
/// Learning takes at most this part of the time of all writes, as far as its costs are known.
const EXPLORED_PART: u64 = 16;
/// So many of the first ones are short: a volume that saves what it is not asked for makes the
/// first long requests look cheap.
const STRETCHES_SHORT: u32 = 4;
/// The time of the first such stretch, before anything is known: 8 MiB are read and written by a
/// usual SSD.
const EXPLORED_NS_FIRST: u64 = 11_000_000;
/// So many stretches of which none was read are enough to learn the costs of reads again.
const STRETCHES_UNREAD_MAX: u32 = 64;

/// From which blocks a run is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Blocks of a `flush`, and blocks that are old enough.
    Asked,
    /// Any dirty block.
    Any,
    /// Blocks that only a `drain` needs to write.
    Drain,
}

/// A filled write: when it was locked all blocks of `run` were dirty, except `gaps`.
pub(super) struct Extent {
    pub(super) run: Run,
    pub(super) gaps: Vec<Range<u64>>,
    /// The origin's data of `run`, if they were read.
    pub(super) origin: Option<Buf>,
    pub(super) reads: bool,
}

impl Extent {
    /// The ranges between the gaps.
    pub(super) fn dirty_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = [self.run.start].into_iter().chain(self.gaps.iter().map(|gap| gap.end));
        let ends = self.gaps.iter().map(|gap| gap.start).chain([self.run.end]);
        starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty())
    }
}

/// The state of gap filling.
pub(super) struct Destage {
    pub(super) model: RefCell<CostModel>,
    /// Extents that are locked, and read if necessary, but not picked yet; ascending.
    pub(super) stretch: RefCell<VecDeque<Extent>>,
    /// The source of the stretch.
    pub(super) from: Cell<Source>,
    /// Gaps are decided up to this block of this round of the sweep.
    pub(super) decided: Cell<(u64, u64)>,
    /// The picking task waits until all picked blocks are written and flushed.
    pub(super) wants_quiet: Cell<bool>,
    pub(super) stretches_unmeasured: Cell<u32>,
    /// While commands are measured again: how many are not decided yet.
    pub(super) plain_left: Cell<Option<usize>>,
    /// Commands of a measured batch; doubled each time that a batch was too short.
    pub(super) measured_commands: Cell<u64>,
    sample: RefCell<Sample>,
    /// Writes of an origin without a head.
    window: RefCell<WriteWindow>,
    /// Length of the next stretch there.
    stretch_bytes: Cell<u64>,
    stretches_unread: Cell<u32>,
    /// Stretches that were planned by costs and read.
    stretches_read: Cell<u32>,
    /// The time of the stretches from which costs were learnt.
    explored_ns: Cell<u64>,
    /// Bytes of all gaps that were locked to be filled.
    pub(super) gap_bytes: Cell<u64>,
}

/// What was written since an origin flush ended.
#[derive(Default)]
struct Sample {
    batch: Batch,
    since_ns: Option<u64>,
    /// End of the last write that was sent, bytes.
    sent_end: Option<u64>,
}

impl Destage {
    pub(super) fn new(assumed: Option<Costs>, rotates: bool) -> Destage {
        let model = assumed.map_or_else(|| CostModel::new(rotates), CostModel::fixed);
        Destage {
            model: RefCell::new(model),
            stretch: RefCell::default(),
            from: Cell::new(Source::Any),
            decided: Cell::new((0, 0)),
            wants_quiet: Cell::default(),
            stretches_unmeasured: Cell::default(),
            plain_left: Cell::default(),
            measured_commands: Cell::new(MEASURED_COMMANDS),
            sample: RefCell::default(),
            window: RefCell::default(),
            stretch_bytes: Cell::new(STRETCH_BYTES_FIRST / 2),
            stretches_unread: Cell::default(),
            stretches_read: Cell::default(),
            explored_ns: Cell::default(),
            gap_bytes: Cell::default(),
        }
    }

    pub(super) fn has_stretch(&self) -> bool {
        !self.stretch.borrow().is_empty()
    }

    /// Records that a write of `bytes` at `at` is sent; returns its gap to the write before it.
    pub(super) fn sent(&self, at: u64, bytes: u64) -> Option<u64> {
        let (mut sample, now_ns) = (self.sample.borrow_mut(), reactor::now().0);
        sample.since_ns.get_or_insert(now_ns);
        self.window.borrow_mut().sent(now_ns);
        let end = sample.sent_end.replace(at + bytes);
        end.and_then(|end| at.checked_sub(end))
    }

    pub(super) fn wrote(&self, bytes: u64, copied: u64, gap: Option<u64>) {
        self.sample.borrow_mut().batch.add(bytes, copied, gap);
    }

    /// A write has ended.
    pub(super) fn ended(&self, bytes: u64, is_written: bool) {
        let took = self.window.borrow_mut().ended(bytes, is_written, reactor::loop_time().0);
        if let Some((commands, bytes, elapsed_ns)) = took {
            self.model.borrow_mut().writes_took(commands, bytes, elapsed_ns);
        }
    }

    /// Whether the costs of an origin without a head should be learnt from the next stretch,
    /// although it may be slower for it.
    pub(super) fn wants_exploring(&self) -> bool {
        let model = self.model.borrow();
        if model.moves_a_head() {
            return false;
        }
        let is_known = model.costs().is_some();
        let is_due = !is_known || self.stretches_unread.get() >= STRETCHES_UNREAD_MAX;
        // Small writes alone show no upper limit of what bytes cost.
        let one_ns =
            if is_known { model.stream_ns(STRETCH_BYTES_FIRST) } else { EXPLORED_NS_FIRST };
        let takes_ns = self.explored_ns.get() + one_ns;
        is_due && takes_ns <= self.window.borrow().busy_ns() / EXPLORED_PART
    }

    /// Length of the next stretch, of `most` at most.
    pub(super) fn stretch_bytes(&self, most: u64) -> u64 {
        match self.model.borrow().moves_a_head() {
            true => most,
            false if self.model.borrow().costs().is_none() => STRETCH_BYTES_FIRST.min(most),
            false => self.stretch_bytes.get().min(most),
        }
    }

    /// A stretch was planned by costs, and is read or not.
    pub(super) fn planned(&self, is_read: bool) {
        let unread = if is_read { 0 } else { self.stretches_unread.get() + 1 };
        self.stretches_unread.set(unread);
        if is_read {
            self.stretches_read.set(self.stretches_read.get().saturating_add(1));
        }
        if self.stretches_read.get() >= STRETCHES_SHORT {
            self.stretch_bytes.set(self.stretch_bytes.get().saturating_mul(2));
        }
    }

    /// Costs will be learnt from the next stretch.
    pub(super) fn explores(&self) {
        let model = self.model.borrow();
        let is_known = model.costs().is_some();
        let one_ns =
            if is_known { model.stream_ns(STRETCH_BYTES_FIRST) } else { EXPLORED_NS_FIRST };
        self.explored_ns.set(self.explored_ns.get() + one_ns);
        self.stretches_unread.set(0);
    }

    /// An origin flush begins: returns the writes that it covers, and since when.
    pub(super) fn begin_flush(&self) -> (Batch, Option<u64>) {
        let mut sample = self.sample.borrow_mut();
        (std::mem::take(&mut sample.batch), sample.since_ns)
    }

    /// The flush has ended with success.
    pub(super) fn end_flush(&self, (batch, since_ns): (Batch, Option<u64>), goes_on: bool) {
        let now_ns = reactor::now().0;
        let elapsed_ns = since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        self.model.borrow_mut().wrote(batch, elapsed_ns);
        if batch.commands >= self.measured_commands.get() {
            if elapsed_ns < SAMPLE_NS_MIN {
                self.measured_commands.set((2 * batch.commands).min(MEASURED_COMMANDS_MAX));
            }
            self.stretches_unmeasured.set(0);
        }
        self.sample.borrow_mut().since_ns = goes_on.then_some(now_ns);
    }

    pub(super) fn costs(&self) -> Option<Costs> {
        self.model.borrow().costs()
    }

    /// Whether enough was written since the last flush to be measured.
    pub(super) fn has_sample(&self) -> bool {
        self.sample.borrow().batch.commands >= self.measured_commands.get()
    }
}
