// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: from folios what is up to date; what is not is read from below into folios first.
//!
//! Several readers of a page that is missing wait for one read of it. A read takes at most
//! [`WINDOW_PAGES`] at a time, all of its folios pinned at once or none, so that readers never wait
//! for memory that other waiting readers hold.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Class, Opener, PAGE, SECTOR_SHIFT, Sector, Status};
use reactor::BioFuture;
use smallvec::SmallVec;

use crate::arena::{ORDER_MAX, Piece};
use crate::cache::FolioId;
use crate::pin::Pins;
use crate::{PAGE_SECTORS, PageCache};

/// Pages that one read brings in before it copies them out: 1 MiB.
const WINDOW_PAGES: u64 = 256;

/// The pages that bytes `from..to` of the device touch.
pub(crate) fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    let page = PAGE as u64;
    bytes.start / page..bytes.end.div_ceil(page)
}

/// The largest order of a folio that begins at `start` and ends at `end` or before.
pub(crate) fn order_at(start: u64, end: u64) -> u8 {
    let aligned = start.trailing_zeros().min(u32::from(ORDER_MAX));
    let fits = (end - start).ilog2();
    u8::try_from(aligned.min(fits)).expect("at most ORDER_MAX")
}

/// A read of the device below, and where its data goes.
struct Fill {
    folios: SmallVec<[(FolioId, Range<u32>); 1]>,
    read: BioFuture,
}

impl PageCache {
    pub(crate) fn read(&self, bio: Bio) {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let done = self.copy_out(&bytes, &bio.bufs, 0);
        let hit = done == bio.len.bytes();
        let count = if hit { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        self.read_ahead(bio.opener, &pages_of(&bytes), hit);
        if hit {
            return bio.complete(Status::Ok);
        }
        let me = self.rc();
        reactor::spawn(async move {
            let status = me.read_missing(&bytes, &bio.bufs, bio.class, done).await.into();
            bio.complete(status);
        });
    }

    /// Copies out what is up to date, from `done` bytes on up to the first that is not. Returns
    /// where that is.
    fn copy_out(&self, bytes: &Range<u64>, to: &Bufs, mut done: u64) -> u64 {
        let page = PAGE as u64;
        let cache = self.cache.borrow();
        while bytes.start + done < bytes.end {
            let at = bytes.start + done;
            let Some(id) = cache.find(at / page) else { break };
            let folio = cache.folio(id);
            let wanted = folio.inside(&pages_of(&(at..bytes.end)));
            let Some(run) = folio.uptodate.next_run(wanted.clone()) else { break };
            if run.start > wanted.start {
                break;
            }
            let base = folio.start * page;
            let end = bytes.end.min(base + u64::from(run.end) * page);
            cache.order.touch(id.0);
            let (len, into) = (end - at, done);
            folio.copy_out(small(at - base), to, small(into), small(len));
            done += len;
        }
        done
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
            let _pins = self.bring_in(window, class, false).await?;
            done = self.copy_out(bytes, to, done);
        }
        Ok(())
    }

    /// Never so much that a few readers fill the memory.
    fn window_pages(&self) -> u64 {
        (self.memory.limit_bytes() / PAGE as u64 / 16).clamp(1, WINDOW_PAGES)
    }

    /// Makes all of `pages` up to date, in folios that stay until the pins are dropped. What is
    /// only read `ahead` is not worth waiting for memory.
    pub(crate) async fn bring_in(
        &self,
        pages: Range<u64>,
        class: Class,
        ahead: bool,
    ) -> Result<Pins, Status> {
        loop {
            self.discards.passed(&pages, &self.changed).await;
            let Some(pins) = self.make_folios(&pages) else {
                if ahead {
                    return Err(Status::NoSpace);
                }
                self.wait_for_memory().await?;
                continue;
            };
            self.fill(&pages, class).await?;
            if self.is_uptodate(&pages) {
                return Ok(pins);
            }
            // Others read some of it: their read may end well, or fail and be tried again here.
            self.changed.wait_for(|| !self.is_being_read(&pages)).await;
            if self.is_uptodate(&pages) {
                return Ok(pins);
            }
        }
    }

    /// Folios for all of `pages`, pinned; `None`, and none made, when there is no memory.
    fn make_folios(&self, pages: &Range<u64>) -> Option<Pins> {
        let mut pins = Pins::none(&self.rc());
        let mut at = pages.start;
        while at < pages.end {
            let found = self.cache.borrow().find(at);
            let id = match found {
                Some(id) => id,
                None => {
                    let gap = self.cache.borrow().gap(at, pages.clone());
                    let Some(id) = self.make_folio(at, gap.end) else {
                        pins.undo();
                        return None;
                    };
                    id
                }
            };
            pins.add(id);
            at = self.cache.borrow().folio(id).end();
        }
        Some(pins)
    }

    /// A new folio at `start`, as large as alignment, `end` and memory allow.
    pub(crate) fn make_folio(&self, start: u64, end: u64) -> Option<FolioId> {
        let mut order = order_at(start, end);
        loop {
            match self.take_memory(order) {
                Some(memory) => return Some(self.cache.borrow_mut().insert(start, memory)),
                None if order == 0 => return None,
                None => order = order.saturating_sub(2),
            }
        }
    }

    /// Memory of `order`, for which clean folios go where that helps.
    pub(crate) fn take_memory(&self, order: u8) -> Option<Piece> {
        match self.memory.take(order) {
            None if self.make_room(order) => self.memory.take(order),
            taken => taken,
        }
    }

    fn is_uptodate(&self, pages: &Range<u64>) -> bool {
        self.all_of(pages, |folio, inside| folio.uptodate.all_in(inside))
    }

