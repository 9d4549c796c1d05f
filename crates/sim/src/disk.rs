// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated disk: a model for its time, a medium for its bytes, and the faults it is told to
//! have; and the leaf device that engines see.

use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Limits, Op, SECTOR_SIZE, Sector, Status};
use reactor::{FileId, SqeOp};

use crate::lines::Lines;
use crate::media::Media;
use crate::medium::Medium;
use crate::model::{Flash, FlashParams, Hdd, HddParams, Model};

/// What goes wrong with a disk, out of a thousand requests of the kind. All zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A read fails; its buffers hold rubbish.
    pub read_error_per_mille: u32,
    /// A write fails; each of its sectors holds the old or the new.
    pub write_error_per_mille: u32,
    /// Of the writes that fail, those of which some sectors hold rubbish: a disk's may.
    pub rubbish_per_mille: u32,
    /// A flush fails; what it should have covered may be lost whatever is flushed later.
    pub flush_error_per_mille: u32,
    /// A flush that fails takes writes in flight with it: the disk's cache may have had them.
    pub flush_error_takes_in_flight: bool,
    /// One bit of what is about to be read flips on the medium.
    pub rot_per_mille: u32,
    /// A write completes but goes nowhere. No engine survives this unharmed without checksums.
    pub lost_write_per_mille: u32,
    /// A write completes but goes somewhere else.
    pub misdirected_write_per_mille: u32,
    /// From this request of the disk on (counted from 0) every one fails.
    pub fail_from_op: Option<u64>,
}

/// What a disk has been asked for, for figures in tests and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// How to make a disk.
pub struct DiskSpec {
    /// What people call it.
    pub name: String,
    pub capacity: Sector,
    /// How long it takes.
    pub model: Box<dyn Model>,
    /// Smallest request; smaller ones are refused.
    pub logical_block_bytes: u32,
    /// What a power cut can't tear.
    pub atomic_write_unit_bytes: u32,
    /// Persistent memory rather than a disk: a write is there for reads as it is submitted, and a
    /// cut takes any words of cache lines that no flush (a fence) has covered. Knows no discards,
    /// no zeroes, and no lost or misdirected writes.
    pub is_memory: bool,
    /// Whether the power may be cut. Twice the memory; a benchmark of gigabytes turns it off.
    pub keeps_history: bool,
    /// Whether what is written can be read back. A benchmark of time alone turns it off: writes
    /// go nowhere and reads give zeroes, at the same moments as ever.
    pub keeps_data: bool,
    /// What its leaf says about seeks.
    pub rotational: bool,
    /// What its leaf says about commands at once; 0: nothing.
    pub queue_depth: u32,
}

impl DiskSpec {
    /// A disk that takes anything aligned to 512 bytes.
    pub fn new(name: &str, capacity: Sector, model: Box<dyn Model>) -> DiskSpec {
        DiskSpec {
            name: name.to_owned(),
            capacity,
            model,
            logical_block_bytes: 512,
            atomic_write_unit_bytes: 512,
            is_memory: false,
            keeps_history: true,
            keeps_data: true,
            rotational: false,
            queue_depth: 0,
        }
    }

    /// Persistent memory.
    pub fn memory(name: &str, capacity: Sector, model: Box<dyn Model>) -> DiskSpec {
        let spec = DiskSpec::new(name, capacity, model);
        DiskSpec { atomic_write_unit_bytes: 8, is_memory: true, ..spec }
    }

    /// A flash device that says how many commands it works on at once.
    pub fn flash(name: &str, capacity: Sector, params: FlashParams) -> DiskSpec {
        let spec = DiskSpec::new(name, capacity, Box::new(Flash::new(params)));
        DiskSpec { queue_depth: commands(params.queue_depth), ..spec }
    }

    /// A rotating disk for benchmarks: no power cuts.
    pub fn hdd(name: &str, capacity: Sector, params: HddParams) -> DiskSpec {
        let spec = DiskSpec::new(name, capacity, Box::new(Hdd::new(params)));
        let queue_depth = commands(params.queue_depth);
        DiskSpec { keeps_history: false, rotational: true, queue_depth, ..spec }
    }
}

pub(crate) type OnFailedWrite = Rc<dyn Fn(u64, &[u8])>;

