// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: names for states of a volume that stay in the store.
//!
//! ```text
//!   log      … ■ ■ ■ P ■ ■ Q ■ …         P: the last segment of the state
//!   store          checkpoint P  ◀── "NAME is P", in the head of segment Q
//!                                        checkpoint Q and all later ones list NAME
//! ```
//!
//! Costs: two checkpoints, one with the whole map, and up to two segments without data if nothing
//! is written meanwhile.
//!
//! Invariants
//! - OV-S1 A snapshot exists if and only if its entry lies in the chain, and its checkpoint is in
//!   the store before the entry is sent. So seals decide: a writer that was taken over makes and
//!   deletes no snapshot, however late its requests land.
//! - OV-S2 The checkpoint of a snapshot has everything that had completed before the command was
//!   given, and is a prefix of the log.
//! - OV-S3 What a snapshot needs is no garbage: its checkpoint, and every segment from which the
//!   map as of `P` has data, which is each that lies at or before `P` and died behind it. The
//!   snapshots are those of the durable checkpoint that lists the garbage.
//! - OV-S4 From the checkpoint of a snapshot to its entry no other checkpoint is made: that one
//!   would list as garbage what the snapshot is about to need. Commands run one after the other.
//! - OV-S5 What only a deleted snapshot needed is garbage of the first checkpoint that does not
//!   list it, and goes by OV-G2. Nothing of it is deleted earlier.
//! - OV-S6 A command succeeds when a durable checkpoint lists its outcome: readers look there.
use std::rc::Rc;

use block::{Error, ErrorKind, Status};
use format::objvol::{
    Place, SNAPSHOT_NAME_BYTES_MAX, SNAPSHOTS_MAX, Snapshot, SnapshotChange, is_snapshot_name,
};

use crate::log::Scope;
use crate::planted::Fault;
use crate::shared::{GarbageList, Shared};
use crate::volume::Volume;

/// Refuses what can't be the name of a snapshot.
pub(crate) fn check_snapshot_name(name: &str) -> Result<(), Error> {
    if is_snapshot_name(name) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`{name}`: the name of a snapshot has 1 to {SNAPSHOT_NAME_BYTES_MAX} letters, digits and \
         -_., the first no - or ."
    )))
}

impl Volume {
    /// Makes a snapshot: everything that had completed before the call, and a prefix of what is
    /// written meanwhile. `created_at` is for people: seconds since 1970.
    ///
    /// # Errors
    /// `Invalid` for a name that is not allowed; `Exists` if there is a snapshot of that name;
    /// `Limit` if there are too many; `Busy` if the volume is fenced. It waits out an outage.
    pub async fn create_snapshot(&self, name: &str, created_at: u64) -> Result<Snapshot, Error> {
        check_snapshot_name(name)?;
        let shared = &self.shared;
        let _turn = shared.checkpoint_turn().await; // OV-S4
        shared.check_fence().map_err(|status| self.fenced(status))?;
        {
            let log = shared.log.borrow();
            if log.snapshots().contains_key(name) {
                let store = shared.requests.store_name();
                let text = format!("{store}: there is a snapshot {name} already");
                return Err(Error::new(ErrorKind::Exists, text));
            }
            if log.snapshots().len() >= SNAPSHOTS_MAX {
                let text = format!("there are {SNAPSHOTS_MAX} snapshots: delete one before");
                return Err(Error::new(ErrorKind::Limit, text));
            }
        }
        let made = shared.make_snapshot(name, created_at).await;
        made.map_err(|status| self.fenced(status))
    }

