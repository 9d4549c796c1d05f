// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device takes: size, alignment, largest request, and how limits stack.
use crate::{Bio, Op};
use crate::{Sector, Status};

/// Limits of a device. Bytes where the kernel's queue attributes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the device.
    pub capacity: Sector,
    /// Smallest addressable unit, bytes; every bio is aligned to it. Power of two, at least 512.
    /// A device with larger blocks merges what is less than a block, and says 512 here.
    pub logical_block_bytes: u32,
    /// What a leaf that takes parts of its blocks merges them in, bytes: it reads the block, puts
    /// the part in, and writes all of it in place. 0 of a leaf that takes whole blocks only, and of
    /// an engine, which merges elsewhere.
    pub merge_block_bytes: u32,
    /// Unit below which a write costs a read, bytes: of an engine its block.
    pub physical_block_bytes: u32,
    /// Preferred smallest request, bytes.
    pub io_min_bytes: u32,
    /// Preferred request, bytes; 0 when there is none.
    pub io_opt_bytes: u32,
    /// Largest request a client should send, bytes.
    pub max_io_bytes: u32,
    /// What a power cut can't tear, bytes.
    pub atomic_write_unit_bytes: u32,
    /// Smallest discard, bytes; 0 when the device does not discard.
    pub discard_granularity_bytes: u32,
    /// Whether `WriteZeroes` is cheaper than writing zeroes.
    pub write_zeroes: bool,
    /// Whether completed writes may still be lost by a power cut until a flush.
    pub volatile_cache: bool,
    /// Whether what has been flushed survives the end of the program. A compressed RAM disk without
    /// a store says no, and doors offer no flush that would mean nothing; a `mem:` leaf stands in
    /// for a disk and says yes.
    pub keeps: bool,
    /// Whether all its content is lost at the end of the program, as that of a compressed RAM disk
    /// without a store. An export of a server without FLUSH says no, and no to `keeps`, too: what
    /// is written there may last, but nobody can make it.
    pub loses_all: bool,
    /// Whether completed writes survive the death of the process (contract, point 5), and none of
    /// its writes comes after that. Then a door may hide the death from its clients.
    pub survives_kill: bool,
    /// Whether what has been flushed survives the death of the process, and none of its writes
    /// comes after that. A volume on an object store says yes, and no to `survives_kill`: what it
    /// has gathered dies with the process.
    pub flushed_survives_kill: bool,
    /// Whether a crash keeps a write only together with all writes that had completed when it was
    /// submitted, as a log does; a failed flush loses nothing by itself.
    pub keeps_write_order: bool,
    /// Whether seeks cost (HDD): decides writeback tuning.
    pub rotational: bool,
    /// Commands the device works on at once; 0 when nobody knows.
    pub queue_depth: u32,
}

impl Limits {
    /// Limits of a device of `capacity` that takes anything aligned to 512 bytes.
    pub fn new(capacity: Sector) -> Limits {
        Limits {
            capacity,
            logical_block_bytes: 512,
            merge_block_bytes: 0,
            physical_block_bytes: 512,
            io_min_bytes: 512,
            io_opt_bytes: 0,
            max_io_bytes: 32 << 20,
            atomic_write_unit_bytes: 512,
            discard_granularity_bytes: 0,
            write_zeroes: false,
            volatile_cache: true,
            keeps: true,
            loses_all: false,
            survives_kill: true,
            flushed_survives_kill: true,
            keeps_write_order: false,
            rotational: false,
            queue_depth: 0,
        }
    }

    /// Limits of a device that takes every operation, and has done it as it answers.
    pub fn of_memory(capacity: Sector) -> Limits {
        let (discard_granularity_bytes, write_zeroes, volatile_cache) = (512, true, false);
        Limits { discard_granularity_bytes, write_zeroes, volatile_cache, ..Limits::new(capacity) }
    }

    /// Smallest write that touches nothing beside what it covers, bytes. A smaller one is refused,
    /// or merged in place: then an error may cost its neighbours. Areas of devices begin and end at
    /// multiples of it, and engines write nothing smaller.
    pub fn write_unit_bytes(&self) -> u32 {
        self.logical_block_bytes.max(self.merge_block_bytes)
    }

