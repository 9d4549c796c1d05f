// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The superblock: finds and elects it, checks it against the table, and writes it.
//!
//! ```text
//!   four copies ─▶ two agree: that one          ┐
//!               ─▶ blank, or a format cut short ├─▶ recovery, or a format
//!               ─▶ else: of an earlier version, ┘
//!                  damage, or no cache
//! ```
use std::ops::RangeInclusive;

use block::{BlockDevice, Buf, Error, Flags, Sector};
use format::{CheckpointRef, Damage, Geometry, SUPERBLOCK_COPIES, Superblock, UNIT};

use super::area::{damaged, flush_area, no_space, read_area, write_area};
use super::contents::contents_of;
use super::former::{Former, Remains};
use super::owner::NO_ORIGIN;
use crate::config::Config;
use crate::planted::Fault;

/// The name of superblock writes in errors.
const WRITE: &str = "write superblock";

/// The elected superblock and whether all copies agree with it; `None` on a device that was never
/// completely formatted.
pub(crate) async fn find_superblock(
    config: &Config,
    device: &dyn BlockDevice,
    area: u64,
) -> Result<Option<(Superblock, bool)>, Error> {
    let end = Geometry::superblock_offset(SUPERBLOCK_COPIES - 1) + UNIT as u64;
    if area < end {
        Geometry::compute(area, config.block_size).map_err(|e| no_space(config, &e))?;
    }
    let Copies { copies, blank, begun, former, contents } = read_copies(config, device).await?;
    let elected = format::elect(&copies);
    let other_version = match (&elected, former) {
        (Err(Damage::Later(later)), _) => Some(Former::Later(later.clone())),
        (Err(_), former) => former,
        (Ok(_), _) => None,
    };
    if let Some(former) = other_version {
        let is_taken = config.planted.is(Fault::OtherVersionTaken);
        return if is_taken { Ok(None) } else { Err(former.refusal(config)) };
    }
    match elected {
        Ok(superblock) => {
            let agreed = copies.iter().all(|c| c.as_ref() == Ok(&superblock));
            Ok(Some((superblock, agreed)))
        }
        // A format writes copies 0 and 1, flushes, then writes 2 and 3. If the last two are blank
        // and the first two are not both good, the format was interrupted in its first step. A
        // later generation belongs to a cache that was used, and then damaged.
        Err(_) if blank == [true; 4] => Ok(None),
        Err(_) if blank[2] && blank[3] && copies[..2].iter().flatten().any(is_of_new_format) => {
            Ok(None)
        }
        // The first step was torn, on a device where even sectors tear.
        Err(_) if blank[2] && blank[3] && begun && copies[..2].iter().all(Result::is_err) => {
            Ok(None)
        }
        Err(Damage::NoQuorum(_)) if copies.iter().all(|c| matches!(c, Err(Damage::Magic))) => {
            let cache = &config.cache;
            let what = match contents {
                Some(what) => format!(
                    "it holds {what}: are origin and cache swapped? The origin comes first. \
                     If {what} is to be lost"
                ),
                None => {
                    "it is neither a cache nor blank. If what it holds is to be lost".to_owned()
                }
            };
            Err(Error::invalid(format!(
                "cache device {cache}: Invalid magic in the superblock: {what}, `millpond wipe \
                 {cache}` makes it blank"
            )))
        }
        Err(damage) => Err(damaged(config, &damage.to_string())),
    }
}

/// The contents of the places of the four superblock copies.
struct Copies {
    copies: [Result<Superblock, Damage>; 4],
    blank: [bool; 4],
    /// The first place may have the beginning of a superblock.
    begun: bool,
    /// What else the places have.
    former: Option<Former>,
    /// What else the first place may be the beginning of.
    contents: Option<&'static str>,
}

async fn read_copies(config: &Config, device: &dyn BlockDevice) -> Result<Copies, Error> {
    let mut copies: Vec<Result<Superblock, Damage>> = Vec::with_capacity(4);
    let mut blank = [false; 4];
    let (mut begun, mut remains, mut contents) = (false, Remains::default(), None);
    for copy in 0..SUPERBLOCK_COPIES {
        let offset = Geometry::superblock_offset(copy);
        let unit = read_area(config, device, offset, UNIT, "read superblock").await?;
        unit.read(|unit| {
            blank[usize::from(copy)] = format::is_blank(unit);
            contents = if copy == 0 { contents_of(unit) } else { contents };
            begun |= copy == 0 && format::is_begun(unit, FORMAT_GENERATION);
            remains.look(unit);
            copies.push(Superblock::decode(copy, unit));
        });
    }
    let copies = copies.try_into().expect("four were read");
    Ok(Copies { copies, blank, begun, former: remains.former(), contents })
}

