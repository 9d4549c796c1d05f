// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Shared`: what all tasks of an opened volume have in common, and how it is fenced.
//!
//! Invariants
//! - OV-F1 A volume that is fenced stays so: no request of it succeeds any more, reads neither.
//! - OV-F2 Whoever deletes or has been idle looks at the manifests first: one above the own epoch
//!   fences.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;

use block::{Buf, Nanos, Status};
use format::objvol::{
    MANIFESTS, Manifest, Place, SegmentObject, manifest_name, parse_manifest_name,
};
use reactor::WaitList;

use crate::config::OpenOptions;
use crate::log::Log;
use crate::owner::OwnerRecord;
use crate::read_ahead::ReadAhead;
use crate::requests::{Denial, Requests};

/// How often a volume looks whether somebody has taken it over. The longest time for which a fenced
/// volume may return old data.
pub(crate) const LOOK_EVERY: Nanos = Nanos::from_secs(5);

/// A background task notices so soon that the volume is being closed.
pub(crate) const PAUSE_STEP: Nanos = Nanos::from_secs(1);

/// Who has taken a volume over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Its epoch.
    pub epoch: u64,
    /// Its host; empty when its manifest could not be read.
    pub host: String,
    /// When it opened the volume, by its own clock: seconds since 1970.
    pub opened_at: u64,
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fenced by epoch {}, host {}, at {}", self.epoch, self.host, self.opened_at)
    }
}

/// Objects that may be deleted from a time on.
#[derive(Debug)]
pub(crate) struct GarbageList {
    pub(crate) due: Nanos,
    pub(crate) segments: Vec<Place>,
    pub(crate) checkpoints: Vec<Place>,
}

/// Segments that garbage collection could not read (OV-G5).
#[derive(Debug, Default)]
pub(crate) struct Unreadable {
    pub(crate) places: BTreeSet<Place>,
    /// So many were met since the volume was opened: those that were deleted since, too.
    pub(crate) met: u64,
    /// The newest of them, and why; for the operator.
    pub(crate) last: String,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) requests: Rc<Requests>,
    pub(crate) ahead: Rc<ReadAhead>,
    pub(crate) manifest: Manifest,
    pub(crate) options: OpenOptions,
    pub(crate) log: RefCell<Log>,
    /// Woken when a segment landed, when one was closed, and when the volume is fenced or closed.
    pub(crate) changed: WaitList,
    pub(crate) fence: RefCell<Option<Fence>>,
    /// The manifest of whoever has fenced it was read, or could not be.
    pub(crate) is_fence_read: Cell<bool>,
    pub(crate) is_closing: Cell<bool>,
    /// What tasks send after everything that counts is not waited for any more.
    pub(crate) has_given_up: Cell<bool>,
    /// Background tasks that have not ended.
    pub(crate) tasks: Cell<u32>,
    /// Sequence of the newest durable checkpoint of this epoch; 0: none.
    pub(crate) checkpointed: Cell<u64>,
    pub(crate) is_checkpointing: Cell<bool>,
    /// The newest durable checkpoint, and those before it that are not in a list of garbage.
    pub(crate) checkpoints: RefCell<Vec<Place>>,
    pub(crate) garbage: RefCell<VecDeque<GarbageList>>,
    /// Writers wait until more garbage was collected (OV-G4).
    pub(crate) is_collection_behind: Cell<bool>,
    pub(crate) unreadable: RefCell<Unreadable>,
    /// Who owns the volume, beside this host.
    pub(crate) owner: OwnerRecord,
}

impl Shared {
    pub(crate) fn epoch(&self) -> u64 {
        self.manifest.identity.place.epoch
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.manifest.identity.uuid
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.manifest.identity.nonce
    }

    /// `Stale` once the volume is fenced (OV-F1).
    pub(crate) fn check_fence(&self) -> Result<(), Status> {
        if self.fence.borrow().is_some() { Err(Status::Stale) } else { Ok(()) }
    }

