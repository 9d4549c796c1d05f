// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owner: a cache stores the identity of its origin, and refuses another one.
//!
//! Dirty blocks that are written back to another device would destroy its data, and clean blocks
//! would be returned in place of its data. So the superblock has the size of the origin, and a hash
//! of its identity, if it has one ([`BlockDevice::identity`]).
//!
//! | the superblock has | the origin is | |
//! |---|---|---|
//! | another size | any, and the cache holds no block | adopted, with its size |
//! | another size | any | refused |
//! | no identity | known | adopted |
//! | any | unknown | only the size counts |
//! | an identity | the same | opened |
//! | an identity | another, and the cache holds no block | adopted: there is nothing to mix up |
//! | an identity | another | refused, unless the table says `adopt_origin` |
use block::{BlockDevice, Error, Sector};
use format::Superblock;

use crate::config::Config;
use crate::map::Slots;
use crate::planted::Fault;

/// The identity in a superblock whose origin is not known.
pub(crate) const NO_ORIGIN: [u8; 16] = [0; 16];

/// The origin that the superblock must name before the cache is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adoption {
    pub(crate) origin_id: [u8; 16],
    pub(crate) origin_sectors: u64,
}

/// The change of the superblock, if it must change; `sectors` is the length of the table.
///
/// # Errors
/// `EINVAL` when the cache holds blocks of another origin.
pub(crate) fn ownership(
    config: &Config,
    superblock: &Superblock,
    origin: &dyn BlockDevice,
    sectors: Sector,
    slots: &Slots,
) -> Result<Option<Adoption>, Error> {
    let counts = slots.counts();
    let dirty = counts.dirty + counts.zero;
    let cached = dirty + counts.clean + counts.bad + counts.old;
    let (has, cache) = (superblock.origin_sectors, &config.cache);
    if has != sectors.0 && cached > 0 {
        return Err(Error::invalid(format!(
            "cache device {cache} holds {cached} blocks ({dirty} dirty) of an origin of {has} \
             sectors, the table maps {sectors}: it is another origin's cache, or the origin was \
             resized. Make a table of {has} sectors; `millpond resize NAME` gives the device \
             another size then; nothing was changed"
        )));
    }
    let resized = Adoption { origin_id: superblock.origin_id, origin_sectors: sectors.0 };
    let unchanged = (has != sectors.0).then_some(resized);
    let Some(identity) = origin.identity() else { return Ok(unchanged) };
    let id = format::origin_id(&identity);
    if superblock.origin_id == id {
        return Ok(unchanged);
    }
    let is_unchecked = config.planted.is(Fault::LineageUnchecked);
    if superblock.origin_id == NO_ORIGIN || cached == 0 || config.adopt_origin || is_unchecked {
        return Ok(Some(Adoption { origin_id: id, ..resized }));
    }
    Err(Error::invalid(format!(
        "cache device {cache} holds {cached} blocks ({dirty} dirty) of another origin: its own has \
         identity {}, {} has {} ({identity}): it is another device, or a copy. If it does take \
         the place of the cache's own, say so by the option adopt_origin; nothing was changed",
        hex(&superblock.origin_id),
        config.origin,
        hex(&id),
    )))
}

/// An identity as messages show it.
pub(crate) fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
