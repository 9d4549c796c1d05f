// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a core waits for events: awake at first, if that pays, and then asleep in the kernel.
//!
//! Some commands end as they are submitted, and nobody is told if they have done all: these are
//! prompt requests. Their completions are taken with the next one. Otherwise each of them would end
//! the sleep in which it was submitted, and a check before a sleep would seem to have found
//! something.
use block::Nanos;
use io_uring::types;
use reactor::{Driver, Found};

use super::{Shared, Uring};
use crate::poll::cpu_time;
use crate::ring_timeout::timespec;

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
        let looks = polled.is_none() && shared.poll_time.looks_at_next_sleep();
        let start = polled.or_else(|| looks.then(|| self.now()));
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
    /// Submits what is in the submission ring, and waits for a completion: until `left` has passed,
    /// not at all if that is zero. Those of prompt requests are beside it.
    pub(super) fn wait(&mut self, left: Option<Nanos>) {
        let waited = match left {
            Some(Nanos::ZERO) => self.number.enter(&mut self.ring, 0),
            None => self.number.enter(&mut self.ring, 1 + self.prompt),
            Some(left) => {
                let time = timespec(left);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1 + self.prompt, &args).map(drop)
            }
        };
        if let Err(e) = waited {
            // Timeout, signal, pending completions, or a temporary lack of memory: the caller reaps
            // the completions and retries.
            let harmless =
                [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN, libc::ENOMEM, libc::ENOBUFS];
            let errno = e.raw_os_error().unwrap_or(0);
            // A lost completion leaves its request and buffers in flight for ever, and no correct
            // result exists for it. So panic: durable data are safe, as after a power cut.
            assert!(errno != libc::EBADR, "the kernel had no memory for a completion (EBADR)");
            assert!(harmless.contains(&errno), "io_uring_enter failed: {e}");
        }
    }

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

    /// Whether there are completions to reap, those of prompt requests beside. Asks the kernel only
    /// if it has some to deliver.
    fn has_completions(&mut self) -> bool {
        if self.ring.submission().taskrun() {
            self.wait(Some(Nanos::ZERO));
        }
        self.ring.completion().len() > self.prompt
    }
}
