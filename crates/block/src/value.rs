// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of options and attributes, and the one parser of what people write for them.
//!
//! | value | as written | refused |
//! |---|---|---|
//! | number | `7`, `+7` | `-1`, `0x10`, `7 `, `1e3` |
//! | size in bytes | `4096`, `4K`, `64MiB`, `1g`, `8s` (sectors of 512 bytes) | `4KB`, `1.5M` |
//! | time | `250` (in the unit of the attribute), `1.5s`, `250ms`, `2m`, `1h` | `1 s`, `1d` |
//! | boolean | `0` `1` `n` `y` `no` `yes` `f` `t` `false` `true` `off` `on` | `2`, `yesterday` |
//!
//! Suffixes and words are taken in any case. Absent on purpose: the kernel's leniency. `memparse`
//! and `kstrtobool` take `64Mfoo` and `yesterday`; here a value is the whole word, and an error
//! names the attribute, the word and what is allowed.
use std::fmt;
use std::ops::RangeInclusive;

use crate::{Error, Nanos};

/// The value of an attribute: a number stays one until it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, in the unit that the attribute's name or help says.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Off or on, printed as 0 or 1.
    Flag(bool),
    /// Anything else.
    Text(String),
}

impl Value {
    /// The value as a number, if it is one that is not negative.
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Number(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            Value::Flag(on) => Some(u64::from(*on)),
            Value::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(n) => n.fmt(f),
            Value::Signed(n) => n.fmt(f),
            Value::Flag(on) => u8::from(*on).fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// A value equals the text that is printed of it.
impl PartialEq<str> for Value {
    fn eq(&self, text: &str) -> bool {
        let printed = self.to_string();
        printed == text
    }
}
impl PartialEq<&str> for Value {
    fn eq(&self, text: &&str) -> bool {
        *self == **text
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Number(n)
    }
}
impl From<u8> for Value {
    fn from(n: u8) -> Value {
        Value::Number(n.into())
    }
}
impl From<u32> for Value {
    fn from(n: u32) -> Value {
        Value::Number(n.into())
    }
}
impl From<bool> for Value {
    fn from(on: bool) -> Value {
        Value::Flag(on)
    }
}
impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}
impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

/// The error of a value that is not allowed. `what` names the option or attribute.
pub fn refused(what: &str, text: &str, allowed: &str) -> Error {
    Error::invalid(format!("{what}: `{text}`: {allowed} is allowed"))
}

/// A number of decimal digits only: `FromStr` would take a sign.
pub fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

/// A number within `allowed`. As in the kernel's `kstrtoull` a plus sign may stand before it.
///
/// # Errors
/// `EINVAL` with the range that is allowed.
///
/// ```
/// assert_eq!(block::value::number("jobs", "7", 1..=9u32).unwrap(), 7);
/// let e = block::value::number("jobs", "12", 1..=9u32).unwrap_err();
/// assert_eq!(e.to_string(), "jobs: `12`: a number from 1 to 9 is allowed");
/// ```
pub fn number<T>(what: &str, text: &str, allowed: RangeInclusive<T>) -> Result<T, Error>
where
    T: TryFrom<u64> + Into<u64> + Copy + PartialOrd,
{
    let value = digits(text.strip_prefix('+').unwrap_or(text));
    let value = value.and_then(|n: u64| T::try_from(n).ok()).filter(|n| allowed.contains(n));
    value.ok_or_else(|| {
        let (min, max): (u64, u64) = ((*allowed.start()).into(), (*allowed.end()).into());
        let range = match max {
            u64::MAX => format!("a number from {min}"),
            _ => format!("a number from {min} to {max}"),
        };
        refused(what, text, &range)
    })
}

/// A number that may be negative.
///
/// # Errors
/// `EINVAL` for anything else.
pub fn signed(what: &str, text: &str) -> Result<i32, Error> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let value = digits::<u64>(unsigned).and_then(|_| text.parse().ok());
    value.ok_or_else(|| refused(what, text, "a whole number"))
}

/// A size in bytes; `None` when it is none or 16 EiB and more. All units are powers of 1024, but
/// `s`, which is 512.
pub fn size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "s" => 9,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        "e" | "eib" => 60,
        _ => return None,
    };
    digits::<u64>(number)?.checked_mul(1 << shift)
}

/// A size in bytes, of any length.
///
/// # Errors
/// `EINVAL` for anything that [`size`] does not take.
pub fn bytes(what: &str, text: &str) -> Result<u64, Error> {
    size(text).ok_or_else(|| {
        let allowed = "a number of bytes, with K, M, G, T, P or E (powers of 1024, also KiB, \
                       MiB, ...) if wanted,";
        refused(what, text, allowed)
    })
}

