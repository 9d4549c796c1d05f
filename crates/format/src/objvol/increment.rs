// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Increments: what has changed in the map of a volume since another checkpoint.
//!
//! ```text
//! 64          72        80         84          88          96         100
//! │ tail_hash │ extents │ segments │ snapshots │ body_hash │ retained │
//! 100      104    108       112           120        128
//! │ layers │ gone │ cleared │ map_extents │ map_live │
//! 128        + 32 layers  + 24 segments + 16 gone   + 16 cleared + 32 retained + 96 snapshots
//! │ layers … │ segments … │ gone …      │ cleared … │ retained … │ snapshots … │ extents …
//! ```
//!
//! The extents are packed. The *layers* of an increment are the checkpoints that it goes on from,
//! the oldest first. That one has the whole map, and each of the others has those before it as its
//! layers. An increment without layers has the whole map itself.
//!
//! Invariants
//! - FM-IN1 The segments of an increment lie behind its last layer, and its extents are all of the
//!   map that lies in them; what the map had before, and has no more, is cleared or lies under an
//!   extent.
//! - FM-IN2 A layer is named by its place and the hash of its head, which has the hash of its body:
//!   no other object is taken for it.
//! - FM-IN3 The increment states the entries and the live sectors of the whole map. A map that is
//!   made of other layers, or misses a change, has others.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checkpoint::{
    Checkpoint, CheckpointExtent, CheckpointHeader, CheckpointSegment, HEADER, MAGIC,
    decode_snapshots, needs_dead, wrong_map, wrong_place, wrong_snapshots,
};
use super::layers::LayeredMap;
use super::packed::{pack_extents, unpack_extents};
use super::snapshot::{self, Snapshot, SnapshotChange};
use super::{COMMON, ObjectDamage, Place};
use super::{check_place, check_versions, finish_version, hash};

/// Layers of an increment at most. Chosen: an opening reads so many objects at once in the time of
/// a few, and a name and a hash of each are 2 KiB.
pub const LAYERS_MAX: usize = 64;

/// The version of increments; 1 is that of [`Checkpoint`]'s own bytes.
const VERSION: u16 = 2;

/// A checkpoint that an increment goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Where it is.
    pub place: Place,
    /// Hash of its head.
    pub hash: u64,
    /// Extents that it has itself.
    pub extents: u64,
}

impl Layer {
    /// The layer that an object is, with the head of any checkpoint.
    #[must_use]
    pub fn of(object: &[u8], place: Place) -> Layer {
        let head = object.get(..HEADER).unwrap_or(object);
        let extents = head.get(72..80).and_then(|bytes| bytes.try_into().ok());
        Layer { place, hash: hash(head), extents: extents.map_or(0, u64::from_le_bytes) }
    }
}

/// Sectors that read as zeroes, and did not in the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClearedRange {
    /// The first one.
    pub start: u64,
    /// How many.
    pub sectors: u64,
}

/// A segment without live sectors that a snapshot needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedPlace {
    /// Where it is.
    pub place: Place,
    /// The first place as of which the map has nothing of it.
    pub dead_at: Place,
}

/// What is known of the whole map (FM-IN3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapTotals {
    /// Its entries.
    pub extents: u64,
    /// Sectors with data.
    pub live: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Increment {
    /// Who wrote it; the place of the last segment of its map.
    pub header: CheckpointHeader,
    /// The checkpoints that it goes on from, the oldest first.
    pub layers: Vec<Layer>,
    /// Segments behind the last layer, in order of place.
    pub segments: Vec<CheckpointSegment>,
    /// Segments of the layers that were deleted, in order.
    pub gone: Vec<Place>,
    /// In order of `start`.
    pub cleared: Vec<ClearedRange>,
    /// The map in its own segments, in order of `start`.
    pub extents: Vec<CheckpointExtent>,
    /// Segments that died behind the last layer, in order of place.
    pub retained: Vec<RetainedPlace>,
    /// All snapshots of the volume, in order of their names.
    pub snapshots: Vec<Snapshot>,
    /// Of the whole map.
    pub map: MapTotals,
}

