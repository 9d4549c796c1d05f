// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether an origin moves a head. Virtual disks claim to rotate whatever is below them, so random
//! reads are timed where one claims it.
use block::{BlockDevice, Buf, Class, Nanos, Sector};
use policy::wbt::SEEK_MIN_NS;

/// Reads that are timed, one at a time: a fifth of a second of a disk that does rotate.
const READS: u64 = 16;
const READ_BYTES: usize = 4096;
/// Distance of two reads as a part of the disk, in units of 2^-64: the golden section, whose
/// multiples are spread evenly.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The median time of random reads, if it is what a head needs; `None`: no head moves. If no read
/// succeeds, the claim of the origin counts.
pub(super) async fn seek_time(origin: &dyn BlockDevice) -> Option<Nanos> {
    let limits = origin.limits();
    if !limits.rotational {
        return None;
    }
    let blocks = limits.capacity.bytes() / READ_BYTES as u64;
    let mut times = Vec::new();
    for nth in 0..READS.min(blocks) {
        let place = (u128::from(STRIDE.wrapping_mul(nth + 1)) * u128::from(blocks)) >> 64;
        let at = u64::try_from(place).expect("below the number of blocks") * READ_BYTES as u64;
        let (began, to) = (reactor::now(), Buf::alloc(READ_BYTES));
        let read = reactor::read(origin, Class::Foreground, Sector::from_bytes(at), to.into());
        if read.await.is_ok() {
            times.push(reactor::now().saturating_sub(began));
        }
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(Nanos(SEEK_MIN_NS));
    (median.0 >= SEEK_MIN_NS).then_some(median)
}
