// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal of the process before: found in memory that outlives processes, checked, and applied
//! after the log.
//!
//! ```text
//!   memory of this cache ─▶ header ─▶ same cache, boot, incarnation? ─▶ applied ─▶ a checkpoint
//!                             └─ blank, cut off, or of another boot or opening: ignored
//!                             └─ values that no process wrote: the cache is not opened
//! ```
//!
//! A process, with shared memory or without, writes a record with a new incarnation before the
//! first request of a client (`store::journal`). So a journal of the newest incarnation on the
//! media is that of the last process that has used the cache, wherever others keep theirs.
//!
//! Data of the write buffer that are not in their slots are taken from their frames, and written to
//! the slots before the checkpoint.
//!
//! Invariants
//! - WC-JR1 Changes of the journal count after all records of the log. What they say is durable
//!   before the journal begins anew: the opening writes a checkpoint.
//! - WC-JR2 A journal of another cache, another start of the machine or another opening is never
//!   applied, and what it had is reported.
//! - WC-JR3 A version counts only if its data are in its slot, or in a frame. The cache device
//!   alone may have lost power, and with it data that no flush covered: then the version before
//!   counts, as after any power cut. Not one whose slot a later change has: that slot is to have
//!   other data.
//! - WC-JR4 A journal has one user: it is locked from before it is read until the cache is
//!   suspended. A copy of a cache device has the UUID of the original, and would share the memory.
//! - WC-JR5 A journal with a damaged header is set aside, with its buffer, before another one
//!   begins; the cache opens, as it has what was flushed. Each cache keeps the last at most.
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Flags, Planted, Reservation, Sector};
use format::{
    Damage, Entry, FRAME_TAG_BYTES, FRAMES_PREFIX, FrameTag, JOURNAL_PREFIX, Journal,
    JournalChange, JournalHeader, Op, Superblock, UNIT, frame_offset, is_blank, journal_bytes,
};
use reactor::{SharedMemory, SharedMemoryStore};

use super::area::{io_error, wait_all};
use super::owner::hex;
use crate::config::Config;
use crate::events::{DAMAGED_PREFIX, IgnoredJournal};
use crate::map::Rebuild;
use crate::map::journal::JournalWriter;
use crate::planted::Fault;
use crate::store::frames::{Frames, buffer_blocks};

/// Versions whose data are read at once: 4 MiB at most.
const READS_AT_ONCE: usize = 1024;

/// What a journal is blanked with, at one time.
static BLANK: [u8; 16 * UNIT] = [0; 16 * UNIT];

/// Memory for a journal, and its part of the core's budget.
pub(crate) struct JournalMemory {
    pub(crate) memory: Rc<dyn SharedMemory>,
    /// For the data of the write buffer, if there is one.
    pub(crate) frames: Option<Frames>,
    /// Why there is none though the table has one.
    pub(crate) no_buffer: Option<String>,
    /// Where it is, for messages.
    place: String,
    boot_id: [u8; 16],
    capacity: u64,
    /// The number of the next entry.
    next: Cell<u64>,
    reservation: Reservation,
}

/// What a journal is read for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalUse {
    /// The cache is opened (WC-JR4).
    Take,
    /// A tool looks at it.
    Look,
}

/// What the memory of a cache has.
pub(crate) struct FoundJournal {
    /// The memory, or why there is none.
    pub(crate) memory: Result<JournalMemory, String>,
    header: Option<JournalHeader>,
    changes: Vec<JournalChange>,
    /// There was one with a damaged header (WC-JR5).
    was_damaged: bool,
    /// Where it is, for messages.
    pub(crate) place: String,
    /// Why memory that is there can't be read.
    pub(crate) unreadable: Option<String>,
    /// Blocks whose newest version the cache device does not have (WC-JR3).
    pub(crate) lost_blocks: u64,
    /// Data of the write buffer, for the slots that do not have them.
    pub(crate) unwritten: Vec<(u32, Buf)>,
}

/// The journal of a cache that is being opened: memory for the next one, and what became of the
/// last one.
pub(crate) struct OpenJournal {
    /// The memory, or why there is none.
    pub(crate) memory: Result<JournalMemory, String>,
    /// Changes that the map has from the journal.
    pub(crate) applied: u64,
    /// Why the last journal was ignored, and how many changes it had.
    pub(crate) lost: Option<(IgnoredJournal, u64)>,
    /// Blocks whose newest version the cache device does not have.
    pub(crate) lost_blocks: u64,
}

