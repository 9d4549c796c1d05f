// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bit for each page of a folio.
use std::ops::Range;

const WORD: u32 = u64::BITS;

/// Bits, all clear at first: up to 64 in place, more on the heap. All ranges must be within the
/// length.
#[derive(Clone)]
pub(crate) enum Bits {
    Few(u64),
    Many(Box<[u64]>),
}

/// The bits of `range` in the word that begins at bit `first`.
fn mask(range: &Range<u32>, first: u32) -> u64 {
    let from = range.start.max(first) - first;
    let to = range.end.min(first + WORD).saturating_sub(first);
    if from >= to {
        return 0;
    }
    (u64::MAX >> (WORD - (to - from))) << from
}

/// The first run of set bits in a word.
fn run_of(word: u64) -> Option<Range<u32>> {
    let from = word.trailing_zeros();
    let len = word.checked_shr(from)?.trailing_ones();
    Some(from..from + len)
}

impl Bits {
    /// `len` clear bits.
    pub(crate) fn new(len: u32) -> Bits {
        match len.div_ceil(WORD) {
            0 | 1 => Bits::Few(0),
            words => Bits::Many(vec![0; words as usize].into()),
        }
    }

    fn words(&self) -> &[u64] {
        match self {
            Bits::Few(word) => std::slice::from_ref(word),
            Bits::Many(words) => words,
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            Bits::Few(word) => std::slice::from_mut(word),
            Bits::Many(words) => words,
        }
    }

    /// The word that all of `range` lies in, and its first bit; nothing when there is none such.
    fn word_with(&self, range: &Range<u32>) -> Option<(u64, u32)> {
        let word = self.words().get((range.start / WORD) as usize)?;
        let first = range.start / WORD * WORD;
        (range.end <= first + WORD).then_some((*word, first))
    }

    fn word_with_mut(&mut self, range: &Range<u32>) -> Option<(&mut u64, u32)> {
        let word = self.words_mut().get_mut((range.start / WORD) as usize)?;
        let first = range.start / WORD * WORD;
        (range.end <= first + WORD).then_some((word, first))
    }

    /// The words that `range` touches, each with its first bit.
    fn touched(range: &Range<u32>) -> impl Iterator<Item = (usize, u32)> + use<> {
        let (from, to) = (range.start / WORD, range.end.div_ceil(WORD));
        (from..to).map(|w| (w as usize, w * WORD))
    }

    pub(crate) fn get(&self, bit: u32) -> bool {
        self.words()[(bit / WORD) as usize] >> (bit % WORD) & 1 == 1
    }

    /// Sets a range; returns how many of it were clear.
    pub(crate) fn set(&mut self, range: &Range<u32>) -> u32 {
        if let Some((word, first)) = self.word_with_mut(range) {
            let new = mask(range, first) & !*word;
            *word |= new;
            return new.count_ones();
        }
        let words = self.words_mut();
        let one = |(w, first)| {
            let (word, mask): (&mut u64, u64) = (&mut words[w], mask(range, first));
            let new = (mask & !*word).count_ones();
            *word |= mask;
            new
        };
        Bits::touched(range).map(one).sum()
    }

    /// Clears a range; returns how many of it were set.
    pub(crate) fn clear(&mut self, range: &Range<u32>) -> u32 {
        if let Some((word, first)) = self.word_with_mut(range) {
            let old = mask(range, first) & *word;
            *word &= !old;
            return old.count_ones();
        }
        let words = self.words_mut();
        let one = |(w, first)| {
            let (word, mask): (&mut u64, u64) = (&mut words[w], mask(range, first));
            let old = (mask & *word).count_ones();
            *word &= !mask;
            old
        };
        Bits::touched(range).map(one).sum()
    }

    /// Whether any bit is set.
    pub(crate) fn any(&self) -> bool {
        self.words().iter().any(|word| *word != 0)
    }

    /// Whether any bit of a range is set.
    pub(crate) fn any_in(&self, range: &Range<u32>) -> bool {
        if let Some((word, first)) = self.word_with(range) {
            return word & mask(range, first) != 0;
        }
        let words = self.words();
        Bits::touched(range).any(|(w, first)| words[w] & mask(range, first) != 0)
    }

