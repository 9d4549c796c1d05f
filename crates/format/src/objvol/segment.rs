// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments and seals.
//!
//! ```text
//! 64              72             80                88            96        100       104
//! │ chain_durable │ parent_epoch │ parent_sequence │ parent_hash │ records │ sources │ sectors │
//! 108       112        128         + 16 sources  + 24 records                 next multiple of 512
//! │ changes │ reserved │ sources … │ records …   │ changes, 96 bytes │ zeroes │ data …
//! ```
//!
//! A seal lies under the name of a segment, and ends its epoch before that segment.
//!
//! Invariants
//! - FM-SG1 The first segment of an epoch names the last segment of the epochs before as its
//!   parent, each further one the segment before it: a volume has one history.
//! - FM-SG2 `chain_durable` is below the segment's own sequence: no segment states that it is
//!   durable itself.
//! - FM-SG3 Records are in the order in which they were written; a later one counts.
//! - FM-SG4 A change names a snapshot at a place before the segment's own, and follows all records
//!   of the segment.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::snapshot::{self, SnapshotChange, SnapshotMedia};
use super::{Identity, ObjectDamage, Place, SECTOR, VOLUME_SECTORS_MAX};
use super::{check_common, check_place, finish, hash};

/// Bytes of a segment's head before its sources and records.
pub const SEGMENT_HEADER: usize = 128;
/// Bytes of a seal.
pub const SEAL_BYTES: usize = 128;
/// Sectors of the longest extent with data, 256 KiB: what a read of one sector has to fetch, since
/// the checksum covers an extent whole. Chosen: at 100 MB/s a twentieth of a request of 50 ms.
pub const EXTENT_SECTORS_MAX: u32 = 512;
/// Records of a segment at most.
pub const RECORDS_MAX: usize = 1 << 16;

const RECORD: usize = 24;
const SOURCE: usize = 16;
const SOURCES_MAX: usize = 1 << 16;
/// Changes of snapshots in a segment at most.
const CHANGES_MAX: usize = 64;
/// Bytes of the longest head of a segment: who states more is damaged.
pub const HEAD_BYTES_MAX: usize = head_bytes(SOURCES_MAX, RECORDS_MAX, CHANGES_MAX);
const SEGMENT_MAGIC: [u8; 8] = *b"MPOVSEGM";
const SEAL_MAGIC: [u8; 8] = *b"MPOVSEAL";

/// Fields of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Every segment of the epoch up to this one was durable when this segment was sent.
    pub chain_durable: u64,
    /// The segment before it in history; zeroes for the first of all.
    pub parent: Place,
    /// Hash of that segment's head; zero for the first of all.
    pub parent_hash: u64,
}

/// What a record says of its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A client wrote them; the data lie in this segment.
    Data,
    /// They read as zeroes.
    Zeroes,
    /// Garbage collection copied them here; they count where the map still points to the old place.
    Moved {
        /// The segment that they were copied from.
        from: Place,
        /// Their first sector in it.
        from_at: u16,
    },
}

/// One extent of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it says.
    pub kind: RecordKind,
    /// First sector in the volume.
    pub start: u64,
    /// Length in sectors; with data at most [`EXTENT_SECTORS_MAX`].
    pub sectors: u32,
    /// First sector of the data in the segment; 0 without data.
    pub at: u16,
    /// CRC-32C of the data; 0 without data.
    pub crc: u32,
}

impl Record {
    /// Whether the segment has data of it.
    #[must_use]
    pub fn has_data(&self) -> bool {
        !matches!(self.kind, RecordKind::Zeroes)
    }
}

/// A decoded head of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHead {
    /// Who wrote it, and where it belongs.
    pub identity: Identity,
    /// Its fields.
    pub header: SegmentHeader,
    /// Length of the object in sectors.
    pub sectors: u32,
    /// Its extents, in the order in which they were written.
    pub records: Vec<Record>,
    /// Snapshots that were made or deleted, after the records.
    pub changes: Vec<SnapshotChange>,
    /// Hash of the head: `parent_hash` of the next segment.
    pub hash: u64,
}

/// A decoded seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Who wrote it, and where it lies.
    pub identity: Identity,
    /// Epoch of the writer that sealed; above that of its place.
    pub by_epoch: u64,
}

