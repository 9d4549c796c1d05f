// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The objects of a log-structured volume on an object store: segments, seals, manifests,
//! checkpoints and owner records. The byte map is `docs/format/objvol.md`.
//!
//! ```text
//! 0       8     10      12    16     32      40         48           56      64
//! │ magic │ ver │ zero  │ crc │ uuid │ epoch │ sequence │ head_bytes │ nonce │ kind's own …
//! ```
//!
//! `crc` covers the first `head_bytes` bytes. `nonce` is a random number of the opening that wrote
//! the object: with it a writer recognises an object as its own after a lost answer.
//!
//! Manifests and owner records of version 3, the last one, have feature words
//! ([`Later`](crate::Later)). The manifest's say what all objects of a volume use, so the others
//! have none.
//!
//! Invariants
//! - FM-OV1 A decoder never panics, whatever the bytes, and allocates no more than a small multiple
//!   of them; it returns [`ObjectDamage`] that says what is wrong.
//! - FM-OV2 What a decoder accepts, the encoder writes back to the same bytes.
//! - FM-OV3 One flipped bit anywhere in the covered bytes is detected.
//! - FM-OV4 An object is accepted only under the name of its own epoch and sequence.
//! - FM-OV5 Objects are never changed, so each is written whole or is not there at all.

use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::features::{Features, Later, Unreadable};

mod checkpoint;
mod damage;
mod increment;
mod layers;
mod manifest;
mod name;
mod owner;
mod packed;
mod segment;
mod snapshot;

pub use checkpoint::{
    Checkpoint, CheckpointExtent, CheckpointHeader, CheckpointSegment, RetainedSegment,
};
pub use damage::ObjectDamage;
pub use increment::{
    ClearedRange, Increment, LAYERS_MAX, Layer, MapTotals, RetainedPlace, StoredCheckpoint,
};
pub use layers::LayeredMap;
pub use manifest::{HOST_BYTES_MAX, Manifest, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, WINDOW_MAX};
pub use name::{
    CHECKPOINTS, MANIFESTS, OWNERS, PROBES, Place, SEGMENTS, manifest_name, parse_manifest_name,
    parse_place_name, place_name, probe_name,
};
pub use owner::{DEVICE_BYTES_MAX, Owner, OwnerState, RecordedCache};
pub use segment::{
    EXTENT_SECTORS_MAX, HEAD_BYTES_MAX, RECORDS_MAX, Record, RecordKind, SEAL_BYTES,
    SEGMENT_HEADER, Seal, SegmentHead, SegmentHeader, SegmentObject, head_bytes, head_bytes_needed,
    is_seal,
};
pub use snapshot::{
    SNAPSHOT_NAME_BYTES_MAX, SNAPSHOTS_MAX, Snapshot, SnapshotChange, is_snapshot_name,
};

/// Bytes of a sector: the unit of places in a volume and in a segment.
pub const SECTOR: usize = 512;
/// Sectors of the largest volume: 8 EiB, so that ends of ranges never overflow.
pub const VOLUME_SECTORS_MAX: u64 = 1 << 54;

/// Bytes of the longest manifest and of the longest owner record: a head, two names, and the room
/// of later programs.
pub const RECORD_BYTES_MAX: usize = 4096;
const _: () = assert!(128 + HOST_BYTES_MAX + DEVICE_BYTES_MAX < RECORD_BYTES_MAX);

const VERSION: u16 = 1;
/// The version of manifests and owner records with feature words.
const VERSION_FEATURES: u16 = 3;
/// What every object of a sealed volume begins with.
const ENVELOPE_MAGIC: [u8; 8] = *b"MPOVENVL";
const CRC: std::ops::Range<usize> = 12..16;
/// Bytes that all kinds begin with.
const COMMON: usize = 64;

/// What every object begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Identity of the volume.
    pub uuid: [u8; 16],
    /// Where the object belongs.
    pub place: Place,
    /// Random number of the opening that wrote it.
    pub nonce: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CommonMedia {
    magic: [u8; 8],
    version: U16,
    zero: U16,
    crc: U32,
    uuid: [u8; 16],
    epoch: U64,
    sequence: U64,
    head_bytes: U32,
    zero_too: U32,
    nonce: U64,
}

const _: () = assert!(size_of::<CommonMedia>() == COMMON);

/// The hash that a segment has of the one before it, and a checkpoint of its body: CRC-64/NVME. It
/// detects mistakes of programs and stores, not malice.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Writes the common head of `object`, whose first `head_bytes` bytes are otherwise complete.
fn finish(object: &mut [u8], magic: [u8; 8], identity: &Identity, head_bytes: usize) {
    finish_version(object, magic, identity, head_bytes, VERSION);
}

