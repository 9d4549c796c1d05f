// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Persistence: flushed data survive a crash, and all data survive an orderly end.
//!
//! ```text
//!   changed slots ──commit, evict──▶ unit ─▶ unit ─▶ unit ─▶ (place reserved)      the chain
//!                                      │       objects, packed
//!   images: slot ─▶ its newest object ◀┘
//!       └──checkpoint──▶ map areas A, B in turn ──▶ superblock: (area, where the chain goes on)
//! ```
//!
//! A unit contains the new state of slots, and the place of the unit after it. An open loads the
//! newest checkpoint and follows the chain from there, as far as units are whole and linked. The
//! bytes are in `docs/format/zram.md`, the reasons in `docs/decisions/0017-zram-persist.md`.
//!
//! Invariants
//! - ZR-PS1 FLUSH and FUA complete when every unit with their data, and every unit before those, is
//!   durable. A lone one costs one write and one flush of the device.
//! - ZR-PS2 A page leaves memory only when the unit that contains it is durable.
//! - ZR-PS3 A block of an object is free only when the unit that supersedes the object is durable.
//!   A block of a unit is free only when a later checkpoint is. So everything that a replay reads
//!   is there.
//! - ZR-PS4 A superblock names a checkpoint only when its map, and every unit whose objects are in
//!   the map, is durable.
//! - ZR-PS5 After a failed unit or flush no promise holds any more: commits and evictions fail, and
//!   reads and writes of memory go on.
//! - ZR-PS6 A device with other data, or with data that cannot be read, is refused and not changed.
mod bits;
mod chain;
mod check;
mod checkpoint;
mod commit;
mod dirty_slots;
mod evict;
mod flush_queue;
mod image;
mod media;
mod open;
mod replay;
pub(crate) mod state;
mod tidy;
mod unit;
mod write_units;

use std::ops::Range;
use std::rc::Rc;

use block::{Error, ErrorKind, Op, Status};

use crate::backing::{Backing, Space};
use crate::failures::FailureKind;
use crate::part::Part;

pub(crate) use flush_queue::FlushQueue;
pub(crate) use media::{Media, prepare, refuse_persistent};
pub(crate) use open::open;

use state::Persist;

impl Part {
    fn persist(&self) -> &Persist {
        self.persist.as_ref().expect("only of a persistent device")
    }

    fn persistent_backing(&self) -> &Backing {
        self.backing.as_ref().expect("a persistent device has one")
    }

    fn space(&self) -> &Rc<Space> {
        self.persistent_backing().space()
    }

    /// ZR-PS5
    fn persist_failed(&self, what: &str, status: Status) {
        let persist = self.persist();
        if persist.fail(status) {
            let what = format!("persist: {what}: {status}: nothing more is made durable");
            self.note_failure(FailureKind::Persist, what);
        }
        persist.changed.wake_all();
    }

    /// Sets every slot to its image, as an open has found it.
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
        self.counters.bd_count.set(u64::from(self.space().blocks().in_use()));
    }

    /// Makes everything durable, with a checkpoint: the next open reads nothing else.
    pub(crate) async fn save_all(self: &Rc<Self>) -> Result<(), Error> {
        let persist = self.persist();
        let committed = self.commit_all().await;
        persist.changed.wait_for(|| !persist.tidy.running.get()).await;
        let saved = match committed {
            // Nothing has changed since the last checkpoint.
            Ok(()) if persist.chain.borrow().replay.is_empty() => Ok(()),
            Ok(()) => self.checkpoint().await,
            Err(status) => Err(status),
        };
        persist.changed.wait_for(|| !persist.checkpointing.get()).await;
        saved.map_err(|status| {
            let left = persist.dirty();
            let e = format!("persist: {left} pages are not on the backing device: {status}");
            let full = status == Status::NoSpace;
            let kind = if full { ErrorKind::NoSpace } else { ErrorKind::Io };
            Error::new(kind, e)
        })
    }

    /// Makes a bio durable that is done in memory. `slots` are all that it has touched, those of
    /// its edges too.
    pub(crate) async fn commit_bio(self: &Rc<Self>, op: Op, slots: Range<u32>) -> Status {
        let done = match op {
            Op::Flush => self.commit_all().await,
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes => self.commit(slots).await,
        };
        done.err().unwrap_or(Status::Ok)
    }

    /// One object or unit less lies in these blocks.
    fn unuse(&self, blocks: Range<u32>) {
        let backing = self.persistent_backing();
        let gone = blocks.map(|block| u64::from(backing.unuse(block))).sum();
        self.counters.bd_count.sub(gone);
    }

    /// One object or unit more lies in these blocks.
    fn use_one(&self, blocks: Range<u32>) {
        let mut taken = self.space().blocks();
        let before = taken.in_use();
        blocks.for_each(|block| taken.use_one(block));
        self.counters.bd_count.add(u64::from(taken.in_use() - before));
    }
}
