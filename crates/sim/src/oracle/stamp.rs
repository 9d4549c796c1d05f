// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the oracle writes into a sector, and what it finds there.
//!
//! ```text
//!  0        8        16        24      32          512
//!  │ run    │ block  │ version │ check │ the same 15 times more │
//! ```
//! `check` binds the others and the sector's place in its block.

use std::fmt;

const WORDS: usize = 4;
const UNIT_BYTES: usize = WORDS * 8;

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Zeroes,
    Version(u64),
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zeroes => f.write_str("zeroes"),
            Content::Version(v) => write!(f, "version {v}"),
        }
    }
}

/// Why a sector is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StampError {
    NotAllowed(Content),
    Mixture(Content, Content),
    Foreign { block: u64, version: u64 },
    OtherSector { version: u64 },
    OtherRun,
    Rubbish,
}

impl fmt::Display for StampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StampError::NotAllowed(content) => write!(f, "{content} is not allowed"),
            StampError::Mixture(a, b) => write!(f, "mixture of {a} and {b}"),
            StampError::Foreign { block, version } => {
                write!(f, "data of block {block}, version {version}")
            }
            StampError::OtherSector { version } => {
                write!(f, "data of another sector of the block, version {version}")
            }
            StampError::OtherRun => f.write_str("not this run's data"),
            StampError::Rubbish => f.write_str("rubbish: torn, rotten or never written"),
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn run_word(seed: u64) -> u64 {
    mix(seed ^ 0x6D69_6C6C_706F_6E64)
}

fn unit(seed: u64, block: u64, version: u64, sector: usize) -> [u8; UNIT_BYTES] {
    let run = run_word(seed);
    let check = mix(mix(mix(run ^ block) ^ version) ^ sector as u64);
    let mut unit = [0; UNIT_BYTES];
    for (bytes, word) in unit.chunks_exact_mut(8).zip([run, block, version, check]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    unit
}

/// Writes the stamp of a version all over a block.
pub(super) fn fill(data: &mut [u8], seed: u64, block: u64, version: u64) {
    for (sector, bytes) in data.chunks_exact_mut(512).enumerate() {
        let unit = unit(seed, block, version, sector);
        bytes.chunks_exact_mut(UNIT_BYTES).for_each(|b| b.copy_from_slice(&unit));
    }
}

/// Reads the stamp of one sector, which should be sector `sector` of `block`.
pub(super) fn read(
    data: &[u8],
    seed: u64,
    block: u64,
    sector: usize,
) -> Result<Content, StampError> {
    let first = &data[..UNIT_BYTES];
    if data.chunks_exact(UNIT_BYTES).any(|unit| unit != first) {
        return Err(StampError::Rubbish);
    }
    if first.iter().all(|&b| b == 0) {
        return Ok(Content::Zeroes);
    }
    let word = |n: usize| {
        let bytes = first[n * 8..n * 8 + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes are eight bytes"))
    };
    let (found_block, version) = (word(1), word(2));
    if *first == unit(seed, block, version, sector) {
        return Ok(Content::Version(version));
    }
    if word(0) != run_word(seed) {
        return Err(StampError::OtherRun);
    }
    if found_block != block {
        return Err(StampError::Foreign { block: found_block, version });
    }
    Err(StampError::OtherSector { version })
}
