// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open: finds the parts of an existing cache, or makes those of a new one.
//!
//! ```text
//!   part 0: none ─▶ is a later part in use? ─▶ format the last, ..., part 1, part 0 at the end
//!           there ─▶ every other one is there, of this cache, and its origin's
//!           there, and the others are to be written ─▶ `shrink` goes on, then as above
//! ```
//!
//! Invariants
//! - WC-PO1 A cache exists if its part 0 does: part 0 is written last, when all others are durable.
//!   If a power cut interrupts the creation there is no cache, and the next creation starts again.
//! - WC-PO2 No part is opened before all have been checked, and a refused cache is not changed, but
//!   for one that is empty and that a shrink was laying out anew.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::{Kind, Part, Superblock, UNIT, decode_record, elect};

use super::division::{Division, geometry_of_each};
use super::head::seek_time;
use super::layout::area_of_each;
use super::shrink::end_layout;
use crate::config::{Config, MediaFormat};
use crate::guard::{FirstPart, refuse_guarded};
use crate::planted::Fault;
use crate::recovery::area::read_area;
use crate::recovery::area::{map_memory, not_initialized};
use crate::recovery::dm::detect;
use crate::recovery::journal::JournalUse;
use crate::recovery::owner;
use crate::recovery::superblock::{
    check_superblock, find_superblock, format_device, is_of_new_format, missing, new_uuid,
    read_copies,
};
use crate::recovery::{LoadedMap, load};

/// Checks all parts of the cache that begins with `found`. Without `found` it makes a new cache, if
/// there is none. Returns also what part 0 has.
pub(crate) async fn divide(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &Rc<dyn BlockDevice>,
    sectors: Sector,
    found: Option<Superblock>,
) -> Result<(Division, FirstPart), Error> {
    let area = config.area_bytes(&**device);
    if found.is_none() && detect(config, &**device).await? == MediaFormat::Dm {
        return Err(Error::invalid(format!(
            "Invalid optional argument: parts: cache device {} holds a cache in the kernel's \
             format, which knows no parts; nothing was changed",
            config.cache
        )));
    }
    let found = match found {
        None => find_superblock(config, &**device, area).await?.map(|(superblock, _)| superblock),
        found => found,
    };
    let Some(mut superblock) = found else { return create(config, origin, device, sectors).await };
    let has = superblock.part.map_or(1, |part| part.of);
    if let Some(asked) = config.parts.filter(|&asked| asked != has) {
        return Err(Error::invalid(format!(
            "Invalid optional argument: parts {asked}: the cache on {} has {has}, for as long as \
             it lives; nothing was changed",
            config.cache
        )));
    }
    let part = superblock.part.expect("more than one were asked for, or found");
    config.check_divisible()?;
    if part.nth != 0 {
        let begins = u64::from(part.nth) * part.area_sectors;
        return Err(Error::invalid(format!(
            "cache device {}: part {} of {} begins at start_sector {}, the cache {begins} sectors \
             before it; nothing was changed",
            config.cache, part.nth, part.of, config.start_sector
        )));
    }
    if superblock.areas.is_unmade {
        superblock = end_layout(config, device, superblock).await?;
    }
    let mut division = Division::of(&superblock, part);
    let mut superblocks = Vec::new();
    let mut is_agreed = false;
    for nth in 0..part.of {
        let device = division.device_of(config, nth, device);
        let config = division.config_of(config, nth);
        let within = |e: Error| e.within(format!("part {nth} of {}", part.of));
        let area = config.area_bytes(&*device);
        let found = find_superblock(&config, &*device, area).await.map_err(within)?;
        let (superblock, agreed) = found.ok_or_else(|| within(missing(&config)))?;
        check_superblock(&config, &superblock, area).map_err(within)?;
        is_agreed = if nth == 0 { agreed } else { is_agreed };
        superblocks.push(superblock);
    }
    // It adopts only an origin that the table adopts.
    let config_of_first = division.config_of(config, 0);
    division.adopts =
        adopts_origin(config, &division, origin, device, sectors, &superblocks).await?;
    let superblock = superblocks.swap_remove(0);
    let first = FirstPart { config: config_of_first, superblock, is_agreed, is_new: false };
    Ok((division, first))
}

