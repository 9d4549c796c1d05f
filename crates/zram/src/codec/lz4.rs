// SPDX-License-Identifier: Apache-2.0 OR MIT
//! lz4 and lz4hc: one block a page, without a length before it.
//!
//! Measured at 4 KiB (half of each page compressible; text): the library in C compresses as fast as
//! lz4_flex and decompresses in 0.6 and 1.6 µs against 2.5 and 1.9.
use std::sync::Arc;

use ::lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use block::PAGE;

use super::Corrupt;

/// Acceleration: least, most, default. As in the kernel, the library takes what is above 65537
/// (its LZ4_ACCELERATION_MAX) for that.
pub(super) const FAST_LEVELS: (i32, i32, i32) = (1, i32::MAX, 1);
/// Least, most and default level: the kernel's. The library takes what is above 12 (lz4hc.h) for
/// that.
pub(super) const HC_LEVELS: (i32, i32, i32) = (1, 16, 9);
/// What a match can reach back to: more of a dictionary is no use.
const DISTANCE_MAX: usize = 65535;

/// lz4 without a dictionary, or lz4hc.
pub(super) struct Lz4(pub(super) CompressionMode);

impl Lz4 {
    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        compress_to_buffer(page, Some(self.0), false, out).ok()
    }
}

/// Decompresses what it has made.
pub(super) fn decompress(object: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
    let len = i32::try_from(page.len()).map_err(|_| Corrupt)?;
    match decompress_to_buffer(object, Some(len), page) {
        Ok(done) if done == page.len() => Ok(()),
        Ok(_) | Err(_) => Err(Corrupt),
    }
}

/// lz4 with a dictionary.
pub(super) struct FastDict {
    dict: Arc<[u8]>,
    /// As long as an object can become: the compressor wants that much room.
    longest: Box<[u8]>,
}

impl FastDict {
    pub(super) fn new(dict: Arc<[u8]>) -> FastDict {
        let longest = lz4_flex::block::get_maximum_output_size(PAGE);
        FastDict { dict, longest: vec![0; longest].into() }
    }

    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        let dict = reachable(&self.dict);
        let len = lz4_flex::block::compress_into_with_dict(page, &mut self.longest, dict).ok()?;
        out.get_mut(..len)?.copy_from_slice(&self.longest[..len]);
        Some(len)
    }

    pub(super) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        let dict = reachable(&self.dict);
        match lz4_flex::block::decompress_into_with_dict(object, page, dict) {
            Ok(done) if done == page.len() => Ok(()),
            Ok(_) | Err(_) => Err(Corrupt),
        }
    }
}

/// The end of a dictionary, which is what its users put the likeliest in.
fn reachable(dict: &[u8]) -> &[u8] {
    &dict[dict.len().saturating_sub(DISTANCE_MAX)..]
}
