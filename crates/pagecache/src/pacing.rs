// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pacing: slows writers to the rate of writeback. The policy decides, for each opener by itself.
//!
//! A write waits before it is copied when so much is dirty that the limit is reached, or when its
//! opener owes more than one pause. Otherwise it is copied at once, and completes later by the
//! pause that it costs. Example: at 100 MiB/s and with the setpoint dirty, a write of 1 MiB
//! completes 9 to 10 ms later.
//!
//! Invariants
//! - PC-PA1 An opener is kept only while it owes time. If more than [`DIRTIERS_MAX`] do, the one
//!   that owes least is forgotten.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use block::{Nanos, Opener};
use policy::{Admission, Bandwidth, Dirtier, DirtyThrottle, Thresholds};

use crate::config::Config;

/// Openers that owe time, at most. Chosen: each takes some 20 bytes.
const DIRTIERS_MAX: usize = 4096;

/// See the module.
pub(crate) struct Pacing {
    throttle: RefCell<DirtyThrottle>,
    dirtiers: RefCell<BTreeMap<Opener, Dirtier>>,
    pauses: Cell<u64>,
    paused: Cell<Nanos>,
    paused_max: Cell<Nanos>,
}

impl Pacing {
    pub(crate) fn new(config: &Config) -> Pacing {
        Pacing {
            throttle: RefCell::new(DirtyThrottle::new(config.dirty_limits())),
            dirtiers: RefCell::default(),
            pauses: Cell::new(0),
            paused: Cell::new(Nanos(0)),
            paused_max: Cell::new(Nanos(0)),
        }
    }

    /// The limits have been set.
    pub(crate) fn set_limits(&self, config: &Config, now: Nanos) {
        self.throttle.borrow_mut().set_limits(config.dirty_limits(), now.0);
    }

    /// Whether so much is dirty that a write must wait before it is copied.
    pub(crate) fn is_full(&self, dirty_bytes: u64) -> bool {
        dirty_bytes >= self.throttle.borrow().thresholds().limit
    }

    /// How long a write must wait before it is copied because its opener owes time. The caller asks
    /// again after that.
    pub(crate) fn owes(&self, opener: Opener, dirty_bytes: u64, now: Nanos) -> Option<Nanos> {
        let mut dirtiers = self.dirtiers.borrow_mut();
        let dirtier = dirtiers.get_mut(&opener)?;
        match self.throttle.borrow_mut().admit(dirtier, dirty_bytes, now.0) {
            Admission::After(ns) => Some(self.count(Nanos(ns))),
            Admission::Now | Admission::AtLimit => None,
        }
    }

    /// `opener` has written `bytes`, and `dirty_bytes` are dirty or being written now. Returns the
    /// pause by which the completion is delayed.
    pub(crate) fn wrote(
        &self,
        opener: Opener,
        bytes: u64,
        dirty_bytes: u64,
        now: Nanos,
    ) -> Option<Nanos> {
        let mut throttle = self.throttle.borrow_mut();
        if dirty_bytes < throttle.thresholds().freerun() {
            // No opener owes anything there. A debt of this opener is void at the next look.
            throttle.wrote(&mut Dirtier::default(), bytes, dirty_bytes, now.0);
            return None;
        }
        let mut dirtiers = self.dirtiers.borrow_mut();
        if dirtiers.len() >= DIRTIERS_MAX && !dirtiers.contains_key(&opener) {
            forget(&mut dirtiers, now);
        }
        let dirtier = dirtiers.entry(opener).or_default();
        let pause = Nanos(throttle.wrote(dirtier, bytes, dirty_bytes, now.0));
        (pause.0 > 0).then(|| self.count(pause))
    }

    fn count(&self, pause: Nanos) -> Nanos {
        self.pauses.set(self.pauses.get() + 1);
        self.paused.set(self.paused.get() + pause);
        self.paused_max.set(self.paused_max.get().max(pause));
        pause
    }

    /// The first write of writeback is in flight.
    pub(crate) fn writeback_begins(&self, now: Nanos) {
        self.throttle.borrow_mut().writeback_started(now.0);
    }

