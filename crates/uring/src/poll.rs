// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Polling before sleep: a core that has nothing to do looks for events for a while, before it
//! lets the kernel put its thread to sleep.
//!
//! Waking a thread takes 5 to 50 us, most of it in virtual machines, and a client that sends one
//! request at a time waits for that with each of them. A core that polls takes a processor
//! meanwhile. So the time of a poll follows what polls have been good for, as KVM's `halt_poll_ns`
//! does:
//!
//! ```text
//!   an event came later than the poll, but within the limit   the next poll is twice as long
//!   an event came after the limit                             half as long, and none below 10 us
//!   an event came within the poll                             as long
//! ```
//!
//! A core without requests sleeps long, and after three of them it does not poll any more. While it
//! does not, it looks at the clock around one sleep in eight: the two looks are a hundredth of what
//! a request to the null device takes of client, kernel and server.
//!
//! The limit is set, or follows what a sleep costs on this machine: now and then the CPU time of a
//! thread is read before and after one. A poll that finds its event saves that time, and about
//! twice as much of the client's, in which the processor wakes. So it may take three times as long.
//! In a virtual machine a sleep took 10 us (2026-11-28); where it takes 2 or 3 few polls are begun.
use std::sync::atomic::{AtomicU64, Ordering};

use block::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// The shortest poll. Chosen: shorter than this the event could as well be awaited asleep.
const SHORTEST: Nanos = Nanos(10_000);
/// A poll may take as long as so many sleeps cost.
const SLEEPS: u64 = 3;
/// The longest poll of a limit that is not set.
const AUTO_MAX: Nanos = Nanos(50_000);
/// Every so many sleeps the cost of one is measured, which takes two system calls.
const MEASURED_EVERY: u32 = 64;

/// Of so many sleeps of a core that does not poll one is looked at.
const LOOKED_AT_EVERY: u32 = 8;

/// How long a core may poll before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollLimit {
    /// So long; zero: not at all.
    Time(Nanos),
    /// As long as that costs no more than a sleep.
    Auto,
}

/// [`PollLimit::Auto`]; any other value is a time.
const AUTO: u64 = u64::MAX;

/// The limit of the cores of this process.
static LIMIT_NS: AtomicU64 = AtomicU64::new(0);

/// Lets the cores of this process poll for up to `limit` before they sleep; at the start they do
/// not. Holds from a core's next sleep on.
pub fn set_poll_limit(limit: PollLimit) {
    let ns = match limit {
        PollLimit::Time(time) => time.0.min(AUTO - 1),
        PollLimit::Auto => AUTO,
    };
    LIMIT_NS.store(ns, Ordering::Relaxed);
}

/// The CPU time that a sleep takes from its thread.
#[derive(Debug, Default)]
struct SleepCost {
    /// Of the latest, about eight of them; zero: none was measured.
    average: Nanos,
    /// So many sleeps are not measured.
    left_out: u32,
}

impl SleepCost {
    fn is_due(&mut self) -> bool {
        let is_due = self.left_out == 0;
        self.left_out = if is_due { MEASURED_EVERY - 1 } else { self.left_out - 1 };
        is_due
    }

    /// A sleep took so much CPU time, of so much time altogether. One that did not put the thread
    /// to sleep does not count.
    fn measured(&mut self, cpu: Nanos, time: Nanos) {
        if time < Nanos(2 * cpu.0) {
            return;
        }
        self.average = match self.average {
            Nanos::ZERO => cpu,
            Nanos(average) => Nanos(average - average / 8 + cpu.0 / 8),
        };
    }
}

/// The CPU time of this thread.
pub(crate) fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (sec, nsec) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Nanos(sec.unwrap_or(0) * 1_000_000_000 + nsec.unwrap_or(0))
}

/// How long one core polls.
#[derive(Debug, Default)]
pub(crate) struct PollTime {
    time: Nanos,
    cost: SleepCost,
    /// So many sleeps are not looked at.
    left_out: u32,
}

impl PollTime {
    /// How long to poll now; zero: not at all.
    pub(crate) fn next(&self) -> Nanos {
        self.time.min(self.limit())
    }

    /// Whether to look how long the next sleep takes, polls included.
    pub(crate) fn looks_at_next_sleep(&mut self) -> bool {
        LIMIT_NS.load(Ordering::Relaxed) > 0 && self.looks()
    }

    fn looks(&mut self) -> bool {
        let looks = self.time > Nanos::ZERO || self.left_out == 0;
        self.left_out = if looks { LOOKED_AT_EVERY - 1 } else { self.left_out - 1 };
        looks
    }

    /// Whether the cost of the next sleep is to be measured.
    pub(crate) fn measures_next_sleep(&mut self) -> bool {
        LIMIT_NS.load(Ordering::Relaxed) == AUTO && self.cost.is_due()
    }

    /// A sleep took so much CPU time, of so much time altogether.
    pub(crate) fn measured(&mut self, cpu: Nanos, time: Nanos) {
        self.cost.measured(cpu, time);
    }

