// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `SnapshotDevice`: a snapshot as a block device that takes no writes.
//!
//! Invariants
//! - OV-SD1 It writes nothing to the store, and needs nobody: the writer of the volume may be at
//!   work, or have gone, and does not learn of it.
//! - OV-SD2 The list of snapshots is that of the newest checkpoint that counts (OV-H5). What has
//!   gone while it was read is looked for again: a snapshot that is not in the list any more was
//!   deleted, and from then on every read fails with ESTALE; one that is in the list is damaged.
use std::cell::Cell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, Bufs, Error, ErrorKind, Limits, Op, Opener, Reservation, Sector, Status,
};
use format::objvol::{
    CHECKPOINTS, Checkpoint, Manifest, SECTOR, Snapshot, StoredCheckpoint, VOLUME_SECTORS_MAX,
    place_name,
};

use crate::checkpoint_size::{checkpoint_bytes_max, too_long};
use crate::config::OpenOptions;
use crate::history::Purpose;
use crate::log::Log;
use crate::map::ENTRY_BYTES;
use crate::open::Opening;
use crate::read::{copy_fetched, read_memory};
use crate::read_ahead::ReadAhead;
use crate::requests::Whole;
use crate::snapshot::check_snapshot_name;
use crate::store::ObjectStore;
use crate::volume;

/// How often the list is read again because the checkpoint of a snapshot has gone. Chosen: each
/// time somebody has deleted the snapshot and made another one of that name.
const ATTEMPTS_MAX: u32 = 16;

/// What the reads of a snapshot share.
struct Source {
    opening: Opening,
    manifest: Manifest,
    snapshot: Snapshot,
    log: Log,
    ahead: Rc<ReadAhead>,
    _memory: Reservation,
    is_deleted: Cell<bool>,
}

/// See the module.
pub struct SnapshotDevice {
    source: Rc<Source>,
    limits: Limits,
}

/// The limits of a snapshot of this size.
pub(crate) fn limits(capacity: Sector) -> Limits {
    Limits {
        discard_granularity_bytes: 0,
        write_zeroes: false,
        volatile_cache: false,
        survives_kill: true,
        ..volume::limits(capacity)
    }
}

/// The snapshots that the newest checkpoint lists, by name.
async fn listed(opening: &Opening, manifest: &Manifest) -> Result<Vec<Snapshot>, Error> {
    // A writer may have made it larger since.
    let manifest = Manifest { volume_sectors: VOLUME_SECTORS_MAX, ..manifest.clone() };
    let reader = opening.reader(&manifest, u64::MAX, Purpose::TakeOver);
    reader.find_snapshots().await
}

/// The snapshots of the volume in `store`, by name. Nothing is written, and the volume may be open
/// elsewhere.
///
/// # Errors
/// `NotFound` where there is no volume; `Io` for damage; `Denied` if the store refuses.
pub async fn snapshots(
    store: Rc<dyn ObjectStore>,
    options: &OpenOptions,
) -> Result<Vec<Snapshot>, Error> {
    let opening = Opening::new(store, options.clone());
    let manifest = opening.newest_manifest().await?;
    listed(&opening, &manifest).await
}

/// The checkpoint of a snapshot (OV-K4) with the memory that it takes, or why it is none; `None`:
/// it is not there.
pub(crate) async fn whole_checkpoint(
    opening: &Opening,
    uuid: [u8; 16],
    snapshot: &Snapshot,
) -> Result<Option<Result<(Checkpoint, Option<Reservation>), String>>, Error> {
    let (place, sectors) = (snapshot.place, snapshot.volume_sectors);
    let most = checkpoint_bytes_max(sectors, opening.options.map_memory);
    let decode = move |object: &[u8]| StoredCheckpoint::decode(object, &uuid, place, sectors);
    let found = opening.requests.decoded(&place_name(CHECKPOINTS, place), most, decode).await;
    Ok(found.map_err(|d| opening.denied(&d))?.map(|found| match found {
        Whole::Decoded(Ok(StoredCheckpoint::Whole(checkpoint)), memory) => Ok((checkpoint, memory)),
        Whole::Decoded(Ok(StoredCheckpoint::Increment(_)), _) => {
            Err("it has not the whole map".to_owned())
        }
        Whole::Decoded(Err(damage), _) => Err(damage.to_string()),
        Whole::TooLong(bytes) => Err(too_long(bytes, most)),
    }))
}

fn missing(opening: &Opening, name: &str, there: &[Snapshot]) -> Error {
    let store = opening.requests.store_name();
    let names: Vec<&str> = there.iter().map(|snapshot| &*snapshot.name).collect();
    let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let text = format!("{store}: there is no snapshot {name}; there are: {there}");
    Error::new(ErrorKind::NotFound, text)
}

