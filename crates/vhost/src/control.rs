// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket, on a thread of its own: messages with descriptors come by it, one after the
//! other, and answers go. Before each part of a message the thread looks whether it is to pause:
//! then it ends, and returns the connection with what it has received of the next message. A front
//! end that takes no part of an answer for a second then has its connection ended.
//!
//! ```text
//!   thread   recvmsg ─▶ decode ─▶ check and map descriptors ─▶ hand over, wait ─▶ note, sendmsg
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
use std::sync::Arc;

use block::{Error, ErrorKind};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketType, recv, recvmsg,
    sendmsg, shutdown,
};

use crate::connection::Input;
use crate::inflight;
use crate::message::{Answer, HEADER_BYTES, Header, InflightInfo, REGIONS_MAX, Request};

/// The connection of a front end, with the descriptors that it has given.
pub type Connection = crate::connection::Connection<Arc<OwnedFd>>;
/// A message with its descriptors.
pub type Message = (Request, Vec<Arc<OwnedFd>>);

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

/// How long a front end may take nothing of an answer while the thread is to pause: as NBD clients
/// in a pause.
const ANSWER_TIME: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The core, for the thread of a control socket.
pub trait Core {
    /// Mapped memory.
    type Region;
    /// Checks whether a front end may have `bytes` of its memory mapped: all regions of a table, or
    /// the notes of requests in flight.
    ///
    /// # Errors
    /// When they are too many.
    fn check_memory(&self, bytes: u64) -> Result<(), Error>;
    /// Maps `len` bytes from `offset` on of a file in memory.
    ///
    /// # Errors
    /// When it is no such file, or has not so many bytes.
    fn map(&self, file: &OwnedFd, offset: u64, len: u64) -> Result<Self::Region, Error>;
    /// Whether a descriptor is an eventfd.
    fn is_eventfd(&self, fd: &OwnedFd) -> bool;
    /// Has the core handle a message, and waits for what it answers.
    ///
    /// # Errors
    /// When the session has failed, or the core has ended.
    fn handle(
        &self,
        request: Request,
        descriptors: Descriptors<Self::Region>,
    ) -> Result<Answer, Error>;
}

/// By which a thread is told to pause. Clones are the same.
#[derive(Clone, Debug)]
pub struct PauseSignal(Arc<OwnedFd>);

impl PauseSignal {
    /// One that was not given.
    ///
    /// # Errors
    /// Without a free descriptor.
    pub fn new() -> Result<PauseSignal, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let made = eventfd(0, flags);
        let failed = |e| Error::new(ErrorKind::Limit, "no descriptor is free").because(e);
        Ok(PauseSignal(Arc::new(made.map_err(failed)?)))
    }

    /// Gives it: the thread ends before it receives more.
    pub fn give(&self) {
        // It fails only where it was given very often.
        let _ = rustix::io::write(&self.0, &1_u64.to_le_bytes());
    }

    /// Takes it back. The thread may have seen it.
    pub fn take_back(&self) {
        // It fails where it was not given.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

fn socket_failed(e: Errno) -> Error {
    Error::new(ErrorKind::Io, "the front end's socket").because(e)
}

/// How a receipt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receipt {
    Whole,
    /// The stream has ended before the first byte of a message.
    End,
    Pause,
}

/// The socket, and when to pause.
struct Stream<'a> {
    socket: &'a OwnedFd,
    pause: &'a PauseSignal,
}

impl Stream<'_> {
    /// Waits until there is something to receive; false when the thread is to pause.
    fn wait(&self) -> Result<bool, Error> {
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = [of(self.pause.0.as_fd()), of(self.socket.as_fd())];
        loop {
            match poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                polled => {
                    polled.map_err(socket_failed)?;
                    return Ok(fds[0].revents().is_empty());
                }
            }
        }
    }

    /// Receives until `input` has `len` bytes of a message.
    fn receive(&self, input: &mut Input<Arc<OwnedFd>>, len: usize) -> Result<Receipt, Error> {
        while input.bytes.len() < len {
            if !self.wait()? {
                return Ok(Receipt::Pause);
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut bytes = vec![0; len - input.bytes.len()];
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = match recvmsg(self.socket, &mut parts, &mut control, flags) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) if input.bytes.is_empty() => return Ok(Receipt::End),
                received => received.map_err(socket_failed)?,
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    input.descriptors.extend(rights.map(Arc::new));
                }
            }
            let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
            if is_cut || input.descriptors.len() > REGIONS_MAX {
                let most = format!("a message with more than {REGIONS_MAX} descriptors");
                return Err(Error::invalid(most));
            }
            match received.bytes {
                0 if input.bytes.is_empty() => return Ok(Receipt::End),
                0 => return Err(Error::invalid("the front end's socket ends within a message")),
                n => input.bytes.extend(&bytes[..n]),
            }
        }
        Ok(Receipt::Whole)
    }

    /// Waits until the front end may take more of an answer.
    ///
    /// # Errors
    /// When the thread is to pause and the front end takes nothing for `ANSWER_TIME`: it would hold
    /// all others up.
    fn wait_to_send(&self) -> Result<(), Error> {
        let mut is_told = false;
        loop {
            let pause = PollFd::from_borrowed_fd(self.pause.0.as_fd(), PollFlags::IN);
            let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT), pause];
            let (watched, time) = match is_told {
                true => (&mut fds[..1], Some(&ANSWER_TIME)),
                false => (&mut fds[..], None),
            };
            match poll(watched, time) {
                Err(Errno::INTR) => {}
                Ok(0) => {
                    let text = "the front end takes no answers, and a pause does not wait for it";
                    return Err(Error::new(ErrorKind::Busy, text));
                }
                polled => {
                    polled.map_err(socket_failed)?;
                    if !fds[0].revents().is_empty() {
                        return Ok(());
                    }
                    is_told = true;
                }
            }
        }
    }

    fn send(&self, bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), Error> {
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
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(self.socket, &parts, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_to_send()?,
                sent => done += sent.map_err(socket_failed)?,
            }
        }
        Ok(())
    }
}

