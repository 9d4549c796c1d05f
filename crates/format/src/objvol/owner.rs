// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owner records: which host and which cache the volume belongs to, and whether everything that the
//! cache acknowledged is in the volume. The one with the highest place counts.
//!
//! ```text
//! 64      80    81          82           84         128
//! │ cache │ state │ reserved │ host_bytes │ reserved │ host …
//! ```

use super::manifest::HOST_BYTES_MAX;
use super::{Identity, ObjectDamage, Place, check_common, check_place, finish};

const HEADER: usize = 128;
const MAGIC: [u8; 8] = *b"MPOVOWNR";
const CACHE: std::ops::Range<usize> = 64..80;
const STATE: usize = 80;
const HOST_BYTES: std::ops::Range<usize> = 82..84;

/// What an owner may hold that the volume does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner has the volume open, or died with it.
    Attached,
    /// The owner closed it: nothing lives outside the volume.
    Clean,
}

/// An owner record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who wrote it; the sequence counts the records of an epoch, from 1.
    pub identity: Identity,
    /// UUID of the write cache above; zeroes without one.
    pub cache: [u8; 16],
    /// What it may hold.
    pub state: OwnerState,
    /// Its host.
    pub host: String,
}

impl Owner {
    /// The bytes of the record.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Place { epoch, sequence } = self.identity.place;
        assert!(epoch > 0 && sequence > 0 && self.host.len() <= HOST_BYTES_MAX, "{self:?}");
        let mut object = vec![0; HEADER + self.host.len()];
        object[CACHE].copy_from_slice(&self.cache);
        object[STATE] = match self.state {
            OwnerState::Attached => 1,
            OwnerState::Clean => 2,
        };
        let host_bytes = u16::try_from(self.host.len()).expect("asserted above");
        object[HOST_BYTES].copy_from_slice(&host_bytes.to_le_bytes());
        object[HEADER..].copy_from_slice(self.host.as_bytes());
        let end = object.len();
        finish(&mut object, MAGIC, &self.identity, end);
        object
    }

    /// Decodes the owner record at `place` of the volume `uuid`.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(object: &[u8], uuid: &[u8; 16], place: Place) -> Result<Owner, ObjectDamage> {
        let (head, identity) = check_common(object, MAGIC, uuid, HEADER)?;
        check_place(&identity, place)?;
        if place.epoch == 0 || place.sequence == 0 {
            return Err(ObjectDamage::Field("place"));
        }
        let state = match head[STATE] {
            1 => OwnerState::Attached,
            2 => OwnerState::Clean,
            _ => return Err(ObjectDamage::Field("state")),
        };
        if head[STATE + 1] != 0 || !crate::is_blank(&head[HOST_BYTES.end..HEADER]) {
            return Err(ObjectDamage::Field("reserved"));
        }
        let host_bytes = u16::from_le_bytes([head[HOST_BYTES.start], head[HOST_BYTES.start + 1]]);
        let host = &head[HEADER..];
        if host.len() != usize::from(host_bytes) || host.len() > HOST_BYTES_MAX {
            return Err(ObjectDamage::Field("host_bytes"));
        }
        let host = std::str::from_utf8(host).map_err(|_| ObjectDamage::Field("host"))?;
        let cache = head[CACHE].try_into().expect("16 bytes");
        Ok(Owner { identity, cache, state, host: host.to_owned() })
    }
}