/// A checkpoint as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredCheckpoint {
    /// The whole map.
    Whole(Checkpoint),
    /// What has changed since its layers, of which there is one at least.
    Increment(Increment),
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
    layers: U32,
    gone: U32,
    cleared: U32,
    map_extents: U64,
    map_live: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PlaceMedia {
    epoch: U64,
    sequence: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LayerMedia {
    place: PlaceMedia,
    hash: U64,
    extents: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SegmentMedia {
    place: PlaceMedia,
    sectors: U32,
    live: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ClearedMedia {
    start: U64,
    sectors: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RetainedMedia {
    place: PlaceMedia,
    dead_at: PlaceMedia,
}

const _: () = assert!(COMMON + size_of::<HeaderMedia>() == HEADER);

impl PlaceMedia {
    fn of(place: Place) -> PlaceMedia {
        PlaceMedia { epoch: U64::new(place.epoch), sequence: U64::new(place.sequence) }
    }

    fn get(&self) -> Place {
        Place { epoch: self.epoch.get(), sequence: self.sequence.get() }
    }
}

impl Increment {
    /// The place of the last layer; zeroes without one.
    #[must_use]
    pub fn base(&self) -> Place {
        self.layers.last().map_or(Place::default(), |layer| layer.place)
    }

    fn wrong_field(&self, volume_sectors: u64) -> Option<ObjectDamage> {
        let place = self.header.identity.place;
        let span = (self.base(), place);
        wrong_place(place, volume_sectors)
            .or_else(|| self.wrong_layers(place))
            .or_else(|| wrong_map(&self.segments, &self.extents, span, volume_sectors))
            .or_else(|| self.wrong_cleared(volume_sectors))
            .or_else(|| wrong_snapshots(&self.snapshots, place))
            .or_else(|| self.wrong_retained(place))
    }

    fn wrong_layers(&self, place: Place) -> Option<ObjectDamage> {
        let wrong = |field| Some(ObjectDamage::Field(field));
        let is_known = |place: Place| place.epoch > 0 && place.sequence > 0;
        let are_known = self.layers.iter().all(|layer| is_known(layer.place));
        let ascend = self.layers.iter().map(|layer| layer.place).is_sorted_by(|a, b| a < b);
        if self.layers.len() > LAYERS_MAX || !are_known || !ascend || self.base() >= place {
            return wrong("layers");
        }
        let is_old = self.gone.last().is_none_or(|last| *last <= self.base());
        if !is_old
            || !self.gone.iter().all(|p| is_known(*p))
            || !self.gone.is_sorted_by(|a, b| a < b)
        {
            return wrong("gone");
        }
        if self.layers.is_empty() && !self.cleared.is_empty() {
            return wrong("cleared");
        }
        None
    }

    /// Cleared ranges and extents do not overlap (FM-IN1).
    fn wrong_cleared(&self, volume_sectors: u64) -> Option<ObjectDamage> {
        let mut extents = self.extents.iter().peekable();
        let mut before = 0;
        for (index, cleared) in (0..).zip(&self.cleared) {
            let wrong = Some(ObjectDamage::Record { index, field: "cleared" });
            let end = cleared.start.saturating_add(cleared.sectors);
            if cleared.sectors == 0 || cleared.start < before || end > volume_sectors {
                return wrong;
            }
            before = end;
            let end_of = |extent: &CheckpointExtent| extent.start + u64::from(extent.sectors);
            while extents.next_if(|extent| end_of(extent) <= cleared.start).is_some() {}
            if extents.peek().is_some_and(|extent| extent.start < end) {
                return wrong;
            }
        }
        None
    }

    fn wrong_retained(&self, place: Place) -> Option<ObjectDamage> {
        if !self.retained.iter().map(|retained| retained.place).is_sorted_by(|a, b| a < b) {
            return Some(ObjectDamage::Field("retained"));
        }
        (0..).zip(&self.retained).find_map(|(index, RetainedPlace { place: at, dead_at })| {
            let is_needed = needs_dead(&self.snapshots, *at, *dead_at);
            let is_new = (self.base()..=place).contains(dead_at) && *dead_at > self.base();
            let is_wrong = !is_needed || !is_new;
            is_wrong.then_some(ObjectDamage::Record { index, field: "dead_at" })
        })
    }

    /// The bytes of the increment of a volume of so many sectors.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self, volume_sectors: u64) -> Vec<u8> {
        assert_eq!(self.wrong_field(volume_sectors), None, "{:?}", self.header);
        let mut object = vec![0; HEADER];
        for Layer { place, hash, extents } in &self.layers {
            let (hash, extents) = (U64::new(*hash), U64::new(*extents));
            let media = LayerMedia { place: PlaceMedia::of(*place), hash, extents };
            object.extend(media.as_bytes());
        }
        for CheckpointSegment { place, sectors, live } in &self.segments {
            let (sectors, live) = (U32::new(*sectors), U32::new(*live));
            let media = SegmentMedia { place: PlaceMedia::of(*place), sectors, live };
            object.extend(media.as_bytes());
        }
        for place in &self.gone {
            object.extend(PlaceMedia::of(*place).as_bytes());
        }
        for ClearedRange { start, sectors } in &self.cleared {
            let media = ClearedMedia { start: U64::new(*start), sectors: U64::new(*sectors) };
            object.extend(media.as_bytes());
        }
        for RetainedPlace { place, dead_at } in &self.retained {
            let [place, dead_at] = [*place, *dead_at].map(PlaceMedia::of);
            object.extend(RetainedMedia { place, dead_at }.as_bytes());
        }
        for entry in &self.snapshots {
            object.extend(snapshot::encode(&SnapshotChange::Created(entry.clone())).as_bytes());
        }
        pack_extents(&self.extents, &mut object);
        let narrow = |n: usize| U32::new(u32::try_from(n).expect("fewer than 2^32"));
        let media = HeaderMedia {
            tail_hash: U64::new(self.header.tail_hash),
            extents: U64::new(self.extents.len() as u64),
            segments: narrow(self.segments.len()),
            snapshots: narrow(self.snapshots.len()),
            body_hash: U64::new(hash(&object[HEADER..])),
            retained: narrow(self.retained.len()),
            layers: narrow(self.layers.len()),
            gone: narrow(self.gone.len()),
            cleared: narrow(self.cleared.len()),
            map_extents: U64::new(self.map.extents),
            map_live: U64::new(self.map.live),
        };
        object[COMMON..HEADER].copy_from_slice(media.as_bytes());
        finish_version(&mut object, MAGIC, &self.header.identity, HEADER, VERSION);
        object
    }

    /// Decodes the checkpoint at `place` of the volume `uuid` of so many sectors, of version 2.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(
        object: &[u8],
        uuid: &[u8; 16],
        place: Place,
        volume_sectors: u64,
    ) -> Result<Increment, ObjectDamage> {
        let (head, identity, version) = check_versions(object, MAGIC, uuid, HEADER, VERSION)?;
        check_place(&identity, place)?;
        if version != VERSION {
            return Err(ObjectDamage::Version { found: version, known: VERSION });
        }
        if head.len() != HEADER {
            return Err(ObjectDamage::Field("head_bytes"));
        }
        let media = HeaderMedia::ref_from_bytes(&object[COMMON..HEADER])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        let mut body = &object[HEADER..];
        if hash(body) != media.body_hash.get() {
            return Err(ObjectDamage::Checksum);
        }
        let layer = |media: &LayerMedia| Layer {
            place: media.place.get(),
            hash: media.hash.get(),
            extents: media.extents.get(),
        };
        let segment = |media: &SegmentMedia| CheckpointSegment {
            place: media.place.get(),
            sectors: media.sectors.get(),
            live: media.live.get(),
        };
        let cleared = |media: &ClearedMedia| ClearedRange {
            start: media.start.get(),
            sectors: media.sectors.get(),
        };
        let retained = |media: &RetainedMedia| RetainedPlace {
            place: media.place.get(),
            dead_at: media.dead_at.get(),
        };
        let header = CheckpointHeader { identity, tail_hash: media.tail_hash.get() };
        let map = MapTotals { extents: media.map_extents.get(), live: media.map_live.get() };
        let increment = Increment {
            header,
            layers: table(&mut body, media.layers, "layers", layer)?,
            segments: table(&mut body, media.segments, "segments", segment)?,
            gone: table(&mut body, media.gone, "gone", PlaceMedia::get)?,
            cleared: table(&mut body, media.cleared, "cleared", cleared)?,
            retained: table(&mut body, media.retained, "retained", retained)?,
            snapshots: decode_snapshots(part(
                &mut body,
                media.snapshots,
                snapshot::ENTRY,
                "snapshots",
            )?)?,
            extents: unpack_extents(body, media.extents.get())?,
            map,
        };
        match increment.wrong_field(volume_sectors) {
            Some(damage) => Err(damage),
            None => Ok(increment),
        }
    }
}

/// The next part of a body: so many records of so many bytes.
fn part<'a>(
    body: &mut &'a [u8],
    count: U32,
    bytes: usize,
    field: &'static str,
) -> Result<&'a [u8], ObjectDamage> {
    let bytes = usize::try_from(count.get()).ok().and_then(|count| count.checked_mul(bytes));
    let split = bytes.and_then(|bytes| body.split_at_checked(bytes));
    let (part, rest) = split.ok_or(ObjectDamage::Field(field))?;
    *body = rest;
    Ok(part)
}

