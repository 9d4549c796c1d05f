// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Persistence: what was flushed is there after a crash, and everything after a clean end.
//!
//! ```text
//!   changed slots ──commit, evict──▶ unit ─▶ unit ─▶ unit ─▶ (place reserved)      the chain
//!                                      │       objects, packed
//!   images: slot ─▶ its newest object ◀┘
//!       └──checkpoint──▶ map areas A, B in turn ──▶ superblock: (area, where the chain goes on)
//! ```
//!
//! A unit holds what slots have become, and the place of the unit after it. Opening loads the
//! newest checkpoint and follows the chain from there: as far as units are whole and linked. Bytes
//! are in `docs/format/zram.md`, reasons in `docs/decisions/0017-zram-persist.md`.
//!
//! Invariants
//! - ZR-PS1 FLUSH and FUA complete when every unit with what they cover, and every unit before
//!   those, is durable. Cost of a lone one: one write and one flush of the device.
//! - ZR-PS2 A page leaves memory only when the unit that holds it is durable.
//! - ZR-PS3 An object's block is free only when the unit that supersedes the object is durable, and
//!   the blocks of a unit only when a checkpoint after it is. So what can be replayed is there.
//! - ZR-PS4 A superblock names a checkpoint when its map, and every unit whose objects are in it,
//!   is durable.
//! - ZR-PS5 After a failed unit or flush nothing is promised any more: commits and evictions fail,
//!   memory goes on to be read and written.
//! - ZR-PS6 Media that are not ours, or hold what can't be read, are refused and left as they are.
mod bits;
mod chain;
mod check;
mod checkpoint;
mod commit;
mod evict;
mod gate;
mod image;
mod media;
mod open;
mod replay;
mod tidy;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{Error, ErrorKind, Op, Status};
use format::zram::{Geometry, Superblock};
use reactor::WaitList;

use crate::mutation::Mutation;
use crate::shard::Shard;

pub(crate) use gate::Gate;
pub(crate) use media::{Media, prepare, refuse_persistent};
pub(crate) use open::open;

use bits::Bits;
use chain::Chain;
use commit::Ticket;
use image::{Image, Images};
use tidy::Moving;

/// Persistence of one shard.
pub(crate) struct Persist {
    geometry: Geometry,
    superblock: RefCell<Superblock>,
    images: RefCell<Images>,
    /// Slots that differ from their image.
    dirty: RefCell<Bits>,
    chain: RefCell<Chain>,
    tickets: RefCell<Vec<Rc<Ticket>>>,
    committing: Cell<bool>,
    checkpointing: Cell<bool>,
    /// Slots have got images that only the checkpoint which runs makes durable.
    absorbing: Cell<bool>,
    tidying: Cell<bool>,
    /// The unit from which on it may be tidied again.
    tidy_from: Cell<u64>,
    moving: RefCell<Moving>,
    /// Slots that are as their image, and dirty for tidying only.
    anew: RefCell<Bits>,
    /// The first error after which nothing is promised any more (ZR-PS5).
    failed: Cell<Option<Status>>,
    /// A unit is written, the chain may go on, a checkpoint or commit has ended, it has failed.
    changed: WaitList,
    mutation: Mutation,
}

impl Persist {
    /// A slot is not as its image any more.
    pub(crate) fn changed(&self, slot: u32) {
        self.dirty.borrow_mut().insert(slot);
        self.anew.borrow_mut().remove(slot);
    }

    /// Slots that are not as the last unit says.
    pub(crate) fn dirty(&self) -> u32 {
        self.dirty.borrow().len()
    }

    /// What went wrong, if nothing is promised any more.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failed.get()
    }

    fn health(&self) -> Result<(), Status> {
        self.failed.get().map_or(Ok(()), Err)
    }

    fn mutation(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn image(&self, slot: u32) -> Image {
        self.images.borrow().get(slot)
    }
}

impl Shard {
    fn persist(&self) -> &Persist {
        self.persist.as_ref().expect("only of a persistent device")
    }

    /// ZR-PS5
    fn persist_failed(&self, what: &str, status: Status) {
        let persist = self.persist();
        if persist.failed.get().is_none() {
            persist.failed.set(Some(status));
            self.note_error(format!("persist: {what}: {status}: nothing more is made durable"));
        }
        persist.changed.wake_all();
    }

    /// Every slot is as its image: what an open has found.
    pub(crate) fn adopt_images(&self) {
        let Some(persist) = &self.persist else { return };
        let images = persist.images.borrow();
        let accessed = self.clock();
        for nth in 0..images.len() {
            let image = images.get(nth);
            if !image.is_none() {
                self.adopt(nth, image.slot(accessed));
            }
        }
        let backing = self.backing.as_ref().expect("a persistent device has one");
        self.counters.bd_count.set(u64::from(backing.space().blocks().in_use()));
    }

    /// Everything is durable, and a checkpoint says so: the next open reads it and nothing else.
    pub(crate) async fn keep_all(self: &Rc<Self>) -> Result<(), Error> {
        let persist = self.persist();
        let committed = self.commit_all().await;
        persist.changed.wait_for(|| !persist.tidying.get()).await;
        let kept = match committed {
            // Whose chain is empty has been as the last checkpoint says.
            Ok(()) if persist.chain.borrow().held.is_empty() => Ok(()),
            Ok(()) => self.checkpoint().await,
            Err(status) => Err(status),
        };
        persist.changed.wait_for(|| !persist.checkpointing.get()).await;
        kept.map_err(|status| {
            let left = persist.dirty();
            let e = format!("persist: {left} pages are not on the backing device: {status}");
            let full = status == Status::NoSpace;
            let kind = if full { ErrorKind::NoSpace } else { ErrorKind::Io };
            Error::new(kind, e)
        })
    }

    /// A bio that was done in memory is durable too: `slots` are those that it has touched, also
    /// those of its edges.
    pub(crate) async fn commit_bio(self: &Rc<Self>, op: Op, slots: Range<u32>) -> Status {
        let done = match op {
            Op::Flush => self.commit_all().await,
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => self.commit(slots).await,
        };
        done.err().unwrap_or(Status::Ok)
    }

    /// One thing less lies in these blocks.
    fn unuse(&self, blocks: Range<u32>) {
        let backing = self.backing.as_ref().expect("a persistent device has one");
        let gone = blocks.map(|block| u64::from(backing.unuse(block))).sum();
        self.counters.bd_count.sub(gone);
    }

    /// One thing more lies in these blocks.
    fn use_one(&self, blocks: Range<u32>) {
        let backing = self.backing.as_ref().expect("a persistent device has one");
        let mut taken = backing.space().blocks();
        let before = taken.in_use();
        blocks.for_each(|block| taken.use_one(block));
        self.counters.bd_count.add(u64::from(taken.in_use() - before));
    }
}
