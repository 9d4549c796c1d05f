// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files without names: whatever ends the program, SIGKILL too, nothing is left behind.
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What is written at once when a file is filled.
const PIECE: usize = 1 << 20;

/// A file without a name in `dir`, of zeroes, whose blocks are all there, as those of a disk are:
/// the file system's allocation is nobody's to measure.
///
/// # Errors
/// What the file system said.
pub fn make(dir: &Path, bytes: u64) -> io::Result<File> {
    let file = tempfile::tempfile_in(dir)?;
    fill(&file, bytes)?;
    Ok(file)
}

/// Zeroes all over.
///
/// # Errors
/// What the file system said.
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

/// Where it can be opened once more.
pub fn path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
