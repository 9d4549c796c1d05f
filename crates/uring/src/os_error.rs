// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of system calls as [`Error`].
use std::path::Path;

use block::{Error, ErrorKind};
use rustix::io::Errno;

/// The error of `doing` something with `path`.
pub(crate) fn os_error(path: &Path, doing: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOENT | Errno::NOTDIR => ErrorKind::NoFile,
        Errno::NXIO | Errno::NODEV => ErrorKind::NotFound,
        Errno::BUSY | Errno::TXTBSY | Errno::ADDRINUSE => ErrorKind::Busy,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorKind::NoSpace,
        Errno::INVAL => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{}: cannot {doing}", path.display())).because(errno)
}
