// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pauses of a server, one case each: what is kept, what ends, what fails, and what the server that
//! adopts a session goes on with.

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Client, Disk, Net, SingleExport, with_server};
use block::{Buf, Limits, Nanos, Sector, Status};
use nbd::request::Request;
use nbd::wire::{CommandFlags, cmd};
use nbd::{Exports, Options, Paused, PausedSession, Peer, Server, ServerFault};
use reactor::{FileId, SqeOp, driver_io, now, sleep, spawn};

const MS: Nanos = Nanos::from_millis(1);
const SECOND: Nanos = Nanos::from_secs(1);
const EIO: u32 = 5;

fn disk() -> Rc<Disk> {
    Disk::new(64 << 11, MS)
}

/// The other process, over the same disk.
async fn hand_over(net: &Net, old: &Server, paused: Paused, disk: &Rc<Disk>) -> Server {
    let exports = SingleExport::new(disk);
    let server = Server::new(Rc::new(SingleExport::new(disk)), Options::default());
    for session in paused.sessions {
        let session = PausedSession { socket: net.share(session.socket), ..session };
        server.adopt(session, exports.open("disk").unwrap()).unwrap();
    }
    for listener in paused.listeners {
        server.serve(net.share(listener.socket), listener.peer);
    }
    old.abandon().await;
    server
}

