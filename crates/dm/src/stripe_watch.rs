// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts errors of bases for the stripes that lie there: bios of a flat mapping do not come
//! through the striped target, so it can't count them itself.
use std::rc::Rc;

use block::{OnIoError, Op, Sector, Status};

use crate::stripe_errors::StripeErrors;

/// Watches one base, for all stripes that lie on it.
pub(crate) struct StripeWatch {
    pub(crate) stripes: Vec<WatchedStripe>,
}

/// The areas of a stripe on one base, as first sectors and ends.
pub(crate) struct WatchedStripe {
    pub(crate) errors: Rc<StripeErrors>,
    pub(crate) stripe: usize,
    pub(crate) areas: Vec<(u64, u64)>,
}

impl OnIoError for StripeWatch {
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        let end = sector.0.saturating_add(len.0);
        for WatchedStripe { errors, stripe, areas } in &self.stripes {
            let hit = areas.iter().any(|(from, to)| sector.0 < *to && *from < end);
            if hit || op == Op::Flush {
                errors.count(*stripe, status);
            }
        }
    }
}
