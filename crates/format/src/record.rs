// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Records: units of the log and of checkpoints, each with up to 252 entries.
//!
//! ```text
//! 0       8   10   12   16     32    40            48            56     60     62        64
//! │ magic │ver│kind│crc │ uuid │ seq │ incarnation │ flushed_seq │ link │count │reserved │ entries
//! ```
//!
//! Invariants
//! - FM-R1 `link` is the checksum of the previous record: a chain of records has only one history.
//! - FM-R2 A log record never states that it is durable itself: `flushed_seq < seq`, so the first
//!   seq is 1.
//! - FM-R3 Entries after `count` are zero, and op 0 is invalid: nothing is read by accident.
//! - FM-R4 A record has epochs of writes if and only if its first entry is an `Epoch`. It is of
//!   version 1 without epochs; with epochs of version 2, or of version 3 if and only if it has a
//!   `Zero`. Each record can be decoded without the previous one.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Damage, UNIT, check_unit, is_blank, seal};

/// Entries that one unit holds.
pub const ENTRIES_PER_UNIT: usize = 252;
/// Block numbers are below this: 48 bits, 128 PiB of 512-byte blocks.
pub const BLOCK_LIMIT: u64 = 1 << 48;

const MAGIC: [u8; 8] = *b"MPWCRECD";
const VERSION: u16 = 1;
/// Version of a record with epochs (FM-R4).
const VERSION_EPOCHS: u16 = 2;
/// Version of a record with epochs and zeroes (FM-R4).
const VERSION_ZEROES: u16 = 3;

/// The operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// The block is dirty in the slot, with this data checksum; frees the block's earlier slot.
    Write,
    /// The block in the slot equals the origin durably; the checksum is kept.
    Clean,
    /// The slot is free; the block has left the cache if it was in that slot.
    Evict,
    /// Blocks `block .. block + slot` have left the cache: here `slot` is a number of blocks.
    Drop,
    /// The slot is quarantined; the block reads as an I/O error until it is written again.
    Bad,
    /// Not about a block: the writes that follow in this record are of epoch `block`, and writes of
    /// the `slot` epochs before may not be written back yet. All earlier epochs are on the origin:
    /// their entries in the log are void. Example: `block` 12, `slot` 3: epochs 9 to 12 may be
    /// dirty.
    Epoch,
    /// As [`Op::Write`]; writes from here on are of the next epoch.
    WriteNext,
    /// Blocks `block .. block + crc` read as zeroes, which the origin may not hold yet: here `crc`
    /// is a number of blocks. The slot stands for the range and holds no data.
    Zero,
}

impl Op {
    const fn code(self) -> u16 {
        match self {
            Op::Write => 1,
            Op::Clean => 2,
            Op::Evict => 3,
            Op::Drop => 4,
            Op::Bad => 5,
            Op::Epoch => 6,
            Op::WriteNext => 7,
            Op::Zero => 8,
        }
    }

    const fn from_code(code: u16) -> Option<Op> {
        match code {
            1 => Some(Op::Write),
            2 => Some(Op::Clean),
            3 => Some(Op::Evict),
            4 => Some(Op::Drop),
            5 => Some(Op::Bad),
            6 => Some(Op::Epoch),
            7 => Some(Op::WriteNext),
            8 => Some(Op::Zero),
            _ => None,
        }
    }

    /// True for operations that describe a state; a checkpoint has only these.
    const fn is_state(self) -> bool {
        match self {
            Op::Write | Op::Clean | Op::Bad | Op::Epoch | Op::WriteNext | Op::Zero => true,
            Op::Evict | Op::Drop => false,
        }
    }

    /// True for operations that only a record with epochs may hold (FM-R4).
    const fn is_of_epochs(self) -> bool {
        matches!(self, Op::Epoch | Op::WriteNext | Op::Zero)
    }
}

/// One entry of a record, 16 bytes on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operation.
    pub op: Op,
    /// Block number on the origin, below [`BLOCK_LIMIT`]; for [`Op::Epoch`] the epoch.
    pub block: u64,
    /// Slot; for [`Op::Drop`] a number of blocks, for [`Op::Epoch`] of epochs. The reader of a
    /// cache checks it against the number of slots, which a record does not know.
    pub slot: u32,
    /// CRC-32C of the block's data; unused by [`Op::Evict`] and [`Op::Drop`], 0 in [`Op::Epoch`],
    /// for [`Op::Zero`] a number of blocks.
    pub crc: u32,
}

impl Entry {
    /// The first entry of a record with epochs: the writes that follow are of `epoch`, and `oldest`
    /// is the oldest epoch that may not be written back yet.
    ///
    /// # Panics
    /// If more than 2^32 - 1 epochs lie between the two.
    pub fn epoch(epoch: u64, oldest: u64) -> Entry {
        let before = epoch.saturating_sub(oldest);
        let slot = u32::try_from(before).expect("a block or more each: fewer than slots");
        Entry { op: Op::Epoch, block: epoch, slot, crc: 0 }
    }

