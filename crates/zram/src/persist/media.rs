// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Media: reads and writes superblocks and maps, and finds out whose device it is.
//!
//! ```text
//!   device   │ region of part 0            │ region of part 1            │ ...
//!            │ superblocks │ maps │ data    │ superblocks │ maps │ data    │
//! ```
//! The media call a part of a device a part.
//!
//! Invariants
//! - ZR-MD1 A device is formatted when part 0 has a superblock. That is written last, and only
//!   over zeroes and the remains of a format that was cut. Anything else is refused (ZR-PS6).
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, ErrorKind, Flags, Sector, Status};
use format::Damage;
use format::zram::{
    ChainStart, Checkpoint, CodecId, Geometry, MAP_ENTRIES, MapEntry, MapHeader, PARTS_MAX,
    Superblock, elect, encode_map, highest_generation,
};
use reactor::BioFuture;

use crate::codec::Algorithm;
use crate::codecs::Algorithms;
use crate::layout::{Layout, PAGE_SECTORS, Region, SLOTS_MAX};
use crate::pack::BLOCK;

/// Units of one write of a map: 256 KiB.
const UNITS_PER_WRITE: usize = 64;

/// Counters on the media are at most this, half of what their fields hold. Chosen: no device gets
/// there by counting, and one that begins there never counts beyond the other half.
const COUNTER_MAX: u64 = u64::MAX / 2;
/// The same of the count of openings.
const INCARNATION_MAX: u32 = u32::MAX / 2;

/// The metadata of a device, before its parts are opened; sent to their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Media {
    uuid: [u8; 16],
    /// As it was formatted: with the number of parts of the media, not of the table.
    pub(crate) layout: Layout,
    region_blocks: u32,
}

impl Media {
    /// A part's region.
    pub(super) fn region(&self, part: u32) -> Region {
        let first = u64::from(self.region_blocks) * u64::from(part);
        Region { first, blocks: self.region_blocks }
    }

    /// Whether a superblock is that of one of its parts.
    pub(super) fn has(&self, part: u32, superblock: &Superblock) -> bool {
        superblock.uuid == self.uuid
            && u32::from(superblock.part) == part
            && u32::from(superblock.parts) == self.layout.parts
            && superblock.slots == self.layout.slots
            && superblock.region_blocks == self.region_blocks
            && superblock.map_units
                >= Geometry::of_slots(self.layout.slots_of(part), self.region_blocks).map_units
    }
}

/// The copies of a region's superblock.
pub(super) type Copies = [Result<Superblock, Damage>; 4];

/// The algorithms that decompress the pages of a device.
pub(super) fn codec_ids(algorithms: &Algorithms) -> [CodecId; 4] {
    algorithms.each_ref().map(|algorithm| {
        let Some((algorithm, params)) = algorithm else { return CodecId::default() };
        let dictionary = params.dict.as_deref().map_or(0, |dict| format::checksum(dict).max(1));
        let (algorithm, parameter) = match algorithm {
            // The same format.
            Algorithm::Lz4 | Algorithm::Lz4hc => (1, 0),
            Algorithm::Zstd => (2, 0),
            Algorithm::Deflate => (3, u8::from(params.winbits.is_some_and(|bits| bits > 0))),
        };
        CodecId { algorithm, parameter, dictionary }
    })
}

fn named(device: &dyn BlockDevice) -> String {
    format!("backing_dev {}", device.name())
}

pub(super) fn io_error(device: &dyn BlockDevice, what: &str, status: Status) -> Error {
    Error::io(format!("{}: cannot {what}: {status}", named(device)))
}

/// The error for damaged metadata.
pub(super) fn damaged(device: &dyn BlockDevice, what: &str) -> Error {
    Error::io(format!("{}: damaged metadata: {what}; it is left as it is", named(device)))
}

/// Refuses a superblock with a counter that has no room to count; names the counter. Copies that
/// were not elected are checked too: the next generation is above theirs.
pub(super) fn check_counters(copies: &Copies, elected: &Superblock) -> Result<(), String> {
    let counters = [
        ("generation", highest_generation(copies), COUNTER_MAX),
        ("checkpoint_id", elected.checkpoint.id, COUNTER_MAX),
        ("chain_sequence", elected.chain.sequence, COUNTER_MAX),
        ("incarnation", elected.incarnation.into(), INCARNATION_MAX.into()),
    ];
    match counters.into_iter().find(|(_, found, most)| found > most) {
        Some((name, found, most)) => Err(format!("{name} is {found}, at most {most} is allowed")),
        None => Ok(()),
    }
}

