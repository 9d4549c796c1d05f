// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Median and spread of a few runs.

/// The middle value, the upper one of two; NaN of an empty list.
pub fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of one figure of each item.
pub fn median_of<T>(all: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&all.iter().map(figure).collect::<Vec<_>>())
}

/// Which of the values is the median: the round that stands for all. None of an empty list.
pub fn median_at(runs: &[f64]) -> Option<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| runs[*a].total_cmp(&runs[*b]));
    order.get(order.len() / 2).copied()
}

/// The ratios `of[n] / to[n]`, where n is a round.
pub fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// The median of the ratios `of[n] / to[n]`, where n is a round.
pub fn median_ratio(of: &[f64], to: &[f64]) -> f64 {
    median(&ratios(of, to))
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
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), 5.0);
        assert!(median(&[]).is_nan());
        assert_eq!(spread_percent(&[90.0, 100.0, 110.0]), 10.0);
        assert_eq!(median_at(&[9.0, 1.0, 5.0]), Some(2));
        assert_eq!(median_at(&[]), None);
        assert_eq!(median_ratio(&[10.0, 30.0, 90.0], &[5.0, 30.0, 10.0]), 2.0);
    }
}
