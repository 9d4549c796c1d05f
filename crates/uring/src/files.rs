// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files: the handle by which the control path opens, listens and closes.
use std::cell::RefCell;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use block::{Error, ErrorKind, Limits, Nanos};
use reactor::{FileId, now, sleep};

use crate::file::{self, File, OpenOptions};
use crate::ring::Shared;
use crate::socket;
use crate::table::SharedFile;
use crate::{lasting, limits};

/// How often a patient open tries: often enough that nobody notices, at no cost worth naming.
const RETRY_EVERY: Nanos = Nanos::from_millis(5);

/// A file or block device that was opened.
#[derive(Debug)]
pub struct Opened {
    /// What requests name it by.
    pub file: FileId,
    /// Its size, alignment and abilities.
    pub limits: Limits,
    /// What a person should know about how it was opened.
    pub warning: Option<String>,
    /// The same for two paths exactly when they lead to the same file or device.
    pub identity: String,
    /// What tells it from every other file or device, even after a restart of the machine, where
    /// that is known.
    pub lasting_identity: Option<String>,
    /// The disk on which it lies, whole, as the kernel calls it; nothing where that is no one disk.
    pub disk: Option<String>,
}

/// Opens and closes files of one driver, on its thread. Its calls are system calls that block: it
/// is for the control path.
#[derive(Clone)]
pub struct Files(Rc<RefCell<Shared>>);

impl Files {
    pub(crate) fn new(shared: Rc<RefCell<Shared>>) -> Files {
        Files(shared)
    }

    /// Opens a regular file or block device.
    pub fn open_path(&self, path: &Path, options: OpenOptions) -> Result<Opened, Error> {
        let File { fd, direct, map, limits, warning, identity } = file::open(path, options)?;
        let lasting_identity = lasting::identity(&fd);
        let disk = limits::disk(&fd);
        let table = &mut self.0.borrow_mut().table;
        let file = match map {
            Some(map) => table.insert_mapped(fd, map),
            None => table.insert(fd, direct),
        };
        Ok(Opened { file, limits, warning, identity, lasting_identity, disk })
    }

    /// Opens as [`Files::open_path`] does, trying again for `patience` while the file is in use.
    ///
    /// For a restart: the kernel holds the files of a killed process until the requests of its ring
    /// have ended, 10 ms on an idle disk (measured 2026-11, Linux 6.18), longer on a slow one.
    pub async fn open_path_patiently(
        &self,
        path: &Path,
        options: OpenOptions,
        patience: Nanos,
    ) -> Result<Opened, Error> {
        let end = now() + patience;
        loop {
            match self.open_path(path, options) {
                Err(e) if e.kind() == ErrorKind::Busy && now() < end => sleep(RETRY_EVERY).await,
                other => return other,
            }
        }
    }

    /// What [`Opened::identity`] of `path` would be, without opening it.
    pub fn identity(&self, path: &Path) -> Result<String, Error> {
        file::identity(path)
    }

    /// An open file, for another core's [`Files::adopt`]; nothing when it is closed, or mapped:
    /// then it is this core's alone. When the file is closed here, what the others begin on it
    /// fails.
    pub fn share(&self, file: FileId) -> Option<SharedFile> {
        self.0.borrow().table.share(file)
    }

    /// Takes in a file that another core has opened and shared. Closing it here ends only this
    /// core's use.
    pub fn adopt(&self, shared: &SharedFile) -> FileId {
        self.0.borrow_mut().table.adopt(shared)
    }

    /// Takes over a connected or listening socket.
    pub fn adopt_socket(&self, fd: OwnedFd) -> Result<FileId, Error> {
        socket::set_blocking(&fd)?;
        Ok(socket::insert(&mut self.0.borrow_mut().table, fd))
    }

    /// Listens on a Unix socket at `path`, made with `mode` (0600: its owner only). Takes over a
    /// socket of ours that nobody listens on any more. Closing it leaves the path.
    pub fn listen_unix(&self, path: &Path, mode: u32) -> Result<FileId, Error> {
        let fd = socket::listen_unix(path, mode)?;
        Ok(self.0.borrow_mut().table.insert(fd, None))
    }

    /// Listens on a TCP address; also returns it with the port that port 0 became.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<(FileId, SocketAddr), Error> {
        let (fd, bound) = socket::listen_tcp(address)?;
        Ok((self.0.borrow_mut().table.insert(fd, None), bound))
    }

    /// Closes a file: at once, or when the last request in flight on it has ended. What waits on a
    /// socket ends now. No effect on a file that is closed.
    pub fn close(&self, file: FileId) {
        // Each of the three answers leaves it closed, now or soon.
        let _ = self.0.borrow_mut().table.close(file, None);
    }

    /// The user at the other end of a Unix socket; nothing for other files.
    pub fn peer_uid(&self, file: FileId) -> Option<u32> {
        socket::peer_uid(self.0.borrow().table.get(file)?)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Files")
    }
}