async fn go_on(
    by: Continuation,
    net: &Net,
    old: &Server,
    paused: Paused,
    disk: &Rc<Disk>,
) -> Server {
    match by {
        Continuation::Same => {
            old.resume();
            old.clone()
        }
        Continuation::Other => hand_over(net, old, paused, disk).await,
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Continuation {
    /// The same server is resumed.
    Same,
    /// Another one adopts the sessions.
    Other,
}

const CONTINUATIONS: [Continuation; 2] = [Continuation::Same, Continuation::Other];

/// Runs a test with a server of `disk`, which ends with the core.
fn run<F: Future<Output = ()> + 'static>(
    disk: Rc<Disk>,
    test: impl FnOnce(Net, FileId, Server, Rc<Disk>) -> F,
) {
    let export = SingleExport::new(&disk);
    with_server(
        1,
        Options::default(),
        || export,
        |net, listener, server| test(net, listener, server, disk),
    );
}

async fn session(net: &Net, listener: FileId) -> Client {
    let mut c = net.connect(listener);
    c.go(true).await;
    c
}

fn write_of(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    let mut bytes = Request { flags: 0, kind: cmd::WRITE, cookie, offset, len }.encode().to_vec();
    bytes.extend_from_slice(data);
    bytes
}

/// A WRITE that is cut anywhere, behind another request: nothing of it is done in the pause, and it
/// is done after it.
#[test]
fn the_part_of_a_request_that_has_come_is_kept() {
    for (by, len, cut) in CONTINUATIONS.into_iter().flat_map(|by| {
        [(4096, 0), (4096, 10), (4096, 28), (4096, 1000), (1 << 20, 700_000), (32 << 20, 20 << 20)]
            .map(|(len, cut)| (by, len, cut))
    }) {
        run(disk(), |net, listener, server, there| async move {
            let mut c = session(&net, listener).await;
            assert_eq!(c.write(0, 0, &vec![1; 4096]).await, 0);
            let write = write_of(7, 0, &vec![2; len]);
            assert!(cut == 0 || c.send(&write[..cut]).await);
            sleep(MS).await;
            let paused = server.pause(SECOND).await.unwrap();
            let [only] = &paused.sessions[..] else { panic!("{paused:?}") };
            assert!(only.unread == write[..cut], "{by:?} {len} {cut}");
            let more = write[cut..].to_vec();
            let ended = Rc::new(Cell::new(false));
            let (set, file) = (ended.clone(), c.file);
            spawn(async move {
                let bufs = Buf::copy_of(&more).into();
                assert_eq!(driver_io(file, SqeOp::Send { bufs }).await.status, Status::Ok);
                set.set(true);
            });
            sleep(SECOND).await;
            assert!(there.data.borrow()[..4096].iter().all(|b| *b == 1), "{by:?} {len} {cut}");
            assert_eq!((there.started.get(), there.finished.get()), (2, 2), "a WRITE and a FLUSH");
            let server = go_on(by, &net, &server, paused, &there).await;
            assert_eq!(c.reply(|_| 0).await.1, 0);
            assert!(ended.get());
            assert!(there.data.borrow()[..len].iter().all(|b| *b == 2));
            let [only] = &server.connections()[..] else { panic!() };
            assert_eq!((only.id, only.requests, only.write_bytes), (1, 2, 4096 + len as u64));
            // Another pause, and nothing is left of this one.
            let paused = server.pause(SECOND).await.unwrap();
            assert!(paused.sessions[0].unread.is_empty());
            server.resume();
            assert_eq!(c.ask(cmd::READ, 0, 0, 4096).await, (0, vec![2; 4096]));
        });
    }
}

#[test]
fn a_part_that_is_executed_is_found() {
    run(disk(), |net, _, _, there| async move {
        let listener = net.listen();
        let exports = Rc::new(SingleExport::new(&there));
        let fault = Some(ServerFault::ExecutePart);
        let server = Server::new_planted(exports, Options::default(), fault);
        server.serve(listener, Peer::Local);
        let mut c = session(&net, listener).await;
        assert_eq!(c.write(0, 0, &[1; 4096]).await, 0);
        assert!(c.send(&write_of(7, 0, &[2; 4096])[..2000]).await);
        sleep(MS).await;
        server.pause(SECOND).await.unwrap();
        sleep(SECOND).await;
        assert!(there.data.borrow()[..1000].contains(&2));
        server.resume();
    });
}

/// Data of a WRITE that was refused are dropped as they come, and it stays refused whatever the
/// export allows after the pause.
#[test]
fn a_refused_write_stays_refused_over_a_pause() {
    for by in CONTINUATIONS {
        let disk = disk();
        let there = disk.clone();
        let export = SingleExport { read_only: true, ..SingleExport::new(&disk) };
        with_server(
            1,
            Options::default(),
            || export,
            |net, listener, server| async move {
                let mut c = session(&net, listener).await;
                let write = write_of(7, 0, &vec![2; 300_000]);
                assert!(c.send(&write[..5000]).await);
                sleep(MS).await;
                let paused = server.pause(SECOND).await.unwrap();
                let refused = paused.sessions[0].refused.unwrap();
                assert_eq!((refused.cookie, refused.left), (7, 300_028 - 5000));
                assert_eq!(paused.sessions[0].requests, 0);
                let server = go_on(by, &net, &server, paused, &there).await;
                assert!(c.send(&write[5000..]).await);
                let (cookie, error, _) = c.reply(|_| 0).await;
                assert_eq!((cookie, error), (7, 1), "EPERM");
                assert_eq!(c.ask(cmd::READ, 0, 0, 4096).await, (0, vec![0; 4096]));
                assert_eq!(server.connections()[0].errors, 1);
            },
        );
    }
}

#[test]
fn what_has_begun_is_answered_before_the_pause() {
    for by in CONTINUATIONS {
        run(Disk::new(64 << 11, SECOND), |net, listener, server, there| async move {
            let mut c = session(&net, listener).await;
            for cookie in 0..10 {
                c.request(cmd::READ, 0, cookie, cookie * 4096, 4096).await;
            }
            sleep(MS).await;
            let begun = now();
            let paused = server.pause(SECOND + SECOND + SECOND).await.unwrap();
            assert!(now() - begun < SECOND + SECOND + MS, "one for the reads, one for the FLUSH");
            assert_eq!(paused.sessions[0].requests, 10);
            let mut seen = [false; 10];
            for _ in 0..10 {
                let (cookie, error, data) = c.reply(|_| 4096).await;
                assert_eq!((error, data.len()), (0, 4096));
                assert!(!std::mem::replace(&mut seen[cookie as usize], true), "{cookie} twice");
            }
            // Sent during the pause.
            c.request(cmd::READ, 0, 99, 0, 4096).await;
            sleep(SECOND).await;
            assert_eq!(there.started.get(), 11, "the FLUSH is the last");
            go_on(by, &net, &server, paused, &there).await;
            assert_eq!(c.reply(|_| 4096).await.0, 99);
        });
    }
}

/// A suspended device, or a disk that hangs.
#[test]
fn a_device_that_does_not_answer_fails_the_pause() {
    run(Disk::new(2048, Nanos::from_secs(100)), |net, listener, server, _| async move {
        let mut busy = session(&net, listener).await;
        let mut idle = session(&net, listener).await;
        busy.request(cmd::READ, 0, 1, 0, 4096).await;
        sleep(MS).await;
        let begun = now();
        let error = server.pause(SECOND).await.unwrap_err();
        assert!(now() - begun < SECOND + MS);
        // An idle session waits for its FLUSH.
        let text = "requests of NBD clients have not ended within 1 s: disk: 1 of client 1, \
                    disk: 1 of client 2";
        assert_eq!(error.to_string(), text);
        idle.request(cmd::READ, 0, 2, 0, 4096).await;
        assert_eq!(busy.reply(|_| 4096).await.0, 1);
        assert_eq!(idle.reply(|_| 4096).await.0, 2);
        let mut newcomer = session(&net, listener).await;
        assert_eq!(newcomer.ask(cmd::READ, 0, 0, 512).await.0, 0);
        // With time enough it works.
        let paused = server.pause(Nanos::from_secs(300)).await.unwrap();
        assert_eq!(paused.sessions.len(), 3);
        let again = server.pause(SECOND).await.unwrap_err();
        assert_eq!(again.to_string(), "the NBD server is paused or ends");
        server.resume();
        assert_eq!(busy.ask(cmd::READ, 0, 0, 512).await.0, 0);
    });
}

#[test]
fn a_client_that_takes_no_replies_does_not_hold_a_pause_up() {
    run(disk(), |net, listener, server, _| async move {
        let mut stalled = session(&net, listener).await;
        for cookie in 0..8 {
            stalled.request(cmd::READ, 0, cookie, 0, 1 << 20).await;
        }
        let mut good = session(&net, listener).await;
        sleep(SECOND).await;
        let begun = now();
        // All others wait no longer for it than a second, however long the pause may take.
        let paused = server.pause(Nanos::from_secs(30)).await.unwrap();
        assert!(now() - begun <= Nanos::from_millis(1100), "{:?}", now() - begun);
        assert_eq!(paused.sessions.iter().map(|s| s.id).collect::<Vec<_>>(), [2]);
        stalled.drain().await;
        server.resume();
        assert_eq!(good.ask(cmd::READ, 0, 0, 512).await.0, 0);
        assert_eq!((server.stats().connections, server.stats().stalled_total), (1, 1));
    });
}

#[test]
fn a_handshake_ends_within_a_pause_or_is_closed() {
    run(disk(), |net, listener, server, there| async move {
        let mut silent = net.connect(listener);
        silent.greet().await;
        let mut slow = net.connect(listener);
        slow.greet().await;
        let handshake = spawn_go(slow);
        let begun = now();
        let paused = server.pause(SECOND).await.unwrap();
        assert!((Nanos::from_millis(250)..Nanos::from_millis(300)).contains(&(now() - begun)));
        assert_eq!(paused.sessions.iter().map(|s| s.id).collect::<Vec<_>>(), [2]);
        assert!(silent.at_end().await);
        // One that connects now is accepted after the pause.
        let late = net.connect(listener);
        sleep(SECOND).await;
        assert_eq!(server.stats().connections_total, 2);
        let server = hand_over(&net, &server, paused, &there).await;
        let mut late = late;
        late.go(false).await;
        assert_eq!(late.ask(cmd::READ, 0, 0, 512).await.0, 0);
        let ids: Vec<u64> = server.connections().iter().map(|c| c.id).collect();
        assert_eq!(ids, [2, 3]);
        let mut slow = handshake.take().unwrap();
        assert_eq!(slow.ask(cmd::READ, 0, 0, 512).await.0, 0);
    });
}

/// Sends the rest of a handshake in a moment, and puts the client there.
fn spawn_go(mut c: Client) -> Rc<Cell<Option<Client>>> {
    let done = Rc::new(Cell::new(None));
    let put = done.clone();
    spawn(async move {
        sleep(Nanos::from_millis(100)).await;
        c.option(nbd::wire::opt::GO, &[0, 0, 0, 0, 0, 0]).await;
        while c.option_reply().await.0 != nbd::wire::rep::ACK {}
        put.set(Some(c));
    });
    done
}

/// An acknowledged write is lost in the FLUSH of a pause: the client's next FLUSH must fail, and
/// one only.
#[test]
fn a_failed_flush_of_a_pause_is_reported_once() {
    for by in CONTINUATIONS {
        run(disk(), |net, listener, server, there| async move {
            let mut writer = session(&net, listener).await;
            assert_eq!(writer.write(0, 0, &[1; 4096]).await, 0);
            there.failing_flushes.set(1);
            let paused = server.pause(SECOND).await.unwrap();
            assert_eq!(there.flushes.get(), 1);
            assert!(paused.sessions[0].has_lost_writes);
            let server = go_on(by, &net, &server, paused, &there).await;
            // It is kept over another pause.
            let paused = server.pause(SECOND).await.unwrap();
            assert!(paused.sessions[0].has_lost_writes);
            server.resume();
            assert_eq!(writer.write(CommandFlags::FUA.bits(), 0, &[1; 512]).await, 0);
            // All that are sent before the first answer.
            for cookie in [1, 2] {
                writer.request(cmd::FLUSH, 0, cookie, 0, 0).await;
            }
            for _ in [1, 2] {
                assert_eq!(writer.reply(|_| 0).await.1, EIO, "{by:?}");
            }
            assert_eq!(writer.ask(cmd::FLUSH, 0, 0, 0).await.0, 0);
            let paused = server.pause(SECOND).await.unwrap();
            assert!(!paused.sessions[0].has_lost_writes);
            server.resume();
        });
    }
}

#[test]
fn a_forgotten_failure_is_found() {
    run(disk(), |net, _, _, there| async move {
        let listener = net.listen();
        let exports = Rc::new(SingleExport::new(&there));
        let fault = Some(ServerFault::ForgetFlushFailure);
        let server = Server::new_planted(exports, Options::default(), fault);
        server.serve(listener, Peer::Local);
        let mut c = session(&net, listener).await;
        assert_eq!(c.write(0, 0, &[1; 4096]).await, 0);
        there.failing_flushes.set(1);
        server.pause(SECOND).await.unwrap();
        server.resume();
        assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0).await.0, 0, "the test above finds it");
    });
}

