// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of the owner record: which host has the volume open, and which write cache above may
//! hold what the volume does not have.
//!
//! ```text
//!   record of the volume   none ── attach ─▶ names the cache ── release ─▶ none
//!                                             │        ▲  flush, then the record
//!   changes are taken from   anybody          the cache while it is there, else nobody: ReadOnly
//! ```
//!
//! Every opening writes the record again, with the cache that the newest one named; so does the end
//! of an opening, which says that the host is gone.
//!
//! Invariants
//! - OV-A1 A cache is attached when a record that names it is durable, and a look afterwards has
//!   shown that the own epoch is the newest. An opening reads the newest record after its manifest
//!   is durable. So either the opening sees the cache, or the cache sees the opening and
//!   acknowledges nothing.
//! - OV-A2 While the newest record names a cache, the volume is changed only while that cache is
//!   there; garbage collection and snapshots change nothing that is read.
//! - OV-A3 A record that names no cache any more is written when everything that had completed is
//!   durable. Two caches are never recorded at once: the second is refused.
//! - OV-A4 A record of which nobody knows whether it is in the store counts as there and as not
//!   there: another one is durable before the cache goes on.
//!   So is the end of an opening that has given up on its record: the next opening writes its own,
//!   in a later epoch.
//! - OV-A5 Whoever opens the volume without the cache that is recorded (`without_cache`), and
//!   whoever repairs it, has a new lineage in the manifest, before anything changes. The lineage is
//!   part of the identity with which a cache compares what it holds.
//! - OV-A6 A change of the record waits no longer than the patience of the options for a store that
//!   does not work. Then it fails, and its record is one of OV-A4; one that was not looked behind
//!   (OV-A1) is so, too.
use std::rc::Rc;

use block::{CacheAbove, Error, ErrorKind, Status};
use format::objvol::{
    DEVICE_BYTES_MAX, Identity, Manifest, OWNERS, Owner, OwnerState, Place, RecordedCache,
    manifest_name, place_name,
};

use crate::owner::{hex, identity_text, missing_cache};
use crate::planted::Fault;
use crate::requests::{Creation, denied, put_whole};
use crate::shared::Shared;

/// While it lives, nobody else changes the record.
struct RecordTurn<'a>(&'a Shared);

impl Drop for RecordTurn<'_> {
    fn drop(&mut self) {
        self.0.owner.is_busy.set(false);
        self.0.changed.wake_all();
    }
}

/// Where a cache device is: the longest beginning that a record has room for.
fn place_of(host: &str, device: &str) -> String {
    let mut place = format!("{host}:{device}");
    while place.len() > DEVICE_BYTES_MAX {
        place.pop();
    }
    place
}

impl Shared {
    /// OV-A2: `ReadOnly` while the cache that is recorded is not there.
    pub(crate) fn check_changes(&self) -> Result<(), Status> {
        let is_refused = self.owner.is_reserved() && !self.has_fault(Fault::ChangeWithoutCache);
        if is_refused { Err(Status::ReadOnly) } else { Ok(()) }
    }

    fn has_fault(&self, fault: Fault) -> bool {
        self.options.planted.is(fault)
    }

    /// Which volume this is, and which of its histories.
    pub(crate) fn identity(&self) -> String {
        identity_text(&self.uuid(), &self.manifest.lineage)
    }

