// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a decoder refuses a unit. The media are at fault: a decoder never panics.

use std::fmt;

use crate::{Gone, LaterFormat};

/// Why a unit was refused. The caller adds the offset and the device.
///
/// Not all of it is damage: the unit may be blank, of another kind, or of another time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The buffer is not one unit long.
    Length {
        /// Bytes that were given.
        found_bytes: usize,
    },
    /// The unit does not begin with the magic of its kind: blank, or other data.
    Magic,
    /// The unit is intact but has a format version that this program does not read.
    Version {
        /// Version on the media.
        found: u16,
        /// Version that this program reads.
        known: u16,
    },
    /// The unit is intact, and of something that only earlier versions can open.
    Gone(Gone),
    /// The unit is intact, and uses features that this program must know, and does not.
    Later(LaterFormat),
    /// The CRC-32C does not match: torn or corrupted.
    Checksum,
    /// An intact unit with the UUID of another cache: left from an earlier use of the device.
    WrongCache {
        /// UUID on the media.
        found: [u8; 16],
    },
    /// A superblock copy lies where another copy belongs: a misdirected write.
    WrongCopy {
        /// Copy number on the media.
        found: u8,
        /// Copy number that belongs here.
        wanted: u8,
    },
    /// A field of a unit with a good checksum has a value that no writer makes.
    Field(&'static str),
    /// An entry of a record with a good checksum has a value that no writer makes.
    Entry {
        /// Index of the entry in its record.
        index: u16,
        /// Field of the entry.
        field: &'static str,
    },
    /// No two superblock copies agree: for each copy its generation or its damage.
    NoQuorum(Box<[Result<u64, Damage>; 4]>),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Length { found_bytes } => {
                write!(f, "a metadata unit is 4096 bytes, not {found_bytes}")
            }
            Damage::Magic => write!(f, "no magic number: not a unit of this cache format"),
            Damage::Version { found, known } => {
                write!(f, "format version {found} is unknown, this program reads version {known}")
            }
            Damage::Gone(gone) => write!(f, "it is of {gone}"),
            Damage::Later(later) => write!(f, "{later}"),
            Damage::Checksum => write!(f, "checksum mismatch: the unit is torn or rotten"),
            Damage::WrongCache { found } => {
                write!(f, "the unit belongs to another cache, UUID ")?;
                found.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Damage::WrongCopy { found, wanted } => {
                write!(f, "superblock copy {found} lies in the place of copy {wanted}")
            }
            Damage::Field(name) => write!(f, "impossible value in field {name}"),
            Damage::Entry { index, field } => {
                write!(f, "impossible value in field {field} of entry {index}")
            }
            Damage::NoQuorum(copies) => {
                write!(f, "no two superblock copies agree")?;
                for (index, copy) in copies.iter().enumerate() {
                    let separator = if index == 0 { ": " } else { "; " };
                    match copy {
                        Ok(generation) => {
                            write!(f, "{separator}copy {index} has generation {generation}")?;
                        }
                        Err(damage) => write!(f, "{separator}copy {index}: {damage}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Damage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_quorum_lists_the_state_of_every_copy() {
        let copies = [Ok(7), Err(Damage::Checksum), Ok(6), Err(Damage::Magic)];
        let text = Damage::NoQuorum(Box::new(copies)).to_string();
        assert_eq!(
            text,
            "no two superblock copies agree: copy 0 has generation 7; \
             copy 1: checksum mismatch: the unit is torn or rotten; copy 2 has generation 6; \
             copy 3: no magic number: not a unit of this cache format"
        );
    }

    #[test]
    fn a_foreign_unit_names_its_cache() {
        let text = Damage::WrongCache { found: [0xab; 16] }.to_string();
        assert!(text.ends_with(&"ab".repeat(16)), "{text}");
    }
}
