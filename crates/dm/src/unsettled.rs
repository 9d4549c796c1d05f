// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that were replaced by force and have not settled, and where their late writes may land
//! (DM-O4 of `overlap`).
use std::collections::BTreeMap;
use std::rc::Rc;

use block::BlockDevice;

/// Half-open runs of sectors, ascending and apart.
pub type Runs = Vec<(u64, u64)>;

/// The sectors at the bottom on which areas lie, by the address of the leaf or engine.
pub(crate) type BottomRuns = BTreeMap<usize, (Rc<dyn BlockDevice>, Runs)>;

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
