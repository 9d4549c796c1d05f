// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target of a table line: suspend and resume, attributes, and what dm asks.
use std::any::Any;
use std::rc::Rc;

use block::attr::Spec;
use block::value::Value;
use block::{Component, Error, LocalFuture, Role, Sector, Target};

use crate::device::PageCache;

/// Folios of one cell of the map of dirty data that are counted. Chosen: a map takes microseconds.
const MAP_FOLIOS_MAX: usize = 32;

impl Target for PageCache {
    fn kind(&self) -> &'static str {
        "buffered"
    }

    fn table(&self) -> String {
        self.store.config.table(self.store.below.name())
    }

    fn status(&self) -> String {
        self.status_line()
    }

    fn components(&self) -> Vec<Component> {
        let (device, len) = (self.store.below.clone(), self.store.limits.capacity);
        vec![Component { device, start: Sector::ZERO, len, role: Role::Origin }]
    }

    /// Writes everything back, so that the device below has all the data. After an error, pages
    /// that could not be written stay in memory, dirty.
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            self.writeback.flusher.stop(&self.writeback.ioends).await;
            let flushed = self.writeback.write_back_all(&self.store).await;
            self.readahead.in_flight.quiesced().await;
            flushed.map_err(|status| {
                let errors = self.store.errors.describe().unwrap_or_default();
                let dirty = self.store.dirty_bytes();
                Error::io(format!("{status}: {dirty} bytes are not written back: {errors}"))
            })
        })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        self.writeback.flusher.start();
        let me = self.clone();
        reactor::spawn(async move {
            me.writeback.flusher.run(&me.store, &me.writeback.ioends).await;
        });
        Box::pin(async { Ok(()) })
    }

    /// All data of the previous cache are durable, because it is suspended. Data that a failed
    /// flush lost are lost nevertheless, and this cache reports the error.
    fn take_over(self: Rc<Self>, before: Rc<dyn Target>) -> LocalFuture<()> {
        let before: Rc<dyn Any> = before;
        if let Ok(before) = before.downcast::<PageCache>() {
            self.store.errors.take_over(&before.store.errors);
        }
        Box::pin(async {})
    }

    fn attributes(&self) -> Vec<&'static Spec> {
        crate::attributes::specs()
    }

    fn problems(&self) -> Vec<String> {
        let failing = self.store.errors.failed.since();
        let error = self.store.errors.describe().unwrap_or_default();
        failing.map(|_| format!("writeback fails: {error}")).into_iter().collect()
    }

    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        crate::figures::metrics(self)
    }

    fn dirty_map(self: Rc<Self>, cells: u32) -> LocalFuture<Option<Vec<u64>>> {
        let pages = self.store.limits.capacity.bytes().div_ceil(block::PAGE as u64);
        let map = self.store.folios.borrow().dirty_map(pages, cells, MAP_FOLIOS_MAX);
        let bytes = map.into_iter().map(|pages| pages * block::PAGE as u64).collect();
        Box::pin(async move { Some(bytes) })
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        Box::pin(async move { self.get(&name) })
    }

    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.set(&name, value.trim()) })
    }
}
