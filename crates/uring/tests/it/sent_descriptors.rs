// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Descriptors that clients send with bytes: a core closes none of them (UR-U14).
#![expect(clippy::disallowed_methods, reason = "a thread that is no core closes a socket")]

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::common::{Folder, on_core};
use crate::sockets::{accept, receive};
use block::Nanos;
use reactor::now;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use uring::SocketAccess;

/// A TCP socket whose last close takes so long: its other side takes no more of what it has sent.
fn lingering(time: Duration) -> (OwnedFd, [OwnedFd; 2]) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (silent, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.write(&[0; 4096]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&sender, Some(time)).unwrap();
    (sender.into(), [silent.into(), listener.into()])
}

/// Sends a byte with a descriptor.
fn send_descriptor(socket: &UnixStream, fd: &OwnedFd) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[std::io::IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL)
}

/// Whether the kernel can refuse descriptors: it knows `SO_PASSRIGHTS` (Linux 6.16).
fn can_refuse_descriptors() -> bool {
    let (socket, _other) = UnixStream::pair().unwrap();
    let (mut found, mut len) = (0_i32, 4);
    // SAFETY: the kernel writes one number of four bytes, and its length.
    let done = unsafe {
        let number = (&raw mut found).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, 83, number, &raw mut len)
    };
    done == 0
}

/// UR-U14. Where the kernel can't refuse it, the core waits.
#[test]
fn a_core_does_not_close_what_a_client_sends() {
    if !can_refuse_descriptors() {
        eprintln!("skipped: SO_PASSRIGHTS needs Linux 6.16");
        return;
    }
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let listener = files.listen_unix(&path, SocketAccess::OWNER).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let server = accept(listener).await;
        let (lingers, _others) = lingering(Duration::from_secs(4));
        let sent = send_descriptor(&client, &lingers);
        let closing = thread::spawn(move || drop(lingers));
        if sent.is_ok() {
            closing.join().unwrap();
        }
        (&client).write_all(b"y").unwrap();
        let begun = now();
        receive(server, 1).await;
        let took = now().saturating_sub(begun);
        assert!(took < Nanos::from_secs(2), "{took:?}, {sent:?}");
        files.close(server);
        files.close(listener);
    });
}
