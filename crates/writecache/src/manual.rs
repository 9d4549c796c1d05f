// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The manual of the target: its arguments, options and attributes.
use block::attr::{self, Manual};

use crate::figures::{DRAIN, FIGURES};
use crate::options::OPTIONS;

/// What `millpond help writecache` prints.
pub static MANUAL: Manual = Manual {
    name: "writecache",
    version: crate::VERSION,
    about: "a persistent write cache on a faster device",
    arguments: "<p|s> <origin> <cache> <block_size> <#opt_args> [<option> [<value>]]...",
    specs: || [attr::specs(&OPTIONS), attr::specs(&FIGURES), vec![&DRAIN]].concat(),
    metrics: || [attr::metric_specs(&FIGURES), attr::metric_specs(&OPTIONS)].concat(),
};
