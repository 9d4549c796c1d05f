// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watch: counts for the stripes of a flat mapping what fails on its bases, which no bio tells.
use std::rc::Rc;

use block::{OnIoError, Op, Sector, Status};

use crate::stripe_errors::StripeErrors;

/// Counts the faults of one base for the stripes that lie on it.
pub(crate) struct Watch {
    pub(crate) stripes: Vec<Watched>,
}

/// What of a stripe lies on one base: first sectors and ends.
pub(crate) struct Watched {
    pub(crate) errors: Rc<StripeErrors>,
    pub(crate) stripe: usize,
    pub(crate) areas: Vec<(u64, u64)>,
}

impl OnIoError for Watch {
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        let end = sector.0.saturating_add(len.0);
        for Watched { errors, stripe, areas } in &self.stripes {
            let hit = areas.iter().any(|(from, to)| sector.0 < *to && *from < end);
            if hit || op == Op::Flush {
                errors.count(*stripe, status);
            }
        }
    }
}
