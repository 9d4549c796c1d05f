// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The image of the log for a checkpoint: the whole map, or what has changed in it since the
//! newest one.
//!
//! Costs: an increment takes the time and the bytes of what has changed, whatever the map has. 64
//! of them follow a checkpoint with the whole map, or as many as have four times its entries: so an
//! opening reads five maps at most, of 7 bytes an extent.
//!
//! Invariants
//! - OV-IM1 An image has every range that was put or cut since the newest durable checkpoint. So
//!   the extents of its own segments are all in it, and those of older ones only become less.
//! - OV-IM2 A durable checkpoint that is named by none is a layer of the next one, or the next one
//!   has the whole map: layers are of this opening, or of the checkpoint that it was opened from.
//! - OV-IM3 While more has changed than memory is kept for, nothing is noted, and the next image is
//!   the whole map.
use std::ops::Range;

use format::objvol::{
    CheckpointExtent, CheckpointHeader, CheckpointSegment, ClearedRange, Identity, Increment,
    LAYERS_MAX, Layer, MapTotals, Place, RetainedPlace,
};

use super::Log;
use crate::map::{Extent, SegmentId};
use crate::planted::Fault;

/// A checkpoint with the whole map follows when the layers have so many times its entries. Chosen:
/// with it a changed entry is written one and a quarter times, and a map that is read has five
/// times its bytes.
const LAYERED_MOST: u64 = 4;
/// Ranges that are noted, beside half as many as the map has entries: 1 MiB.
const CHANGES_MAX: usize = 65_536;
/// Bytes of an extent in a checkpoint, about, and of a segment.
const EXTENT_BYTES: u64 = 8;
const SEGMENT_BYTES: u64 = 24;

/// What an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The whole map, or what has changed, whichever costs less in the long run.
    Next,
    /// The whole map.
    Whole,
}

/// The map as of a segment, as a checkpoint writes it.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) increment: Increment,
    /// Segments that may be deleted when it is durable.
    pub(crate) garbage: Vec<Place>,
}

/// What the next checkpoint goes on from.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The newest durable checkpoint, and its layers before it; empty: the next one has the whole
    /// map.
    layers: Vec<Layer>,
    /// What was put or cut since that was made; `None`: too much (OV-IM3).
    changed: Option<Vec<Range<u64>>>,
    /// Its segments that were deleted since.
    gone: Vec<Place>,
}

impl Chain {
    /// OV-IM1.
    pub(super) fn note(&mut self, range: Range<u64>, extents: usize) {
        let Some(changed) = &mut self.changed else { return };
        match changed.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            Some(_) | None => changed.push(range),
        }
        if changed.len() > CHANGES_MAX + extents / 2 {
            self.changed = None;
        }
    }

    pub(super) fn note_gone(&mut self, place: Place) {
        if self.layers.last().is_some_and(|newest| place <= newest.place) {
            self.gone.push(place);
        }
    }

    /// A planted fault.
    pub(super) fn forget_changes(&mut self) {
        self.changed = self.changed.take().map(|_| Vec::new());
    }

    fn base(&self) -> Place {
        self.layers.last().map_or(Place::default(), |layer| layer.place)
    }

    /// Whether the next checkpoint has the whole map of so many entries.
    fn is_full(&self, extents: usize) -> bool {
        let behind_first = self.layers.iter().skip(1).map(|layer| layer.extents).sum::<u64>();
        self.layers.is_empty()
            || self.changed.is_none()
            || self.layers.len() > LAYERS_MAX
            || behind_first > LAYERED_MOST * extents as u64
    }

    /// Begins to note anew; returns what has changed, in order and without overlaps.
    fn take_changes(&mut self) -> Vec<Range<u64>> {
        let mut changed = self.changed.replace(Vec::new()).unwrap_or_default();
        changed.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::with_capacity(changed.len());
        for range in changed {
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                Some(_) | None => joined.push(range),
            }
        }
        joined
    }
}

impl Log {
    /// The map is that of a checkpoint, its last layer.
    pub(crate) fn go_on_from(&mut self, layers: Vec<Layer>) {
        self.chain = Chain { layers, changed: Some(Vec::new()), gone: Vec::new() };
    }

    /// The checkpoint of the last image is durable (OV-IM2).
    pub(crate) fn note_checkpoint(&mut self, layers: Vec<Layer>) {
        self.chain.layers = layers;
    }

    /// The next checkpoint has the whole map.
    pub(crate) fn go_on_from_nothing(&mut self) {
        self.chain = Chain::default();
    }

