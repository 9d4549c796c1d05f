// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `millpond inspect` reads: a whole cache area of either format, from arbitrary bytes.
//!
//! What must hold (WC-SV1 of `writecache::probe`): an answer or an error, never a panic, never more
//! memory than the area warrants.
//!
//! The input is a list of changes to a sound area: arbitrary bytes would end at the first checksum.
#![no_main]

use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, BlockDevice, CoreId, Limits, Nanos, Op, Sector, Status};
use format::{
    CheckpointRef, Entry, Geometry, Kind, Op as Says, RecordHeader, Superblock, UNIT,
};
use libfuzzer_sys::fuzz_target;
use reactor::{Driver, Event, Msg, Reactor, Sqe};
use writecache::Depth;

const AREA_BYTES: u64 = 512 << 10;
const UUID: [u8; 16] = [7; 16];
const CRC: std::ops::Range<usize> = 12..16;
/// Bytes from one copy of the superblock to the next.
const SUPERBLOCK_STRIDE: usize = 64 << 10;

/// A disk in memory that ends each bio as it comes.
struct Disk(RefCell<Vec<u8>>);

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "cache"
    }
    fn limits(&self) -> Limits {
        Limits::new(Sector::from_bytes(self.0.borrow().len() as u64))
    }
    fn submit(&self, bio: Bio) {
        assert_eq!(bio.op, Op::Read, "a probe only reads");
        let status = match self.limits().check(&bio) {
            Ok(()) => {
                let at = usize::try_from(bio.sector.bytes()).expect("within the disk");
                bio.bufs.copy_from(&self.0.borrow()[at..at + bio.bufs.len_bytes()]);
                Status::Ok
            }
            Err(status) => status,
        };
        bio.complete(status);
    }
}

/// A driver that nobody asks for anything.
struct IdleDriver;

impl Driver for IdleDriver {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        assert!(batch.is_empty());
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {}
    fn park(&mut self, _deadline: Option<Nanos>, _out: &mut Vec<Event>) {}
    fn random(&mut self) -> u64 {
        4
    }
}

/// A sound native area: a checkpoint of one unit and two records.
fn native() -> Vec<u8> {
    let geometry = Geometry::compute(AREA_BYTES, 4096).expect("half a MiB holds a cache");
    let mut area = vec![0; usize::try_from(AREA_BYTES).expect("half a MiB")];
    let mut put = |offset: u64, unit: &[u8]| {
        let at = usize::try_from(offset).expect("within the area");
        area[at..at + UNIT].copy_from_slice(unit);
    };
    let crc = format::checksum(&[0; 4096]);
    let entry = |block, slot| Entry { op: Says::Write, block, slot, crc };
    let mut unit = [0; UNIT];
    let mut header = RecordHeader {
        kind: Kind::Checkpoint,
        uuid: UUID,
        seq: 0,
        incarnation: 1,
        link: 0,
        flushed_seq: 0,
        count: 0,
    };
    format::encode_record(&header, &[entry(3, 0), entry(4, 1)], &mut unit);
    put(geometry.checkpoint_offset(0), &unit);
    for seq in 1..3 {
        header = RecordHeader { kind: Kind::Log, seq, flushed_seq: seq - 1, ..header };
        header.link = format::encode_record(&header, &[entry(seq, 4)], &mut unit);
        put(geometry.log_offset(seq), &unit);
    }
    let superblock = Superblock {
        uuid: UUID,
        generation: 2,
        block_size: geometry.block_size,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        origin_sectors: 1 << 12,
        origin_id: [1; 16],
        checkpoint: CheckpointRef { units: 1, id: 1, log_start_seq: 1, ..CheckpointRef::default() },
        guards_origin: false,
        moved: None,
        atomic_bytes: 0,
        later: None,
    };
    for copy in 0..4 {
        superblock.encode(copy, &mut unit);
        put(Geometry::superblock_offset(copy), &unit);
    }
    area
}

fn kernel() -> Vec<u8> {
    let geometry = format::dm::Geometry::compute(AREA_BYTES, 4096).expect("it holds blocks");
    let n_blocks = geometry.n_blocks();
    let mut area = vec![0xff; usize::try_from(AREA_BYTES).expect("half a MiB")];
    let superblock = format::dm::Superblock { block_size: 4096, n_blocks, seq_count: 2 };
    superblock.encode(&mut area[..format::dm::HEADER_BYTES]);
    area
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, changes)) = data.split_first() else { return };
    let mut area = if choice & 1 == 0 { native() } else { kernel() };
    // A unit, where in it, a byte; every other change gets a checksum that fits.
    for change in changes.chunks_exact(4) {
        let unit = usize::from(change[0]) * UNIT % area.len();
        // Bit 6: all copies of the superblock alike, of which two must agree.
        let copies = (0..4).map(|copy| SUPERBLOCK_STRIDE * copy);
        let units: Vec<usize> = if change[2] & 64 == 0 { vec![unit] } else { copies.collect() };
        let from = usize::from(change[1]) | usize::from(change[2] & 15) << 8;
        // Bit 7: a whole number of that byte.
        let to = if change[2] & 128 == 0 { from + 1 } else { UNIT.min(from + 8) };
        for unit in units {
            let unit = &mut area[unit..unit + UNIT];
            unit[from..to].fill(change[3]);
            if change[2] & 16 != 0 {
                unit[CRC].fill(0);
                let crc = format::checksum(unit);
                unit[CRC].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }
    if choice & 2 != 0 {
        let len = usize::from(*choice) * 4096;
        area.truncate(len.max(512));
    }
    let start = Sector(u64::from(choice >> 6));
    let disk: Rc<dyn BlockDevice> = Rc::new(Disk(RefCell::new(area)));
    let core = Reactor::enter(CoreId(0), Box::new(IdleDriver));
    let report = core.block_on(async move { writecache::probe(disk, start, Depth::Data).await });
    if let Ok(report) = report {
        let o = report.occupancy().map_or(0, |o| o.free + o.dirty + o.clean + o.bad);
        assert!(report.occupancy().is_none_or(|of| of.total == o));
    }
});
