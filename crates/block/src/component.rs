// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices that a target is built on, and the dirty blocks that it holds for them.
use std::fmt;
use std::rc::Rc;

use crate::{BlockDevice, Sector, size_text};

/// What a target does with the sectors of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Passes bios on: a write to the target is a write there.
    Mapped,
    /// The origin of a cache. Only the target writes there.
    Origin,
    /// Holds what the origin does not have yet. Only the target writes there.
    Cache,
    /// Holds what does not fit into memory. Only the target writes there.
    Backing,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Mapped => "mapped device",
            Role::Origin => "origin",
            Role::Cache => "cache device",
            Role::Backing => "backing device",
        })
    }
}

/// A run of sectors of a component device: a device on which a target is built.
#[derive(Clone)]
pub struct Component {
    /// The device that the table line names.
    pub device: Rc<dyn BlockDevice>,
    /// First sector there.
    pub start: Sector,
    /// Length.
    pub len: Sector,
    /// What the target does with them.
    pub role: Role,
}

crate::debug_as!(Component, s =>
    "Component({} {}+{}, {})", s.device.name(), s.start, s.len, s.role);

/// Dirty blocks: a cache holds them, and its origin does not have them yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnsavedBlocks {
    /// Blocks that can still be written back.
    pub dirty: u64,
    /// Those of them whose writeback has failed; it is retried.
    pub failing: u64,
    /// Dirty blocks that the cache device can't read.
    pub unreadable: u64,
    /// Dirty blocks that are in memory alone, because the cache device has refused them.
    pub in_memory: u64,
    /// Size of a block.
    pub block_bytes: u64,
    /// The cache device, as the table names it.
    pub cache: String,
    /// First sector of the cache there.
    pub start: Sector,
    /// The origin, as the table names it.
    pub origin: String,
    /// The cache device is missing: nobody knows how many there are.
    pub is_missing: bool,
    /// Copies of blocks that the origin has, too: they do not count as unsaved.
    pub copies: u64,
    /// Why the copies stay on the cache device, or may, although their device goes.
    pub copies_kept: Option<String>,
}

impl UnsavedBlocks {
    /// All of them, the unreadable ones included.
    pub fn blocks(&self) -> u64 {
        self.dirty + self.unreadable
    }

    /// Whether it is known that there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks() == 0 && !self.is_missing
    }

    /// Whether nothing is known that keeps one of them from being written back.
    pub fn is_healthy(&self) -> bool {
        self.failing == 0 && self.unreadable == 0 && self.in_memory == 0
    }
}

impl fmt::Display for UnsavedBlocks {
    /// `256 dirty blocks (1.0 MiB) on ./cache.img`, and what is wrong with them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_missing {
            return write!(f, "the unknown blocks on the missing cache device {}", self.cache);
        }
        let blocks = self.blocks();
        let noun = if blocks == 1 { "block" } else { "blocks" };
        let size = size_text(blocks.saturating_mul(self.block_bytes));
        write!(f, "{blocks} dirty {noun} ({size}) on {}", self.cache)?;
        if self.failing > 0 {
            write!(f, ", {} of which the origin refuses", self.failing)?;
        }
        if self.unreadable > 0 {
            write!(f, ", {} of which can't be read", self.unreadable)?;
        }
        if self.in_memory > 0 {
            write!(f, ", {} of which are in memory alone", self.in_memory)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsaved_blocks_are_shown_with_size_and_device() {
        let mut unsaved =
            UnsavedBlocks { dirty: 256, block_bytes: 4096, ..UnsavedBlocks::default() };
        unsaved.cache = "/srv/c.img".into();
        assert_eq!(unsaved.to_string(), "256 dirty blocks (1.0 MiB) on /srv/c.img");
        assert!(unsaved.is_healthy());
        (unsaved.failing, unsaved.unreadable) = (7, 1);
        let all = "257 dirty blocks (1.0 MiB) on /srv/c.img, 7 of which the origin refuses, 1 of \
                   which can't be read";
        assert_eq!(unsaved.to_string(), all);
        assert!(!unsaved.is_healthy());
        let in_memory = UnsavedBlocks { dirty: 3, in_memory: 2, ..UnsavedBlocks::default() };
        assert!(in_memory.to_string().ends_with(", 2 of which are in memory alone"));
        assert!(!in_memory.is_healthy());
    }
}
