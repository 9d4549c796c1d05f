// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of a cache area of a given size.
//!
//! ```text
//! 0        4 superblock copies, one unit each, 64 KiB apart
//! 256 KiB  checkpoint area A, checkpoint_units
//!          checkpoint area B, checkpoint_units
//!          record log, log_units (circular)
//!          padding to 4 KiB or a block, or to 1 MiB when the slots hold 32 MiB and more
//!          slots, block_size bytes each
//! ```
//!
//! A cache that was resized (`resized`) has its checkpoints and its log behind its slots. Its slots
//! begin where they began before.
//!
//! Invariants
//! - FM-G1 Every offset follows from the numbers in the superblock, not from the size of the
//!   device: a device that has grown keeps its cache.
//! - FM-G2 `end_bytes` is at most the area passed to `compute`.

use std::fmt;

use crate::UNIT;
use crate::record::ENTRIES_PER_UNIT;

/// Smallest block size: one sector.
pub const BLOCK_SIZE_MIN: u32 = 512;
/// Largest block size of the format.
pub const BLOCK_SIZE_MAX: u32 = 65536;
/// Largest block size of an engine, as in the kernel.
pub const BLOCK_SIZE_SERVED_MAX: u32 = 4096;
/// Fewest slots of a cache. Chosen: fewer could not hold one burst and its writeback.
pub const SLOTS_MIN: u32 = 16;
/// `u32::MAX` is reserved: engines use it for "no slot".
pub(crate) const SLOTS_MAX: u32 = u32::MAX - 1;

const UNIT_BYTES: u64 = UNIT as u64;
/// Copies are apart, so that one bad erase block or track does not destroy two of them.
const SUPERBLOCK_STRIDE_BYTES: u64 = 64 << 10;
const CHECKPOINT_START_BYTES: u64 = 4 * SUPERBLOCK_STRIDE_BYTES;
/// If the slots have at least this many bytes, their start is aligned to `SLOT_ALIGN_LARGE_BYTES`.
const SLOT_ALIGN_FROM_BYTES: u64 = 32 << 20;
const SLOT_ALIGN_LARGE_BYTES: u64 = 1 << 20;

/// Sizes that are tried to name the least one to which a cache can grow. Each is a 64th of the
/// metadata more, of which growth needs little more than it has.
const GROWTH_STEPS_MAX: u64 = 1 << 10;

pub(crate) const LOG_UNITS_MIN: u32 = 16;
/// 256 MiB of log: an SSD reads it in a second or less.
pub(crate) const LOG_UNITS_MAX: u32 = 65536;

/// The layout of one cache area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in one slot.
    pub block_size: u32,
    /// Slots in the area.
    pub slots: u32,
    /// Units of the circular record log.
    pub log_units: u32,
    /// Units of one of the two checkpoint areas.
    pub checkpoint_units: u32,
    /// Where metadata and slots are, if the cache was resized.
    pub moved: Option<MovedMetadata>,
}

/// Where a resized cache has its metadata and its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedMetadata {
    /// Byte offset of checkpoint area A; area B and the log follow.
    pub metadata_start: u64,
    /// Byte offset of the first slot.
    pub slots_start: u64,
}

impl MovedMetadata {
    /// Both offsets are below this: sums do not overflow. A device of 2^62 bytes does not exist.
    const OFFSET_MAX: u64 = 1 << 62;

    /// The first field that has an impossible value.
    pub(crate) fn wrong_field(&self, geometry: &Geometry) -> Option<&'static str> {
        let is_place = |offset: u64| {
            offset.is_multiple_of(UNIT_BYTES)
                && (CHECKPOINT_START_BYTES..MovedMetadata::OFFSET_MAX).contains(&offset)
        };
        if !is_place(self.slots_start) {
            return Some("slots_start");
        }
        let slots_end = self.slots_start + geometry.slots_bytes();
        let is_behind = is_place(self.metadata_start) && slots_end <= self.metadata_start;
        (!is_behind).then_some("metadata_start")
    }
}

