// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes dirty slots as units, as many at a time as the device takes, and makes them durable.
use std::rc::Rc;

use block::{Class, Nanos, Status};
use format::zram::UNIT_BLOCKS_MAX;
use reactor::yield_now;

use super::chain::UNIT_BLOCKS_MIN;
use super::dirty_slots::DirtySlots;
use super::unit::{BuildOutcome, UnitWrite};
use crate::part::Part;
use crate::planted::Fault;

/// How long a writeback waits for blocks that other parts hold and may refund.
const BUDGET_PAUSE: Nanos = Nanos(100_000);

/// Why units are written, which decides how many blocks they may take.
pub(super) enum UnitsFor<'a> {
    /// A FLUSH or FUA waits: no limit.
    Commit,
    /// Pages shall leave memory: within the writeback limit. Counts the blocks written.
    Writeback(&'a mut u64),
    /// Objects are moved together: also the blocks that are kept for that (ZR-TY3).
    Tidy,
}

impl UnitsFor<'_> {
    fn how(&self) -> UnitWrite {
        match self {
            UnitsFor::Commit => UnitWrite { class: Class::Foreground, budgeted: false },
            UnitsFor::Writeback(_) => UnitWrite { class: Class::Background, budgeted: true },
            UnitsFor::Tidy => UnitWrite { class: Class::Background, budgeted: false },
        }
    }
}

impl Part {
    /// Sends units until no slot of the pass is dirty. Returns whether the limit allowed that.
    pub(super) async fn write_units(
        self: &Rc<Self>,
        slots: &mut DirtySlots,
        mut purpose: UnitsFor<'_>,
    ) -> Result<bool, Status> {
        let (how, tidying) = (purpose.how(), matches!(purpose, UnitsFor::Tidy));
        let mut tries = 0;
        loop {
            self.wait_for_unit(tidying).await?;
            if slots.next(self.persist()).is_none() {
                return Ok(true);
            }
            let wanted = self.unit_blocks();
            let mut granted = wanted;
            if how.budgeted {
                let Some(blocks) = self.take_budget(wanted).await else { continue };
                granted = blocks;
            }
            let built = match granted {
                0 => BuildOutcome::TooFewBlocks,
                _ => self.build_unit(slots, granted, how),
            };
            if let UnitsFor::Writeback(written) = &mut purpose {
                let used = if let BuildOutcome::Unit(blocks) = built { blocks } else { 0 };
                self.shared.budget.refund(u64::from(granted - used));
                **written += u64::from(used);
            }
            match built {
                BuildOutcome::Unit(_) => {
                    tries = 0;
                    if !tidying {
                        self.checkpoint_if_due();
                        self.tidy_if_due();
                    }
                    yield_now().await;
                }
                BuildOutcome::NothingDirty => return Ok(true),
                BuildOutcome::TooFewBlocks if granted < wanted => return Ok(false),
                BuildOutcome::NoPlace => self.make_room(tidying).await?,
                BuildOutcome::TooFewBlocks => self.make_wide_room(&mut tries, tidying).await?,
            }
        }
    }

    /// Takes up to `wanted` blocks of the writeback limit. `None`: it has waited, because other
    /// parts hold blocks that they may refund, and the limit is exact.
    async fn take_budget(&self, wanted: u32) -> Option<u32> {
        let budget = &self.shared.budget;
        let held = budget.held();
        let granted = budget.take(u64::from(wanted));
        if granted == 0 && held > 0 {
            reactor::sleep(BUDGET_PAUSE).await;
            return None;
        }
        Some(u32::try_from(granted).expect("at most what was wanted"))
    }

    fn unit_blocks(&self) -> u32 {
        let pages = self.shared.batch_pages.load(std::sync::atomic::Ordering::Relaxed);
        self.persistent_backing().batch_blocks(pages).clamp(UNIT_BLOCKS_MIN, UNIT_BLOCKS_MAX)
    }

    /// Waits until another unit may be in flight, and the chain is not too long.
    async fn wait_for_unit(&self, tidying: bool) -> Result<(), Status> {
        let persist = self.persist();
        let inflight = self.shared.inflight.load(std::sync::atomic::Ordering::Relaxed) as usize;
        let room = || persist.chain.borrow().in_flight() < inflight.max(1);
        let space = self.space();
        let kept = || !tidying && persist.is_kept_for_tidying(space.blocks().free());
        let ready = || (room() && !persist.is_overdue() && !kept()) || persist.failure().is_some();
        persist.changed.wait_for(ready).await;
        persist.health()
    }

    /// Makes every unit durable that is built when this is called.
    ///
    /// Cost: one flush of the device, shared with all callers; nothing when all are durable.
    pub(super) async fn sync(&self) -> Result<(), Status> {
        let persist = self.persist();
        let last = persist.chain.borrow().sequence - 1;
        if persist.chain.borrow().durable >= last {
            return persist.health();
        }
        self.flush_after(last).await
    }

    /// Waits for the units up to `last`, then flushes the device: they and everything written
    /// before are durable.
    pub(super) async fn flush_after(&self, last: u64) -> Result<(), Status> {
        let persist = self.persist();
        let written = || persist.chain.borrow().is_written(last);
        persist.changed.wait_for(|| written() || persist.failure().is_some()).await;
        persist.health()?;
        if !persist.is_planted(Fault::SkipFlush) {
            let flushed = reactor::flush(self.space().device(), Class::Foreground).await;
            if let Err(status) = flushed {
                if persist.is_planted(Fault::ForgetFailedFlush) {
                    return Err(status);
                }
                self.persist_failed("a flush of the backing device failed", status);
                return Err(status);
            }
        }
        persist.health()?;
        self.mark_durable(last);
        Ok(())
    }

    /// Units up to `last` are durable (ZR-CH3).
    fn mark_durable(&self, last: u64) {
        let mut chain = self.persist().chain.borrow_mut();
        chain.durable = chain.durable.max(last);
        while chain.pending.front().is_some_and(|unit| unit.sequence <= last) {
            let unit = chain.pending.pop_front().expect("there is one");
            assert!(unit.written, "unit {} is durable but not written", unit.sequence);
            unit.moved.iter().for_each(|object| self.moved(object));
            unit.superseded.into_iter().for_each(|old| self.unuse(old.blocks()));
        }
    }

    /// A checkpoint is durable: a replay does not read the units before `sequence` any more.
    pub(super) fn release_units(&self, sequence: u64) {
        let mut chain = self.persist().chain.borrow_mut();
        while chain.replay.front().is_some_and(|unit| unit.sequence < sequence) {
            let unit = chain.replay.pop_front().expect("there is one");
            chain.replay_blocks -= unit.blocks.end - unit.blocks.start;
            self.unuse(unit.blocks);
        }
    }
}
