// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bits: a set of slots whose members are found quickly, however few they are.
use std::ops::Range;

/// A set of numbers below a bound, with a summary: a bit for each word that is not empty.
pub(super) struct Bits {
    words: Vec<u64>,
    summary: Vec<u64>,
    count: u32,
}

fn at(n: usize) -> (usize, u64) {
    (n / 64, 1 << (n % 64))
}

/// The first bit of `words` from bit `from` on.
fn first_from(words: &[u64], from: usize) -> Option<usize> {
    let mut nth = from / 64;
    let mut word = *words.get(nth)? & (u64::MAX << (from % 64));
    while word == 0 {
        nth += 1;
        word = *words.get(nth)?;
    }
    Some(nth * 64 + word.trailing_zeros() as usize)
}

impl Bits {
    /// An empty set of numbers below `bound`.
    pub(super) fn new(bound: u32) -> Bits {
        let words = (bound as usize).div_ceil(64);
        Bits { words: vec![0; words], summary: vec![0; words.div_ceil(64)], count: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.count
    }

    pub(super) fn has(&self, n: u32) -> bool {
        let (word, bit) = at(n as usize);
        self.words[word] & bit != 0
    }

    pub(super) fn insert(&mut self, n: u32) {
        let (word, bit) = at(n as usize);
        self.count += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
        let (summary, bit) = at(word);
        self.summary[summary] |= bit;
    }

    pub(super) fn remove(&mut self, n: u32) {
        let (word, bit) = at(n as usize);
        self.count -= u32::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            let (summary, bit) = at(word);
            self.summary[summary] &= !bit;
        }
    }

    /// The first of the set in a range.
    pub(super) fn first(&self, within: &Range<u32>) -> Option<u32> {
        let start = within.start as usize;
        let (word, _) = at(start);
        let here = *self.words.get(word)? & (u64::MAX << (start % 64));
        let found = if here != 0 {
            word * 64 + here.trailing_zeros() as usize
        } else {
            let word = first_from(&self.summary, word + 1)?;
            word * 64 + self.words[word].trailing_zeros() as usize
        };
        u32::try_from(found).ok().filter(|n| *n < within.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_is_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), 0u32..9000), 1..300),
            from in 0u32..9000,
            len in 0u32..9000,
        ) {
            let (mut bits, mut model) = (Bits::new(9000), BTreeSet::new());
            for (insert, n) in steps {
                if insert {
                    bits.insert(n);
                    model.insert(n);
                } else {
                    bits.remove(n);
                    model.remove(&n);
                }
                prop_assert_eq!(bits.has(n), insert);
            }
            prop_assert_eq!(bits.len() as usize, model.len());
            let first = model.range(from..from + len).next().copied();
            prop_assert_eq!(bits.first(&(from..from + len)), first);
        }
    }
}