/// What lies under the name of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentObject {
    /// A segment.
    Segment(SegmentHead),
    /// The end of the epoch.
    Seal(Seal),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    chain_durable: U64,
    parent_epoch: U64,
    parent_sequence: U64,
    parent_hash: U64,
    records: U32,
    sources: U32,
    sectors: U32,
    changes: U32,
    reserved: [u8; 16],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SourceMedia {
    epoch: U64,
    sequence: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordMedia {
    start: U64,
    sectors: U32,
    crc: U32,
    at: U16,
    source_at: U16,
    source: U16,
    kind: u8,
    zero: u8,
}

const _: () = assert!(super::COMMON + size_of::<HeaderMedia>() == SEGMENT_HEADER);
const _: () = assert!(size_of::<RecordMedia>() == RECORD && size_of::<SourceMedia>() == SOURCE);

/// Bytes of a head with so many sources, records and changes of snapshots.
#[must_use]
pub const fn head_bytes(sources: usize, records: usize, changes: usize) -> usize {
    SEGMENT_HEADER + sources * SOURCE + records * RECORD + changes * snapshot::ENTRY
}

/// Bytes of the head that these records and changes need.
#[must_use]
pub fn head_bytes_needed(records: &[Record], changes: &[SnapshotChange]) -> usize {
    head_bytes(sources_of(records).len(), records.len(), changes.len())
}

fn sources_of(records: &[Record]) -> Vec<Place> {
    let from = |record: &Record| match record.kind {
        RecordKind::Moved { from, .. } => Some(from),
        RecordKind::Data | RecordKind::Zeroes => None,
    };
    let mut sources: Vec<Place> = records.iter().filter_map(from).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

impl SegmentHeader {
    /// Writes the head of a segment to the first bytes of `object`, which has all its data behind
    /// it; returns its hash.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    pub fn encode(
        &self,
        identity: &Identity,
        records: &[Record],
        changes: &[SnapshotChange],
        object: &mut [u8],
    ) -> u64 {
        let sources = sources_of(records);
        let head_end = head_bytes(sources.len(), records.len(), changes.len());
        let sectors = object.len() / SECTOR;
        assert_eq!(object.len() % SECTOR, 0, "a segment has whole sectors");
        assert!(
            head_end <= object.len() && sources.len() < SOURCES_MAX,
            "{head_end} bytes of head"
        );
        let sectors = u32::try_from(sectors).expect("below 64 Ki sectors, asserted below");
        assert_eq!(self.wrong_field(identity, records, sectors, head_end), None, "{self:?}");
        assert_eq!(wrong_change(changes, identity.place), None, "{changes:?}");
        let media = HeaderMedia {
            chain_durable: U64::new(self.chain_durable),
            parent_epoch: U64::new(self.parent.epoch),
            parent_sequence: U64::new(self.parent.sequence),
            parent_hash: U64::new(self.parent_hash),
            records: U32::new(u32::try_from(records.len()).expect("checked above")),
            sources: U32::new(u32::try_from(sources.len()).expect("checked above")),
            sectors: U32::new(sectors),
            changes: U32::new(u32::try_from(changes.len()).expect("checked above")),
            reserved: [0; 16],
        };
        object[super::COMMON..SEGMENT_HEADER].copy_from_slice(media.as_bytes());
        let mut at = SEGMENT_HEADER;
        for source in &sources {
            let media =
                SourceMedia { epoch: U64::new(source.epoch), sequence: U64::new(source.sequence) };
            object[at..at + SOURCE].copy_from_slice(media.as_bytes());
            at += SOURCE;
        }
        for record in records {
            object[at..at + RECORD].copy_from_slice(encode_record(record, &sources).as_bytes());
            at += RECORD;
        }
        for change in changes {
            object[at..at + snapshot::ENTRY].copy_from_slice(snapshot::encode(change).as_bytes());
            at += snapshot::ENTRY;
        }
        object[at..at.next_multiple_of(SECTOR)].fill(0);
        finish(object, SEGMENT_MAGIC, identity, head_end);
        hash(&object[..head_end])
    }

    fn wrong_field(
        &self,
        identity: &Identity,
        records: &[Record],
        sectors: u32,
        head_end: usize,
    ) -> Option<ObjectDamage> {
        let place = identity.place;
        if place.epoch == 0 || place.sequence == 0 {
            return Some(ObjectDamage::Field("place"));
        }
        if self.chain_durable >= place.sequence {
            return Some(ObjectDamage::Field("chain_durable")); // FM-SG2
        }
        let is_first = self.parent.epoch == 0;
        if self.parent >= place
            || is_first != (self.parent.sequence == 0)
            || is_first && self.parent_hash != 0
            || place.sequence > 1 && self.parent.next() != place
        {
            return Some(ObjectDamage::Field("parent")); // FM-SG1
        }
        if records.len() > RECORDS_MAX {
            return Some(ObjectDamage::Field("records"));
        }
        let data_at = head_end.div_ceil(SECTOR) as u64;
        if sectors > u32::from(u16::MAX) || u64::from(sectors) < data_at {
            return Some(ObjectDamage::Field("sectors"));
        }
        (0..).zip(records).find_map(|(index, record)| {
            let field = wrong_record(record, place, data_at, u64::from(sectors))?;
            Some(ObjectDamage::Record { index, field })
        })
    }
}

/// FM-SG4.
fn wrong_change(changes: &[SnapshotChange], place: Place) -> Option<ObjectDamage> {
    if changes.len() > CHANGES_MAX {
        return Some(ObjectDamage::Field("changes"));
    }
    (0..).zip(changes).find_map(|(index, change)| {
        let is_before = change.snapshot().place < place;
        let field = change.snapshot().wrong_field(place).or((!is_before).then_some("place"))?;
        Some(ObjectDamage::Record { index, field })
    })
}

fn wrong_record(r: &Record, place: Place, data_at: u64, sectors: u64) -> Option<&'static str> {
    let end = r.start.checked_add(u64::from(r.sectors));
    if r.sectors == 0 || end.is_none_or(|end| end > VOLUME_SECTORS_MAX) {
        return Some("sectors");
    }
    if !r.has_data() {
        return if r.at != 0 {
            Some("at")
        } else if r.crc != 0 {
            Some("crc")
        } else {
            None
        };
    }
    if r.sectors > EXTENT_SECTORS_MAX {
        return Some("sectors");
    }
    let at = u64::from(r.at);
    if at < data_at || at + u64::from(r.sectors) > sectors {
        return Some("at");
    }
    match r.kind {
        RecordKind::Moved { from, .. }
            if from >= place || from.epoch == 0 || from.sequence == 0 =>
        {
            Some("source")
        }
        RecordKind::Moved { .. } | RecordKind::Data | RecordKind::Zeroes => None,
    }
}

