// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Radix sort of millions of numbers by some of their bits, several times as fast as a comparison
//! sort.
use std::ops::Range;

/// So many items are sorted within the second-level cache of one core: twice 256 KiB. Larger inputs
/// are first distributed by their upper bits.
const CACHED: usize = 32 << 10;
/// Bits by which a large input is distributed. With more destinations than this each store would
/// wait for the translation of its page.
const UPPER_BITS: u32 = 8;
/// Bits of a digit of a small input. Fewer digits are faster as long as the counters of all values
/// stay in the first-level cache.
const DIGIT_BITS: u32 = 12;

/// Sorts `items` by the bits in `bits`; items with equal bits keep their order. `spare` grows to
/// the size of `items`, unless `bits` is empty, and has no meaning afterwards.
pub(crate) fn sort(items: &mut [u64], spare: &mut Vec<u64>, bits: Range<u32>) {
    if bits.is_empty() {
        return;
    }
    spare.resize(items.len(), 0);
    sort_slice(items, spare, bits, false);
}

/// Sorts `items`. The result is in `other` if `to_other`, else in `items`.
fn sort_slice(items: &mut [u64], other: &mut [u64], bits: Range<u32>, to_other: bool) {
    if items.len() < 2 {
        if to_other {
            other.copy_from_slice(items);
        }
        return;
    }
    let width = bits.end - bits.start;
    if items.len() > CACHED && width > UPPER_BITS {
        let upper = bits.end - UPPER_BITS;
        let mut start = 0;
        for end in deal::<{ 1 << UPPER_BITS }>(items, other, upper..bits.end) {
            let end = end as usize;
            let (dealt, room) = (&mut other[start..end], &mut items[start..end]);
            sort_slice(dealt, room, bits.start..upper, !to_other);
            start = end;
        }
        return;
    }
    // As few digits as possible, of about the same width.
    let digits = width.div_ceil(DIGIT_BITS);
    let (mut from, mut to) = (items, other);
    for nth in 0..digits {
        let digit = bits.start + width * nth / digits..bits.start + width * (nth + 1) / digits;
        match digit.len() {
            0..=8 => drop(deal::<{ 1 << 8 }>(from, to, digit)),
            _ => drop(deal::<{ 1 << DIGIT_BITS }>(from, to, digit)),
        }
        std::mem::swap(&mut from, &mut to);
    }
    if to_other != (digits % 2 == 1) {
        to.copy_from_slice(from);
    }
}

/// Copies items, ordered by one digit; returns where the items of each of its values end.
fn deal<const VALUES: usize>(items: &[u64], to: &mut [u64], digit: Range<u32>) -> [u32; VALUES] {
    let mask = (1 << digit.len()) - 1;
    let value = |item: u64| (item >> digit.start & mask) as usize % VALUES;
    let mut places = [0; VALUES];
    for &item in items {
        places[value(item)] += 1;
    }
    let mut before = 0;
    for place in &mut places {
        before += std::mem::replace(place, before);
    }
    for &item in items {
        let place = &mut places[value(item)];
        to[*place as usize] = item;
        *place += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_stably_by_the_bits_that_count() {
        let mut rng = sim::Rng::new(3);
        let mut spare = Vec::new();
        for len in [0, 1, 2, 300, 5000, 3 * CACHED] {
            let numbers = (0..len).map(|_| rng.next_u64() >> rng.below(64));
            let numbers: Vec<u64> = numbers.collect();
            for bits in [0..64, 32..64, 0..28, 0..12, 0..3, 0..0] {
                let mut by_us = numbers.clone();
                sort(&mut by_us, &mut spare, bits.clone());
                let mask = bits.clone().fold(0, |mask, bit| mask | 1u64 << bit);
                let mut by_library = numbers.clone();
                by_library.sort_by_key(|n| n & mask);
                assert!(by_us == by_library, "{len} numbers by {bits:?}");
            }
        }
    }
}
