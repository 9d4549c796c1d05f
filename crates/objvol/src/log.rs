// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of one opening in memory: the segment that is gathered, those in flight, the table of
//! all segments, and the map. Changes at once; no I/O.
//!
//! ```text
//!   write ─▶ gathered segment ─ close ─▶ in flight (at most W ahead) ─ landed ─▶ durable chain
//!                  │                                                          0..=durable
//!                  └──▶ map: in the order of the log, at the moment of the write
//! ```
//!
//! Invariants
//! - OV-L1 The map follows the order of the log, never that of completions: replay of the log gives
//!   the same map. (LSVD followed completions, and overlapping writes diverged after a crash.)
//! - OV-L2 A segment is closed only while it is at most W behind the end of the durable chain; so
//!   of a chain that is durable up to `d` nothing lies beyond `d + W`.
//! - OV-L3 The bytes of a closed segment never change.
//! - OV-L4 Moved data count only for sectors that the map still has at the place that they were
//!   copied from.
//! - OV-L5 `live` of a segment is the number of its sectors that the map has; `dead_at` of one
//!   without live sectors is the place as of which that is so. Replay gives the same.
//! - OV-L6 A client's write of exactly the sectors of an earlier one takes its place, data and
//!   checksum, if that one is gathered and the map has all of it: then no later record of the
//!   segment has touched these sectors, so that replay gives the same as with one more record.
//!   Nothing sees a part of a segment: it is in the store with all its writes, or with none.
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use block::{Buf, Nanos, Planted};
use format::objvol::{
    Checkpoint, CheckpointExtent, EXTENT_SECTORS_MAX, Identity, Place, RecordKind, SECTOR,
    SegmentHead, SegmentHeader, Snapshot, SnapshotChange,
};
use slab::Slab;

use self::image::Chain;
use crate::gather::{Encoded, Gather};
use crate::history::History;
use crate::map::{Extent, ExtentMap, SegmentId};
use crate::planted::Fault;

mod image;

pub(crate) use self::image::{Image, Scope};

/// Extents of a checkpoint that enter the map before a look at the clock. Chosen: about a tenth of
/// a millisecond.
const LOADED_AT_ONCE: usize = 1024;

/// Lets other devices of the core go on: a map has millions of entries.
async fn yield_if_long() {
    if reactor::turn_is_over() {
        reactor::yield_now().await;
    }
}

/// Where the data of a segment are.
#[derive(Debug)]
enum Data {
    /// In the segment that is gathered.
    Gathered,
    /// In memory, until the object is in the store.
    InFlight(Buf),
    /// In the store only.
    Stored,
}

#[derive(Debug)]
struct Segment {
    place: Place,
    /// Length of the object in sectors; 0 while it is gathered.
    sectors: u32,
    live: u32,
    /// Means something while `live` is 0.
    dead_at: Place,
    /// Sectors before the place that `Extent::at` counts from.
    data_at: u16,
    data: Data,
    /// When its first record was gathered; of one that was read zero.
    began: Nanos,
}

impl Segment {
    /// The segment at `by` has overwritten so many sectors.
    fn lose(&mut self, sectors: u32, by: Place) {
        self.live -= sectors;
        self.dead_at = by;
    }
}

/// A closed segment that must be sent.
#[derive(Debug)]
pub(crate) struct ClosedSegment {
    pub(crate) id: SegmentId,
    pub(crate) place: Place,
    pub(crate) object: Buf,
    pub(crate) head_bytes: usize,
}

/// Where the whole of an extent, as it was written, lies in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredExtent {
    pub(crate) place: Place,
    /// First sector in the object.
    pub(crate) at: u32,
    pub(crate) sectors: u16,
    pub(crate) crc: u32,
}

/// A segment that may be worth collecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentUse {
    pub(crate) id: SegmentId,
    pub(crate) place: Place,
    pub(crate) sectors: u32,
    pub(crate) live: u32,
    /// It has no live sector, and a snapshot needs it.
    pub(crate) is_retained: bool,
}

