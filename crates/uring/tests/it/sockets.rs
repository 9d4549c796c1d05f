// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver on sockets: streams arrive whole and in order, and whatever waits can be ended.
#![expect(clippy::disallowed_methods, reason = "a thread that is no core calls one")]

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{Folder, bytes, on_core};
use block::{Buf, Bufs, CoreId, ErrorKind, Nanos, Status};
use reactor::{FileId, Reactor, SqeOp, driver_io, end_waits, now, sleep, spawn, yield_now};
use rustix::net::sockopt::socket_send_buffer_size;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use uring::{Files, Peer, RemoteEnd, SocketAccess, Uring};

pub(crate) async fn accept(listener: FileId) -> FileId {
    let taken = driver_io(listener, SqeOp::Accept).await;
    assert_eq!(taken.status, Status::Ok);
    FileId(taken.value)
}

async fn send(socket: FileId, bufs: impl Into<Bufs>) -> Status {
    driver_io(socket, SqeOp::Send { bufs: bufs.into() }).await.status
}

/// Receives until `len` bytes have come or the stream has ended.
pub(crate) async fn receive(socket: FileId, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let into = Buf::alloc((len - all.len()).min(64 << 10));
        let got = driver_io(socket, SqeOp::Recv { into: into.all() }).await;
        assert_eq!(got.status, Status::Ok);
        if got.value == 0 {
            break;
        }
        into.read(|b| all.extend_from_slice(&b[..got.value as usize]));
    }
    all
}

fn pair(files: &Files) -> (FileId, FileId) {
    let (a, b) = UnixStream::pair().unwrap();
    // As other runtimes leave them; the driver must not spin on it.
    a.set_nonblocking(true).unwrap();
    (files.adopt_socket(a.into()).unwrap(), files.adopt_socket(b.into()).unwrap())
}

/// A reply of 128 KiB was cut by what a Unix socket holds, and each piece cost a wake-up.
#[test]
fn a_large_send_makes_room_for_itself_and_a_small_one_does_not() {
    on_core(async move |files| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watched = ours.try_clone().unwrap();
        let room = || socket_send_buffer_size(&watched).unwrap();
        let a = files.adopt_socket(ours.into()).unwrap();
        let b = files.adopt_socket(theirs.into()).unwrap();
        let before = room();
        for len in [4096, 64 << 10, 128 << 10] {
            assert_eq!(room(), before);
            assert_eq!(send(a, Buf::zeroed(len)).await, Status::Ok);
            assert_eq!(receive(b, len).await.len(), len);
        }
        assert!(room() > before, "{} bytes, as before", room());
        files.close(a);
        files.close(b);
    });
}

#[test]
fn many_clients_are_echoed_at_once() {
    const CLIENTS: u64 = 16;
    const LEN: usize = 75 * 4096;
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let listener = files.listen_unix(&path, SocketAccess::OWNER).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let clients: Vec<FileId> = (0..CLIENTS)
            .map(|_| UnixStream::connect(&path).unwrap().into())
            .map(|fd: OwnedFd| files.adopt_socket(fd).unwrap())
            .collect();
        let (sent, echoed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        for _ in 0..CLIENTS {
            let (server, echoed) = (accept(listener).await, echoed.clone());
            let uid = rustix::process::getuid().as_raw();
            let pid = std::process::id().cast_signed();
            assert_eq!(files.remote_end(server), Some(RemoteEnd::Process { pid, uid }));
            spawn(async move {
                loop {
                    let data = receive(server, 4096).await;
                    if data.is_empty() {
                        break;
                    }
                    assert_eq!(send(server, Buf::copy_of(&data)).await, Status::Ok);
                }
                assert_eq!(driver_io(server, SqeOp::Close).await.status, Status::Ok);
                echoed.set(echoed.get() + 1);
            });
        }
        for (n, client) in clients.iter().copied().enumerate() {
            let sent = sent.clone();
            spawn(async move {
                let data = bytes(LEN, n as u64);
                assert_eq!(send(client, Buf::copy_of(&data)).await, Status::Ok);
                sent.set(sent.get() + 1);
            });
        }
        for (n, client) in clients.into_iter().enumerate() {
            assert!(receive(client, LEN).await == bytes(LEN, n as u64));
            assert_eq!(driver_io(client, SqeOp::Close).await.status, Status::Ok);
        }
        while echoed.get() < CLIENTS {
            sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(sent.get(), CLIENTS);
    });
}

