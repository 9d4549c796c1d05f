// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints: the whole map of a volume as of one segment, and the bytes that version 1 has for
//! it. Those of version 2 are in `increment`.
//!
//! ```text
//! 64          72        80         84          88          96         100    128
//! │ tail_hash │ extents │ segments │ snapshots │ body_hash │ retained │ zero │
//! 128          + 24 segments  + 24 extents  + 24 retained
//! │ segments … │ extents …    │ retained …  │ snapshots, 96 bytes each … │
//! ```
//!
//! The place of a checkpoint is that of the last segment that its map includes. The segments are
//! all those up to there that have not been deleted; those without live sectors are the list of
//! what may be deleted, except what is retained for snapshots.
//!
//! Invariants
//! - FM-CP1 Extents are ascending and do not overlap; each lies in its segment, and in the volume.
//! - FM-CP2 `live` of a segment is the number of sectors that the extents have in it.
//! - FM-CP3 A retained segment has no live sector, and a snapshot of the list
//!   lies at its place or behind it, and before `dead_at`. Names of snapshots ascend.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::segment::EXTENT_SECTORS_MAX;
use super::snapshot::{self, SNAPSHOTS_MAX, Snapshot, SnapshotChange, SnapshotMedia};
use super::{COMMON, Identity, ObjectDamage, Place, VOLUME_SECTORS_MAX};
use super::{check_common, check_place, finish, hash};

/// Bytes of the head, by the hash of which a checkpoint is told from others.
pub(super) const HEADER: usize = 128;
const RECORD: usize = 24;
pub(super) const MAGIC: [u8; 8] = *b"MPOVCKPT";

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

/// A segment without live sectors that a snapshot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedSegment {
    /// Index of the segment in the checkpoint.
    pub segment: u32,
    /// The first place as of which the map has nothing of it.
    pub dead_at: Place,
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
    /// Segments without live sectors that snapshots need, in order of place.
    pub retained: Vec<RetainedSegment>,
    /// The snapshots of the volume, in order of their names.
    pub snapshots: Vec<Snapshot>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    tail_hash: U64,
    extents: U64,
    segments: U32,
    snapshots: U32,
    body_hash: U64,
    retained: U32,
    zero: [u8; 28],
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

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RetainedMedia {
    epoch: U64,
    sequence: U64,
    segment: U32,
    zero: U32,
}

const _: () = assert!(COMMON + size_of::<HeaderMedia>() == HEADER);
const _: () = assert!(size_of::<RetainedMedia>() == RECORD);
const _: () = assert!(snapshot::ENTRY.is_multiple_of(RECORD));
const _: () = assert!(size_of::<SegmentMedia>() == RECORD && size_of::<ExtentMedia>() == RECORD);

/// What is wrong with the place of a checkpoint and the size of its volume.
pub(super) fn wrong_place(place: Place, volume_sectors: u64) -> Option<ObjectDamage> {
    if place.epoch == 0 || place.sequence == 0 {
        return Some(ObjectDamage::Field("place"));
    }
    (volume_sectors > VOLUME_SECTORS_MAX).then_some(ObjectDamage::Field("volume_sectors"))
}

