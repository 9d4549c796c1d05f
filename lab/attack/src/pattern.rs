// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a sector holds: contents that name the write that they come from, and checking them.
//!
//! ```text
//!  word  0      MAGIC ^ sector
//!        1      number of the write
//!        2..64  of an odd number random words; of an even one eight equal words at a time, which
//!               a compressor can make smaller
//! ```

use crate::rng::mix;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;
const MAGIC: u64 = 0x6D69_6C6C_706F_6E64;

/// What was found in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// All of it was written by this write, for this sector.
    Write(u64),
    /// Zeroes.
    Zeroes,
    /// The sector was written for another place.
    Foreign {
        /// That place.
        sector: u64,
        /// The number of the write.
        write: u64,
    },
    /// No write has made this: how many of its 64 words are those of the write that it names.
    Mixed {
        /// The number of the write.
        write: u64,
        /// Words that are right.
        words: usize,
    },
}

fn word(write: u64, sector: u64, index: usize) -> u64 {
    let index = index as u64;
    match index {
        0 => MAGIC ^ sector,
        1 => write,
        _ if write % 2 == 1 => mix(mix(write ^ (sector << 32)).wrapping_add(index)),
        _ => mix(mix(write ^ (sector << 32)).wrapping_add(index / 8)),
    }
}

/// Fills `data`, whole sectors from `sector` on, as the write of this number does.
pub fn fill(write: u64, sector: u64, data: &mut [u8]) {
    for (bytes, at) in data.chunks_exact_mut(SECTOR).zip(sector..) {
        for (bytes, index) in bytes.chunks_exact_mut(8).zip(0..) {
            bytes.copy_from_slice(&word(write, at, index).to_le_bytes());
        }
    }
}

fn words(data: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(data.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight bytes"));
    }
    words
}

/// What the bytes of `sector` are.
pub fn identify(sector: u64, data: &[u8]) -> Content {
    let words = words(data);
    if words.iter().all(|w| *w == 0) {
        return Content::Zeroes;
    }
    let write = words[1];
    let right = |place: u64| (0..WORDS).filter(|&i| words[i] == word(write, place, i)).count();
    let here = right(sector);
    if here == WORDS {
        return Content::Write(write);
    }
    let place = words[0] ^ MAGIC;
    if right(place) == WORDS {
        return Content::Foreign { sector: place, write };
    }
    Content::Mixed { write, words: here }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_name_their_write_and_place() {
        for write in [1, 2, u64::MAX] {
            let mut data = [0; 2 * SECTOR];
            fill(write, 7, &mut data);
            assert_eq!(identify(7, &data[..SECTOR]), Content::Write(write));
            assert_eq!(identify(8, &data[SECTOR..]), Content::Write(write));
            assert_eq!(identify(7, &data[SECTOR..]), Content::Foreign { sector: 8, write });
        }
        assert_eq!(identify(7, &[0; SECTOR]), Content::Zeroes);
    }

    #[test]
    fn a_torn_sector_is_no_content() {
        let (mut old, mut new) = ([0; SECTOR], [0; SECTOR]);
        fill(3, 7, &mut old);
        fill(4, 7, &mut new);
        new[256..].copy_from_slice(&old[256..]);
        assert!(matches!(identify(7, &new), Content::Mixed { write: 4, .. }));
        let mut flipped = old;
        flipped[511] ^= 1;
        assert_eq!(identify(7, &flipped), Content::Mixed { write: 3, words: 63 });
    }
}
