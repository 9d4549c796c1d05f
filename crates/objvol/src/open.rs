// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making and opening a volume.
//!
//! ```text
//!   owner record ─▶ manifest of the next epoch ─▶ seals, history ─▶ owner record ─▶ first segment
//!   ours, or clean     put-if-absent: from here      (history.rs)       (attach.rs)
//!   or take_over       on it is our epoch
//! ```
//!
//! Invariants
//! - OV-O1 The manifest of an epoch is created by put-if-absent, and epochs have no gaps: each has
//!   one writer, and every writer that was ever there is an epoch below.
//! - OV-O2 Everything that decides (checkpoints, segments, seals) is read after the own manifest
//!   is durable: from then on no earlier writer deletes (OV-G2).
//! - OV-O3 A volume of another host is opened only with `take_over`, or when its owner had closed
//!   it. The own owner record is durable before the first request is served.
//! - OV-O4 A prefix in which something else lies is refused, and nothing is written to it.
//! - OV-O5 When everything has been read, a look shows that the own epoch is still the newest. If
//!   it is not, a later writer may have deleted what the reading missed, and the map may be wrong;
//!   if it is, nobody has deleted anything meanwhile (OV-G2).
//! - OV-O6 A store that creates the same object twice has no conditional writes, and is refused
//!   before anything of the volume is written (`probe`).
//! - OV-O7 A volume grows by an opening: the manifest of its epoch has the new size, and decides
//!   with one request both who writes and how much. No epoch has less than the one before, so each
//!   record and checkpoint of the past lies within.
//! - OV-O8 The manifest of a writer that may write increments has a version that older programs
//!   refuse, before they take the volume or repair it.
//! - OV-O9 Before the first request is served, manifest and owner record are read back, and have
//!   the own nonce: no probe proves that a store never lets two writers create one object.
//! - OV-O10 What later programs have said in manifest and owner record, and this one may ignore, is
//!   in none that it writes. Where it may not, it refuses before it takes the epoch.
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Error, ErrorKind, Planted};
use format::objvol::{
    CHECKPOINTS, Identity, MANIFESTS, Manifest, OWNERS, Owner, OwnerState, PROBES, Place,
    RecordedCache, SEGMENTS, VOLUME_SECTORS_MAX, manifest_name, parse_manifest_name,
    parse_place_name, place_name,
};
use reactor::WaitList;

use crate::checkpoint_size::checkpoint_bytes_max;
use crate::config::{Geometry, OpenOptions, OtherSize};
use crate::history::{History, Purpose, Reader};
use crate::log::Log;
use crate::owner::{CacheDecision, FoundOwner, OwnerRecord};
use crate::planted::Fault;
use crate::probe::probe;
use crate::read_ahead::ReadAhead;
use crate::requests::{Creation, Denial, Requests, denied, put_whole};
use crate::shared::Shared;
use crate::store::ObjectStore;

/// How often an opening tries the next epoch because somebody else was first.
const RACES_MAX: u32 = 16;

fn random_16() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&reactor::random().to_le_bytes());
    bytes[8..].copy_from_slice(&reactor::random().to_le_bytes());
    bytes
}

