// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zstd: one frame a page. Contexts and dictionary tables are kept.
use ::zstd::zstd_safe::{
    CCtx, CParameter, DCtx, ErrorCode, get_error_name, max_c_level, min_c_level,
};
use block::Error;

use super::Corrupt;

/// Least, most and default level.
pub(super) fn levels() -> (i32, i32, i32) {
    (min_c_level(), max_c_level(), ::zstd::DEFAULT_COMPRESSION_LEVEL)
}

/// zstd with its level and dictionary.
pub(super) struct Zstd {
    to: CCtx<'static>,
    from: DCtx<'static>,
}

impl Zstd {
    pub(super) fn new(level: i32, dict: Option<&[u8]>) -> Result<Zstd, Error> {
        let refused = |what| {
            move |code: ErrorCode| {
                Error::invalid(format!("zstd {what} is refused: {}", get_error_name(code)))
            }
        };
        let (mut to, mut from) = (CCtx::create(), DCtx::create());
        to.set_parameter(CParameter::CompressionLevel(level)).map_err(refused("level"))?;
        // Every page has one object and one dictionary: a frame does not name it.
        to.set_parameter(CParameter::DictIdFlag(false)).map_err(refused("level"))?;
        if let Some(dict) = dict {
            to.load_dictionary(dict).map_err(refused("dict"))?;
            from.load_dictionary(dict).map_err(refused("dict"))?;
            // A damaged dictionary shows when it is first used.
            let mut out = [0; 64];
            to.compress2(&mut out[..], &[0; 1]).map_err(refused("dict"))?;
        }
        Ok(Zstd { to, from })
    }

    pub(super) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.to.compress2(out, page).ok()
    }

    pub(super) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        match self.from.decompress(page, object) {
            Ok(done) if done == page.len() => Ok(()),
            Ok(_) | Err(_) => Err(Corrupt),
        }
    }
}
