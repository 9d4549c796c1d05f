// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of a bio into an undivided cache: which task serves it.
use std::rc::Rc;

use block::{Bio, Op};
use reactor::TaskPool;

use crate::cache::Cache;

/// An undivided cache, or a part of a divided one: the engine, and the tasks that serve bios.
pub(super) struct WholeCache {
    pub(super) cache: Rc<Cache>,
    /// Sectors of a block, less one.
    pub(super) mask: u64,
    /// Reads and flushes: writers that are slowed must not delay them.
    pub(super) prompt: TaskPool<Bio>,
    pub(super) changes: TaskPool<Bio>,
    /// Changes that do not cover whole blocks.
    pub(super) edges: TaskPool<Bio>,
}

impl WholeCache {
    #[inline]
    pub(super) fn submit(&self, bio: Bio) {
        if (bio.sector.0 | bio.len.0) & self.mask != 0 {
            return self.submit_sectors(bio);
        }
        match bio.op {
            Op::Read | Op::Flush => self.prompt.push(bio),
            Op::Write | Op::Discard | Op::WriteZeroes => self.changes.push(bio),
        }
    }

    #[cold]
    fn submit_sectors(&self, mut bio: Bio) {
        if bio.op != Op::Read {
            return self.edges.push(bio);
        }
        match self.cache.limits.check(&bio) {
            Ok(()) => {
                // A checksum covers a block.
                bio.widen(self.cache.store.config.block_sectors());
                self.prompt.push(bio);
            }
            Err(status) => bio.complete(status),
        }
    }
}