    /// The first field with a value that is invalid in a `kind` record.
    fn wrong_field(&self, kind: Kind, epochs: bool) -> Option<&'static str> {
        if kind == Kind::Checkpoint && !self.op.is_state() || self.op.is_of_epochs() && !epochs {
            return Some("op");
        }
        if self.block >= BLOCK_LIMIT {
            return Some("block");
        }
        match self.op {
            Op::Drop if self.slot == 0 => Some("slot"),
            Op::Drop if u64::from(self.slot) > BLOCK_LIMIT - self.block => Some("slot"),
            Op::Write | Op::WriteNext | Op::Clean | Op::Evict | Op::Bad | Op::Zero
                if self.slot == u32::MAX =>
            {
                Some("slot")
            }
            Op::Zero if self.crc == 0 => Some("crc"),
            Op::Zero if u64::from(self.crc) > BLOCK_LIMIT - self.block => Some("crc"),
            Op::Epoch if u64::from(self.slot) > self.block => Some("slot"),
            Op::Epoch if self.crc != 0 => Some("crc"),
            Op::Write | Op::WriteNext | Op::Clean | Op::Evict | Op::Bad => None,
            Op::Drop | Op::Epoch | Op::Zero => None,
        }
    }
}

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The record log.
    Log,
    /// A checkpoint area.
    Checkpoint,
}

impl Kind {
    const fn code(self) -> u16 {
        match self {
            Kind::Log => 1,
            Kind::Checkpoint => 2,
        }
    }

    const fn from_code(code: u16) -> Option<Kind> {
        match code {
            1 => Some(Kind::Log),
            2 => Some(Kind::Checkpoint),
            _ => None,
        }
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Log record or checkpoint unit.
    pub kind: Kind,
    /// Identity of the cache.
    pub uuid: [u8; 16],
    /// Position in the log, from 1; in a checkpoint the index of the unit, from 0.
    pub seq: u64,
    /// The incarnation of the log, which never decreases along it; in a checkpoint the
    /// checkpoint's id.
    pub incarnation: u64,
    /// Checksum of the previous record, 0 if there is none (FM-R1).
    pub link: u32,
    /// All records with `seq` up to this, and their data, are durable. Unused in a checkpoint.
    pub flushed_seq: u64,
    /// Number of entries. [`encode_record`] takes it from the entries and ignores this field.
    pub count: u16,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    magic: [u8; 8],
    version: U16,
    kind: U16,
    crc: U32,
    uuid: [u8; 16],
    seq: U64,
    incarnation: U64,
    flushed_seq: U64,
    link: U32,
    count: U16,
    reserved: U16,
}

/// Block number in the low 48 bits, operation in the high 16.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
pub(crate) struct EntryMedia {
    op_block: U64,
    slot: U32,
    crc: U32,
}

/// Cannot happen after `check_unit`; an error rather than a panic.
const LENGTH: Damage = Damage::Length { found_bytes: UNIT };
/// Chosen below 2048, where the C library begins to use `rep stosb`.
const SHORT_FILL_BYTES: usize = 1024;
const HEADER_BYTES: usize = size_of::<HeaderMedia>();
const ENTRY_BYTES: usize = size_of::<EntryMedia>();
const _: () = assert!(HEADER_BYTES + ENTRIES_PER_UNIT * ENTRY_BYTES == UNIT);

impl EntryMedia {
    /// No entry: op 0 is invalid (FM-R3).
    pub(crate) const BLANK: EntryMedia =
        EntryMedia { op_block: U64::ZERO, slot: U32::ZERO, crc: U32::ZERO };

    pub(crate) fn encode(entry: &Entry) -> EntryMedia {
        EntryMedia {
            op_block: U64::new(u64::from(entry.op.code()) << 48 | entry.block),
            slot: U32::new(entry.slot),
            crc: U32::new(entry.crc),
        }
    }

    pub(crate) fn decode(&self) -> Option<Entry> {
        let op_block = self.op_block.get();
        let code = u16::try_from(op_block >> 48).expect("16 bits are left");
        let op = Op::from_code(code)?;
        let block = op_block & (BLOCK_LIMIT - 1);
        Some(Entry { op, block, slot: self.slot.get(), crc: self.crc.get() })
    }
}

/// A record with a good checksum and valid values, in the caller's buffer.
#[derive(Debug)]
pub struct Record<'a> {
    /// The header.
    pub header: RecordHeader,
    /// Checksum of the unit: the `link` of the next record.
    pub crc: u32,
    entries: &'a [EntryMedia],
}

impl<'a> Record<'a> {
    /// The entries in the order of writing; [`decode_record`] has checked all of them.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + use<'a> {
        self.entries.iter().map(|media| media.decode().expect("checked by decode_record"))
    }
}

