// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an origin and the records of its cache say about its guard, before anything is written; and
//! what follows from it (WC-GU5, WC-GU6).
use std::fmt;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, Sector};
use format::{
    Damage, GuardRange, GuardRecord, GuardSlot, GuardState, LaterFormat, Superblock, UNIT,
};

use super::record::{read_record, write_record};
use super::{Guard, Place};
use crate::config::{Config, Mode};
use crate::planted::Fault;
use crate::recovery::owner::{NO_ORIGIN, hex};

/// What a range of the origin has.
enum FoundRange {
    /// Slots.
    Guarded { image: Vec<u8>, slots: FoundSlots },
    /// The first slot is whole, and the record does not know it yet.
    FirstSlot { image: Vec<u8>, slots: FoundSlots },
    /// The first slot is not whole.
    Guarding { image: Vec<u8> },
    /// The front half may not be whole.
    Detaching { front: Vec<u8> },
    /// Somebody has used the range without the cache: what it has now counts, but for what is left
    /// of slots.
    Used { remains: Remains },
}

/// What is read of the slots of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundSlots {
    /// The newest.
    pub(super) newest: u8,
    pub(super) sequence: u64,
    /// The other one is whole, too.
    pub(super) is_other_whole: bool,
}

/// Which slots of a used range still begin as slots do.
pub(super) type Remains = [bool; 2];

/// How a range was used without its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedRange {
    range: GuardRange,
    what: &'static str,
}

/// What the bytes of a range are, whatever the cache knows of them.
pub(super) struct RangeLook {
    /// The caches of which slots begin there.
    pub(super) owners: [Option<[u8; 16]>; 2],
    /// The newest slot that is whole.
    pub(super) newest: Option<NewestSlot>,
    /// It is as a cache writes it, also after a crash (WC-GU5).
    pub(super) is_sound: bool,
    /// What a slot has that this program must know, and does not.
    later: Option<LaterFormat>,
}

impl RangeLook {
    pub(super) fn of(range: GuardRange, bytes: &[u8]) -> RangeLook {
        let halves: [&[u8]; 2] = bytes.split_at(range.slot_bytes()).into();
        let owners = halves.map(GuardSlot::owner);
        let newest = NewestSlot::find(range, bytes);
        let slots = [0, 1].map(|n| GuardSlot::decode(range.nth, n, halves[usize::from(n)]));
        // Slot 0 may say that the rear half is free.
        let is_alone = slots[0].as_ref().is_ok_and(|(slot, _)| slot.is_alone);
        let later = slots.into_iter().find_map(|slot| match slot {
            Err(Damage::Later(later)) => Some(later),
            _ => None,
        });
        // A slot that is torn has its first bytes, and its zeroes: they do not change.
        let is_ours = |n: usize| owners[n].is_some() && !GuardSlot::is_written_over(halves[n]);
        let is_sound = newest.is_some() && is_ours(0) && (is_alone || is_ours(1));
        RangeLook { owners, newest, is_sound, later }
    }

    /// Refuses a guard of a later program.
    ///
    /// # Errors
    /// `EINVAL`; the text names the origin.
    pub(super) fn check_known(&self, origin: &str) -> Result<(), Error> {
        let Some(later) = &self.later else { return Ok(()) };
        let way_out = LaterFormat::WAY_OUT;
        let text = format!("origin {origin}: its guard: {later}: {way_out}; nothing was changed");
        Err(Error::invalid(text))
    }

    pub(super) fn remains(&self) -> Remains {
        self.owners.map(|owner| owner.is_some())
    }
}

/// The guard of an origin as it was found.
#[derive(Default)]
pub(crate) struct FoundGuard {
    ranges: Vec<(GuardRange, FoundRange)>,
    /// Records, of which one copy is missing or old.
    incomplete: Vec<GuardRecord>,
    /// The sequence of the newest record of each range.
    records: [u64; format::GUARD_RANGES as usize],
    /// Ranges that were used without the cache: the table adopts the origin.
    used: Vec<UsedRange>,
}

/// What is read of one range.
struct Reading<'a> {
    config: &'a Config,
    uuid: [u8; 16],
    range: GuardRange,
    bytes: Vec<u8>,
}

