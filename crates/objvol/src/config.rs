// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a volume is made with, and what it is opened with.
use std::rc::Rc;

use block::{Error, Nanos, Planted, Sector};
use format::objvol::{
    HOST_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, VOLUME_SECTORS_MAX, WINDOW_MAX,
};

use crate::planted::Fault;
use crate::request_counts::RequestCounts;

/// Chosen: windows of a usual segment, of which one is read while the next one comes, and as much
/// again for another reader.
pub(crate) const READ_AHEAD_DEFAULT: u64 = 16 << 20;

/// What a volume is for its whole life.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Its size.
    pub sectors: Sector,
    /// Bytes of data of a full segment: 4 KiB to 16 MiB, whole sectors. Less than 4 MiB costs many
    /// requests.
    pub segment_bytes: u32,
    /// Segments in flight at most: 1 to 256.
    pub window: u16,
}

impl Geometry {
    /// The usual volume of this size.
    pub fn new(sectors: Sector) -> Geometry {
        // Chosen: at 50 ms a PUT eight of 4 MiB in flight are 640 MB/s, and 32 MiB of memory.
        Geometry { sectors, segment_bytes: 4 << 20, window: 8 }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let sectors = self.sectors.0;
        if !(1..=VOLUME_SECTORS_MAX).contains(&sectors) {
            return Err(Error::invalid(format!(
                "objvol: {sectors} sectors, allowed are 1 to {VOLUME_SECTORS_MAX}"
            )));
        }
        let bytes = self.segment_bytes;
        let is_whole = bytes.is_multiple_of(512);
        if !is_whole || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
            return Err(Error::invalid(format!(
                "objvol: segment_size {bytes}, allowed are multiples of 512 from \
                 {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )));
        }
        if !(1..=WINDOW_MAX).contains(&self.window) {
            return Err(Error::invalid(format!(
                "objvol: window {}, allowed are 1 to {WINDOW_MAX}",
                self.window
            )));
        }
        Ok(())
    }
}

/// What an opening does about a volume of another size than is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherSize {
    /// It fails.
    #[default]
    Refused,
    /// A smaller volume grows (OV-O7); a larger one is refused.
    Grows,
    /// A larger volume is taken: whoever opens it had it open, and its growth was cut off later.
    MayBeLarger,
}

/// Who opens a volume, and how it works meanwhile.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Name of this host, at most 255 bytes: whoever is fenced by this opening learns it.
    pub host: String,
    /// Wall-clock time, seconds since 1970: an engine has no such clock. For people only.
    pub opened_at: u64,
    /// The size that the caller expects. `None`: any.
    pub sectors: Option<Sector>,
    /// What happens when it has another one.
    pub other_size: OtherSize,
    /// Take the volume although its owner record says that another host has it.
    pub take_over: bool,
    /// The write cache with this UUID is lost: the volume takes changes without it, and what that
    /// alone holds is never applied (OV-A5).
    pub without_cache: Option<[u8; 16]>,
    /// Take a store without conditional writes, too: it is not asked. The caller promises that
    /// nobody else opens the volume, ever: two writers would destroy it without noticing.
    pub single_writer: bool,
    /// A checkpoint is wanted after so many segments; at least 1.
    pub checkpoint_every: u64,
    /// A checkpoint that is wanted waits until so many times the bytes of one with the whole map
    /// were written, unless writers wait for it, nothing is written any more, or an opening would
    /// have to read very many segments.
    pub checkpoint_worth: u64,
    /// Segments are collected, empty and old ones first, while a smaller share of all of them is
    /// live; percent, 0 (never) to 90.
    pub gc_threshold: u32,
    /// Largest map, bytes, at 24 each extent: writes beyond it fail with `NoSpace`.
    pub map_memory: u64,
    /// Memory for data that are read ahead of sequential readers, bytes; 0: none are.
    pub read_ahead: u64,
    /// Garbage is deleted so long after the checkpoint that lists it.
    pub grace: Nanos,
    /// How long an opening, or the making of a volume, repeats a request that the store does not
    /// answer, and how long a close waits for a store that does not work; `None`: without an end.
    /// An opened volume repeats without an end.
    pub patience: Option<Nanos>,
    /// Where the requests are counted.
    pub counts: Rc<RequestCounts>,
    #[doc(hidden)]
    pub planted: Planted<Fault>,
}

impl OpenOptions {
    /// The usual options, for a host.
    pub fn new(host: &str, opened_at: u64) -> OpenOptions {
        OpenOptions {
            host: host.to_owned(),
            opened_at,
            sectors: None,
            other_size: OtherSize::Refused,
            take_over: false,
            without_cache: None,
            single_writer: false,
            // Chosen: 1 GiB of segments of 4 MiB, whose heads recovery reads.
            checkpoint_every: 256,
            // Chosen: 3 % of the bytes that are written, if each had the whole map (decision 0048).
            checkpoint_worth: 32,
            gc_threshold: 75,
            map_memory: 256 << 20,
            read_ahead: READ_AHEAD_DEFAULT,
            grace: Nanos::from_secs(60),
            patience: None,
            counts: Rc::default(),
            planted: Planted::NONE,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.host.len() > HOST_BYTES_MAX {
            return Err(Error::invalid(format!(
                "objvol: the host's name has {} bytes, at most {HOST_BYTES_MAX} are allowed",
                self.host.len()
            )));
        }
        if self.checkpoint_every == 0 {
            return Err(Error::invalid("objvol: checkpoint_every 0, at least 1 is needed"));
        }
        if self.gc_threshold > 90 {
            return Err(Error::invalid(format!(
                "objvol: gc_threshold {}, allowed are 0 to 90 percent",
                self.gc_threshold
            )));
        }
        Ok(())
    }
}
