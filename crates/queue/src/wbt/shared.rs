// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the leaves of all cores on one file share: the algorithm, the tokens, inputs and counters.
//!
//! The algorithm lies behind a lock. It changes when a window ends or a setting changes, and each
//! change has a number. A leaf keeps a copy of the limits and refreshes it when the number has
//! changed. So a request that starts at once takes no lock; a read stores two words.
use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use block::{CoreId, Nanos};
use policy::wbt::{
    Control, DeviceTraits, Inputs, Mode, Quota, ThrottleClass, ThrottleLimits, Verdict,
    WindowSample,
};
use reactor::{CoreLocal, Msg, core_id, now, post, sleep, spawn};

use super::counters::{Counters, Delta, Snapshot};
use super::tokens::{Load, Tokens, WakeFlag};
use super::wait_queue::WaitQueue;

/// A writer that was made to wait within this counts as waiting.
const RECENT_WAIT_NS: u64 = 1_000_000_000;
/// Windows without any sign, and nothing in flight, after which there is no point in more.
const SILENT_WINDOWS_MAX: u32 = 256;
/// Bytes of the words in which tokens are counted.
const SECTOR: u64 = 512;

/// How other cores make the leaf of one core look, while it has waiters.
pub(crate) struct PeerWaker {
    core: CoreId,
    line: CoreLocal,
    pub(crate) flag: WakeFlag,
}

impl PeerWaker {
    pub(crate) fn new(line: CoreLocal) -> PeerWaker {
        PeerWaker { core: core_id(), line, flag: WakeFlag::new() }
    }

    fn wake(&self) {
        if !self.flag.set() {
            return;
        }
        let line = self.line;
        let look = move || {
            if let Some(line) = line.get::<WaitQueue>() {
                line.look(now().0);
            }
        };
        if self.core == core_id() {
            spawn(async move { look() });
        } else {
            post(self.core, Msg::Call(Box::new(look)));
        }
    }
}

/// What happens after a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowEnd {
    /// Another window follows; if not, the task ends.
    pub(crate) goes_on: bool,
    /// Waiters must be woken.
    pub(crate) wakes: bool,
}

/// The result of the last window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastWindow {
    pub(crate) verdict: Option<Verdict>,
    pub(crate) read_p50_ns: Option<u64>,
    pub(crate) read_p99_ns: Option<u64>,
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) control: Control,
    pub(crate) device: DeviceTraits,
    watched: Vec<(Weak<Counters>, Snapshot)>,
    window_from_ns: u64,
    silent_windows: u32,
    /// Windows by [`Verdict`].
    pub(crate) windows: [u64; 4],
    pub(crate) last: LastWindow,
}

/// How long requests have waited.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    pub(crate) count: AtomicU64,
    pub(crate) total_ns: AtomicU64,
    pub(crate) max_ns: AtomicU64,
    /// In pieces.
    pub(crate) splits: AtomicU64,
    /// Past the limit, because they had waited too long.
    pub(crate) forced: AtomicU64,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) tokens: Tokens,
    state: Mutex<State>,
    /// How often the limits may have changed.
    changes: AtomicU64,
    wakers: Mutex<Vec<Arc<PeerWaker>>>,
    /// A task closes windows.
    armed: AtomicBool,
    /// Where it runs once other cores have leaves, too: of those one may stand still while it has
    /// nothing in flight, and its timers with it.
    home: OnceLock<CoreId>,
    last_read_ns: AtomicU64,
    dirty_wait_ns: AtomicU64,
    /// Requests in flight that are neither reads nor tracked.
    untracked: AtomicU32,
    /// Foreground reads in flight that were sent while something else than reads was in flight.
    /// Reads that are sent behind them wait for the same.
    late_reads: AtomicU32,
    /// Requests other than reads that have been sent.
    begun: AtomicU64,
    /// Since when writes are in flight, and how long they were before that in this window.
    busy_from_ns: AtomicU64,
    busy_ns: AtomicU64,
    /// A bio had to wait in this window.
    held: AtomicBool,
    /// A request is in flight that went past the limit.
    pub(crate) forced: AtomicBool,
    pub(crate) waits: Waits,
}

