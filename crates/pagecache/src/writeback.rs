// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback in the background: the flusher, and what all writeback has in common.
//!
//! | reason | what is written |
//! |---|---|
//! | more is dirty than the background threshold | from a cursor on, ascending, round and round |
//! | memory is short | the same, for a while, however little is dirty |
//! | every `dirty_writeback_centisecs` | folios dirty for longer than `dirty_expire_centisecs` |
//! | some time after an error | what could not be written |
//!
//! Each time it begins it writes [`CHUNK_PAGES`] at least, so that a writer just above the
//! threshold has its pages sorted and joined too. While nothing is dirty no timer runs.
//!
//! Invariants
//! - PC-WB1 Background writeback has at most [`IOENDS_MAX`] ioends in flight and the bytes of
//!   [`LARGE_IOENDS_MAX`] large ones, or a single one more; that of FLUSH twice as much.
//! - PC-WB2 A page that could not be written is left alone until its time has come; pages beside it
//!   go on.
//! - PC-WB3 Whatever waits for the flusher ends: an open ioend is sent before it sleeps, other than
//!   for room, which comes when an ioend ends; and before a FLUSH waits.
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{BlockDevice, Nanos, PAGE, Sector, Status};
use reactor::{OnDone, WaitList};
use slab::Slab;

use crate::PageCache;
use crate::flush::Group;
use crate::folio::Folio;
use crate::ioend::{Collector, Counts, Flying, Purpose, Spare, Tickets};
use crate::iomap::Mapper;

/// Ioends in flight: more than any drive's queue holds, few enough to bound memory.
pub(crate) const IOENDS_MAX: u64 = 256;
/// The same when they are large: enough for a fast drive, a tenth of a second for a slow one.
pub(crate) const LARGE_IOENDS_MAX: u64 = 16;
/// The kernel's MIN_WRITEBACK_PAGES: 4 MiB.
pub(crate) const CHUNK_PAGES: u64 = 1024;

const CENTISECOND_NS: u64 = 10_000_000;

/// Wakes the flusher at a time.
#[derive(Default)]
struct Alarm {
    due: Cell<Option<Nanos>>,
    /// Until when the task sleeps that there is.
    sleeps_until: Cell<Option<Nanos>>,
}

/// Which alarm.
type Which = fn(&State) -> &Alarm;

/// A range that somebody makes durable, and whether any of it could not be written meanwhile.
struct Watched {
    pages: Range<u64>,
    failed: Option<Status>,
}

/// What is in flight for one purpose.
#[derive(Default)]
struct Load {
    ioends: Cell<u64>,
    bytes: Cell<u64>,
}

/// Told by the reactor when an ioend has ended.
pub(crate) struct Ends(Weak<PageCache>);

impl OnDone for Ends {
    fn on_done(&self, status: Status, tag: u64) {
        if let Some(cache) = self.0.upgrade() {
            cache.ioend_ended(status, tag);
        }
    }
}

/// What writeback of a device has going on.
pub(crate) struct State {
    pub(crate) counts: Counts,
    pub(crate) tickets: Tickets,
    pub(crate) spare: Spare,
    pub(crate) mapper: RefCell<Mapper>,
    pub(crate) flying: RefCell<Slab<Flying>>,
    /// What the flusher collects, and what FLUSHes do.
    pub(crate) background: RefCell<Collector>,
    pub(crate) sync: RefCell<Collector>,
    pub(crate) rounds: Group,
    pub(crate) device_flush: Group,
    /// The device's largest write.
    max_io_bytes: u32,
    ends: OnceCell<Rc<Ends>>,
    load: [Load; 2],
    watched: RefCell<Slab<Watched>>,
    /// An ioend has ended, or the flusher has.
    ended: WaitList,
    /// There may be work for the flusher.
    work: WaitList,
    /// Where the next background pass goes on.
    cursor: Cell<u64>,
    /// Memory is short: so many pages more.
    wanted: Cell<u64>,
    /// Counts what may have given the flusher something to write; and how far it had counted when
    /// it found nothing.
    news: Cell<u64>,
    exhausted: Cell<Option<u64>>,
    periodic_at: Cell<Option<Nanos>>,
    periodic: Alarm,
    retry: Alarm,
    idle: Cell<bool>,
    running: Cell<bool>,
    stopping: Cell<bool>,
}

