// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a core waits for events: awake at first, if that pays, and then asleep in the kernel.
use block::Nanos;
use reactor::{Driver, Found};

use super::{Shared, Uring};
use crate::poll::{cpu_time, polls};

/// Looks of a poll before the clock is read again, which takes as long as a few of them.
const LOOKS_AT_ONCE: u32 = 4;

/// How long a core has waited for an event.
pub(super) struct Waited {
    pub(super) time: Nanos,
    pub(super) has_slept: bool,
}

impl Uring {
    /// How long a sleep may take, for a deadline: zero when it has come, none when the
    /// timeout of the ring ends the sleep.
    pub(super) fn left(&self, shared: &mut Shared, deadline: Nanos) -> Option<Nanos> {
        if deadline == Nanos::ZERO {
            return Some(deadline);
        }
        if shared.timeout.ends_by(deadline) {
            return None;
        }
        let left = deadline.saturating_sub(self.now());
        let is_set = shared.timeout.set(&mut shared.ring, deadline, left);
        (!is_set).then_some(left)
    }

    /// Waits for an event for `left`, at first awake if that pays, unless it has since `polled`.
    /// Returns how long that was, where cores may poll.
    pub(super) fn sleep(
        &self,
        shared: &mut Shared,
        mut left: Option<Nanos>,
        polled: Option<Nanos>,
    ) -> Option<Waited> {
        let start = polled.or_else(|| polls().then(|| self.now()));
        let mut has_events = false;
        if let (None, Some(start)) = (polled, start) {
            has_events = self.poll_until(shared, start, left, &|| false) != Found::Nothing;
            left = left.map(|left| left.saturating_sub(self.now().saturating_sub(start)));
        }
        let has_slept = !has_events && self.mailbox().begin_sleep();
        if has_slept {
            shared.wakeup.arm(&mut shared.ring);
            shared.sleep(left, || self.now());
            self.mailbox().end_sleep();
        }
        start.map(|start| Waited { time: self.now().saturating_sub(start), has_slept })
    }

    /// Looks for events as long as that pays, at most until `left` has passed since `start`.
    fn poll_until(
        &self,
        shared: &mut Shared,
        start: Nanos,
        left: Option<Nanos>,
        is_ready: &dyn Fn() -> bool,
    ) -> Found {
        let time = shared.poll_time.next();
        let time = left.map_or(time, |left| left.min(time));
        if time == Nanos::ZERO {
            return Found::Nothing;
        }
        if !shared.ring.submission().is_empty() {
            shared.wait(Some(Nanos::ZERO));
        }
        loop {
            for _ in 0..LOOKS_AT_ONCE {
                if self.mailbox().has_mail() || shared.has_completions() {
                    return Found::Event;
                }
                if is_ready() {
                    return Found::Ready;
                }
                std::hint::spin_loop();
            }
            if self.now().saturating_sub(start) >= time {
                return Found::Nothing;
            }
        }
    }

    /// Looks for events and ready pollers before a sleep, as long as that pays.
    pub(super) fn poll_awake(&self, deadline: Option<Nanos>, is_ready: &dyn Fn() -> bool) -> Found {
        let shared = &mut *self.shared.borrow_mut();
        shared.has_polled = None;
        if !shared.ready.is_empty() {
            return Found::Event;
        }
        let start = self.now();
        let left = deadline.map(|deadline| deadline.saturating_sub(start));
        let found = self.poll_until(shared, start, left, is_ready);
        if found != Found::Nothing {
            return found;
        }
        if left.is_some_and(|left| self.now().saturating_sub(start) >= left) {
            return Found::Event; // a timer
        }
        shared.has_polled = Some(start);
        found
    }
}

impl Shared {
    /// Waits for an event. Some waits are measured.
    fn sleep(&mut self, left: Option<Nanos>, now: impl Fn() -> Nanos) {
        if !self.poll_time.measures_next_sleep() {
            return self.wait(left);
        }
        // What is submitted is not a part of the sleep.
        self.wait(Some(Nanos::ZERO));
        let (begun, cpu) = (now(), cpu_time());
        self.wait(left);
        let cpu = cpu_time().saturating_sub(cpu);
        self.poll_time.measured(cpu, now().saturating_sub(begun));
    }

    /// Whether there are completions to reap. Asks the kernel only if it has some to deliver.
    fn has_completions(&mut self) -> bool {
        if self.ring.submission().taskrun() {
            self.wait(Some(Nanos::ZERO));
        }
        !self.ring.completion().is_empty()
    }
}