/// Why there is no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// The block size is not a power of two in the allowed range.
    BlockSize {
        /// Block size that was asked for.
        block_size: u32,
    },
    /// The area is too small.
    TooSmall {
        /// Bytes of the area.
        area_bytes: u64,
        /// Bytes of the smallest cache with this block size.
        needed_bytes: u64,
    },
}

impl Geometry {
    /// Lays out an area of `area_bytes`: 1/128 of it is log, the rest is slots.
    pub fn compute(area_bytes: u64, block_size: u32) -> Result<Geometry, GeometryError> {
        if !is_block_size(block_size, BLOCK_SIZE_MAX) {
            return Err(GeometryError::BlockSize { block_size });
        }
        let needed_bytes = Geometry::smallest(block_size).end_bytes();
        if area_bytes < needed_bytes {
            return Err(GeometryError::TooSmall { area_bytes, needed_bytes });
        }
        let preferred = Geometry::fill(area_bytes, block_size, log_units_for(area_bytes));
        let geometry = match preferred {
            Some(geometry) => geometry,
            None => Geometry::fill(area_bytes, block_size, LOG_UNITS_MIN)
                .expect("the area holds the smallest cache"),
        };
        assert!(geometry.end_bytes() <= area_bytes); // FM-G2
        Ok(geometry)
    }

    /// Byte offset of superblock `copy`, 0 to 3. All copies lie in the first 256 KiB, independent
    /// of the geometry, which is known only after one was read.
    #[must_use]
    pub fn superblock_offset(copy: u8) -> u64 {
        assert!(copy < 4, "superblock copy {copy} of 4");
        u64::from(copy) * SUPERBLOCK_STRIDE_BYTES
    }

    /// Byte offset of checkpoint area 0 or 1.
    #[must_use]
    pub fn checkpoint_offset(&self, area: u8) -> u64 {
        assert!(area < 2, "checkpoint area {area} of 2");
        self.metadata_start() + u64::from(area) * self.checkpoint_bytes()
    }

    fn metadata_start(&self) -> u64 {
        self.moved.map_or(CHECKPOINT_START_BYTES, |moved| moved.metadata_start)
    }

    /// Bytes of checkpoints and log together.
    fn metadata_bytes(&self) -> u64 {
        2 * self.checkpoint_bytes() + self.log_bytes()
    }