/// Reads the copies of the superblock of the region that begins at block `first` of the device.
pub(super) async fn read_copies(device: &dyn BlockDevice, first: u64) -> Result<Copies, Error> {
    let mut copies: Copies = [const { Err(Damage::Magic) }; 4];
    for (copy, found) in (0u8..).zip(&mut copies) {
        let unit = read_block(device, first + u64::from(Geometry::superblock(copy))).await?;
        *found = unit.read(|b| Superblock::decode(copy, b));
    }
    Ok(copies)
}

async fn read_block(device: &dyn BlockDevice, block: u64) -> Result<Buf, Error> {
    let unit = Buf::alloc(BLOCK);
    let at = Sector(block * PAGE_SECTORS);
    let read = reactor::read(device, Class::Foreground, at, unit.all().into()).await;
    read.map_err(|status| io_error(device, "read a superblock", status))?;
    Ok(unit)
}

fn write_copy(device: &dyn BlockDevice, at: Sector, copy: u8, new: &Superblock) -> BioFuture {
    let unit = Buf::alloc(BLOCK);
    unit.write(|b| new.encode(copy, b));
    let flags = Flags::SYNC | Flags::META;
    reactor::write(device, flags, Class::Foreground, at, unit.all().into())
}

/// Writes a superblock: copies 0 and 1, flush, 2 and 3, flush, so that at every moment one pair is
/// whole. `at` returns the place of a block of the region.
pub(super) async fn write_superblock(
    device: &dyn BlockDevice,
    at: impl Fn(u32) -> Sector,
    new: &Superblock,
) -> Result<(), Status> {
    for pair in [[0, 1], [2, 3]] {
        let writes = pair.map(|copy| write_copy(device, at(Geometry::superblock(copy)), copy, new));
        all(writes).await?;
        reactor::flush(device, Class::Foreground).await?;
    }
    Ok(())
}

/// Waits for all, also after a failure: nothing is in flight afterwards.
async fn all(ios: impl IntoIterator<Item = BioFuture>) -> Result<(), Status> {
    let mut outcome = Ok(());
    for io in ios {
        let ended = io.await;
        outcome = outcome.and(ended);
    }
    outcome
}

/// Overwrites all copies that differ from the elected superblock, before it is used: so that no
/// newer copy is on the media that could be elected later.
pub(super) async fn mend(
    device: &dyn BlockDevice,
    at: impl Fn(u32) -> Sector,
    copies: &Copies,
    elected: &Superblock,
) -> Result<(), Status> {
    let differ = (0u8..).zip(copies).filter(|(_, found)| found.as_ref() != Ok(elected));
    let writes: Vec<BioFuture> = differ
        .map(|(copy, _)| write_copy(device, at(Geometry::superblock(copy)), copy, elected))
        .collect();
    if writes.is_empty() {
        return Ok(());
    }
    all(writes).await?;
    reactor::flush(device, Class::Foreground).await
}

