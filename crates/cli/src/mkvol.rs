// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond mkvol`: makes an empty volume on an object store.
use std::path::Path;

use block::Sector;
use clap::Args;
use control::{Failure, parse_size};
use host::{open_store, print};
use objstore::StoreUrl;
use objvol::{Geometry, OpenOptions};

use crate::offline;

/// Make an empty volume on an object store
///
/// The prefix must be empty. A table line of the target type objvol, whose length is the size, then
/// opens the volume; one on an empty prefix makes the volume, too. Credentials and endpoint of S3
/// are in the variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL and
/// others (crates/objvol/objvol.md). A directory takes the place of a bucket with file:///DIR.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond mkvol s3://bucket/disks/one 100G
  millpond mkvol s3://bucket/disks/one 100G --segment-size 8M
  millpond mkvol file:///srv/volume 4G
  millpond create one --table '0 100G objvol s3://bucket/disks/one'

Exit codes: 0 the volume is there; 1 failed, refused by the store, or something lies there already;
2 usage; 3 no such directory.")]
pub struct MkvolArgs {
    /// Where: s3://BUCKET/PREFIX or file:///DIR
    #[arg(value_parser = StoreUrl::parse)]
    pub(crate) url: StoreUrl,
    /// Size: with K, M, G or T, or sectors as 2097152s
    #[arg(value_name = "SIZE", value_parser = sectors)]
    pub(crate) size: Sector,
    /// Bytes of a full object
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = segment_bytes)]
    pub(crate) segment_size: u32,
    /// Take a store without conditional writes: no two daemons may ever open the volume
    #[arg(long)]
    pub(crate) single_writer: bool,
}

fn sectors(text: &str) -> Result<Sector, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    if bytes == 0 || !bytes.is_multiple_of(block::SECTOR_SIZE as u64) {
        return Err("a multiple of 512 bytes is allowed".into());
    }
    Ok(Sector::from_bytes(bytes))
}

fn segment_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    u32::try_from(bytes).map_err(|_| "at most 16M are allowed".into())
}

/// Runs the verb.
pub(crate) fn run(args: &MkvolArgs, run_dir: Option<&Path>) -> Result<(), Failure> {
    let url = args.url.clone();
    let (reactor, files) = offline::core(run_dir)?;
    let geometry = Geometry { segment_bytes: args.segment_size, ..Geometry::new(args.size) };
    let options = OpenOptions { single_writer: args.single_writer, ..offline::volume_options() };
    reactor.block_on(async move {
        let store = open_store(&files, &url).await?;
        objvol::create(store, &geometry, &options).await?;
        let (size, sectors) = (block::size_text(geometry.sectors.bytes()), geometry.sectors);
        print(&format!(
            "{url}: an empty volume of {size}; its table line: 0 {sectors} objvol {url}\n"
        ))
    })
}
