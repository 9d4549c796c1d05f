// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Median and spread of a few runs.

/// Middle value; the upper one of two. NaN of nothing.
pub fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Half the distance between smallest and largest as a share of the median, in percent.
pub fn spread_percent(runs: &[f64]) -> f64 {
    let (low, high) = runs.iter().fold((f64::MAX, f64::MIN), |(l, h), r| (l.min(*r), h.max(*r)));
    (high - low) / 2.0 / median(runs) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_whatever_the_order() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert!(median(&[]).is_nan());
        assert_eq!(spread_percent(&[90.0, 100.0, 110.0]), 10.0);
    }
}
