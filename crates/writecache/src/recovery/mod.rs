// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recovery: elects the superblock, or formats a blank device; loads the checkpoint; replays the
//! log.
//!
//! ```text
//!  4 superblocks ─ elect ─▶ checkpoint ─▶ records log_start_seq, +1, +2 ... while they chain
//!                                              │ called durable by a later one   │ newest batch
//!                                              ▼ applied                         ▼ data checked
//! ```
//!
//! It reads metadata, and the data of the newest batch only, which no record calls durable. It
//! writes only to format, to repair superblock copies that disagree, and to blank the first unit
//! behind the end of the chain. So a tail that was cut off can't join the chain later, and a torn
//! record can't become complete with a part of the next one. Recovering a second time changes
//! nothing.
//!
//! What later programs have said in the superblock, and this one may ignore, goes before anything
//! else is written: a superblock without it follows.
//!
//! A chain ends at the first unit that does not fit. That is the torn end of the log, unless a
//! later record says that the unit was durable. Then it is bit rot, and the cache refuses to open,
//! because acknowledged writes would be lost.
pub(crate) mod area;
pub(crate) mod contents;
pub(crate) mod dm;
pub(crate) mod former;
pub(crate) mod journal;
pub(crate) mod owner;
pub(crate) mod superblock;

use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, Flags, Reservation, Sector};
use format::{
    Damage, ENTRIES_PER_UNIT, Entry, Geometry, Kind, Op, Superblock, UNIT, decode_record, is_blank,
};
use reactor::WaitList;

use self::area::{
    ReadAhead, damaged, flush_area, io_error, map_memory, map_of, no_space, not_initialized,
    read_area, write_area,
};
use self::journal::{FoundJournal, JournalUse, OpenJournal};
use self::owner::{Adoption, ownership};
use self::superblock::{
    COUNTER_MAX, check_counter, check_superblock, find_superblock, format_device, write_copies,
};
use crate::attachment::{Attachment, recorded_identity, refuse_record};
use crate::config::{Config, MediaFormat};
use crate::events::IgnoredJournal;
use crate::guard::{self, Guard, refuse_guarded};
use crate::map::{
    Contradiction, EPOCH_MAX, PENDING_EPOCHS_MAX, Rebuild, Slots, map_bytes, ordered_map_bytes,
};
use crate::planted::Fault;
use crate::store::frames::buffer_blocks;
use crate::store::log::Log;
use crate::store::media::{Media, Native};

/// The state of recovery.
struct Recovery<'a> {
    config: &'a Config,
    device: &'a dyn BlockDevice,
    superblock: Superblock,
    geometry: Geometry,
    /// The map so far.
    map: Rebuild,
    /// The memory of the map, reserved from the core's budget.
    memory: Reservation,
}

/// How the log ended.
pub(crate) struct LogEnd {
    /// The last good record and its checksum.
    pub(crate) last: (u64, u32),
    /// The newest incarnation of the log that any record carries.
    pub(crate) incarnation: u64,
    /// Whether the unit after the last good record holds a record that was cut off.
    pub(crate) cut_off: bool,
    /// Whether that unit is neither blank nor a record: perhaps it is torn.
    pub(crate) torn: bool,
}