    /// The newest durable checkpoint and its layers before it, the oldest first.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.chain.layers
    }

    /// Bytes of a checkpoint with the whole map, about.
    pub(crate) fn image_bytes(&self) -> u64 {
        self.map.len() as u64 * EXTENT_BYTES + self.ids.len() as u64 * SEGMENT_BYTES
    }

    /// The map as of the last closed segment, which is of this epoch; nothing is gathered.
    pub(crate) fn image(&mut self, uuid: [u8; 16], nonce: u64, scope: Scope) -> Image {
        assert!(!self.is_gathering() && self.tail > Place::default(), "the image of a segment");
        let is_whole = scope == Scope::Whole || self.chain.is_full(self.map.len());
        let changed = self.chain.take_changes();
        let mut gone = std::mem::take(&mut self.chain.gone);
        let (mut layers, mut base) = (self.chain.layers.clone(), self.chain.base());
        if is_whole {
            (layers, base) = (Vec::new(), Place::default());
            gone.clear();
        } else if self.planted.is(Fault::StaleLayers) && layers.len() > 1 {
            layers.pop();
            gone.retain(|place| layers.last().is_some_and(|layer| *place <= layer.place));
        }
        gone.sort_unstable();
        let (segments, index) = self.segments_behind(base);
        let (extents, cleared) = if is_whole {
            let entry = |(start, extent)| self.entry(start, extent, &index);
            (self.map.iter().map(entry).collect(), Vec::new())
        } else {
            self.changes_in(&changed, &index)
        };
        let (retained, garbage) = self.dead_segments();
        let is_new = |retained: &RetainedPlace| retained.dead_at > base;
        let live = self.segments.iter().map(|(_, segment)| u64::from(segment.live)).sum();
        let identity = Identity { uuid, place: self.tail, nonce };
        let increment = Increment {
            header: CheckpointHeader { identity, tail_hash: self.tail_hash },
            layers,
            segments,
            gone,
            cleared,
            extents,
            retained: retained.into_iter().filter(is_new).collect(),
            snapshots: self.snapshots.values().cloned().collect(),
            map: MapTotals { extents: self.map.len() as u64, live },
        };
        Image { increment, garbage }
    }

    /// The segments behind a place, in order, and for each id the index among them.
    fn segments_behind(&self, base: Place) -> (Vec<CheckpointSegment>, Vec<u32>) {
        let ids = self.segments.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
        let (mut segments, mut index) = (Vec::new(), vec![u32::MAX; ids]);
        let behind = self.ids.range(base..).filter(|(place, _)| **place > base);
        for (&place, &id) in behind {
            index[id as usize] = u32::try_from(segments.len()).expect("fewer than 2^32 segments");
            let segment = self.segment(id);
            let (sectors, live) = (segment.sectors, segment.live);
            segments.push(CheckpointSegment { place, sectors, live });
        }
        (segments, index)
    }

    /// What the map has in these ranges, and where it has nothing.
    fn changes_in(
        &self,
        changed: &[Range<u64>],
        index: &[u32],
    ) -> (Vec<CheckpointExtent>, Vec<ClearedRange>) {
        let (mut extents, mut cleared) = (Vec::new(), Vec::new());
        let mut clear = |range: Range<u64>| {
            if !range.is_empty() {
                cleared.push(ClearedRange { start: range.start, sectors: range.end - range.start });
            }
        };
        for range in changed {
            let mut end = range.start;
            for (start, extent) in self.map.pieces(range.clone()) {
                clear(end..start);
                end = start + u64::from(extent.sectors);
                extents.push(self.entry(start, extent, index));
            }
            clear(end..range.end);
        }
        (extents, cleared)
    }

    fn entry(&self, start: u64, extent: Extent, index: &[u32]) -> CheckpointExtent {
        CheckpointExtent {
            start,
            sectors: extent.sectors,
            segment: index[extent.segment as usize],
            at: self.segment(extent.segment).data_at + extent.at,
            skip: extent.skip,
            whole: extent.whole,
            crc: extent.crc,
        }
    }

    /// The segments without live sectors: those that snapshots need, in order, and the others.
    fn dead_segments(&self) -> (Vec<RetainedPlace>, Vec<Place>) {
        let (mut retained, mut garbage) = (Vec::new(), Vec::new());
        let dead = |id: &SegmentId| self.segment(*id).live == 0;
        for (&place, id) in self.ids.iter().filter(|(_, id)| dead(id)) {
            let segment = self.segment(*id);
            if self.is_retained(segment) && !self.planted.is(Fault::CollectUnderSnapshots) {
                retained.push(RetainedPlace { place, dead_at: segment.dead_at });
            } else {
                garbage.push(place);
            }
        }
        (retained, garbage)
    }
}