    /// Bytes of the log.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.log_units) * UNIT_BYTES
    }

    /// Bytes of one checkpoint area.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> u64 {
        u64::from(self.checkpoint_units) * UNIT_BYTES
    }

    /// Byte offset of the unit that holds record `seq`: the log is circular.
    #[must_use]
    pub fn log_offset(&self, seq: u64) -> u64 {
        self.log_start() + seq % u64::from(self.log_units) * UNIT_BYTES
    }

    /// Byte offset of the first unit of the log.
    #[must_use]
    pub fn log_start(&self) -> u64 {
        self.metadata_start() + 2 * self.checkpoint_bytes()
    }

    /// Byte offset of `slot`.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.slots_start() + u64::from(slot) * u64::from(self.block_size)
    }

    /// Byte offset of the first slot.
    #[must_use]
    pub fn slots_start(&self) -> u64 {
        if let Some(moved) = self.moved {
            return moved.slots_start;
        }
        let log_end = self.log_start() + self.log_bytes();
        let align = match self.slots_bytes() {
            SLOT_ALIGN_FROM_BYTES.. => SLOT_ALIGN_LARGE_BYTES,
            _ => UNIT_BYTES.max(self.block_size.into()),
        };
        log_end.next_multiple_of(align)
    }

    /// Bytes of all slots together.
    #[must_use]
    pub fn slots_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.block_size)
    }

    /// First byte after all of it: the area must have at least this size.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        match self.moved {
            Some(moved) => moved.metadata_start + self.metadata_bytes(),
            None => self.slots_start() + self.slots_bytes(),
        }
    }

    /// The layout for a device that has grown: more slots, and behind them, where nothing was
    /// before, the metadata. The log is no shorter.
    ///
    /// # Errors
    /// The least area for which there is one.
    pub fn grown(&self, area_bytes: u64) -> Result<Geometry, GeometryError> {
        let grown_to = |area| {
            let log_units = log_units_for(area).max(self.log_units);
            let is_more =
                |new: &Geometry| new.slots > self.slots && new.metadata_start() >= self.end_bytes();
            self.behind_slots(area, log_units).filter(is_more)
        };
        let step = UNIT_BYTES.max(self.metadata_bytes() / 64 / UNIT_BYTES * UNIT_BYTES);
        let units_end = self.end_bytes().next_multiple_of(UNIT_BYTES);
        grown_to(area_bytes).ok_or_else(|| {
            let areas = (1..GROWTH_STEPS_MAX).map(|nth| units_end + nth * step);
            let least = areas.into_iter().find(|area| grown_to(*area).is_some());
            let needed_bytes = least.unwrap_or(u64::MAX);
            GeometryError::TooSmall { area_bytes, needed_bytes }
        })
    }

    /// The most slots from where they begin now, with the metadata behind them at the end of the
    /// area.
    fn behind_slots(&self, area_bytes: u64, log_units: u32) -> Option<Geometry> {
        let slots_start = self.slots_start();
        most_slots(|slots| {
            let moved = Some(MovedMetadata { metadata_start: 0, slots_start });
            let mut new =
                Geometry { moved, ..Geometry::with_slots(self.block_size, log_units, slots) };
            let metadata_start = area_bytes.checked_sub(new.metadata_bytes())?;
            let metadata_start = metadata_start / UNIT_BYTES * UNIT_BYTES;
            new.moved = Some(MovedMetadata { metadata_start, slots_start });
            (slots_start + new.slots_bytes() <= metadata_start).then_some(new)
        })
    }

    fn smallest(block_size: u32) -> Geometry {
        Geometry::with_slots(block_size, LOG_UNITS_MIN, SLOTS_MIN)
    }

    fn with_slots(block_size: u32, log_units: u32, slots: u32) -> Geometry {
        let checkpoint_units = checkpoint_units_for(slots);
        Geometry { block_size, slots, log_units, checkpoint_units, moved: None }
    }

    /// The most slots that fit beside a log of `log_units`; `None` if fewer than [`SLOTS_MIN`].
    fn fill(area_bytes: u64, block_size: u32, log_units: u32) -> Option<Geometry> {
        most_slots(|slots| {
            let candidate = Geometry::with_slots(block_size, log_units, slots);
            (candidate.end_bytes() <= area_bytes).then_some(candidate)
        })
    }
}

/// The layout with the most slots for which there is one. Where some number of slots fits, each
/// lower one does: so it bisects, `low` fits, and nothing above `high`.
fn most_slots(layout: impl Fn(u32) -> Option<Geometry>) -> Option<Geometry> {
    let mut most = layout(SLOTS_MIN)?;
    let (mut low, mut high) = (SLOTS_MIN, SLOTS_MAX);
    while low < high {
        let middle = high - (high - low) / 2;
        match layout(middle) {
            Some(fits) => (low, most) = (middle, fits),
            None => high = middle - 1,
        }
    }
    Some(most)
}

/// True for the powers of two from [`BLOCK_SIZE_MIN`] to `most`.
pub(crate) fn is_block_size(block_size: u32, most: u32) -> bool {
    block_size.is_power_of_two() && (BLOCK_SIZE_MIN..=most).contains(&block_size)
}

/// Fewest units that hold one entry per slot.
pub(crate) fn checkpoint_units_least(slots: u32) -> u32 {
    slots.div_ceil(ENTRIES_PER_UNIT as u32)
}

/// Room for one entry per slot, plus 1/16 and two units: the map changes while a checkpoint is
/// written, so a slot may be listed twice, and quarantined slots are listed, too.
fn checkpoint_units_for(slots: u32) -> u32 {
    let least = checkpoint_units_least(slots);
    least + least / 16 + 2
}