impl OpenJournal {
    /// The cache device knows all that the last journal had, or that journal does not count.
    pub(crate) fn clear(&self) {
        if let Ok(memory) = &self.memory {
            // An error shows again when a journal begins.
            memory.memory.write(0, &[0; UNIT]).ok();
        }
    }
}

/// Opens and reads the journal of a cache.
///
/// # Errors
/// `EINVAL` for a journal that no process can have left like that; `EBUSY` for one that another
/// cache has.
pub(crate) async fn find(
    config: &Config,
    superblock: &Superblock,
    purpose: JournalUse,
) -> Result<FoundJournal, Error> {
    let capacity = config.journal_capacity;
    let none = |place, why, unreadable| {
        Ok(FoundJournal {
            memory: Err(why),
            header: None,
            changes: Vec::new(),
            was_damaged: false,
            place,
            unreadable,
            lost_blocks: 0,
            unwritten: Vec::new(),
        })
    };
    let Some(store) = reactor::shared_memory() else {
        let why = "this process has no directory for memory that outlives it";
        return none(String::new(), why.to_owned(), None);
    };
    let name = journal_name(superblock);
    let place = store.place_of(&name);
    let len = journal_bytes(capacity);
    let reserved = reactor::memory().reserve(len, format!("the journal {place}"));
    let opened = match reserved {
        Ok(reservation) => store.open(&name, len).await.map(|memory| (memory, reservation)),
        Err(e) => Err(e),
    };
    let (mut memory, mut reservation) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let is_there = ![ErrorKind::NotFound, ErrorKind::NoFile].contains(&e.kind());
            return none(place, e.chain(), is_there.then(|| e.chain()));
        }
    };
    if purpose == JournalUse::Take {
        lock(config, &*memory, &place)?;
    }
    let mut bytes = vec![0; memory.len_bytes()];
    if let Err(status) = memory.read(0, &mut bytes) {
        let why = format!("{place}: a part of it is lost ({status})");
        return none(place, why.clone(), Some(why));
    }
    let mut was_damaged = false;
    let (header, changes) = match Journal::decode(&bytes) {
        Ok(Journal { header, changes }) => (Some(header), changes),
        Err(Damage::Magic) if is_blank(&bytes[..UNIT]) => (None, Vec::new()),
        // The process died while it wrote the header, and has blanked the rest before.
        Err(Damage::Magic | Damage::Checksum) if is_blank(&bytes[UNIT..]) => (None, Vec::new()),
        Err(Damage::Magic | Damage::Checksum) if purpose == JournalUse::Look => {
            let why = format!("{place}: its header is damaged");
            return none(place, why.clone(), Some(why));
        }
        Err(Damage::Magic | Damage::Checksum) if !config.planted.is(Fault::DamagedJournalLost) => {
            was_damaged = true;
            set_aside(&*store, superblock).await?;
            drop(memory);
            memory = store.open(&name, len).await?;
            lock(config, &*memory, &place)?;
            (None, Vec::new())
        }
        Err(Damage::Magic | Damage::Checksum) => (None, Vec::new()),
        Err(damage) => return Err(refused(config, &place, &damage.to_string())),
    };
    let old = header.as_ref().map_or(0, |header| header.frames);
    let opened = open_frames(config, superblock, old, &mut reservation).await;
    let (frames, no_buffer) = match opened {
        Ok(frames) => (frames, None),
        // Tools find no memory where no process has made any.
        Err(e) if e.kind() == ErrorKind::NoFile => (None, None),
        Err(e) if old == 0 || changes.is_empty() => (None, Some(e.chain())),
        Err(e) => {
            let why = format!("the data of its changes can't be read: {}", e.chain());
            return Err(refused(config, &place, &why));
        }
    };
    let memory = JournalMemory {
        memory,
        frames,
        no_buffer,
        place: place.clone(),
        boot_id: store.boot_id(),
        capacity,
        next: Cell::new(1),
        reservation,
    };
    Ok(FoundJournal {
        memory: Ok(memory),
        header,
        changes,
        was_damaged,
        place,
        unreadable: None,
        lost_blocks: 0,
        unwritten: Vec::new(),
    })
}

