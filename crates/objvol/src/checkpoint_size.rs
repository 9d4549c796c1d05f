// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a checkpoint may be: what is longer is damage, and is not read (OV-R4).
use crate::map::ENTRY_BYTES;

/// Bytes of an entry of the map in a checkpoint, with that of a segment of its own: 6 packed
/// columns of at most 8 bytes and a checksum, or two records of 24.
const ENTRY_BYTES_MAX: u64 = 64;
/// Bytes of what a checkpoint has beside the map. Chosen: the segments of a volume of 10 TiB of
/// 4 MiB each, should none have live data.
const REST_BYTES_MAX: u64 = 64 << 20;

/// The longest checkpoint of a volume of this size whose map takes so much memory (OV-R4).
pub(crate) fn checkpoint_bytes_max(volume_sectors: u64, map_memory: u64) -> u64 {
    let entries = volume_sectors.min(map_memory / ENTRY_BYTES);
    entries.saturating_mul(ENTRY_BYTES_MAX).saturating_add(REST_BYTES_MAX)
}

/// What is wrong with a longer one.
pub(crate) fn too_long(bytes: u64, most: u64) -> String {
    format!("it has {bytes} bytes, and a checkpoint within map_memory at most {most}")
}
