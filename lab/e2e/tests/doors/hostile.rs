// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that send malformed requests, too much, or nothing: each gets an error or loses its
//! connection, and other clients are served as before.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::client::{Answer, Client, greet, option_reply, send_option};
use e2e::stamp::{Random, Stamps, Written};
use e2e::test_bed::TestBed;
use nbd::request::Request;
use nbd::wire::{cmd, opt, rep};

const MIB: u64 = 1 << 20;
const OPTION_BYTES_TOO_MANY: u32 = 0x7fff_ffff;

/// Reads until the server closes the connection. An error in time is as good as an end.
fn until_closed(stream: &mut UnixStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let end = io::copy(stream, &mut io::sink());
    let timed_out = |e: &io::Error| e.kind() == io::ErrorKind::WouldBlock;
    assert!(!end.is_err_and(|e| timed_out(&e)), "the server did not close the connection");
}

fn raw(bed: &TestBed) -> UnixStream {
    UnixStream::connect(bed.daemon().socket()).unwrap()
}

/// A request that must be refused while the connection lives on, or that ends the connection.
fn refused_or_cut_off(client: &mut Client, request: Request, data: &[u8]) {
    let sent = client.send(request, data);
    match sent.and_then(|()| client.receive()) {
        Ok(Answer { error, .. }) => {
            assert_ne!(error, 0, "{request:?}");
            client.read(0, &mut [0; 4096]).unwrap();
        }
        Err(e) => assert_ne!(e.kind(), io::ErrorKind::WouldBlock, "no answer to {request:?}"),
    }
}

fn garbage_instead_of_a_handshake(bed: &TestBed) {
    let mut random = Random::new(1);
    for _ in 0..20 {
        let mut stream = raw(bed);
        let garbage: Vec<u8> = (0..4000).map(|_| random.below(256) as u8).collect();
        let _ = stream.write_all(&garbage); // it may be cut off at once
        until_closed(&mut stream);
    }
    let mut stream = raw(bed);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bed\r\n\r\n").unwrap();
    until_closed(&mut stream);
}

fn options_that_lie(bed: &TestBed) {
    // Unknown ones are answered.
    let mut stream = greet(&bed.daemon().socket()).unwrap();
    send_option(&mut stream, 4711, b"what?").unwrap();
    assert_eq!(option_reply(&mut stream).unwrap().0, rep::ERR_UNSUP);
    // A name longer than its option.
    let mut go = 5000_u32.to_be_bytes().to_vec();
    go.extend_from_slice(b"wc\0\0");
    send_option(&mut stream, opt::GO, &go).unwrap();
    assert_eq!(option_reply(&mut stream).unwrap().0, rep::ERR_INVALID);
    // A length that nobody means, and then nothing.
    let mut head = nbd::wire::OPTION_MAGIC.to_be_bytes().to_vec();
    head.extend(opt::GO.to_be_bytes());
    head.extend(OPTION_BYTES_TOO_MANY.to_be_bytes());
    stream.write_all(&head).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    until_closed(&mut stream);
}

fn requests_that_lie(bed: &TestBed) {
    let request = |kind, offset, len| Request { flags: 0, kind, cookie: 9, offset, len };
    for (request, data) in [
        (request(cmd::READ, 0, 33 << 20), 0),
        (request(cmd::READ, 0, u32::MAX), 0),
        (request(cmd::READ, 16 * MIB, 4096), 0),
        (request(cmd::READ, u64::MAX - 4095, 4096), 0),
        (request(cmd::READ, 1, 4096), 0),
        (request(cmd::WRITE, 16 * MIB, 4096), 4096),
        (request(cmd::WRITE, 0, 33 << 20), 33 << 20),
        (request(cmd::TRIM, 0, u32::MAX), 0),
        (request(cmd::BLOCK_STATUS, 0, 4096), 0), // nothing was negotiated
        (request(99, 0, 0), 0),
        (Request { flags: 0xfff0, ..request(cmd::READ, 0, 4096) }, 0),
    ] {
        refused_or_cut_off(&mut bed.connect("wc"), request, &vec![1; data]);
    }
    // A request without its magic.
    let mut client = bed.connect("wc");
    client.stream().write_all(&[0xff; 28]).unwrap();
    until_closed(client.stream());
}

fn connections_that_break(bed: &TestBed) {
    // In the middle of a write's data.
    let mut client = bed.connect("wc");
    let long = Request { flags: 0, kind: cmd::WRITE, cookie: 1, offset: 0, len: 8 << 20 };
    client.send(long, &[1; 10_000]).unwrap();
    drop(client);
    // With many answers due that nobody reads.
    let mut client = bed.connect("wc");
    let read = Request { flags: 0, kind: cmd::READ, cookie: 1, offset: 0, len: 1 << 20 };
    for _ in 0..100 {
        client.send(read, &[]).unwrap();
    }
    drop(client);
    // Half closed: what was asked before is answered, then it ends.
    let mut client = bed.connect("wc");
    let read = Request { len: 4096, ..read };
    client.send(read, &[]).unwrap();
    client.stream().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.receive().unwrap(), Answer { cookie: 1, error: 0 });
    client.stream().read_exact(&mut [0; 4096]).unwrap();
    until_closed(client.stream());
}

#[test]
fn bad_clients_are_refused_and_a_good_one_is_not_disturbed() {
    let bed = TestBed::with_cache(16 * MIB, 8 * MIB, "");
    let mut stamps = Stamps::new(2560..4096, 1);
    let mut good = bed.connect("wc");
    stamps.lay(&mut good).unwrap();
    let mut written = Written::default();
    let bad_is_over = AtomicBool::new(false);
    // Somebody who connects and says nothing, all the time.
    let silent: Vec<UnixStream> = (0..20).map(|_| raw(&bed)).collect();
    let over = || bad_is_over.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| stamps.write(&mut good, &mut written, |w| over() && w.writes > 500));
        for bad in [
            garbage_instead_of_a_handshake,
            options_that_lie,
            requests_that_lie,
            connections_that_break,
        ] {
            let panicked = catch_unwind(AssertUnwindSafe(|| bad(&bed))).err();
            if let Some(panic) = panicked {
                bad_is_over.store(true, Ordering::SeqCst);
                resume_unwind(panic);
            }
        }
        bad_is_over.store(true, Ordering::SeqCst);
        writer.join().unwrap().unwrap();
    });
    drop(silent);
    stamps.all_durable();
    let found = stamps.check(|at, data| good.read(at, data)).unwrap();
    assert_eq!(found.older, 0, "{found:?}");
    assert!(bed.daemon().is_running());
    assert_eq!(bed.attribute("wc", "error"), 0);
}