#[test]
fn a_send_of_many_pieces_is_whole_over_a_small_socket() {
    on_core(async |files| {
        let (a, b) = pair(&files);
        let mut data = Bufs::new();
        let mut want = Vec::new();
        for n in 0..2500 {
            let piece = bytes(1 + (n as usize * 37) % 9000, n);
            want.extend_from_slice(&piece);
            data.push(Buf::copy_of(&piece));
        }
        let sending = driver_io(a, SqeOp::Send { bufs: data });
        assert!(receive(b, want.len()).await == want);
        assert_eq!(sending.await.status, Status::Ok);
    });
}

#[test]
fn tcp_connections_are_accepted_and_echoed() {
    on_core(async |files| {
        let (listener, address) = files.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = std::net::TcpStream::connect(address).unwrap();
        let client = files.adopt_socket(client.into()).unwrap();
        let server = accept(listener).await;
        let remote = files.remote_end(server);
        assert!(
            matches!(remote, Some(RemoteEnd::Address(a)) if a.ip().is_loopback() && a != address),
            "{remote:?}"
        );
        assert_eq!(files.remote_end(client), Some(RemoteEnd::Address(address)));
        assert_eq!(send(client, Buf::copy_of(b"over TCP")).await, Status::Ok);
        assert_eq!(receive(server, 8).await, b"over TCP");
    });
}

#[test]
fn a_stream_ends_with_zero_bytes_and_then_refuses_sends() {
    on_core(async |files| {
        let (a, b) = pair(&files);
        assert_eq!(driver_io(a, SqeOp::Shutdown).await.status, Status::Ok);
        assert_eq!(receive(b, 1).await, b"");
        files.close(a);
        assert_eq!(send(b, Buf::copy_of(b"anybody?")).await, Status::NoDevice);
    });
}

#[test]
fn shutdown_write_ends_a_waiting_send_but_not_receiving() {
    on_core(async |files| {
        let (a, b) = pair(&files);
        let flood = Buf::zeroed(64 << 20); // more than a socket holds
        let waiting = driver_io(a, SqeOp::Send { bufs: flood.into() });
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(driver_io(a, SqeOp::ShutdownWrite).await.status, Status::Ok);
        assert_eq!(waiting.await.status, Status::NoDevice);
        assert_eq!(send(b, Buf::copy_of(b"still here")).await, Status::Ok);
        assert_eq!(receive(a, 10).await, b"still here");
        // What is unread makes the end a reset.
        files.close(b);
        let into = Buf::alloc(64).all();
        assert_eq!(driver_io(a, SqeOp::Recv { into }).await.status, Status::NoDevice);
    });
}

#[test]
fn shutdown_ends_a_receive_and_accepts_that_wait() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let (a, _b) = pair(&files);
        let waiting = driver_io(a, SqeOp::Recv { into: Buf::alloc(64).all() });
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(driver_io(a, SqeOp::Shutdown).await.status, Status::Ok);
        let ended = waiting.await;
        assert_eq!((ended.status, ended.value), (Status::Ok, 0));

        let unix = files.listen_unix(&folder.path("sock"), SocketAccess::OWNER).unwrap();
        let (tcp, _) = files.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        for listener in [unix, tcp] {
            let waiting = driver_io(listener, SqeOp::Accept);
            sleep(Nanos::from_millis(1)).await;
            assert_eq!(driver_io(listener, SqeOp::Shutdown).await.status, Status::Ok);
            assert_eq!(waiting.await.status, Status::Invalid);
            assert_eq!(driver_io(listener, SqeOp::Close).await.status, Status::Ok);
        }
    });
}