/// Encodes a record into `out`, one unit, and returns its checksum: the `link` of the next record.
///
/// # Panics
/// If there are more than [`ENTRIES_PER_UNIT`] entries, a value that [`decode_record`] would
/// refuse, or `out` is not one unit.
pub fn encode_record(header: &RecordHeader, entries: &[Entry], out: &mut [u8]) -> u32 {
    assert!(entries.len() <= ENTRIES_PER_UNIT, "{} entries in a record", entries.len());
    let durable_before_written = header.flushed_seq < header.seq;
    assert!(header.kind == Kind::Checkpoint || durable_before_written, "FM-R2: {header:?}");
    let epochs = entries.first().is_some_and(|e| e.op == Op::Epoch);
    let zeroes = entries.iter().any(|e| e.op == Op::Zero);
    let version = match (epochs, zeroes) {
        (false, _) => VERSION,
        (true, false) => VERSION_EPOCHS,
        (true, true) => VERSION_ZEROES,
    }; // FM-R4
    let media = HeaderMedia {
        magic: MAGIC,
        version: U16::new(version),
        kind: U16::new(header.kind.code()),
        crc: U32::ZERO,
        uuid: header.uuid,
        seq: U64::new(header.seq),
        incarnation: U64::new(header.incarnation),
        flushed_seq: U64::new(header.flushed_seq),
        link: U32::new(header.link),
        count: U16::new(u16::try_from(entries.len()).expect("at most ENTRIES_PER_UNIT")),
        reserved: U16::ZERO,
    };
    let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
    let (head, body) = out.split_at_mut(HEADER_BYTES);
    head.copy_from_slice(media.as_bytes());
    let (used, unused) = body.split_at_mut(entries.len() * ENTRY_BYTES);
    for (entry, bytes) in entries.iter().zip(used.chunks_exact_mut(ENTRY_BYTES)) {
        // FM-F2
        assert_eq!(entry.wrong_field(header.kind, epochs), None, "{entry:?} would be refused");
        bytes.copy_from_slice(EntryMedia::encode(entry).as_bytes());
    }
    // FM-R3. Short fills: one of 4000 bytes is a `rep stosb`, which took 60 ns where these took 40.
    unused.chunks_mut(SHORT_FILL_BYTES).for_each(|part| part.fill(0));
    seal(out)
}

/// Decodes a record of the cache `uuid`. The caller checks that `seq`, `link`, `incarnation` and
/// `kind` are right for this place, and the slots against its geometry.
pub fn decode_record<'a>(unit: &'a [u8], uuid: &[u8; 16]) -> Result<Record<'a>, Damage> {
    let (unit, crc) = check_unit(unit, &MAGIC, VERSION..=VERSION_ZEROES)?;
    let (head, body) = unit.split_at(HEADER_BYTES);
    let head = HeaderMedia::ref_from_bytes(head).map_err(|_| LENGTH)?;
    if head.uuid != *uuid {
        return Err(Damage::WrongCache { found: head.uuid });
    }
    let kind = Kind::from_code(head.kind.get()).ok_or(Damage::Field("kind"))?;
    let (seq, flushed_seq) = (head.seq.get(), head.flushed_seq.get());
    if kind == Kind::Log && flushed_seq >= seq {
        return Err(Damage::Field("flushed_seq")); // FM-R2
    }
    let count = head.count.get();
    if usize::from(count) > ENTRIES_PER_UNIT {
        return Err(Damage::Field("count"));
    }
    let (used, unused) = body.split_at(usize::from(count) * ENTRY_BYTES);
    if head.reserved != U16::ZERO || !is_blank(unused) {
        return Err(Damage::Field("reserved")); // FM-R3
    }
    let entries = <[EntryMedia]>::ref_from_bytes(used).map_err(|_| LENGTH)?;
    let (epochs, mut zeroes) = (head.version.get() >= VERSION_EPOCHS, false);
    for (index, media) in (0..count).zip(entries) {
        let wrong = match media.decode() {
            Some(entry) => {
                zeroes |= entry.op == Op::Zero;
                entry.wrong_field(kind, epochs)
            }
            None => Some("op"),
        };
        if let Some(field) = wrong {
            return Err(Damage::Entry { index, field });
        }
    }
    let first = entries.first().and_then(EntryMedia::decode);
    if epochs != first.is_some_and(|e| e.op == Op::Epoch) {
        return Err(Damage::Entry { index: 0, field: "op" }); // FM-R4
    }
    if zeroes != (head.version.get() == VERSION_ZEROES) {
        return Err(Damage::Field("version")); // FM-R4
    }
    let header = RecordHeader {
        kind,
        uuid: head.uuid,
        seq,
        incarnation: head.incarnation.get(),
        link: head.link.get(),
        flushed_seq,
        count,
    };
    Ok(Record { header, crc, entries })
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
