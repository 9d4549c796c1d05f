// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fan-out: one bio that was sent on as several.
use block::{Completion, Status};

use crate::core::spawn;
use crate::io::BioFuture;

/// Completes a bio when all `parts` that it was sent on as have ended, with the worst of their
/// statuses ([`Status::worst`]): the first failure, but any other failure is worse than
/// `NotSupported`.
pub fn complete_after(bio: Completion, parts: impl IntoIterator<Item = BioFuture> + 'static) {
    spawn(async move {
        let mut worst = Status::Ok;
        for part in parts {
            worst = worst.worst(part.await.into());
        }
        bio.complete(worst);
    });
}
