// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes as people write them: `4096`, `4K`, `64MiB`, `8s`.
use std::fmt;

/// A size that could not be parsed; the text names the allowed form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "size `{}`: a number of bytes, or with K, M, G, T, P, E (also KiB, MiB, ...: powers of \
             1024) or s (sectors of 512 bytes), below 8 EiB",
            self.0
        )
    }
}
impl std::error::Error for SizeError {}

/// Reads a size and returns it in bytes. All units are powers of 1024, but `s`, which is 512.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let below_8_eib = block::value::size(text).filter(|bytes| bytes >> 63 == 0);
    below_8_eib.ok_or_else(|| SizeError(text.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_and_s_is_a_sector() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("64MiB", 64 << 20),
            ("1g", 1 << 30),
            ("2T", 2 << 40),
            ("8s", 4096),
            ("512b", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused_with_what_is_allowed() {
        for text in ["", "K", "-1", "4KB", "1.5M", "4 K", "99999999999999999999", "16384P", "ü"] {
            let e = parse_size(text).unwrap_err().to_string();
            assert!(e.contains("powers of 1024"), "{e}");
        }
    }
}