/// Opens the memory for the frames of the journal that was found, and for those of the next one;
/// `None` if neither has any.
async fn open_frames(
    config: &Config,
    superblock: &Superblock,
    old: u64,
    reservation: &mut Reservation,
) -> Result<Option<Frames>, Error> {
    let count = buffer_blocks(config, superblock.slots);
    let most = old.max(count.into());
    let store = reactor::shared_memory().filter(|_| most > 0);
    let Some(store) = store else { return Ok(None) };
    let name = frames_name(superblock);
    let len = frame_offset(most, most, config.block_size.into());
    reservation.grow_to(reservation.bytes() + len, format!("the write buffer {name}"))?;
    Ok(Some(Frames { memory: store.open(&name, len).await?, count }))
}

/// WC-JR5.
async fn set_aside(store: &dyn SharedMemoryStore, superblock: &Superblock) -> Result<(), Error> {
    for name in [journal_name(superblock), frames_name(superblock)] {
        store.rename(&name, &format!("{DAMAGED_PREFIX}{name}")).await?;
    }
    Ok(())
}

fn journal_name(superblock: &Superblock) -> String {
    format!("{JOURNAL_PREFIX}{}", hex(&superblock.uuid))
}

fn frames_name(superblock: &Superblock) -> String {
    format!("{FRAMES_PREFIX}{}", hex(&superblock.uuid))
}

/// WC-JR4.
fn lock(config: &Config, memory: &dyn SharedMemory, place: &str) -> Result<(), Error> {
    // Planted fault: the cache is opened while another one is in use.
    #[cfg(feature = "planted")]
    if config.planted.is(Fault::OpenWhenLoaded) {
        return Ok(());
    }
    if config.planted.is(Fault::JournalNotLocked) {
        return Ok(());
    }
    memory.lock(&config.cache).map_err(|other| {
        Error::busy(format!(
            "cache device {}: its journal, {place}, is in use by the cache on {other}: both have \
             the same UUID, so one is a copy of the other. Remove the device of that one first, or \
             open this one in a daemon with another run directory (`--run-dir`); nothing was \
             changed",
            config.cache
        ))
    })
}

/// The error for a journal that can't be believed.
fn refused(config: &Config, place: &str, why: &str) -> Error {
    Error::invalid(format!(
        "cache device {}: its journal, {place}, can't be used: {why}. Writes that were \
         acknowledged and that no FLUSH followed may be there alone; without the journal (remove \
         it) the cache opens as it was at its last commit; nothing was changed",
        config.cache
    ))
}

impl FoundJournal {
    /// Applies the changes to the map, if they follow the newest incarnation on the media. Returns
    /// how many there were, or why they do not count (WC-JR2).
    ///
    /// # Errors
    /// `EINVAL` if a change does not fit the cache.
    pub(crate) async fn apply(
        &mut self,
        config: &Config,
        device: &dyn BlockDevice,
        superblock: &Superblock,
        incarnation: u64,
        blocks: u64,
        map: &mut Rebuild,
    ) -> Result<Result<u64, IgnoredJournal>, Error> {
        if let Some(why) = self.ignored(config, superblock, incarnation) {
            return Ok(Err(why));
        }
        self.check(superblock, blocks).map_err(|why| refused(config, &self.place, &why))?;
        self.drop_lost(config, device, superblock).await?;
        for JournalChange { entry, epoch, oldest } in &self.changes {
            match epoch {
                0 => map.apply_log(&[*entry]),
                _ => map.apply_log(&[Entry::epoch(*epoch, *oldest), *entry]),
            }
        }
        Ok(Ok(self.changes.len() as u64))
    }

    /// Why the changes do not count, if they do not.
    fn ignored(
        &self,
        config: &Config,
        superblock: &Superblock,
        incarnation: u64,
    ) -> Option<IgnoredJournal> {
        if self.was_damaged {
            return Some(IgnoredJournal::Damaged { uuid: superblock.uuid });
        }
        let header = self.header.as_ref().filter(|_| !self.changes.is_empty())?;
        if header.uuid != superblock.uuid {
            Some(IgnoredJournal::OtherCache)
        } else if self.is_of_other_boot(header) && !config.planted.is(Fault::JournalOfOtherBoot) {
            Some(IgnoredJournal::OtherBoot)
        } else if header.incarnation < incarnation {
            let is_applied = config.planted.is(Fault::JournalOfOlderOpening);
            (!is_applied).then_some(IgnoredJournal::Older)
        } else {
            (header.incarnation > incarnation).then_some(IgnoredJournal::Newer)
        }
    }

