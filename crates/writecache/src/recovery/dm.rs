// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens a cache in the kernel's format: loads committed entries, and erases others.
//!
//! ```text
//!   superblock ─▶ entries, in order ─▶ number below the superblock's: dirty (the newer of two)
//!                                  └─▶ else, unless free: erased, durably, before anything else
//! ```
//!
//! Every committed block counts as dirty, because the format has no other state. It has no
//! checksums: blocks that recovery has found are not checked when they are read; blocks that are
//! written from now on are.
//!
//! It reads only metadata, and writes only to format and to erase. Recovering a second time changes
//! nothing.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Buf, Error, Flags, Sector};
use format::dm::{ENTRY_BYTES, Entry, EntryState, Geometry, HEADER_BYTES, Refusal, Superblock};
use format::{SUPERBLOCK_COPIES, UNIT};

use super::RecoveredCache;
use super::area::{
    ReadAhead, damaged, flush_area, map_memory, no_space, not_initialized, read_area, write_area,
};
use super::former::Former;
use super::journal::OpenJournal;
use crate::config::{Config, MediaFormat};
use crate::map::Rebuild;
use crate::planted::Fault;
use crate::store::dm::{Dm, touched_units, unit_bytes};
use crate::store::media::Media;

/// Why a cache of this format has no journal.
pub(crate) const NO_JOURNAL_BY_FORMAT: &str = "the kernel's format has none";
/// Bytes of one write while formatting, and units of one while erasing: 1 MiB.
const WRITE_BYTES: u64 = 1 << 20;
const UNITS_PER_WRITE: u64 = WRITE_BYTES / UNIT as u64;
/// The names of reads and writes of metadata in errors.
const READ: &str = "read metadata";
const WRITE: &str = "write metadata";
/// The engine's slot numbers are 32 bits wide.
const SLOTS_MAX: u64 = u32::MAX as u64 - 1;

/// Opens a cache whose superblock is the kernel's, or formats a blank device.
pub(crate) async fn open(
    config: Config,
    device: Rc<dyn BlockDevice>,
    sectors: Sector,
) -> Result<RecoveredCache, Error> {
    if config.guard.asked == Some(true) {
        return Err(Error::invalid(format!(
            "Invalid optional argument: guard_origin: cache device {} holds a cache in the \
             kernel's format, which has no room for a guard's records; nothing was changed",
            config.cache
        )));
    }
    let area = config.area_bytes(&*device);
    let smallest = Geometry::of(config.block_size, 1).expect("one block").end_bytes();
    if area < smallest {
        let refusal = Refusal::TooSmall { area_bytes: area, needed_bytes: smallest };
        return Err(no_space(&config, &refusal));
    }
    let first = read_first(&config, &*device, area).await?;
    let mut reserved = None;
    let superblock = match first.read(Superblock::decode) {
        Ok(found) => found,
        Err(refusal) => {
            if let Some(former) = first.read(Former::of) {
                return Err(former.refusal(&config));
            }
            refuse_native(&config, &*device, area).await?;
            let new_superblock = new_superblock(&config, area)?;
            if !first.read(|first| is_blank(first, &new_superblock)) {
                return Err(refused(&config, &refusal));
            }
            // Checked before anything is written: a cache that can't be opened is not made.
            reserved = Some(map_memory(&config, new_superblock.n_blocks)?);
            format_device(&config, &*device, &new_superblock).await.map_err(not_initialized)?;
            new_superblock
        }
    };
    let geometry = superblock
        .fit(config.block_size, area)
        .and_then(|g| if g.n_blocks() > SLOTS_MAX { Err(too_many(&g)) } else { Ok(g) })
        .map_err(|refusal| refused(&config, &refusal))?;
    let slots = u32::try_from(geometry.n_blocks()).expect("at most SLOTS_MAX");
    let dm = Dm { geometry, slots, seq: Cell::new(superblock.seq_count) };
    let blocks = sectors.0 / config.block_sectors();
    let memory = reserved.map_or_else(|| map_memory(&config, slots.into()), Ok)?;
    let (map, stale) = load(&config, &*device, &dm, blocks).await?;
    let mut slots = map.finish(blocks).expect("load refuses what contradicts itself");
    slots.forget_checksums();
    // Nothing was written so far: a refused cache is not changed.
    erase(&config, &*device, &geometry, &stale).await?;
    // The data that were read may be only in a volatile cache of the device: make them durable
    // before the cache relies on them.
    flush_area(&config, &*device).await?;
    let why = NO_JOURNAL_BY_FORMAT.to_owned();
    let journal = OpenJournal { memory: Err(why), applied: 0, lost: None, lost_blocks: 0 };
    let (media, guard) = (Media::Dm(dm), None);
    Ok(RecoveredCache {
        config,
        device,
        blocks,
        media,
        slots,
        memory,
        journal,
        guard,
        attachment: None,
    })
}

