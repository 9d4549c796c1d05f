// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: the read-only attributes, in the order in which they are listed.
use block::Access;
use block::attr::{Attr, Kind, Metric, Spec, counter, figure, gauge, text};
use block::value::{TimeUnit, Value};

use crate::cache::Cache;

/// A part of a whole, in percent.
pub(crate) fn share(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

block::attrs! {
    /// All figures.
    pub(crate) static FIGURES: [Attr<Cache>];

    error: gauge(""), "status field 1: 0, or the errno of what is wrong",
        get |c| Value::Signed(c.errno().into());
    total_blocks: gauge("blocks"), "blocks of the cache device", get |c| c.store.slot_count();
    free_blocks: gauge("blocks"), "blocks that are free or clean", get |c| c.store.free_blocks();
    used_blocks: gauge("blocks"), "blocks that data or the log use; 0: nothing needs the cache",
        get |c| c.store.counts().slots - c.store.counts().free;
    writeback_blocks: gauge("blocks"), "blocks that are being written back",
        get |c| c.writeback.blocks();
    block_size: figure("bytes").metric(Metric::GAUGE.named("block_size_bytes")),
        "bytes of a block", get |c| c.store.config.block_size;
    dirty_blocks: gauge("blocks"), "blocks that the origin does not hold yet",
        get |c| c.store.counts().dirty;
    oldest_dirty_seconds: gauge("s"),
        "for how long, at least, the oldest dirty block is dirty; 0: none is",
        get |c| {
            let now = reactor::now();
            let since = c.store.slots.borrow_mut().oldest_since(now);
            since.map_or(0, |since| now.0.saturating_sub(since.0) / 1_000_000_000)
        };
    clean_blocks: gauge("blocks"), "blocks that the origin holds, too",
        get |c| c.store.counts().clean;
    bad_blocks: gauge("blocks"), "dirty blocks that can't be read at present; they are tried again",
        get |c| c.store.counts().bad;
    rotten_blocks: gauge("blocks"), "those of them that do not match their checksum",
        get |c| c.writeback.rotten_blocks();
    unsaved_blocks: gauge("blocks"), "blocks that the origin does not have: dirty, or unreadable",
        get |c| {
            let counts = c.store.counts();
            u64::from(counts.dirty) + u64::from(counts.bad) + c.zero_blocks()
        };
    zero_blocks: gauge("blocks"), "blocks of zeroes that the origin may not hold yet",
        get |c| c.zero_blocks();
    old_blocks: figure("blocks"), "with ordered: superseded versions of an epoch before",
        get |c| c.store.counts().old;
    pending_epochs: figure("epochs"), "with ordered: epochs that the origin has to get",
        get |c| c.store.slots.borrow().pending_epochs();
    epochs_together: counter("epochs"), "with ordered: epochs that needed no flush of their own",
        in store.stats;
    uncommitted_blocks: gauge("blocks"), "blocks written since the last commit",
        get |c| c.store.counts().unlogged;
    journal: text("in memory, or none: and why"),
        "where completed writes are that the log does not have, if this process is killed",
        get |c| c.journal_state();
    journal_changes: gauge(""), "changes that the journal in memory has and the log may not",
        get |c| c.store.slots.borrow().journal_changes();
    buffered_blocks: gauge("blocks"),
        "blocks that are in the write buffer, not on the cache device",
        get |c| c.store.slots.borrow().buffered_count();
    unwritten_blocks: gauge("blocks"),
        "blocks in memory alone since the cache failed: refused by its device, or not committed",
        get |c| c.unwritten_blocks();
    writes_buffered: counter("blocks"), "blocks whose writes were acknowledged from the buffer",
        in store.stats;
    buffer_runs: counter(""), "writes from the buffer to the cache device", in store.stats;
    buffer_run_bytes: counter("bytes"), "bytes that they wrote", in store.stats;
    buffer_waits: counter(""), "writes that had to wait for room in the buffer", in store.stats;
    buffer_paced_us: figure("us")
        .metric(Metric::COUNTER.named("buffer_paced_seconds").of_time(TimeUnit::Microsecond)),
        "how long writers were slowed because the buffer fills",
        get |c| c.store.stats.buffer_paced_ns.get() / 1000;
    buffer_write_errors: counter("blocks"), "buffered blocks that their slot has refused",
        in store.stats;
    reads: counter("blocks"), "blocks that clients have read", in store.stats;
    read_hits: counter("blocks"), "those of them that the cache had", in store.stats;
    writes: counter("blocks"), "blocks that clients have written", in store.stats;
    write_hits: counter("blocks"), "those of them that the cache had",
        get |c| c.store.stats.write_hits();
    writes_around: counter("blocks"), "blocks that went straight to the origin", in store.stats;
    writes_blocked: counter("blocks"), "blocks whose writers had to wait for a free slot",
        in store.stats;
    read_hit_percent: figure("percent"), "read_hits of reads",
        get |c| share(c.store.stats.read_hits.get(), c.store.stats.reads.get());
    write_hit_percent: figure("percent"), "write_hits of writes",
        get |c| share(c.store.stats.write_hits(), c.store.stats.writes.get());
    read_cache_state: text("on, or off, and why"), "whether blocks that are read enter",
        get |c| c.writeback.read_cache.state();
    read_admitted: counter("blocks"), "blocks that entered the cache because they were read again",
        in store.stats;
    read_refused_once: counter("blocks"), "blocks that missed, and had not been read before",
        in store.stats;
    read_refused_sequential: counter("blocks"), "blocks that missed in a long stream of reads",
        in store.stats;
    read_refused_budget: counter("blocks"),
        "blocks that were read again when the day's budget was spent", in store.stats;
    read_admissions_lost: counter("blocks"),
        "those that lost to a write, or for which there was no slot", in store.stats;
    data_write_bytes: counter("bytes"), "bytes of clients' writes on the cache device",
        get |c| {
            let (stats, installs) = (&c.store.stats, c.writeback.pacing.installs.get());
            let buffered = stats.writes_buffered.get() + stats.zeroes_installed.get();
            let at_once = installs.saturating_sub(buffered) * c.store.block_bytes() as u64;
            at_once + stats.buffer_run_bytes.get()
        };
    admitted_write_bytes: counter("bytes"), "bytes of read_admitted on the cache device",
        in store.stats;
    metadata_write_bytes: counter("bytes"), "bytes of log and checkpoints on it", in store.stats;
    flushes: counter(""), "FLUSHes of clients", in store.stats;
    flush_done_blocks: gauge("blocks"), "blocks that the running flush has written back",
        get |c| c.writeback.progress().unwrap_or((0, 0)).0;
    flush_total_blocks: gauge("blocks"), "blocks that the running flush set out to write back",
        get |c| c.writeback.progress().unwrap_or((0, 0)).1;
    drain_done_blocks: gauge("blocks"), "blocks that the running drain has written back",
        get |c| c.writeback.drain_progress().map_or(0, |drain| drain.done);
    drain_total_blocks: gauge("blocks"), "blocks that the running drain has to write back",
        get |c| c.writeback.drain_progress().map_or(0, |drain| drain.total);
    drain_active: gauge(""), "1: a drain is running",
        get |c| c.writeback.drain_progress().is_some();
    commits: counter(""), "commits", in store.stats;
    checkpoints: counter(""), "checkpoints", in store.stats;
    cache_flushes: counter(""), "flushes of the cache device", in store.stats;
    origin_flushes: counter(""), "flushes of the origin", in store.stats;
    origin_writes: counter(""), "writes of writeback", in store.stats;
    origin_write_bytes: counter("bytes"), "bytes written back",
        get |c| c.store.stats.written_back_bytes.get();
    gap_blocks_filled: figure("blocks"), "gaps between dirty blocks that writeback wrote, too",
        in store.stats;
    gap_blocks_copied: figure("blocks"), "those of them that were not in the cache",
        in store.stats;
    gap_bytes_read: figure("bytes"), "bytes read of the origin to fill gaps", in store.stats;
    gap_bytes_written: counter("bytes"), "bytes written to the origin to fill gaps",
        in store.stats;
    slot_reads: figure(""), "reads of the cache device that took the slots of many blocks",
        in store.stats;
    slot_read_bytes: figure("bytes"), "bytes of these reads, with gaps between slots",
        in store.stats;
    origin_command_ns: figure("ns"), "measured: what a command costs the origin",
        get |c| c.writeback.costs().map_or(0, |costs| costs.write.command_ns);
    origin_read_rate: figure("bytes a second"), "measured: how fast the origin reads",
        get |c| c.writeback.costs().map_or(0, |costs| costs.read_bytes_per_s());
    origin_write_rate: figure("bytes a second"), "measured: how fast it writes",
        get |c| c.writeback.costs().map_or(0, |costs| costs.write_bytes_per_s());
    checksum_errors: counter("blocks"), "blocks that did not match their checksum", in store.stats;
    scrubbed_blocks: counter("blocks"), "blocks that scrub has read and checked", in store.stats;
    scrub_errors: counter("blocks"), "those of them that could not be read, or were rotten",
        in store.stats;
    scrub_passes: counter(""), "how often scrub has come to the end of the cache", in store.stats;
    guarded_ranges: gauge(""), "ranges of the origin that have a signature: 2, or less",
        get |c| c.guard.as_ref().map_or(0, |guard| guard.guarded_ranges());
    throttled_us: figure("us")
        .metric(Metric::COUNTER.named("throttled_seconds").of_time(TimeUnit::Microsecond)),
        "how long writers were slowed down", get |c| c.store.stats.throttled_ns.get() / 1000;
    log_used_units: figure("units"), "units of the log in use",
        get |c| c.store.media.log_used_units();
    writeback_error: text("none, or an error"), "why the origin refused a write",
        get |c| c.writeback.retry.error().map_or("none".into(), |(status, _)| status.to_string());
    writeback_error_sector: text("none, or a sector"), "the first sector of that write",
        get |c| {
            let block = c.writeback.retry.error().and_then(|(_, block)| block);
            block.map_or("none".into(), |block| Value::from(c.store.sector_of(block).0))
        };
    writeback_errors: counter(""), "writes and flushes of the origin that failed", in store.stats;
    failing_blocks: gauge("blocks"), "blocks that the origin has refused and does not hold yet",
        get |c| c.writeback.retry.blocks();
    cache_read_errors: counter("blocks"), "blocks that the cache device could not read",
        in store.stats;
    bad_block_list: text("none, or sectors, and +N for those left out"),
        "first sectors of the blocks that can't be read", get |c| c.bad_blocks().to_string();
    drain_only: gauge(""), "1: the cache device fails, the cache takes nothing new",
        get |c| c.store.is_drain_only();
    drain_state: text("idle, or running and how far it is"), "the state of a drain",
        get |c| c.writeback.drain_progress().map_or("idle".into(), |drain| drain.to_string());
}

/// The command that writes all dirty blocks back within limits.
pub(crate) static DRAIN: Spec = Spec::new(
    "drain",
    Kind::Text("rate=BYTES, within=SECONDS and p99=MICROSECONDS, or stop, or stop flush,"),
    "writes everything back within limits",
)
.access(Access::Write);
