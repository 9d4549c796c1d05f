// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attribute `drain`.
use block::{Error, LocalFuture};

use super::WriteCache;
use crate::writeback::jobs::{DrainLimits, Stop};

impl WriteCache {
    /// The attribute `drain`: starts a drain and returns when it ends, or stops what is running.
    pub(super) fn set_drain(&self, value: String) -> LocalFuture<Result<(), Error>> {
        let cache = self.running();
        Box::pin(async move {
            let cache = cache?;
            if let Some(stop) = Stop::parse(&value) {
                cache.writeback.stop(stop);
                return Ok(());
            }
            cache.writeback.clone().drain(DrainLimits::parse(&value)?).await
        })
    }
}
