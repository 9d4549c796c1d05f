// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: bytes arrive in order whatever the delays, and every way to end is seen as what it is.

use std::rc::Rc;

use block::{Buf, Nanos, Status};
use reactor::{FileId, OpResult, SqeOp, driver_io, sleep, spawn};
use sim::{Machine, StreamFault, World, WorldRef};

async fn recv(file: FileId) -> (OpResult, Vec<u8>) {
    let into = Buf::alloc(10_000);
    let result = driver_io(file, SqeOp::Recv { into: into.all() }).await;
    let bytes = into.read(|b| b[..result.value as usize].to_vec());
    (result, bytes)
}

async fn send(file: FileId, bytes: &[u8]) -> Status {
    driver_io(file, SqeOp::Send { bufs: Buf::copy_of(bytes).into() }).await.status
}

async fn pair(world: &WorldRef) -> (FileId, FileId) {
    let listener = world.borrow_mut().listen();
    let a = world.borrow_mut().connect(listener).unwrap();
    let b = driver_io(listener, SqeOp::Accept).await;
    assert_eq!(b.status, Status::Ok);
    (a, FileId(b.value))
}

/// Runs `test` on worlds of some seeds, each twice: the same seed is the same run.
fn each<F: Future<Output = ()> + 'static>(test: impl Fn(WorldRef) -> F) {
    for seed in 0..20 {
        let run = || {
            let world = World::new(seed);
            let machine = Machine::boot(&world, 1);
            machine.block_on(test(world.clone())).unwrap();
            world.borrow().trace()
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn bytes_arrive_in_order_and_the_end_after_them() {
    each(|world| async move {
        let (a, b) = pair(&world).await;
        let data: Rc<Vec<u8>> = Rc::new((0..200_000_u32).map(|n| (n >> 3) as u8).collect());
        let sent = data.clone();
        spawn(async move {
            assert_eq!(send(a, &sent).await, Status::Ok);
            let _ = driver_io(a, SqeOp::ShutdownWrite).await;
            assert_eq!(send(a, b"more").await, Status::NoDevice);
        });
        let mut got = Vec::new();
        loop {
            let (result, bytes) = recv(b).await;
            assert_eq!(result.status, Status::Ok);
            if bytes.is_empty() {
                break;
            }
            got.extend(bytes);
        }
        assert!(got == *data);
        // The other direction lives.
        assert_eq!(send(b, b"still").await, Status::Ok);
        assert_eq!(recv(a).await.1.first(), Some(&b's'));
    });
}

#[test]
fn who_closes_with_bytes_unread_resets_the_other_end() {
    each(|world| async move {
        let (a, b) = pair(&world).await;
        assert_eq!(send(a, b"unread").await, Status::Ok);
        sleep(Nanos::from_secs(1)).await;
        let _ = driver_io(b, SqeOp::Close).await;
        assert_eq!(recv(a).await.0.status, Status::NoDevice);
    });
}

#[test]
fn a_cut_is_an_error_or_silence() {
    each(|world| async move {
        let (a, b) = pair(&world).await;
        world.borrow_mut().cut_stream(a, StreamFault::Error);
        assert_eq!(recv(a).await.0.status, Status::Io);
        assert_eq!(send(b, b"x").await, Status::Ok);
        assert_eq!(recv(a).await.1, b"x", "the stream itself lives");
        world.borrow_mut().cut_stream(a, StreamFault::TimedOut);
        assert_eq!(recv(a).await.0.status, Status::Timeout);
        assert_eq!(recv(b).await.0.status, Status::NoDevice, "much later");
    });
}
