// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of options and attributes: sizes, numbers and booleans, read strictly.
//!
//! Absent on purpose: the kernel's leniency. `memparse` and `kstrtobool` take `64Mfoo` and
//! `yesterday`; here anything that follows a value is refused and named.
use block::Error;

/// Digits only: `FromStr` would take a sign.
fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// A decimal number from `min` to `max`.
pub(crate) fn number(what: &str, text: &str, min: u64, max: u64) -> Result<u64, Error> {
    digits(text).filter(|n| (min..=max).contains(n)).ok_or_else(|| {
        let allowed = match max {
            u64::MAX => format!("a number from {min}"),
            _ => format!("a number from {min} to {max}"),
        };
        Error::invalid(format!("{what}: `{text}`: {allowed} is allowed"))
    })
}

/// [`number`] for 32 bits.
pub(crate) fn number_u32(what: &str, text: &str, min: u32, max: u32) -> Result<u32, Error> {
    let n = number(what, text, u64::from(min), u64::from(max))?;
    Ok(u32::try_from(n).expect("at most max"))
}

/// A number that may be negative.
pub(crate) fn signed(what: &str, text: &str) -> Result<i32, Error> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let value = digits(unsigned).and_then(|_| text.parse().ok());
    value.ok_or_else(|| Error::invalid(format!("{what}: `{text}`: a whole number is allowed")))
}

/// Bytes, with K, M, G, T, P or E (powers of 1024, any case) behind the number if wanted.
pub(crate) fn bytes(what: &str, text: &str) -> Result<u64, Error> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().as_str() {
        "" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        "p" => Some(50),
        "e" => Some(60),
        _ => None,
    };
    let value = digits(&text[..end]).zip(shift).and_then(|(n, shift)| n.checked_mul(1 << shift));
    value.ok_or_else(|| {
        Error::invalid(format!(
            "{what}: `{text}`: bytes are allowed, with K, M, G, T, P or E if wanted"
        ))
    })
}

/// [`bytes`], rounded up to whole pages.
pub(crate) fn page_bytes(what: &str, text: &str) -> Result<u64, Error> {
    let page = block::PAGE as u64;
    bytes(what, text)?
        .checked_next_multiple_of(page)
        .ok_or_else(|| Error::invalid(format!("{what}: `{text}`: less than 16 EiB are allowed")))
}

/// What the kernel takes for a boolean, as whole words.
pub(crate) fn boolean(what: &str, text: &str) -> Result<bool, Error> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        _ => Err(Error::invalid(format!("{what}: `{text}`: 0 or 1 is allowed"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_have_the_kernels_suffixes_and_nothing_behind_them() {
        let table = [
            ("0", 0),
            ("4096", 4096),
            ("64M", 64 << 20),
            ("6g", 6 << 30),
            ("1T", 1 << 40),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, value) in table {
            assert_eq!(bytes("mem_limit", text).unwrap(), value, "{text}");
        }
        for text in ["", "K", "-1", "+1", "1 K", "64Mfoo", "1KiB", "0x10", "16E", "1,5G", "²"] {
            let e = bytes("mem_limit", text).unwrap_err().to_string();
            assert!(e.starts_with(&format!("mem_limit: `{text}`")), "{e}");
        }
        assert_eq!(page_bytes("x", "4097").unwrap(), 8192);
        assert!(page_bytes("x", "18446744073709551615").is_err());
    }

    #[test]
    fn booleans_and_numbers_are_whole_words() {
        assert!(boolean("b", "Y").unwrap() && boolean("b", "1").unwrap());
        assert!(!boolean("b", "off").unwrap());
        for text in ["", "2", "yesterday", "1 "] {
            assert!(boolean("b", text).is_err(), "{text}");
        }
        assert_eq!(number_u32("n", "256", 1, 256).unwrap(), 256);
        let e = number_u32("n", "257", 1, 256).unwrap_err().to_string();
        assert_eq!(e, "n: `257`: a number from 1 to 256 is allowed");
        assert_eq!(signed("level", "-5").unwrap(), -5);
        for text in ["", "-", "--5", "+5", "5.0", "99999999999"] {
            assert!(signed("level", text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC*") {
            let _ = (bytes("x", &text), page_bytes("x", &text), boolean("x", &text));
            let _ = (number("x", &text, 1, 9), signed("x", &text));
        }

        #[test]
        fn a_number_comes_back(n in any::<u64>()) {
            prop_assert_eq!(bytes("x", &n.to_string()).unwrap(), n);
            prop_assert_eq!(number("x", &n.to_string(), 0, u64::MAX).unwrap(), n);
        }
    }
}
