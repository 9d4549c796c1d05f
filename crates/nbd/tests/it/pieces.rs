// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A loss in the middle of one request: between the pieces of one that is larger than the server's
//! largest, and between the read and the write of a merge, where the server takes whole blocks.

use std::cell::Cell;
use std::rc::Rc;

use crate::model::{RequestOutcome, Server, ServerTraits};
use block::{BlockDevice, Buf, Bufs, Class, Flags, Nanos, Op, Opener, Sector, Status};
use nbd::Fault;
use nbd::client::{Client, Options};
use nbd::request::Request;
use nbd::wire::{ExportFlags, cmd};
use queue::MergingLeaf;
use reactor::{io_by, sleep, spawn};
use sim::{Machine, World, WorldRef};

const NATURE: ServerTraits = ServerTraits {
    flags: ExportFlags::HAS_FLAGS.union(ExportFlags::FLUSH).union(ExportFlags::FUA),
    structured: true,
    slow_ns: 100_000,
    again_per_mille: 0,
};
/// The server's largest request.
const PIECE: usize = 16 << 10;
const LOST: Result<(), Status> = Err(Status::Io);

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce(WorldRef, Rc<Server>) -> F) {
    let world = World::calm(1);
    let server = Server::new(&world, 1 << 20, NATURE);
    let machine = Machine::boot(&world, 1);
    machine.spawn(0, server.clone().serve());
    machine.block_on(test(world.clone(), server)).unwrap();
}

async fn put(
    dev: &dyn BlockDevice,
    opener: u32,
    (at, sectors): (u64, usize),
    of: u8,
) -> Result<(), Status> {
    let data = Buf::alloc(sectors * 512);
    data.write(|b| b.fill(of));
    let place = (Sector(at), Sector(sectors as u64));
    let (opener, flags) = (Opener(opener), Flags::empty());
    io_by(opener, dev, Op::Write, flags, Class::Normal, place, data.into()).await
}

async fn flush(dev: &dyn BlockDevice, opener: u32) -> Result<(), Status> {
    let (opener, none) = (Opener(opener), (Sector::ZERO, Sector::ZERO));
    io_by(opener, dev, Op::Flush, Flags::empty(), Class::Normal, none, Bufs::new()).await
}

type Outcome = Rc<Cell<Option<Result<(), Status>>>>;

/// Begins it; the outcome will be there.
fn begin(work: impl Future<Output = Result<(), Status>> + 'static) -> Outcome {
    let outcome = Outcome::default();
    let note = outcome.clone();
    spawn(async move { note.set(Some(work.await)) });
    outcome
}

fn begin_put<D: BlockDevice + 'static>(
    dev: &Rc<D>,
    opener: u32,
    range: (u64, usize),
    of: u8,
) -> Outcome {
    let dev = dev.clone();
    begin(async move { put(&*dev, opener, range, of).await })
}

fn begin_flush(dev: &Rc<Client>, opener: u32) -> Outcome {
    let dev = dev.clone();
    begin(async move { flush(&*dev, opener).await })
}

/// Longer than the server takes, and than a new connection takes.
async fn settle() {
    sleep(Nanos::from_millis(50)).await;
}

/// What the server's disk holds of each of some sectors; `None` of one that is not all the same.
fn sectors(server: &Server, range: std::ops::Range<usize>) -> Vec<Option<u8>> {
    let mut data = [0; 512];
    let mut look = |nth| {
        server.peek(nth, &mut data);
        data.iter().all(|b| *b == data[0]).then_some(data[0])
    };
    range.map(&mut look).collect()
}

/// Gate 0 holds the last of three pieces; gate 1 holds flushes, if they are to wait.
fn hold_last(server: &Server, flush: RequestOutcome) {
    *server.fate.borrow_mut() = Box::new(move |request: &Request| match request.kind {
        cmd::WRITE if request.offset == 2 * PIECE as u64 => RequestOutcome::Waits(0),
        cmd::FLUSH => flush,
        _ => RequestOutcome::Usual,
    });
}

/// Two pieces are acknowledged, a FLUSH fails, and then the third one is. The FLUSH reported the
/// first two at most: the write was not acknowledged when it came.
#[test]
fn a_flush_that_fails_between_pieces_is_told_once_more() {
    for (fault, told) in [(None, LOST), (Some(Fault::NeverInDoubt), Ok(()))] {
        run(move |_, server| async move {
            let opened = server.clone().open_planted(Options::default(), fault).await;
            let client = Rc::new(opened);
            hold_last(&server, RequestOutcome::Fails);
            let write = begin_put(&client, 1, (0, 96), 7);
            settle().await;
            assert_eq!(flush(&*client, 1).await, LOST);
            assert_eq!(write.get(), None, "its last piece is at the server");
            server.open_gate(0);
            settle().await;
            assert_eq!(write.get(), Some(Ok(())));
            *server.fate.borrow_mut() = Box::new(|_| RequestOutcome::Usual);
            assert_eq!(flush(&*client, 1).await, told, "{fault:?}");
            assert_eq!(put(&*client, 1, (0, 96), 8).await, Ok(()));
            assert_eq!(flush(&*client, 1).await, Ok(()), "all of it came after the loss");
        });
    }
}

