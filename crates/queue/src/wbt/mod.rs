// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling at a leaf: writes wait here, before the driver, so that reads beside them
//! stay quick.
//!
//! ```text
//!   reads, flushes,                writes, discards,
//!   SYNC|IDLE writes,              reads of writeback
//!   write zeroes                   ┌──────▼───────┐  over the limit┌─────────────────────────┐
//!        │ never wait              │ take a token ├───────────────▶│ queue: Sync ▸ Normal ▸  │
//!        │                         └──────┬───────┘                │ Background, and Discard │
//!        │                                │ in pieces,             └───────────┬─────────────┘
//!        │                                │ if it is long                      │ one has ended,
//!        ▼                                ▼                                    ▼ a window
//!   ───────────────────────────── driver ─────────────────────────────────────────
//!        │ how long it took               │ the token comes back ──▶ the next go
//!        └───────────▶ window ◀───────────┘      (other cores are woken)
//!                        │ WindowSample
//!                        ▼
//!                  policy::wbt::Control ─ ThrottleLimits ─▶ take a token
//!                                        a copy in each leaf
//! ```
//!
//! The leaves of all cores on one file share the algorithm (`policy::wbt`) and the tokens. Leaves
//! on several files of one disk should share them, too, as the disk has one queue; they do not yet.
//! The task that closes windows runs on the core whose leaf was shared with the others: of those,
//! one may stand still, timers and all, while it has nothing in flight. The task ends when nothing
//! is in flight, no bio waits, and the algorithm needs no timer.
//!
//! Invariants
//! - QU-W1 A tracked request starts only while what is in flight of its count is below the limit.
//!   Exception: one request at a time that has waited too long (kernel mode: only while leaves of
//!   several cores have waiters). Counts are back at 0 when nothing is in flight.
//! - QU-W2 While nothing of its count is in flight, no bio waits longer than until the next window,
//!   and windows go on while any bio waits.
//! - QU-W3 After every change of settings (off, another target, mode or queue depth), each bio that
//!   may start under the new limits starts at once.
//! - QU-W4 Foreground reads and read-ahead, flushes, write zeroes and SYNC|IDLE writes never wait.
//! - QU-W5 A bio that waits is in flight for [`crate::Stats`], so whoever swaps a table or closes a
//!   leaf or file waits for it.
//! - QU-W6 Kernel mode: bios of a count start in order of arrival. Tail mode: the most urgent class
//!   first; of a class whose head has waited 1 s, one bio starts every 200 ms, and one after every
//!   eight bios of other classes.
mod attributes;
mod class_queues;
#[cfg(test)]
mod cores_tests;
mod counters;
mod shared;
mod sync;
#[cfg(test)]
mod tests;
mod throttle;
#[cfg(test)]
mod token_tests;
mod tokens;
mod wait_queue;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::Limits;
use policy::wbt::{
    Control, ControlStats, Depth, DeviceTraits, LatencyTarget, Mode, ThrottleClass, Verdict,
};
use reactor::now;

use shared::{Shared, State};
pub(crate) use throttle::Throttle;

/// Requests that a device is taken to work on at once when nobody knows. Chosen: as many as a file
/// on a fast disk profits from.
const QUEUE_DEPTH_UNKNOWN: u32 = 128;

/// The throttle of a file on its way to another leaf, which adopts it with
/// [`crate::FileLeaf::with_wbt`]: on the same file, at another core, or on the same disk. Clones
/// are the same.
#[derive(Clone)]
pub struct SharedWbt(pub(crate) Arc<Shared>);

impl SharedWbt {
    /// A throttle for a device with these limits: on, by our law, with the default target.
    pub(crate) fn new(limits: &Limits) -> SharedWbt {
        let queue_depth = match limits.queue_depth {
            0 => QUEUE_DEPTH_UNKNOWN,
            depth => depth,
        };
        let (rotational, volatile_cache) = (limits.rotational, limits.volatile_cache);
        let device = DeviceTraits { queue_depth, rotational, volatile_cache };
        SharedWbt(Arc::new(Shared::new(Control::new(Mode::default(), device), device)))
    }
}

