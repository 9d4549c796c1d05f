// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The history of a volume below an epoch: every epoch is sealed, then its segments are read.
//!
//! ```text
//!   newest checkpoint   segments of its epoch behind it   seal   next epoch …   own epoch
//!          ■────────────────▶ ■ ■ ■ ■ ■                    ▣      ■ ■ ▣           (empty)
//!                                       ▲ the first name that is free: sealed, with 2W more
//! ```
//!
//! Invariants
//! - OV-H1 Every epoch below is sealed, in ascending order, before the map is made of it, not only
//!   the newest: a writer that has slept through two take-overs is an epoch like any other.
//! - OV-H2 An epoch ends at its lowest seal, and every name below that is a segment: a seal is
//!   found by walking from the checkpoint, and whatever lies behind it is garbage for ever.
//! - OV-H3 2W names from the first free one on are sealed at once, so that a writer that is at work
//!   cannot run ahead of the seals for ever.
//! - OV-H4 A free name is damage, not the end, if a segment W or more behind it exists, or a
//!   segment says that it was durable, or a later epoch has a segment. Then nothing is sealed. It
//!   is looked at once more after the proof was seen: a listing is not one moment.
//! - OV-H5 A checkpoint is believed only if no seal of its epoch lies at or before its place. Its
//!   layers are those that its head names, by place and hash; one that is missing or another object
//!   is damage of the checkpoint.
//! - OV-H6 What has gone while it was read was garbage of a newer checkpoint: again from that one.
//! - OV-H7 Each segment names the one before it, and its hash: there is one history.
//! - OV-H8 A check changes nothing. A check and a repair go on behind damage: history ends there,
//!   and each damage is a finding. A repair also seals every epoch behind its last object, so that
//!   no writer of the past goes on behind what the repair gives up.
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use block::{Buf, Error, ErrorKind, Planted};
use format::objvol::{
    Identity, Manifest, Place, SEAL_BYTES, SEGMENTS, Seal, SegmentHead, SegmentObject, WINDOW_MAX,
    manifest_name, parse_place_name, place_name,
};

use crate::found::FoundCheckpoint;
use crate::join::{Pending, join_all};
use crate::planted::Fault;
use crate::requests::{Creation, Denial, Requests};

/// How often history is read from the beginning because something went meanwhile. Chosen: a writer
/// that deletes beside an opening is fenced by it after one time.
const ATTEMPTS_MAX: u32 = 16;

/// Heads of segments that are read at once. Chosen: the requests that `objstore` has under way at
/// most; at 50 ms each they are 1280 a second.
const HEADS_AT_ONCE: usize = 64;

/// What the history is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The volume is opened: damage ends the opening.
    TakeOver,
    /// Somebody wants to know what is there (OV-H8).
    Check,
    /// What damage has cut off is given up (OV-H8).
    Repair,
}

/// Who reads the history.
pub(crate) struct Reader<'a> {
    pub(crate) requests: &'a Requests,
    pub(crate) uuid: [u8; 16],
    /// Own epoch, of which the manifest exists; above all epochs for whoever only reads.
    pub(crate) epoch: u64,
    pub(crate) nonce: u64,
    pub(crate) volume_sectors: u64,
    pub(crate) checkpoint_bytes_max: u64,
    pub(crate) purpose: Purpose,
    /// Damage that the last reading went on behind (OV-H8).
    pub(crate) findings: RefCell<Vec<String>>,
    pub(crate) planted: Planted<Fault>,
}

/// What the map is made of.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) checkpoint: Option<FoundCheckpoint>,
    /// All segments behind it, in order.
    pub(crate) heads: Vec<SegmentHead>,
    /// The seals at which the epochs end, from the checkpoint on.
    pub(crate) seals: Vec<Place>,
    /// Segments that lie behind damage (OV-H8).
    pub(crate) cut_off: u64,
}

