// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond wipe`: makes a cache area blank, so that the next table formats it.
//!
//! Invariants
//! - CL-W1 Blocks that only the cache has are wiped with a token only, which the refusal prints and
//!   which is valid for the cache exactly as it was then.
//! - CL-W2 The record of a volume that names the cache ends before the cache is blank. From then on
//!   the volume has another lineage, so a cache that stays because the verb was cut off is never
//!   applied to it, and the verb can be run again.
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Sector, Status};
use clap::Args;
use control::Failure;
use host::print;
use objstore::StoreUrl;
use objvol::OpenOptions;
use uring::Files;
use writecache::{Contents, Depth, ProbeReport};

use crate::inspect::hex;
use crate::offline::{self, Access, refusal};
use crate::volume_origin::{Argument, StoredVolume};

/// Make a write cache's device or image blank
///
/// The next table that names it formats it anew. What would be lost is refused: dirty blocks, a
/// cache that is damaged, what only an earlier version can open, and a device that is no cache. The
/// refusal prints a token; with `--force TOKEN` it is wiped all the same, if nothing of it has
/// changed since.
///
/// A volume on an object store records the cache before it, and takes no writes without that.
/// `--origin URL` ends the record first; without it, the option `without_cache` of the volume's
/// table does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond wipe /srv/cache.img
  millpond wipe /dev/nvme0n1p4 --start-sector 2048
  millpond wipe /srv/cache.img --force 1a2b3c4d
  millpond wipe /srv/cache.img --origin s3://bucket/disks/one

Exit codes: 0 it is blank, 1 refused or failed, 2 usage, 3 no such file, 4 in use.")]
pub struct WipeArgs {
    /// The cache device, or its image
    pub(crate) image: PathBuf,
    /// Where the cache begins on it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) start_sector: u64,
    /// Wipe although something would be lost: the token of the refusal
    #[arg(long, value_name = "TOKEN")]
    pub(crate) force: Option<String>,
    /// The volume that the cache belongs to: it does not record the cache any more
    #[arg(long, value_name = "URL", value_parser = StoreUrl::parse)]
    pub(crate) origin: Option<StoreUrl>,
    /// With --origin: although a host has the volume open, or died with it; a daemon loses it
    #[arg(long, requires = "origin")]
    pub(crate) take_over: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &WipeArgs, run_dir: Option<&Path>) -> Result<(), Failure> {
    let (reactor, files) = offline::core(run_dir)?;
    let device = offline::open(&files, &args.image, Access::Write)?;
    let start = Sector(args.start_sector);
    let look = device.clone();
    let report =
        reactor.block_on(async move { writecache::probe(look, start, Depth::Metadata).await })?;
    let place = offline::place(&args.image, start);
    let token = report.token("wipe");
    match (report.loss(), &args.force) {
        (Some(loss), None) => {
            return Err(refusal(format!(
                "{place} {loss}; nothing was changed. `--force {token}` wipes it all the same"
            )));
        }
        (Some(loss), Some(given)) if *given != token => {
            return Err(refusal(format!(
                "{place} {loss}; the token {given} does not stand for what is there now; nothing \
                 was changed. `--force {token}` wipes it all the same"
            )));
        }
        (Some(_) | None, _) => {}
    }
    if let Some(url) = &args.origin {
        let uuid = uuid_of(&report).ok_or_else(|| {
            let text = format!("{place}: is no cache that a volume records; nothing was changed");
            Failure::new(block::ErrorKind::Invalid, text)
        })?;
        let argument = Argument { verb: "wipe", name: "--origin", take_over: args.take_over };
        let ended = reactor.block_on(end_record(files, url.to_string(), uuid, argument))?;
        print(&ended)?; // CL-W2
    }
    let wiped = reactor.block_on(async move { wipe(device, start, report.area).await });
    wiped.map_err(|s| Failure::new(block::ErrorKind::Io, format!("{place}: wipe: {s}")))?;
    print(&format!("{place} is blank\n"))
}

/// The UUID by which an origin records the cache.
fn uuid_of(report: &ProbeReport) -> Option<[u8; 16]> {
    match &report.contents {
        Contents::Native(cache) => Some(cache.superblock.uuid),
        Contents::Blank
        | Contents::Replaced(_)
        | Contents::Gone(_)
        | Contents::Later(_)
        | Contents::Unknown
        | Contents::Ruined
        | Contents::Dm(_) => None,
    }
}

/// Ends the record of the volume that names this cache. Returns what to say.
async fn end_record(
    files: Files,
    url: String,
    uuid: [u8; 16],
    argument: Argument,
) -> Result<String, Failure> {
    let volume = StoredVolume::find(&argument, &files, &url).await?;
    match volume.recorded() {
        None => return Ok(format!("{url} records no cache\n")),
        Some(cache) if cache.uuid == uuid => {}
        Some(other) => {
            let text = format!(
                "--origin: {url}: has recorded another cache, {} on {}; nothing was changed",
                hex(&other.uuid),
                other.device
            );
            return Err(Failure::new(block::ErrorKind::Busy, text));
        }
    }
    let options = OpenOptions { without_cache: Some(uuid), ..offline::volume_options() };
    let volume = volume.open(options).await?;
    let guard = writecache::find_guard(&*volume.device).await.map_err(Failure::from);
    let guard = volume.close(guard).await?;
    let mut said = format!("{url} records the cache {} no more", hex(&uuid));
    if guard.is_some() {
        said.push_str(&format!(
            "; `millpond recover --without-cache {url}` takes the guard of the cache from it"
        ));
    }
    Ok(format!("{said}\n"))
}

/// Zeroes where superblocks of either format lie in an area. What is behind them has another UUID
/// than the next cache, or is overwritten by its format.
async fn wipe(device: Rc<dyn BlockDevice>, start: Sector, area: Sector) -> Result<(), Status> {
    let class = Class::Foreground;
    let len = writecache::PROBE_HEAD_BYTES.min(area.bytes());
    let zeroes = Buf::zeroed(usize::try_from(len).map_err(|_| Status::Invalid)?);
    reactor::write(&*device, Flags::META, class, start, zeroes.into()).await?;
    reactor::flush(&*device, class).await
}
