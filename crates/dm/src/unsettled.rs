// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that were replaced by force and have not settled, and where their late writes may land
//! (DM-O4 of `overlap`).
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use block::BlockDevice;

/// Half-open runs of sectors, ascending and apart.
pub type Runs = Vec<(u64, u64)>;

/// The sectors at the bottom on which areas lie.
#[derive(Default)]
pub(crate) struct BottomRuns {
    /// By the address of the leaf or engine.
    pub(crate) devices: BTreeMap<usize, (Rc<dyn BlockDevice>, Runs)>,
    /// The addresses of the leaves, by the file or disk on which they lie: a file and a loop device
    /// over it are two leaves.
    pub(crate) files: BTreeMap<Arc<str>, Vec<usize>>,
}

/// See the module.
pub(crate) struct Unsettled {
    /// The mapped device whose table it was.
    pub(crate) owner: Rc<dyn BlockDevice>,
    pub(crate) minor: u32,
    /// The address of the table, which lives as long as this.
    pub(crate) table: usize,
    /// Where it led when it was replaced.
    pub(crate) bottom: BottomRuns,
}
