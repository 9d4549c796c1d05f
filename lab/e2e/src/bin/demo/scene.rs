// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of the demo, and who writes where.
//!
//! ```text
//!   origin  │ fill: verified, flushed before the kill               │ load   │ stamps │
//!           │                                               31/32   │  1/64  │  1/64  │
//!   cache     half the origin's size
//! ```
//!
//! Before anything else every block of the origin is stamped with version 0, so that "old" is
//! something that can be recognised.
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use e2e::Result;
use e2e::stamp::{BLOCK_BYTES, fill, version_of};

/// Below this the areas are too small to say anything.
const ORIGIN_BYTES_MIN: u64 = 64 << 20;
/// Of the cache's bytes that the fill makes dirty, in percent. With the areas of load and stamps
/// (6 %) and the cache's own metadata (2 %) it stays just below full.
const FILL_PERCENT: u64 = 88;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Sizes of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) origin_bytes: u64,
}

impl Sizes {
    pub(crate) fn of_origin(bytes: u64) -> Result<Sizes> {
        let step = 64 * BLOCK; // areas begin on a block
        if bytes < ORIGIN_BYTES_MIN || !bytes.is_multiple_of(step) {
            return Err(format!("a multiple of {step} from 64M is allowed"));
        }
        Ok(Sizes { origin_bytes: bytes })
    }

    pub(crate) fn cache_bytes(self) -> u64 {
        self.origin_bytes / 2
    }
    /// The disk space that everything takes: origin, cache, a copy of the cache, and notes.
    pub(crate) fn space_bytes(self) -> u64 {
        self.origin_bytes + 2 * self.cache_bytes() + (64 << 20)
    }
    /// What it will take, for who waits.
    pub(crate) fn expectation(self) -> String {
        // 134 s for 2 GiB on a busy disk, 2026-11: most of it is proportional.
        let seconds = 5 + (self.origin_bytes >> 20) / 16;
        let space = self.space_bytes() >> 20;
        format!("takes about {seconds} s and {space} MiB of disk")
    }
    /// The area that is filled, from the origin's beginning.
    pub(crate) fn fill_area_bytes(self) -> u64 {
        self.origin_bytes / 32 * 31
    }
    /// How much of it is written.
    pub(crate) fn fill_bytes(self) -> u64 {
        self.cache_bytes() * FILL_PERCENT / 100 / BLOCK * BLOCK
    }
    /// Where the load writes while the daemon is killed.
    pub(crate) fn load(self) -> Range<u64> {
        self.fill_area_bytes()..self.fill_area_bytes() + self.origin_bytes / 64
    }
    /// Blocks that the stamped writer has at that time.
    pub(crate) fn stamps(self) -> Range<u64> {
        self.load().end / BLOCK..self.origin_bytes / BLOCK
    }
}

/// Refuses to start what the disk can't hold.
pub(crate) fn check_space(dir: &Path, sizes: Sizes) -> Result<()> {
    let fs = rustix::fs::statvfs(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let free = fs.f_bavail * fs.f_frsize;
    let need = sizes.space_bytes();
    if free < need {
        return Err(format!(
            "{}: {} MiB are free, {} MiB are needed: choose --dir or a smaller --size",
            dir.display(),
            free >> 20,
            need >> 20
        ));
    }
    Ok(())
}

/// Makes the origin: version 0 of every block.
pub(crate) fn make_origin(path: &Path, sizes: Sizes) -> Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    write_whole(path, |out| {
        for nth in 0..sizes.origin_bytes / BLOCK {
            fill(&mut block, nth, 0);
            out.write_all(&block)?;
        }
        Ok(())
    })
}

/// Makes an empty cache. Its blocks are written once, so that the file system's allocation is not
/// measured: a cache is a device.
pub(crate) fn make_cache(path: &Path, sizes: Sizes) -> Result<()> {
    let zeroes = vec![0; 1 << 20];
    write_whole(path, |out| {
        let mut left = sizes.cache_bytes();
        while left > 0 {
            let n = left.min(zeroes.len() as u64);
            out.write_all(&zeroes[..n as usize])?;
            left -= n;
        }
        Ok(())
    })
}

fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let make = || {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        write(&mut out)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    };
    make().map_err(|e| format!("{}: {e}", path.display()))
}

/// A copy of a file, on the disk when this returns. By hand, because shared extents (reflinks)
/// would make one of the two slower than a device is.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let shown = |e| format!("{} to {}: {e}", from.display(), to.display());
    let mut file = File::open(from).map_err(shown)?;
    let mut data = vec![0; 1 << 20];
    write_whole(to, |out| {
        loop {
            match file.read(&mut data)? {
                0 => return Ok(()),
                n => out.write_all(&data[..n])?,
            }
        }
    })
}

/// What the load may have left of a range: each block its own pattern (the block's offset, over
/// and over) or what it was before. Returns how many are new.
pub(crate) fn check_load(
    range: Range<u64>,
    mut read: impl FnMut(u64, &mut [u8]) -> std::io::Result<()>,
) -> Result<u64> {
    let mut new = 0;
    let mut data = vec![0; 256 * BLOCK_BYTES];
    for start in range.clone().step_by(data.len()) {
        let n = (range.end - start).min(data.len() as u64) as usize;
        read(start, &mut data[..n]).map_err(|e| format!("reading: {e}"))?;
        for (offset, block) in
            (start..).step_by(BLOCK_BYTES).zip(data[..n].chunks_exact(BLOCK_BYTES))
        {
            if block.chunks_exact(8).all(|word| *word == offset.to_le_bytes()) {
                new += 1;
            } else if version_of(block, offset / BLOCK) != Some(0) {
                let head = &block[..16];
                return Err(format!("offset {offset} is neither old nor new: {head:02x?}"));
            }
        }
    }
    Ok(new)
}

/// Reads straight from a file.
pub(crate) fn reader(path: &Path) -> Result<impl FnMut(u64, &mut [u8]) -> std::io::Result<()>> {
    let file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(move |offset, data: &mut [u8]| file.read_exact_at(data, offset))
}
