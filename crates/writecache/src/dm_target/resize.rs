// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of the cache in use.
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
}