/// The first unit of the area, or all of a smaller one.
async fn read_first(config: &Config, device: &dyn BlockDevice, area: u64) -> Result<Buf, Error> {
    let len = usize::try_from(area.min(UNIT as u64)).expect("at most a unit");
    read_area(config, device, 0, len, "Unable to read first block of metadata").await
}

/// The format of the area: that of the existing cache, or that of the table, or the native one.
///
/// # Errors
/// If the existing cache has another format than the table.
pub(crate) async fn detect(
    config: &Config,
    device: &dyn BlockDevice,
) -> Result<MediaFormat, Error> {
    let area = config.area_bytes(device);
    let is_dm = area >= HEADER_BYTES as u64
        && read_first(config, device, area).await?.read(format::dm::has_magic);
    match (is_dm, config.format) {
        (true, Some(MediaFormat::Native)) => Err(Error::invalid(format!(
            "cache device {} holds a cache in the kernel's format, the table says `format native`: \
             `format dm`, or no such option, opens it; nothing was changed",
            config.cache
        ))),
        (true, None) if config.ordered => Err(Error::invalid(format!(
            "cache device {} holds a cache in the kernel's format, which can't hold epochs: it can \
             be opened without `ordered`; nothing was changed",
            config.cache
        ))),
        (true, _) | (false, Some(MediaFormat::Dm)) => Ok(MediaFormat::Dm),
        (false, Some(MediaFormat::Native) | None) => Ok(MediaFormat::Native),
    }
}

fn refused(config: &Config, refusal: &Refusal) -> Error {
    Error::invalid(format!("cache device {}: {refusal}; nothing was changed", config.cache))
}

fn too_many(geometry: &Geometry) -> Refusal {
    Refusal::Overflow { n_blocks: geometry.n_blocks() }
}

/// Whether a first unit is blank, or left by an interrupted format: it has no magic, and each other
/// word is zero or that of the new header or of free entries. The kernel checks only eight bytes,
/// and would format anything that begins with them, even a file system.
fn is_blank(first: &[u8], new_superblock: &Superblock) -> bool {
    let mut formatted = Entry::FREE.encode().repeat(first.len() / ENTRY_BYTES);
    formatted[..HEADER_BYTES].copy_from_slice(&header_after_magic(new_superblock));
    let words = |bytes| <[u8]>::as_chunks::<8>(bytes).0.iter();
    words(first).zip(words(&formatted)).all(|(a, b)| *a == [0; 8] || a == b)
}

/// The header without its first word, which has magic and version.
fn header_after_magic(superblock: &Superblock) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    superblock.encode(&mut header);
    header[..8].fill(0);
    header
}

/// The superblock of a new cache.
fn new_superblock(config: &Config, area: u64) -> Result<Superblock, Error> {
    let geometry =
        Geometry::compute(area, config.block_size).map_err(|refusal| no_space(config, &refusal))?;
    if geometry.n_blocks() > SLOTS_MAX {
        return Err(no_space(config, &too_many(&geometry)));
    }
    let n_blocks = geometry.n_blocks();
    Ok(Superblock { block_size: config.block_size, n_blocks, seq_count: 0 })
}

/// Refuses a native cache, or what was one, also where its first superblock copy was lost.
async fn refuse_native(config: &Config, device: &dyn BlockDevice, area: u64) -> Result<(), Error> {
    for copy in 0..SUPERBLOCK_COPIES {
        let offset = format::Geometry::superblock_offset(copy);
        if offset + UNIT as u64 > area {
            break;
        }
        let unit = read_area(config, device, offset, UNIT, "read superblock").await?;
        if let Some(former) = unit.read(Former::of) {
            return Err(former.refusal(config));
        }
        let found = unit.read(|unit| format::Superblock::decode(copy, unit));
        if matches!(found, Ok(_) | Err(format::Damage::Later(_))) {
            return Err(Error::invalid(format!(
                "cache device {} holds a cache in the native format, the table says `format dm`: \
                 `millpond wipe {}` makes it blank; nothing was changed",
                config.cache, config.cache
            )));
        }
    }
    Ok(())
}