/// Opens the cache, formatting a blank device. `sectors` is the length of the mapped device.
pub(crate) async fn open(
    config: Config,
    origin: &Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<RecoveredCache, Error> {
    match dm::detect(&config, &*device).await? {
        MediaFormat::Dm => {
            refuse_record(&config, origin)?;
            dm::open(config, device, sectors).await
        }
        MediaFormat::Native => open_native(config, origin, device, sectors).await,
    }
}

async fn open_native(
    mut config: Config,
    origin: &Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<RecoveredCache, Error> {
    let area = config.area_bytes(&*device);
    let recorded = recorded_identity(&config, origin)?; // WC-OR3
    let mut reserved = None;
    let mut is_new = false;
    let (mut superblock, agreed) = match find_superblock(&config, &*device, area).await? {
        Some(found) => found,
        None => {
            // Checked before anything is written: a cache that can't be opened is not made.
            let geometry = Geometry::compute(area, config.block_size);
            let geometry = geometry.map_err(|e| no_space(&config, &e))?;
            reserved = Some(map_memory(&config, geometry.slots.into())?);
            refuse_guarded(&config, &**origin).await?;
            let formatted = format_device(&config, &**origin, &*device, area, sectors).await;
            is_new = true;
            (formatted.map_err(not_initialized)?, true)
        }
    };
    config.guard.is_on = guard::is_on(&config, &superblock, is_new);
    check_superblock(&config, &superblock, area)?;
    let blocks = sectors.0 / config.block_sectors();
    let memory = reserved.map_or_else(|| map_memory(&config, superblock.slots.into()), Ok)?;
    let had = superblock.origin_sectors / config.block_sectors();
    let loaded =
        load(&config, &*device, &superblock, (blocks.max(had), JournalUse::Take), memory).await?;
    let LoadedMap { mut slots, end, mut memory, mut journal, applied } = loaded;
    let adopts = ownership(&config, &superblock, &**origin, sectors, &slots)?;
    let found = guard::find(&config, &**origin, &*device, &superblock, sectors).await?;
    let buffer = u64::from(buffer_blocks(&config, superblock.slots)) * u64::from(config.block_size);
    memory.grow_to(memory.bytes() + buffer, format!("the write buffer of {}", config.cache))?;
    let attachment = Attachment::begin(&config, origin, recorded, superblock.uuid).await?; // WC-OR1
    // Nothing was written so far: a refused cache is not changed.
    if !agreed {
        write_copies(&config, &*device, &superblock).await?;
    }
    // What later programs have said here would be wrong after the first change.
    if superblock.later.take().is_some() && !config.planted.is(Fault::LaterKept) {
        superblock.generation += 1;
        write_copies(&config, &*device, &superblock).await?;
    }
    if let Some(Adoption { origin_id, origin_sectors }) = adopts {
        (superblock.origin_id, superblock.origin_sectors) = (origin_id, origin_sectors);
        superblock.generation += 1;
        if !config.planted.is(Fault::SizeNotAdopted) {
            write_copies(&config, &*device, &superblock).await?;
        }
    }
    let guard = guard::open(&config, origin, &device, &mut superblock, (sectors, found)).await?;
    let cut_off = end.cut_off && !config.planted.is(Fault::TailKept);
    if cut_off || (end.torn && !config.planted.is(Fault::TornTailKept)) {
        let offset = superblock.geometry().log_offset(end.last.0 + 1);
        blank_unit(&config, &*device, offset).await?;
    }
    journal.write_out(&config, &*device, &superblock).await?;
    // The data that were read may be only in a volatile cache of the device: make them durable
    // before the cache relies on them.
    flush_area(&config, &*device).await?;
    let log = Log {
        incarnation: end.incarnation + 1,
        next: Cell::new((end.last.0 + 1, end.last.1)),
        durable: Cell::new(end.last),
        start_seq: Cell::new(superblock.checkpoint.log_start_seq),
        closing: Cell::new(false),
        is_moving: Cell::new(false),
        room: WaitList::new(),
    };
    let mut checkpoint_required = slots.set_ordered(config.ordered);
    let is_applied = matches!(applied, Ok(1..));
    checkpoint_required |= is_applied && !config.planted.is(Fault::JournalNotDurable); // WC-JR1
    let media = Media::Native(Native::new(superblock, log, checkpoint_required));
    slots.plant(config.planted);
    let lost = applied.err().map(|why| (why, journal.len()));
    let (applied, lost_blocks) = (applied.unwrap_or(0), journal.lost_blocks);
    let journal = OpenJournal { memory: journal.memory, applied, lost, lost_blocks };
    Ok(RecoveredCache { config, device, blocks, media, slots, memory, journal, guard, attachment })
}

/// Blanks a unit. It first clears the magic, which is one word, so that a torn write of the rest
/// leaves no record.
async fn blank_unit(config: &Config, device: &dyn BlockDevice, offset: u64) -> Result<(), Error> {
    let headless = read_area(config, device, offset, UNIT, "read log").await?;
    headless.write(|unit| unit[..8].fill(0));
    for unit in [headless, Buf::zeroed(UNIT)] {
        write_area(config, device, offset, Flags::META, unit, "write log").await?;
        flush_area(config, device).await?;
    }
    Ok(())
}

/// A cache after recovery.
pub(crate) struct RecoveredCache {
    pub(crate) config: Config,
    pub(crate) device: Rc<dyn BlockDevice>,
    /// Blocks of the mapped device.
    pub(crate) blocks: u64,
    pub(crate) media: Media,
    pub(crate) slots: Slots,
    /// What the slots have of the core's budget.
    pub(crate) memory: Reservation,
    pub(crate) journal: OpenJournal,
    /// The guard of the origin, if there is, or was, one.
    pub(crate) guard: Option<Rc<Guard>>,
    /// The origin's record of the cache, if it keeps one.
    pub(crate) attachment: Option<Rc<Attachment>>,
}

/// The map from checkpoint, log and journal.
pub(crate) struct LoadedMap {
    pub(crate) slots: Slots,
    pub(crate) end: LogEnd,
    /// What the slots have of the core's budget.
    pub(crate) memory: Reservation,
    pub(crate) journal: FoundJournal,
    /// How many changes of the journal the map has, or why it has none of them.
    pub(crate) applied: Result<u64, IgnoredJournal>,
}

/// Reads checkpoint, log and journal of a cache for an origin of `blocks` blocks. It writes
/// nothing. The caller has checked the counters of the superblock, and has reserved `memory` for
/// the slots with [`map_memory`].
pub(crate) async fn load(
    config: &Config,
    device: &dyn BlockDevice,
    superblock: &Superblock,
    (blocks, purpose): (u64, JournalUse),
    memory: Reservation,
) -> Result<LoadedMap, Error> {
    let geometry = superblock.geometry();
    let superblock = superblock.clone();
    let map = Rebuild::new(geometry.slots);
    let mut recovery = Recovery { config, device, superblock, geometry, map, memory };
    recovery.load_checkpoint().await?;
    let end = recovery.replay().await?;
    check_counter(config, "incarnation of a record", end.incarnation, 0..=COUNTER_MAX)?;
    let mut journal = journal::find(config, &recovery.superblock, purpose).await?;
    let incarnation = end.incarnation;
    let (superblock, map) = (&recovery.superblock, &mut recovery.map);
    let applied = journal.apply(config, device, superblock, incarnation, blocks, map).await?;
    recovery.check_memory_with(journal.len())?;
    if let Some((oldest, newest)) = recovery.map.pending_epochs() {
        check_counter(config, "epoch of writes", newest, 1..=EPOCH_MAX)?;
        check_counter(config, "oldest pending epoch", oldest, 1..=newest)?;
        check_counter(config, "pending epochs", newest - oldest, 0..=PENDING_EPOCHS_MAX)?;
    }
    if config.planted.is(Fault::ZeroesEndNothing) {
        recovery.map.forget_zeroes();
    }
    let in_epochs = config.ordered || recovery.map.pending_epochs().is_some();
    let slots = recovery.map.finish(blocks).map_err(|found| match found {
        Contradiction::OutOfRange(block) => Error::invalid(format!(
            "cache device {} holds block {block}, the table has only {blocks}",
            config.cache
        )),
        Contradiction::Slot { block, slot } => {
            damaged(config, &format!("block {block}: slot {slot} is taken or beyond the end"))
        }
        Contradiction::Duplicate { block, epoch } => {
            damaged(config, &format!("block {block}: two versions of epoch {epoch}"))
        }
    })?;
    let mut memory = recovery.memory;
    let count = geometry.slots.into();
    let keeps = if in_epochs { ordered_map_bytes(count) } else { map_bytes(count) };
    memory.shrink_to(keeps);
    Ok(LoadedMap { slots, end, memory, journal, applied })
}

impl Recovery<'_> {
    /// Checks that the map and `unsettled` more entries take no more memory than there is, and are
    /// no more than a log can have.
    fn check_memory(&mut self, unsettled: usize) -> Result<(), Error> {
        self.check_memory_of(0, unsettled)
    }

    /// The same, after `changes` of a journal were applied.
    fn check_memory_with(&mut self, changes: u64) -> Result<(), Error> {
        self.check_memory_of(changes, 0)
    }

    fn check_memory_of(&mut self, changes: u64, unsettled: usize) -> Result<(), Error> {
        let log_entries = u64::from(self.geometry.log_units) * ENTRIES_PER_UNIT as u64;
        if self.map.has_too_many(log_entries + changes) {
            let what = "more versions of blocks than slots and a log can tell of";
            return Err(damaged(self.config, what));
        }
        let bytes = self.map.bytes() + (unsettled * size_of::<Entry>()) as u64;
        self.memory.grow_to(bytes, map_of(self.config, self.geometry.slots.into()))
    }

    async fn load_checkpoint(&mut self) -> Result<(), Error> {
        let named = self.superblock.checkpoint;
        let start = self.geometry.checkpoint_offset(named.area);
        let mut link = 0;
        let mut reads = ReadAhead::new(self.config, self.device, "read checkpoint");
        reads.bytes(start, u64::from(named.units) * UNIT as u64);
        let mut unit_no = 0u64;
        while let Some(buf) = reads.next().await? {
            for at in (0..buf.len()).step_by(UNIT) {
                let uuid = &self.superblock.uuid;
                let wrong = buf.read(|b| match decode_record(&b[at..at + UNIT], uuid) {
                    Ok(record) => {
                        let h = &record.header;
                        let fits = h.kind == Kind::Checkpoint
                            && h.incarnation == named.id
                            && h.seq == unit_no
                            && h.link == link;
                        link = record.crc;
                        self.map.apply(record.entries());
                        (!fits).then(|| "it is of another checkpoint".to_owned())
                    }
                    Err(damage) => Some(damage.to_string()),
                });
                if let Some(why) = wrong {
                    return Err(damaged(self.config, &format!("checkpoint unit {unit_no}: {why}")));
                }
                unit_no += 1;
            }
            self.check_memory(0)?;
        }
        Ok(())
    }

    /// Replays the log: applies records that a later record calls durable, and checks the data of
    /// the others.
    async fn replay(&mut self) -> Result<LogEnd, Error> {
        let named = self.superblock.checkpoint;
        let (start, log_units) = (named.log_start_seq, u64::from(self.geometry.log_units));
        let mut last = (start - 1, named.log_start_link);
        let (mut incarnation, mut chain_incarnation) = (0, 0);
        let mut broken = None;
        // The record before the first unsettled one; whether the unit after the chain is a record
        // that is not part of it; and whether that unit is torn.
        let (mut before, mut foreign_next, mut torn) = (last, false, false);
        let mut unsettled: Vec<(u64, u32, Vec<Entry>)> = Vec::new();
        let mut reads = ReadAhead::new(self.config, self.device, "read log");
        let from_start = (start % log_units) * UNIT as u64;
        let log_bytes = log_units * UNIT as u64;
        reads.bytes(self.geometry.log_offset(start), log_bytes - from_start);
        reads.bytes(self.geometry.log_start(), from_start);
        let mut seq = start;
        while let Some(buf) = reads.next().await? {
            for at in (0..buf.len()).step_by(UNIT) {
                let uuid = self.superblock.uuid;
                // Behind the end of the chain only the headers of records are used.
                let count = if broken.is_none() { ENTRIES_PER_UNIT } else { 0 };
                let decoded = buf.read(|b| match decode_record(&b[at..at + UNIT], &uuid) {
                    Ok(r) if r.header.kind == Kind::Log => {
                        let entries = r.entries().take(count).collect::<Vec<_>>();
                        Ok(Some((r.header, r.crc, entries)))
                    }
                    // P7 of the format: a record of a later version is not a torn end.
                    Err(damage @ Damage::Version { .. })
                        if b[at + 16..at + 32] == uuid
                            && b[at + 32..at + 40] == seq.to_le_bytes() =>
                    {
                        Err(damaged(self.config, &format!("record {seq}: {damage}")))
                    }
                    Ok(_) | Err(_) => Ok(None),
                });
                let Some((header, crc, entries)) = decoded? else {
                    torn |= broken.is_none() && !buf.read(|b| is_blank(&b[at..at + UNIT]));
                    broken = broken.or(Some(seq));
                    seq += 1;
                    continue;
                };
                incarnation = incarnation.max(header.incarnation);
                let fits = header.seq == seq
                    && header.link == last.1
                    && header.incarnation >= chain_incarnation;
                if let (Some(first_bad), true) = (broken, header.seq == seq)
                    && header.flushed_seq >= first_bad
                {
                    return Err(damaged(
                        self.config,
                        &format!("record {first_bad} was durable, says record {seq}, and is lost"),
                    ));
                }
                if broken.is_none() && fits {
                    last = (seq, crc);
                    chain_incarnation = header.incarnation;
                    let durable = header.flushed_seq;
                    let settled = unsettled.iter().take_while(|r| r.0 <= durable).count();
                    for (seq, crc, entries) in unsettled.drain(..settled) {
                        before = (seq, crc);
                        self.map.apply_log(&entries);
                    }
                    unsettled.push((seq, crc, entries));
                } else if broken.is_none() {
                    broken = Some(seq);
                    foreign_next = header.seq == seq;
                }
                seq += 1;
            }
            self.check_memory(unsettled.iter().map(|(_, _, entries)| entries.len()).sum())?;
        }
        let read_to = last.0;
        for (seq, crc, entries) in unsettled.drain(..) {
            if !self.data_match(&entries).await? {
                last = before;
                break;
            }
            before = (seq, crc);
            self.map.apply_log(&entries);
        }
        self.check_memory(0)?;
        // A record is cut off if its data do not match, or if it is complete and not part of the
        // chain.
        let cut_off = last.0 < read_to || foreign_next;
        Ok(LogEnd { last, incarnation, cut_off, torn: torn && !cut_off })
    }

    /// Whether the data in the slots match the entries.
    async fn data_match(&self, entries: &[Entry]) -> Result<bool, Error> {
        if self.config.planted.is(Fault::DropChecksumCheck) {
            return Ok(true);
        }
        let size = self.config.block_size as usize;
        let mut reads = Vec::new();
        // A clean entry needs no check: it was durable before it was written back (WC-WB3).
        for e in entries.iter().filter(|e| matches!(e.op, Op::Write | Op::WriteNext)) {
            if e.slot >= self.geometry.slots {
                return Err(damaged(self.config, &format!("slot {} is beyond the end", e.slot)));
            }
            let buf = Buf::alloc(size);
            let offset = self.geometry.slot_offset(e.slot);
            let at = self.config.start_sector + Sector::from_bytes(offset);
            let read = reactor::read(self.device, Class::Foreground, at, buf.all().into());
            reads.push((e.crc, buf, read));
        }
        let mut all = true;
        for (crc, buf, read) in reads {
            match read.await {
                Ok(()) => all &= buf.read(|b| self.config.checksum(b)) == crc,
                Err(status) => return Err(io_error(self.config, "read data", status)),
            }
        }
        Ok(all)
    }
}
