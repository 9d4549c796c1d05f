// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check of a volume: what lies under its prefix, and what of it is damaged. It opens nothing.
//!
//! ```text
//!   manifest, owner ─▶ checkpoint, chain ─▶ map ─▶ is each segment there, and long enough?
//!                      (history.rs)                 └─ `Depth::Data`: do the checksums agree?
//! ```
//!
//! Invariants
//! - OV-CH1 A check writes nothing, and takes no epoch: whoever has the volume open goes on.
//! - OV-CH2 What a writer or its garbage collection has changed meanwhile is no damage: the check
//!   begins again if there is a newer checkpoint than the one that it began from.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Error, ErrorKind, Sector};
use format::checksum;
use format::objvol::{
    CHECKPOINTS, MANIFESTS, Manifest, OWNERS, Owner, PROBES, Place, SEAL_BYTES, SECTOR, SEGMENTS,
    Snapshot, parse_place_name, place_name,
};

use crate::config::OpenOptions;
use crate::history::{History, Purpose};
use crate::join::{Pending, join_all};
use crate::log::{Log, StoredExtent};
use crate::open::Opening;
use crate::owner::identity_text;
use crate::planted::Fault;
use crate::read::{Fetch, merge};
use crate::snapshot_device::whole_checkpoint;
use crate::store::ObjectStore;

/// How often a check begins again because the volume was changed meanwhile. Chosen: a writer of
/// 1 GiB a second writes a checkpoint each second, and a listing takes less.
const ATTEMPTS_MAX: u32 = 16;
/// Requests for data under way at once. Chosen: of 4 MiB each at 50 ms they are 640 MB/s.
const FETCHES_AT_ONCE: usize = 8;
/// Folders whose names are those of places or epochs.
const FOLDERS: [&str; 5] = [MANIFESTS, SEGMENTS, CHECKPOINTS, OWNERS, PROBES];

/// How much a check reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Manifests, the checkpoint, heads of segments, and names.
    Metadata,
    /// All live data, too.
    Data,
}

/// Sectors of the volume that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The first one.
    pub start: Sector,
    /// How many.
    pub len: Sector,
    /// Why.
    pub why: String,
}

/// Objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredObjects {
    /// Their number.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a check says of a snapshot: its data are looked for, and not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// What it is.
    pub snapshot: Snapshot,
    /// What of it is missing or unreadable.
    pub damage: Option<String>,
}

/// The checkpoint from which history goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// The last segment that its map includes.
    pub place: Place,
    /// Objects that it is made of: itself, and its layers.
    pub objects: u64,
}

/// What a check says of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing is damaged.
    Sound,
    /// It opens, and some sectors of it fail with an error until they are written again; or those
    /// of a snapshot do.
    Lossy,
    /// It does not open: a repair gives up what damage has cut off.
    Broken,
}

/// What lies under the prefix of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeReport {
    /// Drawn when the volume was made.
    pub uuid: [u8; 16],
    /// Its size.
    pub sectors: Sector,
    /// Bytes of a full segment.
    pub segment_bytes: u32,
    /// Epoch, host and time of the last opening: seconds since 1970, by the clock of that host.
    pub epoch: u64,
    /// See `epoch`.
    pub host: String,
    /// See `epoch`.
    pub opened_at: u64,
    /// Which cache's volume it is: a part of its identity.
    pub lineage: [u8; 16],
    /// The newest owner record; none before the first opening.
    pub owner: Option<Owner>,
    /// The newest checkpoint.
    pub checkpoint: Option<CheckpointReport>,
    /// Segments of history behind it.
    pub replayed: u64,
    /// The last segment of history.
    pub end: Place,
    /// Objects that are segments.
    pub segments: StoredObjects,
    /// Entries of the map.
    pub extents: u64,
    /// Bytes that it points to.
    pub live_bytes: u64,
    /// Bytes of data that were compared with their checksums.
    pub checked_bytes: u64,
    /// Why the volume does not open.
    pub damage: Vec<String>,
    /// Segments that lie behind that damage.
    pub cut_off: u64,
    /// What cannot be read.
    pub lost: Vec<LostRange>,
    /// By name.
    pub snapshots: Vec<SnapshotReport>,
    /// What is no damage, and should be known.
    pub notes: Vec<String>,
}

impl VolumeReport {
    /// The judgement.
    pub fn health(&self) -> Health {
        let is_complete = self.lost.is_empty() && !self.has_damaged_snapshot();
        match (self.damage.is_empty(), is_complete) {
            (false, _) => Health::Broken,
            (true, false) => Health::Lossy,
            (true, true) => Health::Sound,
        }
    }

    /// As [`crate::Volume::identity`].
    #[must_use]
    pub fn identity(&self) -> String {
        identity_text(&self.uuid, &self.lineage)
    }

    fn has_damaged_snapshot(&self) -> bool {
        self.snapshots.iter().any(|snapshot| snapshot.damage.is_some())
    }
}

