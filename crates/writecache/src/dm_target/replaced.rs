// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks the cache device of a suspended cache, which another one replaces.
use block::Error;
use format::ReplacedMark;

use super::WriteCache;
use crate::events::io_failed;
use crate::planted::Fault;

impl WriteCache {
    /// Marks the device: its cache is suspended, and holds nothing.
    pub(super) async fn mark(&self, successor: String) -> Result<(), Error> {
        let cache =
            self.cache().filter(|cache| cache.is_stopping()).ok_or_else(|| self.in_use())?;
        let c = cache.store.counts();
        let held = c.slots - c.free - c.limbo;
        if held > 0 {
            let text = format!("writecache {}: its cache device holds {held} blocks", self.name);
            return Err(Error::busy(text));
        }
        cache.store.mark_replaced(&ReplacedMark { successor }).await.map_err(io_failed)
    }

    /// See `block::Target::empty`.
    pub(super) async fn write_back_and_close(&self) -> Result<(), Error> {
        self.running()?.writeback.write_back_all().await?;
        // WC-RA5. What was read enters after the read has ended: perhaps only now.
        self.is_replaced.set(!self.has_fault(Fault::AdmitAfterEmptying));
        Ok(())
    }

    pub(super) fn in_use(&self) -> Error {
        Error::busy(format!("writecache {}: it is in use: suspend it first", self.name))
    }
}
