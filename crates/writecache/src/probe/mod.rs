// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Probe: reports to tools what a cache area contains and what is damaged. It writes nothing.
//!
//! ```text
//!   first 256 KiB ─▶ blank │ unknown │ ruined │ dm::probe ─▶ entries
//!                                             │ native::probe ─▶ as recovery reads it (`load`)
//!                                                                 └─ refused: unit by unit, for
//!                                                                    the offsets of the damage
//! ```
//!
//! Invariants
//! - WC-SV1 Any bytes give a report or an error, and never a panic. Memory is only allocated for
//!   what lies within the area.
//! - WC-SV2 The report of a healthy native cache is what the engine would find: both use the same
//!   code.
mod dm;
mod native;
mod signed_area;

use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Error, Sector, Status};
use format::{Geometry, Gone, LaterFormat, ReplacedMark, SUPERBLOCK_COPIES, Superblock, UNIT};
use roaring::RoaringTreemap;

pub use self::dm::DmCache;
pub use self::native::NativeCache;
pub use self::signed_area::{SignedArea, find_signed_areas, foreign_contents};
use crate::config::{Config, Mode};
use crate::recovery::former::Former;

/// Most findings in a report; further ones are only counted.
pub const FINDINGS_MAX: usize = 1000;
/// All copies of the superblock are in this head of the area, as is the kernel's superblock.
pub const HEAD_BYTES: u64 = 256 << 10;

/// What a cache area holds.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    /// Length of the area: from the start sector to the end of the device.
    pub area: Sector,
    /// What it holds.
    pub contents: Contents,
    /// What is wrong with it, in the order of discovery, at most [`FINDINGS_MAX`].
    pub damage: Vec<Finding>,
    /// How many findings more there were.
    pub damage_left_out: u64,
    /// Remarks that are not damage.
    pub notes: Vec<String>,
    /// Journals in memory that may have acknowledged changes and do not count, and why.
    pub unused_journals: Vec<String>,
    /// A checksum of the metadata: it changes with the cache.
    fingerprint: u32,
}

/// What kind of data is in a cache area.
#[derive(Clone, Debug)]
pub enum Contents {
    /// Nothing: the next table with this area formats it.
    Blank,
    /// Neither blank nor a cache.
    Unknown,
    /// A cache of the native or the kernel's format whose superblock can't be read any more.
    Ruined,
    /// The mark of a cache that another one has replaced. It holds nothing.
    Replaced(ReplacedMark),
    /// What only earlier versions can open, with all that it holds.
    Gone(Gone),
    /// A cache that only later versions can open.
    Later(LaterFormat),
    /// A cache of the native format.
    Native(Box<NativeCache>),
    /// A cache of the kernel's format.
    Dm(DmCache),
}

impl From<Former> for Contents {
    fn from(former: Former) -> Contents {
        match former {
            Former::Replaced(mark) => Contents::Replaced(mark),
            Former::Gone(gone) => Contents::Gone(gone),
            Former::Later(later) => Contents::Later(later),
        }
    }
}

/// A finding of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, in bytes from the start of the area.
    pub offset: u64,
    /// The damage and its consequence.
    pub what: String,
}

/// Which blocks a cache holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Bytes in a block.
    pub block_size: u32,
    /// All blocks of the cache.
    pub total: u64,
    /// Blocks that hold nothing.
    pub free: u64,
    /// Blocks whose newest version the origin does not have.
    pub dirty: u64,
    /// Blocks that equal the origin's.
    pub clean: u64,
    /// Blocks that can't be read any more.
    pub bad: u64,
    /// The dirty sectors of the origin: first and length, ascending, merged.
    pub dirty_ranges: Vec<(Sector, Sector)>,
}

impl Occupancy {
    /// Bytes that only the cache has.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty * u64::from(self.block_size)
    }
}

impl ProbeReport {
    /// How the guarded origin was used without the cache, in one sentence that follows its name;
    /// `None` if it was not. Nothing is written. `start_sector` is the cache's on `device`.
    ///
    /// # Errors
    /// `EINVAL` if another cache guards the origin, `EIO` if it or the cache device can't be read.
    pub async fn find_use(
        &self,
        start_sector: Sector,
        origin: &dyn BlockDevice,
        device: &dyn BlockDevice,
    ) -> Result<Option<String>, Error> {
        let Some(superblock) = self.superblock() else { return Ok(None) };
        crate::guard::find_use(superblock, start_sector, origin, device).await
    }

    /// The blocks of the cache; `None` if there is no cache or it is too damaged.
    #[must_use]
    pub fn occupancy(&self) -> Option<&Occupancy> {
        match &self.contents {
            Contents::Blank
            | Contents::Unknown
            | Contents::Ruined
            | Contents::Replaced(_)
            | Contents::Gone(_)
            | Contents::Later(_) => None,
            Contents::Native(cache) => cache.occupancy.as_ref(),
            Contents::Dm(cache) => Some(&cache.occupancy),
        }
    }

    /// The superblock of a cache of the native format.
    pub(crate) fn superblock(&self) -> Option<&Superblock> {
        match &self.contents {
            Contents::Native(cache) => Some(&cache.superblock),
            Contents::Blank
            | Contents::Unknown
            | Contents::Ruined
            | Contents::Replaced(_)
            | Contents::Gone(_)
            | Contents::Later(_)
            | Contents::Dm(_) => None,
        }
    }

    /// Whether it is a cache that guards its origin.
    #[must_use]
    pub fn guards_origin(&self) -> bool {
        self.superblock().is_some_and(|superblock| superblock.guards_origin)
    }

    /// A token for doing `action` to the cache in its current state: after any change the token is
    /// different.
    #[must_use]
    pub fn token(&self, action: &str) -> String {
        let mut bytes = self.fingerprint.to_le_bytes().to_vec();
        bytes.extend_from_slice(action.as_bytes());
        format::token(&bytes)
    }

