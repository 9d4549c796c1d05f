// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots: what a checkpoint lists of them, and how a segment says that one was made or deleted.
//!
//! ```text
//! 0       8          16           24               32     33           34     40       96
//! │ epoch │ sequence │ created_at │ volume_sectors │ kind │ name_bytes │ zero │ name … │
//! ```
//!
//! Invariants
//! - FM-SN1 `place` names a checkpoint that is older than the object with the entry, or is that
//!   object itself: a snapshot never names what has yet to be written.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Place, VOLUME_SECTORS_MAX};

/// Bytes of a snapshot's name at most.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 56;
/// Snapshots of a volume at most. Chosen: a listing that fits on a few screens; each keeps a
/// checkpoint, a whole map, in the store.
pub const SNAPSHOTS_MAX: usize = 256;

/// Bytes of an entry.
pub(super) const ENTRY: usize = 96;

/// A snapshot: a name for the state of a volume as of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// The place of the checkpoint that has its map.
    pub place: Place,
    /// When it was made, by the clock of the host: seconds since 1970.
    pub created_at: u64,
    /// Size of the volume then.
    pub volume_sectors: u64,
}

/// What a segment says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// It was made.
    Created(Snapshot),
    /// It was deleted.
    Deleted(Snapshot),
}

impl SnapshotChange {
    /// The snapshot that was made or deleted.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        match self {
            SnapshotChange::Created(snapshot) | SnapshotChange::Deleted(snapshot) => snapshot,
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SnapshotMedia {
    epoch: U64,
    sequence: U64,
    created_at: U64,
    volume_sectors: U64,
    kind: u8,
    name_bytes: u8,
    zero: [u8; 6],
    name: [u8; SNAPSHOT_NAME_BYTES_MAX],
}

const _: () = assert!(size_of::<SnapshotMedia>() == ENTRY);

/// Whether a snapshot may have this name: 1 to 56 letters, digits and `-_.`, the first no `-` or
/// `.`.
#[must_use]
pub fn is_snapshot_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (1..=SNAPSHOT_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(is_plain)
        && !name.starts_with(['-', '.'])
}

impl Snapshot {
    /// The field that no writer makes, of an entry in the object at `newest`.
    pub(super) fn wrong_field(&self, newest: Place) -> Option<&'static str> {
        if !is_snapshot_name(&self.name) {
            return Some("name");
        }
        let is_known = self.place.epoch > 0 && self.place.sequence > 0;
        if !is_known || self.place > newest {
            return Some("place"); // FM-SN1
        }
        let is_size = (1..=VOLUME_SECTORS_MAX).contains(&self.volume_sectors);
        if is_size { None } else { Some("volume_sectors") }
    }
}

pub(super) fn encode(change: &SnapshotChange) -> SnapshotMedia {
    let kind = match change {
        SnapshotChange::Created(_) => 1,
        SnapshotChange::Deleted(_) => 2,
    };
    let Snapshot { name, place, created_at, volume_sectors } = change.snapshot();
    let mut media = SnapshotMedia {
        epoch: U64::new(place.epoch),
        sequence: U64::new(place.sequence),
        created_at: U64::new(*created_at),
        volume_sectors: U64::new(*volume_sectors),
        kind,
        name_bytes: u8::try_from(name.len()).expect("names are short"),
        zero: [0; 6],
        name: [0; SNAPSHOT_NAME_BYTES_MAX],
    };
    media.name[..name.len()].copy_from_slice(name.as_bytes());
    media
}

pub(super) fn decode(media: &SnapshotMedia) -> Result<SnapshotChange, &'static str> {
    let bytes = usize::from(media.name_bytes);
    let (Some(name), Some(rest)) = (media.name.get(..bytes), media.name.get(bytes..)) else {
        return Err("name_bytes");
    };
    if !crate::is_blank(rest) || !crate::is_blank(&media.zero) {
        return Err("reserved");
    }
    let name = std::str::from_utf8(name).map_err(|_| "name")?.to_owned();
    let snapshot = Snapshot {
        name,
        place: Place { epoch: media.epoch.get(), sequence: media.sequence.get() },
        created_at: media.created_at.get(),
        volume_sectors: media.volume_sectors.get(),
    };
    match media.kind {
        1 => Ok(SnapshotChange::Created(snapshot)),
        2 => Ok(SnapshotChange::Deleted(snapshot)),
        _ => Err("kind"),
    }
}
