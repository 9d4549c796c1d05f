// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The open files of a driver, and the number of requests in flight on each.
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{CoreId, OpKey};
use reactor::{FileId, SqeOp};
use rustix::fs::{Mode, OFlags, SeekFrom, seek};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use slab::Slab;

use crate::helpers;
use crate::pmem::{MappedOutcome, Mapping};
use crate::socket;

/// The request that waits for a close; none for a close by the control path.
pub(crate) type Closer = Option<(CoreId, OpKey)>;

/// Requirements of O_DIRECT: alignment of addresses and of lengths, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAlign {
    pub(crate) memory: usize,
    pub(crate) length: usize,
}

/// An open file on its way to the driver of another core. It holds the descriptor only: the file is
/// closed when the core that opened it closes it.
#[derive(Clone)]
pub struct SharedFile {
    fd: Arc<OwnedFd>,
    kind: Kind,
    size: Option<Arc<KeptSize>>,
}

/// The size that a regular file has to keep while it is open (UR-U9), for all cores.
struct KeptSize {
    wanted: AtomicU64,
    /// What a flush has found, if that was less; else [`NOT_SHORTER`].
    found: AtomicU64,
}

/// A size that no file has.
const NOT_SHORTER: u64 = u64::MAX;

/// A file that has become shorter while it was open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShorterFile {
    /// Bytes that it has now.
    pub found: u64,
    /// Bytes that it had when it was opened, or when its size was last read.
    pub wanted: u64,
}

impl SharedFile {
    /// The runs within `range` without data. May wait for the file system. The descriptor's offset,
    /// which the search sets, means nothing: every request has its own.
    pub(crate) fn holes(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let hole = match seek(&self.fd, SeekFrom::Hole(at)) {
                Ok(hole) if hole >= at => hole,
                // It does not tell, or is no file any more.
                _ => break,
            };
            let data = match seek(&self.fd, SeekFrom::Data(hole)) {
                Ok(data) if data > hole => data,
                // No data after it.
                Err(Errno::NXIO) => range.end,
                _ => break,
            };
            if hole < range.end {
                holes.push(hole..data.min(range.end));
            }
            at = data;
        }
        holes
    }
}

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Its close never blocks.
    Socket,
    /// A listening socket; its close never blocks. Other processes may have the same one: it is
    /// never shut down (UR-U8).
    Listener,
    /// An eventfd; its close never blocks, and ends requests that wait on it.
    Event,
    /// Its close may wait for a file system or disk.
    File {
        direct: Option<DirectAlign>,
        /// It does not support `RWF_NOWAIT`, so a request could block the core at submission
        /// (UR-U7).
        may_block: bool,
    },
}

impl Kind {
    fn direct(self) -> Option<DirectAlign> {
        match self {
            Kind::Socket | Kind::Listener | Kind::Event => None,
            Kind::File { direct, .. } => direct,
        }
    }
}

impl SharedFile {
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.fd
    }
}

block::debug_as!(SharedFile, s => "SharedFile({:?})", s.fd);

struct Slot {
    fd: Arc<OwnedFd>,
    /// This core opened it, so its close closes it for all cores.
    opened_here: bool,
    in_flight: u32,
    closing: Option<Closer>,
    kind: Kind,
    size: Option<Arc<KeptSize>>,
    map: Option<Mapping>,
    /// A socket that has room for large sends.
    has_large_buffer: bool,
    /// A listener that accepts no more, or an eventfd that is being closed.
    accepts_ended: bool,
}

/// Open files by [`FileId`].
#[derive(Default)]
pub(crate) struct Table(Slab<Slot>);

/// The result of a close.
pub(crate) enum CloseResult {
    Done,
    /// `Table::end` of the last request closes it.
    Deferred,
    NoSuchFile,
}

fn index(file: FileId) -> usize {
    file.0 as usize
}

impl Slot {
    fn close(self) {
        let Slot { fd, opened_here, kind, map, .. } = self;
        // The mapping belongs to this thread.
        drop(map);
        let close = move || {
            // UR-U5: the descriptors of other cores stay valid, but without the file. Otherwise a
            // core that polls seldom would keep file and lock.
            if opened_here && Arc::strong_count(&fd) > 1 {
                detach_file(&fd);
            }
        };
        match kind {
            Kind::Socket | Kind::Listener | Kind::Event => close(),
            Kind::File { .. } => helpers::close(close),
        }
    }
}

