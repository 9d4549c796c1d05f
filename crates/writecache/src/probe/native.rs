// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probe of a cache in the native format: as recovery reads it and, if recovery refuses it, unit by
//! unit.
use std::collections::BTreeSet;

use block::{Error, ErrorKind, Sector};
use format::{
    Damage, Geometry, Kind, SUPERBLOCK_COPIES, Superblock, UNIT, decode_record, is_blank,
};

use super::{Contents, Depth, Occupancy, Place, ProbeReport};
use crate::events::IgnoredJournal;
use crate::map::{Slots, State};
use crate::recovery::area::ReadAhead;
use crate::recovery::area::map_memory;
use crate::recovery::former::Remains;
use crate::recovery::journal::{FoundJournal, JournalUse};
use crate::recovery::superblock::{check_counters, is_of_new_format};
use crate::recovery::{LoadedMap, load};

/// A cache of the native format.
#[derive(Clone, Debug)]
pub struct NativeCache {
    /// The superblock that was elected.
    pub superblock: Superblock,
    /// The four copies: their generation, or their damage.
    pub copies: [Result<u64, Damage>; 4],
    /// How many copies are equal to the elected one.
    pub agreeing: usize,
    /// The newest record of the log, and the newest epoch of any; `None` if unknown.
    pub log_end: Option<(u64, u64)>,
    /// The blocks according to checkpoint and log; `None` if these are too damaged.
    pub occupancy: Option<Occupancy>,
}

pub(super) async fn probe(
    place: &Place,
    report: &mut ProbeReport,
    head: &[u8],
    depth: Depth,
) -> Result<(), Error> {
    let unit = |copy: u8| {
        let at = usize::try_from(Geometry::superblock_offset(copy)).expect("below 256 KiB");
        &head[at..at + UNIT]
    };
    let copies = [0, 1, 2, 3].map(|copy| Superblock::decode(copy, unit(copy)));
    let elected = format::elect(&copies);
    if let Err(Damage::Later(later)) = elected {
        report.contents = Contents::Later(later);
        return Ok(());
    }
    let mut remains = Remains::default();
    [0, 1, 2, 3].into_iter().for_each(|copy| remains.look(unit(copy)));
    if let (Err(_), Some(former)) = (&elected, remains.former()) {
        report.contents = former.into();
        return Ok(());
    }
    let superblock = match elected {
        Ok(superblock) => superblock,
        Err(_) if [0, 1, 2, 3].iter().all(|&copy| is_blank(unit(copy))) => return Ok(()),
        Err(_)
            if is_blank(unit(2))
                && is_blank(unit(3))
                && copies[..2].iter().flatten().any(is_of_new_format) =>
        {
            report.contents = Contents::Blank;
            report.notes.push("a format was cut short: the next opening begins it anew".into());
            return Ok(());
        }
        Err(_) if copies.iter().all(|copy| *copy == Err(Damage::Magic)) => return Ok(()),
        Err(_) => {
            report.contents = Contents::Ruined;
            for (copy, state) in (0..SUPERBLOCK_COPIES).zip(&copies) {
                let what = match state {
                    Ok(superblock) => format!("generation {}", superblock.generation),
                    Err(damage) => damage.to_string(),
                };
                let offset = Geometry::superblock_offset(copy);
                report.add_finding(offset, format!("superblock copy {copy}: {what}; no two agree"));
            }
            return Ok(());
        }
    };
    if let Some(later) = superblock.unwritable() {
        report.notes.push(format!("this version may read it, and not write to it: {later}"));
    }
    for (copy, state) in (0..SUPERBLOCK_COPIES).zip(&copies) {
        let offset = Geometry::superblock_offset(copy);
        match state {
            Err(damage) => report.add_finding(
                offset,
                format!("superblock copy {copy}: {damage}; the next opening mends it"),
            ),
            Ok(other) if *other != superblock => report.notes.push(format!(
                "superblock copy {copy} has generation {}: an update was cut short, the next \
                 opening ends it",
                other.generation
            )),
            Ok(_) => {}
        }
    }
    let mut cache = NativeCache {
        agreeing: copies.iter().filter(|copy| copy.as_ref() == Ok(&superblock)).count(),
        copies: copies.map(|copy| copy.map(|superblock| superblock.generation)),
        superblock,
        log_end: None,
        occupancy: None,
    };
    let needed = cache.superblock.geometry().end_bytes();
    if needed > place.area_bytes {
        // Nothing beyond the end of the area is read (WC-SV1).
        report.add_finding(44, format!("the area has {} bytes, needs {needed}", place.area_bytes));
    } else {
        contents(place, report, &mut cache, depth).await?;
    }
    report.contents = Contents::Native(Box::new(cache));
    Ok(())
}