/// Reads the superblocks of `device`, and formats it if it is blank. The number of parts is that of
/// the media.
///
/// # Errors
/// `EINVAL` when it has other data, or a device of another size; `ENOSPC` when it is too
/// small; `EIO` when it can't be read or its superblock is lost.
pub(crate) async fn prepare(
    device: &Rc<dyn BlockDevice>,
    wanted: Layout,
    algorithms: &Algorithms,
) -> Result<Media, Error> {
    let device = &**device;
    let copies = read_copies(device, 0).await?;
    let elected = elect(&copies);
    let counters = elected.as_ref().map_or(Ok(()), |elected| check_counters(&copies, elected));
    counters.map_err(|what| damaged(device, &format!("superblock of part 0: {what}")))?;
    let elected = match elected {
        Ok(elected) if elected.incarnation > 0 || elected.generation > 1 => elected,
        Ok(elected) => {
            // Formatted, all but perhaps the second pair of copies; never opened.
            mend(device, |block| Sector(u64::from(block) * PAGE_SECTORS), &copies, &elected)
                .await
                .map_err(|status| io_error(device, "write a superblock", status))?;
            elected
        }
        Err(damage) => {
            if let Some(version) = copies.iter().find_map(|copy| match copy {
                Err(Damage::Version { found, .. }) => Some(*found),
                Ok(_) | Err(_) => None,
            }) {
                return Err(Error::new(
                    ErrorKind::NotSupported,
                    format!("{}: zram format version {version} is unknown here", named(device)),
                ));
            }
            if highest_generation(&copies) > 1 {
                return Err(damaged(device, &format!("superblock of part 0: {damage}")));
            }
            return make(device, wanted, algorithms).await;
        }
    };
    if elected.slots != wanted.slots {
        return Err(Error::invalid(format!(
            "{}: it belongs to a zram of {} sectors, the table says {}",
            named(device),
            elected.slots * PAGE_SECTORS,
            wanted.slots * PAGE_SECTORS
        )));
    }
    let layout = Layout { slots: elected.slots, parts: u32::from(elected.parts) };
    let of_part = layout.slots.div_ceil(u64::from(layout.parts));
    if of_part > SLOTS_MAX {
        let what = format!("slots of a part is {of_part}, at most {SLOTS_MAX} is allowed");
        return Err(damaged(device, &format!("superblock of part 0: {what}")));
    }
    let blocks = u64::from(elected.region_blocks) * u64::from(elected.parts);
    let has = device.limits().capacity.0 / PAGE_SECTORS;
    if elected.part != 0 || blocks > has {
        return Err(Error::invalid(format!(
            "{}: it has {has} blocks of 4 KiB, of {blocks} that its superblock names: it shrank",
            named(device)
        )));
    }
    Ok(Media { uuid: elected.uuid, layout, region_blocks: elected.region_blocks })
}

/// Refuses a device with the data of a persistent zram: they must not be lost because a table lacks
/// one word.
///
/// # Errors
/// `EINVAL`. A device that cannot be read is not refused.
pub(crate) async fn refuse_persistent(device: &Rc<dyn BlockDevice>) -> Result<(), Error> {
    let device = &**device;
    let last = Geometry::superblock(3);
    if device.limits().capacity.0 / PAGE_SECTORS <= u64::from(last) {
        return Ok(());
    }
    let Ok(copies) = read_copies(device, 0).await else { return Ok(()) };
    // One copy is enough, also one of a later version.
    let is_one =
        |copy: &&Result<Superblock, Damage>| matches!(copy, Ok(_) | Err(Damage::Version { .. }));
    let Some(found) = copies.iter().find(is_one) else { return Ok(()) };
    let of = found
        .as_ref()
        .map_or(String::new(), |found| format!(" of {} sectors", found.slots * PAGE_SECTORS));
    Err(Error::invalid(format!(
        "{}: it holds a persistent zram{of}: add the option persist; to give that up, `millpond \
         wipe` it, or fill its first 256 KiB with zeroes",
        named(device)
    )))
}

/// Formats a blank device (ZR-MD1).
async fn make(
    device: &dyn BlockDevice,
    layout: Layout,
    algorithms: &Algorithms,
) -> Result<Media, Error> {
    let parts = u16::try_from(layout.parts).ok().filter(|parts| *parts <= PARTS_MAX);
    let parts = parts.ok_or_else(|| {
        Error::invalid(format!("persist: at most {PARTS_MAX} shards are allowed"))
    })?;
    let region = layout.region(0, device.limits().capacity);
    let region_blocks = region.blocks;
    let geometry = Geometry::of_slots(layout.slots_of(0), region_blocks);
    if u64::from(region_blocks) < geometry.blocks_least() {
        let needs = geometry.blocks_least() * u64::from(layout.parts) * BLOCK as u64 / 1024;
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{}: it has {} KiB, needs at least {needs} KiB for persist with {} shards",
                named(device),
                device.limits().capacity.0 / 2,
                layout.parts
            ),
        ));
    }
    check_blank(device, layout, region_blocks).await?;
    let halves = [reactor::random(), reactor::random()].map(u64::to_le_bytes);
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&halves[0]);
    uuid[8..].copy_from_slice(&halves[1]);
    let media = Media { uuid, layout, region_blocks };
    for part in (0..parts).rev() {
        let new = Superblock {
            uuid,
            generation: 1,
            part,
            parts,
            slots: layout.slots,
            region_blocks,
            map_units: Geometry::of_slots(layout.slots_of(u32::from(part)), region_blocks)
                .map_units,
            incarnation: 0,
            codecs: codec_ids(algorithms),
            checkpoint: Checkpoint::default(),
            chain: ChainStart { sequence: 1, ..ChainStart::default() },
        };
        let first = media.region(u32::from(part)).first;
        let at = |block: u32| Sector((first + u64::from(block)) * PAGE_SECTORS);
        write_superblock(device, at, &new)
            .await
            .map_err(|status| io_error(device, "write a superblock", status))?;
    }
    Ok(media)
}

