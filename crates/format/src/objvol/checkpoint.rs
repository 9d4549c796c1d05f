// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints: the whole map of a volume as of one segment.
//!
//! ```text
//! 64          72        80         84         88          96     128
//! │ tail_hash │ extents │ segments │ reserved │ body_hash │ zero │ segments … │ extents …
//! ```
//!
//! The place of a checkpoint is that of the last segment that its map includes. The segments are
//! all those up to there that have not been deleted; those without live sectors are the list of
//! what may be deleted.
//!
//! Invariants
//! - FM-CP1 Extents are ascending and do not overlap; each lies in its segment, and in the volume.
//! - FM-CP2 `live` of a segment is the number of sectors that the extents have in it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::EXTENT_SECTORS_MAX;
use super::{COMMON, Identity, ObjectDamage, Place, VOLUME_SECTORS_MAX};
use super::{check_common, check_place, finish, hash};

const HEADER: usize = 128;
const RECORD: usize = 24;
const MAGIC: [u8; 8] = *b"MPOVCKPT";

/// A segment that a checkpoint knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointSegment {
    /// Where it is.
    pub place: Place,
    /// Length of the object in sectors.
    pub sectors: u32,
    /// Sectors of it that the map points to.
    pub live: u32,
}

/// A run of sectors of the volume, and where its data lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointExtent {
    /// First sector in the volume.
    pub start: u64,
    /// Length in sectors.
    pub sectors: u16,
    /// Index of its segment in the checkpoint.
    pub segment: u32,
    /// First sector, in the segment, of the extent as it was written.
    pub at: u16,
    /// Sectors of that extent which come before this run.
    pub skip: u16,
    /// Length of that extent.
    pub whole: u16,
    /// CRC-32C of that extent.
    pub crc: u32,
}

/// The fields of a checkpoint beside its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// Who wrote it; the place of the last segment of its map.
    pub identity: Identity,
    /// Hash of that segment's head.
    pub tail_hash: u64,
}

