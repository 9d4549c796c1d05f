// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of a cache device, from its config and the devices below.
use block::{BlockDevice, Limits, Sector};

use crate::config::Config;
use crate::planted::Fault;

pub(crate) fn limits(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    capacity: Sector,
) -> Limits {
    let (o, c) = (origin.limits(), device.limits());
    // Writes around the cache may tear like writes of the origin.
    let around = if config.ordered { u32::MAX } else { o.atomic_write_unit_bytes };
    let atomic_bytes = c.atomic_write_unit_bytes.min(around);
    let is_in_order = config.ordered || config.planted.is(Fault::SurvivesUnordered);
    Limits {
        capacity,
        // Requests for less than a block are merged (`merge`).
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
        // A FLUSH commits the cache, whatever the origin can do. What is written back is
        // as safe then as the origin makes it by itself.
        keeps: c.keeps && !o.loses_all,
        loses_all: o.loses_all || c.loses_all,
        // By a journal in memory: whether this cache has one is known when it is open. With
        // `ordered` no write goes around the cache, and a block is dirty until it is flushed.
        survives_kill: (o.survives_kill || is_in_order && o.flushed_survives_kill)
            && c.survives_kill
            && reactor::shared_memory().is_some(),
        flushed_survives_kill: o.flushed_survives_kill && c.flushed_survives_kill,
        keeps_write_order: false,
        rotational: false,
        queue_depth: 0,
    }
}
