// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Manifests: who opened the volume for writing, and what the volume is. Whoever creates the
//! manifest of an epoch is its only writer.
//!
//! ```text
//! 64               72          80              84       86           88        104        128
//! │ volume_sectors │ opened_at │ segment_bytes │ window │ host_bytes │ lineage │ reserved │ host …
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{COMMON, Identity, ObjectDamage, Place, VERSION, VOLUME_SECTORS_MAX};
use super::{check_place, check_versions, finish_version};

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
    reserved: [u8; 24],
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
        (self.host.len() > HOST_BYTES_MAX).then_some("host")
    }

    /// The bytes of the manifest.
    ///
    /// # Panics
    /// If the decoder would refuse it (FM-OV2).
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.wrong_field(), None, "{self:?}");
        let mut object = vec![0; HEADER + self.host.len()];
        let media = ManifestMedia {
            volume_sectors: U64::new(self.volume_sectors),
            opened_at: U64::new(self.opened_at),
            segment_bytes: U32::new(self.segment_bytes),
            window: U16::new(self.window),
            host_bytes: U16::new(u16::try_from(self.host.len()).expect("checked above")),
            lineage: self.lineage,
            reserved: [0; 24],
        };
        object[COMMON..HEADER].copy_from_slice(media.as_bytes());
        object[HEADER..].copy_from_slice(self.host.as_bytes());
        let end = object.len();
        let version = if self.has_increments { VERSION_INCREMENTS } else { VERSION };
        finish_version(&mut object, MAGIC, &self.identity, end, version);
        object
    }

    /// The UUID of the volume that a manifest says it belongs to: the first object that is read of
    /// a volume. `None` if it is no manifest at all.
    #[must_use]
    pub fn volume_uuid(object: &[u8]) -> Option<[u8; 16]> {
        if !object.starts_with(&MAGIC) {
            return None;
        }
        object.get(16..32)?.try_into().ok()
    }

    /// Decodes the manifest of `epoch` of the volume `uuid`.
    ///
    /// # Errors
    /// [`ObjectDamage`] says why it is none.
    pub fn decode(object: &[u8], uuid: &[u8; 16], epoch: u64) -> Result<Manifest, ObjectDamage> {
        let (head, identity, version) =
            check_versions(object, MAGIC, uuid, HEADER, VERSION_INCREMENTS)?;
        check_place(&identity, Place { epoch, sequence: 0 })?;
        let (media, host) = ManifestMedia::ref_from_prefix(&head[COMMON..])
            .map_err(|_| ObjectDamage::Field("head_bytes"))?;
        if !crate::is_blank(&media.reserved) {
            return Err(ObjectDamage::Field("reserved"));
        }
        if host.len() != usize::from(media.host_bytes.get()) {
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
            has_increments: version == VERSION_INCREMENTS,
        };
        match manifest.wrong_field() {
            Some(field) => Err(ObjectDamage::Field(field)),
            None => Ok(manifest),
        }
    }
}