/// Takes what a socket by which no more is received still has: descriptors among it are closed
/// here, and not by the core that closes the socket last (VH-C1).
pub fn drain(socket: &OwnedFd) {
    let mut bytes = [0; 1 << 12];
    loop {
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((1.., _)) | Err(Errno::INTR) => {}
            Ok((0, _)) | Err(_) => return,
        }
    }
}

/// The socket for requests to the front end, which sends nothing by it: no request asks for an
/// answer.
fn backend_channel(socket: &OwnedFd) -> Result<(), Error> {
    let is_stream = socket_domain(socket) == Ok(AddressFamily::UNIX)
        && socket_type(socket) == Ok(SocketType::STREAM)
        && socket_acceptconn(socket) == Ok(false);
    if !is_stream || shutdown(socket, Shutdown::Read).is_err() {
        return Err(Error::invalid("the socket for requests to the front end is none"));
    }
    drain(socket);
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
    fds: &[Arc<OwnedFd>],
) -> Result<Descriptors<C::Region>, Error> {
    let (found, wanted) = (fds.len(), request.descriptors());
    if found != wanted {
        let message = format!("a message with {found} descriptors: it takes {wanted}");
        return Err(Error::invalid(message));
    }
    // One stays with the connection, for a start in another process.
    let copy = |fd: &Arc<OwnedFd>| {
        let failed = |e| Error::new(ErrorKind::Limit, "no descriptor is free").because(e);
        fd.try_clone().map_err(failed)
    };
    let mut descriptors = Descriptors { regions: Vec::new(), event: None, channel: None };
    let is_event = matches!(request, Request::SetVringKick { .. } | Request::SetVringCall { .. });
    if let Request::SetMemTable(infos) = request {
        core.check_memory(infos.iter().fold(0, |sum: u64, info| sum.saturating_add(info.len)))?;
        for (info, file) in infos.iter().zip(fds) {
            descriptors.regions.push(core.map(file, info.offset, info.len)?);
        }
    } else if let Request::SetInflightFd(info) = request {
        core.check_memory(info.len)?;
        descriptors.regions.push(core.map(&fds[0], info.offset, info.len)?);
    } else if is_event && let Some(fd) = fds.first() {
        if !core.is_eventfd(fd) {
            return Err(Error::invalid("the descriptor of a queue is no eventfd"));
        }
        descriptors.event = Some(copy(fd)?);
    } else if *request == Request::SetBackendReqFd {
        backend_channel(&fds[0])?;
        descriptors.channel = Some(copy(&fds[0])?);
    }
    Ok(descriptors)
}

/// How the service of a connection has ended without an error.
#[derive(Debug)]
pub enum ServiceEnd {
    /// The front end has gone.
    Closed,
    /// The thread was told to pause, between two messages or in one.
    Paused(Connection),
}

/// Has the core handle `first`, then receives messages from `socket` and has the core handle them,
/// until the front end or the core ends the connection, or `pause` is given. Blocks this thread.
///
/// # Errors
/// What was wrong, for the log, when the other side broke the protocol. What the core has refused
/// is among it.
pub fn serve<C: Core>(
    socket: &OwnedFd,
    pause: &PauseSignal,
    core: &C,
    mut connection: Connection,
    first: Vec<Message>,
) -> Result<ServiceEnd, Error> {
    for (request, fds) in first {
        let descriptors = attach(core, &request, &fds)?;
        core.handle(request.clone(), descriptors)?;
        connection.note(&request, fds);
    }
    let stream = Stream { socket, pause };
    loop {
        match stream.receive(&mut connection.input, HEADER_BYTES)? {
            Receipt::Whole => {}
            Receipt::End => return Ok(ServiceEnd::Closed),
            Receipt::Pause => return Ok(ServiceEnd::Paused(connection)),
        }
        let head = connection.input.bytes.first_chunk().expect("a whole header");
        let header = Header::decode(head)?;
        let len = HEADER_BYTES + header.payload_bytes();
        match stream.receive(&mut connection.input, len)? {
            Receipt::Whole => {}
            Receipt::End => unreachable!("it has a header"),
            Receipt::Pause => return Ok(ServiceEnd::Paused(connection)),
        }
        // VH-X2: it is handled, and its answer sent, before the next look at `pause`.
        let Input { bytes, descriptors: fds } = std::mem::take(&mut connection.input);
        let request = Request::decode(&header, &bytes[HEADER_BYTES..])?;
        if let Request::GetInflightFd(asked) = &request {
            let (info, file) = inflight_memory(asked)?;
            stream.send(&Answer::Inflight(info).encode(&header), Some(&file))?;
            continue;
        }
        let handled = attach(core, &request, &fds)
            .and_then(|descriptors| core.handle(request.clone(), descriptors))
            .inspect_err(|_| {
                if header.needs_reply() && connection.acknowledges() {
                    // It may be gone; the cause is what is reported.
                    let _ = stream.send(&Answer::Number(1).encode(&header), None);
                }
            });
        let answer = handled?;
        connection.note(&request, fds);
        if let Answer::Base { queue, base } = answer {
            connection.note_stop(queue, base);
        }
        if answer != Answer::Done || header.needs_reply() && connection.acknowledges() {
            stream.send(&answer.encode(&header), None)?;
        }
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