impl State {
    /// For the first `len` sectors of `below`.
    pub(crate) fn new(below: &Rc<dyn BlockDevice>, len: Sector) -> State {
        State {
            counts: Counts::default(),
            tickets: Tickets::default(),
            spare: Spare::default(),
            mapper: RefCell::new(Mapper::new(below.clone(), len)),
            flying: RefCell::default(),
            background: RefCell::new(Collector::new(Purpose::Background)),
            sync: RefCell::new(Collector::new(Purpose::Sync)),
            rounds: Group::default(),
            device_flush: Group::default(),
            max_io_bytes: below.limits().max_io_bytes,
            ends: OnceCell::new(),
            load: Default::default(),
            watched: RefCell::default(),
            ended: WaitList::new(),
            work: WaitList::new(),
            cursor: Cell::new(0),
            wanted: Cell::new(0),
            news: Cell::new(0),
            exhausted: Cell::new(None),
            periodic_at: Cell::new(None),
            periodic: Alarm::default(),
            retry: Alarm::default(),
            idle: Cell::new(true),
            running: Cell::new(false),
            stopping: Cell::new(false),
        }
    }

    pub(crate) fn ends(&self, of: &Weak<PageCache>) -> Rc<Ends> {
        self.ends.get_or_init(|| Rc::new(Ends(of.clone()))).clone()
    }

    /// Bytes in flight.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.load.iter().map(|load| load.bytes.get()).sum()
    }

    fn load(&self, purpose: Purpose) -> &Load {
        match purpose {
            Purpose::Background => &self.load[0],
            Purpose::Sync | Purpose::Fua => &self.load[1],
        }
    }

    /// Waits until all ioends that have been opened have ended, or `enough` holds.
    pub(crate) async fn wait_ended(&self, enough: impl Fn() -> bool) {
        let ticket = self.tickets.next();
        self.ended.wait_for(|| self.tickets.all_ended(ticket) || enough()).await;
    }

    /// From now on `pages` are watched for failures, until [`State::unwatch`].
    pub(crate) fn watch(&self, pages: Range<u64>) -> usize {
        self.watched.borrow_mut().insert(Watched { pages, failed: None })
    }

    /// Whether any of it has failed so far.
    pub(crate) fn watched(&self, key: usize) -> Result<(), Status> {
        self.watched.borrow()[key].failed.map_or(Ok(()), Err)
    }

    pub(crate) fn unwatch(&self, key: usize) -> Result<(), Status> {
        self.watched.borrow_mut().remove(key).failed.map_or(Ok(()), Err)
    }

    pub(crate) fn tell_failure(&self, status: Status, runs: &[Range<u64>]) {
        for (_, watched) in self.watched.borrow_mut().iter_mut() {
            let of = &watched.pages;
            if runs.iter().any(|run| run.start < of.end && of.start < run.end) {
                watched.failed.get_or_insert(status);
            }
        }
    }

    fn has_news(&self) {
        self.news.set(self.news.get() + 1);
    }
}

/// Why the flusher works.
enum Due {
    Retry,
    Expired,
    Background,
}

impl PageCache {
    /// Pages have become dirty: there may be enough for the flusher, or a first one to grow old.
    pub(crate) fn wake_writeback(&self) {
        let wb = &self.writeback;
        wb.has_news();
        if wb.idle.get() && (wb.periodic_at.get().is_none() || self.is_over_background()) {
            wb.work.wake_all();
        }
    }

    /// Writes back what it can, however little is dirty: somebody waits for room.
    pub(crate) fn kick_writeback(&self) {
        let wb = &self.writeback;
        wb.wanted.set(CHUNK_PAGES);
        wb.work.wake_all();
    }

    /// Whether nothing gets written any more (see [`crate::errors::Errors::is_stuck`]), and all
    /// that is dirty has been tried.
    pub(crate) fn is_stuck(&self) -> bool {
        let tried = || self.errors.failing().map_or(0, |(_, pages)| pages * PAGE as u64);
        self.errors.is_stuck() && tried() >= self.dirty_bytes()
    }

    /// Starts the flusher.
    pub(crate) fn start_flusher(&self) {
        let wb = &self.writeback;
        assert!(!wb.running.replace(true), "one flusher a device");
        wb.stopping.set(false);
        let me = self.rc();
        reactor::spawn(async move { me.flusher().await });
    }

    /// Returns when the flusher has ended. What it has sent may be in flight still: a FLUSH waits
    /// for that.
    pub(crate) async fn stop_flusher(&self) {
        let wb = &self.writeback;
        wb.stopping.set(true);
        wb.work.wake_all();
        wb.ended.wake_all();
        wb.ended.wait_for(|| !wb.running.get()).await;
        wb.periodic_at.set(None);
        wb.periodic.due.set(None);
        wb.retry.due.set(None);
    }

    /// An attribute has been set: the periodic flusher's interval begins anew, and limits may be
    /// lower.
    pub(crate) fn writeback_set(&self) {
        let wb = &self.writeback;
        wb.has_news();
        wb.periodic_at.set(None);
        wb.work.wake_all();
    }

