// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open: a guard is looked for before anything is written, and what a crash has interrupted is
//! ended before the cache uses its origin.
//!
//! ```text
//!   a cache in one part   recovery: find ─▶ open ─▶ the cache            ─▶ attach
//!   in parts              divide ─▶ find ─▶ open ─▶ each part recovers   ─▶ attach
//! ```
//!
//! The records and the mark in the superblock are those of the cache or, in parts, of part 0. Parts
//! leave both alone.
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::Superblock;

use super::find::find;
use super::{FoundGuard, Guard, Place};
use crate::config::Config;
use crate::recovery::superblock::write_copies;

/// Whether the open cache guards its origin: as the table says, else as the cache has it.
pub(crate) fn is_on(config: &Config, superblock: &Superblock, is_new: bool) -> bool {
    config.guard.asked.unwrap_or(match is_new {
        true => config.guard.is_default && !config.lets_origin_alone(),
        false => superblock.guards_origin,
    })
}

/// The guard of a cache in one part, as it is found; nothing of a part.
///
/// # Errors
/// Those of [`find`].
pub(crate) async fn find_of_whole(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    superblock: &Superblock,
    sectors: Sector,
) -> Result<FoundGuard, Error> {
    match config.part {
        Some(_) => Ok(FoundGuard::default()),
        None => find(config, origin, device, superblock, sectors).await,
    }
}

/// The same, opened.
///
/// # Errors
/// Those of the devices; the next open goes on.
pub(crate) async fn open_of_whole(
    config: &Config,
    origin: &Rc<dyn BlockDevice>,
    device: &Rc<dyn BlockDevice>,
    superblock: &mut Superblock,
    found: (Sector, FoundGuard),
) -> Result<Option<Rc<Guard>>, Error> {
    match config.part {
        Some(_) => Ok(None),
        None => open(config, origin, device, superblock, found).await,
    }
}

/// Part 0 of a cache in parts, which has the records of their guard.
pub(crate) struct FirstPart {
    /// As the table has it, with the part's number.
    pub(crate) config: Config,
    pub(crate) superblock: Superblock,
    /// All copies of the superblock agree.
    pub(crate) is_agreed: bool,
    pub(crate) is_new: bool,
}

impl FirstPart {
    /// The guard as it is found.
    ///
    /// # Errors
    /// Those of [`find`].
    pub(crate) async fn find_guard(
        &mut self,
        origin: &dyn BlockDevice,
        device: &dyn BlockDevice,
        sectors: Sector,
    ) -> Result<FoundGuard, Error> {
        self.config.guard.is_on = is_on(&self.config, &self.superblock, self.is_new);
        find(&self.config, origin, device, &self.superblock, sectors).await
    }

    /// Opens the guard, before any part is opened: they use the origin by it.
    ///
    /// # Errors
    /// Those of the devices; the next open goes on.
    pub(crate) async fn open_guard(
        mut self,
        origin: &Rc<dyn BlockDevice>,
        device: &Rc<dyn BlockDevice>,
        (sectors, found): (Sector, FoundGuard),
    ) -> Result<Option<Rc<Guard>>, Error> {
        let (config, superblock) = (&self.config, &mut self.superblock);
        let may_write = found.is_needed(config) || superblock.guards_origin;
        if may_write && !self.is_agreed {
            write_copies(config, &**device, superblock).await?;
        }
        open(config, origin, device, superblock, (sectors, found)).await
    }
}

/// Ends what a crash has interrupted in the guard of the origin. The superblock names the guard
/// before anything of it is written, and until nothing of it is left.
async fn open(
    config: &Config,
    origin: &Rc<dyn BlockDevice>,
    device: &Rc<dyn BlockDevice>,
    superblock: &mut Superblock,
    (sectors, found): (Sector, FoundGuard),
) -> Result<Option<Rc<Guard>>, Error> {
    let is_needed = found.is_needed(config);
    if is_needed && !superblock.guards_origin {
        write_guards_origin(config, device, superblock, true).await?;
    }
    let mut guard = None;
    if is_needed {
        let (origin, device, config) = (origin.clone(), device.clone(), config.clone());
        let device = Some(device);
        let place = Place { origin, device, config, uuid: superblock.uuid, sectors };
        guard = Some(found.settle(place).await?);
    }
    if superblock.guards_origin && !config.guard.is_on {
        write_guards_origin(config, device, superblock, false).await?;
        guard = None;
    }
    Ok(guard)
}

async fn write_guards_origin(
    config: &Config,
    device: &Rc<dyn BlockDevice>,
    superblock: &mut Superblock,
    guards_origin: bool,
) -> Result<(), Error> {
    superblock.guards_origin = guards_origin;
    superblock.generation += 1;
    write_copies(config, &**device, superblock).await
}
