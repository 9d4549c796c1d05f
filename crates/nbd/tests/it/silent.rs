// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client with a server that accepts connections and is silent, from the beginning or in
//! the middle: an error in bounded time, which names the server and what it owed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, Error, Flags, LocalFuture, Nanos, Sector, Status};
use nbd::Fault;
use nbd::client::{Client, Connect, LinkEvent, Options};
use nbd::option::{reply, reply_info_block_size, reply_info_export};
use nbd::request::{REQUEST_BYTES, ReplyHead, Request};
use nbd::wire::{ExportFlags, opt, rep};
use queue::Leaf;
use reactor::{FileId, SqeOp, discard, driver_io, flush, now, sleep, spawn, write};
use sim::{Machine, World, WorldRef};

const SIZE: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4096;

struct Connector(WorldRef, FileId);

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let file = self.0.borrow_mut().connect(self.1);
        Box::pin(async move { file.ok_or_else(|| Error::io("refused")) })
    }

    fn peer(&self) -> String {
        "storage:10809".into()
    }
}

/// Runs a test before a server of one connection at a time, which behaves as `serve`.
fn run<S: Future<Output = ()> + 'static, T: Future<Output = ()> + 'static>(
    serve: impl Fn(FileId) -> S + 'static,
    test: impl FnOnce(Rc<Connector>) -> T,
) {
    let world = World::calm(1);
    let machine = Machine::boot(&world, 1);
    let listener = world.borrow_mut().listen();
    machine.spawn(0, async move {
        loop {
            let file = FileId(driver_io(listener, SqeOp::Accept).await.value);
            spawn(serve(file));
        }
    });
    machine.block_on(test(Rc::new(Connector(world.clone(), listener)))).unwrap();
}

async fn recv(file: FileId, n: usize) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < n {
        let into = Buf::alloc(n - all.len());
        let got = driver_io(file, SqeOp::Recv { into: into.all() }).await;
        if got.status != Status::Ok || got.value == 0 {
            return None;
        }
        into.read(|b| all.extend_from_slice(&b[..got.value as usize]));
    }
    Some(all)
}

async fn say(file: FileId, bytes: &[u8]) {
    let bufs = Buf::copy_of(bytes).into();
    let _ = driver_io(file, SqeOp::Send { bufs }).await; // the client may be gone
}

/// The first `messages` of the three messages of a handshake.
async fn greet(file: FileId, messages: usize) {
    let mut structured = Vec::new();
    reply(&mut structured, opt::STRUCTURED_REPLY, rep::ERR_UNSUP, &[]);
    let mut go = Vec::new();
    let flags = ExportFlags::HAS_FLAGS | ExportFlags::FLUSH;
    reply_info_export(&mut go, opt::GO, SIZE, flags.bits());
    reply(&mut go, opt::GO, rep::ACK, &[]);
    let greeting = (0, b"NBDMAGICIHAVEOPT\x00\x03".to_vec());
    for (asked, message) in [greeting, (20, structured), (28, go)].into_iter().take(messages) {
        if asked > 0 && recv(file, asked).await.is_none() {
            return;
        }
        say(file, &message).await;
    }
}

async fn put(client: &Client, block: u64) -> Result<(), Status> {
    let data = Buf::zeroed(BLOCK_BYTES).all().into();
    write(client, Flags::empty(), Class::Normal, Sector(block * 8), data).await
}

#[test]
fn a_silent_handshake_ends_with_what_was_waited_for() {
    let cases =
        [(0, "its greeting"), (1, "its answer to STRUCTURED_REPLY"), (2, "its answer to GO")];
    for ((messages, what), (timeout, s)) in cases.into_iter().zip([(30, 10), (4, 4), (10, 10)]) {
        run(
            move |file| async move { greet(file, messages).await },
            move |door| async move {
                let timeout = Nanos::from_secs(timeout);
                let options = Options { timeout, ..Options::default() };
                let e = Client::open("nbd", "disk", door, options, |_| {}).await.unwrap_err();
                let said = format!("the server said nothing within {s} s: waited for {what}");
                assert_eq!(e.to_string(), format!("storage:10809: {said}"));
                let took = now();
                assert!((Nanos::from_secs(s)..Nanos::from_secs(s + 1)).contains(&took));
            },
        );
    }
}