/// Reads what there is of a guard: nothing, if neither the table nor the superblock has one.
///
/// # Errors
/// `EINVAL` if the origin is guarded by another cache, or was used without this one.
pub(crate) async fn find(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    superblock: &Superblock,
    sectors: Sector,
) -> Result<FoundGuard, Error> {
    let mut found = FoundGuard::default();
    if !superblock.guards_origin && !config.guard.is_on {
        return Ok(found);
    }
    let wanted = GuardRange::of_origin(sectors.0);
    for nth in 0..format::GUARD_RANGES {
        let mut record = None;
        if superblock.guards_origin {
            let read = read_record(config, device, &superblock.uuid, nth).await?;
            found.incomplete.extend(read.record.clone().filter(|_| !read.is_whole));
            record = read.record;
        }
        if config.planted.is(Fault::OldEndForgotten) {
            record = record.filter(|record| wanted.contains(&record.range));
        }
        found.records[usize::from(nth)] = record.as_ref().map_or(0, |record| record.sequence);
        let of_record = record.as_ref().map(|record| record.range);
        let range = of_record.or_else(|| wanted.iter().copied().find(|range| range.nth == nth));
        let Some(range) = range else { continue };
        let end = range.start.saturating_add((range.bytes / 512) as u64);
        let is_gone = matches!(record.as_ref().map(|r| r.state), None | Some(GuardState::Detached));
        if end > origin.limits().capacity.0 {
            if !is_gone {
                let remains = [false, false];
                found.take_used(
                    config,
                    UsedRange { range, what: "lie behind its end" },
                    remains,
                )?;
            }
            continue;
        }
        let bytes = read_origin(origin, range).await?;
        let reading = Reading { config, uuid: superblock.uuid, range, bytes };
        match reading.interpret(record.as_ref())? {
            None => {}
            Some(Interpreted::As(range_found)) => {
                if !is_gone {
                    check_no_copy(config, origin, superblock)?;
                }
                found.ranges.push((range, range_found));
            }
            Some(Interpreted::Used(what, remains)) => {
                found.take_used(config, UsedRange { range, what }, remains)?;
            }
        }
    }
    Ok(found)
}

/// How the origin was used without the cache, in one sentence that follows its name; `None` if it
/// was not. Nothing is written.
///
/// # Errors
/// `EINVAL` if another cache guards the origin, `EIO` if it or the cache device can't be read.
pub(crate) async fn find_use(
    superblock: &Superblock,
    start_sector: Sector,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
) -> Result<Option<String>, Error> {
    let block_size = superblock.block_size;
    let mut config = Config::new(Mode::Ssd, origin.name(), device.name(), block_size);
    config.start_sector = start_sector;
    config.adopt_origin = true; // what was used is reported, not refused
    let sectors = Sector(superblock.origin_sectors);
    let found = find(&config, origin, device, superblock, sectors).await?;
    let used: Vec<String> = found.used.iter().map(UsedRange::to_string).collect();
    Ok((!used.is_empty()).then(|| {
        format!(
            "was used, or restored, without its cache, and what that holds may not fit to it any \
             more: its {}",
            used.join(", its ")
        )
    }))
}

/// What the origin has in a range.
pub(super) async fn read_origin(
    origin: &dyn BlockDevice,
    range: GuardRange,
) -> Result<Vec<u8>, Error> {
    let buf = Buf::alloc(range.bytes);
    let at = Sector(range.start);
    let read = reactor::read(origin, Class::Foreground, at, buf.all().into()).await;
    read.map_err(|status| {
        Error::io(format!("{}: read of its guard: sector {at}: {status}", origin.name()))
    })?;
    Ok(buf.read(<[u8]>::to_vec))
}

/// The newest slot of a range.
pub(super) struct NewestSlot {
    pub(super) header: GuardSlot,
    pub(super) image: Vec<u8>,
    pub(super) slots: FoundSlots,
}

