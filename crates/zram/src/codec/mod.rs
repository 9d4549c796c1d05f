// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Codec: the compression algorithms of a device, with their parameters.
//!
//! ```text
//!   lz4, lz4hc   the library in C; lz4 with a dictionary: lz4_flex   same format
//!   zstd         the library in C                                    one frame a page
//!   deflate      zlib-rs                                             raw, unless winbits > 0
//! ```
//!
//! Invariants
//! - ZR-CO1 An object decompresses to exactly one page, with the parameters of its compression.
//! - ZR-CO2 Objects come from media: whatever their bytes, the result is a page or `Corrupt`.
//!   Nothing is read or written outside the two slices, and no call panics.
//! - ZR-CO3 A codec keeps no data of a page or an object between two calls.
mod deflate;
mod lz4;
mod zstd;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use ::lz4::block::CompressionMode;
use block::{Error, PAGE};

/// Algorithms of the kernel that are not to be had here, and why.
const ABSENT: [(&str, &str); 3] = [
    ("lzo", "there is no library under a permissive licence; lz4 is as small and as fast"),
    ("lzo-rle", "there is no library under a permissive licence; lz4 is as small and as fast"),
    ("842", "it is made for a processor that computes it; zstd is smaller, lz4 is faster"),
];

/// How pages are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Fast in both directions.
    Lz4,
    /// The format of lz4, smaller and slower to write.
    Lz4hc,
    /// Small.
    Zstd,
    /// As small as zstd, and slow.
    Deflate,
}

impl Algorithm {
    /// All, in the order in which they are listed.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Lz4, Algorithm::Lz4hc, Algorithm::Zstd, Algorithm::Deflate];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Lz4 => "lz4",
            Algorithm::Lz4hc => "lz4hc",
            Algorithm::Zstd => "zstd",
            Algorithm::Deflate => "deflate",
        }
    }

    /// The algorithm of a name.
    pub fn parse(name: &str) -> Result<Algorithm, Error> {
        if let Some(found) = Algorithm::ALL.into_iter().find(|a| a.name() == name) {
            return Ok(found);
        }
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        Err(Error::invalid(match ABSENT.iter().find(|(absent, _)| *absent == name) {
            Some((_, why)) => format!("algorithm '{name}' is not supported: {why} (have: {names})"),
            None => format!("unknown algorithm '{name}': it must be one of {names}"),
        }))
    }

    /// Levels that may be set, and the one that is taken otherwise.
    fn levels(self) -> (i32, i32, i32) {
        match self {
            Algorithm::Lz4 => lz4::FAST_LEVELS,
            Algorithm::Lz4hc => lz4::HC_LEVELS,
            Algorithm::Zstd => zstd::levels(),
            Algorithm::Deflate => deflate::LEVELS,
        }
    }
}

/// What may be set of an algorithm; the default is the kernel's.
#[derive(Clone, Default)]
pub(crate) struct Params {
    /// How hard to try; for lz4 the acceleration, so more is faster.
    pub level: Option<i32>,
    /// What pages are likely to contain.
    pub dict: Option<Arc<[u8]>>,
    /// For deflate: log2 of the window, negative for a stream without header and checksum.
    pub winbits: Option<i32>,
}

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dict_bytes = self.dict.as_ref().map(|dict| dict.len());
        f.debug_struct("Params")
            .field("level", &self.level)
            .field("dict_bytes", &dict_bytes)
            .field("winbits", &self.winbits)
            .finish()
    }
}

/// Checks whether the algorithm takes these parameters.
pub(crate) fn check(algorithm: Algorithm, params: &Params) -> Result<(), Error> {
    let name = algorithm.name();
    let (min, max, _) = algorithm.levels();
    if let Some(level) = params.level.filter(|level| !(min..=max).contains(level)) {
        return Err(Error::invalid(format!("{name} level {level}: it must be {min} to {max}")));
    }
    if params.dict.as_ref().is_some_and(|dict| dict.is_empty()) {
        return Err(Error::invalid(format!("{name} dict: the dictionary is empty")));
    }
    match (algorithm, &params.dict) {
        (Algorithm::Lz4, Some(_)) if params.level.is_some_and(|level| level != 1) => {
            let what = "lz4 level: with a dictionary it must be 1 (zstd has levels with one)";
            return Err(Error::invalid(what));
        }
        (Algorithm::Lz4hc | Algorithm::Deflate, Some(_)) => {
            let what = format!("{name} dict: not supported; lz4 and zstd take a dictionary");
            return Err(Error::invalid(what));
        }
        (Algorithm::Lz4 | Algorithm::Zstd, _) | (_, None) => {}
    }
    let Some(winbits) = params.winbits else { return Ok(()) };
    if algorithm != Algorithm::Deflate {
        let what = format!("{name} winbits {winbits}: only deflate has a window to set");
        return Err(Error::invalid(what));
    }
    deflate::check_winbits(winbits)
}

/// A compressor of one algorithm. It keeps its state between calls, so that a page needs no set-up.
pub(crate) struct Codec(Kind);

#[expect(clippy::large_enum_variant, reason = "a part has at most four")]
enum Kind {
    Lz4(lz4::Lz4),
    FastDict(lz4::FastDict),
    Zstd(zstd::Zstd),
    Deflate(deflate::Deflate),
}

/// An object that no page was compressed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Corrupt;

impl Codec {
    /// The algorithm with its parameters; `EINVAL` names the one that is wrong.
    pub(crate) fn new(algorithm: Algorithm, params: &Params) -> Result<Codec, Error> {
        check(algorithm, params)?;
        let (_, _, default) = algorithm.levels();
        let level = params.level.unwrap_or(default);
        Ok(Codec(match (algorithm, &params.dict) {
            (Algorithm::Lz4, None) => Kind::Lz4(lz4::Lz4(CompressionMode::FAST(level))),
            (Algorithm::Lz4, Some(dict)) => Kind::FastDict(lz4::FastDict::new(dict.clone())),
            (Algorithm::Lz4hc, _) => Kind::Lz4(lz4::Lz4(CompressionMode::HIGHCOMPRESSION(level))),
            (Algorithm::Zstd, dict) => Kind::Zstd(zstd::Zstd::new(level, dict.as_deref())?),
            (Algorithm::Deflate, _) => {
                let winbits = params.winbits.unwrap_or(deflate::WINBITS_DEFAULT);
                Kind::Deflate(deflate::Deflate::new(level, winbits))
            }
        }))
    }

    /// Compresses a page to the front of `out` and returns its length; `None` when that is
    /// longer than `out`.
    pub(crate) fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        assert_eq!(page.len(), PAGE, "compresses whole pages");
        match &mut self.0 {
            Kind::Lz4(lz4) => lz4.compress(page, out),
            Kind::FastDict(lz4) => lz4.compress(page, out),
            Kind::Zstd(zstd) => zstd.compress(page, out),
            Kind::Deflate(deflate) => deflate.compress(page, out),
        }
    }

    /// Decompresses an object to `page`. When it is corrupt, `page` has any content.
    pub(crate) fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
        assert_eq!(page.len(), PAGE, "decompresses whole pages");
        match &mut self.0 {
            Kind::Lz4(_) => lz4::decompress(object, page),
            Kind::FastDict(lz4) => lz4.decompress(object, page),
            Kind::Zstd(zstd) => zstd.decompress(object, page),
            Kind::Deflate(deflate) => deflate.decompress(object, page),
        }
    }
}