    /// What would be lost if the area were made blank, in words that follow its name.
    #[must_use]
    pub fn loss(&self) -> Option<String> {
        match &self.contents {
            Contents::Blank | Contents::Replaced(_) => None,
            Contents::Unknown => Some("holds something that is no cache".into()),
            Contents::Ruined => {
                Some("holds a damaged cache, the content of which is unknown".into())
            }
            Contents::Gone(gone) => Some(format!("holds {gone}: {}", gone.way_out())),
            Contents::Later(later) => {
                Some(format!("holds a cache; {later}: {}", LaterFormat::WAY_OUT))
            }
            Contents::Native(_) | Contents::Dm(_) => {
                let Some(o) = self.occupancy().filter(|_| self.damage_left_out == 0) else {
                    return Some("holds a damaged cache, the content of which is unknown".into());
                };
                let size = block::size_text(o.dirty_bytes());
                let dirty = format!(
                    "holds {} dirty blocks ({size}) that the origin does not have; `millpond \
                     recover` writes them back",
                    o.dirty
                );
                if o.dirty + o.bad > 0 {
                    return Some(dirty);
                }
                if let Some(why) = self.unused_journals.first() {
                    return Some(format!(
                        "may lack the newest writes that it had acknowledged: {why}"
                    ));
                }
                self.guards_origin().then(|| {
                    "guards its origin, which has a signature in the place of its superblocks: \
                     `millpond recover` gives the origin back"
                        .into()
                })
            }
        }
    }

    /// Bytes of the area that the cache needs; all of it if that is unknown.
    fn end_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Native(cache) => cache.superblock.geometry().end_bytes(),
            Contents::Dm(cache) => cache.superblock.geometry().end_bytes(),
            Contents::Blank
            | Contents::Unknown
            | Contents::Ruined
            | Contents::Replaced(_)
            | Contents::Gone(_)
            | Contents::Later(_) => self.area.bytes(),
        }
    }

    fn add_finding(&mut self, offset: u64, what: impl Into<String>) {
        if self.damage.len() < FINDINGS_MAX {
            self.damage.push(Finding { offset, what: what.into() });
        } else {
            self.damage_left_out += 1;
        }
    }
}

/// How thorough a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Metadata, and what recovery reads.
    Metadata,
    /// Also the data of all cached blocks that have a checksum.
    Data,
}

/// The area that is probed.
struct Place {
    config: Config,
    device: Rc<dyn BlockDevice>,
    area_bytes: u64,
}

impl Place {
    async fn read(&self, offset: u64, len: u64) -> Result<Buf, Status> {
        let buf = Buf::alloc(usize::try_from(len).map_err(|_| Status::Invalid)?);
        let at = self.config.start_sector + Sector::from_bytes(offset);
        reactor::read(&*self.device, Class::Foreground, at, buf.all().into()).await?;
        Ok(buf)
    }
}

/// Probes the cache area of `device` that begins at `start_sector`.
///
/// # Errors
/// `EINVAL` if there is no such area, `EIO` if its beginning can't be read, `ENOMEM` if its map
/// needs more memory than the core's budget has. All other damage is in the report.
pub async fn probe(
    device: Rc<dyn BlockDevice>,
    start_sector: Sector,
    depth: Depth,
) -> Result<ProbeReport, Error> {
    let name = device.name().to_owned();
    let capacity = device.limits().capacity;
    let area = capacity.saturating_sub(start_sector);
    if area == Sector::ZERO {
        let what = match capacity {
            Sector::ZERO => "is empty: it has no sector".to_owned(),
            _ => format!("has {capacity} sectors, none at start sector {start_sector}"),
        };
        return Err(Error::invalid(format!("{name}: {what}")));
    }
    let mut config = Config::new(Mode::Ssd, "its origin", name.clone(), 4096);
    config.start_sector = start_sector;
    config.write_buffer = 0; // its memory keeps its size
    let place = Place { config, device, area_bytes: area.bytes() };
    let head = place.read(0, HEAD_BYTES.min(area.bytes())).await;
    let head = head.map_err(|status| Error::io(format!("{name}: read superblock: {status}")))?;
    let head = head.read(<[u8]>::to_vec);
    let mut report = ProbeReport {
        area,
        contents: Contents::Unknown,
        damage: Vec::new(),
        damage_left_out: 0,
        notes: Vec::new(),
        unused_journals: Vec::new(),
        fingerprint: format::checksum(&head),
    };
    if head.iter().all(|&byte| byte == 0) {
        report.contents = Contents::Blank;
    } else if format::dm::has_magic(&head) {
        dm::probe(&place, &mut report, &head).await?;
    } else if has_superblocks(&head) {
        native::probe(&place, &mut report, &head, depth).await?;
    } else if let Some(former) = Former::of(&head) {
        report.contents = former.into();
    }
    Ok(report)
}

/// Whether all superblock copies lie in `head`.
fn has_superblocks(head: &[u8]) -> bool {
    let ends = Geometry::superblock_offset(SUPERBLOCK_COPIES - 1) + UNIT as u64;
    head.len() as u64 >= ends
}

/// Ranges of sectors of ascending blocks.
fn ranges(blocks: &RoaringTreemap, block_sectors: u64) -> Vec<(Sector, Sector)> {
    let mut ranges: Vec<(Sector, Sector)> = Vec::new();
    let one = Sector(block_sectors);
    for block in blocks {
        let at = Sector(block * block_sectors);
        match ranges.last_mut() {
            Some((start, len)) if *start + *len == at => *len += one,
            _ => ranges.push((at, one)),
        }
    }
    ranges
}
