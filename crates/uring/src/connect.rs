// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections to servers, by Unix socket or TCP, without blocking the core.
//!
//! ```text
//!   core                                    thread
//!   connect ── address ───────────────────▶ resolve the name, connect
//!   waits ◀── the connected socket ──────── wakes the core
//! ```
//!
//! Name resolution and connect may block for long and are not done by the ring; they are rare.
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Error, ErrorKind};
use reactor::FileId;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_user_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::files::Files;
use crate::socket::keep_alive;

/// Timeout for each address of a name, and for a Unix socket. Chosen: a reachable host answers in
/// less.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Sent data that are not acknowledged for so long end the connection.
const UNACKNOWLEDGED_MS_MAX: u32 = 30_000;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A Unix socket.
    Unix(PathBuf),
    /// A name or address, and a port. The name is looked up at every connection.
    Tcp(String, u16),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix(path) => write!(f, "{}", path.display()),
            Peer::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Peer::Tcp(host, port) => write!(f, "{host}:{port}"),
        }
    }
}

fn connect(peer: &Peer) -> io::Result<OwnedFd> {
    match peer {
        Peer::Unix(path) => connect_unix(path),
        Peer::Tcp(host, port) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                    Ok(stream) => {
                        watch_over(&stream)?;
                        return Ok(stream.into());
                    }
                    Err(e) => last = e,
                }
            }
            Err(last)
        }
    }
}

/// A server that accepts nothing makes others wait, once its queue of connections is full.
fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(CONNECT_TIME))?;
    rustix::net::connect(&fd, &address).map_err(|e| match e {
        Errno::AGAIN => io::Error::from(io::ErrorKind::TimedOut),
        e => e.into(),
    })?;
    set_socket_timeout(&fd, Timeout::Send, None)?;
    Ok(fd)
}

/// Has the kernel end the connection when the other host has gone, also while something is under
/// way.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    keep_alive(stream)?;
    set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX)?;
    Ok(())
}

fn error(peer: &Peer, e: io::Error) -> Error {
    let kind = ErrorKind::of_io(e.kind());
    Error::new(kind, format!("{peer}: cannot connect")).because(e)
}

impl Files {
    /// Connects without blocking the core. If the future is dropped, the attempt still runs to its
    /// end.
    ///
    /// # Errors
    /// The error of the system: no such name or socket, connection refused, no answer.
    pub async fn connect(&self, peer: &Peer) -> Result<FileId, Error> {
        let to = peer.clone();
        let attempt = move || connect(&to).map_err(|e| error(&to, e));
        self.adopt_socket(self.apart("connect", attempt).await?)
    }
}