/// A service manager has the same listening sockets: shutdown(2), which once ended the accepts,
/// would end them for it and for the next process, too.
#[test]
fn a_listener_that_others_have_outlives_its_use() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        for nth in 0..2 {
            let path = folder.path(&format!("sock{nth}"));
            let unix = UnixListener::bind(&path).unwrap();
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = tcp.local_addr().unwrap();
            let ours: [OwnedFd; 2] =
                [unix.try_clone().unwrap().into(), tcp.try_clone().unwrap().into()];
            for listener in ours {
                let listener = files.adopt_socket(listener).unwrap();
                let waiting = driver_io(listener, SqeOp::Accept);
                sleep(Nanos::from_millis(1)).await;
                let ends = if nth == 0 { SqeOp::Shutdown } else { SqeOp::Close };
                let ending = driver_io(listener, ends);
                assert_eq!(waiting.await.status, Status::Invalid);
                assert_eq!(ending.await.status, Status::Ok);
                let again = driver_io(listener, SqeOp::Accept).await.status;
                assert_eq!(again, if nth == 0 { Status::Invalid } else { Status::NoDevice });
                files.close(listener);
            }
            let _clients =
                (UnixStream::connect(&path).unwrap(), std::net::TcpStream::connect(address));
            unix.set_nonblocking(true).unwrap();
            tcp.set_nonblocking(true).unwrap();
            unix.accept().unwrap();
            tcp.accept().unwrap();
        }
    });
}

/// The cancellation goes to the ring before the core sleeps, not with the next request.
#[test]
fn a_close_by_the_control_path_ends_an_accept() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let listener = files.listen_unix(&folder.path("sock"), SocketAccess::OWNER).unwrap();
        let waiting = driver_io(listener, SqeOp::Accept);
        sleep(Nanos::from_millis(1)).await;
        files.close(listener);
        assert_eq!(waiting.await.status, Status::Invalid);
    });
}

#[test]
fn close_ends_what_waits_on_the_socket_and_then_itself() {
    on_core(async |files| {
        let (a, b) = pair(&files);
        let waiting = driver_io(a, SqeOp::Recv { into: Buf::alloc(64).all() });
        sleep(Nanos::from_millis(1)).await;
        let closing = driver_io(a, SqeOp::Close);
        assert_eq!(waiting.await.value, 0);
        assert_eq!(closing.await.status, Status::Ok);
        assert_eq!(receive(b, 1).await, b"");
        assert_eq!(driver_io(a, SqeOp::Close).await.status, Status::NoDevice);
        assert_eq!(send(a, Buf::copy_of(b"x")).await, Status::NoDevice);
    });
}

#[test]
fn a_stale_socket_is_taken_over_and_nothing_else_is() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = files.listen_unix(&path, SocketAccess::OWNER).unwrap();
        let error = files.listen_unix(&path, SocketAccess::OWNER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let said = format!("{}: another server listens there", path.display());
        assert_eq!(error.to_string(), said);
        files.close(first);

        let plain = folder.path("plain");
        std::fs::write(&plain, "precious").unwrap();
        let error = files.listen_unix(&plain, SocketAccess::OWNER).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert_eq!(std::fs::read(&plain).unwrap(), b"precious");

        let long = folder.path(&"x".repeat(120));
        assert_eq!(
            files.listen_unix(&long, SocketAccess::OWNER).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    });
}

#[test]
fn sleepers_wake_in_order_and_not_before_their_time() {
    on_core(async |_files| {
        let begin = now();
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        for ms in [7, 3, 5] {
            let order = order.clone();
            spawn(async move {
                sleep(Nanos::from_millis(ms)).await;
                order.borrow_mut().push(ms);
            });
        }
        sleep(Nanos::from_millis(9)).await;
        assert_eq!(*order.borrow(), [3, 5, 7]);
        assert!(now() >= begin + Nanos::from_millis(9));
    });
}

