// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files: the handle by which the control path opens, listens and closes.
use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use block::{Backing, Error, ErrorKind, Limits, Nanos, Sector};
use reactor::{FileId, now, sleep, yield_now};
use rustix::net::sockopt::socket_acceptconn;

use crate::file::{self, File, OpenOptions};
use crate::helpers::DEADLINE;
use crate::mailbox::Sender;
use crate::passed_files::PassedFiles;
use crate::ring::Shared;
use crate::socket::{self, RemoteEnd, SocketAccess};
use crate::table::{Kind, SharedFile, ShorterFile};
use crate::{backing, device_id, helpers, limits};

/// Turns of a core in which the tasks of a device that was removed end. Chosen: each has a few
/// steps, one a turn; a turn without work costs next to nothing.
const TURNS_TO_END: u32 = 32;

/// How often it is looked whether a file is closed: most take some ten microseconds.
const CLOSE_LOOK: Nanos = Nanos::from_micros(200);
/// How long an open that keeps its thread waits for our own closes.
const CLOSE_TIME: Duration = Duration::from_secs(10);

/// A file that is open, on its way into the table of a core.
struct Ready {
    file: File,
    persistent_identity: Option<String>,
    backing: Backing,
    disk: Option<String>,
    in_memory: bool,
    read_only: bool,
    unserved_bytes: u64,
}

impl Ready {
    /// Everything that may wait for a file system or a disk.
    fn open(path: &Path, options: OpenOptions, held: &PassedFiles) -> Result<Ready, Error> {
        let (file, stat) = file::open(path, options, held)?;
        let (persistent_identity, disk) = (device_id::identity(&stat), limits::disk(&stat));
        let in_memory = limits::is_in_memory(&file.fd, &stat);
        let read_only = limits::is_read_only(&file.fd, &stat);
        let unserved_bytes = limits::unserved_bytes(&stat, file.limits.capacity);
        let backing = backing::of(&stat, &file.identity);
        Ok(Ready { file, persistent_identity, backing, disk, in_memory, read_only, unserved_bytes })
    }
}

/// A file or block device that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Its id in requests.
    pub file: FileId,
    /// Its size, alignment and abilities.
    pub limits: Limits,
    /// A warning for the log.
    pub warning: Option<String>,
    /// Equal for two paths if and only if they lead to the same file or device.
    pub identity: String,
    /// Its persistent identity, valid also after a restart of the machine, if known.
    pub persistent_identity: Option<String>,
    /// The file or disk on which it lies, if it is a loop device: that of its blocks.
    pub backing: Backing,
    /// The disk on which it lies, whole, as the kernel calls it; nothing where that is no one disk.
    pub disk: Option<String>,
    /// Whether it takes no writes: it was opened for reads only, or is a disk that is read-only.
    pub read_only: bool,
    /// How many bytes lie behind the last sector that is served.
    pub unserved_bytes: u64,
    /// Whether its data go through the page cache: O_DIRECT was refused, or was not asked for.
    pub in_page_cache: bool,
    /// Whether its file system is in memory, and so is lost when the machine stops.
    pub in_memory: bool,
}

/// Opens and closes files of one driver, on its thread. Those of its calls that are no futures are
/// system calls that block, closing apart.
#[derive(Clone)]
pub struct Files(Rc<RefCell<Shared>>);

impl Files {
    pub(crate) fn new(shared: Rc<RefCell<Shared>>) -> Files {
        Files(shared)
    }

    /// Opens a regular file or block device.
    /// Keeps this thread for as long as the file system takes: for tools. A core that serves
    /// others takes [`Files::open`].
    pub fn open_path(&self, path: &Path, options: OpenOptions) -> Result<Opened, Error> {
        // Before the attempt: a close may end beside it.
        let closing = helpers::is_closing_since(0);
        let held = self.held();
        let opened = match Ready::open(path, options, &held) {
            // It may be our own, on its way out.
            Err(e) if e.kind() == ErrorKind::Busy && closing => {
                helpers::wait_for_closes(CLOSE_TIME);
                Ready::open(path, options, &held)
            }
            opened => opened,
        };
        Ok(self.add(opened?))
    }

    /// Opens a regular file or block device without blocking the core. A path that `check` refuses
    /// is not opened.
    ///
    /// # Errors
    /// `ETIMEDOUT`, in words, when its file system does not answer within [`DEADLINE`].
    pub async fn open(
        &self,
        path: &Path,
        options: OpenOptions,
        check: impl Fn(&Path) -> Result<(), Error> + Clone + Send + 'static,
    ) -> Result<Opened, Error> {
        let end = now() + DEADLINE;
        loop {
            let (to, check, held) = (path.to_owned(), check.clone(), self.held());
            // Before the attempt: a close may end beside it.
            let closing = helpers::is_closing_since(0);
            let work = move || {
                check(&to)?;
                Ready::open(&to, options, &held)
            };
            match self.away(&path.to_string_lossy(), work).await {
                // It may be our own, on its way out.
                Err(e) if e.kind() == ErrorKind::Busy && closing && now() < end => {
                    sleep(CLOSE_LOOK).await;
                }
                opened => return Ok(self.add(opened?)),
            }
        }
    }

