// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owner: a cache knows its origin, and refuses another.
//!
//! Blocks written back to a device that they are not of destroy it; clean ones would be served in
//! place of what it holds. So the superblock says of which origin the cache is: its size, and a
//! hash of what tells it from all other devices, where that is known
//! ([`BlockDevice::identity`](block::BlockDevice::identity)).
//!
//! | the superblock has | the origin is | |
//! |---|---|---|
//! | no identity | known | adopted |
//! | any | unknown | only the size counts |
//! | an identity | the same | opened |
//! | an identity | another, and the cache holds no block | adopted: there is nothing to mix up |
//! | an identity | another | refused, unless the table says `adopt_origin` |
use block::{BlockDevice, Error};
use format::Superblock;

use crate::config::Config;
use crate::slots::Slots;

/// What a superblock has that does not know its origin.
pub(crate) const NOBODY: [u8; 16] = [0; 16];

/// The identity that the superblock must get before the cache is used, if it must change.
///
/// # Errors
/// `EINVAL` when the cache holds blocks of another origin.
pub(crate) fn ownership(
    config: &Config,
    superblock: &Superblock,
    origin: &dyn BlockDevice,
    slots: &Slots,
) -> Result<Option<[u8; 16]>, Error> {
    let Some(identity) = origin.identity() else { return Ok(None) };
    let id = format::origin_id(&identity);
    if superblock.origin_id == id {
        return Ok(None);
    }
    let counts = slots.counts();
    let (dirty, held) = (counts.dirty, counts.dirty + counts.clean + counts.bad);
    if superblock.origin_id == NOBODY || held == 0 || config.adopt_origin {
        return Ok(Some(id));
    }
    Err(Error::invalid(format!(
        "cache device {} holds {held} blocks ({dirty} dirty) of another origin: its own has \
         identity {}, {} has {} ({identity}): it is another device, or a copy. If it does take \
         the place of the cache's own, say so by the option adopt_origin; nothing was changed",
        config.cache,
        hex(&superblock.origin_id),
        config.origin,
        hex(&id),
    )))
}

/// An identity as messages show it.
pub(crate) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
