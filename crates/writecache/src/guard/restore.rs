// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guarded origin without its cache: what it is, and how it is given back.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::{GUARD_HEAD_BYTES, GuardRange, GuardSlot, UNIT};

use super::find::{NewestSlot, RangeLook, read_origin};
use super::{Guard, GuardedOrigin, Place};
use crate::config::{Config, Mode};

/// The guard of an origin, as the origin alone shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginGuard {
    /// The identity of the cache.
    pub uuid: [u8; 16],
    /// The cache device, as its table named it; empty if no slot is whole.
    pub cache: String,
    /// Sectors of the origin that the cache maps; 0 if no slot is whole.
    pub origin_sectors: u64,
    /// First sectors of the ranges that are guarded, and sound.
    pub ranges: Vec<u64>,
    /// First sectors of the ranges that somebody has written to since.
    pub damaged: Vec<u64>,
    /// Those of the damaged ranges of which a slot is whole: it has what they held.
    pub restorable: Vec<u64>,
    /// A checksum of what the ranges have.
    fingerprint: u32,
}

/// What counts of a range that somebody has written to since its cache did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamagedRanges {
    /// What is there now.
    Kept,
    /// What a slot of it has, if one is whole.
    Restored,
}

impl OriginGuard {
    /// A token for a decision about the damaged ranges: another one after any change of them.
    #[must_use]
    pub fn token(&self, decision: DamagedRanges) -> String {
        format::token(format!("{decision:?} {}", self.fingerprint).as_bytes())
    }
}

/// What a range has.
struct Contents {
    range: GuardRange,
    bytes: Vec<u8>,
    look: RangeLook,
}

impl Contents {
    fn is_guarded(&self) -> bool {
        self.look.remains() != [false, false]
    }
}

/// The guard of `origin`, if it has one. Nothing is written.
///
/// # Errors
/// `EIO` if the origin can't be read.
pub async fn find_guard(origin: &dyn BlockDevice) -> Result<Option<OriginGuard>, Error> {
    let found = read_ranges(origin).await?;
    let mut guard: Option<OriginGuard> = None;
    for contents in found.iter().filter(|contents| contents.is_guarded()) {
        let (start, look) = (contents.range.start, &contents.look);
        let owner = look.owners.into_iter().flatten().next();
        let guard = guard.get_or_insert_with(|| OriginGuard {
            uuid: owner.expect("a slot begins there"),
            cache: String::new(),
            origin_sectors: 0,
            ranges: Vec::new(),
            damaged: Vec::new(),
            restorable: Vec::new(),
            fingerprint: 0,
        });
        if let Some(NewestSlot { header, .. }) = &look.newest {
            guard.uuid = header.uuid;
            guard.cache.clone_from(&header.cache);
            guard.origin_sectors = header.origin_sectors;
        }
        match look.is_sound {
            true => guard.ranges.push(start),
            false => guard.damaged.push(start),
        }
        if look.newest.is_some() && !look.is_sound {
            guard.restorable.push(start);
        }
        let words = [guard.fingerprint, format::checksum(&contents.bytes)];
        guard.fingerprint = format::checksum(&words.map(u32::to_le_bytes).concat());
    }
    Ok(guard)
}

/// Gives a guarded origin back without its cache: as it was when the last write of the cache to it
/// ended. It is not interrupted, or what a range held may be lost. The cache refuses the origin
/// from then on.
///
/// # Errors
/// `EINVAL` if the origin is not guarded, or a range is damaged: nothing was changed then. `EIO` of
/// the origin.
pub async fn restore_origin(origin: Rc<dyn BlockDevice>) -> Result<OriginGuard, Error> {
    let guard = require_guard(&*origin).await?;
    if let Some(sector) = guard.damaged.first() {
        return Err(Error::invalid(format!(
            "{}: the guard of its sectors from {sector} on is damaged; nothing was changed",
            origin.name()
        )));
    }
    restore_ranges(origin, DamagedRanges::Kept).await?;
    Ok(guard)
}

/// The same where damaged ranges are decided about. What is left of their slots goes.
///
/// # Errors
/// `EINVAL` if the origin is not guarded; `EIO` of the origin.
pub async fn restore_damaged_origin(
    origin: Rc<dyn BlockDevice>,
    decision: DamagedRanges,
) -> Result<OriginGuard, Error> {
    let guard = require_guard(&*origin).await?;
    restore_ranges(origin, decision).await?;
    Ok(guard)
}