async fn contents(
    place: &Place,
    report: &mut ProbeReport,
    cache: &mut NativeCache,
    depth: Depth,
) -> Result<(), Error> {
    let superblock = cache.superblock.clone();
    let mut config = place.config.clone();
    config.block_size = superblock.block_size;
    let block_sectors = u64::from(superblock.block_size / 512);
    let blocks = superblock.origin_sectors / block_sectors;
    if let Err(e) = check_counters(&config, &superblock) {
        report.add_finding(Geometry::superblock_offset(0), e.chain());
        return Ok(());
    }
    let memory = map_memory(&config, superblock.slots.into())?;
    let loaded =
        load(&config, &*place.device, &superblock, (blocks, JournalUse::Look), memory).await;
    let LoadedMap { slots, end, memory: _memory, journal, applied } = match loaded {
        Ok(loaded) => loaded,
        Err(e) if e.kind() == ErrorKind::NoMemory => return Err(e),
        Err(e) => {
            let before = report.damage.len();
            scan_checkpoint(place, report, &superblock).await;
            scan_log(place, report, &superblock).await;
            if report.damage.len() == before {
                let offset = superblock.geometry().checkpoint_offset(superblock.checkpoint.area);
                report.add_finding(offset, e.chain());
            }
            return Ok(());
        }
    };
    let state = [u64::from(report.fingerprint), end.last.0, u64::from(end.last.1), end.incarnation];
    let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
    report.fingerprint = format::checksum(&bytes);
    if end.cut_off {
        report.notes.push(format!(
            "records after {} are of a commit that never ended: the next opening drops them",
            end.last.0
        ));
    }
    note_journal(report, &journal, applied);
    let counts = slots.counts();
    for (slot, block, ..) in slots.live().filter(|(_, _, state, _)| *state == State::Bad) {
        let offset = superblock.geometry().slot_offset(slot);
        let sector = block * block_sectors;
        report.add_finding(offset, format!("sector {sector}: its data can't be read any more"));
    }
    if depth == Depth::Data {
        check_data(place, report, &superblock, &slots, &journal).await;
    }
    cache.log_end = Some((end.last.0, end.incarnation));
    let unsaved = slots.unsaved_runs(0..u64::MAX);
    let sectors = |blocks: u64| Sector(blocks * block_sectors);
    cache.occupancy = Some(Occupancy {
        block_size: superblock.block_size,
        total: u64::from(counts.slots),
        free: u64::from(counts.free),
        dirty: unsaved.iter().map(|(start, end)| end - start).sum(),
        clean: u64::from(counts.clean),
        bad: u64::from(counts.bad),
        dirty_ranges: unsaved.iter().map(|&(s, e)| (sectors(s), sectors(e - s))).collect(),
    });
    Ok(())
}

/// Notes what a journal in memory has, and what of it does not count.
fn note_journal(
    report: &mut ProbeReport,
    journal: &FoundJournal,
    applied: Result<u64, IgnoredJournal>,
) {
    let FoundJournal { place, .. } = journal;
    let unused = match (applied, &journal.unreadable) {
        (_, Some(why)) => format!("a journal in memory can't be read: {why}"),
        (Ok(0), None) => return,
        (Ok(changes), None) => {
            return report
                .notes
                .push(format!("{changes} changes of the journal in memory, {place}, are counted"));
        }
        (Err(why), None) => {
            let changes = journal.len();
            format!("the journal in memory, {place}, with {changes} changes, does not count: {why}")
        }
    };
    report.notes.push(unused.clone());
    // Power loss may undo what was not flushed: that is no doubt.
    if applied != Err(IgnoredJournal::OtherBoot) {
        report.unused_journals.push(unused);
    }
}

