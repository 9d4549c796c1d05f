// SPDX-License-Identifier: Apache-2.0 OR MIT
//! deflate: one stream a page.
//!
//! Invariants
//! - ZR-DE1 A stream is always finished, or its state dropped: zlib-rs (0.6.8) loses some of its
//!   buffer with each unfinished stream that is reset, and panics when none is left.
use block::{Error, PAGE};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::Corrupt;

/// Least, most and default level. 0 stores a page as it is, -1 is the default.
pub(super) const LEVELS: (i32, i32, i32) = (-1, 9, 6);
/// The kernel's: a window of 2 KiB, and neither header nor checksum.
pub(super) const WINBITS_DEFAULT: i32 = -11;
const WINBITS_MIN: i32 = 9;
const WINBITS_MAX: i32 = 15;
/// More than any page becomes: a literal has at most 15 bits.
const LONGEST: usize = 2 * PAGE;

pub(super) fn check_winbits(winbits: i32) -> Result<(), Error> {
    if (WINBITS_MIN..=WINBITS_MAX).contains(&winbits.saturating_abs()) {
        return Ok(());
    }
    let allowed = format!(
        "{WINBITS_MIN} to {WINBITS_MAX}, or -{WINBITS_MAX} to -{WINBITS_MIN} \
         for a stream without header and checksum"
    );
    Err(Error::invalid(format!("deflate.winbits {winbits}: it must be {allowed}")))
}

/// deflate with its level and window.
pub(super) struct Deflate {
    level: Compression,
    header: bool,
    winbits: u8,
    to: Compress,
    from: Decompress,
    /// Where every stream fits.
    longest: Box<[u8]>,
}

impl Deflate {
    /// For a level and a window that have been checked.
    pub(super) fn new(level: i32, winbits: i32) -> Deflate {
        let (_, _, default) = LEVELS;
        let level = if level < 0 { default } else { level };
        let level = Compression::new(level.unsigned_abs());
        let header = winbits > 0;
        let winbits = u8::try_from(winbits.unsigned_abs()).expect("checked: at most 15");
        let longest = vec![0; LONGEST].into();
        let to = Compress::new_with_window_bits(level, header, winbits);
        // A window of any size is read with the largest: nothing is copied to it, as the page
        // itself has all that matches reach.
        Deflate { level, header, winbits, to, from: Decompress::new(header), longest }
    }

    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.to.reset();
        let done = self.to.compress(page, &mut self.longest, FlushCompress::Finish);
        if !matches!(done, Ok(Status::StreamEnd)) {
            // ZR-DE1
            self.to = Compress::new_with_window_bits(self.level, self.header, self.winbits);
            return None;
        }
        let len = usize::try_from(self.to.total_out()).ok()?;
        out.get_mut(..len)?.copy_from_slice(&self.longest[..len]);
        Some(len)
    }

    pub(super) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        self.from.reset(self.header);
        let done = self.from.decompress(object, page, FlushDecompress::Finish);
        let whole = self.from.total_out() == page.len() as u64
            && self.from.total_in() == object.len() as u64;
        if matches!(done, Ok(Status::StreamEnd)) && whole {
            return Ok(());
        }
        // ZR-DE1
        self.from = Decompress::new(self.header);
        Err(Corrupt)
    }
}
