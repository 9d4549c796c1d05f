// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes: settings by the names that the kernel has for them, and what the cache tells of
//! itself as `name value` lines, each name with its unit.
use std::fmt::Write;

use block::attr::{self, Attr, Kind, Manual, Spec};
use block::value::Value;
use block::{Access, Error, PAGE};

use crate::PageCache;
use crate::config;

const fn report(
    name: &'static str,
    help: &'static str,
    get: fn(&PageCache) -> Value,
) -> Attr<PageCache> {
    let spec = Spec::new(name, Kind::Text("name value lines"), help);
    Attr::read(spec.access(Access::ReadMany), get)
}

/// What can only be read; what can be set is in [`OPTIONS`](crate::config::OPTIONS).
static REPORTS: [Attr<PageCache>; 4] = [
    report("cache_stat", "memory, folios, reads", |cache| cache.cache_stat().into()),
    report("bandwidth", "bandwidth, thresholds, pauses of writers", |cache| {
        cache.bandwidth_stat().into()
    }),
    report("ioend_stats", "writes of writeback", |cache| cache.ioend_stats().into()),
    report("errors", "errors of the device below", |cache| cache.error_stat().into()),
];

/// All attributes, in the order in which they are listed.
pub(crate) fn specs() -> Vec<&'static Spec> {
    config::specs().into_iter().chain(attr::specs(&REPORTS)).collect()
}

/// What `millpond help buffered` prints.
pub static MANUAL: Manual = Manual {
    name: "buffered",
    version: crate::VERSION,
    about: "a volatile page cache over a device",
    arguments: "<dev> [<#opt_args> [<option> <value>]...]",
    specs,
};

/// `name value` lines.
pub(crate) struct Lines(String);

impl Lines {
    pub(crate) fn new() -> Lines {
        Lines(String::with_capacity(512))
    }

    pub(crate) fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        let end = if self.0.is_empty() { "" } else { "\n" };
        write!(self.0, "{end}{name} {value}").expect("a string takes everything");
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

impl PageCache {
    pub(crate) fn get(&self, name: &str) -> Result<Value, Error> {
        if let Some(report) = attr::find(&REPORTS, name) {
            return Ok(report.get.expect("all can be read")(self));
        }
        self.store.config.get(name).ok_or_else(|| unknown(name))
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let known = specs().into_iter().find(|spec| spec.name == name);
        let spec = known.ok_or_else(|| unknown(name))?;
        if spec.access == Access::ReadMany {
            return Err(attr::read_only(name));
        }
        self.store.config.set(name, value)?;
        self.store.pacing.set_limits(&self.store.config, reactor::now());
        self.readahead.set_limit(&self.store.config);
        // Writers at a limit, and the flusher, look again.
        self.store.changed.wake_all();
        self.writeback.flusher.config_changed();
        Ok(())
    }

    fn bandwidth_stat(&self) -> String {
        let now = reactor::now();
        let bandwidth = self.store.pacing.bandwidth();
        let at = self.store.pacing.thresholds();
        let (pauses, paused, longest) = self.store.pacing.pauses();
        let mut lines = Lines::new();
        lines.add("write_bytes_per_s", bandwidth.known(now.0).unwrap_or(0));
        lines.add("writer_bytes_per_s", self.store.pacing.rate());
        lines.add("background_bytes", at.background);
        lines.add("freerun_bytes", at.freerun());
        lines.add("setpoint_bytes", at.setpoint());
        lines.add("limit_bytes", at.limit);
        lines.add("dirty_bytes", self.store.dirty_bytes());
        lines.add("pauses", pauses);
        lines.add("paused_usec", paused.0 / 1000);
        lines.add("longest_pause_usec", longest.0 / 1000);
        lines.text()
    }

    fn cache_stat(&self) -> String {
        let page = PAGE as u64;
        let folios = self.store.folios.borrow();
        let (windows, ahead) = self.readahead.counts();
        let mut sizes = [0u64; crate::arena::ORDER_MAX as usize + 1];
        folios.iter().for_each(|(_, f)| sizes[usize::from(f.memory.order())] += 1);
        let mut lines = Lines::new();
        lines.add("memory_limit_bytes", self.store.memory.limit_bytes());
        lines.add("memory_used_bytes", self.store.memory.used_bytes());
        lines.add("folios", folios.folios());
        lines.add("cached_bytes", folios.pages() * page);
        lines.add("dirty_bytes", folios.dirty_pages() * page);
        lines.add("writeback_bytes", folios.writing_pages() * page);
        lines.add("read_hits", self.hits.get());
        lines.add("read_misses", self.misses.get());
        lines.add("readahead_windows", windows);
        lines.add("readahead_bytes", ahead * page);
        lines.add("evicted_folios", self.store.evicted.get());
        for (order, count) in sizes.iter().enumerate() {
            lines.add(&format!("folios_of_{}_kib", 4 << order), count);
        }
        lines.text()
    }

    fn error_stat(&self) -> String {
        let now = reactor::now();
        let mut lines = Lines::new();
        let (since, pages) =
            self.store.errors.failed.since().map_or((now, 0), |(since, pages)| (since, pages));
        lines.add("errors", self.store.errors.count());
        lines.add("flush_errors", self.store.errors.flush_errors());
        lines.add("failing_bytes", pages * PAGE as u64);
        lines.add("failing_seconds", now.0.saturating_sub(since.0) / 1_000_000_000);
        lines.add("last", self.store.errors.describe().unwrap_or_else(|| "none".to_owned()));
        lines.text()
    }
}

fn unknown(name: &str) -> Error {
    attr::unknown("buffered", name, &attr::names(&specs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_set_and_reports_only_read() {
        let specs = specs();
        for (nth, spec) in specs.iter().enumerate() {
            let name = spec.name;
            assert!(specs[..nth].iter().all(|other| other.name != name), "{name}");
            let access = match attr::find(&REPORTS, name) {
                Some(_) => Access::ReadMany,
                None if name == "memory" => Access::Read,
                None => Access::ReadWrite,
            };
            assert_eq!(spec.access, access, "{name}");
        }
    }

    #[test]
    fn lines_are_names_and_values() {
        let mut lines = Lines::new();
        lines.add("a_bytes", 1);
        lines.add("b", "x y");
        assert_eq!(lines.text(), "a_bytes 1\nb x y");
    }
}