/// Makes an empty volume under a prefix where nothing is.
///
/// # Errors
/// `Invalid` for a geometry that is not allowed; `Exists` if something lies there; `NotSupported`
/// for a store without conditional writes; `Denied` if the store refuses. It waits out an outage.
pub async fn create(
    store: Rc<dyn ObjectStore>,
    geometry: &Geometry,
    options: &OpenOptions,
) -> Result<(), Error> {
    geometry.check()?;
    options.check()?;
    let requests = Requests::new(store, options);
    let place = Place::new(1, 0);
    let manifest = Manifest {
        identity: Identity { uuid: random_16(), place, nonce: reactor::random() },
        volume_sectors: geometry.sectors.0,
        opened_at: options.opened_at,
        segment_bytes: geometry.segment_bytes,
        window: geometry.window,
        lineage: random_16(),
        host: options.host.clone(),
        has_increments: false,
        later: None,
    };
    let denied = |denial: Denial| denied(&requests, &denial);
    let mut there = requests.list("", "").await.map_err(denied)?;
    there.retain(|(name, _)| !name.starts_with(PROBES)); // of an opening that was cut off
    if let Some((name, _)) = there.first() {
        let text = format!(
            "{}: something lies there, {name}: a volume takes an empty prefix",
            requests.store_name()
        );
        return Err(Error::new(ErrorKind::Exists, text)); // OV-O4
    }
    probe(&requests, options).await?;
    match put_whole(&requests, &manifest_name(1), &manifest.encode()).await.map_err(denied)? {
        Creation::Own => {}
        Creation::Other(_) => return Err(made_meanwhile(&requests)),
    }
    let there = requests.record(&manifest_name(1)).await.map_err(denied)?;
    let is_own = there.is_some_and(|there| there.read(|there| there == manifest.encode()));
    if is_own { Ok(()) } else { Err(made_meanwhile(&requests)) } // OV-O9
}

fn made_meanwhile(requests: &Requests) -> Error {
    let text = format!("{}: a volume was made there meanwhile", requests.store_name());
    Error::new(ErrorKind::Exists, text)
}

/// The manifests, as they are listed.
pub(crate) type Manifests = Vec<(String, u64)>;

/// What lies under a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing: a volume may be made there.
    Nothing,
    /// A volume.
    Volume,
    /// Something else: the name of its first object.
    Other(String),
}

/// Looks what lies under a prefix; it writes nothing (OV-O4).
///
/// # Errors
/// `Denied` if the store refuses, `Io` if it does not answer for as long as `options` allow.
pub async fn contents(
    store: Rc<dyn ObjectStore>,
    options: &OpenOptions,
) -> Result<Contents, Error> {
    look(store, options).await.map(|(contents, _)| contents)
}

/// As [`contents`], with the manifests, which an opening then need not list again.
pub(crate) async fn look(
    store: Rc<dyn ObjectStore>,
    options: &OpenOptions,
) -> Result<(Contents, Manifests), Error> {
    let requests = Requests::new(store, options);
    let denied = |denial: Denial| denied(&requests, &denial);
    let manifests = requests.list(MANIFESTS, "").await.map_err(denied)?;
    if !manifests.is_empty() {
        return Ok((Contents::Volume, manifests));
    }
    let there = requests.list("", "").await.map_err(denied)?;
    let other = there.into_iter().map(|(name, _)| name).find(|name| !name.starts_with(PROBES));
    Ok((other.map_or(Contents::Nothing, Contents::Other), Manifests::new()))
}

/// An opening under way, or a look at a volume.
pub(crate) struct Opening {
    pub(crate) requests: Rc<Requests>,
    pub(crate) options: OpenOptions,
    nonce: u64,
    /// The manifests of a listing that nobody has used yet; empty: none.
    listed: RefCell<Manifests>,
}

impl Opening {
    pub(crate) fn new(store: Rc<dyn ObjectStore>, options: OpenOptions) -> Opening {
        let requests = Requests::new(store, &options);
        Opening { requests, options, nonce: reactor::random(), listed: RefCell::default() }
    }