/// A disk of the world.
pub(crate) struct DiskState {
    pub(crate) limits: Limits,
    pub(crate) name: String,
    pub(crate) model: Box<dyn Model>,
    pub(crate) media: Medium,
    pub(crate) keeps_data: bool,
    pub(crate) faults: Faults,
    pub(crate) bad_sectors: BTreeSet<u64>,
    pub(crate) stats: DiskStats,
    /// Told of writes that fail, with what they should have written.
    pub(crate) on_failed_write: Option<OnFailedWrite>,
    /// Requests so far, for `fail_from_op`.
    pub(crate) ops: u64,
}

impl DiskState {
    pub(crate) fn new(spec: DiskSpec) -> DiskState {
        let tear = u64::from(spec.atomic_write_unit_bytes);
        let limits = Limits {
            logical_block_bytes: spec.logical_block_bytes,
            atomic_write_unit_bytes: spec.atomic_write_unit_bytes,
            discard_granularity_bytes: if spec.is_memory { 0 } else { 512 },
            write_zeroes: !spec.is_memory,
            rotational: spec.rotational,
            queue_depth: spec.queue_depth,
            ..Limits::new(spec.capacity)
        };
        DiskState {
            limits,
            name: spec.name,
            model: spec.model,
            media: if spec.is_memory {
                Medium::Memory(Lines::new(spec.capacity.bytes()))
            } else {
                Medium::Disk(Media::new(spec.capacity.bytes(), tear, spec.keeps_history))
            },
            keeps_data: spec.keeps_data,
            faults: Faults::default(),
            bad_sectors: BTreeSet::new(),
            stats: DiskStats::default(),
            on_failed_write: None,
            ops: 0,
        }
    }

    /// Whether `len` bytes at `offset` lie on the disk, in whole blocks.
    pub(crate) fn has(&self, offset: u64, len: u64) -> bool {
        let unit = u64::from(self.limits.logical_block_bytes);
        let end = offset.checked_add(len);
        len > 0
            && offset.is_multiple_of(unit)
            && len.is_multiple_of(unit)
            && end.is_some_and(|end| end <= self.limits.capacity.bytes())
    }

    pub(crate) fn bad_in(&self, offset: u64, len: usize) -> bool {
        self.bad_sectors.range(sectors(offset, len)).next().is_some()
    }

    /// Rewriting a bad sector heals it, as a drive's spare sectors do.
    pub(crate) fn heal(&mut self, offset: u64, len: usize) {
        if !self.bad_sectors.is_empty() {
            self.bad_sectors.retain(|s| !sectors(offset, len).contains(s));
        }
    }
}

fn commands(queue_depth: usize) -> u32 {
    u32::try_from(queue_depth).expect("a queue has fewer than 2^32 slots")
}

fn sectors(offset: u64, len: usize) -> std::ops::Range<u64> {
    let sector = SECTOR_SIZE as u64;
    offset / sector..(offset + len as u64).div_ceil(sector)
}

/// The leaf device of a simulated disk: turns bios into requests for the driver of whatever core
/// it is used on. Made by [`crate::World::leaf`].
#[derive(Clone, Debug)]
pub struct Disk {
    pub(crate) name: String,
    pub(crate) file: FileId,
    pub(crate) limits: Limits,
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if self.limits.check(&bio).is_err() {
            return bio.complete(Status::Invalid);
        }
        let Bio { op, flags, sector, len, bufs, done, .. } = bio;
        let (offset, len) = (sector.bytes(), len.bytes());
        let fua = flags.contains(block::Flags::FUA);
        let what = match op {
            Op::Read => SqeOp::Read { offset, bufs },
            Op::Write => SqeOp::Write { offset, bufs, fua },
            Op::Flush => SqeOp::Flush,
            Op::Discard => SqeOp::Discard { offset, len },
            Op::WriteZeroes if fua => {
                // The driver's request knows no FUA: write them.
                let len = usize::try_from(len).expect("a request fits in memory");
                SqeOp::Write { offset, bufs: Buf::zeroed(len).into(), fua }
            }
            Op::WriteZeroes => {
                let unmap = !flags.contains(block::Flags::NOUNMAP);
                SqeOp::WriteZeroes { offset, len, unmap }
            }
        };
        reactor::push_bio(done, self.file, what);
    }
}