impl NewestSlot {
    /// The newest slot that is whole, in what the origin has in `range`.
    pub(super) fn find(range: GuardRange, bytes: &[u8]) -> Option<NewestSlot> {
        let half = range.slot_bytes();
        let slot = |number: u8| {
            let bytes = &bytes[usize::from(number) * half..][..half];
            let (header, image) = GuardSlot::decode(range.nth, number, bytes).ok()?;
            (header.range == range).then_some((number, header, image))
        };
        let slots = [slot(0), slot(1)];
        let is_other_whole = slots.iter().all(Option::is_some);
        let newest = slots.into_iter().flatten().max_by_key(|(_, header, _)| header.sequence);
        let (newest, header, image) = newest?;
        let slots = FoundSlots { newest, sequence: header.sequence, is_other_whole };
        Some(NewestSlot { header, image, slots })
    }
}

/// Refuses an origin that a cache guards, for a cache that was not its own before. What can't be
/// read can't be checked: the cache will get the same error.
///
/// # Errors
/// `EINVAL`; the text names the cache.
pub(crate) async fn refuse_guarded(config: &Config, origin: &dyn BlockDevice) -> Result<(), Error> {
    let unit = Sector::from_bytes(UNIT as u64);
    if config.guard.is_origin_trusted || origin.limits().capacity < unit {
        return Ok(());
    }
    let buf = Buf::alloc(UNIT);
    let read = reactor::read(origin, Class::Foreground, Sector::ZERO, buf.all().into()).await;
    match buf.read(GuardSlot::owner).filter(|_| read.is_ok()) {
        Some(owner) => Err(guarded_by_another(config, &owner)),
        None => Ok(()),
    }
}

/// What a range is for its cache.
enum Interpreted {
    As(FoundRange),
    /// How, and what is left of its slots.
    Used(&'static str, Remains),
}

impl Reading<'_> {
    /// What the range has; `None` if it is not guarded.
    fn interpret(self, record: Option<&GuardRecord>) -> Result<Option<Interpreted>, Error> {
        let (front, rear) = self.bytes.split_at(self.range.slot_bytes());
        let look = RangeLook::of(self.range, &self.bytes);
        if let Some(other) = look.owners.iter().flatten().find(|owner| **owner != self.uuid) {
            return Err(guarded_by_another(self.config, other)); // WC-GU6
        }
        look.check_known(&self.config.origin)?;
        // All slots are of this cache.
        let remains = look.remains();
        let newest = look.newest.map(|found| (found.image, found.slots));
        let state = record.map_or(GuardState::Detached, |record| record.state);
        let found = match state {
            // A record that was lost, or an origin of an earlier time: the slots count.
            GuardState::Detached if remains == [false, false] => return Ok(None),
            GuardState::Detached | GuardState::Guarded => match newest {
                Some((image, slots)) if look.is_sound => Ok(FoundRange::Guarded { image, slots }),
                None if remains[0] => {
                    Err("have a guard that is damaged: what they held is in neither of its slots")
                }
                Some(_) | None => Err("do not have the guard that its cache wrote there"),
            },
            GuardState::Guarding => match newest {
                Some((image, slots)) => Ok(FoundRange::FirstSlot { image, slots }),
                None => match record.filter(|record| is_between(record, front)) {
                    Some(record) => {
                        let image = [&record.front[..], rear].concat();
                        Ok(FoundRange::Guarding { image })
                    }
                    None => Err("were written while the guard was put there"),
                },
            },
            GuardState::Detaching => match record.filter(|record| is_between(record, front)) {
                Some(record) => Ok(FoundRange::Detaching { front: record.front.clone() }),
                None => Err("were written while the guard was taken away"),
            },
        };
        Ok(Some(match found {
            Ok(found) => Interpreted::As(found),
            Err(_) if self.config.planted.is(Fault::UsedOriginTaken) => return Ok(None),
            Err(what) => Interpreted::Used(what, remains),
        }))
    }
}

/// Whether each sector of the front half is one of the record's, or of the slot that took its place
/// (WC-GU5).
fn is_between(record: &GuardRecord, front: &[u8]) -> bool {
    let sectors = front.chunks(512).zip(record.front.chunks(512));
    let crcs = format::sector_crcs(front);
    sectors
        .zip(crcs.iter().zip(&record.slot_crcs))
        .all(|((now, then), (crc, slot))| now == then || crc == slot)
}

