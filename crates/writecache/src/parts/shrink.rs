// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache in parts is made smaller: emptied, and laid out anew in the smaller area.
//!
//! ```text
//!   all is on the origin, no part works any more
//!     ─▶ superblock of part 0: the new areas, nothing is cached, the others are to be written
//!     ─▶ the last, ..., part 1: log, superblock ─▶ log of part 0 ─▶ its superblock: all are there
//! ```
//!
//! The beginning of each part but the first moves, to where others had their blocks or metadata.
//! So nothing that is cached can stay, and the first superblock is the one switch: before it the
//! larger cache counts, after it an empty one whose parts the next opening writes, if a crash came
//! first. Part 0 keeps its place, its UUID and the records of the guard.
//!
//! Invariants
//! - WC-PS1 No byte of the larger cache is overwritten before the superblock of part 0 says
//!   durably that nothing of it counts.
//! - WC-PS2 That superblock counts without its mark only when all parts are durable.
//! - WC-PS3 The logs begin with a record whose incarnation is higher than any before it, and hold
//!   no other record: no journal in memory of the time before counts (WC-JR2).
use std::rc::Rc;

use block::{BlockDevice, Buf, Error, Flags, Sector};
use format::{CheckpointRef, Kind, Part, PartAreas, RecordHeader, Superblock, UNIT};

use super::division::{Division, geometry_of_each};
use crate::config::Config;
use crate::planted::Fault;
use crate::recovery::area::{flush_area, write_area};
use crate::recovery::superblock::{check_superblock, find_superblock, missing, write_copies};

/// Units of the log that are blanked at once: 1 MiB.
const UNITS_AT_ONCE: u64 = 256;

/// A smaller layout of a cache in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallerLayout {
    /// What each part gets.
    pub(super) each: Sector,
    /// No record, and no checkpoint, of any part has a number as high as this one.
    pub(super) counter: u64,
}

/// Lays the cache out anew. Nothing of it is needed, and no part works any more.
///
/// # Errors
/// Those of the cache device; the next opening goes on, or finds the larger cache.
pub(crate) async fn lay_out(
    config: &Config,
    device: &Rc<dyn BlockDevice>,
    layout: SmallerLayout,
) -> Result<(), Error> {
    let area = config.area_bytes(&**device);
    let found = find_superblock(config, &**device, area).await?;
    let (old, is_agreed) = found.ok_or_else(|| missing(config))?;
    let first = old.part.expect("it is divided");
    let config_of_first = Division::of(&old, first).config_of(config, 0);
    if !is_agreed {
        write_copies(&config_of_first, &**device, &old).await?;
    }
    let geometry = geometry_of_each(config, layout.each, first.of)?;
    let is_forgotten = config.planted.is(Fault::IncarnationForgotten);
    let id = if is_forgotten { 0 } else { layout.counter };
    let superblock = Superblock {
        generation: old.generation + 1,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        checkpoint: CheckpointRef { id, log_start_seq: 1, ..CheckpointRef::default() },
        part: Some(Part { area_sectors: layout.each.0, ..first }),
        moved: None,
        areas: PartAreas { added: Vec::new(), is_unmade: true },
        ..old
    };
    if config.planted.is(Fault::LaidOutEarly) {
        write_others(config, device, &superblock).await?;
    }
    write_copies(&config_of_first, &**device, &superblock).await?; // WC-PS1
    end_layout(config, device, superblock).await.map(drop)
}

/// Writes the parts of a cache that was laid out anew. Returns the superblock of part 0.
///
/// # Errors
/// Those of the cache device; `EINVAL` if the table does not fit.
pub(super) async fn end_layout(
    config: &Config,
    device: &Rc<dyn BlockDevice>,
    unmade: Superblock,
) -> Result<Superblock, Error> {
    let part = unmade.part.expect("it is divided");
    let division = Division::of(&unmade, part);
    // The last part must be there, too: its device ends with the cache device.
    for nth in 0..part.of {
        let superblock = of_part(&division, config, &unmade, nth);
        let device = division.device_of(config, nth, device);
        let config = division.config_of(config, nth);
        check_superblock(&config, &superblock, config.area_bytes(&*device))?;
    }
    let first = division.config_of(config, 0);
    write_copies(&first, &**device, &unmade).await?;
    let (generation, areas) = (unmade.generation + 1, PartAreas::default());
    let made = Superblock { generation, areas, ..unmade };
    if config.planted.is(Fault::MadeEarly) {
        write_copies(&first, &**device, &made).await?;
    }
    write_others(config, device, &made).await?;
    begin_log(&first, &**device, &made).await?;
    write_copies(&first, &**device, &made).await?; // WC-PS2
    Ok(made)
}

/// The superblock of a part, from that of part 0.
fn of_part(division: &Division, config: &Config, first: &Superblock, nth: u8) -> Superblock {
    let of = division.config_of(config, nth).part.expect("it is that of a part");
    Superblock {
        uuid: of.uuid,
        part: Some(of.part),
        guards_origin: first.guards_origin && nth == 0,
        areas: PartAreas::default(),
        ..first.clone()
    }
}

async fn write_others(
    config: &Config,
    device: &Rc<dyn BlockDevice>,
    first: &Superblock,
) -> Result<(), Error> {
    let part = first.part.expect("it is divided");
    let division = Division::of(first, part);
    for nth in (1..part.of).rev() {
        let superblock = of_part(&division, config, first, nth);
        let config = division.config_of(config, nth);
        begin_log(&config, &**device, &superblock).await?;
        write_copies(&config, &**device, &superblock).await?;
    }
    Ok(())
}

/// Blanks the log of a part, and writes its first record, durably (WC-PS3).
async fn begin_log(
    config: &Config,
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), Error> {
    let geometry = superblock.geometry();
    let units = u64::from(geometry.log_units);
    let mut at = 0;
    while at < units {
        let count = UNITS_AT_ONCE.min(units - at);
        let blank = Buf::zeroed(usize::try_from(count).expect("at most 256") * UNIT);
        let offset = geometry.log_start() + at * UNIT as u64;
        write_area(config, device, offset, Flags::META, blank, "write log").await?;
        at += count;
    }
    flush_area(config, device).await?;
    let seq = superblock.checkpoint.log_start_seq;
    let header = RecordHeader {
        kind: Kind::Log,
        uuid: superblock.uuid,
        seq,
        incarnation: superblock.checkpoint.id,
        link: 0,
        flushed_seq: 0,
        count: 0,
    };
    let unit = Buf::alloc(UNIT);
    unit.write(|out| format::encode_record(&header, &[], out));
    let offset = geometry.log_offset(seq);
    write_area(config, device, offset, Flags::META, unit, "write log").await?;
    flush_area(config, device).await
}
