// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Radix: sorts millions of numbers by some of their bits, several times as fast as by comparing.
use std::ops::Range;

const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;

/// Sorts `items` by these bits of theirs; what is equal in them keeps its order. `spare` becomes
/// as large as `items` and is left with anything.
pub(crate) fn sort(items: &mut Vec<u64>, spare: &mut Vec<u64>, bits: Range<u32>) {
    for shift in bits.step_by(DIGIT_BITS as usize) {
        let digit = |item: u64| (item >> shift) as usize % DIGITS;
        let mut places = [0; DIGITS];
        for &item in &*items {
            places[digit(item)] += 1;
        }
        let mut before = 0;
        for place in &mut places {
            before += std::mem::replace(place, before);
        }
        spare.resize(items.len(), 0);
        for &item in &*items {
            let place = &mut places[digit(item)];
            spare[*place] = item;
            *place += 1;
        }
        std::mem::swap(items, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_by_the_bits_that_count_and_stay_in_order_else() {
        let mut rng = sim::Rng::new(3);
        let mut spare = Vec::new();
        for len in [0, 1, 2, 300, 5000] {
            let numbers: Vec<u64> = (0..len).map(|_| rng.next_u64() >> rng.below(64)).collect();
            for bits in [0..64, 32..64, 0..12, 0..0] {
                let mut by_us = numbers.clone();
                sort(&mut by_us, &mut spare, bits.clone());
                let digits = u32::try_from(bits.len()).unwrap().div_ceil(DIGIT_BITS);
                let mask = match digits * DIGIT_BITS {
                    0 => 0,
                    wide => u64::MAX >> (64 - wide),
                };
                let mut by_library = numbers.clone();
                by_library.sort_by_key(|n| n >> bits.start & mask);
                assert_eq!(by_us, by_library, "{len} numbers by {bits:?}");
            }
        }
    }
}
