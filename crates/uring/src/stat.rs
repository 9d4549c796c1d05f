// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel tells of a file: the stat of a path, or of an open file.
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io::Errno;

pub(crate) fn stat(path: &Path) -> Result<Statx, Errno> {
    statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
}

/// The stat of an open file, with the time when it was made, if its file system knows it.
pub(crate) fn stat_of_open(fd: &OwnedFd) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

pub(crate) fn type_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}
