// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file or disk below a device, for devices that would write to the same bytes under two names.
use std::sync::Arc;

use crate::Sector;

/// Where a device lies on a file or disk, on which others may lie, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Equal for two devices if and only if they lie on the same file or disk.
    pub file: Arc<str>,
    /// Where the first sector of the device is there. A loop device may begin at any byte.
    pub start_bytes: u64,
}

impl Backing {
    /// The bytes there, half-open, of the half-open run `start..end` of the device's sectors.
    pub fn bytes(&self, start: Sector, end: Sector) -> (u64, u64) {
        let byte = |at: Sector| self.start_bytes.saturating_add(at.0.saturating_mul(512));
        (byte(start), byte(end))
    }
}