async fn require_guard(origin: &dyn BlockDevice) -> Result<OriginGuard, Error> {
    find_guard(origin).await?.ok_or_else(|| {
        let name = origin.name();
        Error::invalid(format!("{name}: no write cache guards it: nothing was changed"))
    })
}

async fn restore_ranges(origin: Rc<dyn BlockDevice>, decision: DamagedRanges) -> Result<(), Error> {
    for contents in read_ranges(&*origin).await?.into_iter().filter(Contents::is_guarded) {
        let Contents { range, look, .. } = contents;
        let (remains, is_kept) = (look.remains(), decision == DamagedRanges::Kept);
        match look.newest {
            Some(NewestSlot { header, image, slots }) if look.is_sound || !is_kept => {
                let guard = guard_without_cache(&header, &origin);
                guard.keep_slots(range, image, slots).await?;
                guard.detach().await?;
            }
            Some(_) | None => {
                let guard = guard_of(String::new(), [0; 16], Sector::ZERO, &origin);
                guard.clear_remains(range, remains).await?;
            }
        }
    }
    Ok(())
}

/// The origin as clients see it, for reads: its guard stays, and nothing is written. A range of
/// which no slot is whole is as it is.
///
/// # Errors
/// `EIO` if the origin can't be read.
pub(crate) async fn view_origin(origin: Rc<dyn BlockDevice>) -> Result<Rc<dyn BlockDevice>, Error> {
    let mut view: Option<Rc<Guard>> = None;
    for Contents { range, look, .. } in read_ranges(&*origin).await? {
        let Some(found) = look.newest else { continue };
        let guard = view.get_or_insert_with(|| guard_without_cache(&found.header, &origin));
        guard.show_image(range, found.image);
    }
    Ok(view.map_or(origin, |guard| Rc::new(GuardedOrigin::new(guard))))
}

/// The guard that a slot is of, without its cache.
fn guard_without_cache(header: &GuardSlot, origin: &Rc<dyn BlockDevice>) -> Rc<Guard> {
    guard_of(header.cache.clone(), header.uuid, Sector(header.origin_sectors), origin)
}

fn guard_of(
    cache: String,
    uuid: [u8; 16],
    sectors: Sector,
    origin: &Rc<dyn BlockDevice>,
) -> Rc<Guard> {
    let config = Config::new(Mode::Ssd, origin.name(), cache, 4096);
    Guard::new(Place { origin: origin.clone(), device: None, config, uuid, sectors })
}

/// Reads the range at the beginning, and the one at the end: where the slots of the first say, else
/// at the end of the device, which may have a part of a block more.
async fn read_ranges(origin: &dyn BlockDevice) -> Result<Vec<Contents>, Error> {
    let capacity = origin.limits().capacity.0;
    let Some(&head) = GuardRange::of_origin(capacity).first() else { return Ok(Vec::new()) };
    debug_assert!(head.bytes == GUARD_HEAD_BYTES);
    let first = read_slots(origin, head).await?;
    let (front, rear) = first.bytes.split_at(head.slot_bytes());
    let said = match &first.look.newest {
        Some(found) => Some(found.header.origin_sectors),
        None => [front, rear].into_iter().find_map(GuardSlot::probable_origin_sectors),
    };
    let unit = Sector::from_bytes(UNIT as u64).0;
    let mut found = vec![first];
    for sectors in said.into_iter().chain([capacity, capacity / unit * unit]) {
        let ranges = GuardRange::of_origin(sectors);
        let Some(&tail) = ranges.last().filter(|_| sectors <= capacity) else { continue };
        let contents = read_slots(origin, tail).await?;
        if contents.is_guarded() {
            found.push(contents);
            break;
        }
    }
    Ok(found)
}

async fn read_slots(origin: &dyn BlockDevice, range: GuardRange) -> Result<Contents, Error> {
    let bytes = read_origin(origin, range).await?;
    let look = RangeLook::of(range, &bytes);
    look.check_known(origin.name())?;
    Ok(Contents { range, bytes, look })
}
