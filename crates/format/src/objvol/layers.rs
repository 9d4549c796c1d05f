// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map that layers make: increments, over what they go on from.
//!
//! ```text
//!   whole     ├──────────────────────────────────┤
//!   first     │      ├──┤             ├cleared┤  │     each covers what is below it
//!   newest    │   ├────┤        ├─┤             ├┤
//!   map       ├───┼────┼─┼──────┼─┼┤       ├────┼┤
//! ```
//!
//! Costs: increments are laid over each other as they come, small ones first, so that each extent
//! is looked at as often as the number of layers can be halved. Memory is for three maps at most:
//! the whole one, what all increments have, and the result.
//!
//! Invariants
//! - FM-LY1 The map is that of the checkpoint without layers that its writer would have written at
//!   the same place, entry by entry; what cannot be is refused.

use std::collections::{BTreeMap, BTreeSet};

use super::checkpoint::{
    Checkpoint, CheckpointExtent, CheckpointHeader, CheckpointSegment, RetainedSegment, needs_dead,
};
use super::increment::{ClearedRange, Increment, Layer, MapTotals, RetainedPlace};
use super::snapshot::Snapshot;
use super::{ObjectDamage, Place};

/// What is between `from` and `to` of an extent; `None`: nothing.
fn within(extent: &CheckpointExtent, from: u64, to: u64) -> Option<CheckpointExtent> {
    let (start, end) = (extent.start.max(from), end_of(extent).min(to));
    if start >= end {
        return None;
    }
    let narrow = |n: u64| u16::try_from(n).expect("within an extent");
    let (sectors, skip) = (narrow(end - start), extent.skip + narrow(start - extent.start));
    Some(CheckpointExtent { start, sectors, skip, ..*extent })
}

fn end_of(extent: &CheckpointExtent) -> u64 {
    extent.start + u64::from(extent.sectors)
}

/// The extents without what is cleared.
fn subtract(extents: &[CheckpointExtent], cleared: &[ClearedRange]) -> Vec<CheckpointExtent> {
    let mut left = Vec::with_capacity(extents.len());
    let mut cleared = cleared.iter().peekable();
    let mut covered = 0;
    for extent in extents {
        while let Some(range) = cleared.next_if(|range| range.start < end_of(extent)) {
            left.extend(within(extent, covered, range.start));
            covered = range.start + range.sectors;
        }
        left.extend(within(extent, covered, end_of(extent)));
    }
    left
}

/// The extents of `older`, where `newer` has none, and those of `newer`.
fn overlay(older: &[CheckpointExtent], newer: &[CheckpointExtent]) -> Vec<CheckpointExtent> {
    let mut all = Vec::with_capacity(older.len() + newer.len());
    let mut newer = newer.iter().peekable();
    let mut covered = 0;
    for old in older {
        while let Some(new) = newer.next_if(|new| new.start < end_of(old)) {
            all.extend(within(old, covered, new.start));
            all.push(*new);
            covered = end_of(new);
        }
        all.extend(within(old, covered, end_of(old)));
    }
    all.extend(newer);
    all
}

/// What is in one of the two, in order and joined.
fn union(one: Vec<ClearedRange>, other: Vec<ClearedRange>) -> Vec<ClearedRange> {
    let mut both = [one, other].concat();
    both.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<ClearedRange> = Vec::with_capacity(both.len());
    for range in both {
        let end = range.start + range.sectors;
        match joined.last_mut() {
            Some(last) if range.start <= last.start + last.sectors => {
                last.sectors = last.sectors.max(end - last.start);
            }
            Some(_) | None => joined.push(range),
        }
    }
    joined
}

/// What one or several increments change: first the ranges are cleared, then the extents come.
#[derive(Debug, Default)]
struct Change {
    cleared: Vec<ClearedRange>,
    extents: Vec<CheckpointExtent>,
}

impl Change {
    fn then(self, newer: Change) -> Change {
        let extents = overlay(&subtract(&self.extents, &newer.cleared), &newer.extents);
        Change { cleared: union(self.cleared, newer.cleared), extents }
    }
}

/// What the last increment says of the whole.
#[derive(Debug)]
struct Newest {
    header: CheckpointHeader,
    snapshots: Vec<Snapshot>,
    retained: Vec<RetainedPlace>,
    map: MapTotals,
}

/// See the module. One increment after another is added.
#[derive(Debug, Default)]
pub struct LayeredMap {
    /// Those that the newest increment names.
    layers: Vec<Layer>,
    /// So many of them were added.
    added: usize,
    whole: Vec<CheckpointExtent>,
    /// Larger ones first.
    changes: Vec<Change>,
    /// In order of place: those of a layer lie behind those before it.
    segments: Vec<CheckpointSegment>,
    dead_at: BTreeMap<Place, Place>,
    gone: BTreeSet<Place>,
    newest: Option<Newest>,
}

