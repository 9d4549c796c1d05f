// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The check before a sleep: a core that had work asks the kernel once more, without waiting,
//! before it sleeps. That is no system call where it has nothing to submit and the kernel says
//! that it has deferred nothing.
//!
//! A check takes 0.5 us, and waking a core costs the waker up to 5 us (2026-11, in a virtual
//! machine); on a busy core the next event often arrives within that time. Under a client that
//! sends one request at a time it never does, and then each request pays for a system call more. So
//! checks that find nothing are left out:
//!
//! ```text
//!   a check has found something      a check before each sleep
//!   the 16th in a row has not        a check before every 32nd sleep
//! ```
//!
//! A check that submits is counted apart from one that does not: what was submitted may end at
//! once, and says nothing about clients.

/// So many checks in a row find nothing before some are left out: at one find in ten a check still
/// saves as much as it costs.
const MISSES_MAX: u32 = 16;
/// Sleeps without a check after that.
const LEFT_OUT: u32 = 31;

/// Whether checks of one kind pay.
#[derive(Debug, Default)]
struct Record {
    /// Checks in a row that found nothing.
    misses: u32,
    /// Sleeps that come without a check.
    left_out: u32,
}

impl Record {
    fn is_due(&mut self) -> bool {
        let is_due = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_due
    }

    fn checked(&mut self, has_found: bool) {
        if has_found {
            *self = Record::default();
        } else {
            self.misses += 1;
            if self.misses >= MISSES_MAX {
                *self = Record { misses: MISSES_MAX - 1, left_out: LEFT_OUT };
            }
        }
    }
}

/// Whether a core checks once more before it sleeps.
#[derive(Debug, Default)]
pub(crate) struct SleepCheck {
    submitting: Record,
    idle: Record,
}

impl SleepCheck {
    fn record(&mut self, submits: bool) -> &mut Record {
        if submits { &mut self.submitting } else { &mut self.idle }
    }

    /// Whether to check before this sleep; `submits`: the check would submit something.
    pub(crate) fn is_due(&mut self, submits: bool) -> bool {
        self.record(submits).is_due()
    }

    /// A check was made.
    pub(crate) fn checked(&mut self, submits: bool, has_found: bool) {
        self.record(submits).checked(has_found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `sleeps` had a check, each with the same luck.
    fn checks(check: &mut SleepCheck, sleeps: u32, has_found: bool) -> u32 {
        let mut checks = 0;
        for _ in 0..sleeps {
            if check.is_due(false) {
                check.checked(false, has_found);
                checks += 1;
            }
        }
        checks
    }

    #[test]
    fn checks_that_find_nothing_are_left_out() {
        let mut check = SleepCheck::default();
        assert_eq!(checks(&mut check, 16, false), 16);
        assert_eq!(checks(&mut check, 320, false), 10);
    }

    #[test]
    fn one_that_finds_something_brings_all_back() {
        let mut check = SleepCheck::default();
        checks(&mut check, 16, false);
        assert_eq!(checks(&mut check, 31, true), 0, "the first 31 are left out");
        assert_eq!(checks(&mut check, 100, true), 100);
        assert_eq!(checks(&mut check, 16, false), 16);
    }

    #[test]
    fn checks_that_submit_are_counted_apart() {
        let mut check = SleepCheck::default();
        checks(&mut check, 17, false);
        assert!(!check.is_due(false));
        assert!(check.is_due(true));
    }
}