fn check_no_copy(
    config: &Config,
    origin: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), Error> {
    let Some(identity) = origin.identity() else { return Ok(()) };
    let (own, id) = (superblock.origin_id, format::origin_id(&identity));
    if config.adopt_origin || own == NO_ORIGIN || own == id {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "origin {}: it is a copy of the one that cache device {} guards, which has identity {}; \
         this one has {} ({identity}). If it does take the place of the cache's own, say so by the \
         option adopt_origin; nothing was changed",
        config.origin,
        config.cache,
        hex(&own),
        hex(&id),
    )))
}

impl fmt::Display for UsedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors from {} on {}", self.range.start, self.what)
    }
}

fn used(config: &Config, used: UsedRange) -> Error {
    let (origin, cache) = (&config.origin, &config.cache);
    Error::invalid(format!(
        "origin {origin}: its {used}: it was used, or restored, without its cache on {cache}, and \
         what that holds may not fit to it any more. If the origin counts as it is now, `millpond \
         wipe {cache}` gives up what the cache holds, and `millpond recover --without-cache \
         {origin}` takes the rest of the guard away; to write what the cache holds over the \
         origin, add the option adopt_origin, or use `millpond recover --cache {cache} --origin \
         {origin}`; nothing was changed"
    ))
}

fn guarded_by_another(config: &Config, owner: &[u8; 16]) -> Error {
    let origin = &config.origin;
    Error::invalid(format!(
        "origin {origin}: the write cache with the UUID {} guards it, not the one on {}: use the \
         device of that cache (`millpond inspect {origin}` names it). If that cache is lost, \
         `millpond recover --without-cache {origin}` gives the origin back as it last was; nothing \
         was changed",
        hex(owner),
        config.cache
    ))
}

impl FoundGuard {
    /// A range that was used without the cache: with `adopt_origin` it is as it is (WC-GU5).
    fn take_used(
        &mut self,
        config: &Config,
        range: UsedRange,
        remains: Remains,
    ) -> Result<(), Error> {
        if !config.adopt_origin {
            return Err(used(config, range));
        }
        self.used.push(range);
        self.ranges.push((range.range, FoundRange::Used { remains }));
        Ok(())
    }

    /// Whether the superblock must name a guard.
    pub(crate) fn is_needed(&self, config: &Config) -> bool {
        config.guard.is_on || !self.ranges.is_empty()
    }

    /// Ends what a crash has interrupted, and gives back ranges that the table does not guard. The
    /// superblock names the guard, durably.
    ///
    /// # Errors
    /// Those of the devices; the next open goes on.
    pub(crate) async fn settle(self, place: Place) -> Result<Rc<Guard>, Error> {
        if let Some(device) = &place.device {
            for record in &self.incomplete {
                write_record(&place.config, &**device, record).await?;
            }
        }
        let wanted = match place.config.guard.is_on {
            true => GuardRange::of_origin(place.sectors.0),
            false => Vec::new(),
        };
        let guard = Guard::new(place);
        for (cell, sequence) in guard.records.iter().zip(self.records) {
            cell.set(sequence);
        }
        for (range, found) in self.ranges {
            let is_wanted = wanted.contains(&range);
            match found {
                FoundRange::Guarded { image, slots } => {
                    guard.keep_slots(range, image, slots).await?;
                }
                FoundRange::FirstSlot { image, slots } => {
                    guard.finish_attach(range, image, slots).await?;
                }
                FoundRange::Guarding { image } if is_wanted => {
                    guard.attach_image(range, image).await?;
                }
                FoundRange::Guarding { image } => {
                    guard.finish_detach(range, &image[..range.slot_bytes()]).await?;
                }
                FoundRange::Detaching { front } => guard.finish_detach(range, &front).await?,
                FoundRange::Used { remains } => guard.clear_remains(range, remains).await?,
            }
            let has = guard.ranges.borrow().iter().find(|has| has.range == range).cloned();
            if let Some(has) = has.filter(|_| !is_wanted) {
                guard.detach_range(&has).await?;
            }
        }
        Ok(guard)
    }
}
