// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What others may do with the origin: the guard, and the origin's record of this cache.
use std::rc::Rc;

use block::{Error, Status, UnsavedBlocks};

use super::WriteCache;
use crate::events::io_failed;
use crate::guard::Guard;
use crate::planted::Fault;

impl WriteCache {
    /// The guard of the origin, if the cache is open and has one.
    fn guard(&self) -> Option<Rc<Guard>> {
        self.cache()?.guard.clone()
    }

    /// Takes the guard from the origin, if it has one, and ends the origin's record of the cache.
    /// The cache then holds nothing: a clean block would be older than what others write to the
    /// origin.
    pub(super) async fn release(&self) -> Result<(), Error> {
        let guard = self.guard();
        let attachment = self.attachment.borrow().clone();
        if guard.is_none() && attachment.is_none() {
            return Ok(());
        }
        if !self.has_fault(Fault::ReleasedHeld) {
            self.empty_for_release().await?;
        }
        if let Some(guard) = guard {
            // The origin takes no write of a cache that has left it (WC-OR4).
            if let Some(attachment) = &attachment {
                attachment.attach().await?;
            }
            if let Err(e) = guard.detach().await {
                attachment.iter().for_each(|attachment| attachment.leave());
                return Err(e);
            }
        }
        match attachment {
            Some(attachment) => attachment.release().await,
            None => Ok(()),
        }
    }

    /// See `block::Target::unsaved`.
    pub(super) fn unsaved_blocks(&self) -> Option<UnsavedBlocks> {
        let number = |name| self.attribute(name).ok()?.number();
        let config = self.config.borrow();
        Some(UnsavedBlocks {
            dirty: number("dirty_blocks")? + number("zero_blocks")?,
            failing: number("failing_blocks")?,
            unreadable: number("bad_blocks")?,
            in_memory: number("unwritten_blocks")?,
            block_bytes: u64::from(config.block_size),
            cache: config.cache.clone(),
            start: config.start_sector,
            origin: config.origin.clone(),
            copies: number("clean_blocks")?,
            ..UnsavedBlocks::default()
        })
    }

    /// See `block::Target::drop_copies`.
    pub(super) async fn drop_held_copies(&self) -> Result<(), Error> {
        if self.must_reread.get() {
            return Err(Error::busy("another table has opened it since it was suspended"));
        }
        match self.cache() {
            Some(cache) if !cache.is_stopping() => Err(self.in_use()),
            Some(cache) => cache.drop_copies().await.map_err(io_failed),
            None => Ok(()),
        }
    }

    /// Fails if the cache holds blocks, after what can be written back was.
    async fn empty_for_release(&self) -> Result<(), Error> {
        let Some(cache) = self.cache() else { return Ok(()) };
        // WC-RA5: what was read may be on its way to a slot still. A resume opens it again.
        cache.writeback.read_cache.is_closed.set(!self.has_fault(Fault::AdmitAfterFlush));
        if !cache.is_stopping() {
            cache.writeback.write_back_all().await?;
        }
        let c = cache.store.counts();
        // Not those that are being written: what was read does not enter any more.
        let held = c.dirty + c.clean + c.bad + c.old + c.zero;
        if held == 0 {
            return Ok(());
        }
        Err(Error::busy(format!(
            "writecache {0}: its cache device holds {held} blocks, so its origin is not given \
             back: `millpond message {0} 0 flush_on_suspend` empties it as the table is swapped, \
             `millpond uncache {0}` does all of it",
            self.name
        )))
    }

    /// Attaches the cache again, after a suspend or a release.
    pub(super) async fn attach_origin(&self) -> Result<(), Error> {
        let attachment = self.attachment.borrow().clone();
        match attachment {
            Some(attachment) => attachment.attach().await,
            None => Ok(()),
        }
    }

    /// WC-OR4.
    pub(super) fn leave_origin(&self) {
        if let Some(attachment) = &*self.attachment.borrow() {
            attachment.leave();
        }
    }

    /// The cache whose place this one takes has given the origin back, and is marked (WC-OR5).
    pub(super) async fn claim(&self) {
        if self.attach_origin().await.is_err() {
            if let Some(cache) = self.cache() {
                cache.store.fail(Status::ReadOnly);
            }
            return;
        }
        self.guard_origin().await;
    }

    /// Puts the guard on the origin, where it was taken away, or another cache had the origin.
    pub(super) async fn guard_origin(&self) {
        if let Some(guard) = self.guard() {
            guard.attach_again().await;
        }
    }
}