impl SegmentUse {
    /// Live sectors of all, in thousandths.
    pub(crate) fn share_per_mille(&self) -> u64 {
        u64::from(self.live) * 1000 / u64::from(self.sectors)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Log {
    segments: Slab<Segment>,
    ids: BTreeMap<Place, SegmentId>,
    map: ExtentMap,
    /// By name.
    snapshots: BTreeMap<String, Snapshot>,
    /// What the next checkpoint goes on from.
    chain: Chain,
    gather: Gather,
    epoch: u64,
    /// Sequence of the segment that is gathered.
    next: u64,
    /// The last closed segment, and the hash of its head.
    tail: Place,
    tail_hash: u64,
    durable: u64,
    landed: BTreeSet<u64>,
    planted: Planted<Fault>,
}

impl Log {
    /// An empty log of an epoch.
    pub(crate) fn new(epoch: u64, planted: Planted<Fault>) -> Log {
        Log {
            segments: Slab::new(),
            ids: BTreeMap::new(),
            map: ExtentMap::default(),
            snapshots: BTreeMap::new(),
            chain: Chain::default(),
            gather: Gather::default(),
            epoch,
            next: 1,
            tail: Place::default(),
            tail_hash: 0,
            durable: 0,
            landed: BTreeSet::new(),
            planted,
        }
    }

    /// Makes the map of a history.
    pub(crate) async fn restore(&mut self, history: &History) {
        if let Some(found) = &history.checkpoint {
            self.load(&found.checkpoint).await;
            self.go_on_from(found.layers.clone());
        }
        for head in &history.heads {
            self.replay(head);
            yield_if_long().await;
        }
        if self.planted.is(Fault::ForgetReplayed) {
            self.chain.forget_changes();
        }
    }

    /// Takes over the map of a checkpoint.
    pub(crate) async fn load(&mut self, checkpoint: &Checkpoint) {
        let ids: Vec<SegmentId> = checkpoint
            .segments
            .iter()
            .map(|segment| self.add_segment(segment.place, segment.sectors, Data::Stored))
            .collect();
        for extents in checkpoint.extents.chunks(LOADED_AT_ONCE) {
            for extent in extents {
                let segment = ids[extent.segment as usize];
                let CheckpointExtent { start, sectors, at, skip, whole, crc, .. } = *extent;
                self.put(start, Extent { segment, crc, at, sectors, skip, whole });
            }
            yield_if_long().await;
        }
        for retained in &checkpoint.retained {
            let id = ids[retained.segment as usize];
            self.segments[id as usize].dead_at = retained.dead_at;
        }
        let by_name = |snapshot: &Snapshot| (snapshot.name.clone(), snapshot.clone());
        self.snapshots = checkpoint.snapshots.iter().map(by_name).collect();
        self.tail = checkpoint.header.identity.place;
        self.tail_hash = checkpoint.header.tail_hash;
    }

    /// Applies a segment of history.
    fn replay(&mut self, head: &SegmentHead) {
        let segment = self.add_segment(head.identity.place, head.sectors, Data::Stored);
        for record in &head.records {
            let sectors =
                u16::try_from(record.sectors.min(EXTENT_SECTORS_MAX)).expect("at most 512");
            let (at, crc) = (record.at, record.crc);
            let extent = Extent { segment, crc, at, sectors, skip: 0, whole: sectors };
            match record.kind {
                RecordKind::Data => self.put(record.start, extent),
                RecordKind::Zeroes => {
                    let range = record.start..record.start + u64::from(record.sectors);
                    self.cut(range, head.identity.place);
                }
                RecordKind::Moved { from, from_at } => {
                    let from = self.ids.get(&from).copied();
                    self.put_moved(record.start, extent, from, u32::from(from_at));
                }
            }
        }
        head.changes.iter().for_each(|change| self.apply(change));
        self.tail = head.identity.place;
        self.tail_hash = head.hash;
    }

    fn add_segment(&mut self, place: Place, sectors: u32, data: Data) -> SegmentId {
        let began = match data {
            Data::Gathered => reactor::now(),
            Data::InFlight(_) | Data::Stored => Nanos::ZERO,
        };
        let segment = Segment { place, sectors, live: 0, dead_at: place, data_at: 0, data, began };
        let id = u32::try_from(self.segments.insert(segment)).expect("fewer than 2^32 segments");
        self.ids.insert(place, id);
        id
    }

    fn segment(&self, id: SegmentId) -> &Segment {
        &self.segments[id as usize]
    }

    fn put(&mut self, start: u64, extent: Extent) {
        let segments = &mut self.segments;
        let by = segments[extent.segment as usize].place;
        let gone = |id: SegmentId, sectors| segments[id as usize].lose(sectors, by);
        self.map.insert(start, extent, gone);
        self.chain.note(start..start + u64::from(extent.sectors), self.map.len());
        self.segments[extent.segment as usize].live += u32::from(extent.sectors);
    }

    fn cut(&mut self, range: Range<u64>, by: Place) {
        let segments = &mut self.segments;
        self.map.cut(range.clone(), |id, sectors| segments[id as usize].lose(sectors, by));
        if !self.planted.is(Fault::ForgetCleared) {
            self.chain.note(range, self.map.len());
        }
    }

    fn apply(&mut self, change: &SnapshotChange) {
        match change {
            SnapshotChange::Created(snapshot) => {
                self.snapshots.insert(snapshot.name.clone(), snapshot.clone());
            }
            SnapshotChange::Deleted(snapshot) => {
                self.snapshots.remove(&snapshot.name);
                if self.planted.is(Fault::FreeSharedSegments) {
                    let needed = |s: &Segment| (s.place..s.dead_at).contains(&snapshot.place);
                    for (_, segment) in self.segments.iter_mut().filter(|(_, s)| needed(s)) {
                        segment.dead_at = segment.place;
                    }
                }
            }
        }
    }

    /// First sector of a run in its object.
    fn sector_of(&self, extent: &Extent) -> u32 {
        let data_at = self.segment(extent.segment).data_at;
        u32::from(data_at) + u32::from(extent.at) + u32::from(extent.skip)
    }

    /// The runs of `range` that the map has in the segment `from`, at the sectors that a copy from
    /// `from_at` on took (OV-L4).
    fn unmoved(&self, range: Range<u64>, from: Option<SegmentId>, from_at: u32) -> Vec<(u64, u16)> {
        let start = range.start;
        let pieces = self.map.pieces(range).into_iter();
        let is_there = |&(at, extent): &(u64, Extent)| {
            Some(extent.segment) == from
                && u64::from(self.sector_of(&extent)) == u64::from(from_at) + (at - start)
        };
        pieces.filter(is_there).map(|(at, extent)| (at, extent.sectors)).collect()
    }

    fn put_moved(&mut self, start: u64, extent: Extent, from: Option<SegmentId>, from_at: u32) {
        if self.planted.is(Fault::MoveOverNewer) {
            return self.put(start, extent);
        }
        let range = start..start + u64::from(extent.sectors);
        for (at, sectors) in self.unmoved(range, from, from_at) {
            let skip = u16::try_from(at - start).expect("within an extent");
            self.put(at, Extent { sectors, skip, ..extent });
        }
    }

    /// Whether one more record with so many bytes of data fits into the gathered segment.
    pub(crate) fn has_room(&self, bytes: usize, segment_bytes: usize) -> bool {
        self.gather.has_room(bytes, segment_bytes)
    }

    fn gathered(&mut self) -> SegmentId {
        if let Some(id) = self.gather.id {
            return id;
        }
        let id = self.add_segment(Place::new(self.epoch, self.next), 0, Data::Gathered);
        self.gather.id = Some(id);
        id
    }

    /// Begins a segment, that it may be closed without a record.
    pub(crate) fn gather_nothing(&mut self) {
        self.gathered();
    }

    fn append(&mut self, kind: RecordKind, start: u64, data: &[u8]) -> Extent {
        let segment = self.gathered();
        self.gather.append(kind, start, data).extent(segment)
    }

    /// The extent that a write of these sectors replaces, and its record (OV-L6).
    fn replaced(&self, start: u64, sectors: usize) -> Option<(usize, Extent)> {
        let id = self.gather.id?;
        if self.planted.is(Fault::ReplaceOverNewer) {
            let (nth, written) = self.gather.written(start, sectors)?;
            return Some((nth, written.extent(id)));
        }
        let extent = self.map.get(start)?;
        let is_whole = extent.sectors == extent.whole && usize::from(extent.sectors) == sectors;
        if extent.segment != id || !is_whole {
            return None;
        }
        self.gather.write_at(extent.at).map(|nth| (nth, extent))
    }

    /// Whether a write of so many bytes replaces one that is gathered: it needs no room.
    pub(crate) fn replaces(&self, start: u64, bytes: usize) -> bool {
        self.replaced(start, bytes / SECTOR).is_some()
    }

    /// A client's write of at most [`EXTENT_SECTORS_MAX`] sectors; `replaces` or `has_room` said
    /// yes.
    pub(crate) fn write(&mut self, start: u64, data: &[u8]) {
        let extent = match self.replaced(start, data.len() / SECTOR) {
            Some((nth, extent)) => {
                let keeps_crc = self.planted.is(Fault::ReplaceUnchecked);
                Extent { crc: self.gather.replace(nth, data, keeps_crc), ..extent }
            }
            None => self.append(RecordKind::Data, start, data),
        };
        self.put(start, extent); // OV-L1
    }

    /// Whether the map has one entry more when these sectors read as zeroes.
    pub(crate) fn is_split_by(&self, range: &Range<u64>) -> bool {
        self.map.splits(range)
    }

    /// The sectors read as zeroes from now on; `has_room` said yes for no bytes.
    pub(crate) fn zero(&mut self, range: Range<u64>) {
        self.gathered();
        self.cut(range.clone(), Place::new(self.epoch, self.next));
        self.gather.zero(range);
    }

    /// Data of `start` and on, copied from sector `from_at` of the segment `from`. False, and
    /// nothing is done, if the map has none of it there any more.
    pub(crate) fn move_data(
        &mut self,
        start: u64,
        data: &[u8],
        from: SegmentId,
        from_at: u32,
    ) -> bool {
        let end = start + (data.len() / SECTOR) as u64;
        let is_gone = self.unmoved(start..end, Some(from), from_at).is_empty();
        if is_gone && !self.planted.is(Fault::MoveOverNewer) {
            return false;
        }
        let place = self.segment(from).place;
        let source_at = u16::try_from(from_at).expect("segments are below 64 Ki sectors");
        let kind = RecordKind::Moved { from: place, from_at: source_at };
        let extent = self.append(kind, start, data);
        self.put_moved(start, extent, Some(from), from_at);
        true
    }

    /// A snapshot was made or deleted.
    pub(crate) fn change_snapshot(&mut self, change: SnapshotChange) {
        self.gathered();
        self.apply(&change);
        self.gather.change(change);
    }

    /// The snapshots, by name.
    pub(crate) fn snapshots(&self) -> &BTreeMap<String, Snapshot> {
        &self.snapshots
    }

    /// Whether a snapshot needs a segment that has no live sector (OV-S3).
    fn is_retained(&self, segment: &Segment) -> bool {
        let needed = segment.place..segment.dead_at;
        segment.live == 0 && self.snapshots.values().any(|s| needed.contains(&s.place))
    }

    /// Whether something is gathered.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gather.id.is_some()
    }

    /// Whether what was gathered last are moved data.
    pub(crate) fn gathers_moved(&self) -> bool {
        self.gather.ends_with_moved()
    }

    /// Whether the window has room for the gathered segment (OV-L2).
    pub(crate) fn may_close(&self, window: u16) -> bool {
        self.next <= self.durable + u64::from(window) || self.planted.is(Fault::IgnoreWindow)
    }

    /// Ends the gathered segment, if there is one; the caller sends it.
    pub(crate) fn close(&mut self, uuid: [u8; 16], nonce: u64) -> Option<ClosedSegment> {
        let id = self.gather.id?;
        let place = Place::new(self.epoch, self.next);
        let header = SegmentHeader {
            chain_durable: self.durable,
            parent: self.tail,
            parent_hash: self.tail_hash,
        };
        let gather = std::mem::take(&mut self.gather);
        let encoded = gather.encode(&Identity { uuid, place, nonce }, &header);
        let Encoded { object, head_bytes, data_at, hash } = encoded;
        let segment = &mut self.segments[id as usize];
        segment.data_at = data_at;
        segment.sectors = u32::try_from(object.len() / SECTOR).expect("below 64 Ki sectors");
        segment.data = Data::InFlight(object.clone()); // OV-L3
        self.tail = place;
        self.tail_hash = hash;
        self.next += 1;
        Some(ClosedSegment { id, place, object, head_bytes })
    }

    /// The object of a segment is in the store.
    pub(crate) fn land(&mut self, id: SegmentId) {
        let segment = &mut self.segments[id as usize];
        segment.data = Data::Stored;
        self.landed.insert(segment.place.sequence);
        while self.landed.remove(&(self.durable + 1)) {
            self.durable += 1;
        }
    }

    /// The last segment of the unbroken chain of this epoch that is in the store.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether a segment is in the store, although the chain may be broken before it.
    pub(crate) fn has_landed(&self, sequence: u64) -> bool {
        sequence <= self.durable || self.landed.contains(&sequence)
    }

    /// The sequence of the gathered segment: those below are closed.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The last segment of history that is closed.
    pub(crate) fn tail(&self) -> Place {
        self.tail
    }

    /// Number of entries of the map.
    pub(crate) fn extents(&self) -> usize {
        self.map.len()
    }

    /// Bytes of this epoch's segments behind this one, and of what is gathered.
    pub(crate) fn bytes_after(&self, sequence: u64) -> u64 {
        let behind = self.ids.range(Place::new(self.epoch, sequence + 1)..);
        let sectors = behind.map(|(_, id)| u64::from(self.segment(*id).sectors)).sum::<u64>();
        sectors * SECTOR as u64 + self.gather.bytes() as u64
    }

    /// Bytes that the unbroken chain in the store does not have.
    pub(crate) fn bytes_behind(&self) -> u64 {
        self.bytes_after(self.durable)
    }

    /// When the first of them was written; `None` if there are none.
    pub(crate) fn behind_since(&self) -> Option<Nanos> {
        let mut behind = self.ids.range(Place::new(self.epoch, self.durable + 1)..);
        behind.next().map(|(_, id)| self.segment(*id).began)
    }

    /// The runs of `range` that have data.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<(u64, Extent)> {
        self.map.pieces(range)
    }

