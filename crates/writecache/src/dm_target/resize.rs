// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of the cache in use, and a cache that is made smaller before its device is cut.
use std::rc::Rc;

use block::{Error, Sector, Target};
use format::PartAreas;

use super::WriteCache;
use crate::parts::Parts;
use crate::parts::shrink::{SmallerLayout, lay_out};
use crate::planted::Fault;

impl WriteCache {
    /// Takes the space by which the cache device has grown. Returns the blocks before, those now,
    /// and the bytes of a block.
    pub(super) async fn grow(&self) -> Result<String, Error> {
        let config = self.config.borrow().clone();
        let [before, after] = match self.parts() {
            Some(parts) => parts.grow(&config).await?,
            None => {
                let before = self.running()?.store.slot_count();
                self.grow_whole().await?;
                [before, self.slot_count()].map(u64::from)
            }
        };
        Ok(format!("{before} {after} {}", config.block_size))
    }

    /// The same of a cache in one part, or of one of the parts.
    pub(crate) async fn grow_whole(&self) -> Result<(), Error> {
        self.running()?.grow().await
    }

    /// For a part: whether it can use an area of so many bytes.
    pub(crate) fn may_grow_to(&self, area: u64) -> Result<bool, Error> {
        Ok(self.running()?.grown_layout(area)?.is_some())
    }

    /// For part 0: records what areas the parts have, durably.
    pub(crate) async fn record_areas(&self, areas: PartAreas) -> Result<(), Error> {
        self.running()?.record_areas(areas).await
    }

    /// For a part, and a cache in one: how many slots it has.
    pub(crate) fn slot_count(&self) -> u32 {
        self.cache().map_or(0, |cache| cache.store.slot_count())
    }

    /// For a part: no record and no checkpoint of it has a higher number.
    pub(crate) fn highest_counter(&self) -> u64 {
        let Some(cache) = self.cache() else { return 0 };
        let numbers = cache
            .store
            .native()
            .map(|native| native.log.incarnation.max(native.superblock.borrow().checkpoint.id));
        numbers.unwrap_or(0)
    }

    /// Makes the cache fit into the first `device_bytes` of its cache device, which may be cut
    /// there when the cache is suspended. No client may use it meanwhile. What is dirty is written
    /// back; blocks in the part that stays are kept, but for those of a cache in parts.
    ///
    /// # Errors
    /// As [`Cache::shrink`]; of a cache in parts `ENOSPC` if the area is too small.
    ///
    /// [`Cache::shrink`]: crate::cache::Cache::shrink
    pub async fn shrink(self: Rc<Self>, device_bytes: u64) -> Result<(), Error> {
        let start = self.config.borrow().start_sector;
        let area = device_bytes.saturating_sub(start.bytes());
        let Some(parts) = self.parts() else { return self.running()?.shrink(area).await };
        if parts.suspended.get() {
            return Err(self.suspended());
        }
        let config = self.config.borrow().clone();
        let layout = parts.smaller_layout(&config, Sector::from_bytes(area)).await?;
        let Some(layout) = layout else { return Ok(()) };
        let shrunk = self.lay_out_parts(parts, layout).await;
        // As it is now: smaller, or after an error the larger one.
        let resumed = self.resume().await;
        shrunk.and(resumed)
    }

    /// Empties the cache, closes it, and lays it out anew.
    async fn lay_out_parts(&self, parts: Rc<Parts>, layout: SmallerLayout) -> Result<(), Error> {
        let is_dropped = self.has_fault(Fault::LaidOutDirty);
        if !is_dropped {
            parts.drain(String::new()).await?;
            self.flush_on_suspend.set(true);
        }
        let settled = self.end_period().await;
        self.leave_origin();
        settled?;
        let held = self.count_unsaved();
        if held > 0 && !is_dropped {
            let config = self.config.borrow();
            return Err(Error::busy(format!(
                "cache device {}: {held} of its blocks are in use, or can't be read, and are in no \
                 origin",
                config.cache
            )));
        }
        drop(parts);
        drop(self.live.take());
        drop(self.attachment.take());
        let config = self.config.borrow().clone();
        lay_out(&config, &self.device, layout).await
    }

    /// Blocks that the origin does not have.
    fn count_unsaved(&self) -> u64 {
        let count = |name| self.attribute(name).ok().and_then(|n| n.number()).unwrap_or(0);
        ["dirty_blocks", "zero_blocks", "bad_blocks"].into_iter().map(count).sum()
    }
}
