// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond uncache` and `millpond replace-cache`: take the write cache of a device in use away,
//! or put another one in its place. A signal stops them as long as blocks are drained.
use clap::Args;
use control::{Failure, api, name_with_absolute_path, paths, plain};
use host::{Listing, current_dir};
use serde::Serialize;

use crate::client::Client;
use crate::drain::stoppable;
use crate::requests::warn;

/// Write everything of a write cache back, and take the cache away while clients work
///
/// Drains the cache, then lets requests wait for a moment, writes back the rest, and maps the
/// origin in its place: clients keep their connections. The cache device holds nothing then and is
/// free. If the origin fails, or the verb is interrupted, the device goes on with its cache.
/// `drain` with limits before it writes most back gently.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond uncache wc
  millpond drain wc --p99 5ms && millpond uncache wc -o json

Exit codes: 0 the cache is gone; 1 stopped, or blocks are failing: the device has its cache;
2 usage; 3 there is no such device; 4 it is suspended, or a drain of it is running.")]
pub struct UncacheArgs {
    /// The device
    pub(crate) name: String,
    #[command(flatten)]
    listing: Listing,
}

/// Put another cache device in the place of a write cache's while clients work
///
/// Drains the cache, lets requests wait for a moment, writes back the rest, opens the new cache
/// device as a table does, and goes on with it: clients keep their connections. The old cache
/// device holds nothing then. It is marked, so that a table that still names it is refused: it
/// would hide what only the new one holds. `wipe` makes it blank.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond replace-cache wc /dev/nvme1n1p2
  millpond replace-cache wc /srv/new.img --start-sector 2048 -o json

Exit codes: 0 the new cache is in use; 1 stopped, refused, or blocks are failing: the device has its
old cache; 2 usage; 3 there is no such device; 4 it is suspended, or a drain of it is running.")]
pub struct ReplaceCacheArgs {
    /// The device
    pub(crate) name: String,
    /// The new cache device: blank, or a cache that holds nothing
    cache: String,
    /// Where the cache begins on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    start_sector: u64,
    #[command(flatten)]
    listing: Listing,
}

/// Runs `uncache`.
pub(crate) async fn uncache(client: &Client, a: &UncacheArgs) -> Result<(), Failure> {
    let done = run(client, &a.name, "uncache", &api::Empty {}).await?;
    warn(&done.warnings);
    a.listing.print(&done, || {
        let freed = done.freed.join(", ");
        format!("{}: {freed} holds nothing and is free\n", plain(&a.name))
    })
}

/// Runs `replace-cache`.
pub(crate) async fn replace_cache(client: &Client, a: &ReplaceCacheArgs) -> Result<(), Failure> {
    let cache = name_with_absolute_path(&a.cache, &current_dir()?);
    let body = api::ReplaceCache { cache: cache.clone(), start_sector: a.start_sector };
    let done = run(client, &a.name, "replace-cache", &body).await?;
    warn(&done.warnings);
    a.listing.print(&done, || {
        let (name, cache) = (plain(&a.name), plain(&cache));
        let cache = match a.start_sector {
            0 => cache.to_string(),
            start => format!("{cache} with start_sector {start}"),
        };
        if done.freed.is_empty() {
            return format!("{name}: {cache} is the cache already\n");
        }
        format!("{name}: {cache} is its cache, {} holds nothing\n", done.freed.join(", "))
    })
}

/// Sends the request. Without a drain a signal has nothing to stop: the swap ends by itself.
async fn run(
    client: &Client,
    name: &str,
    verb: &str,
    body: &impl Serialize,
) -> Result<api::Recached, Failure> {
    let path = paths::of_device(name, verb);
    let answer = client.post::<_, api::Recached>(&path, body);
    stoppable(client, name, answer).await
}
