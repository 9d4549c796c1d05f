// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of unreadable dirty blocks: which do not match their checksum, and when they are tried
//! again. The rules are in `read_again`.
use std::cell::{Cell, RefCell};

use block::Nanos;
use policy::{BACKOFF_MAX_NS, backoff_ns};
use roaring::RoaringTreemap;

/// The first wait, and how often the task looks whether it is time. Chosen: a link that was pulled
/// is often back at once.
pub(super) const FIRST_WAIT: Nanos = Nanos::from_millis(100);

/// See the module.
#[derive(Default)]
pub(crate) struct Unreadable {
    /// Those of the bad blocks whose data were read, and do not match their checksum.
    pub(super) rotten: RefCell<RoaringTreemap>,
    /// The last read of a dirty block has failed, and none has succeeded since.
    pub(super) is_silent: Cell<bool>,
    /// Tries in a row that found it silent.
    pub(super) silent: Cell<u32>,
    /// Tries in a row that have brought no block back.
    pub(super) vain: Cell<u32>,
    /// The first bad block of the next try.
    pub(super) cursor: Cell<u64>,
}

impl Unreadable {
    /// The time from one try to the next (WC-UR2).
    pub(super) fn wait_ns(&self) -> u64 {
        match (self.is_silent.get(), self.vain.get()) {
            (true, _) => {
                FIRST_WAIT.0.saturating_mul(1 << self.silent.get().min(10)).min(BACKOFF_MAX_NS)
            }
            (false, 0) => FIRST_WAIT.0,
            (false, vain) => backoff_ns(vain),
        }
    }
}
