// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client, step by step: what it sends, which answers it accepts, and how it reports a loss.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::model::{Connector, Server, ServerTraits};
use block::{
    BlockDevice, Buf, Bufs, Class, Error, ErrorKind, Flags, LocalFuture, Nanos, Op, Opener, Sector,
    Status,
};
use nbd::Fault;
use nbd::client::{Client, Connect, LinkEvent, Options};
use nbd::option::{reply, reply_info_export};
use nbd::request::{Request, SIMPLE_BYTES};
use nbd::wire::{ExportFlags, opt, rep};
use queue::Leaf;
use reactor::{FileId, SqeOp, driver_io, io_by, now, read, sleep, spawn, write};
use sim::{Machine, StreamFault, World, WorldRef};

pub(crate) const ALL: ExportFlags = ExportFlags::HAS_FLAGS
    .union(ExportFlags::FLUSH)
    .union(ExportFlags::FUA)
    .union(ExportFlags::TRIM)
    .union(ExportFlags::WRITE_ZEROES);
pub(crate) const NATURE: ServerTraits =
    ServerTraits { flags: ALL, structured: true, slow_ns: 100_000, again_per_mille: 0 };
const SIZE: usize = 1 << 20;

pub(crate) fn run<F: Future<Output = ()> + 'static>(
    nature: ServerTraits,
    test: impl FnOnce(WorldRef, Rc<Server>) -> F,
) {
    let world = World::calm(1);
    let server = Server::new(&world, SIZE, nature);
    let machine = Machine::boot(&world, 1);
    machine.spawn(0, server.clone().serve());
    machine.block_on(test(world.clone(), server)).unwrap();
}

pub(crate) fn pattern(bytes: usize, of: u8) -> Bufs {
    let buf = Buf::alloc(bytes);
    buf.write(|b| b.fill(of));
    buf.into()
}

pub(crate) async fn put(client: &Client, at: u64, of: u8) -> Result<(), Status> {
    let (flags, class, range) = (Flags::empty(), Class::Normal, (Sector(at), Sector(8)));
    io_by(Opener(1), client, Op::Write, flags, class, range, pattern(4096, of)).await
}

pub(crate) async fn flush_by(client: &Client, opener: u32) -> Result<(), Status> {
    let none = (Sector::ZERO, Sector::ZERO);
    let opener = Opener(opener);
    io_by(opener, client, Op::Flush, Flags::empty(), Class::Normal, none, Bufs::new()).await
}

#[test]
fn a_request_beyond_the_servers_largest_goes_in_pieces() {
    run(NATURE, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        assert_eq!(client.limits().max_io_bytes, 16 << 10);
        assert_eq!(client.limits().capacity, Sector::from_bytes(SIZE as u64));
        let mut bufs = Bufs::new();
        for n in 0..25_u8 {
            pattern(4096, n).iter().for_each(|s| bufs.push(s.clone()));
        }
        write(&client, Flags::FUA, Class::Normal, Sector(16), bufs).await.unwrap();
        let back = pattern(25 * 4096, 0xee);
        read(&client, Class::Normal, Sector(16), back.clone()).await.unwrap();
        let mut data = vec![0; back.len_bytes()];
        back.copy_to(&mut data);
        assert!(data.chunks(4096).zip(0..).all(|(c, n)| c.iter().all(|b| *b == n)));
        assert_eq!(client.stats().of(Op::Write).ios, 1);
        let beyond = read(&client, Class::Normal, Sector(2047), pattern(1024, 0)).await;
        assert_eq!(beyond, Err(Status::Invalid));
    });
}

