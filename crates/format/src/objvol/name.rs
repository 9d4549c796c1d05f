// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of objects under the prefix of a volume.
//!
//! ```text
//! manifest/EPOCH                 16 hexadecimal digits each, so that the order of names
//! segment/EPOCH/SEQUENCE         is that of epochs and sequences; a seal has the name
//! checkpoint/EPOCH/SEQUENCE      of the segment in whose place it lies
//! owner/EPOCH/SEQUENCE
//! probe/NUMBER
//! ```

/// Folder of manifests.
pub const MANIFESTS: &str = "manifest/";
/// Folder of segments and seals.
pub const SEGMENTS: &str = "segment/";
/// Folder of checkpoints.
pub const CHECKPOINTS: &str = "checkpoint/";
/// Folder of owner records.
pub const OWNERS: &str = "owner/";

/// Folder of objects by which an opening finds out whether the store has conditional writes.
pub const PROBES: &str = "probe/";

const DIGITS: usize = 16;

/// A place in the history of a volume: epoch of the writer, and number of the segment in it. The
/// order is that of history. Epochs and sequences count from 1; zeroes mean "before the first".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Epoch of the writer.
    pub epoch: u64,
    /// Number in the epoch.
    pub sequence: u64,
}

impl Place {
    /// The place of a segment.
    #[must_use]
    pub const fn new(epoch: u64, sequence: u64) -> Place {
        Place { epoch, sequence }
    }

    /// The place behind it in the same epoch.
    #[must_use]
    pub const fn next(self) -> Place {
        Place { epoch: self.epoch, sequence: self.sequence + 1 }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.sequence)
    }
}

/// Name of the manifest of an epoch.
#[must_use]
pub fn manifest_name(epoch: u64) -> String {
    format!("{MANIFESTS}{epoch:016x}")
}

/// Name of a probe.
#[must_use]
pub fn probe_name(number: u64) -> String {
    format!("{PROBES}{number:016x}")
}

/// Name of the object at `place` in one of the other folders.
#[must_use]
pub fn place_name(folder: &str, place: Place) -> String {
    format!("{folder}{:016x}/{:016x}", place.epoch, place.sequence)
}

/// The epoch of a manifest's name; `None` for any other name.
#[must_use]
pub fn parse_manifest_name(name: &str) -> Option<u64> {
    number(name.strip_prefix(MANIFESTS)?)
}

/// The place of a name in `folder`; `None` for any other name.
#[must_use]
pub fn parse_place_name(folder: &str, name: &str) -> Option<Place> {
    let (epoch, sequence) = name.strip_prefix(folder)?.split_once('/')?;
    Some(Place { epoch: number(epoch)?, sequence: number(sequence)? })
}

fn number(digits: &str) -> Option<u64> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() != DIGITS || !digits.bytes().all(is_digit) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}