/// The generation that a format writes.
const FORMAT_GENERATION: u64 = 1;

pub(crate) fn is_of_new_format(superblock: &Superblock) -> bool {
    superblock.generation == FORMAT_GENERATION
}

pub(crate) async fn format_device(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    area: u64,
    sectors: Sector,
) -> Result<Superblock, Error> {
    let geometry = Geometry::compute(area, config.block_size).map_err(|e| no_space(config, &e))?;
    let superblock = Superblock {
        uuid: new_uuid(),
        generation: FORMAT_GENERATION,
        block_size: config.block_size,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        origin_sectors: sectors.0,
        origin_id: origin.identity().map_or(NO_ORIGIN, |known| format::origin_id(&known)),
        checkpoint: CheckpointRef { log_start_seq: 1, ..CheckpointRef::default() },
        guards_origin: false,
        moved: None,
        atomic_bytes: 0,
        later: None,
    };
    begin_format(config, device).await?;
    write_copies(config, device, &superblock).await?;
    Ok(superblock)
}

fn new_uuid() -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&reactor::random().to_le_bytes());
    uuid[8..].copy_from_slice(&reactor::random().to_le_bytes());
    uuid
}

/// Writes the magic alone. It is one word, which no power cut tears. From then on a torn first copy
/// begins with the magic, and can be recognized.
async fn begin_format(config: &Config, device: &dyn BlockDevice) -> Result<(), Error> {
    let buf = Buf::zeroed(UNIT);
    buf.write(format::begin_superblock);
    let (at, flags) = (Geometry::superblock_offset(0), Flags::META | Flags::FUA);
    write_area(config, device, at, flags, buf, WRITE).await
}

/// Writes all four copies, one pair at a time, so that one pair is always good. All copies must
/// agree before the next generation is written: otherwise it could tear the only good pair, and an
/// older pair would be elected, whose part of the log was overwritten long ago.
pub(crate) async fn write_copies(
    config: &Config,
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), Error> {
    for pair in [[0, 1], [2, 3]] {
        for copy in pair {
            let buf = Buf::alloc(UNIT);
            buf.write(|out| superblock.encode(copy, out));
            let at = Geometry::superblock_offset(copy);
            write_area(config, device, at, Flags::META, buf, WRITE).await?;
        }
        flush_area(config, device).await?;
    }
    Ok(())
}

/// Largest counter on the media: half of what its field can hold. Chosen: no cache reaches it by
/// counting, and a cache that begins there never reaches the end of the field.
pub(crate) const COUNTER_MAX: u64 = u64::MAX / 2;

/// Refuses a number on the media that no cache can reach by counting.
pub(crate) fn check_counter(
    config: &Config,
    name: &str,
    number: u64,
    allowed: RangeInclusive<u64>,
) -> Result<(), Error> {
    if allowed.contains(&number) {
        return Ok(());
    }
    let (least, most) = allowed.into_inner();
    Err(damaged(config, &format!("{name} is {number}, {least} to {most} are allowed")))
}

/// Refuses a superblock with counters that are too large.
pub(crate) fn check_counters(config: &Config, superblock: &Superblock) -> Result<(), Error> {
    let CheckpointRef { id, log_start_seq, .. } = superblock.checkpoint;
    check_counter(config, "generation", superblock.generation, 0..=COUNTER_MAX)?;
    check_counter(config, "checkpoint id", id, 0..=COUNTER_MAX)?;
    check_counter(config, "log_start_seq", log_start_seq, 1..=COUNTER_MAX)
}

pub(crate) fn check_superblock(
    config: &Config,
    superblock: &Superblock,
    area: u64,
) -> Result<(), Error> {
    if let Some(later) = superblock.unwritable() {
        return Err(Former::Later(later).refusal(config));
    }
    if superblock.block_size != config.block_size {
        return Err(Error::invalid(format!(
            "Block size does not match superblock: cache device {} has {}, the table \
             says {}",
            config.cache, superblock.block_size, config.block_size
        )));
    }
    let end = superblock.geometry().end_bytes();
    if end > area {
        return Err(Error::invalid(format!(
            "Memory area is too small: cache device {} has {area} bytes, its \
             superblock says {end}",
            config.cache
        )));
    }
    check_counters(config, superblock)
}