    /// Pages of the largest ioend.
    pub(crate) fn ioend_pages(&self) -> u64 {
        let bytes = self.config.ioend_bytes.get().min(self.writeback.max_io_bytes);
        (u64::from(bytes) / PAGE as u64).max(1)
    }

    /// How many more ioends may go, at least one (PC-WB1).
    pub(crate) fn ioends_left(&self, purpose: Purpose) -> u64 {
        let load = self.writeback.load(purpose);
        (purpose.share() * IOENDS_MAX).saturating_sub(load.ioends.get()).max(1)
    }

    /// Whether another ioend may go (PC-WB1).
    fn has_room(&self, purpose: Purpose) -> bool {
        let (load, share) = (self.writeback.load(purpose), purpose.share());
        let bytes_max = share * LARGE_IOENDS_MAX * self.ioend_pages() * PAGE as u64;
        load.ioends.get() < share * IOENDS_MAX && load.bytes.get() < bytes_max
    }

    pub(crate) async fn wait_for_ioends(&self, purpose: Purpose) {
        if !self.has_room(purpose) {
            self.writeback.ended.wait_for(|| self.has_room(purpose)).await;
        }
    }

    fn is_over_background(&self) -> bool {
        let dirty = self.cache.borrow().dirty_pages() * PAGE as u64;
        dirty > self.pacing.background_bytes()
    }

    async fn flusher(self: Rc<PageCache>) {
        let wb = &self.writeback;
        loop {
            let mut due = None;
            wb.idle.set(true);
            let ready = || {
                self.set_alarms();
                due = self.due();
                due.is_some() || wb.stopping.get()
            };
            wb.work.wait_for(ready).await;
            wb.idle.set(false);
            match due.filter(|_| !wb.stopping.get()) {
                Some(Due::Retry) => self.retry_failed().await,
                Some(Due::Expired) => self.write_expired().await,
                Some(Due::Background) => self.write_background().await,
                None => break,
            }
        }
        wb.running.set(false);
        wb.ended.wake_all();
    }

    fn due(&self) -> Option<Due> {
        let wb = &self.writeback;
        let now = reactor::now();
        if self.errors.retry_at().is_some_and(|at| at <= now) {
            return Some(Due::Retry);
        }
        if self.cache.borrow().dirty_pages() == 0 {
            wb.wanted.set(0);
            return None;
        }
        if wb.periodic_at.get().is_some_and(|at| at <= now) {
            return Some(Due::Expired);
        }
        if wb.exhausted.get() == Some(wb.news.get()) {
            return None;
        }
        let background = wb.wanted.get() > 0 || self.is_over_background();
        background.then_some(Due::Background)
    }

    /// Sees to it that the flusher is woken when something will be due.
    fn set_alarms(&self) {
        let wb = &self.writeback;
        let interval = u64::from(self.config.dirty_writeback_centisecs.get()) * CENTISECOND_NS;
        if self.cache.borrow().dirty_pages() == 0 || interval == 0 {
            wb.periodic_at.set(None);
        } else if wb.periodic_at.get().is_none() {
            wb.periodic_at.set(Some(reactor::now() + Nanos(interval)));
        }
        self.set_alarm(|s| &s.periodic, wb.periodic_at.get());
        self.set_alarm(|s| &s.retry, self.errors.retry_at());
    }

    fn set_alarm(&self, which: Which, due: Option<Nanos>) {
        let alarm = which(&self.writeback);
        alarm.due.set(due);
        let Some(due) = due else { return };
        if alarm.sleeps_until.get().is_none_or(|until| until > due) {
            alarm.sleeps_until.set(Some(due));
            reactor::spawn(sleep_until(self.me.clone(), which, due));
        }
    }

    async fn write_background(&self) {
        let wb = &self.writeback;
        let mut quota = CHUNK_PAGES.max(wb.wanted.replace(0));
        // The pass began at the cursor: what lies before it comes after the end.
        let mut wrapped = wb.cursor.get() == 0;
        wb.exhausted.set(None);
        while !wb.stopping.get() {
            self.wait_for_ioends(Purpose::Background).await;
            let (mut from, news) = (wb.cursor.get(), wb.news.get());
            let found = self.gather(&wb.background, &mut from, u64::MAX, quota, true, |_| true);
            wb.cursor.set(if found.end { 0 } else { from });
            self.send_ready(&wb.background);
            quota -= found.pages.min(quota);
            if found.end && std::mem::replace(&mut wrapped, true) {
                wb.exhausted.set(Some(news));
                break;
            }
            if quota == 0 {
                if wb.wanted.get() == 0 && !self.is_over_background() {
                    break;
                }
                quota = CHUNK_PAGES.max(wb.wanted.replace(0));
                wrapped = false;
                // A device that ends each write at once would keep everybody else waiting.
                reactor::yield_now().await;
            }
        }
        self.close(&wb.background);
    }

