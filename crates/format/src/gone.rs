// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What earlier versions have left on media, and this one can't open any more. It is known for
//! ever, by name: never blank, never "unknown", and never taken for another use.

use std::fmt;

/// Something that an earlier version could open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// A write cache in several parts: superblock versions 2, 5 and 6.
    DividedCache,
    /// A zram device whose flushed data survive.
    PersistentZram,
}

impl Gone {
    /// What begins with these bytes; whether it is whole is not asked.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Gone> {
        let version = bytes.get(8..10)?;
        let version = u16::from_le_bytes(version.try_into().expect("two bytes"));
        if bytes.starts_with(b"MPZRSUPR") {
            return Some(Gone::PersistentZram);
        }
        let is_divided = bytes.starts_with(b"MPWCSUPR") && matches!(version, 2 | 5 | 6);
        is_divided.then_some(Gone::DividedCache)
    }

    /// The table option that made it.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Gone::DividedCache => "parts",
            Gone::PersistentZram => "persist",
        }
    }

    /// How to get at what it holds.
    #[must_use]
    pub const fn way_out(self) -> &'static str {
        match self {
            Gone::DividedCache => {
                "open it with millpond 0.2, `millpond drain` it there and remove it"
            }
            Gone::PersistentZram => {
                "open it with millpond 0.2, and copy what is to be kept to another device"
            }
        }
    }
}

/// Words that follow "holds".
impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, option) = match self {
            Gone::DividedCache => ("a write cache that is divided", self.option()),
            Gone::PersistentZram => ("the data of a zram device", self.option()),
        };
        write!(f, "{what}, with the option `{option}` that millpond 0.2 was the last to have")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_is_known_by_its_first_bytes() {
        let of = |magic: &[u8], version: u16| {
            Gone::of(&[magic, &version.to_le_bytes(), &[0; 500]].concat())
        };
        for version in [2, 5, 6] {
            assert_eq!(of(b"MPWCSUPR", version), Some(Gone::DividedCache));
        }
        for version in [0, 1, 3, 4, 7] {
            assert_eq!(of(b"MPWCSUPR", version), None);
        }
        assert_eq!(of(b"MPZRSUPR", 1), Some(Gone::PersistentZram));
        assert_eq!(of(b"MPZRSUPR", 9), Some(Gone::PersistentZram), "of any version");
        assert_eq!(of(b"MPWCGRDO", 2), None);
        assert_eq!(Gone::of(b"MPZRSUPR"), None, "too short to be one");
    }
}
