// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attribute `drain`, of the cache and for its parts.
use block::{Error, LocalFuture};

use super::WriteCache;
use crate::writeback::jobs::{DrainLimits, Stop};

impl WriteCache {
    /// The attribute `drain`: starts a drain and returns when it ends, or stops what is running.
    pub(super) fn set_drain(&self, value: String) -> LocalFuture<Result<(), Error>> {
        if let Some(parts) = self.parts() {
            return Box::pin(async move { parts.drain(value).await });
        }
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

    /// For a part: a drain with its share of the limits.
    pub(crate) async fn drain(&self, limits: DrainLimits) -> Result<(), Error> {
        self.running()?.writeback.clone().drain(limits).await
    }

    /// For a part: stops the running drain, or a `flush`, too.
    pub(crate) fn stop(&self, stop: Stop) {
        if let Some(cache) = self.cache() {
            cache.writeback.stop(stop);
        }
    }
}
