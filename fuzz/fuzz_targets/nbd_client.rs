// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD client before a server that says anything: arbitrary bytes instead of a handshake, or
//! after a good one, in which cookies of requests in flight may be put.
//!
//! What must hold: no panic, no wrong length taken, and every request ends.
#![no_main]

use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Class, Error, Flags, LocalFuture, Nanos, Sector, Status};
use libfuzzer_sys::fuzz_target;
use nbd::client::{Client, Connect, Options};
use nbd::option::{reply, reply_info_export};
use nbd::wire::{opt, rep};
use reactor::{FileId, SqeOp, driver_io, read, sleep, spawn, write};
use sim::{Machine, World, WorldRef};

struct Connector(WorldRef, FileId);

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let file = self.0.borrow_mut().connect(self.1);
        Box::pin(async move { file.ok_or_else(|| Error::io("refused")) })
    }

    fn peer(&self) -> String {
        "fuzz".into()
    }
}

async fn recv(file: FileId, n: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < n {
        let into = Buf::alloc((n - all.len()).min(4096));
        let got = driver_io(file, SqeOp::Recv { into: into.all() }).await;
        if got.status != Status::Ok || got.value == 0 {
            break;
        }
        into.read(|b| all.extend_from_slice(&b[..got.value as usize]));
    }
    all
}

async fn say(file: FileId, bytes: &[u8]) {
    if !bytes.is_empty() {
        let _ = driver_io(file, SqeOp::Send { bufs: Buf::copy_of(bytes).into() }).await;
    }
}

async fn greet(file: FileId, structured: bool) {
    say(file, b"NBDMAGICIHAVEOPT\x00\x03").await;
    recv(file, 20).await;
    let mut out = Vec::new();
    let kind = if structured { rep::ACK } else { rep::ERR_UNSUP };
    reply(&mut out, opt::STRUCTURED_REPLY, kind, &[]);
    say(file, &out).await;
    recv(file, 28).await;
    out.clear();
    reply_info_export(&mut out, opt::GO, 1 << 20, 0x6d);
    reply(&mut out, opt::GO, rep::ACK, &[]);
    say(file, &out).await;
}

/// Puts right magic numbers, and cookies of these requests, where the bytes ask for it: 0xfe and
/// 0xfd begin a simple reply and a chunk, whose next byte chooses the cookie.
fn repair(bytes: &[u8], cookies: &[[u8; 8]]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let cookie = |n: u8| cookies.get(usize::from(n) % cookies.len().max(1));
        match (bytes[at], bytes.get(at + 1).and_then(|n| cookie(*n))) {
            (0xfe, Some(cookie)) => {
                out.extend(0x6744_6698_u32.to_be_bytes());
                out.extend([0, 0, 0, bytes.get(at + 2).map_or(0, |b| b & 7)]);
                out.extend(cookie);
                at += 3;
            }
            (0xfd, Some(cookie)) => {
                let next = |n: usize| bytes.get(at + n).copied().unwrap_or(0);
                out.extend(0x668e_33ef_u32.to_be_bytes());
                out.extend([0, next(2) & 1, next(3) & 0x80, next(4) & 7]);
                out.extend(cookie);
                out.extend([0, 0, next(5) & 15, next(6)]);
                at += 7;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (choice, bytes) = (*choice, data.to_vec());
    let world = World::calm(u64::from(choice));
    let machine = Machine::boot(&world, 1);
    let listener = world.borrow_mut().listen();
    let door = Rc::new(Connector(world.clone(), listener));
    let left = Rc::new(Cell::new(3));
    let ended = left.clone();
    let talk = async move {
        spawn(async move {
            let mut first = true;
            loop {
                let file = FileId(driver_io(listener, SqeOp::Accept).await.value);
                if choice & 1 == 0 {
                    greet(file, choice & 2 != 0).await;
                    // Two reads and a write.
                    let asked = if first { recv(file, 28 * 3 + 512).await } else { Vec::new() };
                    let cookies = [0, 28, 56].map(|at| {
                        let cookie = asked.get(at + 8..at + 16).and_then(|c| c.try_into().ok());
                        cookie.unwrap_or([0; 8])
                    });
                    say(file, &repair(&bytes, &cookies)).await;
                } else {
                    say(file, &bytes).await;
                }
                first = false;
                let _ = driver_io(file, SqeOp::ShutdownWrite).await;
                recv(file, usize::MAX >> 1).await;
                let _ = driver_io(file, SqeOp::Close).await;
            }
        });
        let options = Options { timeout: Nanos::from_secs(3), ..Options::default() };
        let opened = Client::open("nbd", "disk", door, options, |_| {}).await;
        let Ok(client) = opened else { return ended.set(0) };
        let client = Rc::new(client);
        for nth in 0..3_u64 {
            let (client, ended) = (client.clone(), ended.clone());
            spawn(async move {
                let (at, class) = (Sector(nth * 8), Class::Normal);
                let buf = Buf::zeroed(if nth == 2 { 512 } else { 2048 });
                // Whatever comes of it.
                let _ = match nth {
                    2 => write(&*client, Flags::empty(), class, at, buf.into()).await,
                    _ => read(&*client, class, at, buf.into()).await,
                };
                ended.set(ended.get() - 1);
            });
        }
        while ended.get() > 0 {
            sleep(Nanos::from_millis(100)).await;
        }
    };
    machine.block_on(talk).expect("nobody cuts the power");
    assert_eq!(left.get(), 0);
});
