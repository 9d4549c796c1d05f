// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket, on a thread of its own: messages with descriptors come by it, one after the
//! other, and answers go.
//!
//! ```text
//!   thread   recvmsg ─▶ decode ─▶ check and map descriptors ─▶ hand over, wait ─▶ sendmsg
//!   core                                                       handle
//! ```
//!
//! Invariants
//! - VH-C1 Whatever may wait for the front end, or for a file system behind a descriptor of it, is
//!   done here and not on the core: receive, send, examine, map, close.
//! - VH-C2 Only eventfds, mapped memory and a Unix socket reach the core. Other descriptors are
//!   closed here.
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use block::{Error, ErrorKind};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg,
};

use crate::inflight;
use crate::message::{
    Answer, HEADER_BYTES, Header, InflightInfo, PAYLOAD_BYTES_MAX, REGIONS_MAX, Request,
};

/// Descriptors that came with a message and were checked; `R` is mapped memory.
#[derive(Debug)]
pub struct Descriptors<R> {
    /// Memory: of each region in turn, or the notes of requests in flight.
    pub regions: Vec<R>,
    /// An eventfd.
    pub event: Option<OwnedFd>,
    /// A connected Unix socket.
    pub channel: Option<OwnedFd>,
}

/// The core, for the thread of a control socket.
pub trait Core {
    /// Mapped memory.
    type Region;
    /// Maps `len` bytes from `offset` on of a file in memory.
    ///
    /// # Errors
    /// When it is no such file, or has not so many bytes.
    fn map(&self, file: &OwnedFd, offset: u64, len: u64) -> Result<Self::Region, Error>;
    /// Whether a descriptor is an eventfd.
    fn is_eventfd(&self, fd: &OwnedFd) -> bool;
    /// Has the core handle a message, and waits for what it answers. With `true`: the front end may
    /// ask for an answer to every request.
    ///
    /// # Errors
    /// When the session has failed, or the core has ended.
    fn handle(
        &self,
        request: Request,
        descriptors: Descriptors<Self::Region>,
    ) -> Result<(Answer, bool), Error>;
}

fn socket_failed(e: Errno) -> Error {
    Error::new(ErrorKind::Io, "the front end's socket").because(e)
}

/// Receives all of `out`; false at the end of the stream before its first byte. Descriptors that
/// come with it are appended to `fds`.
fn receive(socket: &OwnedFd, out: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<bool, Error> {
    let mut done = 0;
    while done < out.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut out[done..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(socket, &mut parts, &mut control, flags) {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) if done == 0 => return Ok(false),
            received => received.map_err(socket_failed)?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > REGIONS_MAX {
            let most = format!("a message with more than {REGIONS_MAX} descriptors");
            return Err(Error::invalid(most));
        }
        match received.bytes {
            0 if done == 0 => return Ok(false),
            0 => return Err(Error::invalid("the front end's socket ends within a message")),
            n => done += n,
        }
    }
    Ok(true)
}

fn send(socket: &OwnedFd, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), Error> {
    let mut done = 0;
    while done < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(AsFd::as_fd).filter(|_| done == 0);
        let rights = fds.as_slice();
        if !rights.is_empty() {
            let fits = control.push(SendAncillaryMessage::ScmRights(rights));
            assert!(fits, "there is space for one");
        }
        let parts = [IoSlice::new(&bytes[done..])];
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => done += sent.map_err(socket_failed)?,
        }
    }
    Ok(())
}

/// Memory for notes of requests in flight, blank, that the front end can't cut.
fn inflight_memory(asked: &InflightInfo) -> Result<(InflightInfo, OwnedFd), Error> {
    let len = inflight::bytes_for(asked)?;
    let failed =
        |e: Errno| Error::new(ErrorKind::NoMemory, "notes of requests in flight").because(e);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(c"millpond-inflight", flags).map_err(failed)?;
    ftruncate(&file, len).map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(failed)?;
    Ok((InflightInfo { len, offset: 0, ..*asked }, file))
}

/// Checks and opens what came with a request (VH-C2).
fn attach<C: Core>(
    core: &C,
    request: &Request,
    mut fds: Vec<OwnedFd>,
) -> Result<Descriptors<C::Region>, Error> {
    let (found, wanted) = (fds.len(), request.descriptors());
    if found != wanted {
        let message = format!("a message with {found} descriptors: it takes {wanted}");
        return Err(Error::invalid(message));
    }
    let mut descriptors = Descriptors { regions: Vec::new(), event: None, channel: None };
    let is_event = matches!(request, Request::SetVringKick { .. } | Request::SetVringCall { .. });
    if let Request::SetMemTable(infos) = request {
        for (info, file) in infos.iter().zip(&fds) {
            descriptors.regions.push(core.map(file, info.offset, info.len)?);
        }
    } else if let Request::SetInflightFd(info) = request {
        descriptors.regions.push(core.map(&fds[0], info.offset, info.len)?);
    } else if is_event && let Some(fd) = fds.pop() {
        if !core.is_eventfd(&fd) {
            return Err(Error::invalid("the descriptor of a queue is no eventfd"));
        }
        descriptors.event = Some(fd);
    } else if *request == Request::SetBackendReqFd {
        let is_socket = |fd: &OwnedFd| {
            socket_domain(fd) == Ok(AddressFamily::UNIX)
                && socket_type(fd) == Ok(SocketType::STREAM)
        };
        let channel = fds.pop().filter(is_socket);
        let wrong = || Error::invalid("the socket for requests to the front end is none");
        descriptors.channel = Some(channel.ok_or_else(wrong)?);
    }
    Ok(descriptors)
}

/// Receives messages from `socket` and has the core handle them, until the front end or the core
/// ends the connection. Blocks this thread.
///
/// # Errors
/// What was wrong, for the log, when the other side broke the protocol. What the core has refused
/// is among it.
pub fn serve<C: Core>(socket: &OwnedFd, core: &C) -> Result<(), Error> {
    let mut acknowledges = false;
    loop {
        let (mut head, mut fds) = ([0; HEADER_BYTES], Vec::new());
        if !receive(socket, &mut head, &mut fds)? {
            return Ok(());
        }
        let header = Header::decode(&head)?;
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let payload = &mut payload[..header.payload_bytes()];
        if !payload.is_empty() && !receive(socket, payload, &mut fds)? {
            return Err(Error::invalid("the front end's socket ends within a message"));
        }
        let request = Request::decode(&header, payload)?;
        if let Request::GetInflightFd(asked) = &request {
            let (info, file) = inflight_memory(asked)?;
            send(socket, &Answer::Inflight(info).encode(&header), Some(&file))?;
            continue;
        }
        let handled = attach(core, &request, fds)
            .and_then(|descriptors| core.handle(request, descriptors))
            .inspect_err(|_| {
                if header.needs_reply() && acknowledges {
                    // It may be gone; the cause is what is reported.
                    let _ = send(socket, &Answer::Number(1).encode(&header), None);
                }
            });
        let (answer, acknowledges_now) = handled?;
        acknowledges = acknowledges_now;
        if answer != Answer::Done || header.needs_reply() && acknowledges {
            send(socket, &answer.encode(&header), None)?;
        }
    }
}