/// Refuses a device that has anything but zeroes and the remains of a format that was cut. Looks at
/// the places of our superblocks, and at the first 256 KiB, where those of other formats are.
async fn check_blank(
    device: &dyn BlockDevice,
    layout: Layout,
    region_blocks: u32,
) -> Result<(), Error> {
    let maps = u64::from(Geometry { region_blocks, map_units: 1 }.map(0));
    for part in 0..layout.parts {
        let first = u64::from(region_blocks) * u64::from(part);
        let is_copy =
            |block: u64| (0..4).find(|copy| u64::from(Geometry::superblock(*copy)) == block);
        for block in (0..maps).filter(|block| part == 0 || is_copy(*block).is_some()) {
            let unit = read_block(device, first + block).await?;
            let ours = |b: &[u8]| {
                let copy = is_copy(block).and_then(|copy| Superblock::decode(copy, b).ok());
                copy.is_some_and(|found| found.generation == 1 && found.incarnation == 0)
            };
            if !unit.read(|b| format::is_blank(b) || ours(b)) {
                return Err(Error::invalid(format!(
                    "{}: it is neither a persistent zram nor blank: block {} is not zero; to have \
                     it formatted, fill the first 256 KiB{} with zeroes",
                    named(device),
                    first + block,
                    if part == 0 { "" } else { " of each part" }
                )));
            }
        }
    }
    Ok(())
}

/// Makes the units of a map and writes them in their order.
pub(super) struct MapWriter {
    header: MapHeader,
    entries: Vec<MapEntry>,
    /// Units made so far.
    units: u32,
}

impl MapWriter {
    pub(super) fn new(superblock: &Superblock, checkpoint: Checkpoint) -> MapWriter {
        let (uuid, part, id) = (superblock.uuid, superblock.part, checkpoint.id);
        let header = MapHeader { uuid, part, id, index: 0, link: 0 };
        MapWriter { header, entries: Vec::new(), units: 0 }
    }

    pub(super) fn units(&self) -> u32 {
        self.units
    }

    pub(super) fn push(&mut self, entries: &[MapEntry]) {
        self.entries.extend_from_slice(entries);
    }

    /// Writes the units that are full, or `all`.
    pub(super) async fn write(
        &mut self,
        device: &dyn BlockDevice,
        at: impl Fn(u32) -> Sector,
        all: bool,
    ) -> Result<(), Status> {
        let whole = MAP_ENTRIES * UNITS_PER_WRITE;
        while self.entries.len() >= whole || (all && !self.entries.is_empty()) {
            let taken = self.entries.len().min(whole);
            let units = taken.div_ceil(MAP_ENTRIES);
            let buf = Buf::alloc(units * BLOCK);
            buf.write(|out| {
                let parts = self.entries[..taken].chunks(MAP_ENTRIES);
                for (entries, unit) in parts.zip(out.chunks_mut(BLOCK)) {
                    self.header.link = encode_map(&self.header, entries, unit);
                    self.header.index += 1;
                }
            });
            self.entries.drain(..taken);
            let flags = Flags::META;
            let data = buf.all().into();
            reactor::write(device, flags, Class::Normal, at(self.units), data).await?;
            self.units += u32::try_from(units).expect("at most UNITS_PER_WRITE");
        }
        Ok(())
    }
}
