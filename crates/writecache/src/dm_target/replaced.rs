// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks the cache device of a suspended cache, which another one replaces.
use std::rc::Rc;

use block::Error;
use format::ReplacedMark;

use super::WriteCache;
use crate::events::io_failed;
use crate::planted::Fault;

impl WriteCache {
    /// Marks the device. Of a divided cache only part 0, without which there is no cache.
    pub(super) async fn mark(self: Rc<Self>, successor: String) -> Result<(), Error> {
        match self.parts() {
            Some(parts) if parts.suspended.get() => {
                let all = move |part: Rc<WriteCache>| {
                    let successor = successor.clone();
                    async move {
                        match part.is_first_part() {
                            true => part.mark_whole(successor).await,
                            false => Ok(()),
                        }
                    }
                };
                parts.run_all(all).await
            }
            Some(_) => Err(self.in_use()),
            None => self.mark_whole(successor).await,
        }
    }

    /// See `block::Target::write_back`.
    pub(super) async fn write_back_whole(&self) -> Result<(), Error> {
        match self.parts() {
            Some(parts) if parts.suspended.get() => Err(self.suspended()),
            Some(parts) => parts.write_back_all().await,
            None => self.running()?.writeback.write_back_all().await,
        }
    }

    /// See `block::Target::empty`.
    pub(super) async fn empty_whole(self: Rc<Self>) -> Result<(), Error> {
        self.write_back_whole().await?;
        // WC-RA5. What was read enters after the read has ended: perhaps only now.
        self.is_replaced.set(!self.has_fault(Fault::AdmitAfterEmptying));
        Ok(())
    }

    /// For a part: a suspend with a flush has begun, and nothing that was read enters any more
    /// (WC-RA5).
    pub(crate) fn close_read_cache(&self) {
        if let Some(cache) = self.cache() {
            let is_closed = !self.has_fault(Fault::AdmitAfterFlush);
            cache.writeback.read_cache.is_closed.set(is_closed);
        }
    }

    pub(crate) fn is_first_part(&self) -> bool {
        self.config.borrow().part.is_some_and(|of| of.part.nth == 0)
    }

    pub(super) fn in_use(&self) -> Error {
        Error::busy(format!("writecache {}: it is in use: suspend it first", self.name))
    }

    async fn mark_whole(&self, successor: String) -> Result<(), Error> {
        let cache =
            self.cache().filter(|cache| cache.is_stopping()).ok_or_else(|| self.in_use())?;
        let c = cache.store.counts();
        let held = c.slots - c.free - c.limbo;
        if held > 0 {
            let text = format!("writecache {}: its cache device holds {held} blocks", self.name);
            return Err(Error::busy(text));
        }
        let part = self.config.borrow().part.map(|of| of.part);
        let mark = ReplacedMark::new(successor, part);
        cache.store.mark_replaced(&mark).await.map_err(io_failed)
    }
}
