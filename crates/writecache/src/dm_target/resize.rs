// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of the cache in use, and a cache that is made smaller before its device is cut.
use std::rc::Rc;

use block::Error;

use super::WriteCache;

impl WriteCache {
    /// Takes the space by which the cache device has grown. Returns the blocks before, those now,
    /// and the bytes of a block.
    pub(super) async fn grow(&self) -> Result<String, Error> {
        let cache = self.running()?;
        let before = cache.store.slot_count();
        cache.grow().await?;
        let (after, block_size) = (cache.store.slot_count(), self.config.borrow().block_size);
        Ok(format!("{before} {after} {block_size}"))
    }

    /// Makes the cache fit into the first `device_bytes` of its cache device, which may be cut
    /// there when the cache is suspended. No client may use it meanwhile. What is dirty is written
    /// back; blocks in the part that stays are kept.
    ///
    /// # Errors
    /// As [`Cache::shrink`].
    ///
    /// [`Cache::shrink`]: crate::cache::Cache::shrink
    pub async fn shrink(self: Rc<Self>, device_bytes: u64) -> Result<(), Error> {
        let start = self.config.borrow().start_sector;
        self.running()?.shrink(device_bytes.saturating_sub(start.bytes())).await
    }
}
