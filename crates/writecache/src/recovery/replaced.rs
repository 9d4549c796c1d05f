// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that another one has replaced: the error of a table that still names it.
use block::Error;
use format::ReplacedMark;

use crate::config::Config;

/// The error: what the origin's new cache holds would be hidden.
pub(crate) fn replaced(config: &Config, mark: &ReplacedMark) -> Error {
    let (cache, successor) = (&config.cache, &mark.successor);
    Error::invalid(format!(
        "cache device {cache}: `replace-cache` has put {successor} in its place, which may hold \
         blocks that the origin does not have: name {successor} in the table. {cache} holds \
         nothing; `millpond wipe {cache}` makes it blank; nothing was changed"
    ))
}