    /// `Stale` also when a close has given up on what tasks still send.
    pub(crate) fn check_open(&self) -> Result<(), Status> {
        self.check_fence()?;
        if self.has_given_up.get() { Err(Status::Stale) } else { Ok(()) }
    }

    /// Whether [`Shared::check_open`] fails.
    pub(crate) fn is_over(&self) -> bool {
        self.is_fenced() || self.has_given_up.get()
    }

    /// The store does not work, and has everything that was acknowledged: a close does not wait for
    /// the rest (OV-R3).
    pub(crate) fn give_up(&self) {
        self.has_given_up.set(true);
        self.changed.wake_all();
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fence.borrow().is_some()
    }

    /// Somebody of a later epoch has the volume.
    pub(crate) async fn fence_by(&self, epoch: u64) {
        self.fence_with(&self.requests, epoch).await;
    }

    /// The same, with requests that may give up.
    async fn fence_with(&self, requests: &Requests, epoch: u64) {
        if self.is_fenced() {
            return;
        }
        // First, so that no request succeeds while the manifest is read.
        *self.fence.borrow_mut() = Some(Fence { epoch, host: String::new(), opened_at: 0 });
        self.changed.wake_all();
        let object = requests.record(&manifest_name(epoch)).await;
        let decode = |object: Buf| object.read(|o| Manifest::decode(o, &self.uuid(), epoch)).ok();
        if let Some(manifest) = object.ok().flatten().and_then(decode) {
            let Manifest { host, opened_at, .. } = manifest;
            *self.fence.borrow_mut() = Some(Fence { epoch, host, opened_at });
        }
        self.is_fence_read.set(true);
        self.changed.wake_all();
    }

    /// Another object lies where this opening wanted to put one.
    pub(crate) async fn fence_by_object(&self, there: &Buf, place: Place) {
        let object = there.read(|there| SegmentObject::decode(there, &self.uuid(), place));
        let epoch = match object {
            Ok(SegmentObject::Seal(seal)) => seal.by_epoch,
            // Nobody else writes segments of this epoch: a copy of this opening goes on elsewhere.
            Ok(SegmentObject::Segment(_)) | Err(_) => self.epoch(),
        };
        self.fence_by(epoch).await;
    }

    /// OV-F2: whether the own epoch is the newest; fences if not.
    pub(crate) async fn look(&self) -> bool {
        loop {
            match self.look_with(&self.requests).await {
                Ok(is_newest) => return is_newest,
                Err(denial) => self.wait_out(denial).await,
            }
            if self.is_closing.get() {
                return false;
            }
        }
    }

    /// The same, with requests that may give up.
    pub(crate) async fn look_with(&self, requests: &Requests) -> Result<bool, Denial> {
        let later = requests.list(MANIFESTS, &manifest_name(self.epoch())).await?;
        match later.last().and_then(|(name, _)| parse_manifest_name(name)) {
            Some(epoch) => {
                self.fence_with(requests, epoch).await;
                Ok(false)
            }
            None => Ok(!self.is_fenced()),
        }
    }

    /// As [`Requests::wait_out`].
    pub(crate) async fn wait_out(&self, denial: Denial) {
        self.requests.wait_out(denial).await;
    }

    /// Starts a task that ends when the volume is closed or fenced.
    pub(crate) fn spawn(self: &Rc<Self>, work: impl Future<Output = ()> + 'static) {
        self.tasks.set(self.tasks.get() + 1);
        let this = self.clone();
        reactor::spawn(async move {
            work.await;
            this.tasks.set(this.tasks.get() - 1);
            this.changed.wake_all();
        });
    }

    /// Sleeps, but no longer than the volume is open. Whether it still is.
    pub(crate) async fn pause(&self, time: Nanos) -> bool {
        let until = reactor::now() + time;
        while !self.is_closing.get() && !self.is_fenced() {
            let left = until.saturating_sub(reactor::now());
            if left == Nanos::ZERO {
                return true;
            }
            reactor::sleep(left.min(PAUSE_STEP)).await;
        }
        false
    }
}