#[test]
fn a_server_that_falls_silent_is_left_and_then_an_error() {
    // The first connection gets no answer, the next ones not even a greeting.
    let connections = Rc::new(Cell::new(0));
    let count = connections.clone();
    let serve = move |file| {
        let nth = count.replace(count.get() + 1);
        async move { greet(file, if nth == 0 { 3 } else { 0 }).await }
    };
    run(serve, |door| async move {
        let said: Rc<RefCell<Vec<String>>> = Rc::default();
        let hear = said.clone();
        let tell = move |news: &LinkEvent| hear.borrow_mut().push(news.to_string());
        let silence = Nanos::from_secs(5);
        let options = Options { silence, timeout: Nanos::from_secs(12), ..Options::default() };
        let client = Rc::new(Client::open("nbd", "disk", door, options, tell).await.unwrap());
        // Nothing is owed: silence is no matter.
        sleep(Nanos::from_secs(60)).await;
        assert!(said.borrow().is_empty(), "{said:?}");
        let began = now();
        let other = client.clone();
        spawn(async move { assert_eq!(put(&other, 1).await, Err(Status::Io)) });
        assert_eq!(put(&client, 0).await, Err(Status::Io));
        let took = now() - began;
        assert!((Nanos::from_secs(17)..Nanos::from_secs(20)).contains(&took), "{took:?}");
        let said = said.borrow();
        let lost = "connection lost: storage:10809: the server said nothing for 5 s: waited for \
                    the answer to write of 4096 bytes at 0, the oldest of 2";
        assert_eq!(said[0], lost);
        let refused = "cannot connect again yet: storage:10809: the server said nothing within \
                       10 s: waited for its greeting";
        assert_eq!(said[1], refused);
    });
    assert!(connections.get() > 1);
}

/// One answer now and then is enough, however long each request has to wait for its own: a server
/// with a slow disk works through a long queue.
#[test]
fn a_server_that_works_through_a_queue_is_not_left() {
    const REQUESTS: u64 = 10;
    let serve = |file| async move {
        greet(file, 3).await;
        let mut cookies = Vec::new();
        for _ in 0..REQUESTS {
            let head = recv(file, REQUEST_BYTES).await.unwrap();
            let request = Request::parse(&head).unwrap().unwrap();
            recv(file, request.payload_len() as usize).await.unwrap();
            cookies.push(request.cookie);
        }
        for cookie in cookies {
            sleep(Nanos::from_secs(4)).await;
            let mut out = vec![0; 64];
            let n = ReplyHead::Simple { error: None }.encode(cookie, &mut out);
            say(file, &out[..n]).await;
        }
    };
    run(serve, |door| async move {
        let options = Options { silence: Nanos::from_secs(6), ..Options::default() };
        let tell = |news: &LinkEvent| panic!("{news}");
        let client = Rc::new(Client::open("nbd", "disk", door, options, tell).await.unwrap());
        let left = Rc::new(Cell::new(REQUESTS - 1));
        for block in 1..REQUESTS {
            let (client, left) = (client.clone(), left.clone());
            spawn(async move {
                put(&client, block).await.unwrap();
                left.set(left.get() - 1);
            });
        }
        flush(&*client, Class::Normal).await.unwrap();
        while left.get() > 0 {
            sleep(Nanos::from_millis(100)).await;
        }
        assert!(now() >= Nanos::from_secs(40));
    });
}

/// The story: a write of 32 MiB counted as owed from the moment it was begun, so that a link which
/// takes half a minute for it was given up after 5 seconds, and so was the next one.
#[test]
fn a_server_that_takes_what_is_sent_is_not_left() {
    run(slow_taker(WRITE_BYTES), |door| async move {
        let options = Options { silence: Nanos::from_secs(5), ..Options::default() };
        let tell = |news: &LinkEvent| panic!("{news}");
        let client = Client::open("nbd", "disk", door, options, tell).await.unwrap();
        let data = Buf::zeroed(WRITE_BYTES).all().into();
        write(&client, Flags::empty(), Class::Normal, Sector(0), data).await.unwrap();
        assert!(now() >= Nanos::from_secs(30));
    });
}