/// Checks every unit of the checkpoint by itself.
async fn scan_checkpoint(place: &Place, report: &mut ProbeReport, superblock: &Superblock) {
    let named = superblock.checkpoint;
    let start = superblock.geometry().checkpoint_offset(named.area);
    let mut reads = ReadAhead::new(&place.config, &*place.device, "read checkpoint");
    reads.bytes(start, u64::from(named.units) * UNIT as u64);
    let mut seq = 0;
    loop {
        let buf = match reads.next().await {
            Ok(Some(buf)) => buf,
            Ok(None) => return,
            Err(e) => return report.add_finding(start + seq * UNIT as u64, e.chain()),
        };
        for at in (0..buf.len()).step_by(UNIT) {
            let offset = start + seq * UNIT as u64;
            buf.read(|bytes| match decode_record(&bytes[at..at + UNIT], &superblock.uuid) {
                Ok(record) => {
                    let h = &record.header;
                    if h.kind != Kind::Checkpoint || h.incarnation != named.id || h.seq != seq {
                        let what = format!("checkpoint unit {seq}: it is of another checkpoint");
                        report.add_finding(offset, what);
                    }
                }
                Err(damage) => {
                    report.add_finding(offset, format!("checkpoint unit {seq}: {damage}"));
                }
            });
            seq += 1;
        }
    }
}

/// Checks every unit of the log by itself: reports units that a later record calls durable and that
/// are not records.
async fn scan_log(place: &Place, report: &mut ProbeReport, superblock: &Superblock) {
    let (geometry, start) = (superblock.geometry(), superblock.checkpoint.log_start_seq);
    let log_units = u64::from(geometry.log_units);
    let mut reads = ReadAhead::new(&place.config, &*place.device, "read log");
    let from_start = (start % log_units) * UNIT as u64;
    reads.bytes(geometry.log_offset(start), log_units * UNIT as u64 - from_start);
    reads.bytes(geometry.log_start(), from_start);
    // At most one for each unit of the log.
    let mut broken: Vec<(u64, String)> = Vec::new();
    let (mut seq, mut durable) = (start, 0);
    loop {
        let buf = match reads.next().await {
            Ok(Some(buf)) => buf,
            Ok(None) => break,
            Err(e) => {
                report.add_finding(geometry.log_offset(seq), e.chain());
                break;
            }
        };
        for at in (0..buf.len()).step_by(UNIT) {
            buf.read(|bytes| match decode_record(&bytes[at..at + UNIT], &superblock.uuid) {
                Ok(record) if record.header.kind == Kind::Log && record.header.seq == seq => {
                    durable = durable.max(record.header.flushed_seq);
                }
                Ok(record) => broken.push((seq, format!("it is record {}", record.header.seq))),
                Err(damage) => broken.push((seq, damage.to_string())),
            });
            seq = seq.saturating_add(1);
        }
    }
    for (seq, why) in broken.into_iter().filter(|(seq, _)| *seq <= durable) {
        let what = format!("log record {seq} was durable, and is lost: {why}");
        report.add_finding(geometry.log_offset(seq), what);
    }
}

/// Blocks in one read.
const DATA_BLOCKS_PER_READ: usize = 64;

/// Checks the data of every cached block against its checksum. Those that the write buffer has were
/// checked when they were found there, and are not in their slots yet.
async fn check_data(
    place: &Place,
    report: &mut ProbeReport,
    superblock: &Superblock,
    slots: &Slots,
    journal: &FoundJournal,
) {
    let in_buffer: BTreeSet<u32> = journal.unwritten.iter().map(|(slot, _)| *slot).collect();
    let geometry = superblock.geometry();
    let size = u64::from(superblock.block_size);
    let is_checked = |slot: &u32, state: &State| *state != State::Bad && !in_buffer.contains(slot);
    let live: Vec<_> = slots.live().filter(|(slot, _, state, _)| is_checked(slot, state)).collect();
    for part in live.chunks(DATA_BLOCKS_PER_READ) {
        let reads: Vec<_> =
            part.iter().map(|(slot, ..)| place.read(geometry.slot_offset(*slot), size)).collect();
        for (read, (slot, block, state, crc)) in reads.into_iter().zip(part) {
            let what = match read.await {
                Ok(data) if data.read(format::checksum) == *crc => continue,
                Ok(_) => "its data do not match their checksum".to_owned(),
                Err(status) => format!("its data can't be read: {status}"),
            };
            let then = match state {
                State::Dirty => "it is lost until it is written again",
                State::Old => "its epoch goes to the origin without it",
                State::Clean => "the origin has it",
                State::Bad | State::Free | State::Writing | State::Zero | State::Limbo => {
                    "it is not used"
                }
            };
            let sector = block * (size / 512);
            report.add_finding(
                geometry.slot_offset(*slot),
                format!("sector {sector}: {what}: {then}"),
            );
        }
    }
}
