// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that are not whole blocks: their edges, and reads of whole blocks in their place.
//!
//! ```text
//!   write  |....wwww|wwwwwwww|ww......|
//!           head ▲   whole ▲   ▲ tail        a request within one block is all head
//! ```
use std::ops::Range;

use crate::{Bio, Buf, Bufs, Op, Sector};

/// A run of sectors, cut at the multiples of a block. Parts may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edges {
    /// Before the first whole block.
    pub head: Range<Sector>,
    /// Whole blocks.
    pub whole: Range<Sector>,
    /// After the last whole block.
    pub tail: Range<Sector>,
}

/// The first sector of the block of `block` sectors that holds `at`.
pub fn block_start(at: Sector, block: u64) -> Sector {
    Sector(at.0 - at.0 % block)
}

/// The first multiple of `block` sectors from `at` on.
pub fn block_end(at: Sector, block: u64) -> Sector {
    Sector(at.0.next_multiple_of(block))
}

impl Edges {
    /// Of `sectors`, in blocks of `block` sectors.
    pub fn of(sectors: Range<Sector>, block: u64) -> Edges {
        let Range { start, end } = sectors;
        let (from, to) = (block_end(start, block), block_start(end, block));
        if from > to {
            // Within one block.
            return Edges { head: start..end, whole: end..end, tail: end..end };
        }
        Edges { head: start..from, whole: from..to, tail: to..end }
    }
}

impl Bio {
    /// Cuts the bio down to `sectors` of it.
    pub fn narrow(&mut self, sectors: Range<Sector>) {
        if self.op == Op::Write && !sectors.is_empty() {
            let first = bytes(sectors.start - self.sector);
            self.bufs = self.bufs.slice(first..first + bytes(sectors.end - sectors.start));
        }
        (self.sector, self.len) = (sectors.start, sectors.end - sectors.start);
    }

    /// Extends a read to whole blocks of `block` sectors. What it reads beyond its own sectors goes
    /// to scratch memory.
    pub fn widen(&mut self, block: u64) {
        let (from, to) = (block_start(self.sector, block), block_end(self.end(), block));
        let scratch = |len: Sector| (len > Sector::ZERO).then(|| Buf::alloc(bytes(len)).all());
        let (front, back) = (scratch(self.sector - from), scratch(to - self.end()));
        let mut bufs = Bufs::new();
        bufs.extend(front);
        bufs.extend(self.bufs.iter().cloned());
        bufs.extend(back);
        (self.sector, self.len, self.bufs) = (from, to - from, bufs);
    }
}

fn bytes(len: Sector) -> usize {
    usize::try_from(len.bytes()).expect("a part of a request's data, or less than a block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_and_whole_blocks_are_the_range() {
        for (start, end) in (0..40).flat_map(|start| (start + 1..40).map(move |end| (start, end))) {
            let Edges { head, whole, tail } = Edges::of(Sector(start)..Sector(end), 8);
            assert_eq!((head.start, tail.end), (Sector(start), Sector(end)));
            assert_eq!((head.end, whole.end), (whole.start, tail.start));
            let blocks = |range: &Range<Sector>| match range.is_empty() {
                true => 0,
                false => range.end.0.div_ceil(8) - range.start.0 / 8,
            };
            assert!(whole.is_empty() || whole.start.0 % 8 == 0 && whole.end.0 % 8 == 0);
            assert!(blocks(&head) <= 1, "{head:?}");
            assert!(blocks(&tail) <= 1, "{tail:?}");
            let is_whole = |block: &u64| start <= block * 8 && block * 8 + 8 <= end;
            assert_eq!(blocks(&whole), (0..5).filter(is_whole).map(|_| 1).sum());
        }
    }
}
