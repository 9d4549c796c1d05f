// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probe of a cache in the kernel's format. Each committed entry is a dirty block.
use block::Error;
use format::dm::{ENTRY_BYTES, HEADER_BYTES, Superblock};
use roaring::RoaringTreemap;

use super::{Contents, Occupancy, Place, ProbeReport, ranges};
use crate::recovery::area::ReadAhead;

/// A cache of the kernel's format.
#[derive(Clone, Debug)]
pub struct DmCache {
    /// Its superblock.
    pub superblock: Superblock,
    /// Entries of commits that never ended: the next opening erases them.
    pub leftovers: u64,
    /// Entries of blocks that a newer entry holds: the next opening erases them.
    pub superseded: u64,
    /// The blocks by the entries.
    pub occupancy: Occupancy,
}

/// Bytes of memory for each block: three numbers in a tree whose nodes are at least half full, and
/// its bits in the set of dirty blocks.
const LIVE_BYTES: u64 = 56;

pub(super) async fn probe(
    place: &Place,
    report: &mut ProbeReport,
    head: &[u8],
) -> Result<(), Error> {
    let superblock = match Superblock::decode(head) {
        Ok(superblock) => superblock,
        Err(refusal) => {
            report.contents = Contents::Ruined;
            report.add_finding(0, format!("superblock: {refusal}"));
            return Ok(());
        }
    };
    let geometry = match superblock.fit(superblock.block_size, place.area_bytes) {
        Ok(geometry) => geometry,
        Err(refusal) => {
            // Nothing beyond the end of the area is read (WC-SV1).
            report.contents = Contents::Ruined;
            report.add_finding(16, format!("superblock: {refusal}"));
            return Ok(());
        }
    };
    let mut entries = format::dm::CacheContents::new(&superblock);
    let mut memory = reactor::memory().reserve(0, "")?;
    let (mut reads, end) = (
        ReadAhead::new(&place.config, &*place.device, "read entries"),
        usize::try_from(geometry.entries_end()).expect("within the area, which is addressable"),
    );
    reads.bytes(0, geometry.data_offset());
    let (mut at, mut crc) = (0, 0u32);
    loop {
        let buf = match reads.next().await {
            Ok(Some(buf)) => buf,
            Ok(None) => break,
            Err(e) => {
                report.add_finding(at as u64, e.chain());
                break;
            }
        };
        buf.read(|bytes| {
            let bytes = &bytes[..bytes.len().min(end - at.min(end))];
            crc = crc.rotate_left(1) ^ format::checksum(bytes);
            let skip = if at == 0 { HEADER_BYTES } else { 0 };
            let first = at + skip;
            for (nth, entry) in format::dm::entries(&bytes[skip.min(bytes.len())..]).enumerate() {
                if let Err(refusal) = entries.add(entry) {
                    report.add_finding((first + nth * ENTRY_BYTES) as u64, refusal.to_string());
                }
            }
        });
        at += buf.len();
        let known = LIVE_BYTES * entries.live.len() as u64
            + 8 * (entries.leftovers.len() + entries.superseded.len()) as u64;
        memory.grow_to(known, format_args!("{}: what its entries say", place.device.name()))?;
    }
    report.fingerprint = crc;
    let block_sectors = u64::from(superblock.block_size / 512);
    let mut dirty = RoaringTreemap::new();
    for &sector in entries.live.keys() {
        dirty.insert(sector / block_sectors);
    }
    let (leftovers, superseded) = (entries.leftovers.len() as u64, entries.superseded.len() as u64);
    let live = entries.live.len() as u64;
    report.contents = Contents::Dm(DmCache {
        occupancy: Occupancy {
            block_size: superblock.block_size,
            total: superblock.n_blocks,
            free: superblock.n_blocks - live,
            dirty: live,
            dirty_ranges: ranges(&dirty, block_sectors),
            ..Occupancy::default()
        },
        superblock,
        leftovers,
        superseded,
    });
    Ok(())
}