    fn add(&self, ready: Ready) -> Opened {
        let Ready {
            file,
            persistent_identity,
            backing,
            disk,
            in_memory,
            read_only,
            unserved_bytes,
        } = ready;
        let File { fd, direct, is_regular, may_block, map, limits, warning, identity } = file;
        let table = &mut self.0.borrow_mut().table;
        let in_page_cache = map.is_none() && direct.is_none();
        let keeps_size = is_regular && map.is_none();
        let file = match map {
            Some(map) => table.insert_mapped(fd, map),
            None => table.insert(fd, Kind::File { direct, may_block }),
        };
        if keeps_size {
            table.keep_size(file, limits.capacity.bytes());
        }
        Opened {
            file,
            limits,
            warning,
            identity,
            persistent_identity,
            backing,
            disk,
            read_only,
            unserved_bytes,
            in_page_cache,
            in_memory,
        }
    }

    /// Runs `work` on a helper thread, where it may wait for a file system, and returns its result,
    /// without blocking the core. `what` is its path, for errors.
    ///
    /// # Errors
    /// `ETIMEDOUT`, in words, when it has not ended within [`DEADLINE`], or an earlier one about
    /// the same path has not ended yet.
    pub async fn away<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        helpers::call(self.sender(), what, work).await
    }

    /// Runs `work` on a thread of its own and returns its result, however long that takes, without
    /// blocking the core. `name` is the thread's, of at most 15 letters.
    ///
    /// # Errors
    /// When there is no thread; else those of `work`.
    pub async fn apart<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        helpers::call_apart(self.sender(), name, work).await
    }

    /// A handle by which threads that are no cores call this core. The core does not end while one
    /// exists.
    pub fn sender(&self) -> Sender {
        self.0.borrow().wakeup.mailbox().sender()
    }

    /// The runs of bytes within `range` for which a regular file has no data; nothing where its
    /// file system does not tell, for other files, and for mapped ones.
    ///
    /// # Errors
    /// Those of [`Files::away`], with `what` for the path.
    pub async fn holes(
        &self,
        file: FileId,
        what: &str,
        range: Range<u64>,
    ) -> Result<Vec<Range<u64>>, Error> {
        let Some(shared) = self.share(file) else { return Ok(Vec::new()) };
        self.away(what, move || Ok(shared.holes(range))).await
    }

    /// A mark for [`Files::closed_since`].
    pub fn closes_begun(&self) -> u64 {
        helpers::closes_begun()
    }

    /// Waits until the closes that this process has started since `mark` have ended, at most for
    /// [`DEADLINE`]: then other processes can open the files. Tasks that are ending and still have
    /// a file run first.
    pub async fn closed_since(&self, mark: u64) {
        for _ in 0..TURNS_TO_END {
            yield_now().await;
        }
        let end = now() + DEADLINE;
        while helpers::is_closing_since(mark) && now() < end {
            sleep(CLOSE_LOOK).await;
        }
    }

    /// [`Opened::identity`] of `path`, without opening it.
    pub fn identity(path: &Path) -> Result<String, Error> {
        file::identity(path)
    }

    /// Whether a path leads to this open file. May wait for the file system: for helper threads.
    pub fn is_at(fd: &OwnedFd, path: &Path) -> bool {
        let same = |open: String| file::identity(path).is_ok_and(|there| there == open);
        file::identity_of_open(fd).is_ok_and(same)
    }

    /// How many sectors an open file or block device has now, without blocking the core; `None` of
    /// a mapped one, which keeps the size that it had when it was mapped. `what` is its path.
    ///
    /// # Errors
    /// As [`Files::away`].
    pub async fn capacity(&self, file: FileId, what: &str) -> Result<Option<Sector>, Error> {
        let Some(shared) = self.share(file) else { return Ok(None) };
        let path = what.to_owned();
        let work = move || limits::capacity(Path::new(&path), shared.descriptor());
        self.away(what, work).await.map(Some)
    }

    /// Users of an open file have been told that it has this capacity: from now on a flush of a
    /// regular file that is shorter fails with EIO (UR-U9). A file that is opened has that of its
    /// limits. No effect on block devices and mapped files.
    pub fn keep_capacity(&self, file: FileId, capacity: Sector) {
        let table = &mut self.0.borrow_mut().table;
        if table.keeps_size(file) {
            table.keep_size(file, capacity.bytes());
        }
    }

    /// What the last flush of a file has found, on any core, if the file had become shorter.
    pub fn shorter(&self, file: FileId) -> Option<ShorterFile> {
        self.0.borrow().table.shorter(file)
    }

    /// An open file, for [`Files::adopt`] of another core; `None` if it is closed, or mapped: only
    /// this core can use a mapped one. After a close here, requests of other cores fail.
    pub fn share(&self, file: FileId) -> Option<SharedFile> {
        self.0.borrow().table.share(file)
    }

    /// Adds a file that another core has opened and shared. A close here ends only the use by this
    /// core.
    pub fn adopt(&self, shared: &SharedFile) -> FileId {
        self.0.borrow_mut().table.adopt(shared)
    }

    /// Adds a character device that takes commands ([`reactor::SqeOp::Command`]) and copies data
    /// without waiting. Only this core may send its commands, if its kernel driver asks for that.
    pub fn adopt_device(&self, fd: OwnedFd) -> FileId {
        self.0.borrow_mut().table.insert(fd, Kind::File { direct: None, may_block: false })
    }

    /// Adds a connected or listening socket, by which no descriptors come (UR-U14). One that
    /// listens is shared with whoever else has it: its end here leaves it as it is (UR-U8).
    pub fn adopt_socket(&self, fd: OwnedFd) -> Result<FileId, Error> {
        socket::set_blocking(&fd)?;
        socket::refuse_descriptors(&fd);
        let table = &mut self.0.borrow_mut().table;
        if socket_acceptconn(&fd) == Ok(true) {
            return Ok(table.insert(fd, Kind::Listener));
        }
        Ok(socket::insert(table, fd))
    }

    /// Adds an eventfd, to be waited for (a read of 8 bytes) and signalled (a write of 8). A close
    /// ends requests that wait on it. The caller has checked that it is one: [`is_eventfd`].
    pub fn adopt_eventfd(&self, fd: OwnedFd) -> FileId {
        self.0.borrow_mut().table.insert(fd, Kind::Event)
    }

    /// Another descriptor of an open socket; `None` if it is closed, or none is free, and of a file
    /// or block device: their description has one descriptor (UR-U10).
    pub fn copy_of_socket(&self, file: FileId) -> Option<OwnedFd> {
        self.0.borrow().table.socket(file)?.try_clone().ok()
    }

    fn held(&self) -> PassedFiles {
        self.0.borrow().held.clone()
    }

    /// Another descriptor of an open file or block device, for a successor (UR-U12); `None` if it
    /// is closed, or none is free.
    pub fn copy_of_file(&self, file: FileId) -> Option<OwnedFd> {
        self.0.borrow().table.get(file)?.try_clone().ok()
    }

    /// Holds a file or block device that another process has opened and passed, until it is opened
    /// exclusively here: that takes its description, with the lock or claim.
    ///
    /// # Errors
    /// When the kernel does not tell which file it is.
    pub fn hold(&self, fd: OwnedFd) -> Result<(), Error> {
        self.held().hold(fd)
    }

    /// Closes the files that are still held. Returns how many those are.
    pub fn end_holding(&self) -> usize {
        self.held().clear()
    }

    /// Listens on a Unix socket at `path`. Replaces a stale socket of ours. A close leaves the
    /// path.
    pub fn listen_unix(&self, path: &Path, access: SocketAccess) -> Result<FileId, Error> {
        let fd = socket::listen_unix(path, access)?;
        Ok(self.0.borrow_mut().table.insert(fd, Kind::Listener))
    }

    /// Listens on a TCP address; also returns it with the port that port 0 became.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<(FileId, SocketAddr), Error> {
        let (fd, bound) = socket::listen_tcp(address)?;
        Ok((self.0.borrow_mut().table.insert(fd, Kind::Listener), bound))
    }

    /// Closes a file: at once, or when the last request in flight on it has ended. Requests that
    /// wait on a socket end now. No effect on a closed file.
    pub fn close(&self, file: FileId) {
        // Each of the three answers leaves it closed, now or soon.
        let _ = self.0.borrow_mut().close(file, None);
    }

    /// The other end of a connection; `None` for other files.
    pub fn remote_end(&self, file: FileId) -> Option<RemoteEnd> {
        socket::remote_end(self.0.borrow().table.get(file)?)
    }
}

/// The other end of a connection that the driver does not have; `None` for other files.
pub fn remote_end(socket: &OwnedFd) -> Option<RemoteEnd> {
    socket::remote_end(socket)
}

/// Whether a descriptor is an eventfd. Waits for no file system but /proc.
pub fn is_eventfd(fd: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

block::debug_as!(Files, _s => "Files");
