// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Images of large write caches, made by the format alone: superblocks, a checkpoint, a log. The
//! slots are holes of a sparse file, so that 100 GiB of cache take the room of their metadata.
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use block::SECTOR_SIZE;
use format::{
    CheckpointRef, ENTRIES_PER_UNIT, Entry, Geometry, Kind, Op, RecordHeader, SUPERBLOCK_COPIES,
    Superblock, UNIT,
};

/// Bytes in a block of the cache.
pub const BLOCK_SIZE: u32 = 4096;
const UUID: [u8; 16] = *b"cache-scale-uuid";
/// One in so many slots is vacant before the writes of a log.
const VACANT_PART: u32 = 20;
/// Records whose writes are pending at any time, of a log in the order of epochs.
const PENDING_RECORDS: usize = 1000;
/// Units written at once.
const UNITS_PER_WRITE: usize = 256;

/// What an image holds.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    /// Cached blocks, each in its slot of the checkpoint.
    pub blocks: u32,
    /// How many of a hundred are dirty; the rest are clean.
    pub dirty_percent: u32,
    /// How much of the log, percent, is records after the checkpoint. Their entries are writes of
    /// some block, which give it another slot, and, if `ordered`, as many of blocks written back.
    pub log_percent: u32,
    /// Written in the order of epochs: each record of the log is one, whose writes are written back
    /// some records later.
    pub ordered: bool,
}

/// What was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Records of the log.
    pub records: u64,
    /// Dirty blocks of the cache.
    pub dirty: u64,
}

/// Where a block of the cache comes from: any slot a block of its own, next to no other.
fn block_of(slot: u32, origin_blocks: u64) -> u64 {
    assert!(origin_blocks.is_power_of_two(), "{origin_blocks} blocks");
    let mask = origin_blocks - 1;
    let half = origin_blocks.trailing_zeros().div_ceil(2);
    let mut x = u64::from(slot);
    for _ in 0..2 {
        x = x.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask; // odd: one to one
        x ^= x >> half;
    }
    x
}

impl Contents {
    /// Blocks of an origin about ten times as large as the cache.
    pub fn origin_blocks(&self) -> u64 {
        (u64::from(self.blocks) * 8).next_power_of_two()
    }

    /// How many blocks of the checkpoint are dirty.
    fn dirty(&self) -> u32 {
        let dirty = u64::from(self.blocks) * u64::from(self.dirty_percent) / 100;
        u32::try_from(dirty).expect("at most all")
    }

    /// Dirty ones first, by slot; each slot's block lies anywhere.
    fn entry(&self, slot: u32) -> Entry {
        let op = if slot < self.dirty() { Op::Write } else { Op::Clean };
        Entry { op, block: block_of(slot, self.origin_blocks()), slot, crc: !slot }
    }

    /// Slots without a block: a write goes to one of them, and vacates another.
    fn vacant(&self) -> u32 {
        if self.log_percent == 0 { 0 } else { self.blocks.div_ceil(VACANT_PART) }
    }

    /// The smallest area with a slot for every block.
    fn geometry(&self) -> Geometry {
        let fits = |area: u64| {
            let geometry = Geometry::compute(area, BLOCK_SIZE);
            geometry.ok().filter(|g| g.slots >= self.blocks + self.vacant())
        };
        let (mut low, mut high) = (0, u64::from(self.blocks.max(1 << 10)) * 8192);
        while high - low > UNIT as u64 {
            let middle = low + (high - low) / 2;
            match fits(middle) {
                Some(_) => high = middle,
                None => low = middle,
            }
        }
        fits(high).expect("twice the data is enough")
    }

    /// Makes the image.
    ///
    /// # Errors
    /// What writing it met.
    pub fn make(&self, path: &Path) -> io::Result<Made> {
        assert!(!self.ordered || self.dirty_percent == 0, "all of epoch 1 is written back");
        let geometry = self.geometry();
        let file = File::create(path)?;
        file.set_len(geometry.end_bytes())?;
        let entries: Vec<u32> = (0..self.blocks).collect();
        let mut units = Units { file: &file, link: 0, kind: Kind::Checkpoint, pending: Vec::new() };
        let per_unit = ENTRIES_PER_UNIT - usize::from(self.ordered);
        for (seq, part) in (0..).zip(entries.chunks(per_unit)) {
            let at = geometry.checkpoint_offset(0) + seq * UNIT as u64;
            let epoch = self.ordered.then(|| Entry::epoch(1, 1));
            let part = part.iter().map(|&slot| self.entry(slot));
            units.add(at, seq, &epoch.into_iter().chain(part).collect::<Vec<_>>())?;
        }
        units.write_pending()?;
        let records = u64::from(geometry.log_units) * u64::from(self.log_percent) / 100;
        let mut log = Units { file: &file, link: 0, kind: Kind::Log, pending: Vec::new() };
        let mut writes = Writes::new(self.blocks, geometry.slots);
        for seq in 1..=records {
            writes.begin_record();
            // The newest record is empty: it only calls those before it durable, as a suspend does.
            let entries = match (seq == records, self.ordered) {
                (true, _) => Vec::new(),
                (false, true) => writes.next_epoch(seq + 1),
                (false, false) => (0..ENTRIES_PER_UNIT).map(|_| writes.next()).collect(),
            };
            let told = |e: Entry| {
                let block = self.entry(e.block as u32);
                if e.op == Op::Epoch { e } else { Entry { op: e.op, slot: e.slot, ..block } }
            };
            let entries: Vec<Entry> = entries.into_iter().map(told).collect();
            log.add(geometry.log_offset(seq), seq, &entries)?;
        }
        log.write_pending()?;
        let units = u64::from(self.blocks).div_ceil(per_unit as u64);
        let superblock = Superblock {
            uuid: UUID,
            generation: 2,
            block_size: BLOCK_SIZE,
            slots: geometry.slots,
            log_units: geometry.log_units,
            checkpoint_units: geometry.checkpoint_units,
            origin_sectors: self.origin_blocks() * u64::from(BLOCK_SIZE) / SECTOR_SIZE as u64,
            origin_id: [0; 16],
            checkpoint: CheckpointRef {
                area: 0,
                units: u32::try_from(units).expect("at most checkpoint_units"),
                id: 1,
                log_start_seq: 1,
                log_start_link: 0,
            },
            guards_origin: false,
            moved: None,
            atomic_bytes: 0,
            later: None,
        };
        let mut unit = [0; UNIT];
        for copy in 0..SUPERBLOCK_COPIES {
            superblock.encode(copy, &mut unit);
            file.write_all_at(&unit, Geometry::superblock_offset(copy))?;
        }
        file.sync_all()?;
        Ok(Made { records, dirty: u64::from(self.dirty()) + writes.dirty() })
    }
}

