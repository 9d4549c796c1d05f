// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond snapshot` and `millpond snapshots`: states of a volume on an object store that stay.
use block::{ErrorKind, size_text};
use clap::Args;
use control::{Failure, plain};
use host::Listing;
use serde::Serialize;

use crate::client::Client;
use crate::columns::{self, utc};
use crate::requests;

/// Make a snapshot of a volume on an object store, or delete one
///
/// The snapshot has every write to the volume that had completed before, and stays as it is while
/// the volume goes on. The table `0 LENGTH objvol URL@NAME` is a read-only device of it, on any
/// machine. No data are copied; what it needs stays in the store until it is deleted. Of a write
/// cache above the volume, write back what it holds before: `millpond flush`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond flush wc && millpond snapshot far monday
  millpond create monday --table '0 100G objvol s3://bucket/disks/one@monday'
  millpond snapshot far monday --delete

Exit codes: 0 it is there, or deleted; 1 failed, there is one of that name already, or the device is
no volume; 2 usage; 3 no such device or snapshot; 4 somebody else has the volume, or it is
suspended.")]
pub struct SnapshotArgs {
    /// The device of the volume
    pub(crate) device: String,
    /// Name of the snapshot: up to 56 letters, digits and -_.
    pub(crate) name: String,
    /// Delete it: what only it needs is garbage then
    #[arg(long)]
    delete: bool,
}

/// List the snapshots of a volume on an object store
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond snapshots far
  millpond snapshots far -o json")]
pub struct SnapshotsArgs {
    /// The device of the volume
    pub(crate) device: String,
    #[command(flatten)]
    listing: Listing,
}

/// A line of the target's reply.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct SnapshotRow {
    name: String,
    /// Seconds since 1970.
    created_at: u64,
    size_sectors: u64,
}

fn parse(reply: &str) -> Result<Vec<SnapshotRow>, Failure> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, created_at, sectors] = words[..] else { return None };
        let (created_at, size_sectors) = (created_at.parse().ok()?, sectors.parse().ok()?);
        Some(SnapshotRow { name: name.to_owned(), created_at, size_sectors })
    };
    let rows: Option<Vec<SnapshotRow>> = reply.lines().map(row).collect();
    rows.ok_or_else(|| {
        let text = format!("the reply is no list of snapshots: {}", plain(reply));
        Failure::new(ErrorKind::Io, text)
    })
}

async fn message(client: &Client, device: &str, words: &[&str]) -> Result<String, Failure> {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    requests::message(client, device, 0, words).await
}

/// Runs `snapshot`.
pub(crate) async fn snapshot(client: &Client, a: &SnapshotArgs) -> Result<(), Failure> {
    let verb = if a.delete { "delete_snapshot" } else { "snapshot" };
    message(client, &a.device, &[verb, &a.name]).await.map(drop)
}

/// Runs `snapshots`.
pub(crate) async fn snapshots(client: &Client, a: &SnapshotsArgs) -> Result<(), Failure> {
    let rows = parse(&message(client, &a.device, &["snapshots"]).await?)?;
    a.listing.print(&rows, || table(&rows))
}

fn table(rows: &[SnapshotRow]) -> String {
    let row = |of: &SnapshotRow| {
        let size = size_text(of.size_sectors.saturating_mul(512));
        [plain(&of.name).into_owned(), utc(of.created_at), size]
    };
    columns::table(["NAME", "CREATED", "SIZE"], rows.iter().map(row), "No snapshots\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_becomes_a_table() {
        let rows = parse("a 1700000000 8\nbackup-2 1800000000 2097152").unwrap();
        assert_eq!(
            table(&rows),
            "NAME      CREATED                  SIZE\n\
             a         2023-11-14 22:13:20 UTC  4.0 KiB\n\
             backup-2  2027-01-15 08:00:00 UTC  1.0 GiB\n"
        );
        assert_eq!(table(&parse("").unwrap()), "No snapshots\n");
        assert!(parse("flushed").is_err());
    }
}