impl LayeredMap {
    /// The map of the first of these layers, which those of the newest increment are.
    ///
    /// # Errors
    /// [`ObjectDamage`] if it is another checkpoint.
    pub fn new(base: Checkpoint, layers: &[Layer]) -> Result<LayeredMap, ObjectDamage> {
        if layers.first().map(|layer| layer.place) != Some(base.header.identity.place) {
            return Err(ObjectDamage::Field("layers"));
        }
        let place = |index: u32| base.segments[index as usize].place;
        let dead_at = base.retained.iter().map(|r| (place(r.segment), r.dead_at)).collect();
        Ok(LayeredMap {
            layers: layers.to_vec(),
            added: 1,
            dead_at,
            whole: base.extents,
            segments: base.segments,
            ..LayeredMap::default()
        })
    }

    /// Adds the next layer, and at the end the newest increment.
    ///
    /// # Errors
    /// [`ObjectDamage`] if it does not go on from those before.
    pub fn add(&mut self, increment: Increment) -> Result<(), ObjectDamage> {
        if self.layers.get(..self.added) != Some(&increment.layers[..]) {
            return Err(ObjectDamage::Field("layers"));
        }
        self.added += 1;
        let Increment { header, segments, gone, cleared, mut extents, .. } = increment;
        let before = u32::try_from(self.segments.len()).expect("fewer than 2^32 segments");
        for extent in &mut extents {
            extent.segment += before;
        }
        self.segments.extend(segments);
        self.gone.extend(gone);
        self.dead_at.extend(increment.retained.iter().map(|r| (r.place, r.dead_at)));
        let (snapshots, retained, map) = (increment.snapshots, increment.retained, increment.map);
        self.newest = Some(Newest { header, snapshots, retained, map });
        self.changes.push(Change { cleared, extents });
        while let [.., older, newer] = &self.changes[..]
            && older.extents.len() < 2 * newer.extents.len()
        {
            self.join_newest();
        }
        Ok(())
    }

    fn join_newest(&mut self) {
        let (newer, older) = (self.changes.pop(), self.changes.pop());
        self.changes.push(older.unwrap_or_default().then(newer.unwrap_or_default()));
    }

    /// The map of the newest increment, which was the last to be added.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why there is none.
    pub fn finish(mut self, volume_sectors: u64) -> Result<Checkpoint, ObjectDamage> {
        let is_complete = self.added == self.layers.len() + 1;
        let Some(newest) = self.newest.take().filter(|_| is_complete) else {
            return Err(ObjectDamage::Field("layers"));
        };
        while self.changes.len() > 1 {
            self.join_newest();
        }
        let change = self.changes.pop().unwrap_or_default();
        let extents = if self.whole.is_empty() {
            change.extents
        } else {
            if !change.cleared.is_empty() {
                self.whole = subtract(&self.whole, &change.cleared);
            }
            overlay(&self.whole, &change.extents)
        };
        self.whole = Vec::new();
        for segment in &mut self.segments {
            segment.live = 0;
        }
        for extent in &extents {
            let live = &mut self.segments[extent.segment as usize].live;
            *live = live.saturating_add(u32::from(extent.sectors));
        }
        let live = self.segments.iter().map(|segment| u64::from(segment.live)).sum();
        if (MapTotals { extents: extents.len() as u64, live }) != newest.map {
            return Err(ObjectDamage::Field("map")); // FM-IN3
        }
        self.into_checkpoint(extents, newest, volume_sectors)
    }

    /// Leaves out the segments that have gone, and what of them no snapshot needs any more.
    fn into_checkpoint(
        self,
        mut extents: Vec<CheckpointExtent>,
        newest: Newest,
        volume_sectors: u64,
    ) -> Result<Checkpoint, ObjectDamage> {
        let LayeredMap { segments: all, dead_at, mut gone, .. } = self;
        let mut index = Vec::with_capacity(all.len());
        let (mut segments, mut retained) = (Vec::with_capacity(all.len()), Vec::new());
        for segment in all {
            let nth = u32::try_from(segments.len()).expect("fewer than 2^32 segments");
            index.push(nth);
            if gone.remove(&segment.place) {
                if segment.live > 0 {
                    return Err(ObjectDamage::Field("gone"));
                }
                continue;
            }
            if let Some(&dead_at) = dead_at.get(&segment.place)
                && needs_dead(&newest.snapshots, segment.place, dead_at)
            {
                retained.push(RetainedSegment { segment: nth, dead_at });
            }
            segments.push(segment);
        }
        if !gone.is_empty() {
            return Err(ObjectDamage::Field("gone"));
        }
        let is_known =
            |place| segments.binary_search_by_key(&place, |segment| segment.place).is_ok();
        if !newest.retained.iter().all(|retained| is_known(retained.place)) {
            return Err(ObjectDamage::Field("retained"));
        }
        for extent in &mut extents {
            extent.segment = index[extent.segment as usize];
        }
        let Newest { header, snapshots, .. } = newest;
        let checkpoint = Checkpoint { header, segments, extents, retained, snapshots };
        match checkpoint.wrong_field(volume_sectors) {
            Some(damage) => Err(damage),
            None => Ok(checkpoint),
        }
    }
}
