// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files without names, which vanish with the process, after SIGKILL too (RP-R2).
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of one write while a file is filled.
const PIECE: usize = 1 << 20;

/// A file of zeroes without a name in `dir`. All its blocks are allocated, as those of a disk are,
/// so that no measurement contains the file system's allocations.
///
/// # Errors
/// What the file system answered.
pub fn make(dir: &Path, bytes: u64) -> io::Result<File> {
    let file = tempfile::tempfile_in(dir)?;
    fill(&file, bytes)?;
    Ok(file)
}

/// Fills the file with `bytes` zeroes.
///
/// # Errors
/// What the file system answered.
pub fn fill(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(0)?;
    let piece = vec![0; PIECE];
    let mut at = 0;
    while at < bytes {
        let len = usize::try_from((bytes - at).min(PIECE as u64)).expect("at most PIECE");
        file.write_all_at(&piece[..len], at)?;
        at += len as u64;
    }
    file.sync_all()
}

/// A path by which this process can open the file again.
pub fn path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
