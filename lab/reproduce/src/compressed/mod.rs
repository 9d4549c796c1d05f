// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed RAM disks: their writeback and the memory that they take.
//!
//! ```text
//!   data       pages: incompressible, half compressible, mixed
//!   platform   core, clock and backing device: on a file of this machine, or on a simulated drive
//!   writeback  fill, mark idle, write back, read back; the same disk's plain sequential writes
//!   memory     memory used, compared with bytes stored
//! ```
//!
//! Invariants
//! - RP-C1 Written data is checked: at least a sample of what was written back is read back and
//!   compared.

pub mod data;
pub mod memory;
pub mod platform;
pub mod writeback;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Sectors of a page.
pub const PAGE_SECTORS: u64 = 8;
