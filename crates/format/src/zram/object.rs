// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Objects: one page, or a statement about pages without bytes, behind a header of 16 bytes.
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
//! - FM-O1 Kind 0 is none: zeroes are no object, so the zeroed tail of a unit ends its objects.
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

pub(super) const PRIORITIES: u8 = 4;
const KIND_PAGE: u8 = 1;
const KIND_SAME: u8 = 2;
const KIND_DISCARDED: u8 = 3;

/// The content of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<'a> {
    /// A page: compressed by the algorithm of `priority`, or as it is when it has 4096 bytes.
    Page {
        /// Which algorithm, 0 to 3.
        priority: u8,
        /// 1 to 4096 bytes.
        bytes: &'a [u8],
    },
    /// A page that repeats one word.
    Same(u64),
    /// The slot and the following ones, `slots` in all, are empty.
    Discarded {
        /// At least 1.
        slots: u32,
    },
}

/// An intact object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredObject<'a> {
    /// The slot, or the first of the discarded ones.
    pub slot: u32,
    /// Counts the writes of its part, as defined by the writer.
    pub generation: u32,
    /// [`CHECK_MASK`] of its checksum.
    pub check: u32,
    /// Its content.
    pub object: Object<'a>,
}

impl StoredObject<'_> {
    /// Bytes that it takes with header and padding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        object_bytes(self.object.len())
    }
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

impl Object<'_> {
    /// Bytes behind the header, without padding.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an object is never empty")]
    pub fn len(&self) -> usize {
        match self {
            Object::Page { bytes, .. } => bytes.len(),
            Object::Same(_) => 8,
            Object::Discarded { .. } => 4,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Object::Page { priority, .. } => KIND_PAGE | priority << 4,
            Object::Same(_) => KIND_SAME,
            Object::Discarded { .. } => KIND_DISCARDED,
        }
    }

    /// Makes the object in the front of `out` and returns the bits of its checksum that an address
    /// keeps.
    ///
    /// # Panics
    /// If a field has a value that [`verify`] would refuse, or `out` is too short.
    pub fn encode(&self, slot: u32, generation: u32, out: &mut [u8]) -> u32 {
        match self {
            Object::Page { priority, bytes } => {
                encode_with(slot, *priority, generation, bytes.len(), out, |to| {
                    to.copy_from_slice(bytes);
                })
            }
            Object::Same(word) => {
                out[OBJECT_HEADER..OBJECT_HEADER + 8].copy_from_slice(&word.to_le_bytes());
                seal_object(slot, self.kind(), generation, self.len(), out)
            }
            Object::Discarded { slots } => {
                assert!(*slots > 0 && slot.checked_add(*slots).is_some(), "slots {slot}+{slots}");
                out[OBJECT_HEADER..OBJECT_HEADER + 4].copy_from_slice(&slots.to_le_bytes());
                seal_object(slot, self.kind(), generation, self.len(), out)
            }
        }
    }
}

/// Makes a page's object in the front of `out`; `fill` puts the page's `len` bytes in their place.
/// Returns the bits of the checksum that an address keeps.
///
/// # Panics
/// If a field has a value that [`verify`] would refuse, or `out` is too short.
pub fn encode_with(
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
    let object = match head.kind & 0x0f {
        KIND_PAGE if priority < PRIORITIES && (1..=OBJECT_MAX).contains(&len) => {
            Object::Page { priority, bytes: body }
        }
        KIND_PAGE => return Err(ObjectDamage::Field("len")),
        KIND_SAME if priority == 0 => {
            let word = body.try_into().map_err(|_| ObjectDamage::Field("len"))?;
            Object::Same(u64::from_le_bytes(word))
        }
        KIND_DISCARDED if priority == 0 => {
            let slots =
                u32::from_le_bytes(body.try_into().map_err(|_| ObjectDamage::Field("len"))?);
            if slots == 0 || slot.checked_add(slots).is_none() {
                return Err(ObjectDamage::Field("slots"));
            }
            Object::Discarded { slots }
        }
        _ => return Err(ObjectDamage::Field("kind")),
    };
    Ok(StoredObject { slot, generation: head.generation.get(), check: crc & CHECK_MASK, object })
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

/// The objects in `bytes` one after the other, each with its offset, up to the zeroed tail. The
/// first that is damaged ends the walk.
pub fn walk(bytes: &[u8]) -> impl Iterator<Item = Result<(usize, StoredObject<'_>), ObjectDamage>> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let offset = at.take()?;
        let rest = &bytes[offset..];
        if is_blank(&rest[..rest.len().min(OBJECT_HEADER)]) {
            // FM-O1
            return (!is_blank(rest)).then_some(Err(ObjectDamage::Field("reserved")));
        }
        let found = decode(rest);
        at = found.as_ref().ok().map(|found| offset + found.bytes());
        Some(found.map(|found| (offset, found)))
    })
}

#[cfg(test)]
#[path = "object_tests.rs"]
mod tests;
