// SPDX-License-Identifier: Apache-2.0 OR MIT
//! View: the map as tools look at it.
use super::{Slots, State};

impl Slots {
    /// Every slot that holds a block: slot, block, state, checksum.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, u64, State, u32)> {
        let all = (0..self.counts.slots).zip(&self.slots);
        all.filter(|(slot, _)| self.is_live(*slot))
            .map(|(slot, s)| (slot, s.block(), s.state, s.crc))
    }
}
