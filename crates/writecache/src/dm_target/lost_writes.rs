// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lost writes: the cache of a new table takes over the lost writes of the failed cache before it.
use std::any::Any;
use std::rc::Rc;

use block::Target;

use super::WriteCache;
use crate::cache::Cache;
use crate::events::CacheEvent;
use crate::planted::Fault;

impl WriteCache {
    /// Takes over the lost writes of `before`, so that its clients get errors for them (WC-LO1).
    pub(super) fn take_over_lost_writes(&self, before: Rc<dyn Target>) {
        let before: Rc<dyn Any> = before;
        let Ok(before) = before.downcast::<WriteCache>() else { return };
        if self.has_fault(Fault::LostWritesForgotten) {
            return;
        }
        self.take_lost_writes_of(before.cache().as_deref());
    }

    /// The same, from an open cache.
    pub(super) fn take_lost_writes_of(&self, before: Option<&Cache>) {
        let Some(before) = before else { return };
        let lost = before.store.unflushed.take(before.store.failure().is_some());
        let requests = lost.requests;
        if let Some(cache) = self.cache() {
            cache.store.unflushed.restore(lost);
        }
        let on_event = self.on_event.borrow().clone();
        if let Some(on_event) = on_event.filter(|_| requests > 0) {
            on_event(CacheEvent::Lost { requests });
        }
    }
}
