// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The only source of randomness: a seeded splitmix64, so that the seed determines the run.

/// Splitmix64 (Steele, Lea, Flood 2014): eight bytes of state, passes BigCrush, no warm-up.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator for `seed`; near seeds give unrelated streams.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed ^ 0x6A09_E667_F3BC_C909 }
    }

    /// A separate generator, so that its draws do not shift those of this one.
    pub fn fork(&mut self) -> Rng {
        Rng { state: self.next_u64() }
    }

    /// 64 fresh bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`. The bias of the multiply-shift is below 2^-32 for our bounds.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "below: bound must be at least 1");
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a product of two u64 is a u64")
    }

    /// `below` for indices.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }

    /// A number in `start..end`.
    pub fn range(&mut self, start: u64, end: u64) -> u64 {
        assert!(start < end, "range: {start}..{end} is empty");
        start + self.below(end - start)
    }

    /// True `per_mille` times in a thousand.
    pub fn chance_per_mille(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..1000).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Rng::new(7).next_u64(), Rng::new(8).next_u64());
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 7];
        for _ in 0..7000 {
            seen[rng.index(7)] += 1;
        }
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn chance_keeps_its_promise() {
        let mut rng = Rng::new(2);
        let hits = (0..100_000).filter(|_| rng.chance_per_mille(50)).count();
        assert!((4_500..5_500).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| rng.chance_per_mille(0)));
    }
}