/// Two pieces are acknowledged, the server forgets them, and then the third one is, by another
/// connection, to which it was sent after the loss.
#[test]
fn a_connection_lost_between_pieces_is_told_once_more() {
    run(|_, server| async move {
        let client = Rc::new(server.clone().open(Options::default()).await);
        hold_last(&server, RequestOutcome::Waits(1));
        let write = begin_put(&client, 1, (0, 96), 7);
        settle().await;
        let first = begin_flush(&client, 1);
        settle().await;
        server.restart(true);
        settle().await;
        assert_eq!((server.connections.get(), first.get()), (2, Some(LOST)));
        assert_eq!(write.get(), None, "its last piece is at the server again");
        server.open_gate(0);
        server.open_gate(1);
        settle().await;
        assert_eq!(write.get(), Some(Ok(())));
        assert!(sectors(&server, 0..64).contains(&Some(0)), "the server has forgotten some");
        assert_eq!(flush(&*client, 1).await, LOST, "what it has acknowledged is not there");
        assert_eq!(flush(&*client, 1).await, Ok(()));
    });
}

type Merging = Rc<MergingLeaf<Client>>;

/// A client of a server of whole blocks, on whose first block each sector has its own content.
async fn merging(server: &Rc<Server>) -> Merging {
    server.block_sizes.set([4096, 4096, 16 << 10]);
    let dev = Rc::new(MergingLeaf::new(server.clone().open(Options::default()).await));
    for at in 0..8 {
        put(&*dev, 1, (at, 1), 10 + at as u8).await.unwrap();
    }
    assert_eq!(sectors(server, 0..8), (10..18).map(Some).collect::<Vec<_>>());
    flush(&*dev, 1).await.unwrap();
    dev
}

fn with(mut contents: Vec<Option<u8>>, at: usize, of: u8) -> Vec<Option<u8>> {
    contents[at] = Some(of);
    contents
}

/// The first write that comes meets this.
fn next_write(server: &Server, fate: RequestOutcome) {
    let mut fate = Some(fate);
    *server.fate.borrow_mut() = Box::new(move |request| match request.kind {
        cmd::WRITE => fate.take().unwrap_or(RequestOutcome::Usual),
        _ => RequestOutcome::Usual,
    });
}

#[test]
fn a_merge_whose_connection_is_lost_before_its_write_goes_on() {
    for fate in [RequestOutcome::KillsBefore, RequestOutcome::KillsAfter] {
        run(move |_, server| async move {
            let dev = merging(&server).await;
            next_write(&server, fate);
            let part = begin_put(&dev, 1, (3, 1), 50);
            // They wait behind it, for its block.
            let others = [begin_put(&dev, 1, (4, 1), 51), begin_put(&dev, 1, (8, 8), 52)];
            settle().await;
            assert_eq!(server.connections.get(), 2, "{fate:?}");
            assert_eq!(part.get(), Some(Ok(())), "{fate:?}");
            assert!(others.iter().all(|other| other.get() == Some(Ok(()))), "{fate:?}");
            let plain = (10..18).map(Some).collect();
            assert_eq!(sectors(&server, 0..8), with(with(plain, 3, 50), 4, 51), "{fate:?}");
            assert_eq!(sectors(&server, 8..16), [Some(52); 8]);
            assert!(format!("{dev:?}").ends_with("0 locks)"), "{dev:?}");
        });
    }
}

/// The server is away for longer than a request waits.
#[test]
fn a_merge_whose_server_stays_away_fails_and_lets_others_go() {
    run(|world, server| async move {
        let dev = merging(&server).await;
        let before = sectors(&server, 0..8);
        let away = (world.clone(), server.clone());
        let mut first = true;
        *server.fate.borrow_mut() = Box::new(move |request| {
            if request.kind == cmd::WRITE && std::mem::take(&mut first) {
                away.0.borrow_mut().set_listening(away.1.listener, false);
                return RequestOutcome::KillsBefore;
            }
            RequestOutcome::Usual
        });
        let part = begin_put(&dev, 1, (3, 1), 50);
        let behind = begin_put(&dev, 1, (4, 1), 51);
        sleep(Nanos::from_secs(20)).await;
        assert_eq!((part.get(), behind.get()), (None, None), "they wait for the server");
        sleep(Nanos::from_secs(15)).await;
        assert_eq!(part.get(), Some(LOST), "nobody has written it");
        sleep(Nanos::from_secs(40)).await;
        assert_eq!(behind.get(), Some(LOST), "its read finds no server either");
        assert!(format!("{dev:?}").ends_with("0 locks)"), "{dev:?}");
        assert_eq!(sectors(&server, 0..8), before);
        world.borrow_mut().set_listening(server.listener, true);
        sleep(Nanos::from_secs(65)).await;
        assert_eq!(sectors(&server, 0..8), before, "what has failed does not land later");
        put(&*dev, 1, (5, 1), 60).await.unwrap();
        assert_eq!(sectors(&server, 0..8), with(before, 5, 60));
        put(&*dev, 1, (0, 8), 61).await.unwrap();
        assert_eq!(sectors(&server, 0..8), [Some(61); 8]);
        assert_eq!(flush(&*dev, 1).await, Ok(()), "nothing was lost");
    });
}