/// A time as a word in which 0 means never.
fn word(ns: u64) -> u64 {
    ns.max(1)
}

fn time(word: &AtomicU64) -> Option<u64> {
    Some(word.load(Relaxed)).filter(|ns| *ns > 0)
}

impl Shared {
    pub(crate) fn new(control: Control, device: DeviceTraits) -> Shared {
        let state = State {
            device,
            watched: Vec::new(),
            window_from_ns: 0,
            silent_windows: 0,
            windows: [0; 4],
            last: LastWindow::default(),
            control,
        };
        Shared {
            tokens: Tokens::new(state.control.is_on()),
            state: Mutex::new(state),
            changes: AtomicU64::new(0),
            wakers: Mutex::default(),
            armed: AtomicBool::new(false),
            home: OnceLock::new(),
            last_read_ns: AtomicU64::new(0),
            dirty_wait_ns: AtomicU64::new(0),
            untracked: AtomicU32::new(0),
            late_reads: AtomicU32::new(0),
            begun: AtomicU64::new(0),
            busy_from_ns: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            held: AtomicBool::new(false),
            forced: AtomicBool::new(false),
            waits: Waits::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the state: copies of the limits are out of date from now on.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let done = change(&mut state);
        self.changes.fetch_add(1, Release);
        done
    }

    /// The number of the last change. A copy that is taken after it has been read has the change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Acquire)
    }

    pub(crate) fn limits(&self) -> ThrottleLimits {
        self.look(|state| state.control.limits())
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Arc<PeerWaker>>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of another leaf are part of the windows from now on.
    pub(crate) fn add(&self, counters: &Arc<Counters>) {
        let mut state = self.lock();
        state.watched.retain(|(counters, _)| counters.strong_count() > 0);
        state.watched.push((Arc::downgrade(counters), Snapshot::nothing()));
    }

    pub(crate) fn inputs(&self, now_ns: u64) -> Inputs {
        let (last_read_ns, dirty_wait_ns) = (time(&self.last_read_ns), time(&self.dirty_wait_ns));
        Inputs { now_ns, last_read_ns, dirty_wait_ns }
    }

    /// Tracked requests in flight: writes, discards.
    pub(crate) fn in_flight(&self) -> [u32; 2] {
        [0, 1].map(|count| self.tokens.load(count).ios)
    }

    /// Of those writes, how many bytes.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.tokens.load(0).sectors * SECTOR
    }

    pub(crate) fn note_read(&self, now_ns: u64) {
        self.last_read_ns.store(word(now_ns), Relaxed);
    }

    pub(crate) fn note_dirty_wait(&self, now_ns: u64) {
        self.dirty_wait_ns.store(word(now_ns), Relaxed);
    }

    /// A foreground read goes. How many requests had been sent that are tracked, or no reads, if
    /// none of them is in flight, nor a read that was beside one.
    pub(crate) fn begin_read(&self) -> Option<u64> {
        let quiet = self.in_flight() == [0, 0]
            && self.untracked.load(Relaxed) == 0
            && self.late_reads.load(Relaxed) == 0;
        if !quiet {
            self.late_reads.fetch_add(1, Relaxed);
        }
        quiet.then(|| self.begun.load(Relaxed))
    }

    /// A foreground read has ended. `quiet` is from [`Shared::begin_read`]; whether nothing but
    /// reads that nobody tracks was in flight since.
    pub(crate) fn end_read(&self, quiet: Option<u64>) -> bool {
        if quiet.is_none() {
            self.late_reads.fetch_sub(1, Relaxed);
        }
        quiet.is_some_and(|begun| self.begun.load(Relaxed) == begun)
    }

    /// A request that is neither a read nor tracked goes.
    pub(crate) fn begin_untracked(&self) {
        self.begun.fetch_add(1, Relaxed);
        self.untracked.fetch_add(1, Relaxed);
    }

    pub(crate) fn end_untracked(&self) {
        self.untracked.fetch_sub(1, Relaxed);
    }