/// Why a reading did not end well.
pub(crate) enum Interruption {
    /// Something has gone that was there (OV-H6).
    Gone(String),
    /// Something is not as it was written: a reading may go on behind it (OV-H8).
    Damaged(String),
    Failed(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Interruption {
        Interruption::Failed(error)
    }
}

pub(crate) type Reading<T> = Result<T, Interruption>;

/// An epoch as it was found.
struct Epoch {
    number: u64,
    /// First sequence behind the checkpoint.
    first: u64,
    window: u64,
    objects: BTreeMap<u64, SegmentObject>,
    /// Names under which something unreadable lies.
    unreadable: BTreeSet<u64>,
}

/// How an epoch was read.
struct EpochRead {
    heads: Vec<SegmentHead>,
    /// The seal at its end.
    seal: Option<Place>,
    /// Damage lies at its end; and so many segments behind that.
    damaged: Option<u64>,
}

impl Epoch {
    /// The first sequence that is no segment, and the seal there, if there is one.
    fn end(&self) -> (u64, Option<Seal>) {
        let mut sequence = self.first;
        loop {
            match self.objects.get(&sequence) {
                Some(SegmentObject::Segment(_)) => sequence += 1,
                Some(SegmentObject::Seal(seal)) => return (sequence, Some(*seal)),
                None => return (sequence, None),
            }
        }
    }

    /// A segment of the epoch that proves that `hole` was a segment (OV-H4).
    fn evidence(&self, hole: u64) -> Option<String> {
        self.objects.iter().find_map(|(&sequence, object)| match object {
            SegmentObject::Segment(_) if sequence >= hole.saturating_add(self.window) => Some(
                format!("segment {sequence} exists, and at most {} are in flight", self.window),
            ),
            SegmentObject::Segment(head) if head.header.chain_durable >= hole => Some(format!(
                "segment {sequence} says that all up to {} were durable",
                head.header.chain_durable
            )),
            SegmentObject::Segment(_) | SegmentObject::Seal(_) => None,
        })
    }

    /// The first sequence behind all objects.
    fn behind_all(&self) -> u64 {
        let last = |of: Option<u64>| of.map_or(self.first, |sequence| sequence.saturating_add(1));
        let objects = last(self.objects.last_key_value().map(|(sequence, _)| *sequence));
        objects.max(last(self.unreadable.last().copied()))
    }

    /// Segments from `sequence` on.
    fn segments_from(&self, sequence: u64) -> u64 {
        let behind = self.objects.range(sequence..);
        let readable =
            behind.filter(|(_, object)| matches!(object, SegmentObject::Segment(_))).count();
        (readable + self.unreadable.range(sequence..).count()) as u64
    }

    fn into_heads(self, end: u64) -> Vec<SegmentHead> {
        let segment = |(sequence, object)| match object {
            SegmentObject::Segment(head) if sequence < end => Some(head),
            SegmentObject::Segment(_) | SegmentObject::Seal(_) => None,
        };
        self.objects.into_iter().filter_map(segment).collect()
    }
}

impl Reader<'_> {
    /// Seals every epoch below the own one and reads the history.
    pub(crate) async fn read(&self) -> Result<History, Error> {
        self.until_it_stays(async || self.try_read().await).await
    }

    /// OV-H6.
    pub(crate) async fn until_it_stays<T>(
        &self,
        read: impl AsyncFn() -> Reading<T>,
    ) -> Result<T, Error> {
        let mut gone = String::new();
        for _ in 0..ATTEMPTS_MAX {
            match read().await {
                Ok(found) => return Ok(found),
                Err(Interruption::Gone(what)) => gone = what,
                Err(Interruption::Damaged(what)) => {
                    let what = format!("{what}; `millpond check` shows all damage");
                    return Err(self.damage(what));
                }
                Err(Interruption::Failed(error)) => return Err(error),
            }
        }
        Err(self.damage(format!("{gone} was there and has gone, {ATTEMPTS_MAX} times")))
    }