/// Who has lost a write goes before it hears of it, and connects again: as at a device, the next
/// one hears.
#[test]
fn the_next_session_hears_of_a_failure_that_nobody_heard() {
    for by in CONTINUATIONS {
        run(disk(), |net, listener, server, there| async move {
            let mut writer = session(&net, listener).await;
            assert_eq!(writer.write(0, 0, &[1; 4096]).await, 0);
            there.failing_flushes.set(1);
            server.pause(SECOND).await.unwrap();
            server.resume();
            writer.close().await;
            sleep(MS).await;
            let paused = server.pause(SECOND).await.unwrap();
            assert_eq!(paused.lost_writes, ["disk"]);
            let lost = paused.lost_writes.clone();
            let server = go_on(by, &net, &server, paused, &there).await;
            if by == Continuation::Other {
                lost.into_iter().for_each(|export| server.note_lost_writes(export));
            }
            let mut first = session(&net, listener).await;
            let mut second = session(&net, listener).await;
            assert_eq!(first.ask(cmd::FLUSH, 0, 0, 0).await.0, EIO);
            assert_eq!(first.ask(cmd::FLUSH, 0, 0, 0).await.0, 0);
            assert_eq!(second.ask(cmd::FLUSH, 0, 0, 0).await.0, 0);
        });
    }
}

