// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth of a cache in use: the cache device has grown, and the cache takes the new space.
//! `store::grow` has the order of what is written.
use std::rc::Rc;

use block::{Error, ErrorKind, Status, size_text};
use format::{Geometry, GeometryError, UNIT};

use crate::cache::Cache;
use crate::config::Mode;
use crate::events::io_failed;
use crate::map::{map_bytes, ordered_map_bytes};

impl Cache {
    /// Takes the space by which the cache device has grown, if it has.
    ///
    /// # Errors
    /// `EINVAL` if the format has no place for it, or there is too little; `EBUSY` if the cache is
    /// suspended or growing; `ENOMEM`; errors of the cache device. The cache is as before, or has
    /// failed.
    pub(crate) async fn grow(&self) -> Result<(), Error> {
        let (store, life) = (&self.store, &self.store.life);
        let place = self.place();
        let area = store.config.area_bytes(&*store.device);
        let Some(new) = self.grown_layout(area)? else { return Ok(()) };
        if life.is_growing.replace(true) {
            return Err(Error::busy(format!("{place}: its cache is growing")));
        }
        let guard = life.guard();
        let grown = self.grow_to(new).await;
        drop(guard);
        life.is_growing.set(false);
        grown.map_err(|e| e.within(place))
    }

    fn place(&self) -> String {
        format!("cache device {}", self.store.config.cache)
    }

    /// The layout of the cache in an area of so many bytes; `None` if it has what it can use.
    ///
    /// # Errors
    /// `EINVAL`, as those of [`grow`](Cache::grow).
    pub(crate) fn grown_layout(&self, area: u64) -> Result<Option<Geometry>, Error> {
        let (store, place) = (&self.store, self.place());
        let Some(native) = store.native() else {
            return Err(Error::invalid(format!(
                "{place}: a cache of the kernel's format can't grow: its entries and its blocks \
                 follow each other without a gap. `millpond uncache` the device, and make a cache \
                 on the larger device"
            )));
        };
        if store.config.mode == Mode::Pmem {
            return Err(Error::invalid(format!(
                "{place}: a cache in persistent memory can't grow while it is in use: its mapping \
                 has the size that the file had. `load` the same table in mode s for the growth"
            )));
        }
        let old = native.geometry.get();
        if area < old.end_bytes() {
            return Err(Error::invalid(format!(
                "{place}: it has {}, its cache takes {}: give the device its size back. To move to \
                 a smaller one, `millpond replace-cache`",
                size_text(area),
                size_text(old.end_bytes())
            )));
        }
        // A format leaves what is no slot with its metadata; a growth what is no unit.
        let is_format = Geometry::compute(area, old.block_size) == Ok(old);
        if is_format || area < old.end_bytes() + UNIT as u64 {
            return Ok(None);
        }
        old.grown(area).map(Some).map_err(|e| too_little(&place, &old, &e))
    }

    async fn grow_to(&self, new: Geometry) -> Result<(), Error> {
        let store = &self.store;
        let map = if store.config.ordered { ordered_map_bytes } else { map_bytes };
        let had = self.memory.borrow().bytes();
        let (old, more) = (store.slot_count(), map(new.slots.into()));
        let bytes = had + more - map(old.into());
        let what = format!("the map of its {} blocks", new.slots);
        self.memory.borrow_mut().grow_to(bytes, what)?;
        let grown = match store.blank_log(&new).await {
            Ok(()) => self.take_layout(new).await,
            Err(status) => Err(status),
        };
        if store.slot_count() == old {
            self.memory.borrow_mut().shrink_to(had);
        }
        grown.map_err(unfinished)
    }

    async fn take_layout(&self, new: Geometry) -> Result<(), Status> {
        let store = &self.store;
        let native = store.native().expect("it has a larger layout");
        let writeback = Rc::downgrade(&self.writeback);
        let switched = move || {
            if let Some(writeback) = writeback.upgrade() {
                writeback.tune(writeback.store.tuning());
            }
        };
        store.take_layout(native, new, Rc::new(switched)).await
    }
}

fn unfinished(status: Status) -> Error {
    match status == Status::Again {
        true => Error::busy("it is suspended, or about to be"),
        false => io_failed(status),
    }
}

fn too_little(place: &str, old: &Geometry, e: &GeometryError) -> Error {
    let GeometryError::TooSmall { area_bytes, needed_bytes } = *e else {
        return Error::new(ErrorKind::Invalid, format!("{place}: {e}"));
    };
    Error::invalid(format!(
        "{place}: it has {} more than its cache uses, which is too little to move the metadata \
         there: {} more are needed. Nothing was changed",
        size_text(area_bytes - old.end_bytes()),
        size_text(needed_bytes - old.end_bytes()),
    ))
}