/// A decoded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its fields.
    pub header: CheckpointHeader,
    /// Segments, in order of place.
    pub segments: Vec<CheckpointSegment>,
    /// The map, in order of `start`.
    pub extents: Vec<CheckpointExtent>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    tail_hash: U64,
    extents: U64,
    segments: U32,
    reserved: U32,
    body_hash: U64,
    zero: [u8; 32],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SegmentMedia {
    epoch: U64,
    sequence: U64,
    sectors: U32,
    live: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ExtentMedia {
    start: U64,
    crc: U32,
    segment: U32,
    at: U16,
    sectors: U16,
    skip: U16,
    whole: U16,
}

const _: () = assert!(COMMON + size_of::<HeaderMedia>() == HEADER);
const _: () = assert!(size_of::<SegmentMedia>() == RECORD && size_of::<ExtentMedia>() == RECORD);

impl Checkpoint {
    fn wrong_field(&self, volume_sectors: u64) -> Option<ObjectDamage> {
        let place = self.header.identity.place;
        if place.epoch == 0 || place.sequence == 0 {
            return Some(ObjectDamage::Field("place"));
        }
        if volume_sectors > VOLUME_SECTORS_MAX {
            return Some(ObjectDamage::Field("volume_sectors"));
        }
        let mut live = vec![0u32; self.segments.len()];
        let mut end = 0;
        for (index, extent) in (0..).zip(&self.extents) {
            let wrong = |field| Some(ObjectDamage::Record { index, field });
            let Some(segment) = self.segments.get(extent.segment as usize) else {
                return wrong("segment");
            };
            let next = extent.start.saturating_add(u64::from(extent.sectors));
            if extent.sectors == 0 || extent.start < end || next > volume_sectors {
                return wrong("start");
            }
            end = next;
            let (at, whole) = (u32::from(extent.at), u32::from(extent.whole));
            if whole > EXTENT_SECTORS_MAX || at == 0 || at + whole > segment.sectors {
                return wrong("at");
            }
            if u32::from(extent.skip) + u32::from(extent.sectors) > whole {
                return wrong("skip");
            }
            let sum = &mut live[extent.segment as usize];
            *sum = sum.saturating_add(u32::from(extent.sectors));
        }
        let mut before = Place::default();
        for ((index, segment), live) in (0..).zip(&self.segments).zip(live) {
            let wrong = |field| Some(ObjectDamage::Record { index, field });
            let is_known = segment.place.epoch > 0 && segment.place.sequence > 0;
            if !is_known || segment.place <= before || segment.place > place {
                return wrong("place");
            }
            before = segment.place;
            if segment.sectors == 0 || segment.sectors > u32::from(u16::MAX) {
                return wrong("sectors");
            }
            if segment.live != live {
                return wrong("live"); // FM-CP2
            }
        }
        None
    }

    /// The bytes of the checkpoint of a volume of so many sectors.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self, volume_sectors: u64) -> Vec<u8> {
        assert_eq!(self.wrong_field(volume_sectors), None, "{:?}", self.header);
        let records = self.segments.len() + self.extents.len();
        let mut object = vec![0; HEADER + records * RECORD];
        let mut at = HEADER;
        let mut push = |bytes: &[u8]| {
            object[at..at + RECORD].copy_from_slice(bytes);
            at += RECORD;
        };
        for segment in &self.segments {
            let media = SegmentMedia {
                epoch: U64::new(segment.place.epoch),
                sequence: U64::new(segment.place.sequence),
                sectors: U32::new(segment.sectors),
                live: U32::new(segment.live),
            };
            push(media.as_bytes());
        }
        for extent in &self.extents {
            let media = ExtentMedia {
                start: U64::new(extent.start),
                crc: U32::new(extent.crc),
                segment: U32::new(extent.segment),
                at: U16::new(extent.at),
                sectors: U16::new(extent.sectors),
                skip: U16::new(extent.skip),
                whole: U16::new(extent.whole),
            };
            push(media.as_bytes());
        }
        let media = HeaderMedia {
            tail_hash: U64::new(self.header.tail_hash),
            extents: U64::new(self.extents.len() as u64),
            segments: U32::new(u32::try_from(self.segments.len()).expect("fewer than 2^32")),
            reserved: U32::ZERO,
            body_hash: U64::new(hash(&object[HEADER..])),
            zero: [0; 32],
        };
        object[COMMON..HEADER].copy_from_slice(media.as_bytes());
        finish(&mut object, MAGIC, &self.header.identity, HEADER);
        object
    }

    /// Decodes the checkpoint at `place` of the volume `uuid` of so many sectors.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(
        object: &[u8],
        uuid: &[u8; 16],
        place: Place,
        volume_sectors: u64,
    ) -> Result<Checkpoint, ObjectDamage> {
        let (head, identity) = check_common(object, MAGIC, uuid, HEADER)?;
        check_place(&identity, place)?;
        let media = HeaderMedia::ref_from_bytes(&head[COMMON..])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        if media.reserved.get() != 0 || !crate::is_blank(&media.zero) {
            return Err(ObjectDamage::Field("reserved"));
        }
        let body = &object[HEADER..];
        let (segments, extents) = (u64::from(media.segments.get()), media.extents.get());
        let records = segments.checked_add(extents).and_then(|n| n.checked_mul(RECORD as u64));
        if records != Some(body.len() as u64) {
            return Err(ObjectDamage::Field("extents")); // FM-OV1: no memory for what is not there
        }
        if hash(body) != media.body_hash.get() {
            return Err(ObjectDamage::Checksum);
        }
        let split = usize::try_from(segments).expect("no more than the body has") * RECORD;
        let (segments, extents) = body.split_at(split);
        let segments = <[SegmentMedia]>::ref_from_bytes(segments)
            .map_err(|_| ObjectDamage::Field("segments"))?;
        let extents =
            <[ExtentMedia]>::ref_from_bytes(extents).map_err(|_| ObjectDamage::Field("extents"))?;
        let segment = |media: &SegmentMedia| CheckpointSegment {
            place: Place { epoch: media.epoch.get(), sequence: media.sequence.get() },
            sectors: media.sectors.get(),
            live: media.live.get(),
        };
        let extent = |media: &ExtentMedia| CheckpointExtent {
            start: media.start.get(),
            sectors: media.sectors.get(),
            segment: media.segment.get(),
            at: media.at.get(),
            skip: media.skip.get(),
            whole: media.whole.get(),
            crc: media.crc.get(),
        };
        let checkpoint = Checkpoint {
            header: CheckpointHeader { identity, tail_hash: media.tail_hash.get() },
            segments: segments.iter().map(segment).collect(),
            extents: extents.iter().map(extent).collect(),
        };
        match checkpoint.wrong_field(volume_sectors) {
            Some(damage) => Err(damage),
            None => Ok(checkpoint),
        }
    }
}
