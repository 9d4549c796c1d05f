// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map: where each sector of the volume lies.
//!
//! ```text
//!   start ──▶ Extent { segment, at, whole, crc, skip, sectors }
//!
//!   in the segment   at              at+skip        at+skip+sectors     at+whole
//!                    │ overwritten   │ this run     │ overwritten       │
//!                    └───────────── covered by crc ─────────────────────┘
//! ```
//!
//! Invariants
//! - OV-M1 Extents do not overlap. An entry takes 24 bytes, and the tree's own.
use std::collections::BTreeMap;
use std::ops::Range;

/// Index of a segment in the table of this opening.
pub(crate) type SegmentId = u32;

/// Bytes of an entry, for `map_memory`: key and extent.
pub(crate) const ENTRY_BYTES: u64 = 24;

/// A run of sectors of the volume, and where its data lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its segment.
    pub(crate) segment: SegmentId,
    /// CRC-32C of the extent as it was written.
    pub(crate) crc: u32,
    /// First sector of that in the segment, counted from the segment's `data_at`.
    pub(crate) at: u16,
    /// Length of this run in sectors.
    pub(crate) sectors: u16,
    /// Sectors of the extent as it was written before this run.
    pub(crate) skip: u16,
    /// Length of the extent as it was written.
    pub(crate) whole: u16,
}

const _: () = assert!(size_of::<Extent>() + 8 == ENTRY_BYTES as usize);

impl Extent {
    /// The part of it from sector `from` to `to`, counted from its start.
    fn part(self, from: u64, to: u64) -> Extent {
        let narrow = |n: u64| u16::try_from(n).expect("within an extent");
        Extent { sectors: narrow(to - from), skip: self.skip + narrow(from), ..self }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ExtentMap {
    extents: BTreeMap<u64, Extent>,
}

impl ExtentMap {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// All entries, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Extent)> {
        self.extents.iter().map(|(start, extent)| (*start, *extent))
    }

    /// The entry that begins at `start`.
    pub(crate) fn get(&self, start: u64) -> Option<Extent> {
        self.extents.get(&start).copied()
    }

    /// The runs within `range` that have data, cut to it, ascending.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<(u64, Extent)> {
        let first = self.extents.range(..range.start).next_back();
        let rest = self.extents.range(range.start..range.end);
        let mut pieces = Vec::new();
        for (&start, &extent) in first.into_iter().chain(rest) {
            let end = start + u64::from(extent.sectors);
            let (from, to) = (start.max(range.start), end.min(range.end));
            if from < to {
                pieces.push((from, extent.part(from - start, to - start)));
            }
        }
        pieces
    }

    /// Whether an entry is left before `range` and one behind it when it is cut out of the entry
    /// that it lies in.
    pub(crate) fn splits(&self, range: &Range<u64>) -> bool {
        let before = self.extents.range(..range.start).next_back();
        before.is_some_and(|(start, extent)| start + u64::from(extent.sectors) > range.end)
    }

    /// Removes what is in `range`, and calls `gone` with segment and number of sectors of each run.
    pub(crate) fn cut(&mut self, range: Range<u64>, mut gone: impl FnMut(SegmentId, u32)) {
        for (from, extent) in self.pieces(range.clone()) {
            gone(extent.segment, u32::from(extent.sectors));
            let before = self.extents.range(..=from).next_back();
            let (&start, &whole) = before.expect("the piece is part of an entry");
            let to = from + u64::from(extent.sectors);
            let end = start + u64::from(whole.sectors);
            self.extents.remove(&start);
            if start < from {
                self.extents.insert(start, whole.part(0, from - start));
            }
            if to < end {
                self.extents.insert(to, whole.part(to - start, end - start));
            }
        }
    }

    /// Puts an extent in, over what is there; see [`ExtentMap::cut`] for `gone`.
    pub(crate) fn insert(&mut self, start: u64, extent: Extent, gone: impl FnMut(SegmentId, u32)) {
        self.cut(start..start + u64::from(extent.sectors), gone);
        self.extents.insert(start, extent);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECTORS: usize = 200;

    proptest! {
        /// Against a plain array that has, for each sector, its segment and the place in it.
        #[test]
        fn the_map_says_what_was_written_last(
            writes in proptest::collection::vec((0u64..180, 1u16..20, any::<bool>()), 1..60)
        ) {
            let mut map = ExtentMap::default();
            let mut plain: [Option<(SegmentId, u16)>; SECTORS] = [None; SECTORS];
            let mut live = vec![0i64; writes.len()];
            for (segment, (start, sectors, is_write)) in (0..).zip(writes) {
                let end = start + u64::from(sectors);
                let at = segment as u16;
                let extent =
                    Extent { segment, crc: 0, at, sectors, skip: 0, whole: sectors };
                let gone = |id: SegmentId, sectors: u32| live[id as usize] -= i64::from(sectors);
                if is_write {
                    map.insert(start, extent, gone);
                    live[segment as usize] += i64::from(sectors);
                } else {
                    map.cut(start..end, gone);
                }
                for (n, sector) in (start..end).enumerate() {
                    let place = (segment, at + u16::try_from(n).unwrap());
                    plain[usize::try_from(sector).unwrap()] = is_write.then_some(place);
                }
            }
            let mut found = [None; SECTORS];
            for (start, extent) in map.pieces(0..SECTORS as u64) {
                for n in 0..extent.sectors {
                    let sector = usize::try_from(start).unwrap() + usize::from(n);
                    prop_assert_eq!(found[sector], None);
                    found[sector] = Some((extent.segment, extent.at + extent.skip + n));
                }
            }
            prop_assert_eq!(&found[..], &plain[..]);
            for (segment, live) in (0..).zip(live) {
                let sectors = plain.iter().flatten().filter(|(id, _)| *id == segment).count();
                prop_assert_eq!(sectors as i64, live);
            }
            for range in [3..50u64, 77..78, 100..200] {
                let pieces = map.pieces(range.clone());
                let sectors: u64 = pieces.iter().map(|(_, e)| u64::from(e.sectors)).sum();
                let of = |n: u64| usize::try_from(n).unwrap();
                let wanted = plain[of(range.start)..of(range.end)].iter().flatten().count();
                prop_assert_eq!(sectors, wanted as u64);
            }
        }
    }
}
