// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory used, compared with bytes stored, after a fill and after random overwrites.
use block::BlockDevice;
use sim::Rng;

use super::PAGE_BYTES;
use super::data::Data;
use super::platform::Platform;
use super::writeback::{device, end, numbers, shuffled, write_pages};

/// Overwrites for each page.
const OVERWRITES: u64 = 2;

/// Two values of `mm_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub compr_bytes: u64,
    pub mem_bytes: u64,
}

impl MemoryUse {
    /// Memory divided by bytes of objects.
    pub fn ratio(self) -> f64 {
        self.mem_bytes as f64 / self.compr_bytes as f64
    }
}

/// Fills a device in random order, then overwrites random pages, twice as many as it has.
///
/// # Errors
/// The error of the device.
pub fn run(
    platform: &impl Platform,
    data: Data,
    algorithm: &str,
    pages: u64,
) -> Result<[MemoryUse; 2], String> {
    let zram = device(platform, (algorithm, &[]), (pages, 1), None)?;
    assert_eq!(zram.limits().capacity.bytes(), pages * PAGE_BYTES as u64);
    let used = |zram| {
        let mm_stat = numbers(platform, zram, "mm_stat")?;
        Ok::<MemoryUse, String>(MemoryUse { compr_bytes: mm_stat[1], mem_bytes: mm_stat[2] })
    };
    write_pages(platform, zram.clone(), data, shuffled(pages), 0)?;
    let filled = used(&zram)?;
    let mut rng = Rng::new(2);
    for round in 1..=OVERWRITES {
        let slot = |_| u32::try_from(rng.below(pages)).expect("of a vector of u32");
        let slots = (0..pages).map(slot).collect();
        write_pages(platform, zram.clone(), data, slots, round * pages)?;
    }
    let overwritten = used(&zram)?;
    end(platform, zram)?;
    Ok([filled, overwritten])
}
