// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slots: their states, references that detect a reuse, and counts of the slots in each state.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Free,
    Writing,
    Dirty,
    Clean,
    Bad,
    Old,
    Zero,
    Limbo,
}

/// 16 bytes: a cache of a terabyte has 2^28 of them.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) block_low: u32,
    pub(super) block_high: u16,
    pub(super) state: State,
    /// Whether a record, durable or on its way, names this slot (WC-M4).
    pub(super) logged: bool,
    pub(super) crc: u32,
    pub(super) stamp: u32,
}
const _: () = assert!(size_of::<Slot>() == 16);

impl Slot {
    pub(super) const VACANT: Slot =
        Slot { block_low: 0, block_high: 0, state: State::Free, logged: false, crc: 0, stamp: 0 };

    pub(super) fn block(&self) -> u64 {
        u64::from(self.block_high) << 32 | u64::from(self.block_low)
    }
    pub(super) fn set_block(&mut self, block: u64) {
        self.block_low = (block & 0xffff_ffff) as u32;
        self.block_high = u16::try_from(block >> 32).expect("blocks are below 2^48");
    }
}

/// A slot and its stamp: a reference to one version (WC-M5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) slot: u32,
    pub(crate) stamp: u32,
}

/// The newest version of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentVersion {
    pub(crate) slot_ref: SlotRef,
    pub(crate) state: State,
    /// The checksum of its data, if it is known.
    pub(crate) crc: Option<u32>,
}

/// How many slots are in each state, and how many blocks are not logged yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) slots: u32,
    pub(crate) free: u32,
    pub(crate) writing: u32,
    pub(crate) dirty: u32,
    pub(crate) clean: u32,
    pub(crate) bad: u32,
    pub(crate) old: u32,
    pub(crate) zero: u32,
    pub(crate) limbo: u32,
    pub(crate) unlogged: u64,
}
