// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open: elects the superblock, loads the checkpoint, follows the chain, and begins a new
//! incarnation.
//!
//! ```text
//!   4 superblocks ─ elect ─▶ map ─▶ units while whole and linked ─▶ images
//!                                                                     │ new map, if any unit
//!   superblock: incarnation + 1, the chain begins at a new place ◀────┘
//! ```
//!
//! Nothing that the old superblock leads to is overwritten before the new one is durable, so an
//! open that is cut can be repeated.
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Planted, Sector, Status};
use format::zram::{
    ChainStart, Checkpoint, CodecId, MapEntry, Superblock, decode_map, elect, highest_generation,
};

use super::chain::take_run;
use super::image::{Image, Images};
use super::media::{
    MapWriter, Media, check_counters, codec_ids, damaged, io_error, mend, read_copies,
    write_superblock,
};
use super::replay::replay;
use super::state::Persist;
use crate::backing::Backing;
use crate::codecs::Algorithms;
use crate::layout::{PAGE_SECTORS, Region};
use crate::pack::BLOCK;
use crate::planted::Fault;

/// Units of a map read at once: 1 MiB.
const UNITS_PER_READ: u32 = 256;
/// Objects that lie in a block, wholly or in part, at most.
const OBJECTS_PER_BLOCK_MAX: u8 = 172;

/// A part of a device that is being opened (a part, in the words of the media).
pub(super) struct Opening<'a> {
    pub(super) device: &'a dyn BlockDevice,
    pub(super) part: u32,
    pub(super) region: Region,
    pub(super) superblock: Superblock,
    pub(super) images: Images,
    pub(super) planted: Planted<Fault>,
}

