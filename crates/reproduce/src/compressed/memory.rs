// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory used against bytes stored, after a fill and after random overwrites.
use block::BlockDevice;
use sim::Rng;

use super::PAGE_BYTES;
use super::data::Data;
use super::place::Place;
use super::writeback::{device, end, numbers, shuffled, write_pages};

/// Overwrites for each page.
const OVERWRITES: u64 = 2;

/// What `mm_stat` tells of a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub compr_bytes: u64,
    pub mem_bytes: u64,
}

impl Used {
    /// Memory to objects.
    pub fn ratio(self) -> f64 {
        self.mem_bytes as f64 / self.compr_bytes as f64
    }
}

/// Fills a device in random order, then overwrites random pages, twice as many as it has.
///
/// # Errors
/// What the device answered.
pub fn run(
    place: &impl Place,
    data: Data,
    algorithm: &str,
    pages: u64,
) -> Result<[Used; 2], String> {
    let zram = device(place, (algorithm, &[]), (pages, 1), None)?;
    assert_eq!(zram.limits().capacity.bytes(), pages * PAGE_BYTES as u64);
    let used = |zram| {
        let mm_stat = numbers(place, zram, "mm_stat")?;
        Ok::<Used, String>(Used { compr_bytes: mm_stat[1], mem_bytes: mm_stat[2] })
    };
    write_pages(place, zram.clone(), data, shuffled(pages), 0)?;
    let filled = used(&zram)?;
    let mut rng = Rng::new(2);
    for round in 1..=OVERWRITES {
        let slot = |_| u32::try_from(rng.below(pages)).expect("of a vector of u32");
        let slots = (0..pages).map(slot).collect();
        write_pages(place, zram.clone(), data, slots, round * pages)?;
    }
    let overwritten = used(&zram)?;
    end(place, zram)?;
    Ok([filled, overwritten])
}
