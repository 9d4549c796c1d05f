// SPDX-License-Identifier: Apache-2.0 OR MIT
//! File: opening regular files and block devices, with O_DIRECT where it is had, alone if asked.
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use block::{Error, ErrorKind, Limits};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Statx, StatxFlags, flock, statx,
};
use rustix::io::Errno;

use crate::holder;
use crate::limits;
use crate::pmem::{self, Mapped, Mapping};
use crate::table::DirectAlign;

/// Whether to go around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT, and the page cache with a warning where the file system refuses.
    Try,
    /// The page cache.
    Never,
}

/// How to open a path. The default: read and write, O_DIRECT if it can be had, exclusively.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Whether to go around the page cache.
    pub direct: Direct,
    /// Fail with `Busy` when somebody has it open exclusively, and make others fail: a lock
    /// (flock) on a file, which only those feel who ask for it; O_EXCL on a block device.
    pub exclusive: bool,
    /// Make a sparse file of that many bytes when there is none. One that is there stays as it is.
    pub create_size: Option<u64>,
    /// Map it and answer reads and writes by memory copies, as persistent memory wants it; DAX
    /// devices can be opened in no other way. Then `direct` means nothing. The size is what it is
    /// now, and a file gets all its space.
    pub mapped: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            read_only: false,
            direct: Direct::Try,
            exclusive: true,
            create_size: None,
            mapped: false,
        }
    }
}

/// What opening gave.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) fd: OwnedFd,
    pub(crate) direct: Option<DirectAlign>,
    /// It knows no `RWF_NOWAIT`.
    pub(crate) may_block: bool,
    pub(crate) map: Option<Mapping>,
    pub(crate) limits: Limits,
    pub(crate) warning: Option<String>,
    pub(crate) identity: String,
}

pub(crate) fn os_error(path: &Path, doing: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOENT | Errno::NOTDIR => ErrorKind::NoFile,
        Errno::NXIO | Errno::NODEV => ErrorKind::NotFound,
        Errno::BUSY | Errno::TXTBSY | Errno::ADDRINUSE => ErrorKind::Busy,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
        Errno::INVAL => ErrorKind::Invalid,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{}: cannot {doing}", path.display())).because(errno)
}

fn stat(path: &Path) -> Result<Statx, Errno> {
    statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)
}

fn type_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// A name for what `path` leads to: the same for two paths exactly when they are the same file or
/// device. Not kept over a restart of the machine.
pub(crate) fn identity(path: &Path) -> Result<String, Error> {
    Ok(identity_of(&stat(path).map_err(|e| os_error(path, "look it up", e))?))
}

fn identity_of(stat: &Statx) -> String {
    let kind = type_of(stat);
    let device = |kind| format!("{kind} {}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
    if kind == FileType::BlockDevice {
        device("block")
    } else if kind == FileType::CharacterDevice {
        device("char")
    } else {
        format!("file {}:{}/{}", stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
    }
}

/// The error of a path that leads nowhere, and where a link in its place points.
fn no_file(path: &Path) -> Error {
    let shown = path.display();
    match std::fs::read_link(path) {
        Ok(to) => {
            let to = to.display();
            Error::no_file(format!("{shown}: the link points to {to}, which does not exist"))
        }
        Err(_) => Error::no_file(format!("{shown}: no such file or device")),
    }
}

pub(crate) fn open(path: &Path, options: OpenOptions) -> Result<File, Error> {
    let stat = match (stat(path), options.create_size) {
        (Err(Errno::NOENT), Some(bytes)) => {
            create(path, bytes)?;
            stat(path)
        }
        (found, _) => found,
    };
    let stat = stat.map_err(|e| match e {
        Errno::NOENT => no_file(path),
        e => os_error(path, "look it up", e),
    })?;
    let kind = type_of(&stat);
    let is_block = kind == FileType::BlockDevice;
    let is_dax = options.mapped && kind == FileType::CharacterDevice;
    if !is_block && !is_dax && kind != FileType::RegularFile {
        let wanted = "neither a regular file nor a block device";
        return Err(Error::invalid(format!("{}: is {wanted}", path.display())));
    }

    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_block && options.exclusive {
        flags |= OFlags::EXCL;
    }
    let direct = if options.mapped { Direct::Never } else { options.direct };
    let (fd, direct) = open_direct(path, &stat, flags, direct)?;
    if !is_block && options.exclusive {
        flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            Errno::WOULDBLOCK => busy(path, &stat),
            e => os_error(path, "lock it", e),
        })?;
    }
    if options.mapped {
        return open_mapped(path, fd, !options.read_only);
    }
    let refused = options.direct == Direct::Try && direct.is_none();
    let warning = refused.then(|| {
        let path = path.display();
        format!("{path}: its file system refuses O_DIRECT; data goes through the page cache")
    });
    let limits = limits::of(path, &fd, !options.read_only, direct)?;
    let stat = statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map_err(|e| os_error(path, "look it up", e))?;
    let may_block = limits::may_block(&fd);
    let identity = identity_of(&stat);
    Ok(File { fd, direct, may_block, map: None, limits, warning, identity })
}

fn open_mapped(path: &Path, fd: OwnedFd, writable: bool) -> Result<File, Error> {
    let stat = statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
        .map_err(|e| os_error(path, "look it up", e))?;
    let limits = limits::of(path, &fd, writable, None)?;
    let Mapped { mapping, limits, warning } = pmem::map(path, &fd, &stat, writable, &limits)?;
    let map = Some(mapping);
    let identity = identity_of(&stat);
    Ok(File { fd, direct: None, may_block: false, map, limits, warning, identity })
}

fn busy(path: &Path, stat: &Statx) -> Error {
    Error::busy(format!("{}: is in use, by {}", path.display(), holder::of(stat)))
}

fn create(path: &Path, bytes: u64) -> Result<(), Error> {
    let failed = |doing: &str, e: &std::io::Error| {
        os_error(path, doing, Errno::from_io_error(e).unwrap_or(Errno::IO))
    };
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(file) => file.set_len(bytes).map_err(|e| {
            // A file of the wrong size would be taken as it is the next time.
            let _ = fs::remove_file(path);
            failed("make it that large", &e)
        }),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(failed("make it", &e)),
    }
}

/// Opens with O_DIRECT where that works, and says what it asks of buffers.
fn open_direct(
    path: &Path,
    stat: &Statx,
    flags: OFlags,
    direct: Direct,
) -> Result<(OwnedFd, Option<DirectAlign>), Error> {
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let failed = |e| if e == Errno::BUSY { busy(path, stat) } else { os_error(path, "open it", e) };
    if direct == Direct::Try {
        match open(flags | OFlags::DIRECT) {
            Ok(fd) => {
                if let Some(align) = limits::direct_align(&fd) {
                    return Ok((fd, Some(align)));
                }
                // Closed before it is opened again: O_EXCL would find ourselves in the way.
                drop(fd);
            }
            Err(Errno::INVAL) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok((open(flags).map_err(failed)?, None))
}
