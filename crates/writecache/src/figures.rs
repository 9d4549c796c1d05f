// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: the read-only attributes, in the order in which they are listed.
use block::Access;
use block::attr::{Attr, Kind, Metric, Spec};
use block::value::{TimeUnit, Value};

use crate::cache::Cache;
use crate::stats::Counter;

/// A read-only attribute.
pub(crate) struct Figure(Attr<Cache>);

impl Figure {
    pub(crate) fn get(&self, cache: &Cache) -> Value {
        self.0.get.expect("every figure can be read")(cache)
    }

    pub(crate) const fn spec(&self) -> &Spec {
        &self.0.spec
    }

    const fn metric(self, metric: Metric) -> Figure {
        let spec = self.0.spec.metric(metric);
        Figure(Attr { spec, ..self.0 })
    }
}

const fn number(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    get: fn(&Cache) -> Value,
) -> Figure {
    let spec = Spec::new(name, Kind::Number { min: 0, max: u64::MAX, unit }, help);
    Figure(Attr::read(spec, get))
}

const fn blocks(name: &'static str, help: &'static str, get: fn(&Cache) -> Value) -> Figure {
    number(name, "blocks", help, get)
}

/// A number that is exported as it is now.
const fn gauge(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    get: fn(&Cache) -> Value,
) -> Figure {
    number(name, unit, help, get).metric(Metric::GAUGE)
}

/// A number of blocks that is exported as it is now.
const fn blocks_now(name: &'static str, help: &'static str, get: fn(&Cache) -> Value) -> Figure {
    gauge(name, "blocks", help, get)
}

/// A counter of `stats` that is exported: its name, its unit, and what it counts, as
/// `counted!(reads, "blocks", "blocks that clients have read")`.
macro_rules! counted {
    ($name:ident, $unit:literal, $help:literal) => {
        number(stringify!($name), $unit, $help, |c| count(&c.store.stats.$name))
            .metric(Metric::COUNTER)
    };
}

const fn text(
    name: &'static str,
    form: &'static str,
    help: &'static str,
    get: fn(&Cache) -> Value,
) -> Figure {
    let spec = Spec::new(name, Kind::Text(form), help);
    Figure(Attr::read(spec, get))
}

const fn percent(name: &'static str, help: &'static str, get: fn(&Cache) -> Value) -> Figure {
    number(name, "percent", help, get)
}

