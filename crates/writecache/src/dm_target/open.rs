// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open: from a table line to a cache in use.
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, Error, Nanos};
use reactor::TaskPool;

use super::WriteCache;
use super::bios::OpenCache;
use crate::cache::Cache;
use crate::events::{CacheEvent, io_failed};
use crate::planted::Fault;
use crate::probe::{Depth, probe};
use crate::recovery;
use crate::recovery::dm::NO_JOURNAL_BY_FORMAT;

/// Bios that are handled at once; more wait in order. The task of a bio is reused for the next one.
const BIOS_MAX: usize = 4096;
/// A cache of so many blocks is large: it takes seconds to read. Chosen: 4 GiB of 4 KiB blocks.
const LARGE_BLOCKS: u64 = 1 << 20;
/// An open that takes longer is reported. Chosen: an operator notices it.
const LONG_TIME: Nanos = Nanos::from_millis(500);

impl WriteCache {
    /// Opens and starts the cache. Reports what it has found if that is worth a line.
    pub(super) async fn open_and_begin(&self) -> Result<(), Error> {
        let began = reactor::now();
        let block_size = u64::from(self.config.borrow().block_size);
        let blocks = self.device.limits().capacity.bytes() / block_size;
        let report = |event| {
            if let Some(on_event) = &*self.on_event.borrow() {
                on_event(event);
            }
        };
        if blocks >= LARGE_BLOCKS {
            report(CacheEvent::Opening { blocks });
        }
        let opened = self.open().await;
        if opened.is_err() {
            drop(self.attachment.take());
        }
        opened?;
        if let Err(e) = self.check_empty() {
            // It was not started: nothing of it has been written back.
            drop(self.live.take());
            drop(self.attachment.take());
            return Err(e);
        }
        let time = Nanos(reactor::now().0 - began.0);
        self.begin();
        let count = |name| self.attribute(name).ok().and_then(|n| n.number()).unwrap_or(0);
        let (dirty, clean) = (count("dirty_blocks"), count("clean_blocks"));
        if dirty > 0 || time >= LONG_TIME || blocks >= LARGE_BLOCKS {
            report(CacheEvent::Opened { dirty, clean, time });
        }
        Ok(())
    }

    /// Opens the cache from its media again, which another instance may have changed. All that it
    /// knew was there when it was suspended. After an error it is as before, and suspended.
    pub(super) async fn open_again(&self) -> Result<(), Error> {
        let before = self.cache();
        self.must_be_empty.set(false);
        self.open_and_begin().await?;
        self.must_reread.set(false);
        self.take_lost_writes_of(before.as_deref());
        Ok(())
    }

    /// Whether the cache has failed stop.
    pub(super) fn has_failed(&self) -> bool {
        self.cache().is_some_and(|cache| cache.store.failure().is_some())
    }

    /// Of a cache that takes another one's place: that its cache device holds nothing.
    fn check_empty(&self) -> Result<(), Error> {
        if !self.must_be_empty.get() || self.has_fault(Fault::UsedCacheTaken) {
            return Ok(());
        }
        let count = |name| self.attribute(name).ok().and_then(|n| n.number()).unwrap_or(0);
        let clean = count("clean_blocks");
        let dirty = count("dirty_blocks") + count("zero_blocks") + count("bad_blocks");
        check_counts(&self.config.borrow().cache, dirty, clean)
    }

    /// The same of a cache that is not open: reads its cache device.
    pub(super) async fn probe_empty(&self) -> Result<(), Error> {
        let (cache, start) = {
            let config = self.config.borrow();
            (config.cache.clone(), config.start_sector)
        };
        let report = probe(self.device.clone(), start, Depth::Metadata).await?;
        match report.occupancy() {
            Some(held) => check_counts(&cache, held.dirty + held.bad, held.clean),
            // Blank, or the open will say what it is.
            None => Ok(()),
        }
    }

    /// Opens the cache, and does not start it.
    pub(super) async fn open(&self) -> Result<(), Error> {
        let mut config = self.config.borrow().clone();
        // The cache whose place it takes gives the origin back only when this one is open.
        config.guard.is_late = self.must_be_empty.get();
        let (origin, device) = (self.origin.clone(), self.device.clone());
        #[cfg(feature = "planted")]
        let early = self.take_early();
        #[cfg(not(feature = "planted"))]
        let early = None;
        let cache = match early {
            Some(cache) => cache,
            None => {
                let mut found = recovery::open(config, &origin, device, self.sectors).await?;
                *self.attachment.borrow_mut() = found.attachment.take();
                Rc::new(Cache::new(found, origin))
            }
        };
        let opened = self.open_found(cache).await?;
        *self.live.borrow_mut() = Some(opened);
        Ok(())
    }

