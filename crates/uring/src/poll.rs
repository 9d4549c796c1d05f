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
//! A core without requests sleeps long, and after three of them it does not poll any more.
use std::sync::atomic::{AtomicU64, Ordering};

use block::Nanos;

/// The shortest poll. Chosen: shorter than this the event could as well be awaited asleep.
const SHORTEST: Nanos = Nanos(10_000);

/// The longest poll of the cores of this process; zero: none polls.
static LIMIT_NS: AtomicU64 = AtomicU64::new(0);

/// Lets the cores of this process poll for up to `limit` before they sleep; zero, as at the start,
/// turns it off. Holds from a core's next sleep on.
pub fn set_poll_limit(limit: Nanos) {
    LIMIT_NS.store(limit.0, Ordering::Relaxed);
}

/// How long one core polls.
#[derive(Debug, Default)]
pub(crate) struct PollTime(Nanos);

impl PollTime {
    /// How long to poll now; zero: not at all.
    pub(crate) fn next(&self) -> Nanos {
        self.0.min(limit())
    }

    /// An event came `after` the core had nothing to do any more.
    pub(crate) fn event_came(&mut self, after: Nanos) {
        self.adapt(after, limit());
    }

    fn adapt(&mut self, after: Nanos, limit: Nanos) {
        if after > limit {
            self.0 = Nanos(self.0.0 / 2);
            if self.0 < SHORTEST {
                self.0 = Nanos::ZERO;
            }
        } else if after > self.0 {
            self.0 = Nanos(self.0.0 * 2).max(SHORTEST).min(limit);
        }
    }
}

fn limit() -> Nanos {
    Nanos(LIMIT_NS.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Nanos = Nanos(50_000);

    fn after(events: &[u64]) -> u64 {
        let mut time = PollTime::default();
        events.iter().for_each(|us| time.adapt(Nanos(us * 1000), LIMIT));
        time.0.0 / 1000
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
        let mut time = PollTime(Nanos(40_000));
        time.adapt(Nanos(1), Nanos::ZERO);
        time.adapt(Nanos(1), Nanos::ZERO);
        time.adapt(Nanos(1), Nanos::ZERO);
        assert_eq!(time.0, Nanos::ZERO);
    }
}