#[test]
fn a_server_that_stops_taking_what_is_sent_is_left() {
    run(slow_taker(10 << 20), |door| async move {
        let said: Rc<RefCell<Vec<String>>> = Rc::default();
        let hear = said.clone();
        let tell = move |news: &LinkEvent| hear.borrow_mut().push(format!("{:?} {news}", now()));
        let (silence, timeout) = (Nanos::from_secs(5), Nanos::from_secs(1));
        let options = Options { silence, timeout, ..Options::default() };
        let client = Client::open("nbd", "disk", door, options, tell).await.unwrap();
        let data = Buf::zeroed(WRITE_BYTES).all().into();
        let put = write(&client, Flags::empty(), Class::Normal, Sector(0), data);
        assert_eq!(put.await, Err(Status::Io));
        assert!((Nanos::from_secs(15)..Nanos::from_secs(19)).contains(&now()), "{said:?}");
        assert!(said.borrow()[0].contains("the server said nothing for 5 s"), "{said:?}");
    });
}

const WRITE_BYTES: usize = 32 << 20;

/// A server that takes `bytes` of a write's data at 1 MB/s, and answers if that is all. It greets
/// the first connection only.
fn slow_taker(bytes: usize) -> impl Fn(FileId) -> LocalFuture<()> {
    const STEP_BYTES: usize = 100_000;
    let connections = Cell::new(0);
    move |file| {
        let nth = connections.replace(connections.get() + 1);
        Box::pin(async move {
            greet(file, if nth == 0 { 3 } else { 0 }).await;
            let Some(head) = recv(file, REQUEST_BYTES).await else { return };
            let request = Request::parse(&head).unwrap().unwrap();
            assert_eq!(request.payload_len() as usize, WRITE_BYTES);
            for at in (0..bytes).step_by(STEP_BYTES) {
                if recv(file, STEP_BYTES.min(bytes - at)).await.is_none() {
                    return;
                }
                sleep(Nanos::from_millis(100)).await;
            }
            if bytes < WRITE_BYTES {
                return sleep(Nanos::from_secs(3600)).await;
            }
            let mut out = vec![0; 64];
            let n = ReplyHead::Simple { error: None }.encode(request.cookie, &mut out);
            say(file, &out[..n]).await;
        })
    }
}

async fn simple(file: FileId, cookie: u64) {
    let mut out = vec![0; 64];
    let n = ReplyHead::Simple { error: None }.encode(cookie, &mut out);
    say(file, &out[..n]).await;
}

async fn next_request(file: FileId) -> Option<Request> {
    let head = recv(file, REQUEST_BYTES).await?;
    let request = Request::parse(&head).unwrap().unwrap();
    recv(file, request.payload_len() as usize).await?;
    Some(request)
}

/// A server that answers a write before it has taken its data, and then takes nothing more.
fn answers_early() -> impl Fn(FileId) -> LocalFuture<()> {
    let connections = Cell::new(0);
    move |file| {
        let nth = connections.replace(connections.get() + 1);
        Box::pin(async move {
            greet(file, if nth == 0 { 3 } else { 0 }).await;
            let Some(head) = recv(file, REQUEST_BYTES).await else { return };
            simple(file, Request::parse(&head).unwrap().unwrap().cookie).await;
        })
    }
}

/// Found by an attack: the answer was parked until its send had ended, nothing counted as owed, and
/// the device hung for ever, with every later request.
#[test]
fn a_server_that_answers_and_stops_taking_is_left() {
    for fault in [None, Some(Fault::ForgetSending)] {
        run(answers_early(), move |door| async move {
            let (silence, timeout) = (Nanos::from_secs(2), Nanos::from_secs(3));
            let options = Options { silence, timeout, ..Options::default() };
            let client = Client::open_planted("nbd", "disk", door, options, fault).await.unwrap();
            let client = Rc::new(client);
            let ended = Rc::new(Cell::new(0));
            let (writer, count) = (client.clone(), ended.clone());
            spawn(async move {
                let data = Buf::zeroed(WRITE_BYTES).all().into();
                let _ = write(&*writer, Flags::empty(), Class::Normal, Sector(0), data).await;
                count.set(count.get() + 1);
            });
            sleep(Nanos::from_millis(10)).await;
            let (other, count) = (client.clone(), ended.clone());
            spawn(async move {
                assert_eq!(put(&other, 9000).await, Err(Status::Io));
                count.set(count.get() + 1);
            });
            sleep(Nanos::from_secs(8)).await;
            // The planted fault must be seen.
            assert_eq!(ended.get(), if fault.is_none() { 2 } else { 0 });
        });
    }
}

