// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that outlives the process: files of one directory, mapped.
//!
//! On tmpfs a file is memory. On another file system the page cache outlives the process as well,
//! and the system also writes it to the disk in the background, which nobody needs.
//!
//! Invariants
//! - UR-M1 A file is made, opened and given its space on a helper thread, never through a symlink,
//!   and only if it is a regular file of our own with one name: no other user chooses what is
//!   written.
//! - UR-M2 A store never needs space: it was reserved when the file was opened. A page that is lost
//!   nevertheless (the file was truncated) is an error of the store (`pmem::lost`).
//! - UR-M3 A mapping is used by one thread, as UR-P4.
//! - UR-M4 A lock is one of the open file (flock), so that another process sees it, and one that
//!   dies gives it back. Who has it in this process is in a list, for messages.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Error, ErrorKind, LocalFuture, Status};
use reactor::{SharedMemory, SharedMemoryStore};
use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, openat, renameat,
};
use rustix::io::Errno;

use crate::files::Files;
use crate::limits;
use crate::os_error::os_error;
use crate::pmem::MappedMemory;
use crate::stat::stat_of_open;

/// Where Linux tells the identity of this start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Who of this process has a file locked, by its path (UR-M4): cores are threads.
static OWNERS: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

fn owners() -> MutexGuard<'static, BTreeMap<PathBuf, String>> {
    // No panic under the lock leaves it half changed.
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is mapped.
#[derive(Debug)]
struct MemoryFile {
    mapped: MappedMemory,
    /// Of the lock.
    fd: OwnedFd,
    path: PathBuf,
    has_lock: Cell<bool>,
}

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

    /// Whether a directory is on a file system in memory. On a disk the system writes changed
    /// memory back in the background, and a store may have to wait for that.
    pub fn is_in_memory(dir: &Path) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, dir, flags, Mode::empty());
        dir.is_ok_and(|dir| stat_of_open(&dir).is_ok_and(|stat| limits::is_in_memory(&dir, &stat)))
    }

    /// As [`MemoryFiles::new`], for memory that is there already: for tools. It may be of another
    /// user if this one is root.
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
fn map(path: &Path, len: usize, may_create: bool) -> Result<MemoryFile, Error> {
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
    let mapped = MappedMemory::map(path, &fd, len)?;
    Ok(MemoryFile { mapped, fd, path: path.to_owned(), has_lock: Cell::new(false) })
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

    fn rename(&self, name: &str, to: &str) -> LocalFuture<Result<(), Error>> {
        let (files, from, to) = (self.files.clone(), self.dir.join(name), self.dir.join(to));
        Box::pin(async move {
            let what = from.to_string_lossy().into_owned();
            let work = move || match renameat(CWD, &from, CWD, &to) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(e) => Err(os_error(&from, "rename it", e)),
            };
            files.away(&what, work).await
        })
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    fn place_of(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

impl SharedMemory for MemoryFile {
    fn len_bytes(&self) -> usize {
        self.mapped.len()
    }

    fn read(&self, at: usize, out: &mut [u8]) -> Result<(), Status> {
        self.mapped.copy_from(at, out)
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Status> {
        self.mapped.copy_to(at, bytes)
    }

    fn lock(&self, owner: &str) -> Result<(), String> {
        if self.has_lock.get() {
            return Ok(());
        }
        let mut owners = owners();
        // Does not wait: the file is on a local file system, and opened.
        if flock(&self.fd, FlockOperation::NonBlockingLockExclusive).is_err() {
            let other = owners.get(&self.path).cloned();
            return Err(other.unwrap_or_else(|| "another process".to_owned()));
        }
        owners.insert(self.path.clone(), owner.to_owned());
        self.has_lock.set(true);
        Ok(())
    }

    fn unlock(&self) {
        if self.has_lock.replace(false) {
            let mut owners = owners();
            owners.remove(&self.path);
            // An error leaves it locked until the file is closed.
            flock(&self.fd, FlockOperation::Unlock).ok();
        }
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.unlock();
    }
}

block::debug_as!(MemoryFiles, s => "MemoryFiles({})", s.dir.display());

#[cfg(test)]
mod tests {
    use std::fs;

    use block::CoreId;
    use reactor::Reactor;

    use super::*;
    use crate::Uring;

    /// Runs `test` with memory in a new directory, and with memory that must be there.
    fn with_memory<F: Future<Output = ()> + 'static>(
        name: &str,
        test: impl FnOnce(MemoryFiles, MemoryFiles, PathBuf) -> F + 'static,
    ) {
        let dir =
            std::env::temp_dir().join(format!("millpond-memory-{name}-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let uring = Uring::new().unwrap();
        let files = uring.files();
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let [new, old] =
            [MemoryFiles::new(files.clone(), &dir), MemoryFiles::existing(files, &dir)];
        let of_test = dir.clone();
        reactor.block_on(async move { test(new.unwrap(), old.unwrap(), of_test).await });
        fs::remove_dir_all(dir).unwrap();
    }

    fn read(memory: &dyn SharedMemory, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0xff; len];
        memory.read(at, &mut out).unwrap();
        out
    }

    #[test]
    fn what_was_stored_is_found_by_the_next_opening() {
        with_memory("stored", async |new: MemoryFiles, old: MemoryFiles, dir: PathBuf| {
            let missing = old.open("a", 8192).await.unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NoFile, "{missing}");
            assert!(!dir.join("a").exists(), "looking makes no file");
            let memory = new.open("a", 8192).await.unwrap();
            assert_eq!((memory.len_bytes(), read(&*memory, 0, 3)), (8192, vec![0; 3]));
            memory.write(5000, b"abc").unwrap();
            assert_eq!(fs::metadata(dir.join("a")).unwrap().mode() & 0o777, 0o600);
            drop(memory);
            for store in [&new, &old] {
                let memory = store.open("a", 8192).await.unwrap();
                assert_eq!(read(&*memory, 4999, 5), b"\0abc\0");
            }
            assert_eq!(new.place_of("a"), dir.join("a").display().to_string());
            assert_eq!(new.boot_id(), old.boot_id());
        });
    }

    #[test]
    fn memory_that_is_renamed_replaces_what_had_the_name() {
        with_memory("renamed", async |new: MemoryFiles, _: MemoryFiles, dir: PathBuf| {
            for value in [1, 2] {
                let memory = new.open("a", 4096).await.unwrap();
                memory.write(0, &[value]).unwrap();
                new.rename("a", "b").await.unwrap();
                assert_eq!(fs::read(dir.join("b")).unwrap()[0], value);
                assert!(!dir.join("a").exists());
            }
            new.rename("a", "b").await.unwrap();
            assert!(dir.join("b").exists(), "there is none to rename");
        });
    }

    #[test]
    fn only_a_file_of_our_own_with_one_name_is_taken() {
        with_memory("own", async |new: MemoryFiles, old: MemoryFiles, dir: PathBuf| {
            fs::write(dir.join("victim"), "precious").unwrap();
            std::os::unix::fs::symlink(dir.join("victim"), dir.join("link")).unwrap();
            fs::hard_link(dir.join("victim"), dir.join("second")).unwrap();
            fs::create_dir(dir.join("dir")).unwrap();
            for store in [&new, &old] {
                for name in ["link", "second", "dir"] {
                    let refused = store.open(name, 4096).await.unwrap_err().chain();
                    assert!(refused.contains(name), "{refused}");
                }
            }
            assert_eq!(fs::read_to_string(dir.join("victim")).unwrap(), "precious");
        });
    }

    /// UR-M4.
    #[test]
    fn one_of_all_openings_has_the_lock() {
        with_memory("lock", async |new: MemoryFiles, old: MemoryFiles, dir: PathBuf| {
            let first = new.open("a", 4096).await.unwrap();
            let second = new.open("a", 4096).await.unwrap();
            first.lock("./c1.img").unwrap();
            first.lock("./c1.img").unwrap();
            for other in [second.clone(), old.open("a", 4096).await.unwrap()] {
                assert_eq!(other.lock("./c2.img"), Err("./c1.img".to_owned()));
            }
            first.unlock();
            second.lock("./c2.img").unwrap();
            assert_eq!(first.lock("./c1.img"), Err("./c2.img".to_owned()));
            drop(second);
            // As another process has it.
            let file = fs::File::open(dir.join("a")).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            assert_eq!(first.lock("./c1.img"), Err("another process".to_owned()));
            drop(file);
            first.lock("./c1.img").unwrap();
        });
    }

    /// UR-M2.
    #[test]
    fn a_page_that_was_cut_off_is_an_error_and_not_the_end() {
        with_memory("cut", async |new: MemoryFiles, _old: MemoryFiles, dir: PathBuf| {
            let memory = new.open("a", 16384).await.unwrap();
            memory.write(0, b"whole").unwrap();
            let file = fs::OpenOptions::new().write(true).open(dir.join("a")).unwrap();
            file.set_len(4096).unwrap();
            memory.write(0, b"still").unwrap();
            assert_eq!(memory.write(8192, b"lost"), Err(Status::Io));
            let mut out = [0; 4];
            assert_eq!(memory.read(8192, &mut out), Err(Status::Io));
        });
    }

    #[test]
    fn a_boot_id_is_a_uuid() {
        let path = std::env::temp_dir().join(format!("millpond-boot-{}", std::process::id()));
        fs::write(&path, "00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(boot_id(&path).unwrap()[..3], [0, 0x11, 0x22]);
        fs::write(&path, "no uuid\n").unwrap();
        assert!(boot_id(&path).unwrap_err().to_string().contains("`no uuid`"));
        fs::remove_file(&path).unwrap();
        assert!(boot_id(&path).is_err());
    }
}