    /// `bytes` were written back, `dirty_bytes` are still dirty or being written. `more`: other
    /// writes are in flight.
    pub(crate) fn written_back(&self, bytes: u64, more: bool, dirty_bytes: u64, now: Nanos) {
        self.throttle.borrow_mut().writeback_done(bytes, more, dirty_bytes, now.0);
    }

    /// Dirty bytes above which background writeback runs.
    pub(crate) fn background_bytes(&self) -> u64 {
        self.throttle.borrow().thresholds().background
    }

    /// The thresholds in force, in bytes.
    pub(crate) fn thresholds(&self) -> Thresholds {
        self.throttle.borrow().thresholds()
    }

    /// The measured bandwidth of the device below.
    pub(crate) fn bandwidth(&self) -> Bandwidth {
        self.throttle.borrow().bandwidth().clone()
    }

    /// Bytes a second that each writer gets when the setpoint is dirty.
    pub(crate) fn rate(&self) -> u64 {
        self.throttle.borrow().rate()
    }

    /// The number of pauses, their sum, and the longest one.
    pub(crate) fn pauses(&self) -> (u64, Nanos, Nanos) {
        (self.pauses.get(), self.paused.get(), self.paused_max.get())
    }
}

/// Makes room for one more opener (PC-PA1).
fn forget(dirtiers: &mut BTreeMap<Opener, Dirtier>, now: Nanos) {
    dirtiers.retain(|_, d| d.due_ns() > now.0);
    if dirtiers.len() >= DIRTIERS_MAX {
        let least = dirtiers.iter().min_by_key(|(_, d)| d.due_ns()).map(|(o, _)| *o);
        dirtiers.remove(&least.expect("there are many"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config() -> Config {
        Config::parse(&["4", "dirty_bytes", "8M", "dirty_background_bytes", "4M"]).unwrap()
    }

    #[test]
    fn each_opener_pays_for_what_it_writes() {
        let pacing = Pacing::new(&config());
        let (a, b) = (Opener(1), Opener(2));
        let now = Nanos(1_000_000);
        assert_eq!(pacing.wrote(a, MIB, 5 * MIB, now), None);
        assert!(!pacing.is_full(8 * MIB - 1) && pacing.is_full(8 * MIB));
        // Until more is known, 100 MiB/s: 10 ms for a MiB at the setpoint.
        let ms = |n: u64| Some(Nanos(n * 1_000_000));
        assert_eq!(pacing.wrote(a, MIB, 7 * MIB, now), ms(9));
        assert_eq!(pacing.wrote(b, MIB, 7 * MIB, now), ms(9));
        // The rest is asked of its next write: the device has work for 70 ms, of which a pause may
        // take an eighth, or 10 ms.
        assert_eq!(pacing.wrote(a, MIB, 7 * MIB, now), ms(10));
        assert_eq!(pacing.owes(a, 7 * MIB, now), ms(9));
        for _ in 0..30 {
            pacing.wrote(a, MIB, 7 * MIB, now);
        }
        let owed = pacing.owes(a, 7 * MIB, now).unwrap();
        assert_eq!(Some(owed), ms(10));
        assert_eq!(pacing.owes(b, 7 * MIB, now), None);
        let (pauses, all, longest) = pacing.pauses();
        assert!(pauses > 30 && all > longest && longest <= Nanos(200_000_000));
        // Below freerun nothing is owed.
        assert_eq!(pacing.owes(a, MIB, now), None);
        assert_eq!(pacing.owes(a, 7 * MIB, now), None);
    }

    #[test]
    fn openers_without_debt_are_forgotten_and_the_rest_are_bounded() {
        let pacing = Pacing::new(&config());
        for nth in 0..3 * DIRTIERS_MAX {
            let opener = Opener(u32::try_from(nth).unwrap());
            pacing.wrote(opener, 64 * MIB, 7 * MIB, Nanos(1_000_000));
            assert!(pacing.dirtiers.borrow().len() <= DIRTIERS_MAX);
        }
        assert_eq!(pacing.dirtiers.borrow().len(), DIRTIERS_MAX);
        pacing.wrote(Opener(u32::MAX), MIB, 7 * MIB, Nanos(60_000_000_000));
        assert_eq!(pacing.dirtiers.borrow().len(), 1);
    }
}