    async fn owner_turn(&self) -> RecordTurn<'_> {
        self.changed.wait_for(|| !self.owner.is_busy.get()).await;
        self.owner.is_busy.set(true);
        RecordTurn(self)
    }

    fn error(&self, kind: ErrorKind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("{}: {what}", self.requests.store_name()))
    }

    /// Writes the next owner record of this epoch.
    async fn put_owner(
        &self,
        state: OwnerState,
        cache: Option<RecordedCache>,
    ) -> Result<(), Error> {
        let owner = &self.owner;
        owner.sent.set(owner.sent.get() + 1);
        owner.is_settled.set(false);
        let place = Place::new(self.epoch(), owner.sent.get());
        let record = Owner {
            later: None,
            identity: Identity { uuid: self.uuid(), place, nonce: self.nonce() },
            cache: cache.clone(),
            state,
            host: self.options.host.clone(),
        };
        let requests = self.requests.within(self.options.patience); // OV-A6
        let put = put_whole(&requests, &place_name(OWNERS, place), &record.encode()).await;
        match put.map_err(|d| denied(&requests, &d))? {
            Creation::Own => {
                *owner.recorded.borrow_mut() = cache;
                owner.is_settled.set(true);
                Ok(())
            }
            Creation::Other(_) => {
                let what = format!("somebody else writes as epoch {}", self.epoch());
                Err(self.error(ErrorKind::Io, what))
            }
        }
    }

    /// The record of an opening, or of its end.
    pub(crate) async fn put_host(&self, state: OwnerState) -> Result<(), Error> {
        let _turn = self.owner_turn().await;
        self.put_owner(state, self.owner.recorded()).await
    }

    /// OV-O9.
    pub(crate) async fn check_records(&self) -> Result<(), Error> {
        let (uuid, nonce, requests) = (self.uuid(), self.nonce(), &self.requests);
        let place = Place::new(self.epoch(), self.owner.sent.get());
        let mut names = vec![manifest_name(place.epoch)];
        names.extend((place.sequence > 0).then(|| place_name(OWNERS, place)));
        for name in names {
            let object = requests.record(&name).await.map_err(|d| denied(requests, &d))?;
            let own = object.and_then(|object| {
                object.read(|object| {
                    let manifest = Manifest::decode(object, &uuid, place.epoch);
                    let owner = || Owner::decode(object, &uuid, place).map(|owner| owner.identity);
                    manifest.map(|manifest| manifest.identity).or_else(|_| owner()).ok()
                })
            });
            if own.is_none_or(|own| own.nonce != nonce) {
                let what = format!(
                    "{name} is not what this opening has written: somebody else opened the volume \
                     at the same moment, and the store let both. Such a store is for one daemon"
                );
                return Err(self.error(ErrorKind::Busy, what));
            }
        }
        Ok(())
    }

    /// See `block::CacheRecord::attach`; `now` is for people.
    pub(crate) async fn attach(&self, cache: &CacheAbove, now: u64) -> Result<(), Error> {
        let _turn = self.owner_turn().await;
        self.check_fence().map_err(|_| self.fenced_error())?;
        if cache.origin != self.identity() {
            let what = format!(
                "the write cache {} on {} belongs to {}, and this is {}: its volume was opened \
                 without it, or repaired; nothing was changed",
                hex(&cache.uuid),
                cache.device,
                cache.origin,
                self.identity()
            );
            return Err(self.error(ErrorKind::Invalid, what));
        }
        if self.options.without_cache == Some(cache.uuid) {
            let what = format!(
                "the table gives up the write cache {}, which is the one on {}: take \
                 `without_cache` out of it first",
                hex(&cache.uuid),
                cache.device
            );
            return Err(self.error(ErrorKind::Invalid, what));
        }
        match self.owner.recorded() {
            Some(other) if other.uuid != cache.uuid => {
                let what = format!(
                    "the write cache {} on {} is not the one that belongs to the volume: {}",
                    hex(&cache.uuid),
                    cache.device,
                    missing_cache(&other)
                );
                return Err(self.error(ErrorKind::Busy, what));
            }
            Some(_) if self.owner.is_settled.get() || self.has_fault(Fault::UnsettledKept) => {}
            Some(_) | None => {
                let recorded = self.record(cache, now).await;
                let what = "the write cache above is not recorded, and must not go on";
                recorded.map_err(|e| e.within(what))?;
            }
        }
        self.owner.is_attached.set(true);
        Ok(())
    }

    /// OV-A1.
    async fn record(&self, cache: &CacheAbove, now: u64) -> Result<(), Error> {
        let device = place_of(&self.options.host, &cache.device);
        let recorded = RecordedCache { uuid: cache.uuid, attached_at: now.max(1), device };
        if self.has_fault(Fault::AttachUnrecorded) {
            *self.owner.recorded.borrow_mut() = Some(recorded);
            return Ok(());
        }
        self.put_owner(OwnerState::Attached, Some(recorded)).await?;
        if self.has_fault(Fault::AttachUnlooked) {
            return Ok(());
        }
        let requests = self.requests.within(self.options.patience);
        match self.look_with(&requests).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.fenced_error()),
            Err(denial) => {
                self.owner.is_settled.set(self.has_fault(Fault::UnlookedKept)); // OV-A6
                Err(denied(&requests, &denial))
            }
        }
    }

    /// See `block::CacheRecord::release`.
    pub(crate) async fn release(self: &Rc<Self>, uuid: [u8; 16]) -> Result<(), Error> {
        let _turn = self.owner_turn().await;
        if self.owner.recorded().is_none_or(|cache| cache.uuid != uuid) {
            return Ok(());
        }
        // OV-A3
        if !self.has_fault(Fault::ReleaseUnflushed) {
            let this = self.clone();
            let flushed = self.while_store_works(async move { this.flush().await }).await;
            let flushed = flushed.ok_or_else(|| {
                let why = self.requests.failure().unwrap_or_default();
                let what = "the store does not work, and the write cache above stays recorded";
                self.error(ErrorKind::Io, format!("{what}: {why}")) // OV-A6
            })?;
            flushed.map_err(|_| self.fenced_error())?;
        }
        self.owner.is_attached.set(false);
        self.put_owner(OwnerState::Attached, None).await?;
        self.check_fence().map_err(|_| self.fenced_error())
    }

    fn fenced_error(&self) -> Error {
        match &*self.fence.borrow() {
            Some(fence) => self.error(ErrorKind::Busy, fence),
            None => self.error(ErrorKind::Busy, "it is being closed"),
        }
    }
}
