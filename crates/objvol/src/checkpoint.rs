// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints: the map as of a segment, and with it the list of garbage.
//!
//! Invariants
//! - OV-K1 A checkpoint is the map at the moment when its last segment was closed, and is written
//!   when the chain is durable up to that segment: it never names what a crash may lose.
//! - OV-K2 Its place is in the epoch of its writer. So when a writer deletes what its checkpoint
//!   lists, no seal of an earlier take-over can come late and land before the place of the newest
//!   checkpoint, in a name that has become free (decision 0035).
//! - OV-K3 An increment is sent when all its layers are in the store, and a layer stays there as
//!   long as the newest durable checkpoint names it (decision 0048). What that one does not name no
//!   later one does.
//! - OV-K4 The checkpoint of a snapshot has the whole map: it needs no other.
use std::rc::Rc;

use block::{Buf, Status};
use format::objvol::{CHECKPOINTS, Layer, Place, place_name};

use crate::log::{Image, Scope};
use crate::planted::Fault;
use crate::requests::Creation;
use crate::shared::{GarbageList, Shared};

/// Bytes of a checkpoint that tell one from another: its head, which has the hash of the rest.
const HEAD: usize = 128;

impl Shared {
    /// Writes a checkpoint of everything that was written before the call, unless there is one, or
    /// this epoch has not written anything (OV-K2).
    pub(crate) async fn checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        let _turn = self.checkpoint_turn().await;
        self.write_checkpoint().await
    }

    /// Waits until nobody else writes a checkpoint; nobody does until the turn is dropped.
    pub(crate) async fn checkpoint_turn(self: &Rc<Self>) -> CheckpointTurn {
        self.changed.wait_for(|| !self.is_checkpointing.get()).await;
        self.is_checkpointing.set(true);
        CheckpointTurn { shared: self.clone() }
    }

    /// For whoever has the turn: writes a checkpoint if there is something new.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        match self.image(Scope::Next).await? {
            Some(image) => self.put_checkpoint(image).await,
            None => Ok(()),
        }
    }

    /// The map as of everything that was written before the call; `None` if the newest checkpoint
    /// has it.
    pub(crate) async fn image(self: &Rc<Self>, scope: Scope) -> Result<Option<Image>, Status> {
        loop {
            self.close_gathered().await?;
            let mut log = self.log.borrow_mut();
            let is_first = self.checkpointed.get() == 0 && log.tail() > Place::default();
            let is_planted = is_first && self.options.planted.is(Fault::CheckpointOfOtherEpoch);
            if log.next() - 1 == self.checkpointed.get() && !is_planted {
                return Ok(None); // OV-K2
            }
            if !log.is_gathering() {
                return Ok(Some(log.image(self.uuid(), self.nonce(), scope))); // OV-K1: as of now
            }
        }
    }

    /// Writes a checkpoint when its chain is in the store.
    pub(crate) async fn put_checkpoint(self: &Rc<Self>, image: Image) -> Result<(), Status> {
        let Image { increment, garbage } = image;
        let place = increment.header.identity.place;
        let is_own = place.epoch == self.epoch();
        if is_own && !self.options.planted.is(Fault::CheckpointBeforeChain) {
            self.wait_for_chain(place.sequence).await?; // OV-K1
        }
        let bytes = increment.encode(self.manifest.volume_sectors);
        let mut layers = increment.layers;
        layers.push(Layer::of(&bytes, place));
        let (object, name) = (Buf::copy_of(&bytes), place_name(CHECKPOINTS, place));
        loop {
            match self.requests.put(&name, &object, HEAD).await {
                Ok(Creation::Own) => break,
                Ok(Creation::Other(_)) => {
                    // Nobody else writes checkpoints of this epoch.
                    self.fence_by(self.epoch()).await;
                    return Err(Status::Stale);
                }
                Err(_) if self.is_closing.get() => {
                    self.give_up();
                    return Err(Status::Stale);
                }
                Err(denial) => self.wait_out(denial).await,
            }
            self.check_open()?;
        }
        self.checkpointed.set(if is_own { place.sequence } else { 0 });
        let is_snapshot =
            |at: &Place| increment.snapshots.iter().any(|snapshot| snapshot.place == *at);
        let is_layer = |at: &Place| layers.iter().any(|layer| layer.place == *at);
        let planted = self.options.planted;
        self.checkpoints.borrow_mut().push(place);
        // OV-S3: by the list of the checkpoint, which is durable.
        self.list_garbage(garbage, |at| {
            is_snapshot(at) && !planted.is(Fault::ForgetSnapshotCheckpoints)
                || is_layer(at) && !planted.is(Fault::ForgetLayers) // OV-K3
                || *at == place
        });
        self.log.borrow_mut().note_checkpoint(layers);
        Ok(())
    }

    /// What the newest checkpoint makes garbage is deleted after the grace time.
    fn list_garbage(&self, segments: Vec<Place>, is_needed: impl Fn(&Place) -> bool) {
        let mut checkpoints = self.checkpoints.borrow_mut();
        let before = std::mem::take(&mut *checkpoints);
        let (needed, garbage) = before.into_iter().partition(is_needed);
        *checkpoints = needed;
        self.garbage.borrow_mut().push_back(GarbageList {
            due: reactor::now() + self.options.grace,
            segments,
            checkpoints: garbage,
        });
    }
}

/// While it lives, nobody else writes a checkpoint.
pub(crate) struct CheckpointTurn {
    shared: Rc<Shared>,
}

impl Drop for CheckpointTurn {
    fn drop(&mut self) {
        self.shared.is_checkpointing.set(false);
        self.shared.changed.wake_all();
    }
}
