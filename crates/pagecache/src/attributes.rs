// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes: settings by the names that the kernel has for them, and reports as
//! `name value` lines, each name with its unit.
use block::attr::{self, Attr, Manual, Spec, text};
use block::value::Value;
use block::{Access, Error};

use crate::PageCache;
use crate::config::OPTIONS;
use crate::figures;

const LINES: Spec = text("name value lines").access(Access::ReadMany);

block::attrs! {
    /// What can only be read; what can be set is in [`OPTIONS`].
    static REPORTS: [Attr<PageCache>];

    cache_stat: LINES, "memory, folios, reads", get |cache| figures::cache_stat(cache);
    bandwidth: LINES, "bandwidth, thresholds, pauses of writers",
        get |cache| figures::bandwidth(cache);
    ioend_stats: LINES, "writes of writeback", get |cache| figures::ioend_stats(cache);
    errors: LINES, "errors of the device below", get |cache| figures::errors(cache);
}

/// All attributes, in the order in which they are listed.
pub(crate) fn specs() -> Vec<&'static Spec> {
    [attr::specs(&OPTIONS), attr::specs(&REPORTS)].concat()
}

/// What `millpond help buffered` prints.
pub static MANUAL: Manual = Manual {
    name: "buffered",
    version: (1, 0, 0),
    about: "a volatile page cache over a device",
    arguments: "<dev> [<#opt_args> [<option> <value>]...]",
    specs,
    metrics: figures::metric_specs,
};

impl PageCache {
    pub(crate) fn get(&self, name: &str) -> Result<Value, Error> {
        let report = attr::get(&REPORTS, name, self);
        report.or_else(|| self.store.config.get(name)).ok_or_else(|| unknown(name))
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        if attr::find(&REPORTS, name).is_some() {
            return Err(attr::read_only(name));
        }
        attr::find(&OPTIONS, name).ok_or_else(|| unknown(name))?;
        self.store.config.set(name, value)?;
        self.store.pacing.set_limits(&self.store.config, reactor::now());
        self.readahead.set_limit(&self.store.config);
        // Writers at a limit, and the flusher, look again.
        self.store.changed.wake_all();
        self.writeback.flusher.config_changed();
        Ok(())
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
}