/// The same, decoded. FM-OV1: no memory for what is not there.
fn table<M: FromBytes + KnownLayout + Immutable + Unaligned, T>(
    body: &mut &[u8],
    count: U32,
    field: &'static str,
    decode: impl Fn(&M) -> T,
) -> Result<Vec<T>, ObjectDamage> {
    let part = part(body, count, size_of::<M>(), field)?;
    let media = <[M]>::ref_from_bytes(part).map_err(|_| ObjectDamage::Field(field))?;
    Ok(media.iter().map(decode).collect())
}

impl StoredCheckpoint {
    /// Decodes the checkpoint at `place` of the volume `uuid` of so many sectors.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(
        object: &[u8],
        uuid: &[u8; 16],
        place: Place,
        volume_sectors: u64,
    ) -> Result<StoredCheckpoint, ObjectDamage> {
        let (_, _, version) = check_versions(object, MAGIC, uuid, HEADER, VERSION)?;
        if version < VERSION {
            let whole = Checkpoint::decode_version_1(object, uuid, place, volume_sectors);
            return whole.map(StoredCheckpoint::Whole);
        }
        let increment = Increment::decode(object, uuid, place, volume_sectors)?;
        if increment.layers.is_empty() {
            let mut map = LayeredMap::default();
            map.add(increment)?;
            return map.finish(volume_sectors).map(StoredCheckpoint::Whole);
        }
        Ok(StoredCheckpoint::Increment(increment))
    }

    /// The snapshots that it lists: all of the volume.
    #[must_use]
    pub fn snapshots(&self) -> &[Snapshot] {
        match self {
            StoredCheckpoint::Whole(whole) => &whole.snapshots,
            StoredCheckpoint::Increment(increment) => &increment.snapshots,
        }
    }

    /// Who wrote it, and where.
    #[must_use]
    pub fn header(&self) -> &CheckpointHeader {
        match self {
            StoredCheckpoint::Whole(whole) => &whole.header,
            StoredCheckpoint::Increment(increment) => &increment.header,
        }
    }

    /// The checkpoints that it goes on from, the oldest first.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        match self {
            StoredCheckpoint::Whole(_) => &[],
            StoredCheckpoint::Increment(increment) => &increment.layers,
        }
    }
}
