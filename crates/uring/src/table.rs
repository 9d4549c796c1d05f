// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Table: what the driver has open, and what is in flight on it.
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use block::{CoreId, OpKey};
use reactor::FileId;
use rustix::net::{Shutdown, shutdown};
use slab::Slab;

/// Who waits for a close: nobody when it came from the control path.
pub(crate) type Closer = Option<(CoreId, OpKey)>;

/// What O_DIRECT asks of memory: alignment of addresses and of lengths, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAlign {
    pub(crate) memory: usize,
    pub(crate) length: usize,
}

struct Slot {
    fd: OwnedFd,
    in_flight: u32,
    closing: Option<Closer>,
    direct: Option<DirectAlign>,
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

impl Table {
    pub(crate) fn insert(&mut self, fd: OwnedFd, direct: Option<DirectAlign>) -> FileId {
        let slot = self.0.insert(Slot { fd, in_flight: 0, closing: None, direct });
        FileId(u32::try_from(slot).expect("fewer than 2^32 open files"))
    }

    pub(crate) fn get(&self, file: FileId) -> Option<&OwnedFd> {
        self.0.get(index(file)).filter(|s| s.closing.is_none()).map(|s| &s.fd)
    }

    /// The descriptor of a file on which a request is in flight.
    pub(crate) fn fd(&self, file: FileId) -> RawFd {
        self.0[index(file)].fd.as_raw_fd()
    }

    /// Counts a request in; the answer says what O_DIRECT asks of it. `Err`: no such file.
    pub(crate) fn begin(&mut self, file: FileId) -> Result<Option<DirectAlign>, ()> {
        let slot = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()).ok_or(())?;
        slot.in_flight += 1;
        Ok(slot.direct)
    }

    /// Counts a request out. When it was the last of a file that is being closed, closes it and
    /// returns who waits for that.
    pub(crate) fn end(&mut self, file: FileId) -> Closer {
        let slot = &mut self.0[index(file)];
        slot.in_flight -= 1;
        if slot.in_flight > 0 || slot.closing.is_none() {
            return None;
        }
        self.0.remove(index(file)).closing.flatten()
    }

    /// U3: closes now, or when the last request has ended.
    pub(crate) fn close(&mut self, file: FileId, closer: Closer) -> Close {
        let Some(slot) = self.0.get_mut(index(file)).filter(|s| s.closing.is_none()) else {
            return Close::NoSuchFile;
        };
        if slot.in_flight == 0 {
            self.0.remove(index(file));
            return Close::Done;
        }
        slot.closing = Some(closer);
        // Ends what waits on a socket; a file says ENOTSOCK and its requests end by themselves.
        let _ = shutdown(&slot.fd, Shutdown::Both);
        Close::Later
    }
}
