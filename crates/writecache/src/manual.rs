// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manual of the target: its arguments, options and attributes.
use block::attr::Manual;

use crate::figures;
use crate::options::{self, OPTIONS};

/// What `millpond help writecache` prints.
pub static MANUAL: Manual = Manual {
    name: "writecache",
    version: crate::VERSION,
    about: "a persistent write cache on a faster device",
    arguments: "<p|s> <origin> <cache> <block_size> <#opt_args> [<option> [<value>]]...",
    specs: || {
        let options = OPTIONS.iter().map(|option| &option.spec);
        options.chain(figures::specs()).chain([&figures::DRAIN]).collect()
    },
    metrics: || figures::metric_specs().chain(options::metric_specs()).collect(),
};
