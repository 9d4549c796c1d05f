// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the stripes of a striped target, counted for its status line.
use std::cell::Cell;

use block::Status;
use reactor::OnDone;

use crate::context::Events;

/// Errors of one stripe that raise an event; later ones are only counted (the kernel's number).
const ERROR_EVENTS_MAX: u32 = 15;

/// Failed requests by stripe. A flat mapping counts them by watching its bases; a bio that is sent
/// to the target itself is counted at its end.
pub(crate) struct StripeErrors {
    pub(crate) counts: Vec<Cell<u32>>,
    pub(crate) events: Events,
}

impl OnDone for StripeErrors {
    fn on_done(&self, status: Status, stripe: u64) {
        self.count(usize::try_from(stripe).expect("a stripe's index"), status);
    }
}

impl StripeErrors {
    pub(crate) fn count(&self, stripe: usize, status: Status) {
        // What does not fit or is not known there is its sender's mistake.
        if matches!(status, Status::Ok | Status::NotSupported | Status::Invalid) {
            return;
        }
        let count = self.counts[stripe].get().saturating_add(1);
        self.counts[stripe].set(count);
        if count <= ERROR_EVENTS_MAX {
            self.events.raise();
        }
    }
}