/// 1/128 of the area, between 64 and 65536 units, but at most 1/8 of a tiny area; a multiple of 16.
/// An area of 1 GiB has 262,144 units, of which 2048 are log.
fn log_units_for(area_bytes: u64) -> u32 {
    let area_units = area_bytes / UNIT_BYTES;
    let preferred = (area_units / 128).max(64).min(area_units / 8);
    let bounded = preferred.clamp(u64::from(LOG_UNITS_MIN), u64::from(LOG_UNITS_MAX));
    u32::try_from(bounded / 16 * 16).expect("clamped to LOG_UNITS_MAX")
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GeometryError::BlockSize { block_size } => {
                write!(f, "block size {block_size}: a power of two from 512 to 65536 is allowed")
            }
            GeometryError::TooSmall { area_bytes, needed_bytes } => write!(
                f,
                "cache device is {}, needs at least {}",
                Size(area_bytes),
                Size(needed_bytes)
            ),
        }
    }
}

impl std::error::Error for GeometryError {}

/// A byte count in the largest unit that divides it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0 bytes"),
            bytes if bytes % (1 << 30) == 0 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes % (1 << 20) == 0 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes % (1 << 10) == 0 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn metadata_of_1_gib_of_4k_blocks_takes_at_most_2_percent() {
        let geometry = Geometry::compute(GIB, 4096).unwrap();
        let overhead = GIB - geometry.slots_bytes();
        assert!(overhead * 1000 <= GIB * 20, "{overhead} bytes");
        assert_eq!(geometry.log_units, 2048);
    }

    #[test]
    fn half_a_mebibyte_holds_a_cache_of_4k_blocks() {
        let geometry = Geometry::compute(512 * KIB, 4096).unwrap();
        assert_eq!(geometry.log_units, 16);
        assert!(geometry.slots >= 32, "{geometry:?}");
    }

    #[test]
    fn too_small_an_area_is_refused_with_the_size_that_would_do() {
        let error = Geometry::compute(256 * KIB, 4096).unwrap_err();
        assert_eq!(error.to_string(), "cache device is 256 KiB, needs at least 408 KiB");
        let GeometryError::TooSmall { needed_bytes, .. } = error else { panic!("{error}") };
        assert!(Geometry::compute(needed_bytes, 4096).is_ok());
        assert!(Geometry::compute(needed_bytes - 1, 4096).is_err());
    }

    #[test]
    fn block_sizes_are_powers_of_two_from_512_to_65536() {
        for block_size in [0, 1, 256, 513, 3072, 131_072, u32::MAX] {
            let error = Geometry::compute(GIB, block_size).unwrap_err();
            assert_eq!(error, GeometryError::BlockSize { block_size });
        }
        for block_size in [512, 1024, 2048, 4096, 65536] {
            assert!(Geometry::compute(GIB, block_size).is_ok());
        }
    }

    #[test]
    fn slots_of_a_large_area_start_on_a_mebibyte() {
        for area in [64 * MIB, 100 * MIB, 1006 * MIB, 7 * GIB] {
            for block_size in [512, 4096, 65536] {
                let geometry = Geometry::compute(area, block_size).unwrap();
                assert_eq!(geometry.slots_start() % MIB, 0, "{geometry:?}");
            }
        }
    }

    #[test]
    fn log_offsets_go_round() {
        let geometry = Geometry::compute(64 * MIB, 4096).unwrap();
        let log_units = u64::from(geometry.log_units);
        assert_eq!(geometry.log_offset(0), geometry.log_offset(log_units));
        assert_eq!(geometry.log_offset(log_units + 5), geometry.log_start() + 5 * 4096);
        assert!(geometry.log_offset(log_units - 1) + 4096 <= geometry.slots_start());
    }

    #[test]
    fn the_largest_area_does_not_overflow_the_slot_numbers() {
        let geometry = Geometry::compute(u64::MAX, 4096).unwrap();
        assert_eq!(geometry.slots, SLOTS_MAX);
        assert_eq!(geometry.log_units, LOG_UNITS_MAX);
    }

    #[test]
    fn growth_by_too_little_is_refused_with_the_size_that_would_do() {
        let geometry = Geometry::compute(64 * MIB, 4096).unwrap();
        for area in [0, 63 * MIB, 64 * MIB, 65 * MIB] {
            let error = geometry.grown(area).unwrap_err();
            let GeometryError::TooSmall { needed_bytes, .. } = error else { panic!("{error}") };
            assert!(geometry.grown(needed_bytes).is_ok());
            assert!(needed_bytes <= 67 * MIB, "{needed_bytes}");
        }
        let grown = geometry.grown(1 << 40).unwrap();
        assert_eq!(grown.log_units, LOG_UNITS_MAX);
    }

    proptest! {
        #[test]
        fn regions_follow_one_another_and_stay_inside(
            area in 512 * KIB..200 * GIB,
            shift in 9u32..=16,
        ) {
            let area = area.max(Geometry::smallest(1 << shift).end_bytes());
            let geometry = Geometry::compute(area, 1 << shift).unwrap();
            let area_end = |area| geometry.checkpoint_offset(area) + geometry.checkpoint_bytes();
            prop_assert!(Geometry::superblock_offset(3) + 4096 <= geometry.checkpoint_offset(0));
            prop_assert_eq!(area_end(0), geometry.checkpoint_offset(1));
            prop_assert_eq!(area_end(1), geometry.log_start());
            let log_bytes = u64::from(geometry.log_units) * 4096;
            prop_assert!(geometry.log_start() + log_bytes <= geometry.slots_start());
            prop_assert_eq!(geometry.slots_start() % 4096.max(1 << shift), 0);
            prop_assert!(geometry.end_bytes() <= area);
            let last = geometry.slot_offset(geometry.slots - 1);
            prop_assert_eq!(last + u64::from(geometry.block_size), geometry.end_bytes());
            let entries = u64::from(geometry.checkpoint_units) * ENTRIES_PER_UNIT as u64;
            prop_assert!(entries > u64::from(geometry.slots));
        }

        #[test]
        fn growth_keeps_what_is_in_use(
            area in 512 * KIB..20 * GIB,
            more in prop::collection::vec(1u64..3 << 20, 1..4),
            shift in 9u32..=16,
        ) {
            let mut area = area.max(Geometry::smallest(1 << shift).end_bytes());
            let mut geometry = Geometry::compute(area, 1 << shift).unwrap();
            for units in more {
                area += units * 4096;
                let new = match geometry.grown(area) {
                    Ok(new) => new,
                    Err(GeometryError::TooSmall { needed_bytes, .. }) => {
                        prop_assert!(needed_bytes > area);
                        area = needed_bytes;
                        geometry.grown(area).unwrap()
                    }
                    Err(e) => panic!("{e}"),
                };
                // Slots stay where they are, and the metadata touch nothing that was in use.
                let last = geometry.slots - 1;
                prop_assert_eq!(new.slot_offset(last), geometry.slot_offset(last));
                prop_assert!(new.slots > geometry.slots && new.log_units >= geometry.log_units);
                let checkpoint = new.checkpoint_offset(0);
                prop_assert!(checkpoint >= geometry.end_bytes());
                prop_assert!(new.slots_start() + new.slots_bytes() <= checkpoint);
                prop_assert_eq!(new.checkpoint_offset(1), checkpoint + new.checkpoint_bytes());
                prop_assert_eq!(new.log_start(), new.checkpoint_offset(1) + new.checkpoint_bytes());
                prop_assert_eq!(new.log_start() + new.log_bytes(), new.end_bytes());
                prop_assert!(new.end_bytes() <= area && area - new.end_bytes() < 4096);
                prop_assert_eq!(checkpoint % 4096, 0);
                let entries = u64::from(new.checkpoint_units) * ENTRIES_PER_UNIT as u64;
                prop_assert!(entries > u64::from(new.slots));
                geometry = new;
            }
        }

        #[test]
        fn no_slot_is_left_out(area in 64 * MIB..20 * GIB, shift in 9u32..=16) {
            let geometry = Geometry::compute(area, 1 << shift).unwrap();
            let more = Geometry::with_slots(1 << shift, geometry.log_units, geometry.slots + 1);
            prop_assert!(more.end_bytes() > area);
        }
    }
}
