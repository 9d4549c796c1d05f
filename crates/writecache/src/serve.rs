// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Serving bios, the commits that come by themselves, and what the device promises its clients.
use std::rc::{Rc, Weak};

use block::{Bio, BlockDevice, Limits, Nanos, Op, Sector, Status};

use crate::cache::{Cache, TaskGuard};
use crate::config::{Config, Mutation};
use crate::write::ZEROES_CACHED_BYTES_MAX;

impl Cache {
    /// The edges of a bio that is not of whole blocks, and no read, are merged. None if that leaves
    /// whole blocks to be handled.
    pub(crate) async fn handle_edges(&self, bio: &mut Bio) -> Option<Status> {
        if let Err(status) = self.limits.check(bio) {
            return Some(status);
        }
        let began = self.request_begins();
        let merged = self.merge_edges(bio).await;
        if merged == Ok(true) {
            return None;
        }
        self.unflushed.changed(bio.opener);
        self.request_ended(bio, began);
        Some(merged.map(drop).into())
    }

    /// A bio of whole blocks.
    pub(crate) async fn handle(&self, bio: &Bio) -> Status {
        if let Err(status) = self.limits.check(bio) {
            return status;
        }
        let began = self.request_begins();
        let outcome = match bio.op {
            Op::Read => self.read(bio).await,
            Op::Write => {
                let written = self.write(bio.sector, &bio.bufs, bio.class, bio.flags).await;
                self.unflushed.changed(bio.opener);
                written
            }
            Op::Flush => {
                self.stats.flushes.add(1);
                let nothing = self.mutation(Mutation::EpochOnlyWithCommit);
                if !nothing || self.counts().unlogged > 0 {
                    self.slots.borrow_mut().close_epoch(); // WC-E1
                }
                let sample = self.unflushed.sample(bio.opener);
                let committed = self.commit().await;
                let flushed = committed.and(self.flush_around(bio.class).await);
                self.unflushed.flushed(bio.opener, sample, flushed)
            }
            Op::WriteZeroes | Op::Discard => {
                let cleared = self.clear_sectors(bio).await;
                self.unflushed.changed(bio.opener);
                cleared
            }
        };
        self.request_ended(bio, began);
        outcome.into()
    }

    /// A discard, or zeroes.
    async fn clear_sectors(&self, bio: &Bio) -> Result<(), Status> {
        let are_zeroes = bio.op == Op::WriteZeroes;
        match self.config.ordered {
            true if are_zeroes => self.write_zeroes_in_order(bio).await,
            // Nothing goes around the cache: the origin is written in the order of epochs only.
            true => Err(Status::NotSupported),
            false if are_zeroes && bio.len.bytes() <= ZEROES_CACHED_BYTES_MAX => {
                self.write_zero_blocks(bio).await
            }
            false => self.clear(bio).await,
        }
    }

    /// A task: commits when many blocks have changed.
    pub(crate) async fn commit_when_many_task(self: Rc<Cache>, _guard: TaskGuard) {
        loop {
            let end = || self.stopping.get() || self.health().is_err();
            self.waits.wait_for(|| self.counts().unlogged >= self.commit_at() || end()).await;
            if end() || self.commit().await.is_err() {
                return;
            }
        }
    }

    /// A task: commits some time after the first change. Suspend does not wait for it, because it
    /// sleeps; asleep it does not keep the cache, whose devices may be closed meanwhile.
    pub(crate) async fn commit_when_old_task(weak: Weak<Cache>, period: u64) {
        while let Some(cache) = weak.upgrade() {
            let end = || {
                let over = cache.stopping.get() || cache.period.get() != period;
                over || cache.health().is_err()
            };
            cache.waits.first_change.wait_for(|| cache.counts().unlogged > 0 || end()).await;
            if end() {
                return;
            }
            let time = cache.tuning().autocommit_time.max(Nanos::from_millis(1));
            drop(cache);
            reactor::sleep(time).await;
            let Some(cache) = weak.upgrade() else { return };
            let over = cache.stopping.get() || cache.period.get() != period;
            if over || cache.commit().await.is_err() {
                return;
            }
        }
    }
}

pub(crate) fn limits(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    capacity: Sector,
) -> Limits {
    let (o, c) = (origin.limits(), device.limits());
    // What goes around the cache may tear as the origin tears.
    let around = if config.ordered { u32::MAX } else { o.atomic_write_unit_bytes };
    let atomic_bytes = c.atomic_write_unit_bytes.min(around);
    Limits {
        capacity,
        // Less than a block is merged (`merge`).
        logical_block_bytes: 512,
        merge_block_bytes: 0,
        physical_block_bytes: config.block_size.max(c.physical_block_bytes),
        io_min_bytes: config.block_size,
        io_opt_bytes: o.io_opt_bytes,
        max_io_bytes: o.max_io_bytes.min(c.max_io_bytes),
        atomic_write_unit_bytes: atomic_bytes.min(config.block_size),
        discard_granularity_bytes: if o.discard_granularity_bytes > 0 && !config.ordered {
            o.discard_granularity_bytes.max(config.block_size)
        } else {
            0
        },
        write_zeroes: true,
        volatile_cache: true,
        keeps: o.keeps && c.keeps,
        rotational: false,
        queue_depth: 0,
    }
}
