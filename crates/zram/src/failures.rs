// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failures of all parts of a device: what the log gets, and what `/healthz` reports.
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use block::Nanos;
use policy::IdleState;

/// How long a failure counts as a problem after it was seen last. Chosen: longer than the interval
/// of most checks, so that none misses it.
const FAILURE_TIME: Nanos = Nanos::from_secs(60);

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// A write got no memory.
    MemLimit,
    /// A page in memory does not match its checksum, or can't be decompressed.
    Damaged,
    /// A page could not be read back.
    ReadBack,
    /// A page could not be written back.
    Writeback,
}

impl FailureKind {
    const ALL: [FailureKind; 4] = [
        FailureKind::MemLimit,
        FailureKind::Damaged,
        FailureKind::ReadBack,
        FailureKind::Writeback,
    ];

    fn problem(self) -> &'static str {
        match self {
            FailureKind::MemLimit => "writes fail: mem_limit is reached",
            FailureKind::Damaged => "reads fail: pages in memory are damaged",
            FailureKind::ReadBack => "reads fail: pages can't be read back from the backing device",
            FailureKind::Writeback => "writeback fails: the pages stay in memory",
        }
    }
}

/// Takes the description of a failure; given by the program. Called on the core of the part.
pub type OnFailure = Box<dyn Fn(&str) + Send + Sync>;

/// When each kind was seen last.
#[derive(Default)]
pub(crate) struct Failures {
    /// By [`FailureKind`]; 0: never.
    last_ns: [AtomicU64; FailureKind::ALL.len()],
    on_failure: OnceLock<OnFailure>,
}

impl Failures {
    pub(crate) fn set_on_failure(&self, on_failure: OnFailure) {
        // Only the first counts: a device is made once.
        let _ = self.on_failure.set(on_failure);
    }

    pub(crate) fn note(&self, kind: FailureKind, what: &str, now: Nanos) {
        self.last_ns[kind as usize].store(now.0.max(1), Relaxed);
        if let Some(on_failure) = self.on_failure.get() {
            on_failure(what);
        }
    }

    /// What an operator has to act on.
    pub(crate) fn problems(&self, now: Nanos, auto: IdleState) -> Vec<String> {
        let is_failing = |kind: &FailureKind| {
            let last = self.last_ns[*kind as usize].load(Relaxed);
            last > 0 && now.0 < last.saturating_add(FAILURE_TIME.0)
        };
        let failing = FailureKind::ALL.into_iter().filter(is_failing).map(FailureKind::problem);
        let full = (auto == IdleState::Full)
            .then_some("automatic writeback stands still: the backing device is full");
        failing.chain(full).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_a_problem_for_a_minute() {
        let failures = Failures::default();
        let count = |at| failures.problems(Nanos::from_secs(at), IdleState::Off).len();
        assert_eq!(count(1), 0);
        failures.note(FailureKind::MemLimit, "no memory", Nanos::from_secs(10));
        assert_eq!((count(69), count(70)), (1, 0));
        failures.note(FailureKind::ReadBack, "no disk", Nanos::from_secs(20));
        assert_eq!((count(69), count(79), count(80)), (2, 1, 0));
    }

    #[test]
    fn a_full_backing_device_is_a_problem_of_automatic_writeback() {
        let problems = Failures::default().problems(Nanos(1), IdleState::Full);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("is full"), "{problems:?}");
    }
}
