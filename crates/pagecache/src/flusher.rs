// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flusher: the task that writes back in the background.
//!
//! | reason | what is written |
//! |---|---|
//! | more is dirty than the background threshold | from a cursor on, ascending, round and round |
//! | memory is short | the same, for a while, however little is dirty |
//! | every `dirty_writeback_centisecs` | folios dirty for longer than `dirty_expire_centisecs` |
//! | some time after an error | pages that could not be written |
//!
//! Each pass writes [`CHUNK_PAGES`] at least, so that pages are sorted and joined even if a writer
//! stays just above the threshold. While nothing is dirty no timer runs.
//!
//! Invariants
//! - PC-WB3 Every wait for the flusher ends: it sends its open ioends before it sleeps (except when
//!   it waits for room, which comes when an ioend ends), and before a FLUSH waits.
use std::cell::Cell;
use std::rc::Rc;

use block::Nanos;
use reactor::WaitList;

use crate::folio::Folio;
use crate::gather::Limit;
use crate::ioend::Purpose;
use crate::ioends::Ioends;
use crate::store::Store;
use crate::timer::Timer;

/// The kernel's MIN_WRITEBACK_PAGES: 4 MiB.
pub(crate) const CHUNK_PAGES: u64 = 1024;

const CENTISECOND_NS: u64 = 10_000_000;

/// What the task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no task.
    Stopped,
    /// It waits for work.
    Idle,
    Working,
    /// It ends at its next step.
    Stopping,
}

/// Why the flusher works.
enum Reason {
    Retry,
    Expired,
    Background,
}

/// See the module.
pub(crate) struct Flusher {
    state: Cell<State>,
    /// Woken when there may be work.
    work: Rc<WaitList>,
    /// Counts events that may have made work.
    generation: Cell<u64>,
    /// The generation at which a pass found nothing to write.
    exhausted_at: Cell<Option<u64>>,
    /// Where the next background pass goes on.
    pub(crate) cursor: Cell<u64>,
    /// Memory is short: pages to write in addition.
    requested: Cell<u64>,
    /// When old pages are looked for next.
    periodic_at: Cell<Option<Nanos>>,
    periodic: Timer,
    retry: Timer,
}

impl Flusher {
    /// No task yet.
    pub(crate) fn new() -> Flusher {
        let work = Rc::new(WaitList::new());
        Flusher {
            state: Cell::new(State::Stopped),
            generation: Cell::new(0),
            exhausted_at: Cell::new(None),
            cursor: Cell::new(0),
            requested: Cell::new(0),
            periodic_at: Cell::new(None),
            periodic: Timer::new(work.clone()),
            retry: Timer::new(work.clone()),
            work,
        }
    }

    fn note_work(&self) {
        self.generation.set(self.generation.get() + 1);
    }

    fn is_stopping(&self) -> bool {
        self.state.get() == State::Stopping
    }

    /// Pages have become dirty: there may be enough for a pass, or the first one begins to age.
    pub(crate) fn pages_dirtied(&self, store: &Store) {
        self.note_work();
        let idle = self.state.get() == State::Idle;
        if idle && (self.periodic_at.get().is_none() || store.is_over_background()) {
            self.work.wake_all();
        }
    }

    /// A task waits for room: writes back what it can, however little is dirty.
    pub(crate) fn request(&self) {
        self.requested.set(CHUNK_PAGES);
        self.work.wake_all();
    }

    /// An attribute has been set: the interval begins again, and limits may be lower.
    pub(crate) fn config_changed(&self) {
        self.note_work();
        self.periodic_at.set(None);
        self.work.wake_all();
    }

    /// An ioend has ended, and its pages may be dirty again.
    pub(crate) fn ioend_ended(&self, dirty_again: bool) {
        self.note_work();
        if dirty_again || self.exhausted_at.get().is_some() {
            self.work.wake_all();
        }
    }

    pub(crate) fn discard_ended(&self) {
        self.note_work();
        self.work.wake_all();
    }

    /// The caller spawns [`Flusher::run`].
    pub(crate) fn start(&self) {
        let before = self.state.replace(State::Working);
        assert_eq!(before, State::Stopped, "one flusher a device");
    }

    /// Returns when the task has ended. What it has sent may still be in flight.
    pub(crate) async fn stop(&self, ioends: &Ioends) {
        if self.state.get() != State::Stopped {
            self.state.set(State::Stopping);
        }
        self.work.wake_all();
        ioends.ended.wake_all();
        ioends.ended.wait_for(|| self.state.get() == State::Stopped).await;
        self.periodic_at.set(None);
        self.periodic.set(None);
        self.retry.set(None);
    }

    /// The task.
    pub(crate) async fn run(&self, store: &Store, ioends: &Ioends) {
        while !self.is_stopping() {
            let mut reason = None;
            self.state.set(State::Idle);
            let ready = || {
                self.set_timers(store);
                reason = self.reason(store);
                reason.is_some() || self.is_stopping()
            };
            self.work.wait_for(ready).await;
            let Some(reason) = reason.filter(|_| !self.is_stopping()) else { break };
            self.state.set(State::Working);
            match reason {
                Reason::Retry => self.retry_failed(store, ioends).await,
                Reason::Expired => self.write_expired(store, ioends).await,
                Reason::Background => self.write_background(store, ioends).await,
            }
        }
        self.state.set(State::Stopped);
        ioends.ended.wake_all();
    }

