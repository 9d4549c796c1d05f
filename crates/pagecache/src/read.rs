// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: copies pages that are up to date out of folios; brings in the others first.
//!
//! A read of which all pages are cached completes as it is submitted. Any other is a task's, which
//! brings in [`WINDOW_PAGES`] at a time and copies them out.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Class, Opener, PAGE, Status};
use reactor::TaskPool;

use crate::device::PageCache;
use crate::fill::{NoMemory, bring_in};
use crate::store::Store;
use crate::units::{pages_of, to_usize};

/// Pages that one read brings in before it copies them out: 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// Tasks that wait for the device below or for memory; further reads wait in a queue. Chosen: more
/// than clients send at once.
const MISSES_MAX: usize = 1 << 16;

/// A read of which not all pages are cached. The first `done` bytes have been copied out.
pub(crate) struct Miss {
    cache: Rc<PageCache>,
    bio: Bio,
    done: u64,
}

/// The tasks that serve misses.
pub(crate) fn miss_tasks() -> TaskPool<Miss> {
    TaskPool::new(MISSES_MAX, async |Miss { cache, bio, done }: Miss| {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let status = cache.read_missing(&bytes, &bio.bufs, bio.class, done).await.into();
        bio.complete(status);
    })
}

impl PageCache {
    pub(crate) fn read(&self, bio: Bio) {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let done = copy_out(&self.store, &bytes, &bio.bufs, 0);
        let hit = done == bio.len.bytes();
        let count = if hit { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        self.read_ahead(bio.opener, &pages_of(&bytes));
        if hit {
            return bio.complete(Status::Ok);
        }
        self.miss_tasks.push(Miss { cache: self.rc(), bio, done });
    }

    async fn read_missing(
        &self,
        bytes: &Range<u64>,
        to: &Bufs,
        class: Class,
        mut done: u64,
    ) -> Result<(), Status> {
        while bytes.start + done < bytes.end {
            let all = pages_of(&(bytes.start + done..bytes.end));
            let window = all.start..all.end.min(all.start + self.window_pages());
            let (store, writeback) = (&self.store, &self.writeback);
            let _pins = bring_in(store, writeback, window, class, NoMemory::Wait).await?;
            done = copy_out(store, bytes, to, done);
        }
        Ok(())
    }

    /// Pages that one read may pin: a few readers must not fill the memory.
    fn window_pages(&self) -> u64 {
        (self.store.memory.limit_bytes() / PAGE as u64 / 16).clamp(1, WINDOW_PAGES)
    }

    /// Reads pages ahead of a sequential reader.
    fn read_ahead(&self, opener: Opener, pages: &Range<u64>) {
        let Some(ahead) = self.readahead.on_read(opener, pages, self.store.device_pages()) else {
            return;
        };
        let me: Rc<PageCache> = self.rc();
        let epoch = self.readahead.in_flight.enter();
        reactor::spawn(async move {
            // An error is ignored: a client that needs the page reads it again.
            let (store, writeback) = (&me.store, &me.writeback);
            let _ = bring_in(store, writeback, ahead, Class::Idle, NoMemory::Fail).await;
            me.readahead.in_flight.leave(epoch);
        });
    }
}

/// Copies out pages that are up to date, from `done` bytes on, up to the first that is not. Returns
/// where that is.
fn copy_out(store: &Store, bytes: &Range<u64>, to: &Bufs, mut done: u64) -> u64 {
    let page = PAGE as u64;
    let folios = store.folios.borrow();
    while bytes.start + done < bytes.end {
        let at = bytes.start + done;
        let Some(id) = folios.find(at / page) else { break };
        let folio = folios.folio(id);
        let wanted = folio.inside(&pages_of(&(at..bytes.end)));
        let Some(run) = folio.uptodate.next_run(wanted.clone()) else { break };
        if run.start > wanted.start {
            break;
        }
        let base = folio.start * page;
        let end = bytes.end.min(base + u64::from(run.end) * page);
        folios.order.touch(id.0);
        let (len, into) = (end - at, done);
        folio.copy_out(to_usize(at - base), to, to_usize(into), to_usize(len));
        done += len;
    }
    done
}
