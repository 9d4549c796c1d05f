// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layout: how origin and cache area are divided among parts.
//!
//! ```text
//!   origin      | chunk 0 | chunk 1 | chunk 2 | chunk 3 | ...    32 MiB each
//!   part             0         1         0         1             of two
//!   cache area  |      area of part 0       |      area of part 1       | rest, unused |
//! ```
use block::Sector;

/// Areas begin at multiples of this if they are large enough, otherwise at multiples of a unit.
const ALIGN_LARGE: Sector = Sector::from_bytes(1 << 20);
const LARGE: Sector = Sector::from_bytes(32 << 20);
const ALIGN: Sector = Sector::from_bytes(format::UNIT as u64);

/// How the origin is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) parts: u8,
    pub(crate) chunk: Sector,
}

impl Layout {
    /// The part to which a sector belongs.
    pub(crate) fn part_of(self, at: Sector) -> usize {
        let nth = at.0 / self.chunk.0 % u64::from(self.parts);
        usize::try_from(nth).expect("less than 256")
    }

    /// Whether `len` sectors from `at` on belong to one part, and are contiguous there.
    pub(crate) fn is_within_one(self, at: Sector, len: Sector) -> bool {
        (at.0 % self.chunk.0).saturating_add(len.0) <= self.chunk.0
    }

    /// The end of the chunk of `at`.
    pub(crate) fn chunk_end(self, at: Sector) -> Sector {
        Sector((at.0 / self.chunk.0 + 1) * self.chunk.0)
    }
}

/// The length of each of `parts` equal areas of a cache area.
pub(crate) fn area_of_each(area: Sector, parts: u8) -> Sector {
    let each = (area.0 / u64::from(parts)).min(format::Part::AREA_SECTORS_MAX);
    let align = if each >= LARGE.0 { ALIGN_LARGE } else { ALIGN };
    Sector(each / align.0 * align.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_dealt_in_turn() {
        let layout = Layout { parts: 3, chunk: Sector(8) };
        let parts: Vec<usize> = (0..7).map(|c| layout.part_of(Sector(c * 8 + 7))).collect();
        assert_eq!(parts, [0, 1, 2, 0, 1, 2, 0]);
        assert!(layout.is_within_one(Sector(8), Sector(8)));
        assert!(!layout.is_within_one(Sector(9), Sector(8)));
        assert!(!layout.is_within_one(Sector(7), Sector(u64::MAX)));
        assert_eq!(layout.chunk_end(Sector(7)), Sector(8));
        assert_eq!(layout.chunk_end(Sector(8)), Sector(16));
    }

    #[test]
    fn areas_are_equal_aligned_and_lie_within_the_whole() {
        for (sectors, parts, each) in [
            (2048, 2, 1024),
            (2055, 2, 1024),
            (2063, 2, 1024),
            (2064, 2, 1032),
            (1 << 21, 3, 698_368),
            (131_072 + 4095, 2, 65536),
            (1 << 53, 2, (1 << 51) - 2048),
        ] {
            let found = area_of_each(Sector(sectors), parts);
            assert_eq!(found, Sector(each), "{sectors} by {parts}");
            assert!(found.0 * u64::from(parts) <= sectors);
        }
    }
}