    /// Whether all bits of a range are set.
    pub(crate) fn all_in(&self, range: &Range<u32>) -> bool {
        if let Some((word, first)) = self.word_with(range) {
            return !word & mask(range, first) == 0;
        }
        let words = self.words();
        Bits::touched(range).all(|(w, first)| !words[w] & mask(range, first) == 0)
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u32 {
        self.words().iter().map(|word| word.count_ones()).sum()
    }

    /// The first bit of `range` that is `set`.
    fn first(&self, range: Range<u32>, set: bool) -> Option<u32> {
        let words = self.words();
        for (w, first) in Bits::touched(&range) {
            let word = if set { words[w] } else { !words[w] };
            let found = word & mask(&range, first);
            if found != 0 {
                return Some(first + found.trailing_zeros());
            }
        }
        None
    }

    /// The first run of set bits in `within`, cut off at its ends.
    pub(crate) fn next_run(&self, within: Range<u32>) -> Option<Range<u32>> {
        if let Some((word, first)) = self.word_with(&within) {
            let run = run_of(word & mask(&within, first))?;
            return Some(first + run.start..first + run.end);
        }
        let from = self.first(within.clone(), true)?;
        let to = self.first(from..within.end, false).unwrap_or(within.end);
        Some(from..to)
    }

    /// The first run of bits in `within` that are clear here and in `other`.
    pub(crate) fn next_run_in_neither(
        &self,
        other: &Bits,
        within: Range<u32>,
    ) -> Option<Range<u32>> {
        if let (Bits::Few(word), Bits::Few(others)) = (self, other) {
            return run_of(!(word | others) & mask(&within, 0));
        }
        let mut at = within.start;
        while at < within.end {
            let from = self.first(at..within.end, false)?;
            let end = self.first(from..within.end, true).unwrap_or(within.end);
            match other.first(from..end, false) {
                Some(from) => {
                    let to = other.first(from..end, true).unwrap_or(end);
                    return Some(from..to);
                }
                None => at = end,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(bits: &[bool]) -> Bits {
        let mut made = Bits::new(u32::try_from(bits.len()).unwrap());
        for (at, _) in bits.iter().enumerate().filter(|(_, set)| **set) {
            let at = u32::try_from(at).unwrap();
            made.set(&(at..at + 1));
        }
        made
    }

    proptest! {
        #[test]
        fn bits_are_as_a_list_of_flags(
            flags in prop::collection::vec(any::<bool>(), 1..300),
            others in prop::collection::vec(any::<bool>(), 300),
            a in 0u32..300,
            b in 0u32..300,
        ) {
            let len = u32::try_from(flags.len()).unwrap();
            let others = &others[..flags.len()];
            let (from, to) = (a.min(b).min(len), a.max(b).min(len));
            let range = from..to;
            let within = from as usize..to as usize;
            let bits = of(&flags);
            let set = u32::try_from(flags[within.clone()].iter().filter(|f| **f).count()).unwrap();
            prop_assert_eq!(bits.any_in(&range), set > 0);
            prop_assert_eq!(bits.all_in(&range), set == to - from);
            prop_assert_eq!(bits.any(), flags.contains(&true));
            let run = |wanted: &dyn Fn(usize) -> bool| {
                let first = within.clone().find(|at| wanted(*at))?;
                let end = (first..within.end).find(|at| !wanted(*at)).unwrap_or(within.end);
                Some(u32::try_from(first).unwrap()..u32::try_from(end).unwrap())
            };
            prop_assert_eq!(bits.next_run(range.clone()), run(&|at| flags[at]));
            let neither = bits.next_run_in_neither(&of(others), range.clone());
            prop_assert_eq!(neither, run(&|at| !flags[at] && !others[at]));
            let mut all = of(&flags);
            prop_assert_eq!(all.set(&range), to - from - set);
            prop_assert!(all.all_in(&range));
            let mut none = of(&flags);
            prop_assert_eq!(none.clear(&range), set);
            prop_assert!(!none.any_in(&range));
            prop_assert_eq!(all.count() - none.count(), to - from);
            for at in 0..len {
                let was = flags[at as usize];
                prop_assert_eq!(all.get(at), was || range.contains(&at));
                prop_assert_eq!(none.get(at), was && !range.contains(&at));
            }
        }
    }
}
