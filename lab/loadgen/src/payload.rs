// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data of writes under `--buffer-compress-percentage`: random bytes and zeroes, as fio makes
//! them, made before the load begins, so that a write costs a choice and no copy.
//!
//! ```text
//!   a block   │ random  0000 │ random  0000 │ ...      pieces of 512 bytes
//! ```
use block::{Buf, Sector, Slice};

use crate::job::draw;

/// All blocks together: little enough to stay in a core's cache.
const POOL_BYTES: usize = 1 << 20;
/// fio's default for `buffer_compress_chunk`.
const PIECE: usize = 512;

/// Blocks to choose from.
pub(crate) struct Payload {
    pool: Buf,
    block_bytes: usize,
}

impl Payload {
    /// Two blocks at least of `block` each, of whose bytes `zero_percent` in a hundred are zeroes.
    pub(crate) fn new(zero_percent: u32, block: Sector, seed: u64) -> Payload {
        let block_bytes = usize::try_from(block.bytes()).expect("at most 32 MiB");
        let pool = Buf::alloc(block_bytes * (POOL_BYTES / block_bytes).max(2));
        let zeroes = PIECE * zero_percent as usize / 100;
        let mut state = seed;
        pool.write(|bytes| {
            for piece in bytes.chunks_exact_mut(PIECE) {
                let (random, rest) = piece.split_at_mut(PIECE - zeroes);
                for word in random.chunks_mut(8) {
                    word.copy_from_slice(&draw(&mut state).to_le_bytes()[..word.len()]);
                }
                rest.fill(0);
            }
        });
        Payload { pool, block_bytes }
    }

    /// One of them.
    pub(crate) fn block(&self, random: u64) -> Slice {
        let count = self.pool.len() / self.block_bytes;
        let nth = ((u128::from(random) * count as u128) >> 64) as usize;
        self.pool.slice(nth * self.block_bytes..(nth + 1) * self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroes(bytes: &[u8]) -> usize {
        bytes.iter().filter(|b| **b == 0).count()
    }

    #[test]
    fn of_each_piece_so_much_is_zeroes_and_blocks_differ() {
        for (percent, least, most) in [(0, 0, 20), (50, 256, 280), (100, 512, 512)] {
            let payload = Payload::new(percent, Sector(8), 1);
            payload.block(0).read(|block| {
                assert_eq!(block.len(), 4096);
                for piece in block.chunks(PIECE) {
                    let zeroes = zeroes(piece);
                    assert!((least..=most).contains(&zeroes), "{percent} %: {zeroes} of 512");
                }
            });
        }
        let payload = Payload::new(50, Sector(8), 1);
        let [first, last] = [0, u64::MAX].map(|n| payload.block(n).read(<[u8]>::to_vec));
        assert_ne!(first, last);
    }

    #[test]
    fn of_large_blocks_there_are_two() {
        let payload = Payload::new(50, Sector::from_bytes(2 << 20), 1);
        assert_eq!(payload.pool.len(), 4 << 20);
        assert_eq!(payload.block(u64::MAX).len(), 2 << 20);
    }
}