    /// Takes a token for `bytes` if `quota` lets it.
    pub(crate) fn take(&self, who: ThrottleClass, bytes: u64, quota: Quota, now_ns: u64) -> bool {
        let limit = Load { ios: quota.ios, sectors: quota.bytes / SECTOR };
        let before = self.tokens.take(who.count(), sectors(who, bytes), limit);
        if let Some(before) = before {
            self.taken(who, before, now_ns);
        }
        before.is_some()
    }

    /// Takes a token whatever is in flight, unless one that did so still is.
    pub(crate) fn force(&self, who: ThrottleClass, bytes: u64, now_ns: u64) -> bool {
        if self.forced.swap(true, SeqCst) {
            return false;
        }
        self.waits.forced.fetch_add(1, Relaxed);
        let before = self.tokens.take_anyway(who.count(), sectors(who, bytes));
        self.taken(who, before, now_ns);
        true
    }

    fn taken(&self, who: ThrottleClass, before: Load, now_ns: u64) {
        self.begun.fetch_add(1, Relaxed);
        if before.ios == 0 && who.count() == 0 {
            self.busy_from_ns.store(now_ns, Relaxed);
        }
    }

    /// Gives a token back. Returns how many leaves have waiters.
    pub(crate) fn give(&self, who: ThrottleClass, bytes: u64, now_ns: u64) -> u32 {
        let (left, waiting) = self.tokens.give(who.count(), sectors(who, bytes));
        if left.ios == 0 && who.count() == 0 {
            let from_ns = self.busy_from_ns.load(Relaxed);
            self.busy_ns.fetch_add(now_ns.saturating_sub(from_ns), Relaxed);
        }
        waiting
    }

    /// A leaf has its first waiter; it must look once more after this.
    pub(crate) fn open(&self, waker: Arc<PeerWaker>) {
        self.held.store(true, Relaxed);
        self.wakers().push(waker);
        self.tokens.announce();
    }

    /// The leaf has no waiter any more.
    pub(crate) fn close(&self, waker: &Arc<PeerWaker>) {
        self.tokens.retract();
        self.wakers().retain(|other| !Arc::ptr_eq(other, waker));
    }

    /// Wakes all leaves that have waiters, but for `mine`.
    pub(crate) fn wake_others(&self, mine: Option<&Arc<PeerWaker>>) {
        let others = |waker: &&Arc<PeerWaker>| !mine.is_some_and(|mine| Arc::ptr_eq(mine, waker));
        self.wakers().iter().filter(others).for_each(|waker| waker.wake());
    }

