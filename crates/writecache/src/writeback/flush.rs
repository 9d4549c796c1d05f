// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `flush`: writes all blocks that are dirty when it begins to the origin, and shows its progress.
//! It gives up blocks that the origin refuses twice, and reports them.
use block::{Class, Error, Status};
use reactor::yield_now;

use super::Writeback;
use super::jobs::FlushJob;
use super::pieces::PIECE_BLOCKS;
use crate::events::io_failed;
use crate::planted::Fault;

impl Writeback {
    /// Writes back every block that is dirty now, in order, and makes them durable. It does not
    /// wait for writes that come meanwhile.
    pub(crate) async fn write_back_all(&self) -> Result<(), Error> {
        self.store.slots.borrow_mut().close_epoch();
        let until = self.store.slots.borrow().open_epoch();
        self.store.commit().await.map_err(io_failed)?;
        self.store.waits.jobs.wait_for(|| self.jobs.flush.borrow().is_none()).await;
        let todo = self.store.slots.borrow().dirty().clone();
        let number = self.jobs.begun.get() + 1;
        self.jobs.begun.set(number);
        *self.jobs.flush.borrow_mut() =
            Some(FlushJob::new(number, todo, self.store.config.ordered));
        self.retry.make_all_ready();
        self.picker.lru.borrow_mut().clear();
        self.recheck();
        let retired = || self.store.slots.borrow().is_retired_before(until);
        let done = || self.jobs.flush.borrow().as_ref().is_some_and(|job| job.is_done(retired));
        let stopped = || {
            let is_stopped = self.jobs.flush.borrow().as_ref().is_some_and(|job| job.is_stopped);
            is_stopped || self.store.health().is_err() || self.store.life.is_about_to_stop()
        };
        self.store.waits.jobs.wait_for(|| done() || stopped()).await;
        let is_done = done();
        let mut job = self.jobs.flush.take().expect("only this takes it");
        self.recheck();
        self.store.waits.jobs.wake_all(); // another `flush` may wait for its turn
        self.store.health().map_err(io_failed)?;
        if !is_done {
            let (left, total) = (job.todo.len(), job.total);
            let what = if job.is_stopped { "flush stopped" } else { "flush ended by a suspend" };
            return Err(Error::io(format!(
                "{what}: {left} of {total} blocks are left; they are kept in the cache"
            )));
        }
        let left = job.end();
        if let Some(first) = left.min() {
            return Err(self.not_written(left.len(), first));
        }
        self.forget_clean().await.map_err(io_failed)?;
        self.flush_around(Class::Background).await.map_err(io_failed)?;
        self.unreadable()
    }

    /// `Err` if there are unreadable blocks.
    pub(super) fn unreadable(&self) -> Result<(), Error> {
        match self.store.counts().bad {
            0 => Ok(()),
            bad => Err(Error::io(format!(
                "{bad} blocks can't be read from the cache device and were not written to the \
                 origin: the attribute bad_block_list names their sectors"
            ))),
        }
    }

    pub(super) fn not_written(&self, count: u64, first: u64) -> Error {
        let status = self.retry.error().map_or(Status::Io, |(status, _)| status);
        let sector = self.store.sector_of(first);
        Error::io(format!(
            "{count} blocks could not be written to the origin, the first at sector {sector} \
             ({status}); they are kept in the cache and tried again"
        ))
    }

    /// Drops every clean block, durably. After a `flush` the origin may be used without its cache.
    /// When the cache is used again it must not have old data.
    pub(crate) async fn forget_clean(&self) -> Result<(), Status> {
        loop {
            // This commit also makes durable what other tasks have dropped.
            let none_left = self.store.counts().clean == 0;
            self.store.commit().await?;
            if none_left {
                return Ok(());
            }
            // WC-LR2. If clients have changed as many blocks as are allowed, the next commit makes
            // room.
            let mut left = self.room_to_drop();
            while left > 0 {
                let dropped = self.drop_clean_piece(left);
                if dropped < PIECE_BLOCKS as u64 {
                    break;
                }
                left -= dropped;
                yield_now().await;
            }
            if self.store.has_fault(Fault::CleanKeptInLog) {
                self.store.slots.borrow_mut().forget_drops();
            }
        }
    }

    /// How many blocks may change now.
    fn room_to_drop(&self) -> u64 {
        let ignored = self.store.has_fault(Fault::DropsBeyondRoom);
        let changed = if ignored { 0 } else { self.store.counts().unlogged };
        self.store.unlogged_max().saturating_sub(changed)
    }

    /// Drops a piece of clean blocks, at most so many, and as far as they may change; returns how
    /// many.
    fn drop_clean_piece(&self, most: u64) -> u64 {
        let at_once = self.store.has_fault(Fault::DropsBeyondRoom);
        let piece_max = if at_once { u64::from(u32::MAX) } else { PIECE_BLOCKS as u64 };
        let piece = most.min(self.room_to_drop()).min(piece_max);
        let piece = u32::try_from(piece).expect("at most 2^32 - 1");
        u64::from(self.store.slots.borrow_mut().evict(piece, None))
    }

    /// WC-A1: makes writes around the cache durable.
    ///
    /// Cost: one flush of the origin, which is shared, if there was such a write.
    pub(crate) async fn flush_around(&self, class: Class) -> Result<(), Status> {
        if self.origin.around.is_pending() && !self.store.has_fault(Fault::FlushWithoutOrigin) {
            self.flush_origin(class, self.origin_flush_errors()).await?;
        }
        Ok(())
    }
}