impl Opening<'_> {
    pub(super) fn at(&self, block: u32) -> Sector {
        Sector((self.region.first + u64::from(block)) * PAGE_SECTORS)
    }

    pub(super) fn damaged(&self, what: &str) -> Error {
        damaged(self.device, &format!("part {}: {what}", self.part))
    }

    pub(super) fn failed(&self, what: &str, status: Status) -> Error {
        io_error(self.device, &format!("{what} of part {}", self.part), status)
    }

    /// Reads whole blocks of the region.
    pub(super) async fn read(&self, block: u32, blocks: u32, what: &str) -> Result<Buf, Error> {
        let buf = Buf::alloc(blocks as usize * BLOCK);
        let at = self.at(block);
        let read = reactor::read(self.device, Class::Foreground, at, buf.all().into()).await;
        read.map_err(|status| self.failed(&format!("read {what}"), status))?;
        Ok(buf)
    }

    async fn load_map(&mut self) -> Result<(), Error> {
        let checkpoint = self.superblock.checkpoint;
        let first = self.superblock.geometry().map(checkpoint.area);
        let data = self.superblock.geometry().data();
        let (mut index, mut link) = (0, 0);
        let mut least = 0;
        while index < checkpoint.units {
            let units = UNITS_PER_READ.min(checkpoint.units - index);
            let buf = self.read(first + index, units, "a checkpoint").await?;
            let mut entries: Vec<MapEntry> = Vec::new();
            for unit in 0..units as usize {
                let what = |problem: &str| format!("checkpoint unit {index}: {problem}");
                let (header, crc, found) = buf.read(|b| {
                    let bytes = &b[unit * BLOCK..(unit + 1) * BLOCK];
                    let map = decode_map(bytes, &self.superblock.uuid)
                        .map_err(|damage| self.damaged(&what(&damage.to_string())))?;
                    Ok::<_, Error>((map.header, map.crc, map.entries()))
                        .map(|(header, crc, found)| (header, crc, found.collect::<Vec<_>>()))
                })?;
                let fits = u32::from(header.part) == self.part
                    && header.id == checkpoint.id
                    && header.index == index
                    && header.link == link;
                if !fits {
                    return Err(self.damaged(&what("it is of another checkpoint")));
                }
                (index, link) = (index + 1, crc);
                entries.extend(found);
            }
            for entry in entries {
                if u64::from(entry.slot) < least || entry.slot >= self.images.len() {
                    return Err(self.damaged(&format!("checkpoint: slot {}", entry.slot)));
                }
                least = u64::from(entry.slot) + 1;
                let image = Image::of_entry(&entry, &data).ok_or_else(|| {
                    self.damaged(&format!("slot {} lies outside of {data:?}", entry.slot))
                })?;
                self.images.set(entry.slot, image);
            }
        }
        Ok(())
    }

    /// Counts the objects in each block of the region; refuses impossible counts.
    fn count_objects(&self) -> Result<Vec<u8>, Error> {
        let data = self.superblock.geometry().data();
        let mut counts = vec![0u8; self.region.blocks as usize];
        for nth in 0..self.images.len() {
            let image = self.images.get(nth);
            if !image.is_page() {
                continue;
            }
            let blocks = image.blocks();
            let lies_there = data.start <= blocks.start && blocks.end <= data.end;
            let damaged = || self.damaged(&format!("slot {nth} lies in blocks {blocks:?}"));
            if !lies_there {
                return Err(damaged());
            }
            for count in &mut counts[blocks.start as usize..blocks.end as usize] {
                *count += 1;
                if *count > OBJECTS_PER_BLOCK_MAX {
                    return Err(damaged());
                }
            }
        }
        Ok(counts)
    }

    /// Whether the pages can be decompressed by the algorithms of the table.
    fn check_codecs(&self, wanted: &[CodecId; 4]) -> Result<(), Error> {
        let has = &self.superblock.codecs;
        for (priority, (has, wanted)) in has.iter().zip(wanted).enumerate() {
            let mut slots = 0..self.images.len();
            let is_of_it = |nth: u32| {
                let image = self.images.get(nth);
                let packed = image.is_page() && image.size() < BLOCK;
                packed && usize::from(image.priority()) == priority
            };
            if has != wanted && slots.any(is_of_it) {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "backing_dev {}: pages of priority {priority} were compressed by {}, which \
                         the table does not name: {}",
                        self.device.name(),
                        codec_name(has),
                        codec_name(wanted)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Writes all images to the checkpoint area that is not in use.
    async fn dump(&self, checkpoint: Checkpoint) -> Result<u32, Status> {
        let mut map = MapWriter::new(&self.superblock, checkpoint);
        let first = self.superblock.geometry().map(checkpoint.area);
        for nth in 0..self.images.len() {
            map.push(self.images.get(nth).entry(nth).as_slice());
            if nth % 16384 == 0 {
                map.write(self.device, |unit| self.at(first + unit), false).await?;
            }
        }
        map.write(self.device, |unit| self.at(first + unit), true).await?;
        Ok(map.units())
    }
}

fn codec_name(codec: &CodecId) -> String {
    let name = match codec.algorithm {
        0 => "no algorithm",
        1 => "lz4",
        2 => "zstd",
        3 => "deflate",
        _ => "an algorithm unknown here",
    };
    match (codec.parameter, codec.dictionary) {
        (0, 0) => name.to_owned(),
        (_, 0) => format!("{name} with headers"),
        (_, dictionary) => format!("{name} with the dictionary of crc32c {dictionary:#010x}"),
    }
}

/// Opens a part of a device that was prepared. Returns its state and its region of the device.
///
/// # Errors
/// As [`super::prepare`]; `EIO` names what is damaged.
pub(crate) async fn open(
    device: Rc<dyn BlockDevice>,
    media: &Media,
    part: u32,
    algorithms: &Algorithms,
    planted: Planted<Fault>,
) -> Result<(Persist, Backing), Error> {
    let region = media.region(part);
    let copies = read_copies(&*device, region.first).await?;
    let lost = |what: String| damaged(&*device, &format!("superblock of part {part}: {what}"));
    let elected = elect(&copies).map_err(|damage| lost(damage.to_string()))?;
    if !media.has(part, &elected) {
        return Err(lost("it is of another device or part".to_owned()));
    }
    check_counters(&copies, &elected).map_err(lost)?;
    let images = Images::new(media.layout.slots_of(part));
    let mut opening =
        Opening { device: &*device, part, region, superblock: elected, images, planted };
    opening.load_map().await?;
    let end = replay(&mut opening).await?;
    let counts = opening.count_objects()?;
    let wanted = codec_ids(algorithms);
    opening.check_codecs(&wanted)?;
    // Nothing has been written so far.
    let written = |status| opening.failed("write the superblock", status);
    let at = |block: u32| opening.at(block);
    mend(&*device, at, &copies, &opening.superblock).await.map_err(written)?;
    let backing = Backing::new(device.clone(), region, true);
    occupy(&backing, &opening.superblock.geometry().data(), &counts);
    let old = &opening.superblock;
    let mut new = Superblock {
        generation: highest_generation(&copies).max(old.generation) + 1,
        incarnation: old.incarnation + 1,
        codecs: wanted,
        ..old.clone()
    };
    if end.sequence > old.chain.sequence {
        let area = if old.checkpoint.id == 0 { 0 } else { 1 - old.checkpoint.area };
        new.checkpoint = Checkpoint { area, units: 0, id: old.checkpoint.id + 1 };
        new.checkpoint.units = opening.dump(new.checkpoint).await.map_err(written)?;
        // A killed process may have left the units of the map in the cache of the device.
        reactor::flush(&*device, Class::Foreground).await.map_err(written)?;
    }
    let run = take_run(backing.space()).unwrap_or_default();
    new.chain = ChainStart { next: run.start, next_end: run.end, ..end };
    write_superblock(&*device, at, &new).await.map_err(written)?;
    let persist = Persist::new(new, opening.images, planted);
    Ok((persist, backing))
}

/// Marks the blocks of metadata and objects as taken; the rest of the region is free.
fn occupy(backing: &Backing, data: &Range<u32>, counts: &[u8]) {
    let mut blocks = backing.space().blocks();
    let all = blocks.count();
    assert_eq!(blocks.take(all), Some(0..all), "no block is taken yet");
    let mut free = data.start;
    for block in data.clone() {
        let count = counts[block as usize];
        (0..count).for_each(|_| blocks.use_one(block));
        if count > 0 {
            if free < block {
                blocks.give_back(free..block);
            }
            free = block + 1;
        }
    }
    if free < data.end {
        blocks.give_back(free..data.end);
    }
}
