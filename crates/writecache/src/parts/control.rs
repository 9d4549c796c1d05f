// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control: operations of a divided cache that all parts carry out.
use block::runs::joined;
use block::{Error, Sector, Target};

use super::division::geometry_of_each;
use super::layout::area_of_each;
use super::shrink::SmallerLayout;
use super::{Parts, share_of_rate};
use crate::config::Config;
use crate::writeback::jobs::{DrainLimits, Stop};

impl Parts {
    /// The layout in the first `area` of the cache; `None` if the cache fits.
    ///
    /// # Errors
    /// `ENOSPC` if it is too small.
    pub(crate) async fn smaller_layout(
        &self,
        config: &Config,
        area: Sector,
    ) -> Result<Option<SmallerLayout>, Error> {
        if self.division.borrow().end() <= area {
            return Ok(None);
        }
        let each = area_of_each(area, self.count());
        geometry_of_each(config, each, self.count())?;
        let counters = self.ask(|part| async move { part.highest_counter() }).await;
        let counter = counters.into_iter().max().unwrap_or(0) + 1;
        Ok(Some(SmallerLayout { each, counter }))
    }

    /// Writes all blocks that are dirty now to the origin.
    pub(crate) async fn write_back_all(&self) -> Result<(), Error> {
        let flush = || vec!["flush".to_owned()];
        self.run_all(move |part| async move { part.message(flush()).await.map(drop) }).await
    }

    pub(crate) async fn clear_stats(&self) {
        self.ask(|part| async move { part.clear_stats_local() }).await;
    }

    /// The attribute `drain`. A rate limit is for all parts together.
    pub(crate) async fn drain(&self, value: String) -> Result<(), Error> {
        if let Some(stop) = Stop::parse(&value) {
            self.ask(move |part| async move { part.stop(stop) }).await;
            return Ok(());
        }
        let whole = DrainLimits::parse(&value)?;
        let limits = DrainLimits { rate: share_of_rate(whole.rate, self.count()), ..whole };
        self.run_all(move |part| async move { part.drain(limits).await }).await
    }

    pub(crate) async fn pause_background(&self, is_paused: bool) {
        self.ask(move |part| async move { part.pause_background(is_paused).await }).await;
    }

    /// Suspends all parts. With `with_flush` all dirty blocks are written back first.
    pub(crate) async fn suspend(&self, with_flush: bool) -> Result<(), Error> {
        let flushed = match with_flush {
            true => {
                // WC-RA5: a part that is empty waits for those that are not.
                self.ask(|part| async move { part.close_read_cache() }).await;
                self.write_back_all().await
            }
            false => Ok(()),
        };
        self.suspended.set(true);
        let settled = self.run_all(|part| async move { part.suspend().await }).await;
        self.refresh().await;
        flushed.and(settled)
    }

    /// Runs of dirty sectors in a range, as (first, length), ascending.
    pub(crate) async fn dirty_map(&self, cells: u32) -> Vec<u64> {
        let maps = self.ask(move |part| async move { part.dirty_map(cells).await }).await;
        let mut sum = vec![0; cells as usize];
        for map in maps.into_iter().flatten() {
            sum.iter_mut().zip(map).for_each(|(cell, bytes)| *cell += bytes);
        }
        sum
    }

    pub(crate) async fn dirty_runs(&self, at: Sector, len: Sector) -> Vec<(Sector, Sector)> {
        let runs = self.ask(move |part| async move { part.dirty(at, len).await }).await;
        joined(runs.into_iter().flatten().flatten().collect())
    }
}
