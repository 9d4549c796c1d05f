// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of options and attributes: sizes, numbers and times, read strictly. An error names the
//! attribute, the value and what is allowed.
use std::ops::RangeInclusive;

use block::Error;

/// Digits only: `FromStr` would take a sign.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

pub(crate) fn refused(what: &str, text: &str, allowed: &str) -> Error {
    Error::invalid(format!("{what}: `{text}`: {allowed} is allowed"))
}

/// A decimal number.
pub(crate) fn number(what: &str, text: &str, allowed: RangeInclusive<u32>) -> Result<u32, Error> {
    let value = digits(text).and_then(|n| u32::try_from(n).ok()).filter(|n| allowed.contains(n));
    let (min, max) = allowed.into_inner();
    value.ok_or_else(|| refused(what, text, &format!("a number from {min} to {max}")))
}

/// Bytes, with K, M, G or T (powers of 1024, any case) behind the number if wanted; no range yet.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits(&text[..end])?.checked_mul(1 << shift)
}

/// Seconds with up to three decimals, in milliseconds; no range yet.
pub(crate) fn millis(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.len() > 3 {
        return None;
    }
    let scale = [1000, 100, 10, 1][part.len()];
    digits(whole)?.checked_mul(1000)?.checked_add(digits(part)? * scale)
}

/// Milliseconds as seconds, as short as they can be written.
pub(crate) fn show_millis(ms: u32) -> String {
    let text = format!("{}.{:03}", ms / 1000, ms % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_numbers_and_times_are_whole_words() {
        let table = [("0", 0), ("4096", 4096), ("64M", 64 << 20), ("6g", 6 << 30), ("1T", 1 << 40)];
        for (text, value) in table {
            assert_eq!(bytes(text), Some(value), "{text}");
        }
        for text in ["", "K", "-1", "+1", "1 K", "64Mfoo", "1KiB", "0x10", "99999999T", "²"] {
            assert_eq!(bytes(text), None, "{text}");
        }
        for (text, ms) in
            [("2", 2000), ("0.5", 500), ("1.25", 1250), ("0.001", 1), ("10.0", 10_000)]
        {
            assert_eq!(millis(text), Some(ms), "{text}");
        }
        for text in ["", ".", ".5", "1.", "1.2345", "1,5", "-1", "1.-1", "1s", "1.2.3"] {
            assert_eq!(millis(text), None, "{text}");
        }
        assert_eq!([show_millis(2000), show_millis(1250), show_millis(0)], ["2", "1.25", "0"]);
        assert_eq!(number("x", "7", 0..=7).unwrap(), 7);
        let e = number("read_ahead_kb", "-1", 0..=7).unwrap_err();
        assert_eq!(e.to_string(), "read_ahead_kb: `-1`: a number from 0 to 7 is allowed");
        assert_eq!(e.kind(), block::ErrorKind::Invalid);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC*") {
            let _ = (bytes(&text), millis(&text), number("x", &text, 1..=9));
        }

        #[test]
        fn a_time_comes_back(ms in any::<u32>()) {
            prop_assert_eq!(millis(&show_millis(ms)), Some(u64::from(ms)));
        }
    }
}
