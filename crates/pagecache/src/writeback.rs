// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback: all ways in which dirty pages are written below.
//!
//! ```text
//!   flusher   background, expired, retry ──┐
//!   flush     FLUSH                        ├──▶ gather ──▶ ioends ──▶ base below
//!             FUA                        ──┘
//! ```
use std::rc::Rc;

use block::{BlockDevice, Sector, Status};
use reactor::{GroupCommit, OnDone};

use crate::flusher::Flusher;
use crate::ioends::Ioends;
use crate::store::Store;

/// See the module.
pub(crate) struct Writeback {
    pub(crate) ioends: Ioends,
    pub(crate) flusher: Flusher,
    /// FLUSHes that share a round.
    pub(crate) rounds: GroupCommit,
    /// Flushes of the device below.
    pub(crate) device_flush: GroupCommit,
}

impl Writeback {
    /// For the first `len` sectors of `below`. The end of each ioend goes to `on_done`.
    pub(crate) fn new(below: &Rc<dyn BlockDevice>, len: Sector, on_done: Rc<dyn OnDone>) -> Self {
        Writeback {
            ioends: Ioends::new(below, len, on_done),
            flusher: Flusher::new(),
            rounds: GroupCommit::default(),
            device_flush: GroupCommit::default(),
        }
    }

    /// An ioend has ended.
    pub(crate) fn ioend_ended(&self, store: &Store, status: Status, tag: u64) {
        let dirty_again = self.ioends.end(store, status, tag);
        self.flusher.ioend_ended(dirty_again);
        self.ioends.ended.wake_all();
        store.changed.wake_all();
    }

    /// A discard has ended, for which FLUSHes wait as for the ioend `number`.
    pub(crate) fn discard_ended(&self, number: u64) {
        self.ioends.sequence.end(number);
        self.flusher.discard_ended();
        self.ioends.ended.wake_all();
    }

    /// Waits until there may be memory: until something was written back or evicted. Fails when
    /// neither can happen.
    pub(crate) async fn wait_for_memory(&self, store: &Store) -> Result<(), Status> {
        let clean_in_use = || {
            let folios = store.folios.borrow();
            folios.iter().any(|(_, f)| f.pins > 0 && !f.dirty.any() && !f.writing.any())
        };
        if store.is_stuck() && !clean_in_use() {
            return Err(Status::Io);
        }
        self.wait_for_change(store).await;
        Ok(())
    }

    /// Waits until less may be dirty. Fails when the device refuses every write.
    pub(crate) async fn wait_for_room(&self, store: &Store) -> Result<(), Status> {
        self.wait_for_change(store).await;
        if store.is_full() && store.is_stuck() { Err(Status::Io) } else { Ok(()) }
    }

    /// Starts writeback, and waits for the next change of any kind. The caller looks again.
    async fn wait_for_change(&self, store: &Store) {
        self.flusher.request();
        let mut first = true;
        store.changed.wait_for(|| !std::mem::replace(&mut first, false)).await;
    }
}
