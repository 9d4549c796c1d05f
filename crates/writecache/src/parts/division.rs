// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Division: which areas, blocks and options each part of a cache has.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::{Geometry, Part, Superblock};

use super::area::{Areas, PartArea};
use super::layout::Layout;
use crate::config::{Config, PartOf, ReadTuning, Tuning, WritebackLimits};
use crate::recovery::area::no_space;

/// How a cache is divided.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    /// The division in the superblock of part 0.
    pub(super) first: Part,
    /// What each part got as the cache grew, in sectors.
    pub(crate) added: Vec<u64>,
    pub(super) uuid: [u8; 16],
    /// The parts adopt the origin.
    pub(super) adopts: bool,
}

impl Division {
    pub(crate) fn parts(&self) -> u8 {
        self.first.of
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout { parts: self.first.of, chunk: Sector(u64::from(self.first.chunk_sectors)) }
    }

    pub(crate) fn of(superblock: &Superblock, part: Part) -> Division {
        let (first, added) = (Part { nth: 0, ..part }, superblock.areas.added.clone());
        Division { first, added, uuid: superblock.uuid, adopts: false }
    }

    #[cfg(test)]
    pub(super) fn of_test(first: Part, added: Vec<u64>) -> Division {
        Division { first, added, uuid: [0; 16], adopts: false }
    }

    /// The areas of one part of the cache that `whole` is for, on a device of `capacity`.
    pub(crate) fn areas_of(&self, whole: &Config, nth: u8, capacity: Sector) -> Areas {
        let part = Part { nth, ..self.first };
        Areas::of(whole.start_sector, part, &self.added, capacity, whole.planted)
    }

    /// The device of one part.
    pub(crate) fn device_of(
        &self,
        whole: &Config,
        nth: u8,
        device: &Rc<dyn BlockDevice>,
    ) -> Rc<dyn BlockDevice> {
        let areas = self.areas_of(whole, nth, device.limits().capacity);
        PartArea::new(device.clone(), areas)
    }

    /// The end of all areas, from the beginning of the cache on.
    pub(super) fn end(&self) -> Sector {
        Sector(u64::from(self.first.of) * self.each().0)
    }

    /// What each part has.
    pub(super) fn each(&self) -> Sector {
        Sector(self.first.area_sectors + self.added.iter().sum::<u64>())
    }

    /// The config of one part, from that of the cache.
    pub(crate) fn config_of(&self, whole: &Config, nth: u8) -> Config {
        let part = Part { nth, ..self.first };
        // The parts differ in the last byte: the rest shows that they belong together, and no
        // record of one part is valid in another.
        let mut uuid = self.uuid;
        uuid[15] = nth;
        let mut config = whole.clone();
        config.start_sector += Sector(u64::from(nth) * part.area_sectors);
        config.part = Some(PartOf { part, uuid });
        config.parts = None;
        config.adopt_origin |= self.adopts;
        config.tuning = tuning_of_part(config.tuning, part.of);
        config
    }
}

/// The options of one part, so that all parts together obey those of the cache.
pub(crate) fn tuning_of_part(whole: Tuning, parts: u8) -> Tuning {
    let share = |n: u32| n.div_ceil(u32::from(parts));
    Tuning {
        writeback_jobs: share(whole.writeback_jobs),
        autocommit_blocks: share(whole.autocommit_blocks),
        limits: WritebackLimits {
            rate_max: share_of_rate(whole.limits.rate_max, parts),
            ..whole.limits
        },
        scrub_rate: share_of_rate(whole.scrub_rate, parts),
        reads: ReadTuning {
            bytes_per_day: share_of_rate(whole.reads.bytes_per_day, parts),
            ..whole.reads
        },
        ..whole
    }
}

/// A part's share of a rate; 0 is no limit.
pub(crate) fn share_of_rate(rate: u64, parts: u8) -> u64 {
    if rate == 0 { 0 } else { (rate / u64::from(parts)).max(1) }
}

/// The layout of each of `of` parts in an area of its own.
pub(super) fn geometry_of_each(config: &Config, each: Sector, of: u8) -> Result<Geometry, Error> {
    Geometry::compute(each.bytes(), config.block_size)
        .map_err(|e| no_space(config, &format_args!("{of} parts of {} bytes: {e}", each.bytes())))
}