    fn is_being_read(&self, pages: &Range<u64>) -> bool {
        !self.all_of(pages, |folio, inside| !folio.reading.any_in(inside))
    }

    /// Whether each page is in a folio and `holds` for each of them.
    fn all_of(
        &self,
        pages: &Range<u64>,
        holds: impl Fn(&crate::folio::Folio, &Range<u32>) -> bool,
    ) -> bool {
        let cache = self.cache.borrow();
        let mut at = pages.start;
        while at < pages.end {
            let Some(id) = cache.find(at) else { return false };
            let folio = cache.folio(id);
            if !holds(folio, &folio.inside(pages)) {
                return false;
            }
            at = folio.end();
        }
        true
    }

    /// Reads what is neither up to date nor being read. The folios are there and pinned.
    async fn fill(&self, pages: &Range<u64>, class: Class) -> Result<(), Status> {
        let mut worst = Ok(());
        for Fill { folios, read } in self.start_fills(pages, class) {
            let status = read.await;
            let mut cache = self.cache.borrow_mut();
            for (id, run) in folios {
                let folio = cache.folio_mut(id);
                folio.reading.clear(&run);
                if status.is_ok() {
                    folio.uptodate.set(&run);
                }
                folio.pins -= 1;
            }
            worst = worst.and(status);
        }
        self.changed.wake_all();
        worst
    }

    fn start_fills(&self, pages: &Range<u64>, class: Class) -> SmallVec<[Fill; 2]> {
        let mut fills = SmallVec::new();
        let pages_max = u64::from(self.limits.max_io_bytes) / PAGE as u64;
        // One read of neighbours: its first page, what it fills, and where.
        let (mut first, mut folios, mut bufs) = (0, SmallVec::new(), Bufs::new());
        let mut next = pages.start;
        while next < pages.end {
            let (id, found) = {
                let cache = self.cache.borrow();
                let id = cache.find(next).expect("the folios are there");
                let folio = cache.folio(id);
                let wanted = folio.inside(&(next..pages.end));
                let missing = folio.uptodate.next_run_in_neither(&folio.reading, wanted);
                next = folio.end();
                (id, missing.map(|run| (folio.start, run)))
            };
            let Some((start, run)) = found else { continue };
            next = start + u64::from(run.end);
            let at = start + u64::from(run.start);
            let so_far = (bufs.len_bytes() / PAGE) as u64;
            let joins = so_far > 0 && at == first + so_far;
            if so_far > 0 && (!joins || so_far + run.len() as u64 > pages_max.max(1)) {
                let (folios, bufs) = (std::mem::take(&mut folios), std::mem::take(&mut bufs));
                fills.push(self.read_below(first, folios, bufs, class));
            }
            if bufs.is_empty() {
                first = at;
            }
            let mut cache = self.cache.borrow_mut();
            let folio = cache.folio_mut(id);
            folio.reading.set(&run);
            folio.pins += 1;
            bufs.push(folio.slice(&run));
            folios.push((id, run));
        }
        if !bufs.is_empty() {
            fills.push(self.read_below(first, folios, bufs, class));
        }
        fills
    }

    fn read_below(
        &self,
        first: u64,
        folios: SmallVec<[(FolioId, Range<u32>); 1]>,
        bufs: Bufs,
        class: Class,
    ) -> Fill {
        let at = Sector(first * PAGE_SECTORS);
        let room = small((self.limits.capacity - at).bytes());
        let bufs = if bufs.len_bytes() > room { bufs.slice(0..room) } else { bufs };
        let len = Sector((bufs.len_bytes() >> SECTOR_SHIFT) as u64);
        let flags = block::Flags::empty();
        let below = &*self.below;
        let read =
            reactor::io_by(Opener::NOBODY, below, block::Op::Read, flags, class, (at, len), bufs);
        Fill { folios, read }
    }

    /// Waits until there may be memory, of which none could be had just now: something has been
    /// written back or let go. Fails when neither is to be expected.
    pub(crate) async fn wait_for_memory(&self) -> Result<(), Status> {
        let clean_in_use = || {
            let cache = self.cache.borrow();
            cache.iter().any(|(_, f)| f.pins > 0 && !f.dirty.any() && !f.writing.any())
        };
        if self.is_stuck() && !clean_in_use() {
            return Err(Status::Io);
        }
        self.wait_for_change().await;
        Ok(())
    }

    /// Waits until less may be dirty. Fails when that is not to be expected.
    pub(crate) async fn wait_for_room(&self) -> Result<(), Status> {
        self.wait_for_change().await;
        let is_full = self.pacing.is_full(self.dirty_bytes());
        if is_full && self.is_stuck() { Err(Status::Io) } else { Ok(()) }
    }

    /// Has writeback begin, and waits for the next change: whatever that is, the caller looks
    /// again.
    async fn wait_for_change(&self) {
        self.kick_writeback();
        let mut first = true;
        self.changed.wait_for(|| !std::mem::replace(&mut first, false)).await;
    }

    /// Pages ahead of a sequential reader.
    fn read_ahead(&self, opener: Opener, pages: &Range<u64>, hit: bool) {
        let Some(ahead) = self.ahead.on_read(opener, pages, hit, self.device_pages()) else {
            return;
        };
        let me: Rc<PageCache> = self.rc();
        let epoch = self.busy.enter();
        reactor::spawn(async move {
            // Nobody waits for it: who needs a page that it could not read reads it again.
            let _ = me.bring_in(ahead, Class::Idle, true).await;
            me.busy.leave(epoch);
        });
    }
}

/// Positions inside one request or folio fit.
pub(crate) fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("within one request or folio")
}
