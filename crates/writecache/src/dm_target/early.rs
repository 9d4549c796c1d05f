// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted fault `OpenWhenLoaded`: reads the media when a table is loaded.
use std::rc::Rc;

use super::WriteCache;
use crate::cache::Cache;
use crate::planted::Fault;
use crate::recovery;

impl WriteCache {
    /// Opens the cache too early, if the fault is planted.
    pub(super) fn open_early(self: Rc<Self>) {
        let config = self.config.borrow().clone();
        if !config.planted.is(Fault::OpenWhenLoaded) {
            return;
        }
        let (origin, device) = (self.origin.clone(), self.device.clone());
        reactor::spawn(async move {
            let opened = recovery::open(config, &origin, device, self.sectors).await;
            *self.early.borrow_mut() = opened.ok().map(|found| Rc::new(Cache::new(found, origin)));
        });
    }

    /// Takes the cache that was opened too early.
    pub(super) fn take_early(&self) -> Option<Rc<Cache>> {
        self.early.take()
    }
}