    fn damage(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Io, format!("{}: {what}", self.requests.store_name()))
    }

    pub(crate) fn denied(&self, Denial { kind, why, .. }: &Denial) -> Error {
        Error::new(*kind, format!("{}: {why}", self.requests.store_name()))
    }

    /// Damage: a finding of a check and of a repair, the end of an opening.
    pub(crate) fn find(&self, what: String) -> Reading<()> {
        if self.purpose == Purpose::TakeOver {
            return Err(Interruption::Damaged(what));
        }
        self.findings.borrow_mut().push(what);
        Ok(())
    }

    /// `read`, or nothing if it is damaged, and this a finding.
    pub(crate) fn readable<T>(&self, read: Reading<T>) -> Reading<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(Interruption::Damaged(what)) => self.find(what).map(|()| None),
            Err(interruption) => Err(interruption),
        }
    }

    async fn try_read(&self) -> Reading<History> {
        self.findings.borrow_mut().clear();
        let checkpoint = self.newest_checkpoint().await?;
        let header = checkpoint.as_ref().map(|found| found.checkpoint.header);
        let from = header.map_or(Place::default(), |header| header.identity.place);
        let mut before = (from, header.map_or(0, |header| header.tail_hash));
        let mut history = History { checkpoint, ..History::default() };
        let mut is_cut = false;
        // OV-H1
        for number in from.epoch.max(1)..self.epoch {
            let first = if number == from.epoch { from.sequence + 1 } else { 1 };
            let window = self.readable(self.window_of(number).await)?;
            let window = window.unwrap_or(u64::from(WINDOW_MAX));
            let epoch = Epoch {
                number,
                first,
                window,
                objects: BTreeMap::new(),
                unreadable: BTreeSet::new(),
            };
            let EpochRead { heads, seal, damaged } = self.read_epoch(epoch, from).await?;
            for head in heads {
                // OV-H7
                if !is_cut && (head.header.parent, head.header.parent_hash) != before {
                    is_cut = true;
                    self.find(format!(
                        "segment {} follows {}, and the one before it is {}, or has changed",
                        head.identity.place, head.header.parent, before.0
                    ))?;
                }
                if is_cut {
                    history.cut_off += 1;
                    continue;
                }
                before = (head.identity.place, head.hash);
                history.heads.push(head);
            }
            is_cut |= damaged.is_some();
            history.cut_off += damaged.unwrap_or(0);
            history.seals.extend(seal);
        }
        Ok(history)
    }

    async fn window_of(&self, epoch: u64) -> Reading<u64> {
        let name = manifest_name(epoch);
        let object = self.requests.record(&name).await.map_err(|d| self.denied(&d))?;
        let object = object.ok_or_else(|| Interruption::Damaged(format!("{name} is missing")))?;
        let manifest = object.read(|object| Manifest::decode(object, &self.uuid, epoch));
        let manifest =
            manifest.map_err(|damage| Interruption::Damaged(format!("{name}: {damage}")))?;
        Ok(u64::from(manifest.window))
    }

    /// What lies under the name of a segment.
    pub(crate) async fn object_at(&self, place: Place) -> Reading<Option<SegmentObject>> {
        let name = place_name(SEGMENTS, place);
        let Some(head) = self.requests.head(&name).await.map_err(|d| self.denied(&d))? else {
            return Ok(None);
        };
        let object = head.read(|head| SegmentObject::decode(head, &self.uuid, place));
        let damaged = |damage| Interruption::Damaged(format!("{name}: {damage}"));
        Ok(Some(object.map_err(damaged)?))
    }

    /// Reads an epoch to its end, which it makes if there is none.
    async fn read_epoch(&self, mut epoch: Epoch, from: Place) -> Reading<EpochRead> {
        loop {
            self.read_objects(&mut epoch).await?;
            let (end, seal) = epoch.end();
            let place = Place::new(epoch.number, end);
            if seal.is_some() {
                let heads = epoch.into_heads(end);
                return Ok(EpochRead { heads, seal: Some(place), damaged: None }); // OV-H2
            }
            if epoch.unreadable.contains(&end) {
                return self.cut(epoch, end).await; // a finding of `read_objects`
            }
            if let Some(evidence) = self.evidence(&epoch, end).await? {
                // OV-H4
                if !self.planted.is(Fault::HoleSeenOnce)
                    && let Some(object) = self.object_at(place).await?
                {
                    epoch.objects.insert(end, object);
                    continue;
                }
                let newest = self.newest_checkpoint().await?;
                if newest.is_some_and(|n| n.checkpoint.header.identity.place > from) {
                    return Err(Interruption::Gone(format!("segment {place}")));
                }
                self.find(format!("segment {place} is missing: {evidence}"))?;
                return self.cut(epoch, end).await;
            }
            if self.purpose == Purpose::Check {
                return Ok(EpochRead { heads: epoch.into_heads(end), seal: None, damaged: None });
            }
            let is_newest = epoch.number + 1 == self.epoch;
            if self.planted.is(Fault::SkipSeal)
                || self.planted.is(Fault::SealNewestOnly) && !is_newest
            {
                return Ok(EpochRead { heads: epoch.into_heads(end), seal: None, damaged: None });
            }
            self.seal(&epoch, end).await?;
        }
    }

    /// OV-H8: history ends in the middle of an epoch, at `end`.
    async fn cut(&self, epoch: Epoch, end: u64) -> Reading<EpochRead> {
        if self.purpose == Purpose::Repair && !self.planted.is(Fault::SkipSeal) {
            self.seal(&epoch, end).await?;
            self.seal(&epoch, epoch.behind_all()).await?;
        }
        let damaged = Some(epoch.segments_from(end));
        Ok(EpochRead { heads: epoch.into_heads(end), seal: None, damaged })
    }

    /// Lists the epoch and reads the heads that are new.
    async fn read_objects(&self, epoch: &mut Epoch) -> Reading<()> {
        let last = place_name(SEGMENTS, Place::new(epoch.number, epoch.first - 1));
        let folder = &last[..last.len() - 16];
        let names = self.requests.list(folder, &last).await.map_err(|d| self.denied(&d))?;
        let mut new = Vec::new();
        for (name, _) in names {
            let Some(place) = parse_place_name(SEGMENTS, &name) else {
                self.find(format!("{name} is not an object of a volume"))?;
                continue;
            };
            let is_read = epoch.objects.contains_key(&place.sequence)
                || epoch.unreadable.contains(&place.sequence);
            if !is_read {
                new.push(place);
            }
        }
        for places in new.chunks(HEADS_AT_ONCE) {
            let read = |place: &Place| -> Pending<'_, _> { Box::pin(self.object_at(*place)) };
            let objects = join_all(places.iter().map(read).collect()).await;
            for (place, object) in places.iter().zip(objects) {
                let gone = || Interruption::Gone(format!("segment {place}"));
                match self.readable(object)? {
                    Some(object) => {
                        epoch.objects.insert(place.sequence, object.ok_or_else(gone)?);
                    }
                    None => {
                        epoch.unreadable.insert(place.sequence);
                    }
                }
            }
        }
        Ok(())
    }

    /// OV-H4: what proves that a free name of the epoch was a segment.
    async fn evidence(&self, epoch: &Epoch, hole: u64) -> Reading<Option<String>> {
        if self.planted.is(Fault::HoleIsEnd) {
            return Ok(None);
        }
        if let Some(evidence) = epoch.evidence(hole) {
            return Ok(Some(evidence));
        }
        let last = place_name(SEGMENTS, Place::new(epoch.number, u64::MAX));
        let later = self.requests.list(SEGMENTS, &last).await.map_err(|d| self.denied(&d))?;
        for (name, bytes) in later {
            // Nearly all are told apart by their length.
            if let Some(place) = parse_place_name(SEGMENTS, &name)
                && bytes != SEAL_BYTES as u64
                && let Some(Some(SegmentObject::Segment(_))) =
                    self.readable(self.object_at(place).await)?
            {
                return Ok(Some(format!("segment {place} was written after the epoch had ended")));
            }
        }
        Ok(None)
    }

    /// OV-H3: puts seals under 2W names from the first free one on, where nothing is.
    async fn seal(&self, epoch: &Epoch, first: u64) -> Reading<()> {
        let mut seals: Vec<Pending<'_, Result<Creation, Denial>>> = Vec::new();
        for sequence in first..first.saturating_add(2 * epoch.window) {
            if epoch.objects.contains_key(&sequence) {
                continue;
            }
            let place = Place::new(epoch.number, sequence);
            let identity = Identity { uuid: self.uuid, place, nonce: self.nonce };
            let seal = Seal { identity, by_epoch: self.epoch };
            let (name, object) = (place_name(SEGMENTS, place), Buf::copy_of(&seal.encode()));
            seals
                .push(Box::pin(async move { self.requests.put(&name, &object, SEAL_BYTES).await }));
        }
        for outcome in join_all(seals).await {
            // Own, or somebody else's: the next listing says what counts.
            outcome.map_err(|d| self.denied(&d))?;
        }
        Ok(())
    }
}