#[test]
fn many_requests_share_a_connection_that_ends_by_disc() {
    run(NATURE, |_, server| async move {
        let client = Rc::new(server.clone().open(Options::default()).await);
        let left = Rc::new(Cell::new(200));
        for n in 0..200_u64 {
            let (client, left) = (client.clone(), left.clone());
            spawn(async move {
                put(&client, n * 8, n as u8).await.unwrap();
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(server.connections.get(), 1);
        let client = Rc::into_inner(client).unwrap();
        client.close().await;
    });
}

/// A server that takes one connection at a time then serves another process.
#[test]
fn a_connection_that_was_given_up_comes_back_when_needed() {
    run(NATURE, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        put(&client, 0, 1).await.unwrap();
        flush_by(&client, 1).await.unwrap();
        for (round, asks) in (1..).zip([false, true, false]) {
            client.disconnect().await;
            sleep(Nanos::from_secs(100)).await;
            assert_eq!((server.connections.get(), client.problem()), (round, None));
            if asks {
                client.connect_again();
                sleep(Nanos::from_secs(1)).await;
                assert_eq!(server.connections.get(), round + 1);
            }
            put(&client, 8, 2).await.unwrap();
            flush_by(&client, 1).await.unwrap();
            assert_eq!(server.connections.get(), round + 1);
        }
    });
}

#[test]
fn without_fua_a_write_and_a_flush_stand_for_it() {
    let nature = ServerTraits { flags: ALL - ExportFlags::FUA, ..NATURE };
    run(nature, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        write(&client, Flags::FUA, Class::Normal, Sector(0), pattern(512, 1)).await.unwrap();
        assert_eq!(server.flushes.get(), 1);
        put(&client, 0, 2).await.unwrap();
        assert_eq!(server.flushes.get(), 1);
    });
}

/// A server that offers no FLUSH may refuse one, and a write cache could not settle what it had
/// written back. A lost connection is reported all the same.
#[test]
fn an_export_without_flush_is_sent_none() {
    let nature = ServerTraits { flags: ALL - ExportFlags::FUA - ExportFlags::FLUSH, ..NATURE };
    run(nature, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        put(&client, 0, 1).await.unwrap();
        flush_by(&client, 1).await.unwrap();
        assert_eq!(server.flushes.get(), 0);
        server.restart(true);
        put(&client, 8, 1).await.unwrap();
        assert_eq!(flush_by(&client, 1).await, Err(Status::Io));
        flush_by(&client, 1).await.unwrap();
        assert_eq!(server.flushes.get(), 0);
    });
}

/// The server may have lost acknowledged data: the writer, and every other opener at that time,
/// gets an error at its next flush, once; later openers do not.
#[test]
fn a_flush_after_a_lost_connection_fails_once_for_each_opener() {
    run(NATURE, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        for opener in [1, 2] {
            flush_by(&client, opener).await.unwrap();
        }
        server.restart(true);
        flush_by(&client, 1).await.unwrap(); // nothing was written
        put(&client, 0, 1).await.unwrap();
        server.restart(true);
        put(&client, 8, 1).await.unwrap(); // over the new connection
        for opener in [1, 2] {
            assert_eq!(flush_by(&client, opener).await, Err(Status::Io), "{opener}");
            flush_by(&client, opener).await.unwrap();
        }
        flush_by(&client, 3).await.unwrap();
        // One that was flushed is not in doubt, nor one that was durable by itself.
        write(&client, Flags::FUA, Class::Normal, Sector(0), pattern(512, 1)).await.unwrap();
        server.restart(true);
        read(&client, Class::Normal, Sector(0), pattern(512, 0)).await.unwrap();
        flush_by(&client, 1).await.unwrap();
    });
}

/// Opener 1 has written the lost data, and disconnects before that is reported: the client is
/// opener 3 when it is back.
#[test]
fn who_connects_again_hears_of_a_loss() {
    run(NATURE, |_, server| async move {
        let client = server.clone().open(Options::default()).await;
        flush_by(&client, 2).await.unwrap();
        put(&client, 0, 1).await.unwrap();
        server.restart(true);
        for opener in [2, 3] {
            assert_eq!(flush_by(&client, opener).await, Err(Status::Io), "{opener}");
            flush_by(&client, opener).await.unwrap();
        }
        flush_by(&client, 4).await.unwrap();
    });
}