    /// What of a change does not fit the cache.
    fn check(&self, superblock: &Superblock, blocks: u64) -> Result<(), String> {
        for (number, JournalChange { entry, .. }) in (1u64..).zip(&self.changes) {
            let (slot_used, len) = match entry.op {
                Op::Drop => (None, u64::from(entry.slot)),
                Op::Zero => (Some(entry.slot), u64::from(entry.crc)),
                Op::Write => (Some(entry.slot), 1),
                Op::Clean | Op::Evict | Op::Bad | Op::Epoch | Op::WriteNext => {
                    unreachable!("no journal is decoded with such a change")
                }
            };
            if entry.block + len > blocks || slot_used.is_some_and(|s| s >= superblock.slots) {
                return Err(format!(
                    "change {number} is about block {} or slot {}, the cache has \
                     {blocks} blocks and {} slots",
                    entry.block, entry.slot, superblock.slots
                ));
            }
        }
        Ok(())
    }

    /// Drops the versions whose data are not in their slots (WC-JR3).
    async fn drop_lost(
        &mut self,
        config: &Config,
        device: &dyn BlockDevice,
        superblock: &Superblock,
    ) -> Result<(), Error> {
        if config.planted.is(Fault::JournalDataUnchecked) {
            return Ok(());
        }
        let geometry = superblock.geometry();
        let size = config.block_size as usize;
        let mut are_there = Vec::with_capacity(self.changes.len());
        let mut unreadable = None;
        for changes in self.changes.chunks(READS_AT_ONCE) {
            let reads: Vec<_> = changes
                .iter()
                .map(|JournalChange { entry, .. }| {
                    (entry.op == Op::Write).then(|| {
                        let buf = Buf::alloc(size);
                        let offset = geometry.slot_offset(entry.slot);
                        let at = config.start_sector + Sector::from_bytes(offset);
                        let into = buf.all().into();
                        (entry.crc, buf, reactor::read(device, Class::Foreground, at, into))
                    })
                })
                .collect();
            for read in reads {
                are_there.push(match read {
                    None => true,
                    Some((crc, buf, read)) => match read.await {
                        Ok(()) => buf.read(|data| config.checksum(data)) == crc,
                        Err(status) => {
                            unreadable = Some((are_there.len(), status));
                            false
                        }
                    },
                });
            }
        }
        self.take_frames(config, &mut are_there)?;
        if !config.planted.is(Fault::JournalSlotTwice) {
            self.give_up_reused_slots(&mut are_there);
        }
        if let Some((_, status)) = unreadable.filter(|(n, _)| !are_there[*n]) {
            return Err(io_error(config, "read data", status));
        }
        let mut lost = BTreeSet::new();
        for (JournalChange { entry, .. }, is_there) in self.changes.iter().zip(&are_there) {
            match is_there {
                // Also zeroes and drops: the newest change of the block is there.
                true => lost.remove(&entry.block),
                false => lost.insert(entry.block),
            };
        }
        self.lost_blocks = lost.len() as u64;
        let mut are_there = are_there.into_iter();
        self.changes.retain(|_| are_there.next().unwrap_or(true));
        Ok(())
    }

    /// WC-JR3: a slot has the last version that is there; the data of earlier ones may be in it
    /// still, where those of the last one are in a frame.
    fn give_up_reused_slots(&self, are_there: &mut [bool]) {
        let mut taken = BTreeSet::new();
        let changes = self.changes.iter().zip(are_there).rev();
        for (JournalChange { entry, .. }, is_there) in changes {
            *is_there = *is_there && (entry.op == Op::Drop || taken.insert(entry.slot));
        }
    }