    /// Runs `f` on the data of a run, if they are in memory.
    pub(crate) fn in_memory<R>(&self, extent: &Extent, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let bytes = usize::from(extent.sectors) * SECTOR;
        match &self.segment(extent.segment).data {
            Data::Gathered => {
                let at = (usize::from(extent.at) + usize::from(extent.skip)) * SECTOR;
                Some(f(self.gather.part(at..at + bytes)))
            }
            Data::InFlight(object) => {
                let at = self.sector_of(extent) as usize * SECTOR;
                Some(object.read(|object| f(&object[at..at + bytes])))
            }
            Data::Stored => None,
        }
    }

    /// Where the whole extent of a run lies in the store.
    pub(crate) fn stored(&self, extent: &Extent) -> StoredExtent {
        let segment = self.segment(extent.segment);
        StoredExtent {
            place: segment.place,
            at: u32::from(segment.data_at) + u32::from(extent.at),
            sectors: extent.whole,
            crc: extent.crc,
        }
    }

    /// All segments that are in the store.
    pub(crate) fn uses(&self) -> Vec<SegmentUse> {
        let stored = |(id, segment): (usize, &Segment)| {
            let Segment { place, sectors, live, .. } = *segment;
            let id = SegmentId::try_from(id).expect("it was made of one");
            let is_retained = self.is_retained(segment);
            matches!(segment.data, Data::Stored).then_some(SegmentUse {
                id,
                place,
                sectors,
                live,
                is_retained,
            })
        };
        self.segments.iter().filter_map(stored).collect()
    }

