// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond shrink-cache`: makes a cache smaller before its device is cut, offline.
//!
//! ```text
//!   probe ─▶ is it this origin's? ─▶ open as the target does ─▶ shrink ─▶ suspend ─▶ both durable
//! ```
//!
//! The engine does all of it (`writecache::WriteCache::shrink`): a crash at any point loses
//! nothing, and the next run continues. The device itself is left as it is.
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, Class, Error, Sector, Target, size_text};
use clap::Args;
use control::{EXIT_DONE, Failure, plain};
use host::{Format, Listing, print};
use serde_json::json;
use uring::Files;
use writecache::{Config, Contents, Depth, Mode, WriteCache};

use crate::offline::{self, Access};
use crate::recover::{OriginCheck, contents, path, show_progress};
use crate::resize::size_bytes;
use crate::volume_origin::{Argument, OpenOrigin, Origin};

/// Make a cache smaller before its device is cut, without a daemon
///
/// Writes all dirty blocks back to the origin, keeps the clean ones that fit, and moves the
/// metadata to the new end. The cache device itself keeps its size: cut it afterwards, by
/// `truncate`, `lvreduce` or the like. May be stopped at any moment and run again. A guard of the
/// origin stays.
///
/// The slots begin where they began, so the space before them, where a larger cache had its
/// metadata, stays unused: to make a cache a small part of what it was, `recover` and `wipe` it
/// instead. From then on the cache device has the format version 4, which older versions of this
/// program refuse. One in the kernel's format can't shrink.
///
/// A cache in parts is laid out anew in the smaller size: it holds nothing afterwards, and leaves
/// no space unused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond shrink-cache --cache /srv/cache.img --origin /srv/origin.img --size 10G
  truncate -s 10G /srv/cache.img
  millpond shrink-cache --cache /dev/vg/ssd --origin /dev/sdb --size 40G && lvreduce -L 40G vg/ssd

Exit codes: 0 the cache fits; 1 failed or refused; 2 usage; 3 no such file; 4 in use.")]
pub struct ShrinkCacheArgs {
    /// The cache device, or its image
    #[arg(long, value_name = "IMAGE")]
    pub(crate) cache: PathBuf,
    /// The origin: dirty blocks are written to it. A device, its image, or the URL of a volume
    #[arg(long, value_name = "DEV|URL")]
    pub(crate) origin: PathBuf,
    /// The size that the cache device is to have, bytes or with a suffix (20G; 8s: sectors)
    #[arg(long, value_parser = size_bytes)]
    size: u64,
    /// Where the cache begins on its device
    #[arg(long, value_name = "N", default_value_t = 0)]
    start_sector: u64,
    /// Take this origin although it is not the cache's own, or was used without it: the token of
    /// the refusal
    #[arg(long, value_name = "TOKEN")]
    force: Option<String>,
    /// Take the volume although a host has it open, or died with it: a daemon loses it
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    listing: Listing,
}

/// Runs the verb; returns what to exit with.
pub(crate) fn run(args: ShrinkCacheArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let (reactor, files) = offline::core(run_dir)?;
    reactor.block_on(async move { shrink(&args, &files).await })
}

async fn shrink(args: &ShrinkCacheArgs, files: &Files) -> Result<u8, Failure> {
    let start = Sector(args.start_sector);
    let cache = offline::open(files, &args.cache, Access::Write)?;
    let report = writecache::probe(cache.clone(), start, Depth::Metadata).await?;
    let found = contents(&report, &offline::place(&args.cache, start))?;
    let argument = Argument { verb: "shrink-cache", name: "--origin", take_over: args.take_over };
    let origin = Origin::find(&argument, files, &args.origin, Access::Write).await?;
    let check = OriginCheck {
        report: &report,
        found,
        facts: origin.facts(),
        cache: (&args.cache, start, &cache),
        force: args.force.as_deref(),
    };
    let (sectors, mut adopts) = check.run(origin.device()).await?;
    let dirty = found.dirty;
    let mut config =
        Config::new(Mode::Ssd, path(&args.origin), path(&args.cache), found.block_size);
    config.start_sector = start;
    config.write_buffer = 0; // no client writes
    config.ordered = matches!(report.contents, Contents::Native(_)); // as in `recover`
    let block_bytes = u64::from(found.block_size);
    let origin = origin.open().await?;
    if origin.is_volume() {
        adopts = match check.run(Some(&origin.device)).await {
            Ok((_, adopts)) => adopts,
            Err(refused) => return origin.close(Err(refused)).await,
        };
    }
    config.adopt_origin = adopts;
    let shrunk = shrink_to(args.size, config, &origin, &cache, sectors).await;
    let [before, after] = origin.close(shrunk).await?;
    let text = |blocks: u64| size_text(blocks.saturating_mul(block_bytes));
    print(&match args.listing.format {
        Format::Text if before == after => format!(
            "{}: {} ({after} blocks), as before: its device may have {} or more\n",
            plain(&path(&args.cache)),
            text(after),
            size_text(args.size)
        ),
        Format::Text => format!(
            "{}: {} ({after} blocks), was {}; its device may be cut to {} now\n",
            plain(&path(&args.cache)),
            text(after),
            text(before),
            size_text(args.size)
        ),
        Format::Json => {
            let value = json!({
                "cache": path(&args.cache), "origin": path(&args.origin),
                "device_bytes": args.size, "blocks_before": before, "blocks": after,
                "block_bytes": block_bytes, "dirty_before": dirty,
            });
            format!("{value:#}\n")
        }
    })?;
    Ok(EXIT_DONE)
}

/// Makes the cache smaller. Returns how many blocks it had, and has.
async fn shrink_to(
    size: u64,
    config: Config,
    origin: &OpenOrigin,
    cache: &Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<[u64; 2], Failure> {
    let (origin, verb) = (&origin.device, "shrink-cache");
    let target = WriteCache::new(verb, config, origin.clone(), cache.clone(), sectors)?;
    target.clone().resume().await?;
    let blocks = || async {
        target.clone().refresh().await;
        target.attribute("total_blocks").map(|blocks| blocks.number().unwrap_or(0))
    };
    let before = blocks().await?;
    let names = ["drain_done_blocks", "drain_total_blocks"];
    let progress = show_progress(&target, verb, names);
    let shrunk = target.clone().shrink(size).await;
    drop(progress);
    let after = blocks().await;
    let settled = target.clone().suspend().await;
    shrunk.and(settled)?;
    let after = after?;
    for device in [origin, cache] {
        let flushed = reactor::flush(&**device, Class::Foreground).await;
        flushed.map_err(|s| Error::io(format!("{}: flush: {s}", device.name())))?;
    }
    Ok([before, after])
}
