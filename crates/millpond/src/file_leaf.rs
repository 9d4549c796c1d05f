// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A leaf on a file of the driver's, and where the file lies.
use std::ops::Range;

use block::{Bio, BlockDevice, Limits, Sector};
use queue::{BlockLeaf, Leaf, Stats};
use uring::Files;

/// Where a file lies.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The disk, where that is known.
    pub(crate) disk: Option<String>,
    /// On a file system that is in memory.
    pub(crate) in_memory: bool,
}

/// A leaf on an open file. Dropping it closes the file.
pub(crate) struct FileLeaf {
    pub(crate) leaf: Leaf,
    pub(crate) files: Files,
    pub(crate) place: Place,
}

impl BlockDevice for FileLeaf {
    fn name(&self) -> &str {
        self.leaf.name()
    }

    fn limits(&self) -> Limits {
        self.leaf.limits()
    }

    fn submit(&self, bio: Bio) {
        self.leaf.submit(bio);
    }

    fn identity(&self) -> Option<String> {
        self.leaf.identity()
    }

    fn dirtier_waited(&self) {
        self.leaf.dirtier_waited();
    }
}

impl BlockLeaf for FileLeaf {
    #[inline]
    fn submit_whole(&self, sector: Sector, bio: Bio) {
        self.leaf.submit_whole(sector, bio);
    }

    fn stats(&self) -> &Stats {
        self.leaf.stats()
    }

    fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        self.leaf.is_changing(sectors)
    }
}

impl Drop for FileLeaf {
    fn drop(&mut self) {
        self.files.close(self.leaf.file());
    }
}
