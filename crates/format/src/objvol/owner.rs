// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Owner records: which host has the volume open, and which write cache above may hold what the
//! volume does not have. The one with the highest place counts.
//!
//! ```text
//! 64      80      81     82           84             86     88            96      120    128
//! │ cache │ state │ zero │ host_bytes │ device_bytes │ zero │ attached_at │ words │ zero │ host,
//!   device, room
//! ```
//!
//! A record that says when a cache was attached has version 2, so that a program that knows nothing
//! of caches refuses the volume, and does not write behind the cache's back.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::manifest::HOST_BYTES_MAX;
use super::{COMMON, Identity, ObjectDamage, Place, RECORD_BYTES_MAX, VERSION, VERSION_FEATURES};
use super::{check_place, check_versions, finish_version, later};
use crate::features::{Features, Later};

/// Bytes of the name of a cache device at most.
pub const DEVICE_BYTES_MAX: usize = 255;

const HEADER: usize = 128;
const MAGIC: [u8; 8] = *b"MPOVOWNR";
/// The version of records with the time at which a cache was attached.
const VERSION_WITH_TIME: u16 = 2;

/// Whether a host has the volume open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner has the volume open, or died with it.
    Attached,
    /// The owner closed it: nothing lives outside the volume, but what a cache that is named holds.
    Clean,
}

/// The write cache above a volume, as the volume names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCache {
    /// Its UUID, which is not zero.
    pub uuid: [u8; 16],
    /// When it was attached, by the clock of its host: seconds since 1970; 0 when it is not known.
    pub attached_at: u64,
    /// Its cache device, as its table names it; empty when the time is not known.
    pub device: String,
}

/// An owner record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who wrote it; the sequence counts the records of an epoch, from 1.
    pub identity: Identity,
    /// The write cache above, which may hold what the volume does not have.
    pub cache: Option<RecordedCache>,
    /// Whether the host has it open.
    pub state: OwnerState,
    /// The host.
    pub host: String,
    /// What later programs have said. A record that follows has nothing of it.
    pub later: Option<Later>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OwnerMedia {
    cache: [u8; 16],
    state: u8,
    reserved: u8,
    host_bytes: U16,
    device_bytes: U16,
    reserved_too: U16,
    attached_at: U64,
    features: Features,
    reserved_rest: [u8; 8],
}

const _: () = assert!(COMMON + size_of::<OwnerMedia>() == HEADER);

impl Owner {
    fn wrong_field(&self) -> Option<&'static str> {
        let Place { epoch, sequence } = self.identity.place;
        if epoch == 0 || sequence == 0 {
            return Some("place");
        }
        if self.host.len() > HOST_BYTES_MAX {
            return Some("host");
        }
        let cache = self.cache.as_ref();
        let device = cache.map_or(0, |cache| cache.device.len());
        let room = self.later.as_ref().map_or(0, |later| later.room.len());
        if HEADER + self.host.len() + device + room > RECORD_BYTES_MAX {
            return Some("room");
        }
        let cache = cache?;
        if crate::is_blank(&cache.uuid) {
            return Some("cache");
        }
        let is_too_long = cache.device.len() > DEVICE_BYTES_MAX;
        let is_alone = cache.attached_at == 0 && !cache.device.is_empty();
        (is_too_long || is_alone).then_some("device")
    }

    /// Checks that the volume may be written by this program.
    ///
    /// # Errors
    /// [`ObjectDamage::Later`]
    pub fn check_writable(&self) -> Result<(), ObjectDamage> {
        super::check_writable(self.later.as_ref())
    }

    /// The bytes of the record.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.wrong_field(), None, "{self:?}");
        let cache = self.cache.as_ref();
        let device = cache.map_or("", |cache| &cache.device);
        let length = |text: &str| U16::new(u16::try_from(text.len()).expect("checked above"));
        let attached_at = cache.map_or(0, |cache| cache.attached_at);
        let media = OwnerMedia {
            cache: cache.map_or([0; 16], |cache| cache.uuid),
            state: match self.state {
                OwnerState::Attached => 1,
                OwnerState::Clean => 2,
            },
            reserved: 0,
            host_bytes: length(&self.host),
            device_bytes: length(device),
            reserved_too: U16::ZERO,
            attached_at: U64::new(attached_at),
            features: Features::new(0, 0, self.later.as_ref()),
            reserved_rest: [0; 8],
        };
        let mut object = vec![0; COMMON];
        object.extend_from_slice(media.as_bytes());
        object.extend_from_slice(self.host.as_bytes());
        object.extend_from_slice(device.as_bytes());
        object.extend(self.later.iter().flat_map(|later| &later.room));
        let end = object.len();
        let version = match (&self.later, attached_at) {
            (Some(_), _) => VERSION_FEATURES,
            (None, 1..) => VERSION_WITH_TIME,
            (None, 0) => VERSION,
        };
        finish_version(&mut object, MAGIC, &self.identity, end, version);
        object
    }

    /// Decodes the owner record at `place` of the volume `uuid`.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(object: &[u8], uuid: &[u8; 16], place: Place) -> Result<Owner, ObjectDamage> {
        let (head, identity, version) =
            check_versions(object, MAGIC, uuid, HEADER, VERSION_FEATURES)?;
        check_place(&identity, place)?;
        let (media, rest) = OwnerMedia::ref_from_prefix(&head[COMMON..])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        let state = match media.state {
            1 => OwnerState::Attached,
            2 => OwnerState::Clean,
            _ => return Err(ObjectDamage::Field("state")),
        };
        let is_reserved_zero = media.reserved == 0 && media.reserved_too.get() == 0;
        if !is_reserved_zero || !crate::is_blank(&media.reserved_rest) {
            return Err(ObjectDamage::Field("reserved"));
        }
        let (attached_at, host_bytes) = (media.attached_at.get(), media.host_bytes.get().into());
        let has_words = version == VERSION_FEATURES;
        if !has_words && (version == VERSION_WITH_TIME) != (attached_at > 0) {
            return Err(ObjectDamage::Field("attached_at"));
        }
        let names = rest.split_at_checked(host_bytes + usize::from(media.device_bytes.get()));
        let (names, room) = names.ok_or(ObjectDamage::Field("host_bytes"))?;
        let later = later(&media.features, 0, room)?;
        // FM-OV2: it has words if they say something that the versions before can't.
        if later.is_some() != has_words || !has_words && media.features != Features::default() {
            return Err(ObjectDamage::Field("reserved"));
        }
        if !has_words && !room.is_empty() {
            return Err(ObjectDamage::Field("host_bytes"));
        }
        let (host, device) = names.split_at(host_bytes);
        let text = |bytes, field| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(ObjectDamage::Field(field)),
        };
        let (host, device) = (text(host, "host")?, text(device, "device")?);
        let has_cache = !crate::is_blank(&media.cache);
        if !has_cache && (attached_at > 0 || !device.is_empty()) {
            return Err(ObjectDamage::Field("cache"));
        }
        let cache = has_cache.then_some(RecordedCache { uuid: media.cache, attached_at, device });
        let owner = Owner { identity, cache, state, host, later };
        match owner.wrong_field() {
            Some(field) => Err(ObjectDamage::Field(field)),
            None => Ok(owner),
        }
    }
}