/// Writes free entries and a header without its first word; then, when they are durable, that word.
/// An interrupted format is started again.
async fn format_device(
    config: &Config,
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), Error> {
    let geometry = superblock.geometry();
    let end = geometry.data_offset();
    let logical = u64::from(device.limits().write_unit_bytes());
    let free = |bytes: std::ops::Range<u64>| {
        let buf = Buf::zeroed(usize::try_from(bytes.end - bytes.start).expect("at most 1 MiB"));
        buf.write(|out| {
            let first = (HEADER_BYTES as u64).saturating_sub(bytes.start);
            let last = geometry.entries_end().clamp(bytes.start, bytes.end) - bytes.start;
            let index = |n: u64| usize::try_from(n).expect("at most 1 MiB");
            out[index(first.min(last))..index(last)].fill(0xff);
            if bytes.start == 0 {
                out[..HEADER_BYTES].copy_from_slice(&header_after_magic(superblock));
            }
        });
        buf
    };
    let mut at = 0;
    while at < end {
        let next = (at + WRITE_BYTES).min(end);
        write_area(config, device, at, Flags::META, free(at..next), WRITE).await?;
        at = next;
    }
    flush_area(config, device).await?;
    let header = free(0..logical);
    header.write(|out| superblock.encode(&mut out[..HEADER_BYTES]));
    write_area(config, device, 0, Flags::META | Flags::FUA, header, WRITE).await
}

/// Reads all entries. Returns the map, and the slots whose entries must be erased.
async fn load(
    config: &Config,
    device: &dyn BlockDevice,
    dm: &Dm,
    blocks: u64,
) -> Result<(Rebuild, Vec<u32>), Error> {
    let mut map = Rebuild::indexed(dm.slots);
    let mut stale = Vec::new();
    let mut reads = ReadAhead::new(config, device, READ);
    reads.bytes(0, dm.geometry.data_offset());
    let mut slots = 0..dm.slots;
    let mut skip = HEADER_BYTES;
    while let Some(buf) = reads.next().await? {
        buf.read(|bytes| {
            for (entry, slot) in format::dm::entries(&bytes[skip..]).zip(slots.by_ref()) {
                match entry.state(dm.seq.get()) {
                    EntryState::Free => {}
                    EntryState::Leftover if config.planted.is(Fault::LeftoversKept) => {}
                    EntryState::Leftover => stale.push(slot),
                    EntryState::Committed => {
                        let seq = dm.seq.get();
                        stale.extend(add_entry(config, &mut map, entry, slot, seq, blocks)?);
                    }
                }
            }
            Ok::<(), Error>(())
        })?;
        skip = 0;
    }
    stale.sort_unstable();
    Ok((map, stale))
}

/// Adds a committed entry to the map. If the block has two entries it returns the slot of the older
/// one.
fn add_entry(
    config: &Config,
    map: &mut Rebuild,
    entry: Entry,
    slot: u32,
    seq: u64,
    blocks: u64,
) -> Result<Option<u32>, Error> {
    let (sector, unit) = (entry.original_sector, config.block_sectors());
    let index = u64::from(slot);
    if !sector.is_multiple_of(unit) {
        return Err(damaged(config, &Refusal::Unaligned { index, sector }.to_string()));
    }
    let block = sector / unit;
    if block >= blocks {
        return Err(Error::invalid(format!(
            "cache device {} holds sector {sector}, the table maps only {}: map all of the origin \
             that it was made for; nothing was changed",
            config.cache,
            blocks * unit
        )));
    }
    // How many commits ago, at least 1. An older entry of a block exists only during one commit, so
    // two entries of the largest age don't occur.
    let age = u32::try_from(seq - entry.seq_count).unwrap_or(u32::MAX);
    match map.find(block) {
        Some((_, old_age)) if old_age == age => {
            let twins = Refusal::Identical { index, sector, seq: entry.seq_count };
            Err(damaged(config, &twins.to_string()))
        }
        Some((_, old_age)) if old_age < age => Ok(Some(slot)),
        old => {
            map.put_dirty(block, slot, age);
            Ok(old.map(|(slot, _)| slot))
        }
    }
}

/// Erases entries as the kernel does, by their numbers alone (WC-DM2).
async fn erase(
    config: &Config,
    device: &dyn BlockDevice,
    geometry: &Geometry,
    stale: &[u32],
) -> Result<(), Error> {
    let mut left = stale;
    for units in touched_units(geometry, stale, UNITS_PER_WRITE) {
        let bytes = unit_bytes(geometry, units);
        let len = usize::try_from(bytes.end - bytes.start).expect("at most 1 MiB");
        let buf = read_area(config, device, bytes.start, len, READ).await?;
        buf.write(|out| {
            while let Some((&slot, rest)) = left.split_first() {
                let offset = geometry.entry_offset(u64::from(slot));
                if offset >= bytes.end {
                    break;
                }
                let at = usize::try_from(offset - bytes.start).expect("at most 1 MiB");
                out[at + ENTRY_BYTES / 2..at + ENTRY_BYTES].fill(0xff);
                left = rest;
            }
        });
        write_area(config, device, bytes.start, Flags::META, buf, WRITE).await?;
    }
    Ok(())
}
