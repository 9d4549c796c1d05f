// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pauses over the sockets of the kernel: clients that are threads write, read and connect while
//! one server after the other takes their sessions over, by copies of the descriptors as another
//! process would have them.
#![expect(clippy::disallowed_methods, reason = "clients are threads that are no cores")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Disk, SingleExport, info, option_bytes};
use block::Nanos;
use nbd::request::Request;
use nbd::wire::{cmd, opt};
use nbd::{Exports, Options, PausedSession, Peer, Server};
use reactor::{FileId, Reactor, sleep};
use uring::{Files, SocketAccess, Uring};

const ROUNDS: u64 = 300;
const CLIENTS: u64 = 2;
/// Larger than a socket holds.
const BYTES: usize = 300_000 / 512 * 512;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn take(socket: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    socket.read_exact(&mut out).unwrap();
    out
}

fn connect(path: &Path) -> UnixStream {
    let mut socket = UnixStream::connect(path).unwrap();
    // A lost reply is a failure, and no client that waits for ever.
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(take(&mut socket, 18), b"NBDMAGICIHAVEOPT\x00\x03");
    socket.write_all(&[0, 0, 0, 3]).unwrap();
    socket.write_all(&option_bytes(opt::GO, &info("disk", &[]))).unwrap();
    loop {
        let head = take(&mut socket, 20);
        let be32 = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        take(&mut socket, be32(16) as usize);
        if be32(12) == 1 {
            return socket;
        }
    }
}

fn simple_reply(socket: &mut UnixStream, cookie: u64) {
    let mut want = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
    want.extend(cookie.to_be_bytes());
    assert_eq!(take(socket, 16), want);
}

/// A client that writes and reads its part of the disk.
fn write_and_read(path: &Path, nth: u64) {
    let mut socket = connect(path);
    let (offset, len) = (nth * (1 << 20), u32::try_from(BYTES).unwrap());
    for round in 0..ROUNDS {
        let head = |kind, cookie| Request { flags: 0, kind, cookie, offset, len }.encode();
        let data: Vec<u8> = (0..BYTES as u64).map(|at| (at / 7 + round + nth) as u8).collect();
        let write = [&head(cmd::WRITE, 2 * round)[..], &data].concat();
        for piece in write.chunks(70_001) {
            socket.write_all(piece).unwrap();
        }
        simple_reply(&mut socket, 2 * round);
        socket.write_all(&head(cmd::READ, 2 * round + 1)).unwrap();
        simple_reply(&mut socket, 2 * round + 1);
        assert!(take(&mut socket, BYTES) == data, "round {round}");
    }
}

/// A client that comes and goes.
fn visit(path: &Path) {
    for cookie in 0..ROUNDS {
        let mut socket = connect(path);
        let flush = Request { flags: 0, kind: cmd::FLUSH, cookie, offset: 0, len: 0 };
        socket.write_all(&flush.encode()).unwrap();
        simple_reply(&mut socket, cookie);
    }
}

/// Another server goes on, with copies of the descriptors.
async fn hand_over(files: &Files, old: Server, disk: &Rc<Disk>) -> Server {
    let copy = |file: FileId| files.adopt_socket(files.copy_of_socket(file).unwrap()).unwrap();
    let exports = SingleExport::new(disk);
    let paused = old.pause(Nanos::from_secs(20)).await.unwrap();
    let next = Server::new(Rc::new(SingleExport::new(disk)), Options::default());
    for session in paused.sessions {
        let session = PausedSession { socket: copy(session.socket), ..session };
        next.adopt(session, exports.open("disk").unwrap()).unwrap();
    }
    next.serve(copy(paused.listeners[0].socket), Peer::Local);
    old.abandon().await;
    next
}

fn folder(name: &str) -> Folder {
    let name = format!("nbd-real-sockets-{name}-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    folder
}

#[test]
fn sessions_go_on_over_real_sockets() {
    serve_by_many("slow", Nanos(20_000));
}

#[test]
fn sessions_of_a_fast_device_go_on_over_real_sockets() {
    serve_by_many("fast", Nanos::ZERO);
}

fn serve_by_many(name: &str, latency: Nanos) {
    let folder = folder(name);
    let path = folder.0.join("sock");
    let driver = Uring::new().unwrap();
    let files = driver.files();
    let reactor = Reactor::enter(block::CoreId(0), Box::new(driver));
    let ended = Arc::new(AtomicUsize::new(0));
    let work = async move {
        let disk = Disk::new(16 << 11, latency);
        let mut server = Server::new(Rc::new(SingleExport::new(&disk)), Options::default());
        server.serve(files.listen_unix(&path, SocketAccess::OWNER).unwrap(), Peer::Local);
        let begin = |work: Box<dyn FnOnce() + Send>| {
            let ended = ended.clone();
            thread::spawn(move || {
                work();
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        let mut threads = Vec::new();
        for nth in 0..CLIENTS {
            let path = path.clone();
            threads.push(begin(Box::new(move || write_and_read(&path, nth))));
        }
        let to = path.clone();
        threads.push(begin(Box::new(move || visit(&to))));
        let mut pauses: u64 = 0;
        while threads.iter().any(|thread| !thread.is_finished()) {
            sleep(Nanos(pauses % 7 * 300_000)).await;
            if pauses.is_multiple_of(3) {
                server.pause(Nanos::from_secs(20)).await.unwrap();
                server.resume();
            } else {
                server = hand_over(&files, server, &disk).await;
            }
            pauses += 1;
        }
        let outcomes: Vec<_> = threads.into_iter().map(thread::JoinHandle::join).collect();
        assert!(outcomes.iter().all(Result::is_ok), "a client has failed");
        assert_eq!(ended.load(Ordering::SeqCst), 3);
        assert!(pauses > 20, "{pauses} pauses only");
        server.shutdown().await;
    };
    reactor.block_on(work);
}

/// A reply that nobody takes any more: its connection ends, and is forgotten.
#[test]
fn clients_that_go_without_their_replies_are_forgotten() {
    let folder = folder("gone");
    let path = folder.0.join("sock");
    let driver = Uring::new().unwrap();
    let files = driver.files();
    let reactor = Reactor::enter(block::CoreId(0), Box::new(driver));
    let work = async move {
        let disk = Disk::new(16 << 11, Nanos::ZERO);
        let server = Server::new(Rc::new(SingleExport::new(&disk)), Options::default());
        server.serve(files.listen_unix(&path, SocketAccess::OWNER).unwrap(), Peer::Local);
        let clients = thread::spawn(move || {
            for len in [4096, u32::try_from(BYTES).unwrap()].repeat(20) {
                let mut socket = connect(&path);
                let read = |cookie| Request { flags: 0, kind: cmd::READ, cookie, offset: 0, len };
                let reads: Vec<_> = (0..4).flat_map(|cookie| read(cookie).encode()).collect();
                socket.write_all(&reads).unwrap();
            }
        });
        while !clients.is_finished() || server.stats().connections > 0 {
            sleep(Nanos::from_millis(1)).await;
        }
        clients.join().unwrap();
        server.shutdown().await;
    };
    reactor.block_on(work);
}
