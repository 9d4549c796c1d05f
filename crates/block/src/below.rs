// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a target has below it, and what it holds that is not there yet.
use std::fmt;
use std::rc::Rc;

use crate::{BlockDevice, Sector, size_text};

/// What a target does with a run of sectors below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Bios go there as they come: whoever writes to the target writes there.
    Mapped,
    /// The target alone writes there: it is the origin of a cache.
    Origin,
    /// The target alone writes there: it keeps there what the origin does not have yet.
    Cache,
    /// The target alone writes there: it keeps there what does not fit into memory.
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

/// A run of sectors of a device below a target.
#[derive(Clone)]
pub struct Below {
    /// The device that the table line names.
    pub device: Rc<dyn BlockDevice>,
    /// First sector there.
    pub start: Sector,
    /// How many.
    pub len: Sector,
    /// What the target does there.
    pub role: Role,
}

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Below({} {}+{}, {})", self.device.name(), self.start, self.len, self.role)
    }
}

/// Blocks that a cache holds and its origin does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// Blocks that can still be written back.
    pub dirty: u64,
    /// Those of them that the origin has refused, and that are tried again.
    pub failing: u64,
    /// Blocks that the cache device can't read.
    pub unreadable: u64,
    /// Size of a block.
    pub block_bytes: u64,
    /// The word of the table for the device that holds them.
    pub cache: String,
    /// Where the cache begins there.
    pub start: Sector,
    /// The word of the table for the device that does not.
    pub origin: String,
}

impl Unsaved {
    /// All of them.
    pub fn blocks(&self) -> u64 {
        self.dirty + self.unreadable
    }

    /// Whether all of them can be written back, as far as anybody knows.
    pub fn is_healthy(&self) -> bool {
        self.failing == 0 && self.unreadable == 0
    }
}

impl fmt::Display for Unsaved {
    /// `256 dirty blocks (1.0 MiB) on ./cache.img`, and what is wrong with them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsaved_blocks_are_told_with_size_and_device() {
        let mut unsaved = Unsaved { dirty: 256, block_bytes: 4096, ..Unsaved::default() };
        unsaved.cache = "/srv/c.img".into();
        assert_eq!(unsaved.to_string(), "256 dirty blocks (1.0 MiB) on /srv/c.img");
        assert!(unsaved.is_healthy());
        (unsaved.failing, unsaved.unreadable) = (7, 1);
        let all = "257 dirty blocks (1.0 MiB) on /srv/c.img, 7 of which the origin refuses, 1 of \
                   which can't be read";
        assert_eq!(unsaved.to_string(), all);
        assert!(!unsaved.is_healthy());
    }
}
