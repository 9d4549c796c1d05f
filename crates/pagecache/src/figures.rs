// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures: the numbers that the reports are lines of, and their names in `/metrics`.
use std::fmt::Write;

use block::PAGE;
use block::attr::{self, Attr, Kind, Metric, Spec};
use block::value::{TimeUnit, Value};

use crate::device::PageCache;

/// A number of a report.
type Figure = Attr<PageCache>;

const fn figure(name: &'static str, help: &'static str, get: fn(&PageCache) -> Value) -> Figure {
    Attr::read(Spec::new(name, Kind::Number { min: 0, max: u64::MAX, unit: "" }, help), get)
}

const fn gauge(name: &'static str, help: &'static str, get: fn(&PageCache) -> Value) -> Figure {
    let figure = figure(name, help, get);
    Attr { spec: figure.spec.metric(Metric::GAUGE), ..figure }
}

const fn counter(name: &'static str, help: &'static str, get: fn(&PageCache) -> Value) -> Figure {
    let figure = figure(name, help, get);
    Attr { spec: figure.spec.metric(Metric::COUNTER), ..figure }
}

/// The same with a name of its own in `/metrics`, which has base units.
const fn named(figure: &Figure, name: &'static str) -> Figure {
    let metric = figure.spec.metric.expect("a metric").named(name);
    Attr { spec: figure.spec.metric(metric), get: figure.get, set: figure.set }
}

/// A number of microseconds, exported in seconds.
const fn microseconds(figure: &Figure, name: &'static str) -> Figure {
    let metric = figure.spec.metric.expect("a metric").named(name).of_time(TimeUnit::Microsecond);
    Attr { spec: figure.spec.metric(metric), get: figure.get, set: figure.set }
}

const fn bytes(pages: u64) -> u64 {
    pages * PAGE as u64
}

static CACHE_STAT: [Figure; 11] = [
    gauge("memory_limit_bytes", "memory that folios may use", |c| {
        c.store.memory.limit_bytes().into()
    }),
    gauge("memory_used_bytes", "memory that folios use", |c| c.store.memory.used_bytes().into()),
    gauge("folios", "folios in the cache", |c| (c.store.folios.borrow().folios() as u64).into()),
    gauge("cached_bytes", "data in the cache", |c| bytes(c.store.folios.borrow().pages()).into()),
    gauge("dirty_bytes", "data that the device below does not have yet", |c| {
        bytes(c.store.folios.borrow().dirty_pages()).into()
    }),
    gauge("writeback_bytes", "data that are being written back", |c| {
        bytes(c.store.folios.borrow().writing_pages()).into()
    }),
    counter("read_hits", "reads that the cache answered", |c| c.hits.get().into()),
    counter("read_misses", "reads that went to the device below", |c| c.misses.get().into()),
    counter("readahead_windows", "windows that were read ahead", |c| c.readahead.counts().0.into()),
    counter("readahead_bytes", "data that were read ahead", |c| {
        bytes(c.readahead.counts().1).into()
    }),
    counter("evicted_folios", "folios that made room for others", |c| c.store.evicted.get().into()),
];

static BANDWIDTH: [Figure; 10] = [
    named(
        &gauge("write_bytes_per_s", "measured bandwidth of the device below", |c| {
            c.store.pacing.bandwidth().known(reactor::now().0).unwrap_or(0).into()
        }),
        "write_bytes_per_second",
    ),
    named(
        &gauge("writer_bytes_per_s", "rate that one writer is held to", |c| {
            c.store.pacing.rate().into()
        }),
        "writer_bytes_per_second",
    ),
    gauge("background_bytes", "dirty data from which on writeback runs", |c| {
        c.store.pacing.thresholds().background.into()
    }),
    gauge("freerun_bytes", "dirty data up to which no writer pauses", |c| {
        c.store.pacing.thresholds().freerun().into()
    }),
    gauge("setpoint_bytes", "dirty data that pauses of writers aim at", |c| {
        c.store.pacing.thresholds().setpoint().into()
    }),
    gauge("limit_bytes", "dirty data at which writers stop", |c| {
        c.store.pacing.thresholds().limit.into()
    }),
    // A metric in `cache_stat` already.
    figure("dirty_bytes", "dirty data now", |c| c.store.dirty_bytes().into()),
    counter("pauses", "pauses of writers", |c| c.store.pacing.pauses().0.into()),
    microseconds(
        &counter("paused_usec", "how long writers have paused", |c| {
            (c.store.pacing.pauses().1.0 / 1000).into()
        }),
        "paused_seconds",
    ),
    microseconds(
        &gauge("longest_pause_usec", "the longest pause", |c| {
            (c.store.pacing.pauses().2.0 / 1000).into()
        }),
        "longest_pause_seconds",
    ),
];

static IOEND_STATS: [Figure; 8] = [
    counter("ioends", "writes of writeback", |c| c.writeback.ioends.stats.ioends.get().into()),
    counter("ioend_bytes", "data of these writes", |c| {
        c.writeback.ioends.stats.ioend_bytes.get().into()
    }),
    counter("folio_runs", "runs of folios in these writes", |c| {
        c.writeback.ioends.stats.segments.get().into()
    }),
    counter("map_calls", "queries of the mapping", |c| {
        c.writeback.ioends.stats.map_calls.get().into()
    }),
    counter("map_checks", "look-ups in the last answer of the mapping", |c| {
        c.writeback.ioends.stats.map_checks.get().into()
    }),
    counter("remaps", "writes that were mapped again before they were sent", |c| {
        c.writeback.ioends.stats.remaps.get().into()
    }),
    // The metric `errors` is that of the report of the name.
    figure("errors", "writes that failed", |c| c.writeback.ioends.stats.errors.get().into()),
    counter("retries", "writes with pages that had failed before", |c| {
        c.writeback.ioends.stats.retries.get().into()
    }),
];

static ERRORS: [Figure; 4] = [
    counter("errors", "errors of writeback", |c| c.store.errors.count().into()),
    counter("flush_errors", "flushes of the device below that failed", |c| {
        c.store.errors.flush_errors().into()
    }),
    gauge("failing_bytes", "data that could not be written yet", |c| {
        bytes(c.store.errors.failed.since().map_or(0, |(_, pages)| pages)).into()
    }),
    gauge("failing_seconds", "seconds since the first of these failed", |c| {
        let since = c.store.errors.failed.since().map(|(since, _)| since.0);
        (since.map_or(0, |since| reactor::now().0.saturating_sub(since)) / 1_000_000_000).into()
    }),
];

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
