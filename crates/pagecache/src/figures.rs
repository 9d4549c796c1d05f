// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: the numbers that the reports are lines of, and their names in `/metrics`.
use std::fmt::Write;

use block::PAGE;
use block::attr::{self, Attr, Metric, Spec, counter, figure, gauge};
use block::value::TimeUnit;

use crate::device::PageCache;

/// A number of a report.
type Figure = Attr<PageCache>;

const fn bytes(pages: u64) -> u64 {
    pages * PAGE as u64
}

block::attrs! {
    static CACHE_STAT: [Figure];

    memory_limit_bytes: gauge(""), "memory that folios may use",
        get |c| c.store.memory.limit_bytes();
    memory_used_bytes: gauge(""), "memory that folios use", get |c| c.store.memory.used_bytes();
    folios: gauge(""), "folios in the cache", get |c| c.store.folios.borrow().folios() as u64;
    cached_bytes: gauge(""), "data in the cache", get |c| bytes(c.store.folios.borrow().pages());
    dirty_bytes: gauge(""), "data that the device below does not have yet",
        get |c| bytes(c.store.folios.borrow().dirty_pages());
    writeback_bytes: gauge(""), "data that are being written back",
        get |c| bytes(c.store.folios.borrow().writing_pages());
    read_hits: counter(""), "reads that the cache answered", get |c| c.hits.get();
    read_misses: counter(""), "reads that went to the device below", get |c| c.misses.get();
    readahead_windows: counter(""), "windows that were read ahead",
        get |c| c.readahead.counts().0;
    readahead_bytes: counter(""), "data that were read ahead",
        get |c| bytes(c.readahead.counts().1);
    evicted_folios: counter(""), "folios that made room for others", get |c| c.store.evicted.get();
}

block::attrs! {
    static BANDWIDTH: [Figure];

    write_bytes_per_s: figure("").metric(Metric::GAUGE.named("write_bytes_per_second")),
        "measured bandwidth of the device below",
        get |c| c.store.pacing.bandwidth().known(reactor::now().0).unwrap_or(0);
    writer_bytes_per_s: figure("").metric(Metric::GAUGE.named("writer_bytes_per_second")),
        "rate that one writer is held to", get |c| c.store.pacing.rate();
    background_bytes: gauge(""), "dirty data from which on writeback runs",
        get |c| c.store.pacing.thresholds().background;
    freerun_bytes: gauge(""), "dirty data up to which no writer pauses",
        get |c| c.store.pacing.thresholds().freerun();
    setpoint_bytes: gauge(""), "dirty data that pauses of writers aim at",
        get |c| c.store.pacing.thresholds().setpoint();
    limit_bytes: gauge(""), "dirty data at which writers stop",
        get |c| c.store.pacing.thresholds().limit;
    // A metric in `cache_stat` already.
    dirty_bytes: figure(""), "dirty data now", get |c| c.store.dirty_bytes();
    pauses: counter(""), "pauses of writers", get |c| c.store.pacing.pauses().0;
    paused_usec: figure("")
        .metric(Metric::COUNTER.named("paused_seconds").of_time(TimeUnit::Microsecond)),
        "how long writers have paused", get |c| c.store.pacing.pauses().1.0 / 1000;
    longest_pause_usec: figure("")
        .metric(Metric::GAUGE.named("longest_pause_seconds").of_time(TimeUnit::Microsecond)),
        "the longest pause", get |c| c.store.pacing.pauses().2.0 / 1000;
}

block::attrs! {
    static IOEND_STATS: [Figure];

    ioends: counter(""), "writes of writeback", in writeback.ioends.stats;
    ioend_bytes: counter(""), "data of these writes", in writeback.ioends.stats;
    folio_runs: counter(""), "runs of folios in these writes",
        get |c| c.writeback.ioends.stats.segments.get();
    map_calls: counter(""), "queries of the mapping", in writeback.ioends.stats;
    map_checks: counter(""), "look-ups in the last answer of the mapping",
        in writeback.ioends.stats;
    remaps: counter(""), "writes that were mapped again before they were sent",
        in writeback.ioends.stats;
    // The metric `errors` is that of the report of the name.
    errors: figure(""), "writes that failed", in writeback.ioends.stats;
    retries: counter(""), "writes with pages that had failed before", in writeback.ioends.stats;
}

