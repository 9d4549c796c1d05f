// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed RAM disks: their writeback, and the memory they take.
//!
//! ```text
//!   data       pages: incompressible, half compressible, mixed
//!   place      where a device lives: on a file of this machine, or on a simulated drive
//!   writeback  fill, mark idle, write back, read back; the same disk's plain sequential writes
//!   memory     memory used against bytes stored
//! ```
//!
//! Invariants
//! - C1 There is no figure of wrong data: of what was written back samples at least are read back
//!   and compared.

pub mod data;
pub mod memory;
pub mod place;
pub mod writeback;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Sectors of a page.
pub const PAGE_SECTORS: u64 = 8;