/// Detaches a descriptor that others hold from its file: every operation on it fails from now on.
fn detach_file(fd: &OwnedFd) {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Without a free descriptor the file stays open until the other cores release it.
    let Ok(nowhere) = rustix::fs::open("/", flags, Mode::empty()) else { return };
    loop {
        // SAFETY: both descriptors are open and ours; the owners of `fd` keep it.
        let done = unsafe { libc::dup3(nowhere.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
        let again = [Some(libc::EINTR), Some(libc::EBUSY)];
        // A number beyond a limit that was lowered since: as without a free descriptor.
        if done >= 0 || !again.contains(&std::io::Error::last_os_error().raw_os_error()) {
            return;
        }
    }
}

impl Table {
    pub(crate) fn insert(&mut self, fd: OwnedFd, kind: Kind) -> FileId {
        self.add(Arc::new(fd), kind, None, true)
    }

    /// Notes how many bytes a regular file has to keep.
    pub(crate) fn keep_size(&mut self, file: FileId, wanted: u64) {
        let Some(slot) = self.0.get_mut(index(file)) else { return };
        let new = || Arc::new(KeptSize { wanted: 0.into(), found: NOT_SHORTER.into() });
        let size = slot.size.get_or_insert_with(new);
        size.wanted.store(wanted, Ordering::Relaxed);
        size.found.store(NOT_SHORTER, Ordering::Relaxed);
    }

    /// Whether it has a size to keep.
    pub(crate) fn keeps_size(&self, file: FileId) -> bool {
        self.0.get(index(file)).is_some_and(|slot| slot.size.is_some())
    }

    /// A flush has found the file so long; returns whether that is enough.
    pub(crate) fn size_found(&self, file: FileId, bytes: u64) -> bool {
        let size = self.0.get(index(file)).and_then(|slot| slot.size.as_ref());
        let Some(size) = size else { return true };
        let is_whole = bytes >= size.wanted.load(Ordering::Relaxed);
        size.found.store(if is_whole { NOT_SHORTER } else { bytes }, Ordering::Relaxed);
        is_whole
    }

    /// What the last flush has found if the file had become shorter.
    pub(crate) fn shorter(&self, file: FileId) -> Option<ShorterFile> {
        let size = self.0.get(index(file))?.size.as_ref()?;
        let found = Some(size.found.load(Ordering::Relaxed)).filter(|n| *n != NOT_SHORTER)?;
        Some(ShorterFile { found, wanted: size.wanted.load(Ordering::Relaxed) })
    }

    /// Adds a file that is read and written by copies.
    pub(crate) fn insert_mapped(&mut self, fd: OwnedFd, map: Mapping) -> FileId {
        let file = self.insert(fd, Kind::File { direct: None, may_block: false });
        self.0[index(file)].map = Some(map);
        file
    }

    /// Serves a request of a mapped file; `None` if the file is not mapped.
    pub(crate) fn serve(&self, file: FileId, what: &SqeOp) -> Option<MappedOutcome> {
        let slot = self.0.get(index(file)).filter(|s| s.closing.is_none())?;
        Some(slot.map.as_ref()?.serve(what))
    }

    /// Adds a file that another core has shared.
    pub(crate) fn adopt(&mut self, shared: &SharedFile) -> FileId {
        self.add(shared.fd.clone(), shared.kind, shared.size.clone(), false)
    }

    fn add(
        &mut self,
        fd: Arc<OwnedFd>,
        kind: Kind,
        size: Option<Arc<KeptSize>>,
        opened_here: bool,
    ) -> FileId {
        let slot = Slot {
            fd,
            opened_here,
            in_flight: 0,
            closing: None,
            kind,
            size,
            map: None,
            has_large_buffer: false,
            accepts_ended: false,
        };
        FileId(u32::try_from(self.0.insert(slot)).expect("fewer than 2^32 open files"))
    }

    pub(crate) fn get(&self, file: FileId) -> Option<&OwnedFd> {
        self.0.get(index(file)).filter(|s| s.closing.is_none()).map(|s| &*s.fd)
    }

    /// The descriptor of a socket; `None` of another file (UR-U10).
    pub(crate) fn socket(&self, file: FileId) -> Option<&OwnedFd> {
        let slot = self.0.get(index(file)).filter(|s| s.closing.is_none())?;
        matches!(slot.kind, Kind::Socket | Kind::Listener).then_some(&*slot.fd)
    }

    /// `None` for a mapped file: only this core can use it.
    pub(crate) fn share(&self, file: FileId) -> Option<SharedFile> {
        let slot = self.0.get(index(file)).filter(|s| s.closing.is_none() && s.map.is_none())?;
        Some(SharedFile { fd: slot.fd.clone(), kind: slot.kind, size: slot.size.clone() })
    }

    /// The descriptor of a file on which a request is in flight.
    pub(crate) fn fd(&self, file: FileId) -> RawFd {
        self.0[index(file)].fd.as_raw_fd()
    }

    /// The descriptor of a file on which a request is under way: it stays open for that.
    pub(crate) fn fd_in_use(&self, file: FileId) -> Option<RawFd> {
        let slot = self.0.get(index(file)).filter(|slot| slot.in_flight > 0);
        slot.map(|slot| slot.fd.as_raw_fd())
    }

    /// Whether a kernel thread must issue requests on a file.
    pub(crate) fn may_block(&self, file: FileId) -> bool {
        matches!(self.0[index(file)].kind, Kind::File { may_block: true, .. })
    }

    /// Whether it is a listening socket.
    pub(crate) fn is_listener(&self, file: FileId) -> bool {
        self.0.get(index(file)).is_some_and(|slot| matches!(slot.kind, Kind::Listener))
    }

    /// Whether what waits on it ends by a cancellation.
    pub(crate) fn ends_by_cancel(&self, file: FileId) -> bool {
        let ends = |slot: &Slot| matches!(slot.kind, Kind::Listener | Kind::Event);
        self.0.get(index(file)).is_some_and(ends)
    }

    /// Notes that a listener accepts no more.
    pub(crate) fn end_accepts(&mut self, file: FileId) {
        self.0[index(file)].accepts_ended = true;
    }

    /// Whether it is a listener that accepts no more, or an eventfd that is being closed.
    pub(crate) fn accepts_ended(&self, file: FileId) -> bool {
        self.0.get(index(file)).is_some_and(|slot| slot.accepts_ended)
    }

    /// Counts a request; returns the requirements of O_DIRECT. `Err`: no such file.
    pub(crate) fn begin(&mut self, file: FileId) -> Result<Option<DirectAlign>, ()> {
        let slot = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()).ok_or(())?;
        slot.in_flight += 1;
        Ok(slot.kind.direct())
    }

    /// Makes room for large sends on a socket on which a request is in flight.
    pub(crate) fn enlarge_send_buffer(&mut self, file: FileId) {
        let slot = &mut self.0[index(file)];
        if !std::mem::replace(&mut slot.has_large_buffer, true) {
            socket::enlarge_send_buffer(&slot.fd);
        }
    }

    /// Ends a request. After the last one of a file that is being closed, closes the file and
    /// returns the request that waits for the close.
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

    /// Closes now, or when the last request has ended (UR-U3). Those on a listener or an eventfd
    /// are the caller's to end.
    pub(crate) fn close(&mut self, file: FileId, closer: Closer) -> CloseResult {
        let Some(slot) = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()) else {
            return CloseResult::NoSuchFile;
        };
        if slot.in_flight == 0 {
            self.0.remove(index(file)).close();
            return CloseResult::Done;
        }
        slot.closing = Some(closer);
        match slot.kind {
            // Ends requests that wait on it.
            Kind::Socket => {
                let _ = shutdown(&*slot.fd, Shutdown::Both);
            }
            // UR-U8
            Kind::Listener | Kind::Event => slot.accepts_ended = true,
            // Its requests end by themselves.
            Kind::File { .. } => {}
        }
        CloseResult::Deferred
    }
}
