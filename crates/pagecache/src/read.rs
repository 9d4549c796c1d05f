// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: from folios what is up to date; what is not is read from below into folios first.
//!
//! Several readers of a page that is missing wait for one read of it. A read takes at most
//! [`WINDOW_PAGES`] at a time, all of its folios pinned at once or none, so that readers never wait
//! for memory that other waiting readers hold.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Class, Opener, PAGE, SECTOR_SHIFT, Sector, Status};
use reactor::{BioFuture, Workers};
use smallvec::{SmallVec, smallvec};

use crate::arena::{ORDER_MAX, Piece};
use crate::cache::FolioId;
use crate::folio::Folio;
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

/// Reads that wait for the device below, or for memory; more wait for their turn. Chosen: more than
/// clients send at once.
const MISSES_MAX: usize = 1 << 16;

/// Runs of pages, each of one folio, that follow one another on the device.
type Runs = SmallVec<[(FolioId, Range<u32>); 1]>;

/// Pages that are to be read from below at once.
struct Missing {
    /// The first of them.
    first: u64,
    runs: Runs,
    bufs: Bufs,
}

impl Missing {
    /// Whether `count` pages from `at` on join it, in a read of at most `pages_max`.
    fn is_joined_by(&self, at: u64, count: usize, pages_max: u64) -> bool {
        let so_far = (self.bufs.len_bytes() / PAGE) as u64;
        at == self.first + so_far && so_far + count as u64 <= pages_max
    }
}

/// A read of the device below, and where its data goes.
struct Fill {
    runs: Runs,
    read: BioFuture,
}

/// A read of which not all is cached: of that, its first `done` bytes have been copied out.
pub(crate) struct Miss {
    of: Rc<PageCache>,
    bio: Bio,
    done: u64,
}

/// The tasks that serve misses.
pub(crate) fn misses() -> Workers<Miss> {
    Workers::new(MISSES_MAX, async |Miss { of, bio, done }: Miss| {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let status = of.read_missing(&bytes, &bio.bufs, bio.class, done).await.into();
        bio.complete(status);
    })
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
        self.misses_at_work.push(Miss { of: self.rc(), bio, done });
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
            self.fill(&pins, &pages, class).await?;
            if self.is_uptodate(&pins, &pages) {
                return Ok(pins);
            }
            // Others read some of it: their read may end well, or fail and be tried again here.
            self.changed.wait_for(|| !self.is_being_read(&pins, &pages)).await;
            if self.is_uptodate(&pins, &pages) {
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
                    let end = self.cache.borrow().free_to(at, pages.end);
                    let Some(id) = self.make_folio(at, end) else {
                        pins.undo();
                        return None;
                    };
                    id
                }
            };
            at = pins.add(id);
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
        self.memory.take(order).or_else(|| self.make_room(order))
    }

    fn is_uptodate(&self, pins: &Pins, pages: &Range<u64>) -> bool {
        self.all_of(pins, |folio| folio.uptodate.all_in(&folio.inside(pages)))
    }

    fn is_being_read(&self, pins: &Pins, pages: &Range<u64>) -> bool {
        !self.all_of(pins, |folio| !folio.reading.any_in(&folio.inside(pages)))
    }

    fn all_of(&self, pins: &Pins, holds: impl Fn(&Folio) -> bool) -> bool {
        let cache = self.cache.borrow();
        pins.folios().iter().all(|id| holds(cache.folio(*id)))
    }

    /// Reads what is neither up to date nor being read. `pins` has the folios of all `pages`.
    async fn fill(&self, pins: &Pins, pages: &Range<u64>, class: Class) -> Result<(), Status> {
        let missing = self.missing(pins, pages);
        if missing.is_empty() {
            return Ok(());
        }
        let fills: SmallVec<[Fill; 2]> =
            missing.into_iter().map(|missing| self.read_below(missing, class)).collect();
        let mut worst = Status::Ok;
        for Fill { runs, read } in fills {
            let status = read.await;
            let mut cache = self.cache.borrow_mut();
            for (id, run) in runs {
                let folio = cache.folio_mut(id);
                folio.reading.clear(&run);
                if status.is_ok() {
                    folio.uptodate.set(&run);
                }
                folio.pins -= 1;
            }
            worst = worst.worst(status.into());
        }
        self.changed.wake_all();
        worst.ok()
    }

    /// What of `pages` is neither up to date nor being read; from now on it is being read, with a
    /// pin for each run.
    fn missing(&self, pins: &Pins, pages: &Range<u64>) -> SmallVec<[Missing; 2]> {
        let pages_max = (u64::from(self.limits.max_io_bytes) / PAGE as u64).max(1);
        let mut all = SmallVec::<[Missing; 2]>::new();
        let mut cache = self.cache.borrow_mut();
        for id in pins.folios().iter().copied() {
            let folio = cache.folio_mut(id);
            let inside = folio.inside(pages);
            while let Some(run) = folio.next_to_read(inside.clone()) {
                folio.reading.set(&run);
                folio.pins += 1;
                let (at, slice) = (folio.start + u64::from(run.start), folio.slice(&run));
                match all.last_mut().filter(|m| m.is_joined_by(at, run.len(), pages_max)) {
                    Some(before) => {
                        before.bufs.push(slice);
                        before.runs.push((id, run));
                    }
                    None => {
                        let (runs, bufs) = (smallvec![(id, run)], slice.into());
                        all.push(Missing { first: at, runs, bufs });
                    }
                }
            }
        }
        all
    }

    fn read_below(&self, missing: Missing, class: Class) -> Fill {
        let Missing { first, runs, bufs } = missing;
        let at = Sector(first * PAGE_SECTORS);
        let room = small((self.limits.capacity - at).bytes());
        let bufs = if bufs.len_bytes() > room { bufs.slice(0..room) } else { bufs };
        let len = Sector((bufs.len_bytes() >> SECTOR_SHIFT) as u64);
        let flags = block::Flags::empty();
        let below = &*self.below;
        let read =
            reactor::io_by(self.opener, below, block::Op::Read, flags, class, (at, len), bufs);
        Fill { runs, read }
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