    /// Bytes of segments in the store that nobody needs, and that no checkpoint of this epoch up to
    /// `sequence` lists; 0: there is no checkpoint of it.
    pub(crate) fn unlisted_garbage(&self, sequence: u64) -> u64 {
        let listed = Place::new(self.epoch, sequence);
        let is_unlisted = |segment: &&Segment| {
            matches!(segment.data, Data::Stored)
                && segment.live == 0
                && (sequence == 0 || segment.dead_at > listed)
                && !self.is_retained(segment)
        };
        let all = self.segments.iter().map(|(_, segment)| segment).filter(is_unlisted);
        all.map(|segment| u64::from(segment.sectors) * SECTOR as u64).sum()
    }

    /// The runs of the map in these segments, ascending.
    pub(crate) fn runs_in(&self, segments: &BTreeSet<SegmentId>) -> Vec<(u64, Extent)> {
        self.map.iter().filter(|(_, extent)| segments.contains(&extent.segment)).collect()
    }

    /// A segment has been deleted from the store.
    pub(crate) fn forget(&mut self, place: Place) {
        let Some(id) = self.ids.get(&place).copied() else { return };
        if self.segment(id).live > 0 {
            // Only a planted fault deletes what the map needs; the reader finds out.
            return;
        }
        self.ids.remove(&place);
        self.segments.remove(id as usize);
        self.chain.note_gone(place);
    }
}