/// What is wrong with extents and their segments, which lie behind the place `after` and not
/// behind `place` (FM-CP1, FM-CP2).
pub(super) fn wrong_map(
    segments: &[CheckpointSegment],
    extents: &[CheckpointExtent],
    (after, place): (Place, Place),
    volume_sectors: u64,
) -> Option<ObjectDamage> {
    let mut live = vec![0u32; segments.len()];
    let mut end = 0;
    for (index, extent) in (0..).zip(extents) {
        let wrong = |field| Some(ObjectDamage::Record { index, field });
        let Some(segment) = segments.get(extent.segment as usize) else {
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
    let mut before = after;
    for ((index, segment), live) in (0..).zip(segments).zip(live) {
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

/// What is wrong with the snapshots that the checkpoint at `place` lists.
pub(super) fn wrong_snapshots(snapshots: &[Snapshot], place: Place) -> Option<ObjectDamage> {
    let names = snapshots.iter().map(|snapshot| &snapshot.name);
    if snapshots.len() > SNAPSHOTS_MAX || !names.is_sorted_by(|a, b| a < b) {
        return Some(ObjectDamage::Field("snapshots"));
    }
    (0..).zip(snapshots).find_map(|(index, snapshot)| {
        let field = snapshot.wrong_field(place)?;
        Some(ObjectDamage::Record { index, field })
    })
}

/// Whether one of the snapshots has data of a segment of which the map has nothing since `dead_at`.
pub(super) fn needs_dead(snapshots: &[Snapshot], segment: Place, dead_at: Place) -> bool {
    snapshots.iter().any(|snapshot| (segment..dead_at).contains(&snapshot.place))
}

impl Checkpoint {
    pub(super) fn wrong_field(&self, volume_sectors: u64) -> Option<ObjectDamage> {
        let place = self.header.identity.place;
        wrong_place(place, volume_sectors)
            .or_else(|| {
                let span = (Place::default(), place);
                wrong_map(&self.segments, &self.extents, span, volume_sectors)
            })
            .or_else(|| wrong_snapshots(&self.snapshots, place))
            .or_else(|| self.wrong_retained(place))
    }

    /// FM-CP3.
    fn wrong_retained(&self, place: Place) -> Option<ObjectDamage> {
        let wrong = |field| Some(ObjectDamage::Field(field));
        if !self.retained.iter().map(|retained| retained.segment).is_sorted_by(|a, b| a < b) {
            return wrong("retained");
        }
        for (index, retained) in (0..).zip(&self.retained) {
            let segment = self.segments.get(retained.segment as usize);
            let is_needed = segment.is_some_and(|segment| {
                segment.live == 0 && needs_dead(&self.snapshots, segment.place, retained.dead_at)
            });
            if !is_needed || retained.dead_at > place {
                return Some(ObjectDamage::Record { index, field: "dead_at" });
            }
        }
        None
    }

    /// The bytes of the checkpoint of a volume of so many sectors, as programs wrote it that knew
    /// version 1 only.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode_version_1(&self, volume_sectors: u64) -> Vec<u8> {
        assert_eq!(self.wrong_field(volume_sectors), None, "{:?}", self.header);
        let records = self.segments.len() + self.extents.len() + self.retained.len();
        let bytes = HEADER + records * RECORD + self.snapshots.len() * snapshot::ENTRY;
        let mut object = vec![0; bytes];
        let mut at = HEADER;
        let mut push = |bytes: &[u8]| {
            object[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
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
        for retained in &self.retained {
            let media = RetainedMedia {
                epoch: U64::new(retained.dead_at.epoch),
                sequence: U64::new(retained.dead_at.sequence),
                segment: U32::new(retained.segment),
                zero: U32::ZERO,
            };
            push(media.as_bytes());
        }
        for entry in &self.snapshots {
            push(snapshot::encode(&SnapshotChange::Created(entry.clone())).as_bytes());
        }
        let narrow = |n: usize| U32::new(u32::try_from(n).expect("fewer than 2^32"));
        let media = HeaderMedia {
            tail_hash: U64::new(self.header.tail_hash),
            extents: U64::new(self.extents.len() as u64),
            segments: narrow(self.segments.len()),
            snapshots: narrow(self.snapshots.len()),
            body_hash: U64::new(hash(&object[HEADER..])),
            retained: narrow(self.retained.len()),
            zero: [0; 28],
        };
        object[COMMON..HEADER].copy_from_slice(media.as_bytes());
        finish(&mut object, MAGIC, &self.header.identity, HEADER);
        object
    }

    /// Decodes the checkpoint at `place` of the volume `uuid` of so many sectors, of version 1.
    pub(super) fn decode_version_1(
        object: &[u8],
        uuid: &[u8; 16],
        place: Place,
        volume_sectors: u64,
    ) -> Result<Checkpoint, ObjectDamage> {
        let (head, identity) = check_common(object, MAGIC, uuid, HEADER)?;
        check_place(&identity, place)?;
        let media = HeaderMedia::ref_from_bytes(&head[COMMON..])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        if !crate::is_blank(&media.zero) {
            return Err(ObjectDamage::Field("reserved"));
        }
        let body = &object[HEADER..];
        let [segments, extents, retained, snapshots] = parts(media, body)?;
        if hash(body) != media.body_hash.get() {
            return Err(ObjectDamage::Checksum);
        }
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
            retained: decode_retained(retained)?,
            snapshots: decode_snapshots(snapshots)?,
        };
        match checkpoint.wrong_field(volume_sectors) {
            Some(damage) => Err(damage),
            None => Ok(checkpoint),
        }
    }
}

/// The four parts of the body. FM-OV1: no memory for what is not there.
fn parts<'a>(media: &HeaderMedia, body: &'a [u8]) -> Result<[&'a [u8]; 4], ObjectDamage> {
    let counts = [
        (u64::from(media.segments.get()), RECORD),
        (media.extents.get(), RECORD),
        (u64::from(media.retained.get()), RECORD),
        (u64::from(media.snapshots.get()), snapshot::ENTRY),
    ];
    let mut rest = body;
    let mut parts = [body; 4];
    for (part, (count, bytes)) in parts.iter_mut().zip(counts) {
        let bytes = count.checked_mul(bytes as u64).and_then(|n| usize::try_from(n).ok());
        let split = bytes.and_then(|bytes| rest.split_at_checked(bytes));
        (*part, rest) = split.ok_or(ObjectDamage::Field("extents"))?;
    }
    if rest.is_empty() { Ok(parts) } else { Err(ObjectDamage::Field("extents")) }
}

fn decode_retained(bytes: &[u8]) -> Result<Vec<RetainedSegment>, ObjectDamage> {
    let media =
        <[RetainedMedia]>::ref_from_bytes(bytes).map_err(|_| ObjectDamage::Field("retained"))?;
    if media.iter().any(|media| media.zero.get() != 0) {
        return Err(ObjectDamage::Field("reserved"));
    }
    let retained = |media: &RetainedMedia| RetainedSegment {
        segment: media.segment.get(),
        dead_at: Place { epoch: media.epoch.get(), sequence: media.sequence.get() },
    };
    Ok(media.iter().map(retained).collect())
}

pub(super) fn decode_snapshots(bytes: &[u8]) -> Result<Vec<Snapshot>, ObjectDamage> {
    let media =
        <[SnapshotMedia]>::ref_from_bytes(bytes).map_err(|_| ObjectDamage::Field("snapshots"))?;
    let decode = |(index, media)| match snapshot::decode(media) {
        Ok(SnapshotChange::Created(snapshot)) => Ok(snapshot),
        Ok(SnapshotChange::Deleted(_)) => Err(ObjectDamage::Record { index, field: "kind" }),
        Err(field) => Err(ObjectDamage::Record { index, field }),
    };
    (0..).zip(media).map(decode).collect()
}