#[test]
fn an_outage_is_waited_out_and_a_long_one_is_an_error() {
    run(NATURE, |world, server| async move {
        let client = server.clone().open(Options::default()).await;
        put(&client, 0, 1).await.unwrap();
        let down = |down: bool| {
            world.borrow_mut().set_listening(server.listener, !down);
            if down {
                server.restart(false);
            }
        };
        down(true);
        let back = {
            let (world, listener) = (world.clone(), server.listener);
            async move {
                sleep(Nanos::from_secs(20)).await;
                world.borrow_mut().set_listening(listener, true);
            }
        };
        spawn(back);
        let began = now();
        put(&client, 0, 2).await.unwrap();
        assert!((Nanos::from_secs(20)..Nanos::from_secs(32)).contains(&(now() - began)));
        down(true);
        let began = now();
        assert_eq!(put(&client, 0, 3).await, Err(Status::Io));
        assert!((Nanos::from_secs(30)..Nanos::from_secs(33)).contains(&(now() - began)));
        // It is tried for as long as the device is there.
        sleep(Nanos::from_secs(3600)).await;
        down(false);
        sleep(Nanos::from_secs(65)).await;
        let began = now();
        put(&client, 0, 4).await.unwrap();
        assert!(now() - began < Nanos::from_secs(1));
    });
}

#[test]
fn a_newer_write_waits_for_the_old_connection_others_do_not() {
    let nature = ServerTraits { slow_ns: 5_000_000_000, ..NATURE };
    run(nature, |world, server| async move {
        let client = Rc::new(server.clone().open(Options::default()).await);
        let first = client.clone();
        spawn(async move { put(&first, 0, 1).await.unwrap() });
        sleep(Nanos::from_millis(1)).await; // it is at the server, which takes its time
        world.borrow_mut().cut_stream(server.client_end.get().unwrap(), StreamFault::Error);
        sleep(Nanos::from_millis(1)).await;
        assert_eq!(server.connections.get(), 2);
        put(&client, 0, 2).await.unwrap();
        let data = pattern(4096, 0);
        read(&*client, Class::Normal, Sector(0), data.clone()).await.unwrap();
        data.for_each(|b| assert!(b.iter().all(|b| *b == 2), "the newer one stands"));
    });
}

#[test]
fn ranges_of_a_host_that_fell_silent_stay_guarded() {
    let nature = ServerTraits { slow_ns: 1_000_000_000, ..NATURE };
    for fence in [None, Some(Nanos::from_secs(15))] {
        run(nature, move |world, server| async move {
            let options = Options { fence, ..Options::default() };
            let client = Rc::new(server.clone().open(options).await);
            let first = client.clone();
            spawn(async move { put(&first, 0, 1).await.unwrap() });
            sleep(Nanos::from_millis(1)).await;
            world.borrow_mut().cut_stream(server.client_end.get().unwrap(), StreamFault::TimedOut);
            sleep(Nanos::from_millis(1)).await;
            put(&client, 8, 1).await.unwrap();
            let newer = put(&client, 0, 2).await;
            assert_eq!(newer.is_ok(), fence.is_some());
        });
    }
}

#[test]
fn an_export_that_changed_meanwhile_is_not_used_on() {
    run(NATURE, |_, server| async move {
        let said: Rc<RefCell<Vec<LinkEvent>>> = Rc::default();
        let (hear, door) = (said.clone(), Rc::new(Connector(server.clone())));
        let tell = move |news: &LinkEvent| hear.borrow_mut().push(news.clone());
        let client = Client::open("nbd", "disk", door, Options::default(), tell).await.unwrap();
        server.size.set(SIZE as u64 / 2);
        server.restart(false);
        assert_eq!(put(&client, 0, 1).await, Err(Status::Io));
        assert_eq!(put(&client, 0, 1).await, Err(Status::Io));
        let said = said.borrow();
        let LinkEvent::Failed(why) = said.last().unwrap() else { panic!("{said:?}") };
        let want = "export `disk` is another after a reconnect: its size was 1048576 bytes and is \
                    524288";
        assert_eq!(why, want);
        assert_eq!(said.len(), 2, "{said:?}");
    });
}

/// A server that sends scripted answers.
struct Script {
    world: WorldRef,
    listener: FileId,
}

