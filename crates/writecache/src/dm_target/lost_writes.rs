// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lost writes: the cache of a new table takes over the lost writes of the failed cache before it.
use std::any::Any;
use std::rc::Rc;

use block::Target;

use super::{OpenCache, WriteCache};
use crate::cache::Cache;
use crate::events::CacheEvent;
use crate::planted::Fault;
use crate::unflushed::LostWrites;

impl WriteCache {
    /// Takes over the lost writes of `before`, so that its clients get errors for them (WC-LO1). A
    /// part takes over from the part with the same number; with another number of parts it is
    /// another cache.
    pub(super) async fn take_over_lost_writes(self: Rc<Self>, before: Rc<dyn Target>) {
        let before: Rc<dyn Any> = before;
        let Ok(before) = before.downcast::<WriteCache>() else { return };
        if self.config.borrow().planted.is(Fault::LostWritesForgotten) {
            return;
        }
        let open = before.live.borrow().clone();
        self.take_lost_writes_of(open).await;
    }

    /// The same, from an open cache.
    pub(super) async fn take_lost_writes_of(&self, before: Option<OpenCache>) {
        let lost = match before {
            Some(OpenCache::Divided(parts)) => {
                parts.ask(|part| async move { part.take_lost_writes() }).await
            }
            Some(OpenCache::Whole(whole)) => vec![Some(lost_writes_of(&whole.cache))],
            None => Vec::new(),
        };
        let lost: Vec<LostWrites> = lost.into_iter().flatten().collect();
        let requests = lost.iter().map(|lost| lost.requests).sum();
        match self.parts() {
            Some(parts) => {
                parts.distribute(lost, |part, lost| part.restore_lost_writes(lost)).await;
            }
            None => lost.into_iter().take(1).for_each(|lost| self.restore_lost_writes(lost)),
        }
        let on_event = self.on_event.borrow().clone();
        if let Some(on_event) = on_event.filter(|_| requests > 0) {
            on_event(CacheEvent::Lost { requests });
        }
    }

    fn take_lost_writes(&self) -> Option<LostWrites> {
        self.cache().map(|cache| lost_writes_of(&cache))
    }

    fn restore_lost_writes(&self, lost: LostWrites) {
        if let Some(cache) = self.cache() {
            cache.store.unflushed.restore(lost);
        }
    }
}

fn lost_writes_of(cache: &Cache) -> LostWrites {
    cache.store.unflushed.take(cache.store.failure().is_some())
}