/// A part of a whole, in percent.
pub(crate) fn share(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

fn count(counter: &Counter) -> Value {
    Value::Number(counter.get())
}

/// All figures.
pub(crate) static FIGURES: [Figure; 80] = [
    gauge("error", "", "status field 1: 0, or the errno of what is wrong", |c| {
        Value::Signed(c.errno().into())
    }),
    blocks_now("total_blocks", "blocks of the cache device", |c| c.store.slot_count().into()),
    blocks_now("free_blocks", "blocks that are free or clean", |c| c.store.free_blocks().into()),
    blocks_now("used_blocks", "blocks that data or the log use; 0: nothing needs the cache", |c| {
        let counts = c.store.counts();
        (counts.slots - counts.free).into()
    }),
    blocks_now("writeback_blocks", "blocks that are being written back", |c| {
        c.writeback.blocks().into()
    }),
    number("block_size", "bytes", "bytes of a block", |c| c.store.config.block_size.into())
        .metric(Metric::GAUGE.named("block_size_bytes")),
    blocks_now("dirty_blocks", "blocks that the origin does not hold yet", |c| {
        c.store.counts().dirty.into()
    }),
    gauge(
        "oldest_dirty_seconds",
        "s",
        "for how long, at least, the oldest dirty block is dirty; 0: none is",
        |c| {
            let now = reactor::now();
            let since = c.store.slots.borrow_mut().oldest_since(now);
            since.map_or(0, |since| now.0.saturating_sub(since.0) / 1_000_000_000).into()
        },
    ),
    blocks_now("clean_blocks", "blocks that the origin holds, too", |c| {
        c.store.counts().clean.into()
    }),
    blocks_now(
        "bad_blocks",
        "dirty blocks that can't be read at present; they are tried again",
        |c| c.store.counts().bad.into(),
    ),
    blocks_now("rotten_blocks", "those of them that do not match their checksum", |c| {
        c.writeback.rotten_blocks().into()
    }),
    blocks_now(
        "unsaved_blocks",
        "blocks that the origin does not have: dirty, or unreadable",
        |c| {
            let counts = c.store.counts();
            (u64::from(counts.dirty) + u64::from(counts.bad) + c.zero_blocks()).into()
        },
    ),
    blocks_now("zero_blocks", "blocks of zeroes that the origin may not hold yet", |c| {
        c.zero_blocks().into()
    }),
    blocks("old_blocks", "with ordered: superseded versions of an epoch before", |c| {
        c.store.counts().old.into()
    }),
    number("pending_epochs", "epochs", "with ordered: epochs that the origin has to get", |c| {
        c.store.slots.borrow().pending_epochs().into()
    }),
    counted!(epochs_together, "epochs", "with ordered: epochs that needed no flush of their own"),
    blocks_now("uncommitted_blocks", "blocks written since the last commit", |c| {
        c.store.counts().unlogged.into()
    }),
    text(
        "journal",
        "in memory, or none: and why",
        "where completed writes are that the log does not have, if this process is killed",
        |c| c.journal_state().into(),
    ),
    gauge(
        "journal_changes",
        "",
        "changes that the journal in memory has and the log may not",
        |c| c.store.slots.borrow().journal_changes().into(),
    ),
    blocks_now(
        "buffered_blocks",
        "blocks that are in the write buffer, not on the cache device",
        |c| c.store.slots.borrow().buffered_count().into(),
    ),
    blocks_now(
        "unwritten_blocks",
        "blocks in memory alone since the cache failed: refused by its device, or not committed",
        |c| c.unwritten_blocks().into(),
    ),
    counted!(writes_buffered, "blocks", "blocks whose writes were acknowledged from the buffer"),
    counted!(buffer_runs, "", "writes from the buffer to the cache device"),
    counted!(buffer_run_bytes, "bytes", "bytes that they wrote"),
    counted!(buffer_waits, "", "writes that had to wait for room in the buffer"),
    number("buffer_paced_us", "us", "how long writers were slowed because the buffer fills", |c| {
        (c.store.stats.buffer_paced_ns.get() / 1000).into()
    })
    .metric(Metric::COUNTER.named("buffer_paced_seconds").of_time(TimeUnit::Microsecond)),
    counted!(buffer_write_errors, "blocks", "buffered blocks that their slot has refused"),
    counted!(reads, "blocks", "blocks that clients have read"),
    counted!(read_hits, "blocks", "those of them that the cache had"),
    counted!(writes, "blocks", "blocks that clients have written"),
    blocks("write_hits", "those of them that the cache had", |c| {
        let stats = &c.store.stats;
        (stats.write_hits_uncommitted.get() + stats.write_hits_committed.get()).into()
    })
    .metric(Metric::COUNTER),
    counted!(writes_around, "blocks", "blocks that went straight to the origin"),
    counted!(writes_blocked, "blocks", "blocks whose writers had to wait for a free slot"),
    percent("read_hit_percent", "read_hits of reads", |c| {
        share(c.store.stats.read_hits.get(), c.store.stats.reads.get()).into()
    }),
    percent("write_hit_percent", "write_hits of writes", |c| {
        let stats = &c.store.stats;
        let hits = stats.write_hits_uncommitted.get() + stats.write_hits_committed.get();
        share(hits, stats.writes.get()).into()
    }),
    text("read_cache_state", "on, or off, and why", "whether blocks that are read enter", |c| {
        c.writeback.read_cache.state().into()
    }),
    counted!(read_admitted, "blocks", "blocks that entered the cache because they were read again"),
    counted!(read_refused_once, "blocks", "blocks that missed, and had not been read before"),
    counted!(read_refused_sequential, "blocks", "blocks that missed in a long stream of reads"),
    blocks(
        "read_refused_budget",
        "blocks that were read again when the day's budget was spent",
        |c| count(&c.store.stats.read_refused_budget),
    )
    .metric(Metric::COUNTER),
    blocks(
        "read_admissions_lost",
        "those that lost to a write, or for which there was no slot",
        |c| count(&c.store.stats.read_admissions_lost),
    )
    .metric(Metric::COUNTER),
    number("data_write_bytes", "bytes", "bytes of clients' writes on the cache device", |c| {
        let (stats, installs) = (&c.store.stats, c.writeback.pacing.installs.get());
        let buffered = stats.writes_buffered.get() + stats.zeroes_installed.get();
        let at_once = installs.saturating_sub(buffered) * c.store.block_bytes() as u64;
        (at_once + stats.buffer_run_bytes.get()).into()
    })
    .metric(Metric::COUNTER),
    counted!(admitted_write_bytes, "bytes", "bytes of read_admitted on the cache device"),
    counted!(metadata_write_bytes, "bytes", "bytes of log and checkpoints on it"),
    counted!(flushes, "", "FLUSHes of clients"),
    blocks_now("flush_done_blocks", "blocks that the running flush has written back", |c| {
        c.writeback.progress().unwrap_or((0, 0)).0.into()
    }),
    blocks_now("flush_total_blocks", "blocks that the running flush set out to write back", |c| {
        c.writeback.progress().unwrap_or((0, 0)).1.into()
    }),
    blocks_now("drain_done_blocks", "blocks that the running drain has written back", |c| {
        c.writeback.drain_progress().map_or(0, |drain| drain.done).into()
    }),
    blocks_now("drain_total_blocks", "blocks that the running drain has to write back", |c| {
        c.writeback.drain_progress().map_or(0, |drain| drain.total).into()
    }),
    gauge("drain_active", "", "1: a drain is running", |c| {
        c.writeback.drain_progress().is_some().into()
    }),
    counted!(commits, "", "commits"),
    counted!(checkpoints, "", "checkpoints"),
    counted!(cache_flushes, "", "flushes of the cache device"),
    counted!(origin_flushes, "", "flushes of the origin"),
    counted!(origin_writes, "", "writes of writeback"),
    number("origin_write_bytes", "bytes", "bytes written back", |c| {
        count(&c.store.stats.written_back_bytes)
    })
    .metric(Metric::COUNTER),
    blocks("gap_blocks_filled", "gaps between dirty blocks that writeback wrote, too", |c| {
        count(&c.store.stats.gap_blocks_filled)
    }),
    blocks("gap_blocks_copied", "those of them that were not in the cache", |c| {
        count(&c.store.stats.gap_blocks_copied)
    }),
    number("gap_bytes_read", "bytes", "bytes read of the origin to fill gaps", |c| {
        count(&c.store.stats.gap_bytes_read)
    }),
    counted!(gap_bytes_written, "bytes", "bytes written to the origin to fill gaps"),
    number("slot_reads", "", "reads of the cache device that took the slots of many blocks", |c| {
        count(&c.store.stats.slot_reads)
    }),
    number("slot_read_bytes", "bytes", "bytes of these reads, with gaps between slots", |c| {
        count(&c.store.stats.slot_read_bytes)
    }),
    number("origin_command_ns", "ns", "measured: what a command costs the origin", |c| {
        c.writeback.costs().map_or(0, |costs| costs.write.command_ns).into()
    }),
    number("origin_read_rate", "bytes a second", "measured: how fast the origin reads", |c| {
        c.writeback.costs().map_or(0, |costs| costs.read_bytes_per_s()).into()
    }),
    number("origin_write_rate", "bytes a second", "measured: how fast it writes", |c| {
        c.writeback.costs().map_or(0, |costs| costs.write_bytes_per_s()).into()
    }),
    counted!(checksum_errors, "blocks", "blocks that did not match their checksum"),
    counted!(scrubbed_blocks, "blocks", "blocks that scrub has read and checked"),
    counted!(scrub_errors, "blocks", "those of them that could not be read, or were rotten"),
    counted!(scrub_passes, "", "how often scrub has come to the end of the cache"),
    gauge("guarded_ranges", "", "ranges of the origin that have a signature: 2, or less", |c| {
        c.guard.as_ref().map_or(0, |guard| guard.guarded_ranges()).into()
    }),
    number("throttled_us", "us", "how long writers were slowed down", |c| {
        (c.store.stats.throttled_ns.get() / 1000).into()
    })
    .metric(Metric::COUNTER.named("throttled_seconds").of_time(TimeUnit::Microsecond)),
    number("log_used_units", "units", "units of the log in use", |c| {
        c.store.media.log_used_units().into()
    }),
    text("writeback_error", "none, or an error", "why the origin refused a write", |c| {
        c.writeback.retry.error().map_or("none".into(), |(status, _)| status.to_string().into())
    }),
    text("writeback_error_sector", "none, or a sector", "the first sector of that write", |c| {
        let block = c.writeback.retry.error().and_then(|(_, block)| block);
        block.map_or("none".into(), |block| c.store.sector_of(block).0.into())
    }),
    counted!(writeback_errors, "", "writes and flushes of the origin that failed"),
    blocks_now("failing_blocks", "blocks that the origin has refused and does not hold yet", |c| {
        c.writeback.retry.blocks().into()
    }),
    counted!(cache_read_errors, "blocks", "blocks that the cache device could not read"),
    text(
        "bad_block_list",
        "none, or sectors, and +N for those left out",
        "first sectors of the blocks that can't be read",
        |c| c.bad_blocks().to_string().into(),
    ),
    gauge("drain_only", "", "1: the cache device fails, the cache takes nothing new", |c| {
        c.store.is_drain_only().into()
    }),
    text("drain_state", "idle, or running and how far it is", "the state of a drain", |c| {
        c.writeback.drain_progress().map_or("idle".into(), |drain| drain.to_string().into())
    }),
];

/// The command that writes all dirty blocks back within limits.
pub(crate) static DRAIN: Spec = Spec::new(
    "drain",
    Kind::Text("rate=BYTES, within=SECONDS and p99=MICROSECONDS, or stop, or stop flush,"),
    "writes everything back within limits",
)
.access(Access::Write);

/// The figures that are exported as metrics.
pub(crate) fn metric_specs() -> impl Iterator<Item = &'static Spec> {
    specs().filter(|spec| spec.metric.is_some())
}

/// The figures' specifications, in the order in which they are listed.
pub(crate) fn specs() -> impl Iterator<Item = &'static Spec> {
    FIGURES.iter().map(Figure::spec)
}
