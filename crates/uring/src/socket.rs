// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Preparation of sockets for the ring.
use std::ffi::c_int;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use block::{Error, ErrorKind};
use reactor::FileId;
use rustix::fs::{Gid, Mode, OFlags, chmod, chown, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_send_buffer_size, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_nodelay, socket_domain, socket_peercred,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getpeername, listen, socket_with,
};

use crate::os_error::os_error;
use crate::table::{Kind, Table};

/// Connections that wait to be accepted: what the kernel caps it to by default is 4096.
const LISTEN_BACKLOG: i32 = 128;

/// A piece of data of this size enlarges the send buffer (chosen: two of them do not fit into the
/// initial buffer of a Unix socket).
pub(crate) const LARGE_BYTES: usize = 128 << 10;
/// Send buffer for large data; the kernel grants at most twice `net.core.wmem_max`. Measured
/// (2026-11, `docs/performance.md`): with less, more sends are cut and wait for the receiver; more
/// than twice as much gains nothing at 128 KiB.
const ROOM_BYTES: usize = 512 << 10;

/// The kernel probes a silent host after 15 s, then every 5 s, and gives it up after three probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;

/// Has the kernel end a connection on which nothing is under way, and whose other host has gone.
pub(crate) fn keep_alive(stream: impl AsFd) -> io::Result<()> {
    set_socket_keepalive(&stream, true)?;
    set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
    set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
    set_tcp_keepcnt(&stream, KEEPALIVE_COUNT)?;
    Ok(())
}

/// Adds a socket to the table.
pub(crate) fn insert(table: &mut Table, fd: OwnedFd) -> FileId {
    // Replies are gathered before they are sent, so a delay gains nothing. Only for TCP.
    if set_tcp_nodelay(&fd, true).is_ok() {
        // Refused, the connection is as good, but for a host that goes without a word.
        let _ = keep_alive(&fd);
    }
    table.insert(fd, Kind::Socket)
}

/// Enlarges the send buffer. A Unix socket has 208 KiB by default; TCP buffers grow by themselves,
/// but not after a size was set.
pub(crate) fn enlarge_send_buffer(fd: &OwnedFd) {
    if socket_domain(fd) == Ok(AddressFamily::UNIX) {
        // On failure sends are slower, nothing else.
        let _ = set_socket_send_buffer_size(fd, ROOM_BYTES);
    }
}

/// `SO_PASSRIGHTS` (Linux 6.16): whether a Unix socket gets descriptors.
const PASS_RIGHTS: c_int = 83;

/// Has the kernel refuse descriptors that the other side sends by a Unix socket, where it can. Here
/// nobody takes them: they are closed as bytes are received, and the last close of a file may wait
/// for as long as its sender wants (UR-U14). Connections that a listener accepts are as it is.
pub(crate) fn refuse_descriptors(fd: &OwnedFd) {
    let no: c_int = 0;
    let len = libc::socklen_t::try_from(size_of_val(&no)).expect("few bytes");
    // SAFETY: the kernel reads this one number, during the call.
    // An error means that it is no Unix socket, or that the kernel does not know the option.
    let _ = unsafe {
        let number = (&raw const no).cast();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, PASS_RIGHTS, number, len)
    };
}

/// Makes a socket blocking: the ring waits only on blocking sockets.
pub(crate) fn set_blocking(fd: &OwnedFd) -> Result<(), Error> {
    let failed = |e| Error::io("cannot make a socket blocking").because(e);
    let flags: OFlags = fcntl_getfl(fd).map_err(failed)?;
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).map_err(failed)
}

/// Who may connect to a Unix socket, and send what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permission bits: 0600 is its owner only.
    pub mode: u32,
    /// The group that it gets; that of the process without.
    pub group: Option<u32>,
    /// Whether descriptors may come with bytes: only where a thread that is no core receives them.
    pub descriptors: bool,
}

impl SocketAccess {
    /// Its owner only.
    pub const OWNER: SocketAccess = SocketAccess { mode: 0o600, group: None, descriptors: false };
}

/// Listens on `path`, which gets its group and its mode before clients can connect. Replaces a
/// stale socket of ours.
pub(crate) fn listen_unix(path: &Path, access: SocketAccess) -> Result<OwnedFd, Error> {
    let failed = |doing: &'static str| move |e: Errno| os_error(path, doing, e);
    let address = SocketAddrUnix::new(path).map_err(|e| {
        let allowed = "a socket's path has at most 107 bytes";
        Error::invalid(format!("{}: {allowed}", path.display())).because(e)
    })?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(failed("make a socket"))?;
    if !access.descriptors {
        refuse_descriptors(&fd);
    }
    match bind(&fd, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            bind(&fd, &address).map_err(failed("listen there"))?;
        }
        other => other.map_err(failed("listen there"))?,
    }
    // Until `listen` every connection is refused, so no client connects before the mode is set.
    if let Some(group) = access.group {
        let group = Gid::from_raw(group);
        chown(path, None, Some(group)).map_err(failed("set its group"))?;
    }
    chmod(path, Mode::from_raw_mode(access.mode)).map_err(failed("set its mode"))?;
    listen(&fd, LISTEN_BACKLOG).map_err(failed("listen there"))?;
    Ok(fd)
}

/// Removes a socket that its listener left behind; refuses to remove anything else.
fn remove_stale(path: &Path) -> Result<(), Error> {
    let shown = path.display();
    let meta = fs::symlink_metadata(path)
        .map_err(|e| Error::io(format!("{shown}: cannot look it up")).because(e))?;
    if !meta.file_type().is_socket() {
        return Err(Error::new(ErrorKind::Exists, format!("{shown}: is there and is no socket")));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        let owner = format!("{shown}: is a socket of another user ({})", meta.uid());
        return Err(Error::new(ErrorKind::Denied, owner));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|e| Error::io(format!("{shown}: cannot remove it")).because(e)),
        _ => Err(Error::busy(format!("{shown}: another server listens there"))),
    }
}

/// Listens on `address`; returns the address with the port that port 0 became.
pub(crate) fn listen_tcp(address: SocketAddr) -> Result<(OwnedFd, SocketAddr), Error> {
    let failed = |e: io::Error| {
        let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
        os_error(Path::new(&address.to_string()), "listen there", errno)
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener.into(), bound))
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteEnd {
    /// The process that connected to a Unix socket.
    Process {
        /// Its number. It may have ended since, or have given the socket to another one.
        pid: i32,
        /// Its user.
        uid: u32,
    },
    /// An address of the network.
    Address(SocketAddr),
}

/// The other end of a connection; `None` for other files, and when it has gone.
pub(crate) fn remote_end(fd: &OwnedFd) -> Option<RemoteEnd> {
    if socket_domain(fd).ok()? == AddressFamily::UNIX {
        let of = socket_peercred(fd).ok()?;
        return Some(RemoteEnd::Process {
            pid: of.pid.as_raw_nonzero().get(),
            uid: of.uid.as_raw(),
        });
    }
    Some(RemoteEnd::Address(getpeername(fd).ok()??.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_nodelay};

    use super::*;

    #[test]
    fn connections_of_hosts_that_have_gone_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let watched = accepted.try_clone().unwrap();
        insert(&mut Table::default(), accepted.into());
        assert_eq!((socket_keepalive(&watched), tcp_keepcnt(&watched)), (Ok(true), Ok(3)));
        assert_eq!(tcp_nodelay(&watched), Ok(true));
        drop(client);
    }
}
