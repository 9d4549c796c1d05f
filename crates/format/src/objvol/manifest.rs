// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Manifests: who opened the volume for writing, and what the volume is. Whoever creates the
//! manifest of an epoch is its only writer.
//!
//! ```text
//! 64               72          80              84       86           88        104     128
//! │ volume_sectors │ opened_at │ segment_bytes │ window │ host_bytes │ lineage │ words │ host …
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{COMMON, Identity, ObjectDamage, Place, RECORD_BYTES_MAX, VERSION, VERSION_FEATURES};
use super::{VOLUME_SECTORS_MAX, check_place, check_versions, finish_version, later, wrong_magic};
use crate::features::{Features, Later};

/// Bytes of data in the smallest segment that may be chosen. Tests take small ones; a real volume
/// takes 4 MiB or more, for the price of requests.
pub const SEGMENT_BYTES_MIN: u32 = 4096;
/// Bytes of data in the largest segment: places in a segment have 16 bits, of sectors.
pub const SEGMENT_BYTES_MAX: u32 = 16 << 20;
/// Segments in flight at most.
pub const WINDOW_MAX: u16 = 256;
/// Bytes of a host's name at most.
pub const HOST_BYTES_MAX: usize = 255;

const HEADER: usize = 128;
const MAGIC: [u8; 8] = *b"MPOVMANI";
/// The version of an epoch whose checkpoints may be increments.
const VERSION_INCREMENTS: u16 = 2;
/// The bit of `incompat` that says so in version 3.
const INCOMPAT_INCREMENTS: u64 = 1;

/// The manifest of an epoch. Its place is `(epoch, 0)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Who wrote it.
    pub identity: Identity,
    /// Size of the volume.
    pub volume_sectors: u64,
    /// When the epoch was opened, by the clock of its host: seconds since 1970.
    pub opened_at: u64,
    /// Bytes of data after which a segment is sent.
    pub segment_bytes: u32,
    /// `W`: a segment is sent only while it is at most so far behind the end of the durable chain.
    pub window: u16,
    /// Changes when somebody takes a volume without the cache that belongs to it.
    pub lineage: [u8; 16],
    /// The host that opened it.
    pub host: String,
    /// Checkpoints of the epoch may be increments: a program that does not know them refuses the
    /// manifest, before it changes anything.
    pub has_increments: bool,
    /// What later programs have said. A manifest that follows has nothing of it.
    pub later: Option<Later>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ManifestMedia {
    volume_sectors: U64,
    opened_at: U64,
    segment_bytes: U32,
    window: U16,
    host_bytes: U16,
    lineage: [u8; 16],
    features: Features,
}

const _: () = assert!(COMMON + size_of::<ManifestMedia>() == HEADER);

impl Manifest {
    fn wrong_field(&self) -> Option<&'static str> {
        let place = self.identity.place;
        if place.epoch == 0 || place.sequence != 0 {
            return Some("place");
        }
        if !(1..=VOLUME_SECTORS_MAX).contains(&self.volume_sectors) {
            return Some("volume_sectors");
        }
        let is_whole = self.segment_bytes.is_multiple_of(512);
        if !is_whole || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            return Some("segment_bytes");
        }
        if !(1..=WINDOW_MAX).contains(&self.window) {
            return Some("window");
        }
        if self.host.len() > HOST_BYTES_MAX {
            return Some("host");
        }
        let room = self.later.as_ref().map_or(0, |later| later.room.len());
        (HEADER + self.host.len() + room > RECORD_BYTES_MAX).then_some("room")
    }

    /// Checks that the volume may be written by this program.
    ///
    /// # Errors
    /// [`ObjectDamage::Later`]
    pub fn check_writable(&self) -> Result<(), ObjectDamage> {
        super::check_writable(self.later.as_ref())
    }

    /// The bytes of the manifest.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.wrong_field(), None, "{self:?}");
        let mut object = vec![0; HEADER];
        let features = match &self.later {
            None => Features::default(),
            later => Features::new(u64::from(self.has_increments), 0, later.as_ref()),
        };
        let media = ManifestMedia {
            volume_sectors: U64::new(self.volume_sectors),
            opened_at: U64::new(self.opened_at),
            segment_bytes: U32::new(self.segment_bytes),
            window: U16::new(self.window),
            host_bytes: U16::new(u16::try_from(self.host.len()).expect("checked above")),
            lineage: self.lineage,
            features,
        };
        object[COMMON..HEADER].copy_from_slice(media.as_bytes());
        object.extend_from_slice(self.host.as_bytes());
        object.extend(self.later.iter().flat_map(|later| &later.room));
        let end = object.len();
        let version = match (&self.later, self.has_increments) {
            (Some(_), _) => VERSION_FEATURES,
            (None, true) => VERSION_INCREMENTS,
            (None, false) => VERSION,
        };
        finish_version(&mut object, MAGIC, &self.identity, end, version);
        object
    }

    /// The UUID of the volume that a manifest says it belongs to: the first object that is read of
    /// a volume.
    ///
    /// # Errors
    /// [`ObjectDamage`] if it is no manifest at all.
    pub fn volume_uuid(object: &[u8]) -> Result<[u8; 16], ObjectDamage> {
        if !object.starts_with(&MAGIC) {
            return Err(wrong_magic(object));
        }
        let uuid = object.get(16..32).and_then(|uuid| uuid.try_into().ok());
        uuid.ok_or_else(|| super::short(object, HEADER as u64))
    }

    /// Decodes the manifest of `epoch` of the volume `uuid`.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(object: &[u8], uuid: &[u8; 16], epoch: u64) -> Result<Manifest, ObjectDamage> {
        let (head, identity, version) =
            check_versions(object, MAGIC, uuid, HEADER, VERSION_FEATURES)?;
        check_place(&identity, Place { epoch, sequence: 0 })?;
        let (media, rest) = ManifestMedia::ref_from_prefix(&head[COMMON..])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        let names = rest.split_at_checked(usize::from(media.host_bytes.get()));
        let (host, room) = names.ok_or(ObjectDamage::Field("host_bytes"))?;
        let has_words = version == VERSION_FEATURES;
        let later = later(&media.features, INCOMPAT_INCREMENTS, room)?;
        // FM-OV2: it has words if they say something that the versions before can't.
        if later.is_some() != has_words || !has_words && media.features != Features::default() {
            return Err(ObjectDamage::Field("reserved"));
        }
        if !has_words && !room.is_empty() {
            return Err(ObjectDamage::Field("host_bytes"));
        }
        let host = std::str::from_utf8(host).map_err(|_| ObjectDamage::Field("host"))?;
        let manifest = Manifest {
            identity,
            volume_sectors: media.volume_sectors.get(),
            opened_at: media.opened_at.get(),
            segment_bytes: media.segment_bytes.get(),
            window: media.window.get(),
            lineage: media.lineage,
            host: host.to_owned(),
            has_increments: version == VERSION_INCREMENTS
                || media.features.incompat.get() & INCOMPAT_INCREMENTS != 0,
            later,
        };
        match manifest.wrong_field() {
            Some(field) => Err(ObjectDamage::Field(field)),
            None => Ok(manifest),
        }
    }
}
