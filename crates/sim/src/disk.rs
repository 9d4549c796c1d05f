// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated disk: a model for its time, a medium for its bytes, and its faults; and the leaf
//! device that engines see.

use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Limits, Op, SECTOR_SIZE, Sector, Status};
use reactor::{FileId, SqeOp};

use crate::lines::Lines;
use crate::media::Media;
use crate::medium::Medium;
use crate::model::{Flash, FlashParams, Hdd, HddParams, Model};

/// The faults of a disk: rates per thousand requests of the kind. The default is no faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A read fails; its buffers hold garbage.
    pub read_error_per_mille: u32,
    /// A write fails; each of its sectors holds the old or the new data.
    pub write_error_per_mille: u32,
    /// Of the failed writes, those that leave garbage in some sectors, as a disk may.
    pub rubbish_per_mille: u32,
    /// A flush fails; what it should have covered may be lost in spite of later flushes.
    pub flush_error_per_mille: u32,
    /// A failed flush may also lose writes in flight: they may have been in the disk's cache.
    pub flush_error_takes_in_flight: bool,
    /// A read flips one bit of its range on the medium before it reads.
    pub rot_per_mille: u32,
    /// A write completes but is not stored. Only checksums detect this.
    pub lost_write_per_mille: u32,
    /// A write completes but is stored at another place.
    pub misdirected_write_per_mille: u32,
    /// Every request from this one on (counted from 0) fails.
    pub fail_from_op: Option<u64>,
    /// This one request fails.
    pub fail_op: Option<u64>,
}

impl Faults {
    /// Whether the request of this number fails in any case.
    pub(crate) fn break_request(&self, nth: u64) -> bool {
        self.fail_from_op.is_some_and(|from| nth >= from) || self.fail_op == Some(nth)
    }
}

/// Counts of a disk's requests, for figures in tests and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
}

/// The specification of a disk.
pub struct DiskSpec {
    /// Its name.
    pub name: String,
    pub capacity: Sector,
    /// Timing of its requests.
    pub model: Box<dyn Model>,
    /// Smallest request; smaller ones are refused.
    pub logical_block_bytes: u32,
    /// Bytes that a power cut does not tear.
    pub atomic_write_unit_bytes: u32,
    /// Persistent memory rather than a disk: reads see a write from its submission on, and a power
    /// cut may lose any words of cache lines that no flush (a fence) covers. It has no discards, no
    /// write zeroes, and no lost or misdirected writes.
    pub is_memory: bool,
    /// `Limits::keeps_write_order` of its leaf: a power cut loses the newest writes, and no flush
    /// that fails loses any.
    pub keeps_write_order: bool,
    /// A kill loses what was not flushed, as a power cut does: the process has it in its memory.
    pub loses_at_kill: bool,
    /// Whether power cuts are possible. Costs twice the memory; benchmarks of gigabytes turn it
    /// off.
    pub keeps_history: bool,
    /// Whether written data can be read back. Benchmarks of time alone turn it off: writes are not
    /// stored and reads return zeroes, with unchanged timing.
    pub keeps_data: bool,
    /// `Limits::rotational` of its leaf.
    pub rotational: bool,
    /// `Limits::queue_depth` of its leaf; 0: unknown.
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
            keeps_write_order: false,
            loses_at_kill: false,
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

    /// A flash device that reports its queue depth.
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
    /// Called with the offset and data of each failed write.
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
            keeps_write_order: spec.keeps_write_order,
            survives_kill: !spec.loses_at_kill,
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
                let mut media = Media::new(spec.capacity.bytes(), tear, spec.keeps_history);
                media.keeps_order = spec.keeps_write_order;
                Medium::Disk(media)
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

    /// Repairs rewritten bad sectors, as a drive does with its spare sectors.
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

/// The leaf device of a simulated disk: turns bios into requests for the driver of the current
/// core. Made by [`crate::World::leaf`].
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

    fn takes_client_memory(&self) -> bool {
        true
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
                // The driver's request has no FUA: write the zeroes.
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