impl Connect for Script {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let file = self.world.borrow_mut().connect(self.listener);
        Box::pin(async move { file.ok_or_else(|| Error::io("refused")) })
    }

    fn peer(&self) -> String {
        "script:10809".into()
    }
}

async fn recv_exact(file: FileId, n: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < n {
        let into = Buf::alloc(n - all.len());
        let got = driver_io(file, SqeOp::Recv { into: into.all() }).await;
        assert!(got.status == Status::Ok && got.value > 0, "{got:?} after {}", all.len());
        into.read(|b| all.extend_from_slice(&b[..got.value as usize]));
    }
    all
}

async fn say(file: FileId, bytes: &[u8]) {
    let bufs = Buf::copy_of(bytes).into();
    assert_eq!(driver_io(file, SqeOp::Send { bufs }).await.status, Status::Ok);
}

/// The server's side of a handshake for a disk of a mebibyte.
async fn greet(file: FileId, structured: bool) {
    greet_with(file, structured, ALL).await;
}

async fn greet_with(file: FileId, structured: bool, flags: ExportFlags) {
    say(file, b"NBDMAGICIHAVEOPT\x00\x03").await;
    recv_exact(file, 20).await;
    let mut out = Vec::new();
    let kind = if structured { rep::ACK } else { rep::ERR_UNSUP };
    reply(&mut out, opt::STRUCTURED_REPLY, kind, &[]);
    say(file, &out).await;
    recv_exact(file, 16 + 4 + 4 + 4).await;
    out.clear();
    reply_info_export(&mut out, opt::GO, SIZE as u64, flags.bits());
    reply(&mut out, opt::GO, rep::ACK, &[]);
    say(file, &out).await;
}

fn chunk(flags: u16, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
    let mut out = 0x668e_33ef_u32.to_be_bytes().to_vec();
    out.extend(flags.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut out = 0x6744_6698_u32.to_be_bytes().to_vec();
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    assert_eq!(out.len(), SIMPLE_BYTES);
    out
}

fn data(offset: u64, len: usize) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &vec![7; len]].concat()
}

/// What a server answers to a read of 1024 bytes at 4096; every one must end the connection, and
/// the read be asked again of the next, which is honest.
type WrongReply = fn(u64) -> Vec<u8>;
const LIES: [(bool, WrongReply); 21] = [
    (true, |_| vec![0; 20]),
    (true, |c| simple(0, c)),
    (true, |c| simple(5, c + 1)),
    (true, |c| simple(5, c ^ 1 << 32)),
    (true, |_| simple(5, u64::MAX)),
    (true, |c| chunk(1, 0, c, &[])), // done without data
    (true, |c| chunk(0, 0, c, &[])),
    (true, |c| chunk(1, 1, c, &data(4096, 512))),
    (true, |c| chunk(1, 1, c, &data(4096, 1025))),
    (true, |c| chunk(1, 1, c, &data(3584, 1024))),
    (true, |c| chunk(1, 1, c, &data(u64::MAX, 1024))),
    (true, |c| chunk(1, 1, c, &4096_u64.to_be_bytes())),
    (true, |c| [chunk(0, 1, c, &data(4096, 600)), chunk(1, 1, c, &data(4608, 512))].concat()),
    (true, |c| chunk(1, 2, c, &[&4096_u64.to_be_bytes()[..], &[0, 0, 0, 0]].concat())),
    (true, |c| chunk(1, 2, c, &[&4096_u64.to_be_bytes()[..], &[255; 4]].concat())),
    (true, |c| chunk(1, 5, c, &[0; 12])),
    (true, |c| chunk(1, 0x8001, c, &[0, 0, 0, 0, 0, 0])),
    (true, |c| chunk(1, 0x8001, c, &[0, 0, 0, 5])),
    (true, |c| [chunk(0, 1, c, &data(4096, 8)), chunk(1, 0, c, &[])].concat()),
    (false, |c| chunk(1, 1, c, &data(4096, 1024))),
    (false, |c| [simple(0, c), vec![7; 1024], simple(0, c)].concat()),
];