    /// Deletes a snapshot; its space is freed as other garbage is.
    ///
    /// # Errors
    /// `NotFound` if there is none of that name; `Busy` if the volume is fenced. It waits out an
    /// outage.
    pub async fn delete_snapshot(&self, name: &str) -> Result<(), Error> {
        let shared = &self.shared;
        let _turn = shared.checkpoint_turn().await;
        shared.check_fence().map_err(|status| self.fenced(status))?;
        let snapshot = shared.log.borrow().snapshots().get(name).cloned();
        let snapshot = snapshot.ok_or_else(|| {
            let text = format!("{}: there is no snapshot {name}", shared.requests.store_name());
            Error::new(ErrorKind::NotFound, text)
        })?;
        let deleted = shared.unmake_snapshot(snapshot).await;
        deleted.map_err(|status| self.fenced(status))
    }

    /// The snapshots, by name. One that is being made is among them.
    ///
    /// # Errors
    /// `Busy` if the volume is fenced.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        self.shared.check_fence().map_err(|status| self.fenced(status))?;
        Ok(self.shared.log.borrow().snapshots().values().cloned().collect())
    }
}

impl Shared {
    async fn make_snapshot(
        self: &Rc<Self>,
        name: &str,
        created_at: u64,
    ) -> Result<Snapshot, Status> {
        let is_layered = self.options.planted.is(Fault::SnapshotOfLayers);
        {
            let mut log = self.log.borrow_mut();
            let has_whole = log.layers().len() == 1 || is_layered;
            let is_checkpointed = log.next() - 1 == self.checkpointed.get();
            // OV-K2: a checkpoint needs a segment of this epoch, if an empty one. OV-K4: and one of
            // its own, if the newest one is an increment.
            if log.next() == 1 || is_checkpointed && !has_whole {
                log.gather_nothing();
            }
        }
        let scope = if is_layered { Scope::Next } else { Scope::Whole };
        let image = self.image(scope).await?; // OV-S2
        let newest = Place::new(self.epoch(), self.checkpointed.get());
        let place = image.as_ref().map_or(newest, |image| image.increment.header.identity.place);
        let snapshot = Snapshot {
            name: name.to_owned(),
            place,
            created_at,
            volume_sectors: self.manifest.volume_sectors,
        };
        let created = SnapshotChange::Created(snapshot.clone());
        let is_early = self.options.planted.is(Fault::SnapshotBeforeCheckpoint);
        if is_early {
            self.change_snapshot(created.clone()).await?;
        }
        if let Some(image) = image {
            self.put_checkpoint(image).await?;
        }
        if !is_early {
            self.change_snapshot(created).await?; // OV-S1
        }
        if !self.options.planted.is(Fault::AckSnapshotBeforeChain) {
            self.write_checkpoint().await?; // OV-S6
        }
        Ok(snapshot)
    }

    async fn unmake_snapshot(self: &Rc<Self>, snapshot: Snapshot) -> Result<(), Status> {
        let place = snapshot.place;
        let change = SnapshotChange::Deleted(snapshot);
        if self.options.planted.is(Fault::FreeBeforeDeletion) {
            self.delete_at_once(change, place);
            self.flush().await?;
        } else {
            self.change_snapshot(change).await?;
        }
        self.write_checkpoint().await // OV-S5, OV-S6
    }

    /// Enters a change into the log, and waits until the chain has it (OV-S1).
    async fn change_snapshot(self: &Rc<Self>, change: SnapshotChange) -> Result<(), Status> {
        self.wait_for_room(0).await?;
        self.log.borrow_mut().change_snapshot(change);
        if self.options.planted.is(Fault::AckSnapshotBeforeChain) {
            return Ok(());
        }
        self.flush().await
    }

    /// A planted fault.
    fn delete_at_once(&self, change: SnapshotChange, checkpoint: Place) {
        let retained = || {
            let uses = self.log.borrow().uses();
            uses.into_iter().filter(|segment| segment.is_retained).map(|segment| segment.place)
        };
        let before: Vec<Place> = retained().collect();
        self.log.borrow_mut().change_snapshot(change);
        let still: Vec<Place> = retained().collect();
        self.garbage.borrow_mut().push_front(GarbageList {
            due: reactor::now(),
            segments: before.into_iter().filter(|place| !still.contains(place)).collect(),
            checkpoints: vec![checkpoint],
        });
    }
}
