// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replay: applies the units after the checkpoint, as far as they are whole and linked.
//!
//! The chain ends at the first unit that does not fit. That is its torn end, unless a later unit
//! shows that this unit was durable: then the device is damaged, and is refused, because
//! acknowledged data would be lost. Later units are looked for where they may be: after the unit in
//! the same run of blocks, and in the place that its header names, if that is whole.
use block::Error;
use format::zram::{
    CHECK_MASK, ChainStart, OBJECT_MAX, Object, StoredUnit, UNIT_BLOCKS_MAX, UNIT_HEADER,
    decode_unit, object_bytes, walk,
};

use super::image::{Image, Images};
use super::open::Opening;
use crate::backing::Address;
use crate::pack::BLOCK;
use crate::planted::Fault;

/// Blocks read at once where a unit begins: most units are no longer, 128 KiB.
const BLOCKS_AT_ONCE: u32 = 32;

/// How often a unit may name a slot, on average.
const SLOTS_TOLD_MAX: u64 = 4;

/// A unit in its place.
enum Unit {
    Whole(StoredUnit, block::Buf),
    /// The header fits, the rest does not.
    Torn(StoredUnit),
    None,
}

/// Applies every unit of the chain to the images; returns where the chain ends.
pub(super) async fn replay(opening: &mut Opening<'_>) -> Result<ChainStart, Error> {
    let mut end = opening.superblock.chain;
    loop {
        if end.next == 0 {
            return Ok(end);
        }
        let (unit, buf) = match read_unit(opening, &end).await? {
            Unit::Whole(unit, buf) => (unit, buf),
            Unit::Torn(unit) => {
                let header = unit.header;
                for run in [end.next..end.next_end, header.next..header.next_end] {
                    refuse_rot(opening, end.sequence, run).await?;
                }
                return Ok(end);
            }
            Unit::None => {
                refuse_rot(opening, end.sequence, end.next..end.next_end).await?;
                return Ok(end);
            }
        };
        let what = |problem: &str| format!("unit {}: {problem}", end.sequence);
        let bytes = unit.header.blocks as usize * BLOCK;
        let images = &mut opening.images;
        let unchecked = opening.planted.is(Fault::SkipReplayChecksum);
        let applied = buf.read(|b| {
            if unchecked {
                apply_unchecked(images, end.next, &b[..bytes]);
                return Ok(());
            }
            apply(images, end.next, &b[..bytes])
        });
        applied.map_err(|problem| opening.damaged(&what(&problem)))?;
        let header = unit.header;
        let data = opening.superblock.geometry().data();
        if header.next != 0 && !(data.contains(&header.next) && header.next_end <= data.end) {
            return Err(opening.damaged(&what("it leads out of the region")));
        }
        end = ChainStart {
            next: header.next,
            next_end: header.next_end,
            sequence: header.sequence + 1,
            link: unit.crc,
        };
    }
}

async fn read_unit(opening: &Opening<'_>, at: &ChainStart) -> Result<Unit, Error> {
    let superblock = &opening.superblock;
    let most = at.next_end - at.next;
    let first = most.min(BLOCKS_AT_ONCE);
    let mut buf = opening.read(at.next, first, "a unit").await?;
    let Ok(unit) = buf.read(|b| decode_unit(b, &superblock.uuid)) else { return Ok(Unit::None) };
    let header = unit.header;
    let fits = header.part == superblock.part
        && header.incarnation == superblock.incarnation
        && header.sequence == at.sequence
        && header.link == at.link
        && header.blocks <= most;
    if !fits {
        return Ok(Unit::None);
    }
    if header.blocks > first {
        buf = opening.read(at.next, header.blocks, "a unit").await?;
    }
    let bytes = header.blocks as usize * BLOCK;
    let whole = buf.read(|b| unit.is_whole(&b[..bytes]));
    if whole || opening.planted.is(Fault::SkipReplayChecksum) {
        return Ok(Unit::Whole(unit, buf));
    }
    Ok(Unit::Torn(unit))
}

/// Searches a run of blocks for a unit which shows that the one of `sequence`, which is not whole,
/// was durable.
async fn refuse_rot(
    opening: &Opening<'_>,
    sequence: u64,
    run: std::ops::Range<u32>,
) -> Result<(), Error> {
    let superblock = &opening.superblock;
    let data = superblock.geometry().data();
    let (mut at, end) = (run.start.max(data.start), run.end.min(data.end));
    while at < end {
        let blocks = (end - at).min(UNIT_BLOCKS_MAX);
        let buf = opening.read(at, blocks, "a unit").await?;
        let later = buf.read(|b| {
            b.chunks(BLOCK).find_map(|block| {
                let header = decode_unit(block, &superblock.uuid).ok()?.header;
                let is_ours =
                    header.part == superblock.part && header.incarnation == superblock.incarnation;
                (is_ours && header.durable >= sequence).then_some(header.sequence)
            })
        });
        if let Some(later) = later {
            return Err(opening
                .damaged(&format!("unit {sequence} was durable, says unit {later}, and is lost")));
        }
        at += blocks;
    }
    Ok(())
}

/// Applies the objects of a unit that begins at block `first`.
fn apply(images: &mut Images, first: u32, unit: &[u8]) -> Result<(), String> {
    let mut told = 0;
    for object in walk(&unit[UNIT_HEADER..]) {
        let (offset, found) = object.map_err(|damaged| damaged.to_string())?;
        let offset = UNIT_HEADER + offset;
        let slots = match found.object {
            Object::Discarded { slots } => slots,
            Object::Page { .. } | Object::Same(_) => 1,
        };
        let end = found.slot.checked_add(slots).filter(|end| *end <= images.len());
        let end = end.ok_or_else(|| format!("slot {} is beyond the end", found.slot))?;
        // A unit names each slot once; without a bound a crafted one holds up the core for hours.
        told += u64::from(slots);
        if told > SLOTS_TOLD_MAX * u64::from(images.len()) {
            return Err("it tells of slots again and again".to_owned());
        }
        let image = match found.object {
            Object::Discarded { .. } => Image::default(),
            Object::Same(word) => Image::same(word),
            Object::Page { priority, bytes } => {
                page(first, offset, found.check, bytes.len(), priority)
            }
        };
        for slot in found.slot..end {
            images.set(slot, image);
        }
    }
    Ok(())
}

fn page(first: u32, offset: usize, check: u32, size: usize, priority: u8) -> Image {
    let block = first + u32::try_from(offset / BLOCK).expect("within a unit");
    Image::page(Address::packed(block, offset % BLOCK, check), size, priority)
}

/// As [`apply`], believing every byte: a planted fault.
fn apply_unchecked(images: &mut Images, first: u32, unit: &[u8]) {
    let mut at = UNIT_HEADER;
    while let Some(&[c0, c1, c2, _, s0, s1, s2, s3, l0, l1, kind, ..]) = unit.get(at..at + 16) {
        let (check, slot) =
            (u32::from_le_bytes([c0, c1, c2, 0]), u32::from_le_bytes([s0, s1, s2, s3]));
        let size = usize::from(u16::from_le_bytes([l0, l1]));
        if size == 0 || size > OBJECT_MAX || slot >= images.len() {
            break;
        }
        if kind & 0x0f == 1 {
            images.set(slot, page(first, at, check & CHECK_MASK, size, kind >> 4 & 3));
        }
        at += object_bytes(size);
    }
}
