// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-zram`: compressed RAM disks, their writeback, and what stands beside them.
//!
//! ```text
//!   data       pages: incompressible, half compressible, mixed
//!   place      where a device lives: on a file of this machine, or on a simulated drive
//!   writeback  fill, mark idle, write back, read back; the same disk's plain sequential writes
//!   memory     memory used against bytes stored
//!   speed      a page written and read in process, against the bare compressor
//!   served     the same over NBD, against nbdkit's compressed memory
//! ```
//!
//! Invariants
//! - C1 There is no figure of wrong data: what was written back is read back and compared.

pub mod data;
pub mod memory;
pub mod place;
pub mod served;
pub mod speed;
pub mod writeback;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Sectors of a page.
pub const PAGE_SECTORS: u64 = 8;

/// CPU seconds that this process has used with all its threads, those of its io_uring included.
pub fn cpu_seconds() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