#[test]
fn a_core_that_ends_lets_go_of_a_socket_on_which_it_waits() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    on_core(async move |files| {
        let socket = files.adopt_socket(ours.into()).unwrap();
        drop(driver_io(socket, SqeOp::Recv { into: Buf::alloc(64).all() }));
        sleep(Nanos::from_millis(1)).await;
    });
    theirs.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    // The end of the stream: nothing holds the other side any more.
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn a_call_passes_when_a_batch_has_filled_the_ring() {
    // As many as the ring takes at once: the bell's read finds no room beside them.
    const WAITING: usize = 256;
    let driver = Uring::new().unwrap();
    let (files, sender) = (driver.files(), driver.sender());
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    let pairs: Vec<_> = (0..WAITING).map(|_| pair(&files)).collect();
    let (began, begun) = mpsc::channel();
    let wait_on_all = move || {
        for (socket, _) in pairs {
            spawn(async move {
                driver_io(socket, SqeOp::Recv { into: Buf::alloc(16).all() }).await;
            });
        }
        // Deaf for ever, the core still ends, so that the test can fail.
        spawn(sleep(Nanos::from_secs(5)));
        began.send(()).unwrap();
    };
    let called = Arc::new(AtomicBool::new(false));
    let call = called.clone();
    let caller = thread::spawn(move || {
        sender.call(wait_on_all).unwrap();
        begun.recv().unwrap();
        thread::sleep(Duration::from_millis(50)); // it is parked then
        sender.call(move || call.store(true, Ordering::Relaxed)).unwrap();
    });
    let start = reactor.on(now);
    reactor.run(|| called.load(Ordering::Relaxed));
    let waited = reactor.on(now) - start;
    caller.join().unwrap();
    assert!(waited < Nanos::from_secs(4), "the call came through after {waited:?}");
}

#[test]
fn a_connection_is_made_while_the_core_goes_on() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let listener = files.listen_unix(&path, SocketAccess::OWNER).unwrap();
        let (tcp, bound) = files.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let peers = [
            (listener, Peer::Unix(path)),
            (tcp, Peer::Tcp(bound.ip().to_string(), bound.port())),
            (tcp, Peer::Tcp("localhost".into(), bound.port())),
        ];
        for (listener, peer) in peers {
            let there = Rc::new(Cell::new(None));
            let set = there.clone();
            spawn(async move { set.set(Some(accept(listener).await)) });
            let a = files.connect(&peer).await.unwrap();
            assert_eq!(send(a, Buf::copy_of(b"hello")).await, Status::Ok);
            while there.get().is_none() {
                sleep(Nanos::from_millis(1)).await;
            }
            assert_eq!(receive(there.get().unwrap(), 5).await, b"hello");
        }
        let nobody = files.connect(&Peer::Unix("/nowhere/sock".into())).await.unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::NoFile);
        assert!(nobody.to_string().starts_with("/nowhere/sock: cannot connect"), "{nobody}");
        files.close(tcp);
        let refused = files.connect(&Peer::Tcp("127.0.0.1".into(), bound.port())).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
    });
}

/// Ends what waits on a socket, at moments that vary, until asked to stop.
fn end_waits_often(file: FileId) -> Rc<Cell<bool>> {
    let stop = Rc::new(Cell::new(false));
    let asked = stop.clone();
    spawn(async move {
        let mut nth = 0;
        while !asked.get() {
            nth += 1;
            match nth % 3 {
                0 => sleep(Nanos(nth % 50 * 1000)).await,
                _ => yield_now().await,
            }
            end_waits(file);
        }
    });
    stop
}

