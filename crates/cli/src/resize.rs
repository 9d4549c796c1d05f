// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond resize`: give a device in use another size, or let its cache follow its cache device.
//! A signal stops it as long as blocks are drained.
use block::size_text;
use clap::Args;
use control::{Failure, api, parse_size, paths, plain};
use host::Listing;

use crate::client::Client;
use crate::drain::stoppable;
use crate::requests::warn;

/// Give a device another size while clients work: its origin has grown
///
/// Reads the sizes of the files, disks and devices below again. The last line of the table gets as
/// much as they have, or SIZE less the lines before it. A write cache is drained first, and holds
/// nothing at the moment of the change. Clients of NBD keep the size that they know until they
/// connect again; files of --fuse show the new one at once. A volume on an object store has no
/// device below: it grows to SIZE, and never shrinks.
///
/// A device shrinks only with the token that the refusal prints. Make file systems smaller before.
///
/// With --cache the device keeps its size, and its write cache takes the space by which its cache
/// device has grown. Nothing is drained, and clients notice nothing. A cache never becomes smaller:
/// `millpond replace-cache` puts one on a smaller device in its place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  truncate -s 20G /srv/origin.img && millpond resize wc
  millpond resize wc 20G
  millpond resize wc 5G --force 1a2b3c4d
  lvextend -L +100G vg/ssd && millpond resize wc --cache

Exit codes: 0 it has that size; 1 stopped or refused, or blocks are failing: the device is as
before; 2 usage; 3 there is no such device; 4 it is suspended, a drain of it is running, or it
would shrink.")]
pub struct ResizeArgs {
    /// The device
    pub(crate) name: String,
    /// Its new size, bytes or with a suffix (20G; 8s: sectors); without, all that is below
    #[arg(value_parser = size_bytes, conflicts_with = "cache")]
    size: Option<u64>,
    /// Shrink it although it was refused: the token of the refusal
    #[arg(long, value_name = "TOKEN", conflicts_with = "cache")]
    force: Option<String>,
    /// Let its write cache take the space by which its cache device has grown
    #[arg(long)]
    cache: bool,
    #[command(flatten)]
    listing: Listing,
}

fn size_bytes(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|e| e.to_string())? {
        0 => Err("at least a sector is needed".into()),
        bytes => Ok(bytes),
    }
}

/// Runs `resize`.
pub(crate) async fn resize(client: &Client, a: &ResizeArgs) -> Result<(), Failure> {
    let body = api::Resize { size_bytes: a.size, force: a.force.clone(), cache: a.cache };
    let path = paths::of_device(&a.name, "resize");
    let answer = client.post::<_, api::Resized>(&path, &body);
    let done = stoppable(client, &a.name, answer).await?;
    warn(&done.warnings);
    a.listing.print(&done, || text(&done))
}

fn text(done: &api::Resized) -> String {
    let size = |sectors: u64| size_text(sectors.saturating_mul(512));
    if !done.caches.is_empty() {
        return done.caches.iter().map(|of| cache_text(&done.device.name, of)).collect();
    }
    let (name, now) = (plain(&done.device.name), done.device.size_sectors);
    match done.sectors_before == now {
        true => format!("{name}: {} ({now} sectors), as before\n", size(now)),
        false => {
            let before = size(done.sectors_before);
            format!("{name}: {} ({now} sectors), was {before}\n", size(now))
        }
    }
}

fn cache_text(device: &str, of: &api::GrownCache) -> String {
    let size = |blocks: u64| size_text(blocks.saturating_mul(of.block_bytes));
    let (device, cache, now) = (plain(device), plain(&of.cache), size(of.blocks));
    let was = match of.blocks_before == of.blocks {
        true => "as before".to_owned(),
        false => format!("was {}", size(of.blocks_before)),
    };
    format!("{device}: cache {cache}: {now} ({} blocks), {was}\n", of.blocks)
}
