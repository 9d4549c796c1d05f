// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attachment: the origin's record of this cache (`block::CacheRecord`), where it keeps one. With
//! it nobody else changes the origin while the cache holds newer data.
//!
//! ```text
//!   open ─▶ attached ─ suspend, drop ─▶ left: recorded still ─ resume ─▶ attached
//!              └── holds nothing ─▶ released: not recorded any more ─ resume ─▶ attached
//! ```
//!
//! Invariants
//! - WC-OR1 The record names the cache, durably, before the cache serves a bio and before it writes
//!   to the origin.
//! - WC-OR2 The record ends only when the cache holds no block, dirty or clean: a clean copy would
//!   be old after the first change of the origin by somebody else.
//! - WC-OR3 A cache of which the origin has another identity than the cache has compared is not
//!   attached: neither its data nor its copies count.
//! - WC-OR4 A cache that is suspended, or dropped, has left.
//! - WC-OR5 A cache that takes another one's place is recorded after that is marked: a crash finds
//!   one of both that the origin accepts. If it can't be recorded then, it fails.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, CacheAbove, Error};

use crate::config::Config;
use crate::planted::Fault;

/// See the module.
pub(crate) struct Attachment {
    origin: Rc<dyn BlockDevice>,
    above: CacheAbove,
    is_attached: Cell<bool>,
    config: Config,
}

/// The identity of an origin that keeps a record; `None` where it keeps none. To be asked before
/// the cache compares it with its own (WC-OR3).
///
/// # Errors
/// `EBUSY` if the origin is not open.
pub(crate) fn recorded_identity(
    config: &Config,
    origin: &Rc<dyn BlockDevice>,
) -> Result<Option<String>, Error> {
    if origin.clone().cache_record().is_none() {
        return Ok(None);
    }
    let Some(identity) = origin.identity() else {
        return Err(Error::busy(format!(
            "origin {}: it is not open, and has to record this cache: resume it first",
            config.origin
        )));
    };
    Ok(Some(identity))
}

/// The error of a format that has no UUID.
///
/// # Errors
/// `EINVAL` if the origin keeps a record.
pub(crate) fn refuse_record(config: &Config, origin: &Rc<dyn BlockDevice>) -> Result<(), Error> {
    if origin.clone().cache_record().is_none() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "cache device {}: it holds a cache in the kernel's format, which has no UUID, and origin \
         {} takes only a cache that it can record; nothing was changed",
        config.cache, config.origin
    )))
}

impl Attachment {
    /// The attachment of the cache `uuid`, which has compared `identity` with its own; it is
    /// attached now, or later if another cache has the origin still.
    ///
    /// # Errors
    /// Those of [`Attachment::attach`].
    pub(crate) async fn begin(
        config: &Config,
        origin: &Rc<dyn BlockDevice>,
        identity: Option<String>,
        uuid: [u8; 16],
    ) -> Result<Option<Rc<Attachment>>, Error> {
        let Some(identity) = identity else { return Ok(None) };
        let above = CacheAbove { uuid, device: config.cache.clone(), origin: identity };
        let (origin, config) = (origin.clone(), config.clone());
        let this = Attachment { origin, above, is_attached: Cell::new(false), config };
        if !this.config.guard.is_late {
            this.attach().await?;
        }
        Ok(Some(Rc::new(this)))
    }

    /// Attaches the cache, unless it is attached.
    ///
    /// # Errors
    /// Why the origin does not take it.
    pub(crate) async fn attach(&self) -> Result<(), Error> {
        let Some(record) = self.origin.clone().cache_record() else { return Ok(()) };
        if self.is_attached.get() {
            return Ok(());
        }
        let attached = record.attach(self.above.clone());
        if self.config.planted.is(Fault::RecordedLate) {
            reactor::spawn(async move { drop(attached.await) });
        } else {
            attached.await.map_err(|e| e.within(format!("origin {}", self.config.origin)))?;
        }
        self.is_attached.set(true);
        Ok(())
    }

    /// WC-OR4.
    pub(crate) fn leave(&self) {
        if !self.is_attached.replace(false) {
            return;
        }
        if let Some(record) = self.origin.clone().cache_record() {
            record.leave(self.above.uuid);
        }
    }

    /// Ends the record. The cache holds nothing, and serves nobody before it is attached again.
    ///
    /// # Errors
    /// Why the record stays, or may have.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let Some(record) = self.origin.clone().cache_record() else { return Ok(()) };
        self.is_attached.set(false);
        let released = record.release(self.above.uuid).await;
        released.map_err(|e| e.within(format!("origin {}", self.config.origin)))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !block::crashing() {
            self.leave();
        }
    }
}