/// [`bytes`], rounded up to whole pages.
///
/// # Errors
/// `EINVAL` for anything that is no size, and for 16 EiB.
pub fn page_bytes(what: &str, text: &str) -> Result<u64, Error> {
    let rounded = bytes(what, text)?.checked_next_multiple_of(crate::PAGE as u64);
    rounded.ok_or_else(|| refused(what, text, "a size below 16 EiB"))
}

/// A time; `None` when it is none, or longer than 584 years. A number without a unit is in `unit`.
/// What is less than a nanosecond is cut off.
///
/// ```
/// use block::{Nanos, value::time};
/// let ms = Nanos::from_millis(1);
/// assert_eq!(time("250", ms), Some(Nanos(250_000_000)));
/// assert_eq!(time("0.25s", ms), Some(Nanos(250_000_000)));
/// ```
pub fn time(text: &str, unit: Nanos) -> Option<Nanos> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit_ns = match suffix.to_ascii_lowercase().as_str() {
        "" => unit.0,
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let or_zero = |text: &str| if text.is_empty() { Some(0) } else { digits::<u64>(text) };
    let whole_ns = or_zero(whole)?.checked_mul(unit_ns)?;
    // More than 18 digits behind the point are less than a nanosecond of any unit here.
    let shown = &part[..part.len().min(18)];
    let scale = 10u128.pow(u32::try_from(shown.len()).ok()?);
    if !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let part_ns = u128::from(or_zero(shown)?) * u128::from(unit_ns) / scale;
    whole_ns.checked_add(u64::try_from(part_ns).ok()?).map(Nanos)
}

/// A unit in which an attribute counts time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// A microsecond.
    Microsecond,
    /// A millisecond.
    Millisecond,
    /// A hundredth of a second.
    Centisecond,
    /// A second.
    Second,
}

impl TimeUnit {
    /// One of it.
    pub const fn one(self) -> Nanos {
        match self {
            TimeUnit::Microsecond => Nanos(1_000),
            TimeUnit::Millisecond => Nanos(1_000_000),
            TimeUnit::Centisecond => Nanos(10_000_000),
            TimeUnit::Second => Nanos(1_000_000_000),
        }
    }

    /// How it is written behind a number.
    pub const fn name(self) -> &'static str {
        match self {
            TimeUnit::Microsecond => "us",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Centisecond => "cs",
            TimeUnit::Second => "s",
        }
    }
}

/// A time as a number of `unit`, in which it is a whole number within `allowed`.
///
/// # Errors
/// `EINVAL` with the range that is allowed.
///
/// ```
/// use block::value::{TimeUnit, time_in};
/// assert_eq!(time_in("max_age", "1.5s", TimeUnit::Millisecond, 0..=9000).unwrap(), 1500);
/// assert!(time_in("max_age", "1500us", TimeUnit::Millisecond, 0..=9000).is_err());
/// ```
pub fn time_in(
    what: &str,
    text: &str,
    unit: TimeUnit,
    allowed: RangeInclusive<u64>,
) -> Result<u64, Error> {
    let one = unit.one();
    let time = time(text.strip_prefix('+').unwrap_or(text), one);
    let count = time.filter(|time| time.0.is_multiple_of(one.0)).map(|time| time.0 / one.0);
    count.filter(|n| allowed.contains(n)).ok_or_else(|| {
        let (min, max) = allowed.into_inner();
        let unit = unit.name();
        refused(what, text, &format!("{min} to {max} {unit}, or a time with us, ms, s, m or h,"))
    })
}

/// What the kernel takes for a boolean, as whole words.
///
/// # Errors
/// `EINVAL` for anything else.
pub fn boolean(what: &str, text: &str) -> Result<bool, Error> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
        "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
        _ => Err(refused(what, text, "0 or 1 (also no or yes, off or on)")),
    }
}

/// Which of `words` is meant, in any case.
///
/// # Errors
/// `EINVAL` names all of them.
pub fn choice<'a>(what: &str, text: &str, words: &[&'a str]) -> Result<&'a str, Error> {
    let found = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    found.copied().ok_or_else(|| refused(what, text, &words.join(" or ")))
}

/// A time as seconds with as few decimals as it needs, down to a millisecond.
pub fn seconds_text(time: Nanos) -> String {
    let ms = time.0 / 1_000_000;
    let text = format!("{}.{:03}", ms / 1000, ms % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
