// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of sectors: lists of (first sector, length), ascending, that do not overlap.
use crate::Sector;

/// Runs of sectors: (first sector, length), ascending, none overlaps another.
pub type Runs = Vec<(Sector, Sector)>;

/// The sectors of all of `runs`, which may come in any order and overlap, as few runs as can be.
pub fn joined(mut runs: Runs) -> Runs {
    runs.sort_unstable();
    let mut out: Runs = Vec::with_capacity(runs.len());
    for (at, len) in runs.into_iter().filter(|(_, len)| *len > Sector::ZERO) {
        match out.last_mut() {
            Some((start, before)) if at <= *start + *before => {
                *before = (*before).max(at + len - *start);
            }
            _ => out.push((at, len)),
        }
    }
    out
}

/// What is left of `runs` without the sectors of `taken`.
pub fn without(runs: &[(Sector, Sector)], taken: &[(Sector, Sector)]) -> Runs {
    let mut out = Vec::with_capacity(runs.len());
    let mut taken = taken.iter().map(|(at, len)| (*at, *at + *len)).peekable();
    for (mut at, end) in runs.iter().map(|(at, len)| (*at, *at + *len)) {
        while taken.next_if(|(_, to)| *to <= at).is_some() {}
        while let Some(&(from, to)) = taken.peek().filter(|(from, _)| *from < end) {
            if at < from {
                out.push((at, from - at));
            }
            at = to;
            if to >= end {
                // It may reach into the next run.
                break;
            }
            taken.next();
        }
        if at < end {
            out.push((at, end - at));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[(u64, u64)]) -> Runs {
        of.iter().map(|(at, end)| (Sector(*at), Sector(end - at))).collect()
    }

    /// The sectors below 64 of which `word` has a bit.
    fn of_bits(word: u64) -> Runs {
        joined((0..64).filter(|b| word >> b & 1 == 1).map(|b| (Sector(b), Sector(1))).collect())
    }

    #[test]
    fn joined_runs_are_ascending_and_touch_no_other() {
        let all = runs(&[(8, 9), (0, 4), (4, 6), (20, 30), (22, 24), (7, 7), (29, 31)]);
        assert_eq!(joined(all), runs(&[(0, 6), (8, 9), (20, 31)]));
    }

    #[test]
    fn without_takes_away_what_words_of_bits_take_away() {
        let mut word = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word
        };
        for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
            let (a, b) = (next() | next(), next() & next());
            assert_eq!(without(&of_bits(a), &of_bits(b)), of_bits(a & !b), "{a:x} {b:x}");
            assert_eq!(without(&of_bits(b), &of_bits(a)), of_bits(b & !a), "{b:x} {a:x}");
        }
    }
}