#[test]
fn no_lie_of_a_server_is_believed() {
    for (nth, (structured, lie)) in LIES.into_iter().enumerate() {
        let world = World::calm(nth as u64);
        let machine = Machine::boot(&world, 1);
        let listener = world.borrow_mut().listen();
        let script = Rc::new(Script { world: world.clone(), listener });
        let read_twice = async move {
            let connections = Rc::new(Cell::new(0));
            let count = connections.clone();
            spawn(async move {
                loop {
                    let file = FileId(driver_io(listener, SqeOp::Accept).await.value);
                    count.set(count.get() + 1);
                    greet(file, structured).await;
                    let first = count.get() == 1;
                    // The first connection lies at once, the others never.
                    for _ in 0..if first { 1 } else { 2 } {
                        let head = recv_exact(file, 28).await;
                        let request = Request::parse(&head).unwrap().unwrap();
                        assert_eq!((request.offset, request.len), (4096, 1024));
                        let cookie = request.cookie;
                        let honest = match structured {
                            true => chunk(1, 1, cookie, &data(4096, 1024)),
                            false => [simple(0, cookie), vec![7; 1024]].concat(),
                        };
                        say(file, &if first { lie(cookie) } else { honest }).await;
                    }
                    if first {
                        // It is asked to disconnect.
                        let end = SqeOp::Recv { into: Buf::alloc(64).all() };
                        assert_eq!(driver_io(file, end).await.value, 0, "lie {nth}");
                        let _ = driver_io(file, SqeOp::Close).await;
                    }
                }
            });
            let client = Client::open("nbd", "disk", script, Options::default(), |_| {}).await;
            let client = client.unwrap();
            for _ in 0..2 {
                let buf = pattern(1024, 0);
                read(&client, Class::Normal, Sector(8), buf.clone()).await.unwrap();
                buf.for_each(|b| assert!(b.iter().all(|b| *b == 7)));
            }
            assert_eq!(connections.get(), 2, "lie {nth}");
        };
        machine.block_on(read_twice).unwrap();
    }
}

/// What a server is asked, in order, and answers, each by the number of the request and an error.
#[derive(Clone, Copy, Debug)]
struct Answers {
    fua: bool,
    before: usize,
    answers: &'static [(usize, u32)],
}

/// Runs a client of a server that takes `before` requests and then gives its answers, taking more
/// requests when it has to.
fn with_answers<F: Future<Output = ()> + 'static>(
    answers: Answers,
    test: impl FnOnce(Rc<Client>) -> F + 'static,
) {
    with_answers_and(None, answers, test);
}

/// As [`with_answers`], with a planted fault.
fn with_answers_and<F: Future<Output = ()> + 'static>(
    fault: Option<Fault>,
    answers: Answers,
    test: impl FnOnce(Rc<Client>) -> F + 'static,
) {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let listener = world.borrow_mut().listen();
    let script = Rc::new(Script { world: world.clone(), listener });
    let flags = if answers.fua { ALL } else { ALL - ExportFlags::FUA };
    let talk = async move {
        spawn(async move {
            let file = FileId(driver_io(listener, SqeOp::Accept).await.value);
            greet_with(file, false, flags).await;
            let mut cookies = Vec::new();
            for &(nth, error) in answers.answers {
                while cookies.len() < answers.before || cookies.len() <= nth {
                    let head = recv_exact(file, 28).await;
                    let request = Request::parse(&head).unwrap().unwrap();
                    let len = request.payload_len() as usize;
                    if len > 0 {
                        recv_exact(file, len).await;
                    }
                    cookies.push(request.cookie);
                }
                say(file, &simple(error, cookies[nth])).await;
            }
        });
        let options = Options::default();
        let client = Client::open_planted("nbd", "disk", script, options, fault).await;
        test(Rc::new(client.unwrap())).await;
    };
    machine.block_on(talk).unwrap();
}

