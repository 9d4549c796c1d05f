// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: bytes arrive in order whatever the delays, and every way to end is seen as what it is.

use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Nanos, Status};
use reactor::{FileId, OpResult, SqeOp, driver_io, end_waits, sleep, spawn};
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
        let _ = driver_io(a, SqeOp::Close).await;
        world.borrow_mut().cut_stream(a, StreamFault::Error); // it is closed
    });
}

/// Ends what waits on a file again and again, until asked to stop.
fn end_waits_often(world: &WorldRef, file: FileId) -> Rc<Cell<bool>> {
    let (world, stop) = (world.clone(), Rc::new(Cell::new(false)));
    let asked = stop.clone();
    spawn(async move {
        while !asked.get() {
            let pause = world.borrow_mut().rng.below(3_000);
            sleep(Nanos(pause)).await;
            end_waits(file);
        }
    });
    stop
}

#[test]
fn the_end_of_a_wait_loses_no_byte_and_no_connection() {
    each(|world| async move {
        let listener = world.borrow_mut().listen();
        let stop = end_waits_often(&world, listener);
        let mut ended = 0;
        let mut accept = async || loop {
            let result = driver_io(listener, SqeOp::Accept).await;
            if result.status != Status::Again {
                assert_eq!(result.status, Status::Ok);
                return FileId(result.value);
            }
            ended += 1;
        };
        let (mut clients, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            sleep(Nanos(1_000)).await;
            clients.push(world.borrow_mut().connect(listener).unwrap());
            accepted.push(accept().await);
        }
        stop.set(true);
        let (a, b) = (clients[7], accepted[7]);
        let data: Rc<Vec<u8>> = Rc::new((0..100_000_u32).map(|n| (n >> 3) as u8).collect());
        let sent = data.clone();
        spawn(async move {
            for piece in sent.chunks(701) {
                assert_eq!(send(a, piece).await, Status::Ok);
                sleep(Nanos(700)).await;
            }
        });
        let stop = end_waits_often(&world, b);
        let mut got = Vec::new();
        while got.len() < data.len() {
            let (result, bytes) = recv(b).await;
            assert!(matches!(result.status, Status::Ok | Status::Again), "{result:?}");
            assert_eq!(result.status == Status::Again, bytes.is_empty());
            ended += u32::from(bytes.is_empty());
            got.extend(bytes);
        }
        stop.set(true);
        assert!(got == *data);
        assert!(ended > 0, "no wait was ended");
        assert_eq!(send(b, b"and back").await, Status::Ok);
    });
}

/// As between processes: the old one closes its file, and the connection lives in the new one.
#[test]
fn a_connection_ends_with_the_last_of_its_files() {
    each(|world| async move {
        let (a, old) = pair(&world).await;
        let new = world.borrow_mut().copy_stream(old);
        let waiting = driver_io(old, SqeOp::Recv { into: Buf::alloc(10).all() });
        sleep(Nanos(10_000)).await;
        end_waits(old);
        assert_eq!(waiting.await.status, Status::Again);
        assert_eq!(send(a, b"still").await, Status::Ok);
        assert_eq!(driver_io(old, SqeOp::Close).await.status, Status::Ok);
        assert_eq!(recv(new).await.1.first(), Some(&b's'));
        assert_eq!(driver_io(new, SqeOp::Close).await.status, Status::Ok);
        sleep(Nanos::from_secs(1)).await;
        assert_eq!(send(a, b"gone").await, Status::NoDevice);
    });
}
