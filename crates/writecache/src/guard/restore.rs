// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guarded origin without its cache: what it is, and how it is given back.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::{GUARD_HEAD_BYTES, GUARD_TAIL_BYTES, GuardRange, GuardSlot};

use super::find::{NewestSlot, read_origin};
use super::{Guard, GuardedOrigin, Place};
use crate::config::{Config, Mode};

/// The guard of an origin, as the origin alone shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginGuard {
    /// The identity of the cache.
    pub uuid: [u8; 16],
    /// The cache device, as its table named it.
    pub cache: String,
    /// Sectors of the origin that the cache maps.
    pub origin_sectors: u64,
    /// First sectors of the ranges that are guarded.
    pub ranges: Vec<u64>,
    /// First sectors of the ranges of which both slots are damaged: what they held is lost without
    /// the cache.
    pub damaged: Vec<u64>,
}

/// What a range has.
enum Contents {
    Nothing,
    Damaged([u8; 16]),
    Slot(Box<NewestSlot>),
}

/// The guard of `origin`, if it has one. Nothing is written.
///
/// # Errors
/// `EIO` if the origin can't be read.
pub async fn find_guard(origin: &dyn BlockDevice) -> Result<Option<OriginGuard>, Error> {
    let found = read_ranges(origin).await?;
    let mut guard: Option<OriginGuard> = None;
    for (range, contents) in &found {
        let (uuid, slot) = match contents {
            Contents::Nothing => continue,
            Contents::Damaged(uuid) => (*uuid, None),
            Contents::Slot(found) => (found.header.uuid, Some(&found.header)),
        };
        let guard = guard.get_or_insert_with(|| OriginGuard {
            uuid,
            cache: String::new(),
            origin_sectors: 0,
            ranges: Vec::new(),
            damaged: Vec::new(),
        });
        match slot {
            Some(header) => {
                guard.cache.clone_from(&header.cache);
                guard.origin_sectors = header.origin_sectors;
                guard.ranges.push(range.start);
            }
            None => guard.damaged.push(range.start),
        }
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
    let name = origin.name().to_owned();
    let guard = find_guard(&*origin).await?;
    let guard = guard.ok_or_else(|| {
        Error::invalid(format!("{name}: no write cache guards it: nothing was changed"))
    })?;
    if let Some(sector) = guard.damaged.first() {
        return Err(Error::invalid(format!(
            "{name}: the guard of its sectors from {sector} on is damaged: what they held is in \
             neither of its two slots; nothing was changed"
        )));
    }
    for (range, contents) in read_ranges(&*origin).await? {
        let Contents::Slot(found) = contents else { continue };
        let NewestSlot { header, image, slots } = *found;
        let guard = guard_without_cache(&header, &origin);
        guard.keep_slots(range, image, slots).await?;
        guard.detach().await?;
    }
    Ok(guard)
}

/// The origin as clients see it, for reads: its guard stays, and nothing is written.
///
/// # Errors
/// `EIO` if the origin can't be read, or its guard is damaged.
pub(crate) async fn view_origin(origin: Rc<dyn BlockDevice>) -> Result<Rc<dyn BlockDevice>, Error> {
    let name = origin.name().to_owned();
    let mut view: Option<Rc<Guard>> = None;
    for (range, contents) in read_ranges(&*origin).await? {
        let found = match contents {
            Contents::Nothing => continue,
            Contents::Damaged(_) => {
                let text =
                    format!("{name}: the guard of its sectors from {} on is damaged", range.start);
                return Err(Error::io(text));
            }
            Contents::Slot(found) => found,
        };
        let guard = view.get_or_insert_with(|| guard_without_cache(&found.header, &origin));
        guard.show_image(range, found.image);
    }
    Ok(view.map_or(origin, |guard| Rc::new(GuardedOrigin::new(guard))))
}

/// The guard that a slot is of, without its cache.
fn guard_without_cache(header: &GuardSlot, origin: &Rc<dyn BlockDevice>) -> Rc<Guard> {
    let config = Config::new(Mode::Ssd, origin.name(), header.cache.clone(), 4096);
    let (device, sectors) = (None, Sector(header.origin_sectors));
    Guard::new(Place { origin: origin.clone(), device, config, uuid: header.uuid, sectors })
}

/// Reads the range at the beginning, and the one at the end: where the slots of the first say, else
/// at the end of the device.
async fn read_ranges(origin: &dyn BlockDevice) -> Result<Vec<(GuardRange, Contents)>, Error> {
    let capacity = origin.limits().capacity.0;
    let Some(&head) = GuardRange::of_origin(capacity).first() else { return Ok(Vec::new()) };
    debug_assert!(head.bytes == GUARD_HEAD_BYTES);
    let first = read_slots(origin, head).await?;
    let sectors = match &first {
        Contents::Slot(found) => found.header.origin_sectors.min(capacity),
        Contents::Damaged(_) | Contents::Nothing => capacity,
    };
    let tail = (GUARD_TAIL_BYTES / 512) as u64;
    let start = sectors.saturating_sub(tail).max((GUARD_HEAD_BYTES / 512) as u64);
    let tail = GuardRange { nth: 1, start: start.min(capacity - tail), bytes: GUARD_TAIL_BYTES };
    let second = read_slots(origin, tail).await?;
    Ok(vec![(head, first), (tail, second)])
}

async fn read_slots(origin: &dyn BlockDevice, range: GuardRange) -> Result<Contents, Error> {
    let bytes = read_origin(origin, range).await?;
    Ok(match NewestSlot::find(range, &bytes) {
        Some(found) => Contents::Slot(Box::new(found)),
        None => GuardSlot::owner(&bytes).map_or(Contents::Nothing, Contents::Damaged),
    })
}
