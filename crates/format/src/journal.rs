// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal in memory: the changes of a write cache that its cache device does not know yet. It
//! lies in memory that outlives the process, so that the next process can apply it.
//!
//! ```text
//! offset 0        4096                      a ring: entry n is at 4096 + 48 * (n % capacity)
//!        │ header │ entry │ entry │ entry │ ...
//!
//! header  0       8     12    16     32        48            56         64       72      96
//!         │ magic │ ver │ crc │ uuid │ boot id │ incarnation │ capacity │ frames │ words │ room
//! entry   0     8       16         24     28    32      40        44
//!         │ seq │ start │ op,block │ slot │ crc │ epoch │ pending │ check │
//! ```
//!
//! Data that are not in their slots yet lie in frames of a second memory, the buffer. Each frame
//! has a tag: the slot for which its data are, and their checksum.
//!
//! ```text
//! offset 0                    F, a multiple of 4096: 8 * frames, rounded up
//!        │ tag │ tag │ ...    │ frame │ frame │ ...       a frame has the size of a block
//! tag     0      4     8
//!         │ slot │ crc │
//! ```
//!
//! Invariants
//! - FM-J1 An entry is complete if its checksum is right. The checksum covers the incarnation of
//!   the header too: an entry of an earlier use of the memory is none.
//! - FM-J2 The complete entry with the highest number says where the valid entries start. All from
//!   there on are complete, except one that was being written when the process died: it has the
//!   highest number, and counts as absent.
//! - FM-J3 Memory belongs to one cache, one start of the machine and one opening of that cache: the
//!   header names all three.
//! - FM-J4 A frame counts only for a change whose slot and checksum are those of its tag, and only
//!   if its data match the checksum. It is filled before the change has an entry, and is filled
//!   anew only when that version is in its slot, or is not needed any more.
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::features::Features;
use crate::record::EntryMedia;
use crate::{BLOCK_LIMIT, Damage, Entry, Op, UNIT, check_unit, is_blank, seal};

/// The name of a journal's memory is this and the UUID of the cache in hexadecimal digits.
pub const JOURNAL_PREFIX: &str = "journal-";

/// The name of the memory with the frames of a journal is this and the same digits.
pub const FRAMES_PREFIX: &str = "buffer-";

const MAGIC: [u8; 8] = *b"MPWCJRNL";
/// Version 1 has no frames. Version 3, the last one, has feature words: no bit is used yet.
const VERSIONS: std::ops::RangeInclusive<u16> = 1..=3;
/// What is written.
const VERSION: u16 = 2;
const VERSION_FEATURES: u16 = 3;
/// Most frames of a buffer: of 4096 bytes they take 64 GiB.
pub const FRAMES_MAX: u64 = 1 << 24;
/// Bytes of the tag of a frame.
pub const FRAME_TAG_BYTES: usize = 8;
/// Most entries of a journal: 2^26 take 3 GiB.
pub const JOURNAL_CAPACITY_MAX: u64 = 1 << 26;
/// Bytes of an entry.
pub const JOURNAL_ENTRY_BYTES: usize = size_of::<EntryInMemory>();
const _: () = assert!(JOURNAL_ENTRY_BYTES == 48);

/// Whose journal it is (FM-J3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// Identity of the cache, or of one part of it.
    pub uuid: [u8; 16],
    /// Identity of this start of the machine: memory does not survive the next one.
    pub boot_id: [u8; 16],
    /// The incarnation of the log of the cache device while the journal was written.
    pub incarnation: u64,
    /// Number of entries that the ring has room for, at least 1 and at most
    /// [`JOURNAL_CAPACITY_MAX`].
    pub capacity: u64,
    /// Number of frames of the buffer, at most [`FRAMES_MAX`]; 0 without a buffer.
    pub frames: u64,
}

/// What a frame of the buffer holds (FM-J4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameTag {
    /// The slot of the cache device that the data are for.
    pub slot: u32,
    /// The checksum of the data.
    pub crc: u32,
}

impl FrameTag {
    /// The bytes of the tag.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_TAG_BYTES] {
        let (slot, crc) = (u64::from(self.slot), u64::from(self.crc));
        (slot | crc << u32::BITS).to_le_bytes()
    }

    /// The tag in these bytes: any bytes are one.
    #[must_use]
    pub fn decode(bytes: [u8; FRAME_TAG_BYTES]) -> FrameTag {
        let [s0, s1, s2, s3, c0, c1, c2, c3] = bytes;
        let (slot, crc) = (u32::from_le_bytes([s0, s1, s2, s3]), [c0, c1, c2, c3]);
        FrameTag { slot, crc: u32::from_le_bytes(crc) }
    }
}

/// Where frame `frame` lies in a buffer of `frames` frames of `block_bytes` bytes; for `frames`
/// itself: the length of the buffer.
#[must_use]
pub fn frame_offset(frame: u64, frames: u64, block_bytes: u64) -> u64 {
    (frames * FRAME_TAG_BYTES as u64).next_multiple_of(UNIT as u64) + frame * block_bytes
}

