// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Zipf`: few of many are drawn most of the time, as clients read and write blocks.
use crate::rng::Rng;

/// Draws the n-th of some ranks in proportion to `1 / n^power`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Where the share of each rank ends.
    ends: Vec<f64>,
}

impl Zipf {
    /// Of so many ranks, at least one.
    pub fn new(ranks: u64, power: f64) -> Zipf {
        assert!(ranks > 0, "at least one rank");
        let mut end = 0.0;
        let ends = (1..=ranks).map(|n| {
            end += (n as f64).powf(-power);
            end
        });
        Zipf { ends: ends.collect() }
    }

    /// A rank, from 0 on.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let unit = rng.below(1 << 53) as f64 / (1u64 << 53) as f64;
        let at = unit * self.ends.last().expect("at least one rank");
        let rank = self.ends.partition_point(|end| *end < at);
        rank.min(self.ends.len() - 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_drawn_in_proportion_to_their_share() {
        let (zipf, mut rng) = (Zipf::new(3, 1.0), Rng::new(1));
        let mut drawn = [0u32; 3];
        for _ in 0..11_000 {
            drawn[usize::try_from(zipf.draw(&mut rng)).unwrap()] += 1;
        }
        let near = |count: u32, wanted: u32| count.abs_diff(wanted) < 300;
        assert!(near(drawn[0], 6000) && near(drawn[1], 3000) && near(drawn[2], 2000), "{drawn:?}");
    }
}
