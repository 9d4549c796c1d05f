// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects that a zram device packs into the blocks of its backing device: a page each, behind
//! a header of 16 bytes. Nobody reads them after the process that has written them.
//!
//! ```text
//! 0      4       8      10     11      12           16
//! │ crc  │ slot  │ len  │ kind │ flags │ generation │ len bytes │ zeroes up to a multiple of 8
//!        └──────────────── crc covers this ─────────────────────┘
//! ```
//!
//! The checksum covers the bytes, the slot, the compression and the generation: an object of
//! another slot, or an older one, has another checksum.
//!
//! Invariants
//! - FM-O1 Kind 0 is none: zeroes are no object.
//! - FM-O2 Every object begins at a multiple of 8 bytes.

use std::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, is_blank};

/// Bytes of an object's header.
pub const OBJECT_HEADER: usize = 16;
/// Every object begins at a multiple of this.
pub const OBJECT_ALIGN: usize = 8;
/// Bytes of a page, the longest object: a page that did not compress is stored as it is.
pub const OBJECT_MAX: usize = 4096;
/// The bits of an object's checksum that an address keeps.
pub const CHECK_MASK: u32 = (1 << 20) - 1;

const PRIORITIES: u8 = 4;
const KIND_PAGE: u8 = 1;

/// An intact object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredObject<'a> {
    /// The slot.
    pub slot: u32,
    /// Counts the writes of its part, as defined by the writer.
    pub generation: u32,
    /// [`CHECK_MASK`] of its checksum.
    pub check: u32,
    /// Which algorithm has compressed it, 0 to 3.
    pub priority: u8,
    /// 1 to 4096 bytes; a page as it is when it has 4096.
    pub bytes: &'a [u8],
}

/// Why an object was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectDamage {
    /// It does not end within the bytes.
    Length,
    /// The checksum does not match: torn or corrupted, or no object.
    Checksum,
    /// Intact, but of another slot: a misdirected write.
    OtherSlot {
        /// The slot that it belongs to.
        found: u32,
    },
    /// Intact, but not the last object written there: a lost write.
    OtherImage,
    /// A field of an object with a good checksum has an invalid value.
    Field(&'static str),
}

impl fmt::Display for ObjectDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectDamage::Length => write!(f, "the object does not end where its bytes end"),
            ObjectDamage::Checksum => write!(f, "checksum mismatch: the object is torn or rotten"),
            ObjectDamage::OtherSlot { found } => write!(f, "an object of slot {found} lies there"),
            ObjectDamage::OtherImage => write!(f, "another object of the slot lies there"),
            ObjectDamage::Field(name) => write!(f, "impossible value in field {name} of an object"),
        }
    }
}

impl std::error::Error for ObjectDamage {}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    crc: U32,
    slot: U32,
    len: U16,
    kind: u8,
    flags: u8,
    generation: U32,
}

const _: () = assert!(size_of::<HeaderMedia>() == OBJECT_HEADER);

/// Bytes that an object of `len` bytes takes with header and padding.
#[must_use]
pub const fn object_bytes(len: usize) -> usize {
    (OBJECT_HEADER + len).next_multiple_of(OBJECT_ALIGN)
}

/// Makes a page's object in the front of `out`; `fill` puts the page's `len` bytes in their place.
/// Returns the bits of the checksum that an address keeps.
///
/// # Panics
/// If a field has a value that [`verify`] would refuse, or `out` is too short.
pub fn encode_object(
    slot: u32,
    priority: u8,
    generation: u32,
    len: usize,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]),
) -> u32 {
    assert!(priority < PRIORITIES && (1..=OBJECT_MAX).contains(&len), "{len} bytes, {priority}");
    fill(&mut out[OBJECT_HEADER..OBJECT_HEADER + len]);
    seal_object(slot, KIND_PAGE | priority << 4, generation, len, out)
}

/// Adds header and padding to `len` bytes in their place.
fn seal_object(slot: u32, kind: u8, generation: u32, len: usize, out: &mut [u8]) -> u32 {
    let header = HeaderMedia {
        crc: U32::ZERO,
        slot: U32::new(slot),
        len: U16::new(u16::try_from(len).expect("at most OBJECT_MAX")),
        kind,
        flags: 0,
        generation: U32::new(generation),
    };
    out[..OBJECT_HEADER].copy_from_slice(header.as_bytes());
    out[OBJECT_HEADER + len..object_bytes(len)].fill(0);
    let crc = checksum(&out[4..OBJECT_HEADER + len]);
    out[..4].copy_from_slice(&crc.to_le_bytes());
    crc & CHECK_MASK
}

/// Decodes the object at the front of `bytes`.
fn decode(bytes: &[u8]) -> Result<StoredObject<'_>, ObjectDamage> {
    let (head, rest) = HeaderMedia::ref_from_prefix(bytes).map_err(|_| ObjectDamage::Length)?;
    let len = usize::from(head.len.get());
    let body = rest.get(..len).ok_or(ObjectDamage::Length)?;
    let crc = checksum(&bytes[4..OBJECT_HEADER + len]);
    if crc != head.crc.get() {
        return Err(ObjectDamage::Checksum);
    }
    let padding = rest.get(len..object_bytes(len) - OBJECT_HEADER).ok_or(ObjectDamage::Length)?;
    if head.flags != 0 || !is_blank(padding) {
        return Err(ObjectDamage::Field("reserved"));
    }
    let slot = head.slot.get();
    let priority = head.kind >> 4;
    if head.kind & 0x0f != KIND_PAGE || priority >= PRIORITIES {
        return Err(ObjectDamage::Field("kind"));
    }
    if !(1..=OBJECT_MAX).contains(&len) {
        return Err(ObjectDamage::Field("len"));
    }
    let (generation, check) = (head.generation.get(), crc & CHECK_MASK);
    Ok(StoredObject { slot, generation, check, priority, bytes: body })
}

/// Decodes the object at the front of `bytes`, which must be that of `slot` with `check` in its
/// address. Bytes after it are ignored.
///
/// # Errors
/// [`ObjectDamage`] names the reason why it is not that object.
pub fn verify(bytes: &[u8], slot: u32, check: u32) -> Result<StoredObject<'_>, ObjectDamage> {
    let found = decode(bytes)?;
    if found.slot != slot {
        return Err(ObjectDamage::OtherSlot { found: found.slot });
    }
    if found.check != check {
        return Err(ObjectDamage::OtherImage);
    }
    Ok(found)
}

#[cfg(test)]
#[path = "zram_tests.rs"]
mod tests;
