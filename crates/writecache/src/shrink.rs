// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache is made smaller before its device is cut: offline, by the tool `shrink-cache`.
//!
//! ```text
//!   dirty blocks written back ─▶ clean ones dropped from the slots that go, durably
//!     ─▶ new metadata over these slots ─▶ superblock: the new layout counts
//! ```
//!
//! It may be stopped at any step: before the superblock the cache is the larger one, with fewer
//! blocks, and the next run goes on. `store::grow` has the order of what is written.
use std::rc::Rc;

use block::{Error, ErrorKind, Status};
use format::Geometry;

use crate::cache::Cache;
use crate::events::io_failed;
use crate::map::{map_bytes, ordered_map_bytes};
use crate::planted::Fault;
use crate::writeback::jobs::DrainLimits;

impl Cache {
    /// Makes the cache fit into the first `area` bytes of what it has of its device. Nothing is
    /// done if it does.
    ///
    /// # Errors
    /// `EINVAL` if the format can't, or the area is too small; `EBUSY` if the cache is suspended,
    /// changes its size, or is used; `EIO` if blocks can't be written back. The cache is as before,
    /// with fewer blocks, or has failed.
    pub(crate) async fn shrink(&self, area: u64) -> Result<(), Error> {
        let (store, life) = (&self.store, &self.store.life);
        let place = format!("cache device {}", store.config.cache);
        let Some(native) = store.native() else {
            return Err(Error::invalid(format!(
                "{place}: a cache of the kernel's format can't shrink. `millpond recover` writes \
                 back what it holds, `millpond wipe` makes its device blank for a new one"
            )));
        };
        let old = native.geometry.get();
        if old.end_bytes() <= area {
            return Ok(());
        }
        let new = old.shrunk(area).map_err(|e| {
            let text = format!(
                "{place}: {e}, with its slots where they are. `millpond recover` writes back what \
                 it holds, and `millpond wipe` makes the device blank for a smaller one; nothing \
                 was changed"
            );
            Error::new(ErrorKind::Invalid, text)
        })?;
        if life.is_growing.replace(true) {
            return Err(Error::busy(format!("{place}: its cache changes its size")));
        }
        let guard = life.guard();
        self.writeback.read_cache.is_closed.set(true);
        store.slots.borrow_mut().hold_from(new.slots);
        let shrunk = self.shrink_to(&old, new).await;
        store.slots.borrow_mut().hold_from(u32::MAX);
        self.writeback.read_cache.is_closed.set(false);
        drop(guard);
        life.is_growing.set(false);
        shrunk.map_err(|e| e.within(place))
    }

    async fn shrink_to(&self, old: &Geometry, new: Geometry) -> Result<(), Error> {
        let store = &self.store;
        self.empty_from(new.slots).await?;
        store.blank_log(&new).await.map_err(io_failed)?;
        let map = if store.config.ordered { ordered_map_bytes } else { map_bytes };
        let bytes = map(old.slots.into()) - map(new.slots.into());
        self.take_layout(new).await.map_err(io_failed)?;
        let mut memory = self.memory.borrow_mut();
        let has = memory.bytes();
        memory.shrink_to(has - bytes);
        Ok(())
    }

    /// Frees the slots from `first` on, durably (WC-GR6). Nothing is written to them meanwhile.
    async fn empty_from(&self, first: u32) -> Result<(), Error> {
        let store = &self.store;
        if store.has_fault(Fault::CutSlotsNamed) {
            return Ok(());
        }
        if store.has_fault(Fault::CutDirtyDropped) {
            store.slots.borrow_mut().drop_all_from(first);
        } else {
            self.writeback.clone().drain(DrainLimits::default()).await?;
        }
        let is_early = store.has_fault(Fault::CutBeforeCommit);
        if !is_early {
            store.commit().await.map_err(io_failed)?;
        }
        loop {
            let room = store.unlogged_max().saturating_sub(store.counts().unlogged);
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            let held = store.slots.borrow().used_from(first);
            let dropped = store.slots.borrow_mut().evict_from(first, room);
            if dropped == held && is_early {
                return Ok(());
            }
            store.commit().await.map_err(io_failed)?;
            match store.slots.borrow().used_from(first) {
                0 => return Ok(()),
                used if dropped == 0 => {
                    return Err(Error::busy(format!(
                        "{used} of its blocks are in use, or can't be read, in the part that goes"
                    )));
                }
                _ => {}
            }
        }
    }

    /// Takes a layout whose log is blank.
    pub(crate) async fn take_layout(&self, new: Geometry) -> Result<(), Status> {
        let store = &self.store;
        let native = store.native().expect("the caller has looked");
        let writeback = Rc::downgrade(&self.writeback);
        let switched = move || {
            if let Some(writeback) = writeback.upgrade() {
                writeback.tune(writeback.store.tuning());
            }
        };
        store.take_layout(native, new, Rc::new(switched)).await
    }
}
