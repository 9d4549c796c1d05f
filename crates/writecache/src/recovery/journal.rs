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
//! first change or FLUSH of a client (`store::journal`). So a journal of the newest incarnation on
//! the media is that of the last process that has used the cache, wherever others keep theirs.
//!
//! Invariants
//! - WC-JR1 Changes of the journal count after all records of the log. What they say is durable
//!   before the journal begins anew: the opening writes a checkpoint.
//! - WC-JR2 A journal of another cache, another start of the machine or another opening is never
//!   applied, and what it had is reported.
//! - WC-JR3 A version counts only if its data are in its slot. The cache device alone may have lost
//!   power, and with it data that no flush covered: then the version before counts, as after any
//!   power cut.
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Planted, Reservation, Sector};
use format::{
    Damage, Entry, JOURNAL_PREFIX, Journal, JournalChange, JournalHeader, Op, Superblock, UNIT,
    journal_bytes,
};
use reactor::SharedMemory;

use super::area::io_error;
use super::owner::hex;
use crate::config::Config;
use crate::map::Rebuild;
use crate::map::journal::JournalWriter;
use crate::planted::Fault;

/// Entries of a journal. A commit begins when half of them are used, so that is about what the
/// default of `autocommit_blocks` asks for; 6 MiB.
pub(crate) const JOURNAL_CAPACITY: u64 = 1 << 17;

/// Versions whose data are read at once: 4 MiB at most.
const READS_AT_ONCE: usize = 1024;

/// Why a journal with changes was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredJournal {
    /// It was written before the machine started.
    OtherBoot,
    /// The cache was opened since, by a process that did not have the journal.
    Older,
    /// The cache device is older than the journal: a copy of an earlier time.
    Newer,
    /// It is of another cache.
    OtherCache,
}

impl fmt::Display for IgnoredJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IgnoredJournal::OtherBoot => "it was written before this start of the machine",
            IgnoredJournal::Older => "the cache was opened since by a process without this journal",
            IgnoredJournal::Newer => "the cache device is older than it: a copy of an earlier time",
            IgnoredJournal::OtherCache => "it is of another cache",
        })
    }
}

/// Memory for a journal, and its part of the core's budget.
pub(crate) struct JournalMemory {
    pub(crate) memory: Rc<dyn SharedMemory>,
    boot_id: [u8; 16],
    capacity: u64,
    /// The number of the next entry.
    next: Cell<u64>,
    _reservation: Reservation,
}

/// What the memory of a cache has.
pub(crate) struct FoundJournal {
    /// The memory, or why there is none.
    pub(crate) memory: Result<JournalMemory, String>,
    header: Option<JournalHeader>,
    changes: Vec<JournalChange>,
    /// Where it is, for messages.
    pub(crate) place: String,
    /// Why memory that is there can't be read.
    pub(crate) unreadable: Option<String>,
    /// Blocks whose newest version the cache device does not have (WC-JR3).
    pub(crate) lost_blocks: u64,
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
/// `EINVAL` for a journal that no process can have left like that.
pub(crate) async fn find(config: &Config, superblock: &Superblock) -> Result<FoundJournal, Error> {
    let capacity = config.journal_capacity;
    let none = |place, why, unreadable| {
        let memory = Err(why);
        Ok(FoundJournal {
            memory,
            header: None,
            changes: Vec::new(),
            place,
            unreadable,
            lost_blocks: 0,
        })
    };
    let Some(store) = reactor::shared_memory() else {
        let why = "this process has no directory for memory that outlives it";
        return none(String::new(), why.to_owned(), None);
    };
    let name = format!("{JOURNAL_PREFIX}{}", hex(&superblock.uuid));
    let place = store.place_of(&name);
    let len = journal_bytes(capacity);
    let reserved = reactor::memory().reserve(len, format!("the journal {place}"));
    let opened = match reserved {
        Ok(reservation) => store.open(&name, len).await.map(|memory| (memory, reservation)),
        Err(e) => Err(e),
    };
    let (memory, reservation) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let is_there = ![ErrorKind::NotFound, ErrorKind::NoFile].contains(&e.kind());
            return none(place, e.chain(), is_there.then(|| e.chain()));
        }
    };
    let mut bytes = vec![0; memory.len_bytes()];
    if let Err(status) = memory.read(0, &mut bytes) {
        let why = format!("{place}: a part of it is lost ({status})");
        return none(place, why.clone(), Some(why));
    }
    let boot_id = store.boot_id();
    let next = Cell::new(1);
    let memory = JournalMemory { memory, boot_id, capacity, next, _reservation: reservation };
    let (header, changes) = match Journal::decode(&bytes) {
        Ok(Journal { header, changes }) => (Some(header), changes),
        // A header is written when there is no change.
        Err(Damage::Magic | Damage::Checksum) => (None, Vec::new()),
        Err(damage) => return Err(refused(config, &place, &damage.to_string())),
    };
    Ok(FoundJournal {
        memory: Ok(memory),
        header,
        changes,
        place,
        unreadable: None,
        lost_blocks: 0,
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
                        Err(status) => return Err(io_error(config, "read data", status)),
                    },
                });
            }
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
        };
        JournalWriter::begin(self.memory.clone(), header, self.next.get(), planted)
    }

    /// The journal that was begun ends before entry `next`.
    pub(crate) fn left_at(&self, next: u64) {
        self.next.set(next);
    }
}
