// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection does: handshake, session, end.
//!
//! ```text
//!  run ─▶ handshake ─▶ receive loop ─────────▶ all requests answered ─▶ close
//!              │     │    ▲ waits while the budget is used up
//!              │     │    ├ ends at DISC, end of stream, nonsense, drain
//!              │     │    └ ends and begins again at a pause of the server (`park`)
//!              │     └─▶ on another core:  receive loop ─▶ ... ─▶ close ─▶ close here
//!              └ deadline
//! ```
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use block::{Buf, Error, OpenDevice, Status};
use reactor::{CoreLocal, SqeOp, call, core_id, driver_io, new_opener, spawn};

use crate::conn::Conn;
use crate::deadlines;
use crate::export::{Export, Exports, Place, PlacedExport};
use crate::figures::Counters;
use crate::handshake::{Handshake, Session, Step};
use crate::option::HEADER_BYTES;
use crate::park;
use crate::peer::ListenerRules;
use crate::receive::Receiver;
use crate::remote::{OtherCore, RemoteConnection};
use crate::send;
use crate::server::take_place;
use crate::shared::{Options, Shared};
use crate::unread::Unread;
use crate::wire::OPTION_BYTES_MAX;

/// Initial size of a handshake's buffer; most handshakes need no more.
const HANDSHAKE_BYTES: usize = 4096;
/// Replies of a handshake are sent at this length: bounds the memory that a client can claim.
const HANDSHAKE_OUT_BYTES: usize = 64 << 10;

thread_local! {
    /// What the sessions share that this core serves for another one. Made for the first.
    static SHARED: RefCell<Option<Rc<Shared>>> = const { RefCell::new(None) };
}

fn shared_of_this_core(options: Options) -> Rc<Shared> {
    SHARED.with_borrow_mut(|shared| {
        let new = || {
            let shared = Rc::new(Shared::new(Rc::new(NoExports), options));
            spawn(deadlines::watch(shared.clone()));
            shared
        };
        shared.get_or_insert_with(new).clone()
    })
}

/// The core of this thread is ending, and serves no session for another one any more.
pub fn end_sessions_of_this_core() {
    drop(SHARED.take());
}

/// Nobody does a handshake here.
struct NoExports;

impl Exports for NoExports {
    fn list(&self) -> Vec<String> {
        Vec::new()
    }

    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        Err(Error::not_found(format!("{name}: there are sessions only")))
    }
}

/// Runs a connection from the handshake to the close.
pub(crate) async fn run(conn: Rc<Conn>) {
    if let Some((session, bytes)) = handshake(&conn).await {
        run_session(&conn, session, Unread { bytes, refused: None }).await;
    }
    close(&conn).await;
}

/// Runs a connection whose session another server has paused.
pub(crate) async fn run_adopted(conn: Rc<Conn>, session: Session, unread: Unread) {
    run_session(&conn, session, unread).await;
    close(&conn).await;
}

async fn run_session(conn: &Rc<Conn>, session: Session, unread: Unread) {
    let name = session.export.name();
    let unreported = &conn.shared.unreported;
    // NB-U4
    if unreported.borrow_mut().remove(&name) {
        conn.pause.flush_failed.set(true);
    }
    match session.export.place(conn.file()) {
        Some(place) => serve_elsewhere(conn, session, unread, place).await,
        None => serve(conn, session, unread).await,
    }
    if conn.pause.flush_failed.get() {
        unreported.borrow_mut().insert(name);
    }
}

/// Serves a session until all its requests are answered. `unread` is what has come of them.
async fn serve(conn: &Rc<Conn>, mut session: Session, mut unread: Unread) {
    // Each connection is an opener of its own, by which devices below distinguish writers.
    session.device_fua = Rc::new(OpenDevice::new(session.device.clone(), new_opener()));
    session.device = Rc::new(OpenDevice::new(session.device, new_opener()));
    conn.end_handshake();
    conn.set_session(session);
    spawn(send::run(conn.clone()));
    while let Some(rest) = Receiver::new(conn.clone(), unread).run().await {
        match park::park(conn, rest).await {
            Some(rest) => unread = rest,
            None => break,
        }
    }
    conn.set_deadline();
    // NB-N3
    conn.room.wait_for(|| conn.in_flight() == 0 && conn.pause.flushes.get() == 0).await;
}

/// Closes a connection without requests.
async fn close(conn: &Conn) {
    let is_silent = conn.dead.get() || conn.pause.abandoned.get();
    if let Some(tls) = conn.tls().filter(|_| !is_silent) {
        // NB-T2: all replies have left.
        Box::pin(tls.send_end(async |op| conn.io(op).await)).await;
    }
    // NB-N4: from here on nothing is started on the socket; wait for what is in flight on it.
    conn.clear_deadline();
    conn.ended.set(true);
    conn.ready.wake_all();
    conn.room.wait_for(|| conn.ops.get() == 0).await;
    let _ = driver_io(conn.file(), SqeOp::Close).await;
    conn.closed.set(true);
    conn.room.wake_all();
}