    async fn open_found(&self, cache: Rc<Cache>) -> Result<Rc<OpenCache>, Error> {
        cache.prepare(self.tuning()).await.map_err(io_failed)?;
        cache.store.health.on_event.replace(self.on_event.borrow().clone());
        if let Some(guard) = &cache.guard {
            guard.set_on_event(self.on_event.borrow().clone());
            match cache.store.config.guard.is_late {
                true => guard.attach_later(),
                false => guard.attach().await?,
            }
        }
        if let Some((why, changes)) = cache.store.journal.lost {
            cache.store.notify(CacheEvent::JournalIgnored { changes, why });
        }
        if cache.store.journal.lost_blocks > 0 {
            let blocks = cache.store.journal.lost_blocks;
            cache.store.notify(CacheEvent::JournalDataLost { blocks });
        }
        if cache.store.journal.applied > 0 {
            cache.store.notify(CacheEvent::JournalApplied { changes: cache.store.journal.applied });
        }
        // Of a process that has no memory for any cache the program tells once, and who chooses a
        // format without a journal knows it.
        let lacks = cache.store.journal.memory.as_ref().is_err_and(|w| w != NO_JOURNAL_BY_FORMAT);
        if lacks && reactor::shared_memory().is_some() {
            cache.store.notify(CacheEvent::NoJournal);
        }
        if cache.store.journal.memory.as_ref().is_ok_and(|memory| memory.no_buffer.is_some()) {
            cache.store.notify(CacheEvent::NoBuffer);
        }
        let mask = cache.store.config.block_sectors() - 1;
        // One kind of task for all bios, with one call of `handle`, so that the compiler inlines
        // it.
        let workers = || {
            let handler = cache.clone();
            TaskPool::new(BIOS_MAX, move |mut bio: Bio| {
                let cache = handler.clone();
                async move {
                    let is_whole = (bio.sector.0 | bio.len.0) & mask == 0;
                    let ended = match is_whole {
                        true => None,
                        // Boxed: few bios need it, and its state would enlarge the task of every
                        // bio.
                        false => Box::pin(cache.handle_edges(&mut bio)).await,
                    };
                    let status = match ended {
                        Some(status) => status,
                        None => cache.handle(&bio).await,
                    };
                    bio.complete(status);
                }
            })
        };
        let (prompt, changes, edges) = (workers(), workers(), workers());
        let handler = cache.clone();
        let streams = TaskPool::new(BIOS_MAX, move |bio: Bio| {
            let cache = handler.clone();
            async move {
                let status = cache.handle_stream(&bio).await;
                bio.complete(status);
            }
        });
        let in_flight = RefCell::default();
        Ok(Rc::new(OpenCache { cache, mask, prompt, changes, edges, streams, in_flight }))
    }

    /// Takes the journal again (WC-JR4): without it the cache leaves its origin.
    pub(super) fn lock_journal(&self) -> Result<(), Error> {
        let locked = self.cache().map_or(Ok(()), |cache| cache.store.lock_journal());
        if locked.is_err() {
            self.leave_origin();
        }
        locked
    }

    /// Starts the cache.
    pub(super) fn begin(&self) {
        self.is_paused.set(false);
        if let Some(cache) = self.cache() {
            self.period.set(self.period.get() + 1);
            cache.start(self.period.get());
        }
    }

    /// Suspends the cache.
    pub(super) async fn end_period(&self) -> Result<(), Error> {
        let Some(cache) = self.cache().filter(|c| !c.is_stopping()) else { return Ok(()) };
        cache.suspend(self.takes_flush()).await
    }

    /// Whether the suspend that begins is the one with a flush. After a pause it is the next one.
    fn takes_flush(&self) -> bool {
        let is_replaced = self.is_replaced.replace(false);
        let is_asked = !self.is_paused.get() && self.flush_on_suspend.replace(false);
        is_replaced || is_asked
    }
}

fn check_counts(cache: &str, dirty: u64, clean: u64) -> Result<(), Error> {
    if clean + dirty == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "cache device {cache}: it holds {dirty} dirty and {clean} clean blocks of an earlier time, \
         which would hide newer data: only a blank one, or one that holds nothing, takes another's \
         place. `millpond wipe` makes it blank; nothing was changed"
    )))
}