    /// Whether a task closes windows.
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(SeqCst)
    }

    /// Whether the caller is to start a task that closes windows. The first window begins then.
    pub(crate) fn arms(&self, now_ns: u64) -> bool {
        if self.armed.swap(true, SeqCst) {
            return false;
        }
        self.change(|state| {
            state.silent_windows = 0;
            // What came before the window is none of it, but for clean reads: there may be no
            // others.
            let Delta { clean_reads, .. } = state.delta();
            state.control.learn_at_rest(&clean_reads, now_ns);
            state.window_from_ns = now_ns;
        });
        self.busy(now_ns);
        true
    }

    /// Another core is to have a leaf, too: windows are closed on this one, which never stands
    /// still. The first that says so stays it.
    pub(crate) fn settle(&self) {
        self.home.get_or_init(core_id);
    }

    /// Starts the task that closes windows where it has to run, if that is another core.
    pub(crate) fn starts_elsewhere(self: &Arc<Shared>) -> bool {
        let Some(home) = self.home.get().filter(|home| **home != core_id()) else { return false };
        let shared = self.clone();
        post(*home, Msg::Call(Box::new(move || spawn(close_windows(shared)))));
        true
    }

    pub(crate) fn window_ns(&self) -> u64 {
        self.look(|state| state.control.window_ns())
    }

    /// Closes a window.
    pub(crate) fn close_window(&self, now_ns: u64) -> WindowEnd {
        let (wanted, wakes) = self.change(|state| {
            let sample = self.sample(state, now_ns);
            let step = state.control.step();
            let wanted = state.close(&sample);
            let wakes = match state.control.mode() {
                // As the kernel does; and no bio waits while nothing is in flight (QU-W2).
                Mode::Kernel => state.control.step() < step || self.in_flight() == [0, 0],
                Mode::Tail => true,
            };
            (wanted, wakes)
        });
        let is_busy = || self.in_flight() != [0, 0] || self.tokens.waiting() > 0;
        let mut goes_on = wanted || is_busy();
        if !goes_on {
            self.disarm();
            // A write that came meanwhile found it armed.
            goes_on = is_busy() && !self.armed.swap(true, SeqCst);
        }
        WindowEnd { goes_on, wakes }
    }

    /// What has come since the last window.
    fn sample(&self, state: &mut State, now_ns: u64) -> WindowSample {
        let Delta { clean_reads, other_reads: mut reads, writes, write_bytes } = state.delta();
        reads.merge(&clean_reads);
        let watched = state.watched.iter().filter_map(|(c, _)| c.upgrade()?.watched_ns()).min();
        let window_ns = now_ns.saturating_sub(state.window_from_ns);
        let dirty_wait_ns = time(&self.dirty_wait_ns);
        WindowSample {
            now_ns,
            window_ns,
            reads,
            clean_reads,
            writes: u32::try_from(writes).unwrap_or(u32::MAX),
            write_bytes,
            write_busy_ns: self.busy(now_ns).min(window_ns),
            read_outstanding_ns: watched.map(|issued_ns| now_ns.saturating_sub(issued_ns)),
            in_flight: self.in_flight().iter().sum(),
            dirty_waited: dirty_wait_ns
                .is_some_and(|then| now_ns.saturating_sub(then) < RECENT_WAIT_NS),
            held: self.held.swap(self.tokens.waiting() > 0, Relaxed),
        }
    }

    /// The task that closes windows ends.
    pub(crate) fn disarm(&self) {
        self.armed.store(false, SeqCst);
    }

    /// For how long writes were in flight since the last call.
    fn busy(&self, now_ns: u64) -> u64 {
        let before_ns = self.busy_ns.swap(0, Relaxed);
        if self.tokens.load(0).ios == 0 {
            return before_ns;
        }
        before_ns + now_ns.saturating_sub(self.busy_from_ns.swap(now_ns, Relaxed))
    }
}

/// Closes windows for leaves of other cores; ends with the last leaf.
async fn close_windows(shared: Arc<Shared>) {
    let mut goes_on = true;
    while goes_on && Arc::strong_count(&shared) > 1 {
        sleep(Nanos(shared.window_ns())).await;
        let closed = shared.close_window(now().0);
        if closed.wakes {
            shared.wake_others(None);
        }
        goes_on = closed.goes_on;
    }
}

/// Discards count as none: they carry nothing.
fn sectors(who: ThrottleClass, bytes: u64) -> u64 {
    if who == ThrottleClass::Discard { 0 } else { bytes / SECTOR }
}

impl State {
    fn delta(&mut self) -> Delta {
        let mut delta = Delta::default();
        for (counters, seen) in &mut self.watched {
            if let Some(counters) = counters.upgrade() {
                seen.take(&counters, &mut delta);
            }
        }
        delta
    }

    /// Whether another window is wanted although nothing is in flight.
    fn close(&mut self, sample: &WindowSample) -> bool {
        self.window_from_ns = sample.now_ns;
        let verdict = self.control.close_window(sample);
        self.windows[verdict as usize] += 1;
        self.last = LastWindow {
            verdict: Some(verdict),
            read_p50_ns: sample.reads.percentile_ns(500),
            read_p99_ns: sample.reads.percentile_ns(990),
        };
        let silent = verdict == Verdict::Unknown && sample.in_flight == 0;
        self.silent_windows = if silent { self.silent_windows + 1 } else { 0 };
        self.control.wants_timer() && self.silent_windows < SILENT_WINDOWS_MAX
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (writes, discards) = (self.tokens.load(0), self.tokens.load(1));
        write!(f, "Shared(writes {writes:?}, discards {discards:?})")
    }
}
