// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of options with units.
use block::Nanos;
use block::value::TimeUnit;

/// The longest time: a thousand days.
const TIME_MAX: Nanos = Nanos::from_secs(86_400_000);

/// A time as people write it: `10s`, `500ms`, `2m`. A bare number is refused: who writes `--p99 20`
/// means milliseconds, and who writes `--timeout 20` seconds.
pub fn time(text: &str) -> Result<Nanos, String> {
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let time = block::value::time(text, TimeUnit::Second.one()).filter(|_| has_unit);
    let within = time.filter(|time| (1..=TIME_MAX.0).contains(&time.0));
    within.ok_or_else(|| "a positive number with us, ms, s, m or h is allowed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ns) in [("10s", 10_000_000_000), ("20us", 20_000), ("2m", 120_000_000_000)] {
            assert_eq!(time(text), Ok(Nanos(ns)), "{text}");
        }
        for text in ["", "0", "0s", "10", "1.5", "s", "-1s", "5 s", "1w", "nan", "1e3s"] {
            assert!(time(text).unwrap_err().contains("ms, s, m or h"), "{text}");
        }
    }
}
