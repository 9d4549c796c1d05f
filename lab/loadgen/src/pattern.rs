// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of blocks under `--verify`: each sector holds the seed, its number and the round in
//! which it was written; its other bytes follow from these.
//!
//! ```text
//!   0        8        16       24                                 512
//!   │ MAGIC  │ seed   │ sector │ round  │ words drawn from the three │   little endian
//! ```
//!
//! Invariants
//! - LG-V1 A block in flight is not chosen again, for reading or writing: the round that it must
//!   hold is known when its read begins and still holds when it ends.
use block::{Buf, Op, SECTOR_SIZE, Sector};

use crate::job::Work;

const MAGIC: u64 = u64::from_le_bytes(*b"mp-bench");
/// Marks a block in flight in the table of rounds.
const BUSY: u32 = 1 << 31;

/// What is known of each block of a job's region: the round of its last write, 0 for none.
pub(crate) struct Blocks {
    rounds: Vec<u32>,
    first: Sector,
    block: Sector,
    seed: u64,
    /// Whether this job writes; if not, blocks may be of any earlier round.
    writes: bool,
    reading_back: bool,
    cursor: usize,
    checked: u64,
}

/// The next request, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRequest {
    Go(Op, u64),
    Over,
}

fn index(block: u64) -> usize {
    usize::try_from(block).expect("as many as the table has")
}

impl Blocks {
    pub(crate) fn new(work: &Work) -> Blocks {
        Blocks {
            rounds: vec![0; index(work.blocks)],
            first: work.first,
            block: work.block,
            seed: work.pattern_seed,
            writes: work.kind.writes(),
            reading_back: false,
            cursor: 0,
            checked: 0,
        }
    }

    /// From now on what was written is read, each block once.
    pub(crate) fn read_back(&mut self) {
        self.reading_back = true;
        self.cursor = 0;
    }

    /// Blocks that were read and held what they had to.
    pub(crate) fn checked(&self) -> u64 {
        self.checked
    }

    /// Begins a request for block `wanted` or, if that is in flight, one behind it (LG-V1).
    pub(crate) fn begin(&mut self, op: Op, wanted: u64, buf: &Buf) -> NextRequest {
        if self.reading_back {
            let rest = &self.rounds[self.cursor..];
            let Some(skip) = rest.iter().position(|round| *round != 0) else {
                return NextRequest::Over;
            };
            let at = self.cursor + skip;
            self.cursor = at + 1;
            self.rounds[at] |= BUSY;
            return NextRequest::Go(Op::Read, at as u64);
        }
        let mut at = index(wanted);
        while self.rounds[at] & BUSY != 0 {
            // Ends: a job has no more slots than blocks, and this one is not in flight.
            at = if at + 1 == self.rounds.len() { 0 } else { at + 1 };
        }
        if op == Op::Write {
            let round = (self.rounds[at] + 1) % BUSY;
            self.rounds[at] = round.max(1);
            self.fill(at, buf);
        }
        self.rounds[at] |= BUSY;
        NextRequest::Go(op, at as u64)
    }

    /// Ends a request; fails when a read returned wrong data.
    pub(crate) fn ended(
        &mut self,
        op: Op,
        sector: Sector,
        buf: &Buf,
        failed: bool,
    ) -> Result<(), String> {
        let at = index((sector.0 - self.first.0) / self.block.0);
        self.rounds[at] &= !BUSY;
        let round = self.rounds[at];
        if op == Op::Write || failed || (self.writes && round == 0) {
            return Ok(());
        }
        buf.read(|bytes| self.check(sector, round, bytes))?;
        self.checked += 1;
        Ok(())
    }

    fn fill(&self, at: usize, buf: &Buf) {
        let round = self.rounds[at];
        let mut sector = self.first.0 + at as u64 * self.block.0;
        buf.write(|bytes| {
            for piece in bytes.chunks_exact_mut(SECTOR_SIZE) {
                piece.copy_from_slice(&contents(self.seed, sector, round));
                sector += 1;
            }
        });
    }

    fn check(&self, first: Sector, round: u32, bytes: &[u8]) -> Result<(), String> {
        for (nth, piece) in bytes.chunks_exact(SECTOR_SIZE).enumerate() {
            let sector = first.0 + nth as u64;
            let round = if self.writes { round } else { word(piece, 3) as u32 };
            if piece != contents(self.seed, sector, round) {
                let found = describe(piece, self.seed, sector, round);
                let wanted = if self.writes { format!("round {round}") } else { "a round".into() };
                return Err(format!(
                    "verify: sector {sector} does not hold {wanted} of seed {}, but {found}",
                    self.seed
                ));
            }
        }
        Ok(())
    }
}

fn word(bytes: &[u8], nth: usize) -> u64 {
    let bytes = &bytes[nth * 8..nth * 8 + 8];
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// What a sector holds. The multiplier is that of splitmix64.
fn contents(seed: u64, sector: u64, round: u32) -> [u8; SECTOR_SIZE] {
    let mut out = [0; SECTOR_SIZE];
    let head = [MAGIC, seed, sector, u64::from(round)];
    let mut state = seed ^ sector.rotate_left(32) ^ u64::from(round).rotate_left(16);
    for (nth, eight) in out.chunks_exact_mut(8).enumerate() {
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = head.get(nth).copied().unwrap_or(state ^ (state >> 29));
        eight.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Describes wrong data.
fn describe(found: &[u8], seed: u64, sector: u64, round: u32) -> String {
    if found.iter().all(|b| *b == 0) {
        return "zeroes".into();
    }
    if word(found, 0) == MAGIC {
        let (its_seed, its_sector, its_round) = (word(found, 1), word(found, 2), word(found, 3));
        if (its_seed, its_sector, its_round) != (seed, sector, u64::from(round)) {
            return format!("round {its_round} of sector {its_sector}, seed {its_seed}");
        }
    }
    let wanted = contents(seed, sector, round);
    let wrong = |n: &usize| found[*n] != wanted[*n];
    let first = (0..SECTOR_SIZE).find(wrong).unwrap_or(0);
    let count = (0..SECTOR_SIZE).filter(wrong).count();
    let (is, should) = (found[first], wanted[first]);
    format!("{count} wrong bytes, at byte {first} {is:#04x} for {should:#04x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_data_are_described() {
        let said = |found: &[u8]| describe(found, 7, 100, 2);
        assert_eq!(said(&[0; SECTOR_SIZE]), "zeroes");
        assert_eq!(said(&contents(7, 100, 1)), "round 1 of sector 100, seed 7");
        assert_eq!(said(&contents(7, 108, 2)), "round 2 of sector 108, seed 7");
        let mut torn = contents(7, 100, 2);
        torn[300] ^= 0xff;
        let (is, should) = (torn[300], torn[300] ^ 0xff);
        let wanted = format!("1 wrong bytes, at byte 300 {is:#04x} for {should:#04x}");
        assert_eq!(said(&torn), wanted);
        assert!(said(&[0xab; SECTOR_SIZE]).contains(" wrong bytes, at byte 0 0xab for 0x6d"));
    }

    #[test]
    fn sectors_differ_by_seed_place_and_round() {
        let all = [contents(1, 1, 1), contents(2, 1, 1), contents(1, 2, 1), contents(1, 1, 2)];
        for (n, a) in all.iter().enumerate() {
            for b in &all[n + 1..] {
                let same = (32..SECTOR_SIZE).filter(|i| a[*i] == b[*i]).count();
                assert!(same < 32, "{same} of 480 bytes are the same");
            }
        }
    }
}