    async fn write_expired(&self) {
        let wb = &self.writeback;
        wb.periodic_at.set(None);
        let age = u64::from(self.config.dirty_expire_centisecs.get()) * CENTISECOND_NS;
        let now = reactor::now().0;
        let mut from = 0;
        while !wb.stopping.get() {
            self.wait_for_ioends(Purpose::Background).await;
            let old = |folio: &Folio| folio.dirtied_ns + age <= now;
            let found = self.gather(&wb.background, &mut from, u64::MAX, CHUNK_PAGES, true, old);
            self.send_ready(&wb.background);
            if found.end {
                break;
            }
        }
        self.close(&wb.background);
    }

    /// Tries all failed pages again.
    async fn retry_failed(&self) {
        let wb = &self.writeback;
        let (mut at, mut tried) = (0, false);
        self.errors.retry_is_due();
        while let Some(failed) = self.errors.next_failed(at).filter(|_| !wb.stopping.get()) {
            let mut from = failed.start.max(at);
            if !self.cache.borrow().is_dirty_in(&failed) {
                self.errors.settled(&failed); // Discarded.
                at = failed.end;
                continue;
            }
            let mut end = false;
            while !end && !wb.stopping.get() {
                self.wait_for_ioends(Purpose::Background).await;
                let to = failed.end;
                let found = self.gather(&wb.background, &mut from, to, u64::MAX, false, |_| true);
                end = found.end;
                if found.pages > 0 && !std::mem::replace(&mut tried, true) {
                    self.errors.retry_begins(reactor::now());
                }
                self.send_ready(&wb.background);
            }
            at = failed.end;
        }
        self.close(&wb.background);
        if !tried {
            self.errors.retry_later(reactor::now());
        }
        wb.has_news();
    }

    /// Sends what a collector has collected (PC-WB3).
    pub(crate) fn close(&self, collector: &RefCell<Collector>) {
        collector.borrow_mut().close();
        self.send_ready(collector);
        self.writeback.mapper.borrow_mut().rest();
    }

    /// An ioend goes out.
    pub(crate) fn writing_begins(&self, purpose: Purpose, bytes: u64) {
        let wb = &self.writeback;
        if wb.in_flight_bytes() == 0 {
            self.pacing.writeback_begins(reactor::now());
        }
        let load = wb.load(purpose);
        load.ioends.set(load.ioends.get() + 1);
        load.bytes.set(load.bytes.get() + bytes);
    }

    /// An ioend has ended, and the cache knows. `failed`: its pages are dirty again.
    pub(crate) fn writing_ends(&self, purpose: Purpose, bytes: u64, failed: bool) {
        let wb = &self.writeback;
        let load = wb.load(purpose);
        load.ioends.set(load.ioends.get() - 1);
        load.bytes.set(load.bytes.get() - bytes);
        let written = if failed { 0 } else { bytes };
        let more = wb.in_flight_bytes() > 0;
        self.pacing.written_back(written, more, self.dirty_bytes(), reactor::now());
        wb.has_news();
        if failed || wb.exhausted.get().is_some() {
            wb.work.wake_all();
        }
        wb.ended.wake_all();
        self.changed.wake_all();
    }
}

impl PageCache {
    /// A discard has ended, which FLUSHes wait for as for an ioend.
    pub(crate) fn discard_ended(&self, ticket: u64) {
        let wb = &self.writeback;
        wb.tickets.give_back(ticket);
        wb.has_news();
        wb.work.wake_all();
        wb.ended.wake_all();
    }
}

/// A task: wakes the flusher when the alarm is due, unless it was set to an earlier time.
async fn sleep_until(cache: Weak<PageCache>, which: Which, mut until: Nanos) {
    loop {
        let now = reactor::now();
        reactor::sleep(Nanos(until.0.saturating_sub(now.0))).await;
        let Some(cache) = cache.upgrade() else { return };
        let alarm = which(&cache.writeback);
        if alarm.sleeps_until.get() != Some(until) {
            return; // Another task sleeps until then.
        }
        alarm.sleeps_until.set(None);
        match alarm.due.get().filter(|due| *due > reactor::now()) {
            Some(later) => until = later,
            None => return cache.writeback.work.wake_all(),
        }
        alarm.sleeps_until.set(Some(until));
    }
}

#[cfg(test)]
#[path = "writeback_tests.rs"]
mod tests;