const BYTES: u64 = 1 << 20;

fn limits() -> Limits {
    Limits::new(Sector::from_bytes(BYTES))
}

/// What the other process has in the place of an export of [`limits`] with a context of dirty data,
/// and why a session can't go on by it; empty: it can.
fn other_export(nth: usize) -> (SingleExport, &'static str) {
    let of = |limits: Limits| SingleExport {
        dirty: Some(Vec::new()),
        ..SingleExport::new(&Disk::with(limits, MS))
    };
    let size = |bytes| Limits::new(Sector::from_bytes(bytes));
    match nth {
        0 => (of(size(BYTES - 4096)), "its size was 1048576 bytes and is 1044480"),
        1 => {
            let limits = Limits { logical_block_bytes: 4096, ..limits() };
            (of(limits), "its blocks were of 512 bytes and are of 4096")
        }
        2 => {
            let limits = Limits { keeps: false, ..limits() };
            (of(limits), "a FLUSH makes nothing durable any more")
        }
        3 => (SingleExport { read_only: true, ..of(limits()) }, "it is read-only now"),
        4 => (SingleExport { dirty: None, ..of(limits()) }, "it has no `millpond:dirty` any more"),
        _ => (of(size(BYTES + 4096)), ""),
    }
}

#[test]
fn a_promise_that_can_not_be_kept_ends_the_session() {
    for nth in 0..6 {
        let before = || SingleExport {
            dirty: Some(Vec::new()),
            ..SingleExport::new(&Disk::with(limits(), MS))
        };
        with_server(1, Options::default(), before, move |net, listener, server| async move {
            let mut c = session(&net, listener).await;
            assert_eq!(c.write(0, 0, &[1; 512]).await, 0);
            let paused = server.pause(SECOND).await.unwrap();
            let [only] = &paused.sessions[..] else { panic!() };
            let next = Server::new(Rc::new(SingleExport::new(&disk())), Options::default());
            let only = PausedSession { socket: net.share(only.socket), ..only.clone() };
            let (export, why) = other_export(nth);
            let adopted = next.adopt(only, export.open("disk").unwrap());
            server.abandon().await;
            if why.is_empty() {
                adopted.unwrap();
                assert_eq!(c.write(0, BYTES - 512, &[1; 512]).await, 0);
                assert_eq!(c.write(0, BYTES, &[1; 512]).await, 28, "its size is the old one");
            } else {
                let error = adopted.unwrap_err().to_string();
                let head = "disk: the session of NBD client 1 can't go on, and its connection is";
                assert_eq!(error, format!("{head} closed: {why}"));
                assert!(c.at_end().await);
            }
        });
    }
}

#[test]
fn a_shutdown_and_a_disconnect_end_what_is_paused() {
    run(disk(), |net, listener, server, _| async move {
        let mut first = session(&net, listener).await;
        let mut second = session(&net, listener).await;
        server.pause(SECOND).await.unwrap();
        assert!(server.disconnect(1));
        assert!(first.at_end().await);
        assert_eq!(server.connections().len(), 1);
        server.shutdown().await;
        assert!(second.at_end().await);
        assert!(!net.is_open(listener));
    });
}