    /// An event came `after` the core had nothing to do any more, and found it asleep or polling.
    pub(crate) fn event_came(&mut self, after: Nanos, has_slept: bool) {
        // Of a sleep the last part was the way back.
        let waking = if has_slept { self.cost.average } else { Nanos::ZERO };
        self.adapt(after.saturating_sub(waking), self.limit());
    }

    fn adapt(&mut self, after: Nanos, limit: Nanos) {
        if after > limit {
            self.time = Nanos(self.time.0 / 2);
            if self.time < SHORTEST {
                self.time = Nanos::ZERO;
            }
        } else if after > self.time {
            self.time = Nanos(self.time.0 * 2).max(SHORTEST).min(limit);
        }
    }

    fn limit(&self) -> Nanos {
        match LIMIT_NS.load(Ordering::Relaxed) {
            AUTO => Nanos(self.cost.average.0 * SLEEPS).min(AUTO_MAX),
            ns => Nanos(ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Nanos = Nanos(50_000);

    fn after(events: &[u64]) -> u64 {
        let mut poll = PollTime::default();
        events.iter().for_each(|us| poll.adapt(Nanos(us * 1000), LIMIT));
        poll.time.0 / 1000
    }

    #[test]
    fn events_within_the_limit_lengthen_the_poll_up_to_it() {
        assert_eq!(after(&[30]), 10);
        assert_eq!(after(&[30, 30]), 20);
        assert_eq!(after(&[30, 30, 30]), 40);
        assert_eq!(after(&[30, 30, 30, 30]), 40, "it is long enough");
        assert_eq!(after(&[50, 50, 50, 50]), 50);
    }

    #[test]
    fn long_sleeps_end_the_polling() {
        assert_eq!(after(&[1000]), 0);
        assert_eq!(after(&[50, 50, 50, 50, 51]), 25);
        assert_eq!(after(&[50, 50, 50, 50, 51, 51]), 12);
        assert_eq!(after(&[50, 50, 50, 50, 51, 51, 51]), 0);
    }

    #[test]
    fn a_limit_of_zero_turns_it_off() {
        let mut poll = PollTime { time: Nanos(40_000), ..PollTime::default() };
        for _ in 0..3 {
            poll.adapt(Nanos(1), Nanos::ZERO);
        }
        assert_eq!(poll.time, Nanos::ZERO);
    }

    #[test]
    fn a_core_that_does_not_poll_looks_at_one_sleep_in_eight() {
        let mut poll = PollTime::default();
        let looks = |poll: &mut PollTime| (0..33).filter(|_| poll.looks()).count();
        assert_eq!(looks(&mut poll), 5);
        poll.adapt(Nanos(30_000), LIMIT);
        assert_eq!(looks(&mut poll), 33);
    }

    #[test]
    fn the_cost_of_a_sleep_is_that_of_the_latest_ones() {
        let mut cost = SleepCost::default();
        cost.measured(Nanos(8_000), Nanos(15_999));
        assert_eq!(cost.average, Nanos::ZERO, "it did not sleep");
        cost.measured(Nanos(8_000), Nanos(16_000));
        assert_eq!(cost.average, Nanos(8_000));
        cost.measured(Nanos(16_000), Nanos(1_000_000));
        assert_eq!(cost.average, Nanos(9_000));
        (0..100).for_each(|_| cost.measured(Nanos(2_000), Nanos(1_000_000)));
        assert!((1_900..2_100).contains(&cost.average.0), "{:?}", cost.average);
        let due = (0..129).filter(|_| cost.is_due()).count();
        assert_eq!(due, 3, "of 129 sleeps");
    }

    /// The same gap between requests is worth a poll where a sleep is dear, and only there.
    #[test]
    fn a_limit_of_its_own_follows_the_cost_of_a_sleep() {
        set_poll_limit(PollLimit::Auto);
        let poll_after = |cost: u64, gaps: &[u64]| {
            let average = Nanos(cost);
            let mut poll = PollTime::default();
            poll.cost.average = average;
            // Asleep, an event is noticed later by what waking costs.
            gaps.iter().for_each(|gap| poll.event_came(Nanos(gap + cost), true));
            poll.next()
        };
        assert_eq!(poll_after(10_000, &[20_000; 8]), Nanos(20_000));
        assert_eq!(poll_after(10_000, &[31_000; 8]), Nanos::ZERO);
        assert_eq!(poll_after(2_000, &[20_000; 8]), Nanos::ZERO);
        assert_eq!(poll_after(2_000, &[5_000; 8]), Nanos(6_000));
        assert_eq!(poll_after(100_000, &[49_000; 8]), AUTO_MAX);
        assert_eq!(poll_after(0, &[1; 8]), Nanos::ZERO, "nothing was measured yet");
        set_poll_limit(PollLimit::Time(Nanos::ZERO));
    }
}
