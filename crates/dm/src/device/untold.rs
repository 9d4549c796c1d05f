// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What devices below have lost that are gone with a table of before, and who must hear of it.
//!
//! ```text
//!   table of before ── last FLUSH ──▶ leaf     closed when the next table goes live
//!                                      │ LostWrites
//!   FLUSH ──▶ mapped device ──▶ Untold ┘       fails once for each opener that must hear
//! ```
//!
//! The next table may name another device, or none, and the same one again later: in both cases the
//! opener's FLUSH is about changes that this device has acknowledged.
//!
//! Invariants
//! - DM-UT1 A leaf that no other table uses is flushed before the table that leaves it is dropped,
//!   and what it knows of losses is kept here. While another table uses it, it knows them itself.
//! - DM-UT2 While there is somebody to tell, the device has no flat mapping, and other cores have
//!   no way past it: each FLUSH comes to the device itself.
//! - DM-UT3 While bios wait, FLUSHes wait too: they are told when they go on.
//!
//! Downside: nobody knows when an opener has gone, so one that flushes no more keeps the device off
//! the short way until it is made anew.
//!
//! Not covered: targets that are engines. They are suspended before, and what they have lost the
//! same target of the next table takes over ([`block::Target::take_over`]).
use std::cell::RefCell;

use block::{LostWrites, Opener};

/// Leaves that were lost one after another while somebody has not flushed once; beyond that the
/// oldest one is forgotten. Chosen: each is a disaster that an operator knows of.
const LEAVES_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Untold(RefCell<Vec<Box<dyn LostWrites>>>);

impl Untold {
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(super) fn add(&self, losses: Vec<Box<dyn LostWrites>>) {
        let mut all = self.0.borrow_mut();
        all.extend(losses);
        let surplus = all.len().saturating_sub(LEAVES_MAX);
        all.drain(..surplus);
    }

    /// A FLUSH of `opener` has come: whether it must fail.
    pub(super) fn tell(&self, opener: Opener) -> bool {
        let mut all = self.0.borrow_mut();
        let mut must_fail = false;
        for losses in all.iter_mut() {
            must_fail |= losses.tell(opener);
        }
        all.retain(|losses| !losses.are_told());
        must_fail
    }
}