/// Bytes that a thread sends, in pieces that meet the ends of receives.
#[test]
fn a_byte_beside_the_end_of_a_receive_is_not_lost() {
    const BYTES: usize = 100_000;
    on_core(async |files| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tcp.set_nodelay(true).unwrap();
        let unix = UnixStream::pair().unwrap();
        let pairs: [(OwnedFd, Box<dyn std::io::Write + Send>); 2] = [
            (unix.0.into(), Box::new(unix.1)),
            (listener.accept().unwrap().0.into(), Box::new(tcp)),
        ];
        for (ours, mut theirs) in pairs {
            let socket = files.adopt_socket(ours).unwrap();
            let data = bytes(BYTES, 1);
            let sent = data.clone();
            let sender = thread::spawn(move || {
                for piece in sent.chunks(7) {
                    theirs.write_all(piece).unwrap();
                    for _ in 0..piece[0] {
                        std::hint::spin_loop();
                    }
                }
                theirs
            });
            let stop = end_waits_often(socket);
            let (mut got, mut ended) = (Vec::new(), 0);
            while got.len() < BYTES {
                let into = Buf::alloc(64);
                let result = driver_io(socket, SqeOp::Recv { into: into.all() }).await;
                if result.status == Status::Again {
                    ended += 1;
                } else {
                    assert_eq!(result.status, Status::Ok, "after {} bytes", got.len());
                    into.read(|b| got.extend_from_slice(&b[..result.value as usize]));
                }
            }
            stop.set(true);
            assert!(got == data);
            assert!(ended > 0, "no receive was ended");
            // The socket is as it was, in both directions.
            let mut theirs = sender.join().unwrap();
            theirs.write_all(b"more").unwrap();
            assert_eq!(receive(socket, 4).await, b"more");
            assert_eq!(send(socket, Buf::copy_of(b"back")).await, Status::Ok);
            files.close(socket);
        }
    });
}

#[test]
fn a_connection_beside_the_end_of_an_accept_is_not_lost() {
    const CLIENTS: u32 = 500;
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let listener = files.listen_unix(&path, SocketAccess::OWNER).unwrap();
        let ended = Arc::new(AtomicU32::new(0));
        let seen = ended.clone();
        let clients = thread::spawn(move || {
            let connect = |nth: u32| {
                // Else no accept might wait: connections may come faster than they are taken.
                while nth.is_multiple_of(50) && seen.load(Relaxed) <= nth / 50 {
                    thread::yield_now();
                }
                let mut client = UnixStream::connect(&path).unwrap();
                client.write_all(&nth.to_be_bytes()).unwrap();
                client
            };
            (0..CLIENTS).map(connect).collect::<Vec<_>>()
        });
        let stop = end_waits_often(listener);
        let mut nth = 0;
        while nth < CLIENTS {
            let result = driver_io(listener, SqeOp::Accept).await;
            if result.status == Status::Again {
                ended.fetch_add(1, Relaxed);
                continue;
            }
            assert_eq!(result.status, Status::Ok);
            let socket = FileId(result.value);
            assert_eq!(receive(socket, 4).await, nth.to_be_bytes());
            files.close(socket);
            nth += 1;
        }
        stop.set(true);
        drop(clients.join().unwrap());
    });
}

/// Another process that has the descriptors goes on where this one has ended its waits.
#[test]
fn what_comes_after_the_end_of_a_wait_is_for_others() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let listener = UnixListener::bind(&path).unwrap();
        let ours = files.adopt_socket(listener.try_clone().unwrap().into()).unwrap();
        let accepting = driver_io(ours, SqeOp::Accept);
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut other = here.try_clone().unwrap();
        let here = files.adopt_socket(here.into()).unwrap();
        let receiving = driver_io(here, SqeOp::Recv { into: Buf::alloc(64).all() });
        sleep(Nanos::from_millis(1)).await;
        for file in [ours, here] {
            end_waits(file);
        }
        assert_eq!(accepting.await.status, Status::Again);
        assert_eq!(receiving.await.status, Status::Again);
        files.close(ours);
        assert_eq!(driver_io(here, SqeOp::Close).await.status, Status::Ok);
        there.write_all(b"x").unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let _client = UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        end_waits(here); // it is closed
    });
}

/// It waited for as long as the server, in the queue for connections that it does not accept.
#[test]
fn a_server_that_accepts_nobody_keeps_nobody_waiting() {
    let folder = Folder::on_disk();
    on_core(async move |files| {
        let path = folder.path("sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let first = files.connect(&Peer::Unix(path.clone())).await.unwrap();
        let begun = now();
        let refused = files.connect(&Peer::Unix(path)).await.unwrap_err();
        let took = now().saturating_sub(begun);
        assert!(took < Nanos::from_secs(20), "{took:?}: {refused}");
        files.close(first);
    });
}
