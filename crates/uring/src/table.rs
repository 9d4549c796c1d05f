// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table: what the driver has open, and what is in flight on it.
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use block::{CoreId, OpKey};
use reactor::{FileId, SqeOp};
use rustix::fs::{Mode, OFlags};
use rustix::net::{Shutdown, shutdown};
use slab::Slab;

use crate::helpers;
use crate::pmem::{Mapping, Served};
use crate::socket;

/// Who waits for a close: nobody when it came from the control path.
pub(crate) type Closer = Option<(CoreId, OpKey)>;

/// What O_DIRECT asks of memory: alignment of addresses and of lengths, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAlign {
    pub(crate) memory: usize,
    pub(crate) length: usize,
}

/// An open file on its way to the driver of another core. Holds the descriptor, not the file: that
/// is closed when the core that opened it closes it.
#[derive(Clone)]
pub struct SharedFile {
    fd: Arc<OwnedFd>,
    kind: Kind,
}

/// What a descriptor is of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Closing it takes no time.
    Socket,
    /// Closing it may wait for its file system or disk.
    File {
        direct: Option<DirectAlign>,
        /// It knows no `RWF_NOWAIT`, so a request could keep the core even while it is begun (U7).
        may_block: bool,
    },
}

impl Kind {
    fn direct(self) -> Option<DirectAlign> {
        match self {
            Kind::Socket => None,
            Kind::File { direct, .. } => direct,
        }
    }
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedFile({:?})", self.fd)
    }
}

struct Slot {
    fd: Arc<OwnedFd>,
    /// This core opened it, so its closing closes it for all.
    opened_here: bool,
    in_flight: u32,
    closing: Option<Closer>,
    kind: Kind,
    map: Option<Mapping>,
    /// A socket that has room for large sends.
    wide: bool,
}

/// Open files by [`FileId`].
#[derive(Default)]
pub(crate) struct Table(Slab<Slot>);

/// What a close came to.
pub(crate) enum Close {
    Done,
    /// `Table::end` of the last request will tell.
    Later,
    NoSuchFile,
}

fn index(file: FileId) -> usize {
    file.0 as usize
}

impl Slot {
    fn close(self) {
        let Slot { fd, opened_here, kind, map, .. } = self;
        // The mapping is this thread's.
        drop(map);
        let close = move || {
            // U5: the others' descriptors stay, but lead nowhere. A core that looks for news seldom
            // would hold file and lock otherwise.
            if opened_here && Arc::strong_count(&fd) > 1 {
                hollow_out(&fd);
            }
        };
        match kind {
            Kind::Socket => close(),
            Kind::File { .. } => helpers::close(close),
        }
    }
}

/// Lets a descriptor that others hold go on without its file: every operation on it fails.
fn hollow_out(fd: &OwnedFd) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Without a free descriptor the file stays open until the others let go of it.
    let Ok(nowhere) = rustix::fs::open("/", flags, Mode::empty()) else { return };
    // SAFETY: both descriptors are open and ours; `fd` goes on being owned by whoever holds it.
    unsafe { libc::dup3(nowhere.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
}

impl Table {
    pub(crate) fn insert(&mut self, fd: OwnedFd, kind: Kind) -> FileId {
        self.take_in(Arc::new(fd), kind, true)
    }

    /// Takes in a file that is read and written by copies.
    pub(crate) fn insert_mapped(&mut self, fd: OwnedFd, map: Mapping) -> FileId {
        let file = self.insert(fd, Kind::File { direct: None, may_block: false });
        self.0[index(file)].map = Some(map);
        file
    }

    /// What became of a request, if the file is mapped.
    pub(crate) fn serve(&self, file: FileId, what: &SqeOp) -> Option<Served> {
        let slot = self.0.get(index(file)).filter(|s| s.closing.is_none())?;
        Some(slot.map.as_ref()?.serve(what))
    }

    /// Takes over a file that another core has shared.
    pub(crate) fn adopt(&mut self, shared: &SharedFile) -> FileId {
        self.take_in(shared.fd.clone(), shared.kind, false)
    }

    fn take_in(&mut self, fd: Arc<OwnedFd>, kind: Kind, opened_here: bool) -> FileId {
        let (closing, map) = (None, None);
        let slot = Slot { fd, opened_here, in_flight: 0, closing, kind, map, wide: false };
        FileId(u32::try_from(self.0.insert(slot)).expect("fewer than 2^32 open files"))
    }

    pub(crate) fn get(&self, file: FileId) -> Option<&OwnedFd> {
        self.0.get(index(file)).filter(|s| s.closing.is_none()).map(|s| &*s.fd)
    }

    /// Nothing for a mapped file: it is this core's alone.
    pub(crate) fn share(&self, file: FileId) -> Option<SharedFile> {
        let slot = self.0.get(index(file)).filter(|s| s.closing.is_none() && s.map.is_none())?;
        Some(SharedFile { fd: slot.fd.clone(), kind: slot.kind })
    }

    /// The descriptor of a file on which a request is in flight.
    pub(crate) fn fd(&self, file: FileId) -> RawFd {
        self.0[index(file)].fd.as_raw_fd()
    }

    /// Whether requests on a file are to be begun by a thread of the kernel.
    pub(crate) fn may_block(&self, file: FileId) -> bool {
        matches!(self.0[index(file)].kind, Kind::File { may_block: true, .. })
    }

    /// Counts a request in; the answer says what O_DIRECT asks of it. `Err`: no such file.
    pub(crate) fn begin(&mut self, file: FileId) -> Result<Option<DirectAlign>, ()> {
        let slot = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()).ok_or(())?;
        slot.in_flight += 1;
        Ok(slot.kind.direct())
    }

    /// Makes room for large sends on a socket on which a request is in flight.
    pub(crate) fn widen(&mut self, file: FileId) {
        let slot = &mut self.0[index(file)];
        if !std::mem::replace(&mut slot.wide, true) {
            socket::widen(&slot.fd);
        }
    }

    /// Counts a request out. When it was the last of a file that is being closed, closes it and
    /// returns who waits for that.
    pub(crate) fn end(&mut self, file: FileId) -> Closer {
        let slot = &mut self.0[index(file)];
        slot.in_flight -= 1;
        if slot.in_flight > 0 || slot.closing.is_none() {
            return None;
        }
        let mut slot = self.0.remove(index(file));
        let closer = slot.closing.take().flatten();
        slot.close();
        closer
    }

    /// U3: closes now, or when the last request has ended.
    pub(crate) fn close(&mut self, file: FileId, closer: Closer) -> Close {
        let Some(slot) = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()) else {
            return Close::NoSuchFile;
        };
        if slot.in_flight == 0 {
            self.0.remove(index(file)).close();
            return Close::Done;
        }
        slot.closing = Some(closer);
        // Ends what waits on a socket; a file says ENOTSOCK and its requests end by themselves.
        let _ = shutdown(&*slot.fd, Shutdown::Both);
        Close::Later
    }
}