block::attrs! {
    static ERRORS: [Figure];

    errors: counter(""), "errors of writeback", get |c| c.store.errors.count();
    flush_errors: counter(""), "flushes of the device below that failed",
        get |c| c.store.errors.flush_errors();
    failing_bytes: gauge(""), "data that could not be written yet",
        get |c| bytes(c.store.errors.failed.since().map_or(0, |(_, pages)| pages));
    failing_seconds: gauge(""), "seconds since the first of these failed",
        get |c| {
            let since = c.store.errors.failed.since().map(|(since, _)| since.0);
            since.map_or(0, |since| reactor::now().0.saturating_sub(since)) / 1_000_000_000
        };
}

fn reports() -> [&'static [Figure]; 4] {
    [&CACHE_STAT, &BANDWIDTH, &IOEND_STATS, &ERRORS]
}

/// What `/metrics` shows, without a device.
pub(crate) fn metric_specs() -> Vec<&'static Spec> {
    reports().into_iter().flat_map(attr::metric_specs).collect()
}

/// What `/metrics` shows.
pub(crate) fn metrics(cache: &PageCache) -> Vec<(&'static Spec, u64)> {
    reports().into_iter().flat_map(|report| attr::metrics(report, cache)).collect()
}

/// `name value` lines.
struct Lines(String);

impl Lines {
    /// Those of a report's table.
    fn of(report: &'static [Figure], cache: &PageCache) -> Lines {
        let mut lines = Lines(String::with_capacity(512));
        for Attr { spec, get, .. } in report {
            lines.add(spec.name, get.expect("every figure can be read")(cache));
        }
        lines
    }

    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let end = if self.0.is_empty() { "" } else { "\n" };
        write!(self.0, "{end}{name} {value}").expect("a string takes everything");
    }
}

/// Memory, folios, reads.
pub(crate) fn cache_stat(cache: &PageCache) -> String {
    let mut sizes = [0u64; crate::arena::ORDER_MAX as usize + 1];
    cache.store.folios.borrow().iter().for_each(|(_, f)| sizes[usize::from(f.memory.order())] += 1);
    let mut lines = Lines::of(&CACHE_STAT, cache);
    for (order, count) in sizes.iter().enumerate() {
        lines.add(&format!("folios_of_{}_kib", 4 << order), count);
    }
    lines.0
}

/// Bandwidth, thresholds, pauses of writers.
pub(crate) fn bandwidth(cache: &PageCache) -> String {
    Lines::of(&BANDWIDTH, cache).0
}

/// Counts of writeback: ioends by size, and queries of the mapping.
pub(crate) fn ioend_stats(cache: &PageCache) -> String {
    let mut lines = Lines::of(&IOEND_STATS, cache);
    let sizes = &cache.writeback.ioends.stats.sizes;
    for (class, count) in sizes.iter().enumerate() {
        let name = format!("ioends_to_{}_kib", 4u64 << class);
        let is_last = class + 1 == sizes.len();
        lines.add(if is_last { "ioends_larger" } else { &name }, count.get());
    }
    lines.0
}

/// Errors of the device below.
pub(crate) fn errors(cache: &PageCache) -> String {
    let mut lines = Lines::of(&ERRORS, cache);
    lines.add("last", cache.store.errors.describe().unwrap_or_else(|| "none".to_owned()));
    lines.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_values() {
        let mut lines = Lines(String::new());
        lines.add("a_bytes", 1);
        lines.add("b", "x y");
        assert_eq!(lines.0, "a_bytes 1\nb x y");
    }

    #[test]
    fn no_two_figures_are_one_metric() {
        let all = CACHE_STAT.iter().chain(&BANDWIDTH).chain(&IOEND_STATS).chain(&ERRORS);
        let metrics = all.filter(|figure| figure.spec.metric.is_some());
        let mut names: Vec<_> = metrics.map(|figure| figure.spec.name).collect();
        names.sort_unstable();
        assert_eq!(names.windows(2).find(|pair| pair[0] == pair[1]), None);
        assert_eq!(names.len(), 31);
    }
}
