// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listening sockets that the process was started with.
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use block::Error;
use rustix::net::SocketType;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

/// Takes the listening sockets with these descriptors, which a service manager has opened before it
/// started this program. Once in a process: its later calls have no effect and return none.
///
/// # Errors
/// When one is no listening stream socket. Then it is left as it is, and so are those after it.
pub fn take_passed(descriptors: impl Iterator<Item = RawFd>) -> Result<Vec<OwnedFd>, Error> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    descriptors.map(take).collect()
}

fn take(descriptor: RawFd) -> Result<OwnedFd, Error> {
    let refused = || Error::invalid(format!("descriptor {descriptor}: no listening stream socket"));
    if descriptor < 0 {
        return Err(refused());
    }
    // SAFETY: any number may be asked about; one that is not open is EBADF.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        return Err(refused());
    }
    // SAFETY: it is open, and nothing in this program owns or closes it (see below).
    let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let is_listener =
        socket_acceptconn(socket) == Ok(true) && socket_type(socket) == Ok(SocketType::STREAM);
    if !is_listener {
        return Err(refused());
    }
    // SAFETY: it was open when the program began: nothing in it owns the descriptor, and
    // `take_passed` lets nobody take it twice.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
