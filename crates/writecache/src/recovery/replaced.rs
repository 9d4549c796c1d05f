// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that another one has replaced: the error of a table that still names it.
use block::Error;
use format::ReplacedMark;

use crate::config::Config;

/// The error: what the origin's new cache holds would be hidden.
pub(crate) fn replaced(config: &Config, mark: &ReplacedMark) -> Error {
    let (cache, successor) = (&config.cache, &mark.successor);
    // The other one may be on the same device.
    let (old, option) = match config.start_sector.0 {
        0 => (cache.clone(), String::new()),
        start => (format!("{cache} with start_sector {start}"), format!(" --start-sector {start}")),
    };
    Error::invalid(format!(
        "cache device {old}: `replace-cache` has put {successor} in its place, which may hold \
         blocks that the origin does not have: name {successor} in the table. {old} holds \
         nothing; `millpond wipe {cache}{option}` makes it blank; nothing was changed"
    ))
}