fn encode_record(record: &Record, sources: &[Place]) -> RecordMedia {
    let (kind, source, source_at) = match record.kind {
        RecordKind::Data => (1, 0, 0),
        RecordKind::Zeroes => (2, 0, 0),
        RecordKind::Moved { from, from_at } => {
            let index = sources.binary_search(&from).expect("collected from these records");
            (3, u16::try_from(index).expect("fewer than 64 Ki sources, asserted"), from_at)
        }
    };
    RecordMedia {
        start: U64::new(record.start),
        sectors: U32::new(record.sectors),
        crc: U32::new(record.crc),
        at: U16::new(record.at),
        source_at: U16::new(source_at),
        source: U16::new(source),
        kind,
        zero: 0,
    }
}

fn decode_record(media: &RecordMedia, sources: &[Place]) -> Result<Record, &'static str> {
    let (source, from_at) = (media.source.get(), media.source_at.get());
    let kind = match media.kind {
        1 => RecordKind::Data,
        2 => RecordKind::Zeroes,
        3 => {
            let from = sources.get(usize::from(source)).ok_or("source")?;
            RecordKind::Moved { from: *from, from_at }
        }
        _ => return Err("kind"),
    };
    if media.kind != 3 && (source != 0 || from_at != 0) {
        return Err("source");
    }
    if media.zero != 0 {
        return Err("reserved");
    }
    Ok(Record {
        kind,
        start: media.start.get(),
        sectors: media.sectors.get(),
        at: media.at.get(),
        crc: media.crc.get(),
    })
}

impl Seal {
    /// The bytes of the seal.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.identity.place.epoch < self.by_epoch, "{self:?}");
        assert!(self.identity.place.epoch > 0 && self.identity.place.sequence > 0, "{self:?}");
        let mut object = vec![0; SEAL_BYTES];
        object[64..72].copy_from_slice(&self.by_epoch.to_le_bytes());
        finish(&mut object, SEAL_MAGIC, &self.identity, SEAL_BYTES);
        object
    }

    fn decode(object: &[u8], uuid: &[u8; 16], place: Place) -> Result<Seal, ObjectDamage> {
        let (head, identity) = check_common(object, SEAL_MAGIC, uuid, SEAL_BYTES)?;
        check_place(&identity, place)?;
        if place.epoch == 0 || place.sequence == 0 {
            return Err(ObjectDamage::Field("place"));
        }
        let by_epoch = u64::from_le_bytes(head[64..72].try_into().expect("eight bytes"));
        if by_epoch <= place.epoch {
            return Err(ObjectDamage::Field("by_epoch"));
        }
        if head.len() != SEAL_BYTES || !crate::is_blank(&head[72..]) {
            return Err(ObjectDamage::Field("reserved"));
        }
        Ok(Seal { identity, by_epoch })
    }
}

