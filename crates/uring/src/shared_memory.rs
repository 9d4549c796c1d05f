// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process: files of one directory, mapped.
//!
//! On tmpfs a file is memory. On another file system the page cache outlives the process as well;
//! the system writes it back in the background, for nothing.
//!
//! Invariants
//! - UR-M1 A file is made, opened and given its space on a helper thread, never through a symlink,
//!   and only if it is a regular file of our own with one name: no other user chooses what is
//!   written.
//! - UR-M2 A store never needs space: it was reserved when the file was opened. A page that is lost
//!   nevertheless (the file was truncated) is an error of the store (`pmem::lost`).
//! - UR-M3 A mapping is used by one thread, as UR-P4.
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use block::{Error, ErrorKind, LocalFuture, Status};
use reactor::{SharedMemory, SharedMemoryStore};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, openat};

use crate::files::Files;
use crate::os_error::os_error;
use crate::pmem::MappedMemory;

/// Where Linux tells the identity of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Shared memory in the files of a directory.
#[derive(Clone)]
pub struct MemoryFiles {
    files: Files,
    dir: PathBuf,
    boot_id: [u8; 16],
    may_create: bool,
}

impl MemoryFiles {
    /// Memory in the files of `dir`, which only this user may write to.
    ///
    /// # Errors
    /// If the identity of this start of the machine can't be read.
    pub fn new(files: Files, dir: &Path) -> Result<MemoryFiles, Error> {
        let boot_id = boot_id(Path::new(BOOT_ID))?;
        Ok(MemoryFiles { files, dir: dir.to_owned(), boot_id, may_create: true })
    }

    /// The same, for memory that is there already: for tools. It may be of another user if this one
    /// is root.
    ///
    /// # Errors
    /// As [`MemoryFiles::new`].
    pub fn existing(files: Files, dir: &Path) -> Result<MemoryFiles, Error> {
        Ok(MemoryFiles { may_create: false, ..MemoryFiles::new(files, dir)? })
    }
}

/// Reads a UUID.
fn boot_id(path: &Path) -> Result<[u8; 16], Error> {
    let refused = |why: String| Error::new(ErrorKind::Io, format!("{}: {why}", path.display()));
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(|e| refused(e.to_string()))?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let id = u128::from_str_radix(&digits, 16);
    let id = id.map_err(|_| refused(format!("`{}` is no UUID", text.trim())))?;
    Ok(id.to_be_bytes())
}

/// Opens or makes a file of `len` bytes or more, and maps the first `len` (UR-M1).
fn map(path: &Path, len: usize, may_create: bool) -> Result<MappedMemory, Error> {
    let create = if may_create { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::RDWR | create | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK; // a pipe of that name does not block
    let opened = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|e| os_error(path, "open it", e))?);
    let io = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", path.display()));
    let meta = file.metadata().map_err(io)?;
    let user = rustix::process::geteuid();
    let is_ours = meta.uid() == user.as_raw() || user.is_root() && !may_create;
    if !meta.is_file() || meta.nlink() != 1 || !is_ours {
        let why = "no file of our own: remove it";
        return Err(Error::new(ErrorKind::Denied, format!("{}: {why}", path.display())));
    }
    let fd = OwnedFd::from(file);
    fallocate(&fd, FallocateFlags::empty(), 0, len as u64)
        .map_err(|e| os_error(path, "reserve its space", e))?; // UR-M2
    MappedMemory::map(path, &fd, len)
}

impl SharedMemoryStore for MemoryFiles {
    fn open(&self, name: &str, len_bytes: u64) -> LocalFuture<Result<Rc<dyn SharedMemory>, Error>> {
        let (files, path, may_create) = (self.files.clone(), self.dir.join(name), self.may_create);
        Box::pin(async move {
            let too_large = |_| Error::invalid(format!("{}: is too large", path.display()));
            let len = usize::try_from(len_bytes).map_err(too_large)?;
            let what = path.to_string_lossy().into_owned();
            let mapped = files.away(&what, move || map(&path, len, may_create)).await?;
            Ok(Rc::new(mapped) as Rc<dyn SharedMemory>)
        })
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    fn place_of(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

impl SharedMemory for MappedMemory {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Status> {
        self.copy_from(at, out)
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Status> {
        self.copy_to(at, bytes)
    }
}

impl fmt::Debug for MemoryFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFiles({})", self.dir.display())
    }
}
