// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoints: the map as of a segment, and with it the list of garbage.
//!
//! Invariants
//! - OV-K1 A checkpoint is the map at the moment when its last segment was closed, and is written
//!   when the chain is durable up to that segment: it never names what a crash may lose.
//! - OV-K2 Its place is in the epoch of its writer. So when a writer deletes what its checkpoint
//!   lists, no seal of an earlier take-over can come late and land before the place of the newest
//!   checkpoint, in a name that has become free (decision 0035).
use std::rc::Rc;

use block::{Buf, Status};
use format::objvol::{CHECKPOINTS, Checkpoint, Place, place_name};

use crate::planted::Fault;
use crate::requests::Creation;
use crate::shared::{GarbageList, Shared};

/// Bytes of a checkpoint that tell one from another: its head, which has the hash of the rest.
const HEAD: usize = 128;

impl Shared {
    /// Writes a checkpoint of everything that was written before the call, unless there is one, or
    /// this epoch has not written anything (OV-K2).
    pub(crate) async fn checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        self.changed.wait_for(|| !self.is_checkpointing.get()).await;
        self.is_checkpointing.set(true);
        let written = self.write_checkpoint().await;
        self.is_checkpointing.set(false);
        self.changed.wake_all();
        written
    }

    async fn write_checkpoint(self: &Rc<Self>) -> Result<(), Status> {
        let image = loop {
            self.close_gathered().await?;
            let log = self.log.borrow();
            let is_first = self.checkpointed.get() == 0 && log.tail() > Place::default();
            let is_planted = is_first && self.options.planted.is(Fault::CheckpointOfOtherEpoch);
            if log.next() - 1 == self.checkpointed.get() && !is_planted {
                return Ok(()); // OV-K2
            }
            if !log.is_gathering() {
                break log.image(self.uuid(), self.nonce()); // OV-K1: as of now
            }
        };
        let place = image.header.identity.place;
        let is_own = place.epoch == self.epoch();
        if is_own && !self.options.planted.is(Fault::CheckpointBeforeChain) {
            self.wait_for_chain(place.sequence).await?; // OV-K1
        }
        let object = Buf::copy_of(&image.encode(self.manifest.volume_sectors));
        let name = place_name(CHECKPOINTS, place);
        loop {
            match self.requests.put(&name, &object, HEAD).await {
                Ok(Creation::Own) => break,
                Ok(Creation::Other(_)) => {
                    // Nobody else writes checkpoints of this epoch.
                    self.fence_by(self.epoch()).await;
                    return Err(Status::Stale);
                }
                Err(denial) => self.wait_out(denial).await,
            }
            self.check_fence()?;
        }
        self.checkpointed.set(if is_own { place.sequence } else { 0 });
        self.list_garbage(&image, place);
        Ok(())
    }

    /// What the checkpoint makes garbage is deleted after the grace time.
    fn list_garbage(&self, image: &Checkpoint, place: Place) {
        let dead = image.segments.iter().filter(|segment| segment.live == 0);
        let before = std::mem::replace(&mut *self.checkpoints.borrow_mut(), vec![place]);
        self.garbage.borrow_mut().push_back(GarbageList {
            due: reactor::now() + self.options.grace,
            segments: dead.map(|segment| segment.place).collect(),
            checkpoints: before,
        });
    }
}
