// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Open: a guard is looked for before anything is written, and what a crash has interrupted is
//! ended before the cache uses its origin.
//!
//! ```text
//!   recovery: find ─▶ open ─▶ the cache ─▶ attach
//! ```
use std::rc::Rc;

use block::{BlockDevice, Error, Sector};
use format::Superblock;

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

/// Ends what a crash has interrupted in the guard of the origin. The superblock names the guard
/// before anything of it is written, and until nothing of it is left.
///
/// # Errors
/// Those of the devices; the next open goes on.
pub(crate) async fn open(
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
