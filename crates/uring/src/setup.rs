// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a ring is made: its sizes, and the best way of completion that the kernel has.
use std::io;

use io_uring::IoUring;

/// Requests per system call; a larger batch takes more calls.
pub(crate) const SQ_ENTRIES: u32 = 256;
/// Completions in the ring; beyond that the kernel uses a slower overflow list.
const CQ_ENTRIES: u32 = 4096;

/// A ring for this thread.
pub(crate) fn build() -> io::Result<IoUring> {
    let plain = || {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(CQ_ENTRIES);
        builder
    };
    // One thread submits and reaps, and wants completions only on request: then the kernel sends no
    // interrupts (since 6.1; coop_taskrun since 5.19).
    let mut best = plain();
    best.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().setup_defer_taskrun();
    let mut good = plain();
    good.setup_coop_taskrun().setup_taskrun_flag();
    let refused = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
    match best.build(SQ_ENTRIES) {
        Err(e) if refused(&e) => match good.build(SQ_ENTRIES) {
            Err(e) if refused(&e) => plain().build(SQ_ENTRIES),
            other => other,
        },
        other => other,
    }
}
