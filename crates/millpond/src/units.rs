// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of options with units.
use block::Nanos;

/// A time as people write it: `10s`, `500ms`, `2m`; a bare number is seconds.
pub(crate) fn time(text: &str) -> Result<Nanos, String> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().unwrap_or(0.0);
    let scale = match unit {
        "us" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => 0.0,
    };
    let ns = number * scale;
    // A thousand days.
    if !(1.0..=86_400e12).contains(&ns) {
        return Err("a positive number with us, ms, s, m or h is allowed".into());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok(Nanos(ns as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, ns) in [("10", 10_000_000_000), ("20us", 20_000), ("2m", 120_000_000_000)] {
            assert_eq!(time(text), Ok(Nanos(ns)), "{text}");
        }
        for text in ["", "0", "s", "-1s", "5 s", "1w", "nan", "1e3s"] {
            assert!(time(text).unwrap_err().contains("ms, s, m or h"), "{text}");
        }
    }
}