async fn send_bytes(conn: &Conn, out: &mut Vec<u8>) -> bool {
    if out.is_empty() {
        return true;
    }
    let bufs = Buf::copy_of(out).into();
    out.clear();
    conn.send_all(bufs).await == Status::Ok
}

/// Runs the handshake: returns the session, and the bytes received after the handshake.
async fn handshake(conn: &Conn) -> Option<(Session, Vec<u8>)> {
    let mut handshake = match conn.rules.tls {
        Some(_) => Handshake::with_tls(),
        None => Handshake::new(),
    };
    let mut out = Handshake::greeting().to_vec();
    if !send_bytes(conn, &mut out).await {
        return None;
    }
    let mut buf = Buf::alloc(HANDSHAKE_BYTES);
    let (mut start, mut end) = (0, 0);
    loop {
        let exports = &*conn.shared.exports;
        match buf.read(|b| handshake.step(&b[start..end], exports, &mut out)) {
            Step::Consumed(n) => {
                start += n;
                if out.len() >= HANDSHAKE_OUT_BYTES && !send_bytes(conn, &mut out).await {
                    return None;
                }
            }
            Step::Ready(n, session) => {
                if !take_place(conn).await {
                    return None;
                }
                let sent = send_bytes(conn, &mut out).await;
                session.export.begin();
                return sent.then(|| (session, buf.read(|b| b[start + n..end].to_vec())));
            }
            Step::StartTls(n) => {
                if start + n != end || !send_bytes(conn, &mut out).await {
                    return None; // NB-T3
                }
                (start, end) = (0, 0);
                if !conn.start_tls().await || conn.draining.get() {
                    return None;
                }
            }
            Step::End => {
                send_bytes(conn, &mut out).await;
                return None;
            }
            Step::More(total) => {
                if !send_bytes(conn, &mut out).await {
                    return None;
                }
                assert!(total <= HEADER_BYTES + OPTION_BYTES_MAX, "the option's length is checked");
                if total > buf.len() {
                    let rest = buf.read(|b| b[start..end].to_vec());
                    buf = Buf::alloc(total);
                    buf.write(|b| b[..rest.len()].copy_from_slice(&rest));
                } else if start > 0 {
                    buf.write(|b| b.copy_within(start..end, 0));
                }
                (start, end) = (0, end - start);
                let result = conn.recv(buf.slice(end..buf.len())).await;
                if result.status != Status::Ok || result.value == 0 || conn.draining.get() {
                    return None;
                }
                end += result.value as usize;
            }
        }
    }
}

/// Has another core serve the session; returns when it has ended there. `unread` is what has come
/// of its requests.
async fn serve_elsewhere(conn: &Rc<Conn>, session: Session, unread: Unread, place: Place) {
    let Place { core, begin } = place;
    let (terms, tls) = (session.terms.clone(), conn.take_tls());
    let (figures, peer) = (conn.figures.clone(), conn.peer());
    let options = conn.shared.options.clone();
    let home = RemoteConnection { core: core_id(), conn: CoreLocal::keep(conn.clone()) };
    let flush_failed = conn.pause.flush_failed.get();
    conn.end_handshake();
    conn.set_session(session);
    let begun = call(core, move || async move {
        let PlacedExport { socket, export } = begin();
        let (rules, shared) = (ListenerRules { peer, tls: None }, shared_of_this_core(options));
        let conn = Rc::new(Conn::with_figures(shared.clone(), socket, rules, figures));
        conn.other.set(Some(OtherCore::Accepted(home)));
        conn.pause.flush_failed.set(flush_failed);
        if let Some(tls) = tls {
            conn.set_tls(tls);
        }
        let session = terms.with(export);
        let name = CoreLocal::keep(conn.clone());
        let counters = shared.counters.clone();
        let slot = shared.conns.borrow_mut().insert(conn.clone());
        spawn(async move {
            serve(&conn, session, unread).await;
            close(&conn).await;
            shared.conns.borrow_mut().remove(slot);
            shared.changed.wake_all();
        });
        (name, counters)
    });
    let (name, counters): (CoreLocal, Arc<Counters>) = begun.await;
    conn.shared.away_counters.borrow_mut().insert(core, counters);
    let remote = RemoteConnection { core, conn: name };
    conn.other.set(Some(OtherCore::Serves(remote)));
    if conn.dead.get() {
        remote.post(|conn| spawn(conn.cut_off()));
    } else if conn.draining.get() {
        remote.post(Conn::drain);
    }
    if conn.pause.is_pausing() {
        let number = conn.pause.number.get();
        remote.post(move |conn| conn.pause(number));
    }
    let flush_failed = call(core, move || async move {
        let conn = name.get::<Conn>();
        if let Some(conn) = &conn {
            conn.room.wait_for(|| conn.closed.get()).await;
        }
        name.release();
        conn.is_some_and(|conn| conn.pause.flush_failed.get())
    });
    conn.pause.flush_failed.set(flush_failed.await);
    home.conn.release();
}
