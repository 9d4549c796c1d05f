// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond check`: looks for damage in a volume on an object store, and repairs it.
use std::path::Path;

use clap::Args;
use control::{Failure, plain};
use host::{Listing, open_store, print_error};
use objstore::StoreUrl;
use objvol::{Depth, Health, OpenOptions, VolumeReport};

use crate::inspect_volume::{look, print};
use crate::offline;

/// Check a volume on an object store, and repair it
///
/// Reads the map and all data of the volume, and compares the data with their checksums. It changes
/// nothing, and may run while a daemon has the volume open. Exits with 1 if there is damage:
///
/// A volume is broken, and does not open, when a part of its newest history is missing or
/// unreadable: an object was deleted by something else, or has changed. --repair ends its history
/// before the first such part, seals out every daemon that had it open, and gives up what lies
/// behind: writes that depend on a missing one. An unreadable checkpoint of the map gives way to
/// the one before it, if that is there yet.
///
/// A volume is lossy when older data are missing or unreadable. It opens; its lost sectors fail
/// with an error until they are written again, and nothing can bring them back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond check s3://bucket/disks/one
  millpond check s3://bucket/disks/one --metadata -o json
  millpond check file:///srv/volume --repair

Exit codes: 0 sound, also after a repair; 1 broken or lossy, or failed; 2 usage; 3 no volume \
there; 4 another host has the volume open, and --repair needs --take-over.")]
pub struct CheckArgs {
    /// Where: s3://BUCKET/PREFIX or file:///DIR
    #[arg(value_parser = StoreUrl::parse)]
    pub(crate) url: StoreUrl,
    /// Leave the data out: the map and the names of the objects only
    #[arg(long)]
    pub(crate) metadata: bool,
    /// If the volume is broken, give up what the damage has cut off
    #[arg(long)]
    pub(crate) repair: bool,
    /// With --repair: although another host has the volume open, or died with it
    #[arg(long, requires = "repair")]
    pub(crate) take_over: bool,
    /// With --repair: take a store without conditional writes; no daemon may have the volume open
    #[arg(long, requires = "repair")]
    pub(crate) single_writer: bool,
    /// Show all findings and lost ranges, however many
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// Runs the verb; returns what to exit with.
pub(crate) fn run(args: &CheckArgs, run_dir: Option<&Path>) -> Result<u8, Failure> {
    let (reactor, files) = offline::core(run_dir)?;
    let (url, repairs) = (args.url.clone(), args.repair);
    let options = OpenOptions {
        take_over: args.take_over,
        single_writer: args.single_writer,
        ..offline::volume_options()
    };
    let depth = if args.metadata { Depth::Metadata } else { Depth::Data };
    let report = reactor.block_on(async move {
        let store = open_store(&files, &url).await?;
        let report = look("check", store.clone(), &options, depth).await?;
        if !repairs || report.health() != Health::Broken {
            return Ok::<VolumeReport, Failure>(report);
        }
        for damage in &report.damage {
            print_error(&format!("millpond: check: {url}: {}", plain(damage)));
        }
        objvol::repair(store.clone(), options.clone()).await?;
        let cut_off = report.cut_off;
        let what = format!("repaired: {cut_off} segments were given up");
        print_error(&format!("millpond: check: {url}: {what}"));
        look("check", store, &options, depth).await
    })?;
    print(&args.url, &report, &args.listing, args.all)
}