/// Whether the parts must adopt the origin. It is decided for all parts together: a part without
/// blocks would adopt any origin.
async fn adopts_origin(
    config: &Config,
    division: &Division,
    origin: &dyn BlockDevice,
    device: &Rc<dyn BlockDevice>,
    sectors: Sector,
    superblocks: &[Superblock],
) -> Result<bool, Error> {
    let id = origin.identity().map(|identity| format::origin_id(&identity));
    let is_own =
        |s: &Superblock| s.origin_id == owner::NO_ORIGIN || id.is_none_or(|id| s.origin_id == id);
    let is_known = superblocks.iter().all(is_own);
    if is_known && superblocks.iter().all(|s| s.origin_sectors == sectors.0) {
        return Ok(false);
    }
    for (nth, superblock) in (0..division.parts()).zip(superblocks) {
        let device = division.device_of(config, nth, device);
        let config = division.config_of(config, nth);
        let blocks = superblock.origin_sectors / config.block_sectors();
        let within = |e: Error| e.within(format!("part {nth} of {}", division.parts()));
        let memory = map_memory(&config, superblock.slots.into()).map_err(within)?;
        let blocks = (blocks, JournalUse::Look);
        let loaded = load(&config, &*device, superblock, blocks, memory).await.map_err(within)?;
        let LoadedMap { slots, .. } = loaded;
        owner::ownership(&config, superblock, origin, sectors, &slots).map_err(within)?;
    }
    Ok(!is_known)
}

/// Makes the parts of a new cache, durably, part 0 last (WC-PO1).
async fn create(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<(Division, FirstPart), Error> {
    let of = config.parts.expect("no parts were found, so they were asked for");
    if let Some(time) = seek_time(origin).await {
        return Err(Error::invalid(format!(
            "Invalid optional argument: parts {of}: origin {} is a rotating disk, and a random \
             read of it takes {:.1} ms: each part writes back in ascending order on its own, and \
             the head would go back and forth between them; leave `parts` out, or, if the disk \
             does not rotate, set its queue/rotational to 0 in /sys/block first",
            config.origin,
            time.0 as f64 / 1e6
        )));
    }
    if !config.chunk.is_aligned(Sector(config.block_sectors())) {
        return Err(Error::invalid("a chunk has to be of whole blocks"));
    }
    let area = Sector::from_bytes(config.area_bytes(&**device));
    let each = area_of_each(area, of);
    let geometry = geometry_of_each(config, each, of)?;
    // Checked before anything is written. Each part reserves its own memory when it is opened.
    let memory = map_memory(config, u64::from(geometry.slots) * u64::from(of))?;
    let first = Part {
        nth: 0,
        of,
        chunk_sectors: u32::try_from(config.chunk.0).expect("a constant, or a test's"),
        area_sectors: each.0,
    };
    let mut uuid = new_uuid();
    uuid[15] = 0;
    let division = Division { first, added: Vec::new(), uuid, adopts: false };
    for nth in 1..of {
        let device = division.device_of(config, nth, device);
        refuse_used(&division.config_of(config, nth), &*device).await?;
    }
    refuse_guarded(config, origin).await?;
    let mut order: Vec<u8> = (0..of).rev().collect();
    if config.planted.is(Fault::FirstPartFirst) {
        order.reverse();
    }
    let mut first = None;
    for nth in order {
        let config = division.config_of(config, nth);
        let formatted = format_device(&config, origin, &**device, each.bytes(), sectors).await;
        let superblock = formatted.map_err(not_initialized)?;
        if nth == 0 {
            first = Some(FirstPart { config, superblock, is_agreed: true, is_new: true });
        }
    }
    drop(memory);
    Ok((division, first.expect("part 0 is one of them")))
}

/// Refuses to make a new cache over a used part of a cache whose part 0 is missing.
async fn refuse_used(config: &Config, device: &dyn BlockDevice) -> Result<(), Error> {
    let Ok(superblock) = elect(&read_copies(config, device).await?.copies) else { return Ok(()) };
    let Some(part) = superblock.part else { return Ok(()) };
    let end = superblock.geometry().end_bytes();
    let is_used = !is_of_new_format(&superblock) || {
        let offset = superblock.geometry().log_offset(1);
        end <= config.area_bytes(device) && {
            let unit = read_area(config, device, offset, UNIT, "read log").await?;
            let record = |bytes: &[u8]| {
                let record = decode_record(bytes, &superblock.uuid);
                record.is_ok_and(|r| r.header.kind == Kind::Log && r.header.seq == 1)
            };
            unit.read(record)
        }
    };
    if !is_used {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "cache device {}: from sector {} on lies part {} of {} of a cache whose part 0 has gone; \
         to give it up, zero 256 KiB from there on; nothing was changed",
        config.cache, config.start_sector, part.nth, part.of
    )))
}