/// A server that answers all but the first request, for ever.
async fn keeps_one(file: FileId) {
    greet(file, 3).await;
    let mut kept = false;
    while let Some(request) = next_request(file).await {
        if std::mem::replace(&mut kept, true) {
            simple(file, request.cookie).await;
        }
    }
}

/// Any byte of the server counted as life for all requests, so one that it kept for itself waited
/// for ever. The device's other requests go on.
#[test]
fn a_request_that_is_never_answered_fails_though_others_are() {
    for fault in [None, Some(Fault::AnyAnswerIsProgress)] {
        run(keeps_one, move |door| async move {
            let options = Options { silence: Nanos::from_secs(2), ..Options::default() };
            assert_eq!(options.own_silence(), Nanos::from_secs(20));
            let client = Client::open_planted("nbd", "disk", door, options, fault).await.unwrap();
            let client = Rc::new(client);
            let failed = Rc::new(Cell::new(None));
            let (other, set) = (client.clone(), failed.clone());
            spawn(async move {
                assert_eq!(put(&other, 0).await, Err(Status::Io));
                set.set(Some(now()));
            });
            sleep(Nanos::from_millis(1)).await;
            for n in 0..40 {
                // The first one on the next connection is kept, too, and sent again on a third.
                if failed.get().is_none() {
                    put(&client, 100 + n).await.unwrap();
                }
                sleep(Nanos::from_secs(1)).await;
            }
            let on_time = |at| (Nanos::from_secs(20)..Nanos::from_secs(23)).contains(&at);
            assert_eq!(failed.get().is_some_and(on_time), fault.is_none());
        });
    }
}

/// Four broken connections that a server did not end were the last that were tried.
#[test]
fn connections_that_a_server_never_ends_keep_no_new_one_away() {
    let connections = Rc::new(Cell::new(0));
    let count = connections.clone();
    let serve = move |file| {
        let nth = count.replace(count.get() + 1);
        async move {
            greet(file, 3).await;
            while let Some(request) = next_request(file).await {
                if nth >= 6 {
                    simple(file, request.cookie).await;
                }
            }
        }
    };
    run(serve, |door| async move {
        let (silence, timeout) = (Nanos::from_secs(2), Nanos::from_secs(1000));
        let options = Options { silence, timeout, ..Options::default() };
        let client = Client::open("nbd", "disk", door, options, |_| {}).await.unwrap();
        assert_eq!(put(&client, 0).await, Ok(()));
    });
    assert_eq!(connections.get(), 7);
}

/// A connection that was lost, and that its server does not end, kept every later end waiting for
/// ever: of the device, and of an upgrade, which had stopped all clients by then.
#[test]
fn a_lost_connection_that_never_ends_keeps_no_end_waiting() {
    let connections = Rc::new(Cell::new(0));
    let serve = move |file| {
        let nth = connections.replace(connections.get() + 1);
        async move {
            greet(file, 3).await;
            while let Some(request) = next_request(file).await {
                if nth > 0 {
                    simple(file, request.cookie).await;
                }
            }
            sleep(Nanos::from_secs(if nth == 0 { 3600 } else { 0 })).await;
            let _ = driver_io(file, SqeOp::Close).await;
        }
    };
    run(serve, |door| async move {
        let options = Options { silence: Nanos::from_secs(2), ..Options::default() };
        let client = Client::open("nbd", "disk", door, options, |_| {}).await.unwrap();
        assert_eq!(put(&client, 0).await, Ok(()));
        for _ in 0..2 {
            let before = now();
            client.disconnect().await;
            assert!(now() - before < Nanos::from_secs(3));
            assert_eq!(put(&client, 8).await, Ok(()));
        }
        let before = now();
        client.close().await;
        assert!(now() - before < Nanos::from_secs(3));
    });
}