/// Writes of any blocks, one after the other. Blocks are named by the slots that they had in the
/// checkpoint.
struct Writes {
    /// Of each block where it is now.
    slots: Vec<u32>,
    is_vacant: Vec<bool>,
    count: u64,
    cursor: usize,
    /// The versions that are not written back, by records, and whether a slot holds one.
    pending: VecDeque<Vec<Entry>>,
    is_pending: Vec<bool>,
    /// Slots that are vacant when the record is durable.
    vacated: Vec<u32>,
}

impl Writes {
    fn new(blocks: u32, slots: u32) -> Writes {
        let is_vacant = (0..slots).map(|slot| slot >= blocks).collect();
        let is_pending = vec![false; slots as usize];
        let (slots, pending) = ((0..blocks).collect(), VecDeque::new());
        let vacated = Vec::new();
        Writes { slots, is_vacant, count: 0, cursor: 0, pending, is_pending, vacated }
    }

    fn begin_record(&mut self) {
        self.vacated.drain(..).for_each(|slot| self.is_vacant[slot as usize] = true);
    }

    /// The block that is written, and the slot that it gets: the next vacant one, going round, as a
    /// cache takes them.
    fn next(&mut self) -> Entry {
        self.count += 1;
        let block = self.count.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.slots.len() as u64;
        while !self.is_vacant[self.cursor] {
            self.cursor = (self.cursor + 1) % self.is_vacant.len();
        }
        let slot = u32::try_from(self.cursor).expect("slots are counted in u32");
        let at = usize::try_from(block).expect("below the number of blocks");
        let before = std::mem::replace(&mut self.slots[at], slot);
        self.is_vacant[self.cursor] = false;
        if !self.is_pending[before as usize] {
            self.vacated.push(before);
        }
        Entry { op: Op::Write, block, slot, crc: 0 }
    }

    /// A record that is an epoch of its own. The first of those that are pending is written back,
    /// when they are many: what is current of it is clean, the rest leaves.
    fn next_epoch(&mut self, epoch: u64) -> Vec<Entry> {
        let mut written = Vec::new();
        for _ in 1..ENTRIES_PER_UNIT / 2 {
            let e = self.next();
            self.is_pending[e.slot as usize] = true;
            written.push(e);
        }
        self.pending.push_back(written.clone());
        let mut clean = Vec::new();
        if self.pending.len() > PENDING_RECORDS {
            for e in self.pending.pop_front().into_iter().flatten() {
                self.is_pending[e.slot as usize] = false;
                match self.is_current(&e) {
                    true => clean.push(Entry { op: Op::Clean, ..e }),
                    false => self.vacated.push(e.slot),
                }
            }
        }
        let oldest = epoch + 1 - self.pending.len() as u64;
        [vec![Entry::epoch(epoch, oldest)], clean, written].concat()
    }

    fn is_current(&self, e: &Entry) -> bool {
        self.slots.get(e.block as usize) == Some(&e.slot)
    }

    /// How many blocks are to be written back, of those that were written in epochs.
    fn dirty(&self) -> u64 {
        self.pending.iter().flatten().filter(|e| self.is_current(e)).count() as u64
    }
}

/// Units of one chain, written many at once.
struct Units<'a> {
    file: &'a File,
    link: u32,
    kind: Kind,
    pending: Vec<(u64, [u8; UNIT])>,
}

impl Units<'_> {
    fn add(&mut self, at: u64, seq: u64, entries: &[Entry]) -> io::Result<()> {
        let header = RecordHeader {
            kind: self.kind,
            uuid: UUID,
            seq,
            incarnation: 1,
            link: self.link,
            flushed_seq: if self.kind == Kind::Log { seq - 1 } else { 0 },
            count: 0, // taken from the entries
        };
        let mut unit = [0; UNIT];
        self.link = format::encode_record(&header, entries, &mut unit);
        let last = self.pending.last().map(|(at, _)| *at);
        let follows = last.is_none_or(|last| last + UNIT as u64 == at);
        if !follows || self.pending.len() == UNITS_PER_WRITE {
            self.write_pending()?;
        }
        self.pending.push((at, unit));
        Ok(())
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let Some(&(at, _)) = self.pending.first() else { return Ok(()) };
        let bytes: Vec<u8> = self.pending.drain(..).flat_map(|(_, unit)| unit).collect();
        self.file.write_all_at(&bytes, at)
    }
}