    /// Narrows these limits so that whatever passes them also passes `below`, as stacked queues do.
    /// The capacity stays: where `below` lies in the table is the table's business.
    pub fn stack(&mut self, below: &Limits) {
        self.logical_block_bytes = self.logical_block_bytes.max(below.logical_block_bytes);
        self.merge_block_bytes = self.merge_block_bytes.max(below.merge_block_bytes);
        self.physical_block_bytes = self.physical_block_bytes.max(below.physical_block_bytes);
        self.io_min_bytes = self.io_min_bytes.max(below.io_min_bytes);
        self.io_opt_bytes = match (self.io_opt_bytes, below.io_opt_bytes) {
            (0, b) => b,
            (a, 0) => a,
            (a, b) => lcm(a, b).unwrap_or(a),
        };
        self.max_io_bytes = self.max_io_bytes.min(below.max_io_bytes);
        self.atomic_write_unit_bytes =
            self.atomic_write_unit_bytes.min(below.atomic_write_unit_bytes);
        self.discard_granularity_bytes =
            self.discard_granularity_bytes.max(below.discard_granularity_bytes);
        self.write_zeroes &= below.write_zeroes;
        self.volatile_cache |= below.volatile_cache;
        self.keeps &= below.keeps;
        self.loses_all |= below.loses_all;
        self.survives_kill &= below.survives_kill;
        self.flushed_survives_kill &= below.flushed_survives_kill;
        // Two devices keep no order between each other.
        self.keeps_write_order = false;
        self.rotational |= below.rotational;
        self.queue_depth = match (self.queue_depth, below.queue_depth) {
            (0, depth) | (depth, 0) => depth,
            (a, b) => a.min(b),
        };
    }

    /// Whether `bio` lies on the device, is aligned, and its buffers hold exactly its length.
    pub fn check(&self, bio: &Bio) -> Result<(), Status> {
        self.check_range(bio)?;
        bio.check_bufs()
    }

    /// Whether `bio` lies on the device and is aligned to its logical blocks.
    pub fn check_range(&self, bio: &Bio) -> Result<(), Status> {
        self.check_range_within(bio, self.capacity)
    }

    /// The same for a device that has `capacity` now.
    pub fn check_range_within(&self, bio: &Bio, capacity: Sector) -> Result<(), Status> {
        if bio.op == Op::Flush {
            return Ok(());
        }
        let Sector(mask) = Sector::from_bytes(u64::from(self.logical_block_bytes) - 1);
        let end = bio.sector.checked_add(bio.len).ok_or(Status::Invalid)?;
        let aligned = (bio.sector.0 | bio.len.0) & mask == 0;
        let lies_on_it = bio.len > Sector::ZERO && end <= capacity;
        if aligned && lies_on_it { Ok(()) } else { Err(Status::Invalid) }
    }
}

fn lcm(a: u32, b: u32) -> Option<u32> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacking_keeps_the_stricter_of_each() {
        let mut top = Limits { io_opt_bytes: 65536, ..Limits::new(Sector(100)) };
        let below = Limits {
            logical_block_bytes: 4096,
            merge_block_bytes: 8192,
            io_opt_bytes: 98304,
            max_io_bytes: 1 << 20,
            write_zeroes: true,
            keeps: false,
            loses_all: true,
            survives_kill: false,
            flushed_survives_kill: false,
            ..Limits::new(Sector(50))
        };
        top.stack(&below);
        assert_eq!(top.capacity, Sector(100));
        assert_eq!(top.logical_block_bytes, 4096);
        assert_eq!(top.write_unit_bytes(), 8192);
        assert_eq!(top.io_opt_bytes, 196_608);
        assert_eq!(top.max_io_bytes, 1 << 20);
        assert!(!top.write_zeroes);
        assert!(!top.keeps && !top.survives_kill && !top.flushed_survives_kill);
        top.stack(&Limits::new(Sector(50)));
        assert!(!top.keeps && top.loses_all, "nor with a part that does");
        let mut log = Limits { keeps_write_order: true, ..Limits::new(Sector(100)) };
        log.stack(&log.clone());
        assert!(!log.keeps_write_order, "two logs keep no order between each other");
    }
}