impl fmt::Debug for SharedWbt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the throttle of a leaf has to tell; all cores together, but for `waiting`.
#[derive(Clone, Debug)]
pub struct Report {
    /// The law in force.
    pub mode: Mode,
    /// The target in force; 0 when off.
    pub target_ns: u64,
    /// The scale step.
    pub step: i32,
    /// The depths in force; all 0 when off.
    pub depth: Depth,
    /// What else the law tells.
    pub control: ControlStats,
    /// Tracked requests in flight: writes, discards.
    pub in_flight: [u32; 2],
    /// Bytes of those writes.
    pub in_flight_bytes: u64,
    /// Bios that wait on this core, by [`ThrottleClass`].
    pub waiting: [usize; 4],
    /// Bios that had to wait.
    pub waits: u64,
    /// How long they waited together.
    pub waited_ns: u64,
    /// The longest of these times.
    pub waited_max_ns: u64,
    /// Bios that went in pieces.
    pub splits: u64,
    /// Pieces and bios that went past the limit, because they had waited too long.
    pub overdue: u64,
    /// Windows by [`Verdict`].
    pub windows: [u64; 4],
    /// What the last window said.
    pub verdict: Option<Verdict>,
    /// The median of its reads.
    pub read_p50_ns: Option<u64>,
    /// Their 99th percentile.
    pub read_p99_ns: Option<u64>,
}

/// The throttle of a leaf.
pub struct Wbt(Rc<Throttle>);

impl Wbt {
    pub(crate) fn new(throttle: Rc<Throttle>) -> Wbt {
        Wbt(throttle)
    }

    pub(crate) fn throttle(&self) -> &Rc<Throttle> {
        &self.0
    }

    /// For a leaf of another core on the same file, or one on the same disk.
    pub fn shared(&self) -> SharedWbt {
        self.0.shared.settle();
        SharedWbt(self.0.shared.clone())
    }

    /// Changes the law, and lets go whoever may go then.
    fn reconfigure(&self, change: impl FnOnce(&mut Control)) {
        let shared = &self.0.shared;
        let on = shared.change(|state| {
            change(&mut state.control);
            state.control.is_on()
        });
        // QU-W3: first it is so, then everybody looks.
        shared.tokens.set_on(on);
        self.0.settings_changed();
    }

    /// The target that was asked for.
    pub fn target(&self) -> LatencyTarget {
        self.0.shared.look(|state| state.control.target())
    }

    /// Aims at `target` from now on. The one in force already stays as it is.
    pub fn set_target(&self, target: LatencyTarget) {
        if self.target() != target {
            self.reconfigure(|law| law.set_target(target));
        }
    }

    /// The law in force.
    pub fn mode(&self) -> Mode {
        self.0.shared.look(|state| state.control.mode())
    }

    /// Goes by another law from now on, with the target that there was.
    pub fn set_mode(&self, mode: Mode) {
        if self.mode() != mode {
            let device = self.device();
            let mut law = Control::new(mode, device);
            law.set_target(self.target());
            self.set_control(law);
        }
    }

    /// Goes by this very law from now on: for benchmarks of laws with a shape of their own.
    pub fn set_control(&self, law: Control) {
        self.reconfigure(|old| *old = law);
    }

    fn device(&self) -> DeviceTraits {
        self.0.shared.look(|state| state.device)
    }

    /// Requests that the device is taken to work on at once.
    pub fn queue_depth(&self) -> u32 {
        self.device().queue_depth
    }

    /// Takes the device to work on so many requests at once; at least 1.
    pub fn set_queue_depth(&self, queue_depth: u32) {
        let before = self.device();
        let device = DeviceTraits { queue_depth: queue_depth.max(1), ..before };
        if device != before {
            self.0.shared.change(|state| state.device = device);
            self.reconfigure(|law| law.set_device(device));
        }
    }

    /// A writer above was made to wait because too much is dirty.
    pub fn writer_throttled(&self) {
        if self.0.shared.tokens.is_on() {
            self.0.shared.note_dirty_wait(now().0);
        }
    }

    /// What there is to tell.
    pub fn report(&self) -> Report {
        let shared = &self.0.shared;
        let line = self.0.line();
        let waiting =
            ThrottleClass::ALL.map(|who| line.as_ref().map_or(0, |line| line.waiting(who)));
        let waits = &shared.waits;
        shared.look(|State { control: law, windows, last, .. }| Report {
            mode: law.mode(),
            target_ns: law.target_ns(),
            step: law.step(),
            depth: law.depth(),
            control: law.stats(),
            in_flight: shared.in_flight(),
            in_flight_bytes: shared.in_flight_bytes(),
            waiting,
            waits: waits.count.load(Relaxed),
            waited_ns: waits.total_ns.load(Relaxed),
            waited_max_ns: waits.max_ns.load(Relaxed),
            splits: waits.splits.load(Relaxed),
            overdue: waits.forced.load(Relaxed),
            windows: *windows,
            verdict: last.verdict,
            read_p50_ns: last.read_p50_ns,
            read_p99_ns: last.read_p99_ns,
        })
    }
}

block::debug_as!(Wbt, s =>
    "Wbt({} {} ns, {:?})", s.mode().name(), s.report().target_ns, s.0.shared);
