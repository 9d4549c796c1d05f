// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens regular files and block devices, with O_DIRECT if possible, exclusively if requested.
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use block::{Error, Limits};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Statx, fcntl_getfl, flock};
use rustix::io::Errno;

use crate::limits;
use crate::lock_owner;
use crate::os_error::os_error;
use crate::passed_files::PassedFiles;
use crate::pmem::{self, Mapped, Mapping};
use crate::stat::{stat, stat_of_open, type_of};
use crate::table::DirectAlign;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT; the page cache with a warning if the file system refuses it.
    Try,
    /// The page cache.
    Never,
}

/// Options of an open. The default: read and write, O_DIRECT if possible, exclusive.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Fail with `Busy` if it is open exclusively elsewhere, and make others fail: by an advisory
    /// lock (flock) on a file, by O_EXCL on a block device.
    pub exclusive: bool,
    /// Make a sparse file of this size if there is none. An existing file stays as it is.
    pub create_size: Option<u64>,
    /// Map it, and serve reads and writes by memory copies, for persistent memory; the only way to
    /// open DAX devices. `direct` is ignored. The size is fixed at open, and all space of a file is
    /// allocated.
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

/// An opened file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) fd: OwnedFd,
    pub(crate) direct: Option<DirectAlign>,
    pub(crate) is_regular: bool,
    /// It does not support `RWF_NOWAIT`.
    pub(crate) may_block: bool,
    pub(crate) map: Option<Mapping>,
    pub(crate) limits: Limits,
    pub(crate) warning: Option<String>,
    pub(crate) identity: String,
}

/// The identity of the file or device of `path`: equal for two paths if and only if they lead to
/// the same one. Not valid after a restart of the machine.
pub(crate) fn identity(path: &Path) -> Result<String, Error> {
    Ok(identity_of(&stat(path).map_err(|e| os_error(path, "look it up", e))?))
}

/// The identity of an open file.
pub(crate) fn identity_of_open(fd: &OwnedFd) -> Result<String, Errno> {
    Ok(identity_of(&stat_of_open(fd)?))
}

pub(crate) fn identity_of(stat: &Statx) -> String {
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

/// The error of a path that does not exist; names the destination of a dangling link.
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

/// Opens a file; one that is held by its description, with its lock or claim (UR-U12).
pub(crate) fn open(
    path: &Path,
    options: OpenOptions,
    held: &PassedFiles,
) -> Result<(File, Statx), Error> {
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

    let mut flags = OFlags::CLOEXEC; // UR-U10
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_block && options.exclusive {
        flags |= OFlags::EXCL;
    }
    let direct = if options.mapped { Direct::Never } else { options.direct };
    let passed = if options.exclusive { held.take(&identity_of(&stat)) } else { None };
    let is_passed = passed.is_some();
    let (fd, direct) = match passed {
        Some(fd) => {
            let align = if direct == Direct::Try { align_of_passed(path, &fd)? } else { None };
            (fd, align)
        }
        None => open_direct(path, &stat, flags, direct)?,
    };
    if !is_block && options.exclusive && !is_passed {
        flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            Errno::WOULDBLOCK => busy(path, &stat),
            e => os_error(path, "lock it", e),
        })?;
    }
    let stat = stat_of_open(&fd).map_err(|e| os_error(path, "look it up", e))?;
    if options.mapped {
        return Ok((open_mapped(path, fd, &stat, !options.read_only)?, stat));
    }
    let refused = options.direct == Direct::Try && direct.is_none();
    let warning = refused.then(|| {
        let path = path.display();
        format!("{path}: its file system refuses O_DIRECT; data goes through the page cache")
    });
    let limits = limits::of(path, &fd, &stat, !options.read_only, direct)?;
    let may_block = limits::may_block(&fd);
    let identity = identity_of(&stat);
    let is_regular = !is_block;
    Ok((File { fd, direct, is_regular, may_block, map: None, limits, warning, identity }, stat))
}

fn open_mapped(path: &Path, fd: OwnedFd, stat: &Statx, writable: bool) -> Result<File, Error> {
    let limits = limits::of(path, &fd, stat, writable, None)?;
    let Mapped { mapping, limits, warning } = pmem::map(path, &fd, stat, writable, &limits)?;
    let map = Some(mapping);
    let identity = identity_of(stat);
    let (is_regular, may_block) = (type_of(stat) == FileType::RegularFile, false);
    Ok(File { fd, direct: None, is_regular, may_block, map, limits, warning, identity })
}

fn busy(path: &Path, stat: &Statx) -> Error {
    Error::busy(format!("{}: is in use, by {}", path.display(), lock_owner::of(stat)))
}

fn create(path: &Path, bytes: u64) -> Result<(), Error> {
    let failed = |doing: &str, e: &std::io::Error| {
        os_error(path, doing, Errno::from_io_error(e).unwrap_or(Errno::IO))
    };
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(file) => file.set_len(bytes).map_err(|e| {
            // Else the next open would use a file of the wrong size.
            let _ = fs::remove_file(path);
            failed("make it that large", &e)
        }),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(failed("make it", &e)),
    }
}

/// Requirements for buffers of a file that another process has opened, with O_DIRECT or without.
fn align_of_passed(path: &Path, fd: &OwnedFd) -> Result<Option<DirectAlign>, Error> {
    let flags = fcntl_getfl(fd).map_err(|e| os_error(path, "look it up", e))?;
    Ok(if flags.contains(OFlags::DIRECT) { limits::direct_align(fd) } else { None })
}

/// Opens with O_DIRECT if that works; returns its requirements for buffers.
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
                // Closed before it is opened again: else O_EXCL would fail because of our own open.
                drop(fd);
            }
            Err(Errno::INVAL) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok((open(flags).map_err(failed)?, None))
}