/// An upgrade that runs out of time connects again beside a disconnect, which then waited for as
/// long as the new connection was there.
#[test]
fn a_disconnect_ends_when_the_connection_is_wanted_again() {
    let serve = |file| async move {
        greet(file, 3).await;
        while let Some(request) = next_request(file).await {
            simple(file, request.cookie).await;
        }
        sleep(Nanos::from_secs(3600)).await;
        let _ = driver_io(file, SqeOp::Close).await;
    };
    run(serve, |door| async move {
        let client = Client::open("nbd", "disk", door, Options::default(), |_| {}).await.unwrap();
        assert_eq!(put(&client, 0).await, Ok(()));
        let has_ended = Rc::<Cell<bool>>::default();
        let (disconnecting, ended) = (client.disconnect(), has_ended.clone());
        spawn(async move {
            disconnecting.await;
            ended.set(true);
        });
        sleep(Nanos::from_millis(500)).await;
        assert!(!has_ended.get(), "the server does not end it");
        client.connect_again();
        sleep(Nanos::from_secs(10)).await;
        assert!(has_ended.get());
        assert_eq!(put(&client, 8).await, Ok(()));
    });
}

/// 28 bytes of TRIM became eight million requests of 130 bytes at once, where the server takes 512
/// bytes at a time, and nobody else had a turn meanwhile.
#[test]
fn a_large_request_is_cut_to_pieces_as_earlier_ones_end() {
    let (most, total) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let counts = (most.clone(), total.clone());
    let serve = move |file| {
        let (most, total) = counts.clone();
        async move {
            greet_small(file).await;
            let waiting: Rc<RefCell<Vec<u64>>> = Rc::default();
            let answer = waiting.clone();
            spawn(async move {
                loop {
                    sleep(Nanos::from_millis(10)).await;
                    most.set(most.get().max(answer.borrow().len()));
                    for cookie in answer.take() {
                        simple(file, cookie).await;
                    }
                }
            });
            while let Some(request) = next_request(file).await {
                total.set(total.get() + 1);
                waiting.borrow_mut().push(request.cookie);
            }
        }
    };
    run(serve, |door| async move {
        let options = Options::default();
        let client = Rc::new(Client::open("nbd", "disk", door, options, |_| {}).await.unwrap());
        let other = client.clone();
        let done = Rc::new(Cell::new(false));
        let set = done.clone();
        spawn(async move {
            let len = Sector::from_bytes(1 << 20);
            discard(&*other, Class::Normal, Sector(0), len).await.unwrap();
            set.set(true);
        });
        sleep(Nanos::from_millis(5)).await;
        let data = Buf::zeroed(512).all().into();
        write(&*client, Flags::empty(), Class::Normal, Sector(4096), data).await.unwrap();
        assert!(now() < Nanos::from_millis(40), "{:?}: it has its turn soon", now());
        while !done.get() {
            sleep(Nanos::from_millis(10)).await;
        }
    });
    assert_eq!(total.get(), 2049);
    assert!(most.get() <= 65, "{} at once", most.get());
}

async fn greet_small(file: FileId) {
    let mut structured = Vec::new();
    reply(&mut structured, opt::STRUCTURED_REPLY, rep::ERR_UNSUP, &[]);
    let mut go = Vec::new();
    let flags = ExportFlags::HAS_FLAGS | ExportFlags::FLUSH | ExportFlags::TRIM;
    reply_info_export(&mut go, opt::GO, SIZE, flags.bits());
    reply_info_block_size(&mut go, opt::GO, [512, 512, 512]);
    reply(&mut go, opt::GO, rep::ACK, &[]);
    say(file, b"NBDMAGICIHAVEOPT\x00\x03").await;
    recv(file, 20).await.unwrap();
    say(file, &structured).await;
    recv(file, 28).await.unwrap();
    say(file, &go).await;
}

/// What a stream of the simulator holds.
const STREAM_BYTES: usize = 48 << 10;

/// The goodbye was sent without a limit: closing a device hung when the server took nothing.
#[test]
fn a_goodbye_that_nobody_takes_ends_in_time() {
    let serve = |file| async move {
        greet(file, 3).await;
        let head = recv(file, REQUEST_BYTES).await.unwrap();
        let request = Request::parse(&head).unwrap().unwrap();
        // The rest of the data fills the socket to its last byte.
        recv(file, request.payload_len() as usize - STREAM_BYTES).await.unwrap();
        simple(file, request.cookie).await;
        sleep(Nanos::from_secs(3600)).await;
    };
    run(serve, |door| async move {
        let client = Client::open("nbd", "disk", door, Options::default(), |_| {}).await.unwrap();
        let data = Buf::zeroed(WRITE_BYTES).all().into();
        write(&client, Flags::empty(), Class::Normal, Sector(0), data).await.unwrap();
        let before = now();
        client.close().await;
        assert!(now() - before < Nanos::from_secs(3));
    });
}
