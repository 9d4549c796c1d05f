// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The budget of requests in flight: their number and their data. Shared by all threads.
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
struct Used {
    requests: usize,
    bytes: usize,
    /// No more requests are admitted.
    closed: bool,
    /// Threads that wait for room, or for the end of all requests.
    waiting: usize,
}

/// The limits of all requests in flight together (FU-F1).
#[derive(Debug)]
pub(crate) struct Budget {
    requests_max: usize,
    bytes_max: usize,
    used: Mutex<Used>,
    less: Condvar,
}

/// The share of a request; a drop releases it.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(requests_max: usize, bytes_max: usize) -> Arc<Budget> {
        let (used, less) = (Mutex::default(), Condvar::new());
        Arc::new(Budget { requests_max, bytes_max, used, less })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        // Code under the lock can't panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room, which blocks the thread from taking further requests; `None` if closed. A
    /// request larger than the whole budget is admitted when no other is in flight.
    pub(crate) fn admit(self: &Arc<Budget>, bytes: usize) -> Option<Permit> {
        let mut used = self.lock();
        let full = |u: &Used| {
            u.requests >= self.requests_max
                || (u.requests > 0 && u.bytes.saturating_add(bytes) > self.bytes_max)
        };
        while full(&used) && !used.closed {
            used.waiting += 1;
            used = self.less.wait(used).unwrap_or_else(PoisonError::into_inner);
            used.waiting -= 1;
        }
        if used.closed {
            return None;
        }
        used.requests += 1;
        used.bytes += bytes;
        Some(Permit { budget: self.clone(), bytes })
    }

    /// Stops admitting requests.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.less.notify_all();
    }

    /// Waits until no request is in flight, at most for `limit`; returns how many are left.
    pub(crate) fn drained(&self, limit: Duration) -> usize {
        let mut used = self.lock();
        used.waiting += 1;
        let waited = self.less.wait_timeout_while(used, limit, |u| u.requests > 0);
        used = waited.unwrap_or_else(PoisonError::into_inner).0;
        used.waiting -= 1;
        used.requests
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.budget.lock();
        used.requests -= 1;
        used.bytes -= self.bytes;
        let wake = used.waiting > 0;
        drop(used);
        if wake {
            self.budget.less.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_request_waits_until_there_is_room() {
        let budget = Budget::new(8, 100);
        let first = budget.admit(60).unwrap();
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let second = budget.admit(60).unwrap();
                sender.send(()).unwrap();
                drop(second);
            });
            while budget.lock().waiting == 0 {
                std::thread::yield_now();
            }
            assert!(receiver.try_recv().is_err());
            drop(first);
            receiver.recv().unwrap();
        });
        assert_eq!(budget.drained(Duration::ZERO), 0);
    }

    #[test]
    fn the_request_count_is_bounded_and_a_giant_passes_alone() {
        let budget = Budget::new(1, 100);
        let giant = budget.admit(1000).unwrap();
        assert_eq!(budget.drained(Duration::ZERO), 1);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.admit(1).is_some());
            while budget.lock().waiting == 0 {
                std::thread::yield_now();
            }
            budget.close();
            assert!(!waiter.join().unwrap(), "closed: nobody enters");
        });
        drop(giant);
        assert_eq!(budget.drained(Duration::ZERO), 0);
    }
}
