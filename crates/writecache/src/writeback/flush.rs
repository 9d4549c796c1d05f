// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `flush`: everything that is dirty when it begins goes to the origin, with progress.
use block::{Class, Status};
use roaring::RoaringTreemap;

use crate::cache::Cache;

/// A `flush`: the blocks that were dirty when it began and are not on the origin yet.
pub(super) struct FlushJob {
    pub(super) number: u64,
    pub(super) todo: RoaringTreemap,
    pub(super) total: u64,
}

impl Cache {
    /// Writes back every block that is dirty now, in order, and makes that durable. Writes that
    /// come meanwhile go on; they are not waited for.
    pub(crate) async fn write_back_all(&self) -> Result<(), Status> {
        let wb = &self.writeback;
        self.changed.wait_for(|| wb.job.borrow().is_none()).await;
        self.commit().await?;
        let todo = self.slots.borrow().dirty().clone();
        let number = wb.jobs.get() + 1;
        wb.jobs.set(number);
        *wb.job.borrow_mut() = Some(FlushJob { number, total: todo.len(), todo });
        wb.news.set(wb.news.get() + 1);
        wb.lru.borrow_mut().clear();
        self.changed.wake_all();
        let done = || wb.job.borrow().as_ref().is_none_or(|j| j.todo.is_empty());
        self.changed.wait_for(|| done() || self.health().is_err()).await;
        *wb.job.borrow_mut() = None;
        wb.news.set(wb.news.get() + 1);
        self.changed.wake_all();
        self.forget_clean().await?;
        self.flush_around(Class::Background).await?;
        if self.counts().bad > 0 { Err(Status::Checksum) } else { Ok(()) }
    }

    /// Drops every clean block, durably. After a flush the origin may be used without its cache,
    /// which must not come back one day with what was there before.
    async fn forget_clean(&self) -> Result<(), Status> {
        loop {
            self.commit().await?;
            let room = u32::try_from(self.changed_max()).unwrap_or(u32::MAX);
            if self.slots.borrow_mut().evict(room) == 0 {
                return Ok(());
            }
        }
    }
}
