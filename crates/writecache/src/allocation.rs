// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which runs of the device read as zeroes.
//!
//! ```text
//!   held blocks ──▶ zero runs of the origin ──▶ held blocks again
//!      = zero runs that no block was held of, before and after, and the cache's own zeroes
//! ```
//!
//! Invariants
//! - WC-ZR1 A run of the origin counts only where the cache held no block before the origin was
//!   asked. Such a block read then as the origin's did. If the origin had zeroes later, either they
//!   had been there then, or they came meanwhile from a client's request that went around the cache
//!   or was written back: in each case the block read as zeroes at some moment since the call. A
//!   block that was held then may have been written back and evicted since, after the origin had
//!   been looked at.
//! - WC-ZR2 And only where it holds none afterwards, and no filled write has failed meanwhile: an
//!   origin write that fails leaves its range undefined, and the cache keeps what it should have
//!   written (WC-R1, WC-SP2).
use block::runs::{Runs, joined, without};
use block::{LocalFuture, Sector, ZeroRuns};
use reactor::yield_now;

use crate::cache::Cache;
use crate::dm_target::WriteCache;
use crate::map::State;
use crate::planted::Fault;

/// Blocks that are looked up in a row, before others have their turn. Chosen: some 100 µs.
const LOOKUPS: u64 = 4096;

/// What a cache has of a range.
pub(crate) struct HeldBlocks {
    /// Runs of blocks that are in the cache.
    held: Runs,
    /// Runs of blocks that read as zeroes whatever the origin has.
    zeroes: Runs,
    /// How many filled writes had failed.
    failed_fills: u64,
}

impl Cache {
    /// What the cache has of a range, once no filled write is in flight there.
    pub(crate) async fn held_blocks(&self, at: Sector, len: Sector) -> HeldBlocks {
        let sectors = self.store.config.block_sectors();
        let (first, end) = (at.0 / sectors, (at + len).0.div_ceil(sectors));
        let run = |block: u64| {
            let sector = |b: u64| Sector(b * sectors).max(at).min(at + len);
            (sector(block), sector(block + 1) - sector(block))
        };
        let fills = &self.writeback.fills;
        // WC-SP2
        let _ = fills.must_reread(first..end, fills.failed(), &self.store).await;
        let failed_fills = fills.failed();
        let (mut held, mut zeroes) = (Runs::new(), Runs::new());
        let mut block = first;
        while block < end {
            let stop = end.min(block + LOOKUPS);
            {
                let slots = self.store.slots.borrow();
                for block in block..stop {
                    match slots.find(block).map(|version| version.state) {
                        None => {}
                        Some(State::Zero) => zeroes.push(run(block)),
                        Some(_) => held.push(run(block)),
                    }
                }
            }
            block = stop;
            yield_now().await;
        }
        HeldBlocks { held: joined(held), zeroes: joined(zeroes), failed_fills }
    }
}

impl WriteCache {
    /// Nothing when the cache is not open.
    fn held_blocks(&self, at: Sector, len: Sector) -> LocalFuture<Option<HeldBlocks>> {
        let cache = self.cache();
        Box::pin(async move { Some(cache?.held_blocks(at, len).await) })
    }

    /// The two looks at the cache, and the question to the origin between them.
    pub(crate) fn find_zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let late = self.has_fault(Fault::ZeroRunsLookLate);
        let early = self.has_fault(Fault::ZeroRunsLookEarly);
        // What they look at is looked at when they are awaited.
        let (before, after) = (self.held_blocks(at, len), self.held_blocks(at, len));
        // As clients see it: behind a guard lie other bytes.
        let origin = match self.cache() {
            Some(cache) => cache.writeback.origin.device.clone(),
            None => self.origin().clone(),
        };
        Box::pin(async move {
            let Some(mut before) = before.await else { return Runs::new() };
            if late {
                before.held.clear(); // Planted: WC-ZR1
            }
            let zeroes = origin.zero_runs(at, len).await;
            let Some(mut after) = after.await else { return Runs::new() };
            if early {
                after.held.clear(); // Planted: WC-ZR2
            } else if after.failed_fills != before.failed_fills {
                after.held = vec![(at, len)];
            }
            before.held.extend(after.held);
            let mut runs = without(&zeroes, &joined(before.held));
            runs.extend(after.zeroes);
            joined(runs)
        })
    }
}
