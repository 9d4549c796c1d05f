// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a decoder refuses an object. The bytes are at fault: a decoder never panics.

use std::fmt;

use crate::features::write_bits;

/// Why an object was refused. The caller adds the name of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectDamage {
    /// The object is shorter than what it says, or than any object of its kind.
    Length {
        /// Bytes that were given.
        found_bytes: usize,
        /// Bytes that it must have at least.
        wanted_bytes: u64,
    },
    /// It does not begin with the magic number of its kind.
    Magic,
    /// A checksum does not match: the object is rotten or was cut off.
    Checksum,
    /// It is intact but has a format version that this program does not read.
    Version {
        /// Version of the object.
        found: u16,
        /// Version that this program reads.
        known: u16,
    },
    /// It is intact, and uses features that this program must know, and does not.
    Later {
        /// Bits of `incompat`.
        incompat: u64,
        /// Bits of `ro_compat`, where the volume is to be written.
        ro_compat: u64,
    },
    /// It lies in an envelope that only a key opens, and later programs.
    Sealed,
    /// It belongs to another volume.
    OtherVolume {
        /// UUID in the object.
        found: [u8; 16],
    },
    /// It is not the object that belongs under its name.
    Misplaced {
        /// Epoch in the object.
        epoch: u64,
        /// Sequence in the object.
        sequence: u64,
    },
    /// A field with a good checksum has a value that no writer makes.
    Field(&'static str),
    /// A record with a good checksum has a value that no writer makes.
    Record {
        /// Index of the record.
        index: u32,
        /// Field of the record.
        field: &'static str,
    },
}

impl fmt::Display for ObjectDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectDamage::Length { found_bytes, wanted_bytes } => {
                write!(f, "it has {found_bytes} bytes and must have {wanted_bytes} at least")
            }
            ObjectDamage::Magic => write!(f, "no magic number: not an object of this kind"),
            ObjectDamage::Checksum => write!(f, "checksum mismatch: rotten, or cut off"),
            ObjectDamage::Version { found, known } => {
                write!(f, "format version {found} is unknown, this program reads version {known}")
            }
            ObjectDamage::Later { incompat, ro_compat } => {
                write!(f, "it uses features of a later version of millpond")?;
                write_bits(f, *incompat, *ro_compat)
            }
            ObjectDamage::Sealed => {
                write!(f, "the volume is sealed, by a later version of millpond, with a key")
            }
            ObjectDamage::OtherVolume { found } => {
                write!(f, "it belongs to another volume, UUID ")?;
                found.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            ObjectDamage::Misplaced { epoch, sequence } => {
                write!(f, "it is number {sequence} of epoch {epoch}, under a wrong name")
            }
            ObjectDamage::Field(name) => write!(f, "impossible value in field {name}"),
            ObjectDamage::Record { index, field } => {
                write!(f, "impossible value in field {field} of record {index}")
            }
        }
    }
}

impl std::error::Error for ObjectDamage {}
