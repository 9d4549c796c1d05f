// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `flush`: everything that is dirty when it begins goes to the origin, with progress. Blocks that
//! the origin refuses, at their first try and when they are tried again, are given up and told.
use block::{Class, Error, Status};
use roaring::RoaringTreemap;

use crate::cache::Cache;
use crate::config::Mutation;
use crate::dm_target::io_failed;

/// A `flush`, or a `drain`: the blocks that were dirty when it began and are not on the origin yet.
pub(super) struct FlushJob {
    pub(super) number: u64,
    pub(super) todo: RoaringTreemap,
    pub(super) total: u64,
    /// Blocks that were given up.
    pub(super) left: RoaringTreemap,
    /// Blocks are written in the order of epochs: one that is not written holds up others.
    pub(super) in_order: bool,
}

impl FlushJob {
    /// Nobody waits for this block any longer; it stays dirty.
    pub(super) fn give_up(&mut self, block: u64) {
        if self.todo.remove(block) || self.in_order {
            self.left.insert(block);
        }
    }

    /// Whether all that can be written is; `retired`: all epochs that there were at its beginning.
    pub(super) fn is_done(&self, retired: impl Fn() -> bool) -> bool {
        match self.in_order {
            true => !self.left.is_empty() || retired(),
            false => self.todo.is_empty(),
        }
    }

    pub(super) fn give_up_all(&mut self) {
        self.left |= std::mem::take(&mut self.todo);
    }

    /// It is done. Returns what was given up; with epochs that has held up what is still to be
    /// written. Without any, what is still to be written is newer.
    pub(super) fn end(&mut self) -> &RoaringTreemap {
        if self.left.is_empty() {
            self.todo.clear();
        } else {
            self.give_up_all();
        }
        &self.left
    }
}

impl Cache {
    /// Writes back every block that is dirty now, in order, and makes that durable. Writes that
    /// come meanwhile go on; they are not waited for.
    pub(crate) async fn write_back_all(&self) -> Result<(), Error> {
        let wb = &self.writeback;
        self.slots.borrow_mut().close_epoch();
        let until = self.slots.borrow().open_epoch();
        self.commit().await.map_err(io_failed)?;
        self.waits.wait_for(|| wb.job.borrow().is_none()).await;
        let todo = self.slots.borrow().dirty().clone();
        let number = wb.jobs.get() + 1;
        wb.jobs.set(number);
        let (total, left, in_order) = (todo.len(), RoaringTreemap::new(), self.config.ordered);
        *wb.job.borrow_mut() = Some(FlushJob { number, total, todo, left, in_order });
        wb.retry.make_all_ready();
        wb.changes.set(wb.changes.get() + 1);
        wb.lru.borrow_mut().clear();
        self.waits.wake_all();
        let retired = || self.slots.borrow().is_retired_before(until);
        let done = || wb.job.borrow().as_ref().is_some_and(|job| job.is_done(retired));
        self.waits.wait_for(|| done() || self.health().is_err()).await;
        let mut job = wb.job.take().expect("only this takes it");
        wb.changes.set(wb.changes.get() + 1);
        self.waits.wake_all();
        self.health().map_err(io_failed)?;
        let left = job.end();
        if let Some(first) = left.min() {
            return Err(self.not_written(left.len(), first));
        }
        self.forget_clean().await.map_err(io_failed)?;
        self.flush_around(Class::Background).await.map_err(io_failed)?;
        self.unreadable()
    }

    /// An error if there are blocks that can't be read.
    pub(super) fn unreadable(&self) -> Result<(), Error> {
        match self.counts().bad {
            0 => Ok(()),
            bad => Err(Error::io(format!(
                "{bad} blocks can't be read from the cache device and were not written to the \
                 origin: the attribute bad_block_list names their sectors"
            ))),
        }
    }

    pub(super) fn not_written(&self, count: u64, first: u64) -> Error {
        let status = self.writeback.retry.error().map_or(Status::Io, |(status, _)| status);
        let sector = self.sector_of(first);
        Error::io(format!(
            "{count} blocks could not be written to the origin, the first at sector {sector} \
             ({status}); they are kept in the cache and tried again"
        ))
    }

    /// Drops every clean block, durably. After a flush the origin may be used without its cache,
    /// which must not come back one day with what was there before.
    async fn forget_clean(&self) -> Result<(), Status> {
        loop {
            // What others have dropped is durable with this commit, too.
            let none_left = self.counts().clean == 0;
            self.commit().await?;
            if none_left {
                return Ok(());
            }
            // WC-LR2. Clients may have changed as much as may be; then the next commit makes room.
            let ignored = self.mutation(Mutation::DropsBeyondRoom);
            let changed = if ignored { 0 } else { self.counts().unlogged };
            let room = self.unlogged_max().saturating_sub(changed);
            self.slots.borrow_mut().evict(u32::try_from(room).unwrap_or(u32::MAX));
            if self.mutation(Mutation::CleanKeptInLog) {
                self.slots.borrow_mut().forget_drops();
            }
        }
    }
}
