// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory of virtual machines may be mapped. A front end decides how long its file is, and
//! a hole costs it nothing, while each byte that is mapped takes addresses of this process. Pages
//! that nobody has touched are charged to this process when it stores there.
//!
//! Invariants
//! - UR-B1 What is mapped counts from before it is mapped until after it is unmapped, which a
//!   helper does (UR-G6), and is at most the limit.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Error, ErrorKind};

use crate::helpers;

/// How long a front end's thread waits for helpers that unmap what is no longer used. Chosen: they
/// give back 20 GiB by then.
const PATIENCE: Duration = Duration::from_secs(2);
const MIB: u64 = 1 << 20;

/// What all front ends together may have mapped.
#[derive(Debug)]
pub struct GuestBudget {
    limit: u64,
    mapped: AtomicU64,
}

/// A part of it that is taken.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<GuestBudget>,
    bytes: u64,
}

impl GuestBudget {
    /// `limit` bytes, of which nothing is mapped.
    pub fn new(limit: u64) -> Arc<GuestBudget> {
        Arc::new(GuestBudget { limit, mapped: AtomicU64::new(0) })
    }

    /// Checks what one front end wants to have mapped: at most half, for it gives memory anew while
    /// the old one is in use.
    ///
    /// # Errors
    /// `Limit` when it is more.
    pub fn check(&self, bytes: u64) -> Result<(), Error> {
        let most = self.limit / 2;
        if bytes <= most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Limit,
            format!(
                "memory of the guest: {bytes} bytes ({} MiB) are more than the {} MiB that one \
                 front end may have mapped: half of --vhost-memory, which is {} MiB: a larger one \
                 is allowed",
                bytes / MIB,
                most / MIB,
                self.limit / MIB
            ),
        ))
    }

    /// Takes `bytes` before they are mapped. May wait for a while: not for a core.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Share, Error> {
        let take = || {
            let add = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
            self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
        };
        let taken = take().or_else(|_| {
            helpers::wait_for_closes(PATIENCE);
            take()
        });
        if let Err(mapped) = taken {
            return Err(Error::new(
                ErrorKind::Limit,
                format!(
                    "memory of the guest: {bytes} bytes ({} MiB) do not fit: \
                     all front ends together have {} MiB mapped, and --vhost-memory allows {} MiB: \
                     a larger one is allowed",
                    bytes / MIB,
                    mapped / MIB,
                    self.limit / MIB
                ),
            ));
        }
        Ok(Share { budget: self.clone(), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.mapped.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_at_most_the_limit_and_comes_back() {
        let budget = GuestBudget::new(100 * MIB);
        let first = budget.take(60 * MIB).unwrap();
        let refused = budget.take(41 * MIB).unwrap_err().to_string();
        assert!(refused.contains("have 60 MiB mapped, and --vhost-memory allows 100"), "{refused}");
        assert!(budget.take(u64::MAX).is_err(), "no sum wraps");
        let rest = budget.take(40 * MIB).unwrap();
        drop(first);
        drop(budget.take(60 * MIB).unwrap());
        drop(rest);
        assert_eq!(budget.mapped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_front_end_gets_half() {
        let budget = GuestBudget::new(100 * MIB);
        assert!(budget.check(50 * MIB).is_ok());
        let refused = budget.check(50 * MIB + 1).unwrap_err().to_string();
        assert!(refused.contains("(50 MiB) are more than the 50 MiB"), "{refused}");
    }
}