/// A change of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalChange {
    /// The change: [`Op::Write`], [`Op::Drop`] or [`Op::Zero`].
    pub entry: Entry,
    /// In a cache with epochs the epoch of the change; 0 in others.
    pub epoch: u64,
    /// The oldest epoch that may not be written back yet, at most `epoch`.
    pub oldest: u64,
}

/// One entry of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its number, from 1.
    pub seq: u64,
    /// The first entry that counted when this one was written, at most `seq + 1`: the cache device
    /// knows what earlier entries say.
    pub start: u64,
    /// The change; `None` in an entry that was written for its `start` alone.
    pub change: Option<JournalChange>,
}

/// The valid contents of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Whose it is.
    pub header: JournalHeader,
    /// The changes that count, in their order.
    pub changes: Vec<JournalChange>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderInMemory {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    crc: U32,
    uuid: [u8; 16],
    boot_id: [u8; 16],
    incarnation: U64,
    capacity: U64,
    frames: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryInMemory {
    seq: U64,
    start: U64,
    entry: EntryMedia,
    epoch: U64,
    /// Epochs before `epoch` that may not be written back yet.
    pending: U32,
    check: U32,
}

/// Bytes of memory for a journal of `capacity` entries.
#[must_use]
pub fn journal_bytes(capacity: u64) -> u64 {
    UNIT as u64 + capacity * JOURNAL_ENTRY_BYTES as u64
}

/// Where entry `seq` lies in a journal of `capacity` entries.
#[must_use]
pub fn journal_offset(seq: u64, capacity: u64) -> u64 {
    journal_bytes(seq % capacity)
}

impl JournalHeader {
    /// Encodes the header into `out`, one unit.
    ///
    /// # Panics
    /// If the capacity is not allowed, or `out` is not one unit.
    pub fn encode(&self, out: &mut [u8]) {
        assert!((1..=JOURNAL_CAPACITY_MAX).contains(&self.capacity), "FM-F2: {self:?}");
        assert!(self.frames <= FRAMES_MAX, "FM-F2: {self:?}");
        let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
        let media = HeaderInMemory {
            magic: MAGIC,
            version: U16::new(VERSION),
            reserved: U16::ZERO,
            crc: U32::ZERO,
            uuid: self.uuid,
            boot_id: self.boot_id,
            incarnation: U64::new(self.incarnation),
            capacity: U64::new(self.capacity),
            frames: U64::new(self.frames),
        };
        out.fill(0);
        out[..size_of::<HeaderInMemory>()].copy_from_slice(media.as_bytes());
        seal(out);
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// Why it is none.
    pub fn decode(unit: &[u8]) -> Result<JournalHeader, Damage> {
        let (unit, _) = check_unit(unit, &MAGIC, VERSIONS)?;
        let (head, rest) = unit.split_at(size_of::<HeaderInMemory>());
        let length = Damage::Length { found_bytes: UNIT };
        let head = HeaderInMemory::ref_from_bytes(head).map_err(|_| length)?;
        let has_words = head.version.get() == VERSION_FEATURES;
        if head.reserved != U16::ZERO || !has_words && !is_blank(rest) {
            return Err(Damage::Field("reserved"));
        }
        if has_words {
            let words = Features::ref_from_prefix(rest);
            let (words, room) = words.map_err(|_| Damage::Length { found_bytes: UNIT })?;
            words.check(room)?;
        }
        let capacity = head.capacity.get();
        if !(1..=JOURNAL_CAPACITY_MAX).contains(&capacity) {
            return Err(Damage::Field("capacity"));
        }
        let frames = head.frames.get();
        if frames > FRAMES_MAX || (head.version.get() == 1 && frames > 0) {
            return Err(Damage::Field("frames"));
        }
        let (uuid, boot_id, incarnation) = (head.uuid, head.boot_id, head.incarnation.get());
        Ok(JournalHeader { uuid, boot_id, incarnation, capacity, frames })
    }
}

impl EntryInMemory {
    fn check(&self, incarnation: u64) -> u32 {
        let mut covered = [0; JOURNAL_ENTRY_BYTES + 4];
        let (entry, number) = covered.split_at_mut(JOURNAL_ENTRY_BYTES - 4);
        entry.copy_from_slice(&self.as_bytes()[..JOURNAL_ENTRY_BYTES - 4]);
        number.copy_from_slice(&incarnation.to_le_bytes());
        crate::checksum(&covered)
    }
}

impl JournalChange {
    /// The first field with a value that no writer makes.
    fn wrong_field(&self) -> Option<&'static str> {
        let Entry { op, block, slot, crc } = self.entry;
        let left = || BLOCK_LIMIT - block;
        if block >= BLOCK_LIMIT {
            return Some("block");
        }
        match op {
            Op::Write | Op::Zero if slot == u32::MAX => Some("slot"),
            Op::Drop if slot == 0 || u64::from(slot) > left() => Some("slot"),
            Op::Zero if crc == 0 || u64::from(crc) > left() => Some("crc"),
            Op::Zero if self.epoch == 0 => Some("epoch"),
            Op::Write | Op::Drop | Op::Zero => None,
            Op::Clean | Op::Evict | Op::Bad | Op::Epoch | Op::WriteNext => Some("op"),
        }
    }
}

impl JournalEntry {
    /// The bytes of the entry in a journal of this incarnation.
    ///
    /// # Panics
    /// If a value would be refused (FM-F2).
    #[must_use]
    pub fn encode(&self, incarnation: u64) -> [u8; JOURNAL_ENTRY_BYTES] {
        let mut media = EntryInMemory {
            seq: U64::new(self.seq),
            start: U64::new(self.start),
            entry: EntryMedia::BLANK,
            epoch: U64::ZERO,
            pending: U32::ZERO,
            check: U32::ZERO,
        };
        assert!(0 < self.seq && self.start <= self.seq + 1, "FM-F2: {self:?}");
        if let Some(change) = &self.change {
            assert_eq!(change.wrong_field(), None, "FM-F2: {change:?}");
            media.entry = EntryMedia::encode(&change.entry);
            media.epoch = U64::new(change.epoch);
            let pending = u32::try_from(change.epoch - change.oldest);
            media.pending = U32::new(pending.expect("a block or more each: fewer than slots"));
        }
        media.check = U32::new(media.check(incarnation));
        zerocopy::transmute!(media)
    }

    /// Decodes an entry; `None` if it is not complete, or not of this incarnation (FM-J1).
    ///
    /// # Errors
    /// When its checksum is right and a value is not.
    pub fn decode(bytes: &[u8], incarnation: u64) -> Result<Option<JournalEntry>, Damage> {
        let length = Damage::Length { found_bytes: bytes.len() };
        let media = EntryInMemory::ref_from_bytes(bytes).map_err(|_| length)?;
        if media.check.get() != media.check(incarnation) {
            return Ok(None);
        }
        let (seq, start) = (media.seq.get(), media.start.get());
        if seq == 0 || seq == u64::MAX {
            return Err(Damage::Field("seq"));
        }
        if start > seq + 1 {
            return Err(Damage::Field("start"));
        }
        let is_empty = is_blank(media.entry.as_bytes());
        let epoch = media.epoch.get();
        let Some(oldest) = epoch.checked_sub(media.pending.get().into()) else {
            return Err(Damage::Field("pending"));
        };
        if is_empty {
            let is_blank = epoch == 0 && media.pending == U32::ZERO;
            let entry = JournalEntry { seq, start, change: None };
            return if is_blank { Ok(Some(entry)) } else { Err(Damage::Field("epoch")) };
        }
        let entry = media.entry.decode().ok_or(Damage::Field("op"))?;
        let change = JournalChange { entry, epoch, oldest };
        match change.wrong_field() {
            Some(field) => Err(Damage::Field(field)),
            None => Ok(Some(JournalEntry { seq, start, change: Some(change) })),
        }
    }
}

impl Journal {
    /// Reads a whole journal (FM-J2). The caller compares the header with what it expects, and the
    /// changes with the geometry of the cache.
    ///
    /// # Errors
    /// [`Damage::Magic`] and [`Damage::Checksum`] for memory without a complete header: nothing was
    /// in the journal. Other damage: no process has left the journal like that.
    pub fn decode(bytes: &[u8]) -> Result<Journal, Damage> {
        let length = Damage::Length { found_bytes: bytes.len() };
        let header = JournalHeader::decode(bytes.get(..UNIT).ok_or(length.clone())?)?;
        let JournalHeader { capacity, incarnation, .. } = header;
        let end = usize::try_from(journal_bytes(capacity)).ok().filter(|&end| end <= bytes.len());
        let ring = &bytes[UNIT..end.ok_or(length)?];
        let mut last: Option<JournalEntry> = None;
        let mut complete = 0u64;
        for (index, bytes) in (0u64..).zip(ring.chunks_exact(JOURNAL_ENTRY_BYTES)) {
            let Some(entry) = JournalEntry::decode(bytes, incarnation)? else { continue };
            if entry.seq % capacity != index {
                return Err(Damage::Field("seq"));
            }
            complete += 1;
            if last.is_none_or(|last| last.seq < entry.seq) {
                last = Some(entry);
            }
        }
        let Some(last) = last else { return Ok(Journal { header, changes: Vec::new() }) };
        let count = last.seq + 1 - last.start;
        if last.start == 0 || count > complete {
            return Err(Damage::Field("start"));
        }
        let mut changes = Vec::new();
        for seq in last.start..=last.seq {
            let at = usize::try_from(journal_offset(seq, capacity)).expect("within the ring");
            let found = JournalEntry::decode(&bytes[at..at + JOURNAL_ENTRY_BYTES], incarnation)?;
            match found {
                Some(entry) if entry.seq == seq => changes.extend(entry.change),
                _ => return Err(Damage::Field("seq")),
            }
        }
        Ok(Journal { header, changes })
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