/// Whether the object says that it is a seal.
#[must_use]
pub fn is_seal(object: &[u8]) -> bool {
    object.starts_with(&SEAL_MAGIC)
}

impl SegmentObject {
    /// Decodes what lies at `place` in the volume `uuid`, from at least its whole head.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is neither a segment nor a seal of that place.
    pub fn decode(
        object: &[u8],
        uuid: &[u8; 16],
        place: Place,
    ) -> Result<SegmentObject, ObjectDamage> {
        if is_seal(object) {
            return Seal::decode(object, uuid, place).map(SegmentObject::Seal);
        }
        decode_segment(object, uuid, place).map(SegmentObject::Segment)
    }
}

fn decode_segment(
    object: &[u8],
    uuid: &[u8; 16],
    place: Place,
) -> Result<SegmentHead, ObjectDamage> {
    let (head, identity) = check_common(object, SEGMENT_MAGIC, uuid, SEGMENT_HEADER)?;
    check_place(&identity, place)?;
    let (media, rest) = HeaderMedia::ref_from_prefix(&head[super::COMMON..])
        .map_err(|_| ObjectDamage::Field("head_bytes"))?;
    if !crate::is_blank(&media.reserved) {
        return Err(ObjectDamage::Field("reserved"));
    }
    let count = |n: U32| usize::try_from(n.get()).unwrap_or(usize::MAX);
    let (sources, records) = (count(media.sources), count(media.records));
    let changes = count(media.changes);
    if sources >= SOURCES_MAX || records > RECORDS_MAX {
        return Err(ObjectDamage::Field("records"));
    }
    if changes > CHANGES_MAX {
        return Err(ObjectDamage::Field("changes"));
    }
    if head.len() != head_bytes(sources, records, changes) {
        return Err(ObjectDamage::Field("head_bytes"));
    }
    let (source_bytes, rest) = rest.split_at(sources * SOURCE);
    let (record_bytes, change_bytes) = rest.split_at(records * RECORD);
    let media_sources = <[SourceMedia]>::ref_from_bytes(source_bytes)
        .map_err(|_| ObjectDamage::Field("sources"))?;
    let sources: Vec<Place> = media_sources
        .iter()
        .map(|source| Place { epoch: source.epoch.get(), sequence: source.sequence.get() })
        .collect();
    let media_records = <[RecordMedia]>::ref_from_bytes(record_bytes)
        .map_err(|_| ObjectDamage::Field("records"))?;
    let mut records = Vec::with_capacity(media_records.len());
    for (index, record) in (0..).zip(media_records) {
        let record = decode_record(record, &sources);
        records.push(record.map_err(|field| ObjectDamage::Record { index, field })?);
    }
    // FM-OV2: sources are sorted, and each is used.
    if sources != sources_of(&records) {
        return Err(ObjectDamage::Field("sources"));
    }
    let header = SegmentHeader {
        chain_durable: media.chain_durable.get(),
        parent: Place { epoch: media.parent_epoch.get(), sequence: media.parent_sequence.get() },
        parent_hash: media.parent_hash.get(),
    };
    let sectors = media.sectors.get();
    if let Some(damage) = header.wrong_field(&identity, &records, sectors, head.len()) {
        return Err(damage);
    }
    let changes = decode_changes(change_bytes, place)?;
    Ok(SegmentHead { identity, header, sectors, records, changes, hash: hash(head) })
}

fn decode_changes(bytes: &[u8], place: Place) -> Result<Vec<SnapshotChange>, ObjectDamage> {
    let media =
        <[SnapshotMedia]>::ref_from_bytes(bytes).map_err(|_| ObjectDamage::Field("changes"))?;
    let decode = |(index, media)| {
        snapshot::decode(media).map_err(|field| ObjectDamage::Record { index, field })
    };
    let changes = (0..).zip(media).map(decode).collect::<Result<Vec<_>, _>>()?;
    match wrong_change(&changes, place) {
        Some(damage) => Err(damage),
        None => Ok(changes),
    }
}