fn finish_version(
    object: &mut [u8],
    magic: [u8; 8],
    identity: &Identity,
    head_bytes: usize,
    version: u16,
) {
    let media = CommonMedia {
        magic,
        version: U16::new(version),
        zero: U16::ZERO,
        crc: U32::ZERO,
        uuid: identity.uuid,
        epoch: U64::new(identity.place.epoch),
        sequence: U64::new(identity.place.sequence),
        head_bytes: U32::new(u32::try_from(head_bytes).expect("heads are below 4 GiB")),
        zero_too: U32::ZERO,
        nonce: U64::new(identity.nonce),
    };
    object[..COMMON].copy_from_slice(media.as_bytes());
    let crc = crate::checksum_without(&object[..head_bytes], CRC);
    object[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// The bytes of the head that an object says it has: how much to read for its decoder. Reads the
/// first 64 bytes.
///
/// # Errors
/// [`ObjectDamage`] if there are fewer.
pub fn stated_head_bytes(object: &[u8]) -> Result<u64, ObjectDamage> {
    let length = || short(object, COMMON as u64);
    let (media, _) = CommonMedia::ref_from_prefix(object).map_err(|_| length())?;
    Ok(u64::from(media.head_bytes.get()))
}

fn short(object: &[u8], wanted_bytes: u64) -> ObjectDamage {
    ObjectDamage::Length { found_bytes: object.len(), wanted_bytes }
}

/// The checks that all kinds share: length, magic, checksum, version, volume, zeroes. `fixed` is
/// the least length of a head. Returns the head and who wrote it.
fn check_common<'a>(
    object: &'a [u8],
    magic: [u8; 8],
    uuid: &[u8; 16],
    fixed: usize,
) -> Result<(&'a [u8], Identity), ObjectDamage> {
    let (head, identity, _) = check_versions(object, magic, uuid, fixed, VERSION)?;
    Ok((head, identity))
}

/// The same for a kind of which there are versions up to `newest`; returns the object's, too.
fn check_versions<'a>(
    object: &'a [u8],
    magic: [u8; 8],
    uuid: &[u8; 16],
    fixed: usize,
    newest: u16,
) -> Result<(&'a [u8], Identity, u16), ObjectDamage> {
    let wanted = short(object, fixed as u64);
    let Ok((media, _)) = CommonMedia::ref_from_prefix(object) else { return Err(wanted) };
    if media.magic != magic {
        return Err(wrong_magic(&media.magic));
    }
    let head_bytes = media.head_bytes.get();
    let head = usize::try_from(head_bytes).ok().and_then(|end| object.get(..end));
    let head = head.ok_or_else(|| short(object, u64::from(head_bytes)))?;
    if head.len() < fixed {
        return Err(ObjectDamage::Field("head_bytes"));
    }
    if crate::checksum_without(head, CRC) != media.crc.get() {
        return Err(ObjectDamage::Checksum);
    }
    let version = media.version.get();
    if !(VERSION..=newest).contains(&version) {
        return Err(ObjectDamage::Version { found: version, known: newest });
    }
    if media.uuid != *uuid {
        return Err(ObjectDamage::OtherVolume { found: media.uuid });
    }
    if media.zero.get() != 0 || media.zero_too.get() != 0 {
        return Err(ObjectDamage::Field("reserved"));
    }
    let place = Place { epoch: media.epoch.get(), sequence: media.sequence.get() };
    Ok((head, Identity { uuid: media.uuid, place, nonce: media.nonce.get() }, version))
}

/// Why an object that begins like this is none of the wanted kind.
fn wrong_magic(magic: &[u8]) -> ObjectDamage {
    if magic.starts_with(&ENVELOPE_MAGIC) { ObjectDamage::Sealed } else { ObjectDamage::Magic }
}

/// What later programs have said in a manifest or owner record, to a reader who knows the bits
/// `incompat`.
fn later(features: &Features, incompat: u64, room: &[u8]) -> Result<Option<Later>, ObjectDamage> {
    features.later(incompat, 0, room).map_err(|why| match why {
        Unreadable::Incompat(incompat) => ObjectDamage::Later { incompat, ro_compat: 0 },
        Unreadable::Room => ObjectDamage::Field("reserved"),
    })
}

/// Whether later programs have left nothing in a record that is to be followed by one of this
/// program.
fn check_writable(later: Option<&Later>) -> Result<(), ObjectDamage> {
    match later.map_or(0, |later| later.ro_compat) {
        0 => Ok(()),
        ro_compat => Err(ObjectDamage::Later { incompat: 0, ro_compat }),
    }
}

/// FM-OV4.
fn check_place(identity: &Identity, place: Place) -> Result<(), ObjectDamage> {
    if identity.place == place {
        return Ok(());
    }
    let Place { epoch, sequence } = identity.place;
    Err(ObjectDamage::Misplaced { epoch, sequence })
}

#[cfg(test)]
mod layers_tests;
#[cfg(test)]
mod tests;
