// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory budget of a process, for everything whose size a superblock, a table line or a client
//! decides.
//!
//! ```text
//!   limit │ reserved by engines, memory devices and doors │ free │
//!         └── reserve ▶ Reservation, given back as it is dropped
//! ```
//!
//! It only counts: nothing is allocated here. Where the system overcommits memory, a large
//! allocation succeeds, and the process is killed when it touches the pages. So whatever may become
//! large is reserved first, and refused with a number.
//!
//! Invariants
//! - BL-B1 All reservations together never exceed the limit, whichever cores they are made on.
//! - BL-B2 What needs memory to open reserves it before it writes anything to its media.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Error, ErrorKind, size_text};

/// The budget of all cores of a process.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    /// Where the limit is set, for messages.
    source: &'static str,
    reserved: AtomicU64,
}

impl Budget {
    /// At most `limit` bytes; `source` names where an operator changes it.
    #[must_use]
    pub const fn new(limit: u64, source: &'static str) -> Budget {
        Budget { limit, source, reserved: AtomicU64::new(0) }
    }

    /// A budget that refuses nothing.
    #[must_use]
    pub const fn unlimited() -> Budget {
        Budget::new(u64::MAX, "no limit")
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are not reserved.
    pub fn free(&self) -> u64 {
        self.limit - self.reserved.load(Relaxed)
    }

    /// Reserves `bytes`, until the reservation is dropped.
    ///
    /// # Errors
    /// `ENOMEM` if fewer are free; the error says how many are needed, and for what.
    pub fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        what: impl fmt::Display,
    ) -> Result<Reservation, Error> {
        let mut reservation = Reservation { budget: self.clone(), bytes: 0 };
        reservation.grow_to(bytes, what)?;
        Ok(reservation)
    }
}

/// Reserved bytes of a budget; dropping it returns them.
#[must_use = "dropping it returns the bytes"]
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises it to `bytes`; no effect when it has as many.
    ///
    /// # Errors
    /// `ENOMEM` as [`Budget::reserve`]; then nothing has changed.
    pub fn grow_to(&mut self, bytes: u64, what: impl fmt::Display) -> Result<(), Error> {
        let Some(more) = bytes.checked_sub(self.bytes) else { return Ok(()) };
        let Budget { limit, source, ref reserved } = *self.budget;
        // BL-B1
        let add = |sum: u64| sum.checked_add(more).filter(|sum| *sum <= limit);
        if let Err(sum) = reserved.fetch_update(Relaxed, Relaxed, add) {
            let (free, needed) = (size_text(limit - sum + self.bytes), size_text(bytes));
            let limit = size_text(limit);
            return Err(Error::new(
                ErrorKind::NoMemory,
                format!("{what} needs {needed} of memory, {free} of {limit} are free ({source})"),
            ));
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Lowers it to `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.budget.reserved.fetch_sub(self.bytes - bytes, Relaxed);
            self.bytes = bytes;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_limit() {
        let budget = Arc::new(Budget::new(100, "a test"));
        let mut first = budget.reserve(60, "first").unwrap();
        let refused = budget.reserve(41, "second").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoMemory);
        let wanted = "second needs 41 bytes of memory, 40 bytes of 100 bytes are free (a test)";
        assert_eq!(refused.to_string(), wanted);
        let second = budget.reserve(40, "second").unwrap();
        assert_eq!((budget.free(), second.bytes()), (0, 40));
        assert!(first.grow_to(61, "first").unwrap_err().to_string().contains("needs 61 bytes"));
        drop(second);
        first.grow_to(61, "first").unwrap();
        first.grow_to(5, "first").unwrap();
        assert_eq!(budget.free(), 39);
        first.shrink_to(10);
        first.shrink_to(30);
        assert_eq!((budget.free(), first.bytes()), (90, 10));
        drop(first);
        assert_eq!((budget.free(), budget.limit()), (100, 100));
    }

    #[test]
    fn a_sum_that_no_number_holds_is_refused() {
        let budget = Arc::new(Budget::unlimited());
        let all = budget.reserve(u64::MAX, "all").unwrap();
        assert!(budget.reserve(1, "one more").is_err());
        drop(all);
        assert_eq!(budget.free(), u64::MAX);
    }

    #[test]
    fn cores_share_one_budget() {
        let budget = Arc::new(Budget::new(1000, "a test"));
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..2000 {
                        let taken = budget.reserve(300, "a piece");
                        assert!(budget.free() <= 1000);
                        std::thread::yield_now(); // others reserve beside it
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(budget.free(), 1000);
    }
}
