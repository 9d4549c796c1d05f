// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Grace: counts what is in flight, so that one can wait for all that began before a moment while
//! more keeps coming.
//!
//! ```text
//!   epoch      0 0 0 0 0 │ 1 1 1 1 1 1 1 │ 0 0 ...
//!   passed()             ▲ flips, then waits for the count of epoch 0 alone
//! ```
use std::cell::Cell;
use std::fmt;

use crate::wait::WaitList;

/// In which epoch something began; what [`Grace::leave`] takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(bool);

/// What is in flight, by epoch.
///
/// Invariant: while nobody waits in [`Grace::passed`], nothing is in flight in the epoch that is
/// not the current one.
#[derive(Default)]
pub struct Grace {
    epoch: Cell<bool>,
    in_flight: [Cell<usize>; 2],
    /// Somebody waits for an epoch to end; others wait for their turn.
    ending: Cell<bool>,
    ended: WaitList,
}

impl Grace {
    /// Something begins.
    pub fn enter(&self) -> Epoch {
        let epoch = self.epoch.get();
        let count = &self.in_flight[usize::from(epoch)];
        count.set(count.get() + 1);
        Epoch(epoch)
    }

    /// It has ended.
    pub fn leave(&self, Epoch(epoch): Epoch) {
        let count = &self.in_flight[usize::from(epoch)];
        let left = count.get() - 1;
        count.set(left);
        if left == 0 && !self.ended.is_empty() {
            self.ended.wake_all();
        }
    }

    /// What has begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight[0].get() + self.in_flight[1].get()
    }

    /// Waits until all that had begun when the wait began has ended.
    pub async fn passed(&self) {
        if self.in_flight() == 0 {
            return;
        }
        self.ended.wait_for(|| !self.ending.replace(true)).await;
        let old = self.epoch.get();
        self.epoch.set(!old);
        self.ended.wait_for(|| self.in_flight[usize::from(old)].get() == 0).await;
        self.ending.set(false);
        self.ended.wake_all();
    }
}

impl Epoch {
    /// As the lowest bit of a tag for [`crate::chain`]; the others are zero.
    pub fn tag(self) -> u64 {
        u64::from(self.0)
    }

    /// From the lowest bit of a tag.
    pub fn from_tag(tag: u64) -> Epoch {
        Epoch(tag & 1 == 1)
    }
}

impl fmt::Debug for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grace({} in flight)", self.in_flight())
    }
}
