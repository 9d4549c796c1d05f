// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Codecs: a part's algorithms by priority, and the pages they work in.
use block::{Error, Status};

use crate::codec::{Algorithm, Codec, Params};
use crate::slot::PAGE;
use crate::store::OBJECT_BYTES_MAX;

/// Algorithms a device has at most: the primary one and three for recompression.
pub(crate) const PRIORITIES: usize = 4;

/// What the longest object takes: a page that does not compress, with what lz4 adds to it
/// (LZ4_compressBound). With less room lz4 looks at each step whether there is enough, and its
/// library reports too little room by an error, which allocates memory.
const ROOM_BYTES: usize = PAGE + PAGE / 255 + 16;

/// Algorithms by priority.
pub(crate) type Algorithms = [Option<(Algorithm, Params)>; PRIORITIES];

/// The algorithms of a part at work.
pub(crate) struct Codecs {
    by_priority: [Option<Codec>; PRIORITIES],
    /// The page that is being compressed or has been decompressed.
    pub(crate) page: Box<[u8]>,
    /// Its object.
    pub(crate) object: Box<[u8]>,
}

impl Codecs {
    pub(crate) fn new(algorithms: &Algorithms) -> Result<Codecs, Error> {
        let mut by_priority = [const { None }; PRIORITIES];
        for (codec, algorithm) in by_priority.iter_mut().zip(algorithms) {
            if let Some((algorithm, params)) = algorithm {
                *codec = Some(Codec::new(*algorithm, params)?);
            }
        }
        let (page, object) = (vec![0; PAGE].into(), vec![0; ROOM_BYTES].into());
        Ok(Codecs { by_priority, page, object })
    }

    pub(crate) fn has(&self, priority: u8) -> bool {
        self.by_priority[usize::from(priority)].is_some()
    }

    /// Compresses `page` to `object`; nothing when that is not worth it.
    pub(crate) fn compress(&mut self, priority: u8) -> Option<usize> {
        let Codecs { by_priority, page, object } = self;
        let codec = by_priority[usize::from(priority)].as_mut()?;
        codec.compress(page, object).filter(|len| *len <= OBJECT_BYTES_MAX)
    }

    /// Decompresses `object` to `page`, which are the caller's.
    pub(crate) fn decompress(
        &mut self,
        priority: u8,
        object: &[u8],
        page: &mut [u8],
    ) -> Result<(), Status> {
        decompress(&mut self.by_priority[usize::from(priority)], object, page)
    }
}

/// An object as long as a page is the page.
fn decompress(codec: &mut Option<Codec>, object: &[u8], page: &mut [u8]) -> Result<(), Status> {
    if object.len() == PAGE {
        page.copy_from_slice(object);
        return Ok(());
    }
    let codec = codec.as_mut().ok_or(Status::Io)?;
    codec.decompress(object, page).map_err(|_| Status::Io)
}
