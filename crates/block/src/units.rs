// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units as types: sectors of 512 bytes and nanoseconds.
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// log2 of [`SECTOR_SIZE`].
pub const SECTOR_SHIFT: u32 = 9;
/// A sector is always 512 bytes, whatever the device's logical block size.
pub const SECTOR_SIZE: usize = 1 << SECTOR_SHIFT;

/// A position on a device, or a length, in 512-byte sectors (the kernel's `sector_t`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

impl Sector {
    /// Nothing, or the first sector.
    pub const ZERO: Sector = Sector(0);

    /// The same position or length in bytes. Panics beyond 2^64 bytes: check outside input first.
    pub const fn bytes(self) -> u64 {
        assert!(self.0 <= u64::MAX >> SECTOR_SHIFT, "sector beyond 2^64 bytes");
        self.0 << SECTOR_SHIFT
    }

    /// From bytes, rounded down to whole sectors.
    pub const fn from_bytes(bytes: u64) -> Sector {
        Sector(bytes >> SECTOR_SHIFT)
    }

    /// Whether this is a multiple of `unit` sectors; `unit` is at least 1.
    pub const fn is_aligned(self, unit: Sector) -> bool {
        self.0.is_multiple_of(unit.0)
    }

    /// `self + other`, or nothing when the sum does not fit.
    pub fn checked_add(self, other: Sector) -> Option<Sector> {
        self.0.checked_add(other.0).map(Sector)
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Sector) -> Sector {
        Sector(self.0.saturating_sub(other.0))
    }
}

impl Add for Sector {
    type Output = Sector;
    fn add(self, other: Sector) -> Sector {
        Sector(self.0 + other.0)
    }
}
impl AddAssign for Sector {
    fn add_assign(&mut self, other: Sector) {
        self.0 += other.0;
    }
}
impl Sub for Sector {
    type Output = Sector;
    fn sub(self, other: Sector) -> Sector {
        Sector(self.0 - other.0)
    }
}
impl SubAssign for Sector {
    fn sub_assign(&mut self, other: Sector) {
        self.0 -= other.0;
    }
}
impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Nanoseconds since an arbitrary epoch, or a duration; virtual under simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time, or the epoch.
    pub const ZERO: Nanos = Nanos(0);

    /// From microseconds.
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }

    /// From milliseconds.
    pub const fn from_millis(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// From seconds.
    pub const fn from_secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }

    /// In seconds, for rates and for people.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}
impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0 - other.0)
    }
}

/// Bytes as people read them, in powers of 1024.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    // Ten bits a unit; there are as many as a u64 has room for.
    let nth = ((bytes.ilog2() / 10) as usize).min(UNITS.len()) - 1;
    let tenths = (u128::from(bytes) * 10) >> (10 * (nth + 1));
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[nth])
}

/// The word as a table line must spell it: white space and backslashes quoted.
#[must_use]
pub fn quote(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for c in word.chars() {
        if c.is_ascii_whitespace() || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_and_bytes_convert_both_ways() {
        assert_eq!(Sector(8).bytes(), 4096);
        assert_eq!(Sector::from_bytes(4097), Sector(8));
        assert!(Sector(16).is_aligned(Sector(8)));
        assert!(!Sector(12).is_aligned(Sector(8)));
        assert_eq!(Sector(u64::MAX).checked_add(Sector(1)), None);
    }

    #[test]
    fn sizes_have_the_unit_that_makes_them_short() {
        assert_eq!(size_text(0), "0 bytes");
        assert_eq!(size_text(1023), "1023 bytes");
        assert_eq!(size_text(98_304), "96.0 KiB");
        assert_eq!(size_text(3 << 40), "3.0 TiB");
        assert_eq!(size_text(u64::MAX), "15.9 EiB");
    }
}