/// One FLUSH of an opener fails at the server, the next, which was sent before the client knew,
/// does not: what it covers may have been lost by the first.
#[test]
fn a_flush_sent_while_one_fails_fails_as_well() {
    for second in [1, 2] {
        let answers = Answers { fua: true, before: 0, answers: &[(0, 0), (1, 5), (2, 0), (3, 0)] };
        with_answers(answers, move |client| async move {
            put(&client, 0, 1).await.unwrap();
            let flush = |opener| {
                let client = client.clone();
                let done = Rc::new(Cell::new(None));
                let set = done.clone();
                spawn(async move { set.set(Some(flush_by(&client, opener).await)) });
                done
            };
            let flushes = [flush(1), flush(second)];
            sleep(Nanos::from_millis(10)).await;
            assert!(flushes.iter().all(|f| f.get() == Some(Err(Status::Io))));
            flush_by(&client, 1).await.unwrap();
        });
    }
}

/// A write is at the server together with a FLUSH of its opener, which fails. The FLUSH need not
/// cover the write, and the server may have lost it, whichever it answers first: the specification
/// has a FLUSH cover what was answered before, so the server may have done the write first and have
/// answered it last. The next FLUSH reports it, although it succeeds at the server.
#[test]
fn the_next_flush_reports_a_write_beside_a_failed_flush() {
    // The FLUSH and the write are the first two.
    const WRITE_LAST: Answers =
        Answers { fua: true, before: 2, answers: &[(0, 5), (1, 0), (2, 0), (3, 0)] };
    const FLUSH_LAST: Answers =
        Answers { answers: &[(1, 0), (0, 5), (2, 0), (3, 0)], ..WRITE_LAST };
    for (fault, answers, told) in [
        (None, WRITE_LAST, Err(Status::Io)),
        (Some(Fault::NeverInDoubt), WRITE_LAST, Ok(())),
        (None, FLUSH_LAST, Err(Status::Io)),
    ] {
        with_answers_and(fault, answers, move |client| async move {
            let inner = client.clone();
            let first = Rc::new(Cell::new(None));
            let set = first.clone();
            spawn(async move { set.set(Some(flush_by(&inner, 1).await)) });
            sleep(Nanos::from_millis(1)).await; // It is submitted first.
            put(&client, 0, 1).await.unwrap();
            sleep(Nanos::from_millis(1)).await;
            assert_eq!(first.get(), Some(Err(Status::Io)));
            assert_eq!(flush_by(&client, 1).await, told, "{fault:?} {answers:?}");
            flush_by(&client, 1).await.unwrap();
        });
    }
}

/// A server that knows no FUA has taken the write, and fails a flush that was before it: the flush
/// that stands for FUA succeeds, but the write may be lost.
#[test]
fn a_failed_flush_fails_a_write_that_waits_for_its_own() {
    // A flush, the write, the flush after the write.
    let answers = Answers { fua: false, before: 2, answers: &[(1, 0), (0, 5), (2, 0), (3, 0)] };
    with_answers(answers, |client| async move {
        let inner = client.clone();
        spawn(async move { assert_eq!(flush_by(&inner, 2).await, Err(Status::Io)) });
        sleep(Nanos::from_millis(1)).await; // It is submitted first.
        let (class, at) = (Class::Normal, Sector(0));
        let outcome = write(&*client, Flags::FUA, class, at, pattern(512, 1)).await;
        assert_eq!(outcome, Err(Status::Io));
        flush_by(&client, 2).await.unwrap();
    });
}

#[test]
fn an_export_that_is_not_there_is_told_as_that() {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let listener = world.borrow_mut().listen();
    let script = Rc::new(Script { world: world.clone(), listener });
    let open = async move {
        spawn(async move {
            let file = FileId(driver_io(listener, SqeOp::Accept).await.value);
            say(file, b"NBDMAGICIHAVEOPT\x00\x03").await;
            recv_exact(file, 20).await;
            let mut out = Vec::new();
            reply(&mut out, opt::STRUCTURED_REPLY, rep::ACK, &[]);
            reply(&mut out, opt::GO, rep::ERR_UNKNOWN, &[b"ask another"]);
            say(file, &out).await;
        });
        Client::open("nbd", "disk", script, Options::default(), |_| {}).await
    };
    let e = machine.block_on(open).unwrap().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    assert_eq!(e.to_string(), "script:10809: export `disk`: no such export: it says `ask another`");
}
