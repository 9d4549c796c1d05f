// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a ring is made: its sizes, and the best way of completion that the kernel has.
use std::io;

use io_uring::{Builder, IoUring};

/// Requests per system call; a larger batch takes more calls.
pub(crate) const SQ_ENTRIES: u32 = 256;
/// Completions in the ring; beyond that the kernel uses a slower overflow list.
const CQ_ENTRIES: u32 = 4096;

/// A ring for this thread, with as much of the following as the kernel has: no list of indices
/// beside the entries (since 6.6); completions only on request, as one thread submits and reaps, so
/// that the kernel sends no interrupts (since 6.1; coop_taskrun since 5.19).
pub(crate) fn build() -> io::Result<IoUring> {
    let deferred = |ring: &mut Builder| {
        ring.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().setup_defer_taskrun();
    };
    let choices: [&dyn Fn(&mut Builder); 4] = [
        &|ring| deferred(ring.setup_no_sqarray()),
        &deferred,
        &|ring| {
            ring.setup_coop_taskrun().setup_taskrun_flag();
        },
        &|_| (),
    ];
    let mut made = Err(io::ErrorKind::InvalidInput.into());
    for choose in choices {
        let mut builder = IoUring::builder();
        choose(builder.setup_cqsize(CQ_ENTRIES));
        made = builder.build(SQ_ENTRIES);
        if !made.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
            break;
        }
    }
    made
}