/// Checks the volume in `store`. `progress` is called with the bytes of data that were compared,
/// and with those of all that will be.
///
/// # Errors
/// `NotFound` where there is no volume; `Io` if its manifests are damaged, or if it changes too
/// fast for a look; `Denied` if the store refuses, `Io` if it does not answer for as long as
/// `options` allow. Other damage is no error, but in the report.
pub async fn check(
    store: Rc<dyn ObjectStore>,
    options: &OpenOptions,
    depth: Depth,
    progress: &dyn Fn(u64, u64),
) -> Result<VolumeReport, Error> {
    let check = Check { opening: Opening::new(store, options.clone()), depth, progress };
    for _ in 0..ATTEMPTS_MAX {
        if let Some(report) = check.try_check().await? {
            return Ok(report);
        }
    }
    let text = format!("{}: the volume changes too fast for a check", check.name());
    Err(Error::new(ErrorKind::Io, text))
}

struct Check<'a> {
    opening: Opening,
    depth: Depth,
    progress: &'a dyn Fn(u64, u64),
}

impl Check<'_> {
    fn name(&self) -> &str {
        self.opening.requests.store_name()
    }

    async fn list(&self, folder: &str) -> Result<Vec<(String, u64)>, Error> {
        self.opening.requests.list(folder, "").await.map_err(|denial| self.opening.denied(&denial))
    }

    async fn newest_checkpoint_name(&self) -> Result<Option<String>, Error> {
        Ok(self.list(CHECKPOINTS).await?.pop().map(|(name, _)| name))
    }

    /// `None`: it was changed meanwhile (OV-CH2).
    async fn try_check(&self) -> Result<Option<VolumeReport>, Error> {
        let began_from = self.newest_checkpoint_name().await?;
        let manifest = self.opening.newest_manifest().await?;
        // All epochs are read, the newest one, too.
        let epochs_end = manifest.identity.place.epoch + 1;
        let reader = self.opening.reader(&manifest, epochs_end, Purpose::Check);
        let history = reader.read().await?;
        let damage = reader.findings.take();
        // It takes no segment, so that it needs no epoch.
        let mut log = Log::new(epochs_end, self.opening.options.planted);
        log.restore(&history).await;
        let mut report = self.summary(manifest, &history, &log, damage).await?;
        let lost = self.unreadable(&log, &mut report).await?;
        let is_damaged =
            !report.damage.is_empty() || !lost.is_empty() || report.has_damaged_snapshot();
        let is_believed = self.opening.options.planted.is(Fault::CheckOnce);
        if is_damaged && !is_believed && self.newest_checkpoint_name().await? != began_from {
            return Ok(None);
        }
        report.lost = lost;
        Ok(Some(report))
    }

    async fn summary(
        &self,
        manifest: Manifest,
        history: &History,
        log: &Log,
        damage: Vec<String>,
    ) -> Result<VolumeReport, Error> {
        let owner = self.opening.newest_owner(&manifest.identity.uuid, "").await?.owner;
        let live = log.uses().iter().map(|segment| u64::from(segment.live)).sum::<u64>();
        Ok(VolumeReport {
            uuid: manifest.identity.uuid,
            sectors: Sector(manifest.volume_sectors),
            segment_bytes: manifest.segment_bytes,
            epoch: manifest.identity.place.epoch,
            host: manifest.host,
            opened_at: manifest.opened_at,
            lineage: manifest.lineage,
            owner,
            checkpoint: history.checkpoint.as_ref().map(|found| CheckpointReport {
                place: found.checkpoint.header.identity.place,
                objects: found.layers.len() as u64,
            }),
            replayed: history.heads.len() as u64,
            end: log.tail(),
            segments: StoredObjects::default(),
            extents: log.extents() as u64,
            live_bytes: live * SECTOR as u64,
            checked_bytes: 0,
            damage,
            cut_off: history.cut_off,
            lost: Vec::new(),
            snapshots: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// What of the map cannot be read; fills in what the names say.
    async fn unreadable(
        &self,
        log: &Log,
        report: &mut VolumeReport,
    ) -> Result<Vec<LostRange>, Error> {
        let uses = log.uses();
        let live = uses.iter().filter(|segment| segment.live > 0);
        let wanted: Vec<(Place, u32)> =
            live.map(|segment| (segment.place, segment.sectors)).collect();
        let mut there = BTreeMap::new();
        for (name, bytes) in self.list("").await? {
            if !FOLDERS.iter().any(|folder| name.starts_with(folder)) {
                report.notes.push(format!("{name} is not an object of a volume"));
            } else if name.starts_with(PROBES) {
                report.notes.push(format!("{name} is left of an opening that was cut off"));
            } else if let Some(place) = parse_place_name(SEGMENTS, &name)
                && bytes != SEAL_BYTES as u64
            {
                report.segments.count += 1;
                report.segments.bytes += bytes;
                there.insert(place, bytes);
            }
        }
        let bad: BTreeMap<Place, String> = wanted
            .iter()
            .filter_map(|&(place, sectors)| Some((place, absence(&there, place, sectors)?)))
            .collect();
        for snapshot in log.snapshots().values() {
            let damage = self.snapshot_damage(snapshot, &report.uuid, &there).await?;
            report.snapshots.push(SnapshotReport { snapshot: snapshot.clone(), damage });
        }
        let bad_extents = match self.depth {
            Depth::Data => self.compare(log, &bad, report).await?,
            Depth::Metadata => BTreeSet::new(),
        };
        Ok(lost_ranges(log, report.sectors, &bad, &bad_extents))
    }

    /// What of a snapshot is missing or unreadable, its data aside.
    async fn snapshot_damage(
        &self,
        snapshot: &Snapshot,
        uuid: &[u8; 16],
        there: &BTreeMap<Place, u64>,
    ) -> Result<Option<String>, Error> {
        let name = place_name(CHECKPOINTS, snapshot.place);
        let Some(found) = whole_checkpoint(&self.opening, *uuid, snapshot).await? else {
            return Ok(Some(format!("{name} is missing")));
        };
        Ok(match found {
            Err(why) => Some(format!("{name}: {why}")),
            Ok((checkpoint, _memory)) => {
                let mut live = checkpoint.segments.iter().filter(|segment| segment.live > 0);
                live.find_map(|segment| absence(there, segment.place, segment.sectors))
            }
        })
    }

    /// The extents whose data do not agree with their checksums.
    async fn compare(
        &self,
        log: &Log,
        bad: &BTreeMap<Place, String>,
        report: &mut VolumeReport,
    ) -> Result<BTreeSet<StoredExtent>, Error> {
        let runs = log.pieces(0..report.sectors.0);
        let mut wanted: Vec<StoredExtent> = runs.iter().map(|(_, run)| log.stored(run)).collect();
        wanted.retain(|extent| !bad.contains_key(&extent.place));
        wanted.sort_unstable();
        wanted.dedup();
        let bytes_of = |extent: &StoredExtent| u64::from(extent.sectors) * SECTOR as u64;
        let total = wanted.iter().map(bytes_of).sum();
        let (mut found, mut rest) = (BTreeSet::new(), &wanted[..]);
        for fetches in merge(&wanted).chunks(FETCHES_AT_ONCE) {
            let mut compared: Vec<Pending<'_, _>> = Vec::new();
            for fetch in fetches {
                let (extents, behind) =
                    rest.split_at(rest.partition_point(|extent| fetch.has(extent)));
                compared.push(Box::pin(self.compare_fetch(*fetch, extents)));
                report.checked_bytes += extents.iter().map(bytes_of).sum::<u64>();
                rest = behind;
            }
            for wrong in join_all(compared).await {
                found.extend(wrong?);
            }
            (self.progress)(report.checked_bytes, total);
        }
        Ok(found)
    }

    async fn compare_fetch(
        &self,
        fetch: Fetch,
        extents: &[StoredExtent],
    ) -> Result<Vec<StoredExtent>, Error> {
        let name = place_name(SEGMENTS, fetch.place);
        let range = fetch.start * SECTOR as u64..fetch.end * SECTOR as u64;
        let data = self.opening.requests.get(&name, range).await;
        let data = data.map_err(|denial| self.opening.denied(&denial))?;
        let is_right = |extent: &StoredExtent, data: &[u8]| {
            let first = extent.at as usize - usize::try_from(fetch.start).unwrap_or(usize::MAX);
            let from = first * SECTOR;
            let data = data.get(from..from + usize::from(extent.sectors) * SECTOR);
            data.is_some_and(|data| checksum(data) == extent.crc)
        };
        let wrong = |data: &[u8]| {
            extents.iter().filter(|extent| !is_right(extent, data)).copied().collect()
        };
        Ok(data.map_or_else(|| extents.to_vec(), |data| data.read(wrong)))
    }
}

/// Why a segment of which data are needed can't be read.
fn absence(there: &BTreeMap<Place, u64>, place: Place, sectors: u32) -> Option<String> {
    let bytes = u64::from(sectors) * SECTOR as u64;
    match there.get(&place) {
        Some(has) if *has == bytes => None,
        Some(has) => Some(format!("segment {place} has {has} bytes, not {bytes}")),
        None => Some(format!("segment {place} is missing")),
    }
}

/// The runs of the map in bad segments and bad extents, neighbours joined.
fn lost_ranges(
    log: &Log,
    sectors: Sector,
    bad: &BTreeMap<Place, String>,
    bad_extents: &BTreeSet<StoredExtent>,
) -> Vec<LostRange> {
    let mut lost: Vec<LostRange> = Vec::new();
    for (start, run) in log.pieces(0..sectors.0) {
        let stored = log.stored(&run);
        let why = match bad.get(&stored.place) {
            Some(why) => why.clone(),
            None if bad_extents.contains(&stored) => {
                format!("segment {}: data do not agree with their checksum", stored.place)
            }
            None => continue,
        };
        let (start, len) = (Sector(start), Sector(u64::from(run.sectors)));
        match lost.last_mut() {
            Some(last) if last.start + last.len == start && last.why == why => {
                last.len += len;
            }
            _ => lost.push(LostRange { start, len, why }),
        }
    }
    lost
}