    pub(crate) fn damage(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Io, format!("{}: {what}", self.requests.store_name()))
    }

    pub(crate) fn denied(&self, denial: &Denial) -> Error {
        denied(&self.requests, denial)
    }

    /// The newest manifest.
    pub(crate) async fn newest_manifest(&self) -> Result<Manifest, Error> {
        let mut names = self.listed.take();
        if names.is_empty() {
            names = self.requests.list(MANIFESTS, "").await.map_err(|d| self.denied(&d))?;
        }
        for ((name, _), epoch) in names.iter().zip(1..) {
            if parse_manifest_name(name) != Some(epoch) {
                // OV-O1
                let what = format!("{name} is there, and {} is not", manifest_name(epoch));
                return Err(self.damage(what));
            }
        }
        let epoch = names.len() as u64;
        if epoch == 0 {
            let text = format!("{}: there is no volume", self.requests.store_name());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let name = manifest_name(epoch);
        let object = self.requests.record(&name).await.map_err(|d| self.denied(&d))?;
        let object = object.ok_or_else(|| self.damage(format!("{name} has gone")))?;
        object.read(|object| {
            let decoded = Manifest::volume_uuid(object)
                .and_then(|uuid| Manifest::decode(object, &uuid, epoch));
            decoded.map_err(|damage| self.damage(format!("{name}: {damage}")))
        })
    }

    /// The newest owner record whose name comes after `after`.
    pub(crate) async fn newest_owner(
        &self,
        uuid: &[u8; 16],
        after: &str,
    ) -> Result<FoundOwner, Error> {
        let names = self.requests.list(OWNERS, after).await.map_err(|d| self.denied(&d))?;
        let Some((name, _)) = names.last() else {
            return Ok(FoundOwner { name: String::new(), owner: None });
        };
        let place = parse_place_name(OWNERS, name)
            .ok_or_else(|| self.damage(format!("{name} is not an object of a volume")))?;
        let object = self.requests.record(name).await.map_err(|d| self.denied(&d))?;
        let object = object.ok_or_else(|| self.damage(format!("{name} has gone")))?;
        let owner = object.read(|object| Owner::decode(object, uuid, place));
        let owner = owner.map_err(|damage| self.damage(format!("{name}: {damage}")))?;
        Ok(FoundOwner { name: name.clone(), owner: Some(owner) })
    }

    /// OV-O3.
    fn check_owner(&self, found: &FoundOwner) -> Result<(), Error> {
        let Some(owner) = &found.owner else { return Ok(()) };
        let is_ours = owner.host == self.options.host || owner.state == OwnerState::Clean;
        if is_ours || self.options.take_over {
            return Ok(());
        }
        let text = format!(
            "{}: host {} has the volume open, or died with it (epoch {}); `take_over` takes it",
            self.requests.store_name(),
            owner.host,
            owner.identity.place.epoch
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// What becomes of the cache that is recorded (OV-A5).
    fn decide(&self, newest: &Manifest, found: &FoundOwner, purpose: Purpose) -> CacheDecision {
        let recorded = found.cache().cloned();
        let is_given_up = |cache: &RecordedCache| self.options.without_cache == Some(cache.uuid);
        let (given_up, kept) = match recorded {
            Some(cache) if is_given_up(&cache) => (Some(cache), None),
            other => (None, other),
        };
        let is_kept = given_up.is_none() || self.options.planted.is(Fault::LineageKept);
        let is_new = !is_kept || purpose == Purpose::Repair;
        let lineage = if is_new { random_16() } else { newest.lineage };
        CacheDecision { kept, given_up, lineage }
    }

    /// OV-A1: whether the newest record still names the cache that `found` names, now that the own
    /// manifest is durable.
    async fn is_cache_still(&self, uuid: &[u8; 16], found: &FoundOwner) -> Result<bool, Error> {
        if self.options.planted.is(Fault::OwnerReadOnce) {
            return Ok(true);
        }
        let later = self.newest_owner(uuid, &found.name).await?;
        Ok(later.owner.is_none() || later.cache() == found.cache())
    }

    /// Whether the newest record says that this host has the volume: for a planted fault.
    async fn is_recorded(&self, uuid: &[u8; 16]) -> Result<bool, Error> {
        let owner = self.newest_owner(uuid, "").await?.owner;
        let is_ours =
            |owner: Owner| owner.host == self.options.host && owner.state == OwnerState::Attached;
        Ok(owner.is_some_and(is_ours))
    }

    /// Makes the next epoch our own; returns its manifest (OV-O1), and what becomes of the cache
    /// that is recorded.
    async fn take_epoch(&self, purpose: Purpose) -> Result<(Manifest, CacheDecision), Error> {
        let mut has_epoch = false;
        for _ in 0..RACES_MAX {
            let newest = self.newest_manifest().await?;
            let volume_sectors = self.size_of_epoch(&newest)?;
            let uuid = newest.identity.uuid;
            let found = self.newest_owner(&uuid, "").await?;
            self.check_writable(&newest, &found)?;
            if !has_epoch {
                self.check_owner(&found)?;
            }
            let decision = self.decide(&newest, &found, purpose);
            let place = Place::new(newest.identity.place.epoch + 1, 0);
            let manifest = Manifest {
                identity: Identity { place, nonce: self.nonce, ..newest.identity },
                opened_at: self.options.opened_at,
                lineage: decision.lineage,
                host: self.options.host.clone(),
                volume_sectors,
                has_increments: true, // OV-O8
                later: None,
                ..newest
            };
            let name = manifest_name(place.epoch);
            if self.options.planted.is(Fault::GrowInMemory) {
                let old = Manifest { volume_sectors: newest.volume_sectors, ..manifest.clone() };
                let put = put_whole(&self.requests, &name, &old.encode()).await;
                put.map_err(|d| self.denied(&d))?;
                return Ok((manifest, decision));
            }
            let put = put_whole(&self.requests, &name, &manifest.encode()).await;
            if let Creation::Own = put.map_err(|d| self.denied(&d))? {
                if self.is_cache_still(&uuid, &found).await? {
                    return Ok((manifest, decision));
                }
                has_epoch = true;
            }
        }
        let text = format!("{}: others open the volume all the time", self.requests.store_name());
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// OV-O10.
    fn check_writable(&self, newest: &Manifest, found: &FoundOwner) -> Result<(), Error> {
        let epoch = newest.identity.place.epoch;
        let owner = found.owner.as_ref().map_or(Ok(()), Owner::check_writable);
        let of_manifest = newest.check_writable().map_err(|why| (manifest_name(epoch), why));
        let checked = of_manifest.and(owner.map_err(|why| (found.name.clone(), why)));
        checked.map_err(|(name, why)| self.damage(format!("{name}: {why}; nothing was changed")))
    }

    /// The size of the volume in the epoch after this one (OV-O7).
    fn size_of_epoch(&self, newest: &Manifest) -> Result<u64, Error> {
        let has = newest.volume_sectors;
        let wanted = self.options.sectors.map_or(has, |wanted| wanted.0);
        match self.options.other_size {
            OtherSize::Grows if (has..=VOLUME_SECTORS_MAX).contains(&wanted) => Ok(wanted),
            OtherSize::MayBeLarger if wanted <= has => Ok(has),
            OtherSize::Grows | OtherSize::MayBeLarger | OtherSize::Refused => {
                let store = self.requests.store_name();
                match wanted.cmp(&has) {
                    Ordering::Equal => Ok(has),
                    Ordering::Greater => Err(Error::invalid(format!(
                        "{store}: the volume has {has} sectors, not {wanted}: `millpond resize` \
                         makes it larger while it is in use"
                    ))),
                    Ordering::Less => Err(Error::invalid(format!(
                        "{store}: the volume has {has} sectors, not {wanted}: it may have been \
                         resized, and does not become smaller"
                    ))),
                }
            }
        }
    }

    /// OV-O5: fails if a later epoch exists.
    async fn check_newest(&self, epoch: u64) -> Result<(), Error> {
        if self.options.planted.is(Fault::OpenUnlooked) {
            return Ok(());
        }
        let own = manifest_name(epoch);
        let later = self.requests.list(MANIFESTS, &own).await.map_err(|d| self.denied(&d))?;
        let Some((name, _)) = later.last() else { return Ok(()) };
        let text = format!(
            "{}: taken over while it was opened as epoch {epoch}, by {name}",
            self.requests.store_name()
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// A reader of the history below `epoch`.
    pub(crate) fn reader(&self, manifest: &Manifest, epoch: u64, purpose: Purpose) -> Reader<'_> {
        Reader {
            requests: &self.requests,
            uuid: manifest.identity.uuid,
            epoch,
            nonce: self.nonce,
            volume_sectors: manifest.volume_sectors,
            checkpoint_bytes_max: checkpoint_bytes_max(
                manifest.volume_sectors,
                self.options.map_memory,
            ),
            purpose,
            findings: RefCell::default(),
            planted: self.options.planted,
        }
    }

    /// Seals and reads what was there before (OV-O2).
    async fn read_history(&self, manifest: &Manifest, purpose: Purpose) -> Result<History, Error> {
        let reader = self.reader(manifest, manifest.identity.place.epoch, purpose);
        let history = reader.read().await;
        // OV-O5: also when it has failed, since what is missing may have been deleted.
        self.check_newest(manifest.identity.place.epoch).await?;
        let history = history?;
        if self.options.planted.is(Fault::DeleteSeals) {
            for seal in &history.seals {
                let name = place_name(SEGMENTS, *seal);
                self.requests.delete(&name).await.map_err(|d| self.denied(&d))?;
            }
        }
        Ok(history)
    }
}

/// Opens a volume for reading and writing: takes it over from whoever had it.
///
/// # Errors
/// `NotFound` where there is no volume; `Invalid` for another size; `Busy` if it belongs to another
/// host (OV-O3); `Io` for damage, which is then left as it is; `Denied` if the store refuses. It
/// waits out an outage.
pub(crate) async fn open(
    store: Rc<dyn ObjectStore>,
    options: OpenOptions,
    purpose: Purpose,
) -> Result<Rc<Shared>, Error> {
    open_listed(store, options, purpose, Manifests::new()).await
}

/// The same, with the manifests of a listing that may be old: if somebody was faster, the next
/// attempt lists them again (OV-O1).
pub(crate) async fn open_listed(
    store: Rc<dyn ObjectStore>,
    options: OpenOptions,
    purpose: Purpose,
    listed: Manifests,
) -> Result<Rc<Shared>, Error> {
    options.check()?;
    let planted: Planted<Fault> = options.planted;
    let opening = Opening { listed: RefCell::new(listed), ..Opening::new(store, options) };
    probe(&opening.requests, &opening.options).await?;
    let (manifest, cache) = opening.take_epoch(purpose).await?;
    let epoch = manifest.identity.place.epoch;
    let history = opening.read_history(&manifest, purpose).await?;
    let mut log = Log::new(epoch, planted);
    log.restore(&history).await;
    if purpose == Purpose::Repair {
        log.go_on_from_nothing(); // OV-RP2
    }
    let names = opening.requests.list(CHECKPOINTS, "").await.map_err(|d| opening.denied(&d))?;
    let places = names.iter().filter_map(|(name, _)| parse_place_name(CHECKPOINTS, name));
    let checkpoints = places.filter(|place| place.epoch < epoch).collect();
    let is_record_kept =
        planted.is(Fault::OwnerRecordKept) && opening.is_recorded(&manifest.identity.uuid).await?;
    let Opening { requests, options, .. } = opening;
    let shared = Rc::new(Shared {
        ahead: ReadAhead::new(requests.clone(), options.read_ahead),
        requests,
        manifest,
        options,
        log: RefCell::new(log),
        changed: WaitList::new(),
        fence: RefCell::default(),
        is_fence_read: Cell::default(),
        is_closing: Cell::default(),
        has_given_up: Cell::default(),
        tasks: Cell::default(),
        checkpointed: Cell::default(),
        is_checkpointing: Cell::default(),
        checkpoints: RefCell::new(checkpoints),
        garbage: RefCell::new(VecDeque::new()),
        is_collection_behind: Cell::default(),
        unreadable: RefCell::default(),
        owner: OwnerRecord::new(cache),
    });
    // OV-O3
    if is_record_kept {
        shared.owner.is_settled.set(true);
    } else {
        shared.put_host(OwnerState::Attached).await?;
    }
    shared.check_records().await?; // OV-O9
    shared.requests.set_patience(None);
    shared.start();
    Ok(shared)
}