    /// Looks in the write buffer for data that are not in their slots. Only the last change that
    /// names a slot may have its data there. Another frame may have the same tag: of the same data
    /// before, which were about to be replaced.
    fn take_frames(&mut self, config: &Config, are_there: &mut [bool]) -> Result<(), Error> {
        let (Ok(memory), Some(header)) = (&mut self.memory, &self.header) else { return Ok(()) };
        let Some(frames) = memory.frames.as_ref().filter(|_| header.frames > 0) else {
            return Ok(());
        };
        if config.planted.is(Fault::FramesIgnored) {
            return Ok(());
        }
        let lost = |status| {
            let place = &self.place;
            Error::new(ErrorKind::Io, format!("{place}: a part of its buffer is lost ({status})"))
        };
        let count = usize::try_from(header.frames).expect("FRAMES_MAX");
        let mut tags = vec![0; count * FRAME_TAG_BYTES];
        frames.memory.read(0, &mut tags).map_err(lost)?;
        let tags = tags.as_chunks::<FRAME_TAG_BYTES>().0.iter().map(|tag| FrameTag::decode(*tag));
        // A kill may leave the tag of a frame before its new data: all frames of a tag are tried.
        let by_tag: BTreeSet<(FrameTag, u64)> = tags.zip(0..).collect();
        let mut named = BTreeSet::new();
        for (n, JournalChange { entry, .. }) in self.changes.iter().enumerate().rev() {
            let is_last = entry.op != Op::Drop && named.insert(entry.slot);
            if are_there[n] || !is_last {
                continue;
            }
            let tag = FrameTag { slot: entry.slot, crc: entry.crc };
            for &(_, frame) in by_tag.range((tag, 0)..=(tag, u64::MAX)) {
                let size = config.block_size;
                let bytes = memory.reservation.bytes() + u64::from(size);
                memory
                    .reservation
                    .grow_to(bytes, format!("the write buffer of {}", config.cache))?;
                let buf = Buf::alloc(size as usize);
                let at = usize::try_from(frame_offset(frame, header.frames, size.into()));
                let at = at.expect("within the memory");
                buf.write(|out| frames.memory.read(at, out)).map_err(lost)?;
                if buf.read(|data| config.checksum(data)) == entry.crc {
                    are_there[n] = true;
                    self.unwritten.push((entry.slot, buf));
                    break;
                }
                memory.reservation.shrink_to(bytes - u64::from(size));
            }
        }
        Ok(())
    }

    /// Writes the data of the write buffer to their slots.
    pub(crate) async fn write_out(
        &mut self,
        config: &Config,
        device: &dyn BlockDevice,
        superblock: &Superblock,
    ) -> Result<(), Error> {
        let geometry = superblock.geometry();
        for some in self.unwritten.chunks(READS_AT_ONCE) {
            let writes = some.iter().map(|(slot, data)| {
                let at = config.start_sector + Sector::from_bytes(geometry.slot_offset(*slot));
                let (flags, class) = (Flags::empty(), Class::Foreground);
                reactor::write(device, flags, class, at, data.clone().into())
            });
            let written = wait_all(writes.collect::<Vec<_>>()).await;
            written.map_err(|status| io_error(config, "write data of the write buffer", status))?;
        }
        let bytes = self.unwritten.len() as u64 * u64::from(config.block_size);
        self.unwritten.clear();
        if let Ok(memory) = &mut self.memory {
            memory.reservation.shrink_to(memory.reservation.bytes() - bytes);
        }
        Ok(())
    }

    fn is_of_other_boot(&self, header: &JournalHeader) -> bool {
        self.memory.as_ref().is_ok_and(|memory| header.boot_id != memory.boot_id)
    }

    /// How many changes it has.
    pub(crate) fn len(&self) -> u64 {
        self.changes.len() as u64
    }
}

impl JournalMemory {
    /// Begins an empty journal for a cache whose log has this incarnation.
    pub(crate) fn begin(
        &self,
        superblock: &Superblock,
        incarnation: u64,
        planted: Planted<Fault>,
    ) -> JournalWriter {
        let header = JournalHeader {
            uuid: superblock.uuid,
            boot_id: self.boot_id,
            incarnation,
            capacity: self.capacity,
            frames: self.frames.as_ref().map_or(0, |frames| frames.count.into()),
        };
        if !planted.is(Fault::JournalNotLocked) {
            self.blank();
        }
        JournalWriter::begin(self.memory.clone(), header, self.next.get(), planted)
    }

    /// Blanks all of it. A copy of the cache may have used it meanwhile, and counts its openings as
    /// this one does: its entries would follow ours. The header goes first: without it there is no
    /// journal.
    ///
    /// Cost: 6 MiB of stores, once after each resume.
    fn blank(&self) {
        let len = self.memory.len_bytes();
        for at in (0..len).step_by(BLANK.len()) {
            // An error shows again when the journal begins.
            self.memory.write(at, &BLANK[..BLANK.len().min(len - at)]).ok();
        }
    }

    /// Takes the memory again, of a cache that was suspended (WC-JR4).
    ///
    /// # Errors
    /// `EBUSY` if another cache has it.
    pub(crate) fn lock(&self, config: &Config) -> Result<(), Error> {
        lock(config, &*self.memory, &self.place)
    }

    /// The journal that was begun ends before entry `next`.
    pub(crate) fn left_at(&self, next: u64) {
        self.next.set(next);
    }
}