    fn reason(&self, store: &Store) -> Option<Reason> {
        let now = reactor::now();
        if store.errors.failed.retry_at().is_some_and(|at| at <= now) {
            return Some(Reason::Retry);
        }
        if store.folios.borrow().dirty_pages() == 0 {
            self.requested.set(0);
            return None;
        }
        if self.periodic_at.get().is_some_and(|at| at <= now) {
            return Some(Reason::Expired);
        }
        if self.exhausted_at.get() == Some(self.generation.get()) {
            return None;
        }
        let background = self.requested.get() > 0 || store.is_over_background();
        background.then_some(Reason::Background)
    }

    /// Sets the timers to when there will be work.
    fn set_timers(&self, store: &Store) {
        let interval = u64::from(store.config.dirty_writeback_centisecs.get()) * CENTISECOND_NS;
        if store.folios.borrow().dirty_pages() == 0 || interval == 0 {
            self.periodic_at.set(None);
        } else if self.periodic_at.get().is_none() {
            self.periodic_at.set(Some(reactor::now() + Nanos(interval)));
        }
        self.periodic.set(self.periodic_at.get());
        self.retry.set(store.errors.failed.retry_at());
    }

    async fn write_background(&self, store: &Store, ioends: &Ioends) {
        let mut quota = CHUNK_PAGES.max(self.requested.replace(0));
        // The pass begins at the cursor; pages before it come after the end of the device.
        let mut wrapped = self.cursor.get() == 0;
        self.exhausted_at.set(None);
        while !self.is_stopping() {
            ioends.wait_for_room(store, Purpose::Background).await;
            let (mut from, generation) = (self.cursor.get(), self.generation.get());
            let limit = Limit { to: u64::MAX, quota, skip_failed: true };
            let found = ioends.gather(store, &ioends.background, &mut from, limit, |_| true);
            self.cursor.set(if found.end { 0 } else { from });
            ioends.send_ready(store, &ioends.background);
            quota -= found.pages.min(quota);
            if found.end && std::mem::replace(&mut wrapped, true) {
                self.exhausted_at.set(Some(generation));
                break;
            }
            if quota == 0 {
                if self.requested.get() == 0 && !store.is_over_background() {
                    break;
                }
                quota = CHUNK_PAGES.max(self.requested.replace(0));
                wrapped = false;
                // A device that completes each write at once must not keep all other tasks waiting.
                reactor::yield_now().await;
            }
        }
        ioends.close(store, &ioends.background);
    }

    async fn write_expired(&self, store: &Store, ioends: &Ioends) {
        self.periodic_at.set(None);
        let age = u64::from(store.config.dirty_expire_centisecs.get()) * CENTISECOND_NS;
        let now = reactor::now().0;
        let (mut from, mut since) = (0, 0);
        let limit = Limit { to: u64::MAX, quota: CHUNK_PAGES, skip_failed: true };
        while !self.is_stopping() {
            ioends.wait_for_room(store, Purpose::Background).await;
            let old = |folio: &Folio| folio.dirtied_ns + age <= now;
            let found = ioends.gather(store, &ioends.background, &mut from, limit, old);
            ioends.send_ready(store, &ioends.background);
            if found.end {
                break;
            }
            yield_after_chunk(&mut since, found.pages).await;
        }
        ioends.close(store, &ioends.background);
    }

    /// Writes all failed pages again.
    async fn retry_failed(&self, store: &Store, ioends: &Ioends) {
        let failed = &store.errors.failed;
        let (mut at, mut tried, mut since) = (0, false, 0);
        failed.count_retry();
        while let Some(run) = failed.next(at).filter(|_| !self.is_stopping()) {
            let mut from = run.start.max(at);
            if !store.folios.borrow().is_dirty_in(&run) {
                failed.remove(&run); // Discarded.
                at = run.end;
                continue;
            }
            let mut end = false;
            while !end && !self.is_stopping() {
                ioends.wait_for_room(store, Purpose::Background).await;
                let limit = Limit::all_to(run.end);
                let found = ioends.gather(store, &ioends.background, &mut from, limit, |_| true);
                end = found.end;
                if found.pages > 0 && !std::mem::replace(&mut tried, true) {
                    failed.double_pause(reactor::now());
                }
                ioends.send_ready(store, &ioends.background);
                yield_after_chunk(&mut since, found.pages).await;
            }
            at = run.end;
        }
        ioends.close(store, &ioends.background);
        if !tried {
            failed.postpone_retry(reactor::now());
        }
        self.note_work();
    }
}

/// A device that completes each write at once must not keep all other tasks waiting.
async fn yield_after_chunk(since: &mut u64, pages: u64) {
    *since += pages;
    if *since >= CHUNK_PAGES {
        *since = 0;
        reactor::yield_now().await;
    }
}

#[cfg(test)]
#[path = "flusher_tests.rs"]
mod tests;