impl SnapshotDevice {
    /// Opens a snapshot of the volume in `store` (OV-SD1). Of the options counts what concerns
    /// reading.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume or snapshot; `Invalid` for a wrong name or another
    /// size than the options have; `Io` for damage; `Denied` if the store refuses.
    pub async fn open(
        store: Rc<dyn ObjectStore>,
        name: &str,
        options: &OpenOptions,
    ) -> Result<Rc<SnapshotDevice>, Error> {
        check_snapshot_name(name)?;
        let opening = Opening::new(store, options.clone());
        let manifest = opening.newest_manifest().await?;
        for _ in 0..ATTEMPTS_MAX {
            let there = listed(&opening, &manifest).await?;
            let Some(snapshot) = there.iter().find(|snapshot| snapshot.name == name) else {
                return Err(missing(&opening, name, &there));
            };
            let has = Sector(snapshot.volume_sectors);
            if let Some(wanted) = options.sectors.filter(|wanted| *wanted != has) {
                let store = opening.requests.store_name();
                let text = format!("{store}: snapshot {name} has {has} sectors, not {wanted}");
                return Err(Error::invalid(text));
            }
            let object_name = place_name(CHECKPOINTS, snapshot.place);
            let whole = whole_checkpoint(&opening, manifest.identity.uuid, snapshot).await?;
            let Some(found) = whole else { continue }; // OV-SD2
            let (checkpoint, _decoding) =
                found.map_err(|why| opening.damage(format!("{object_name}: {why}")))?;
            let bytes = checkpoint.extents.len() as u64 * ENTRY_BYTES + options.read_ahead;
            let what = format_args!("the map of snapshot {name}, and read_ahead");
            let memory = reactor::memory().reserve(bytes, what)?;
            let mut log = Log::new(0, options.planted);
            log.load(&checkpoint).await;
            opening.requests.set_patience(None);
            let (snapshot, is_deleted) = (snapshot.clone(), Cell::new(false));
            let ahead = ReadAhead::new(opening.requests.clone(), options.read_ahead);
            let source = Rc::new(Source {
                opening,
                manifest,
                snapshot,
                log,
                ahead,
                _memory: memory,
                is_deleted,
            });
            return Ok(Rc::new(SnapshotDevice { source, limits: limits(has) }));
        }
        Err(opening.damage(format!("snapshot {name} is listed, and its checkpoint has gone")))
    }

    /// What it is a snapshot of.
    pub fn snapshot(&self) -> &Snapshot {
        &self.source.snapshot
    }

    /// A read has found that the snapshot was deleted.
    pub fn is_deleted(&self) -> bool {
        self.source.is_deleted.get()
    }

    /// Entries of its map.
    pub(crate) fn extents(&self) -> u64 {
        self.source.log.extents() as u64
    }

    /// Why the store refuses, if it does.
    pub(crate) fn denial(&self) -> Option<String> {
        self.source.opening.requests.denial()
    }

    /// Why the last request to it has no outcome, until one has one again.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.source.opening.requests.last_failure()
    }
}

impl Source {
    async fn read(&self, opener: Opener, start: u64, bufs: &Bufs) -> Result<(), Status> {
        if self.is_deleted.get() {
            return Err(Status::Stale);
        }
        let end = start + (bufs.len_bytes() / SECTOR) as u64;
        self.ahead.follow(opener, &(start..end), &self.log);
        let missing = read_memory(&self.log, start..end, bufs);
        if missing.is_empty() {
            return Ok(());
        }
        let Some(fetched) = self.ahead.fetch(&missing).await? else {
            // OV-SD2
            let there = listed(&self.opening, &self.manifest).await.map_err(|_| Status::Io)?;
            if there.contains(&self.snapshot) {
                return Err(Status::Io);
            }
            self.is_deleted.set(true);
            return Err(Status::Stale);
        };
        copy_fetched(&missing, &fetched, start, bufs);
        Ok(())
    }

    async fn serve(&self, bio: &Bio) -> Result<(), Status> {
        match bio.op {
            Op::Read => self.read(bio.opener, bio.sector.0, &bio.bufs).await,
            Op::Flush => Ok(()),
            Op::Write | Op::Discard | Op::WriteZeroes => Err(Status::ReadOnly),
        }
    }
}

impl BlockDevice for SnapshotDevice {
    fn name(&self) -> &str {
        self.source.opening.requests.store_name()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn is_stale(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        let source = self.source.clone();
        reactor::spawn(async move {
            let served = source.serve(&bio).await;
            bio.complete(served.into());
        });
    }
}

block::debug_as!(SnapshotDevice, s => "SnapshotDevice({}, {:?})", s.name(), s.source.snapshot);
