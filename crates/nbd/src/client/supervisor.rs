// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The supervisor: connects and reconnects, fails requests that have waited too long, and
//! disconnects.
use std::cell::Cell;
use std::rc::Rc;

use block::{Buf, Error, Nanos, Status};
use policy::{BACKOFF_FIRST_NS, backoff_ns};
use reactor::{FileId, SqeOp, driver_io, now, sleep, spawn};

use crate::client::device::ClientState;
use crate::client::export_info::ExportInfo;
use crate::client::handshake::{ClientHandshake, HandshakeStep};
use crate::client::link::Connection;
use crate::client::{Connect, LinkEvent};
use crate::tls::TlsClient;
use crate::wire::OPTION_BYTES_MAX;

/// Time for a handshake, unless `timeout` is shorter.
const HANDSHAKE_TIME: Nanos = Nanos::from_secs(10);
/// Time for a server to close a connection after our disconnect request.
const DISCONNECT_TIME: Nanos = Nanos::from_secs(2);
/// How often a back-off checks whether it must end early.
const BACK_OFF_STEP: Nanos = Nanos::from_millis(200);
/// Lost connections at a time that the server has not closed; each holds a buffer and a socket.
/// Before a further one is made, the oldest is shut down, and its end at the server stays unknown.
const CLOSING_LINKS_MAX: usize = 4;
/// Initial size of a handshake's buffer.
const HANDSHAKE_BYTES: usize = 4096;

pub(crate) async fn close(file: FileId) {
    let _ = driver_io(file, SqeOp::Close).await;
}

/// The timer of a handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timer {
    Running,
    Expired,
    Stopped,
}

/// Connects and negotiates; returns the connection, and the server's information about the export.
pub(crate) async fn dial(
    connect: &Rc<dyn Connect>,
    export: &str,
    timeout: Nanos,
) -> Result<(Connection, ExportInfo), Error> {
    let file = connect.connect().await?;
    let time = timeout.min(HANDSHAKE_TIME);
    let over = Rc::new(Cell::new(Timer::Running));
    let late = over.clone();
    spawn(async move {
        sleep(time).await;
        if late.get() == Timer::Running {
            late.set(Timer::Expired);
            let _ = driver_io(file, SqeOp::Shutdown).await;
        }
    });
    let tls = connect.tls();
    let mut handshake = match tls {
        Some(_) => ClientHandshake::with_tls(export),
        None => ClientHandshake::new(export),
    };
    let mut connection = Connection { file, tls: None };
    let agreed = run_handshake(&mut connection, &mut handshake, tls.as_ref()).await;
    let agreed = match over.replace(Timer::Stopped) {
        // The socket is being shut down, whatever the result.
        Timer::Expired => {
            let (s, what) = (time.0 as f64 / 1e9, handshake.awaited());
            Err(Error::io(format!("the server said nothing within {s} s: waited for {what}")))
        }
        Timer::Running | Timer::Stopped => agreed,
    };
    match agreed {
        Ok(export_info) => Ok((connection, export_info)),
        Err(e) => {
            close(file).await;
            // The server's refusal of a certificate comes after the handshake.
            let e = connection.failure().map_or(e, Error::io);
            Err(e.within(connect.peer()))
        }
    }
}

async fn run_handshake(
    connection: &mut Connection,
    handshake: &mut ClientHandshake,
    tls: Option<&TlsClient>,
) -> Result<ExportInfo, Error> {
    let file = connection.file;
    let io = async |op| driver_io(file, op).await;
    let ended = || Error::io("the server ended the connection during the handshake");
    let mut out = Vec::new();
    let mut buf = Buf::alloc(HANDSHAKE_BYTES);
    let (mut start, mut end) = (0, 0);
    loop {
        let said = buf.read(|b| handshake.step(&b[start..end], &mut out));
        let said = said.map_err(|refused| Error::new(refused.kind, refused.why))?;
        if !out.is_empty() {
            let bufs = Buf::copy_of(&out).into();
            out.clear();
            if connection.send(bufs, &io).await != Status::Ok {
                return Err(ended());
            }
        }
        match said {
            HandshakeStep::Consumed(n) => start += n,
            HandshakeStep::StartTls(n) => {
                if start + n != end {
                    return Err(Error::io("the server answers before it is asked")); // NB-T3
                }
                let tls = tls.expect("asked for TLS only with certificates");
                let made = Box::pin(tls.connect(&io)).await;
                connection.tls = Some(made.map_err(|why| Error::io(format!("TLS: {why}")))?);
                handshake.go_on_by_tls(&mut out);
                (start, end) = (0, 0);
            }
            HandshakeStep::Ready(n, export_info) if start + n == end => return Ok(export_info),
            HandshakeStep::Ready(..) => {
                return Err(Error::io("the server answers before it is asked"));
            }
            HandshakeStep::More(total) => {
                // NB-C2
                assert!(total <= OPTION_BYTES_MAX + HANDSHAKE_BYTES, "bounded by the handshake");
                if total > buf.len() {
                    let rest = buf.read(|b| b[start..end].to_vec());
                    buf = Buf::alloc(total);
                    buf.write(|b| b[..rest.len()].copy_from_slice(&rest));
                } else if start > 0 {
                    buf.write(|b| b.copy_within(start..end, 0));
                }
                (start, end) = (0, end - start);
                let into = buf.slice(end..buf.len());
                let result = connection.recv(into, &io).await;
                if result.status != Status::Ok || result.value == 0 {
                    return Err(ended());
                }
                end += result.value as usize;
            }
        }
    }
}

/// Keeps the client connected until it is closed.
pub(crate) async fn run(client: Rc<ClientState>) {
    let mut failures = 0;
    loop {
        let connected = || client.link.borrow().is_some();
        let over = || client.closing.get() && (!client.has_work() || client.failed.get());
        let rests = || client.resting.get() && !client.has_work();
        let wanted = || !connected() && !client.failed.get() && !rests();
        let replied = || client.link.borrow().as_ref().is_some_and(|l| l.has_replied.get());
        client.changed.wait_for(|| over() || wanted()).await;
        if over() {
            break;
        }
        // A connection that is lost at once must not cause a tight loop.
        if failures > 0 {
            back_off(&client, Nanos(backoff_ns(failures))).await;
            if over() {
                break;
            }
            if !wanted() {
                continue;
            }
        }
        failures += 1;
        let oldest = {
            let closing_links = client.closing_links.borrow();
            closing_links.front().filter(|_| closing_links.len() >= CLOSING_LINKS_MAX).cloned()
        };
        if let Some(link) = oldest {
            link.cut_off().await;
        }
        match dial(&client.connect, &client.export, client.options.timeout).await {
            Ok((connection, export_info)) => match client.export_info.difference(&export_info) {
                None => {
                    let is_refused = client.set_writable(export_info.is_writable());
                    client.use_link(connection, export_info.structured);
                    client.resting.set(false);
                    client.notify(match is_refused {
                        true => &LinkEvent::BecameReadOnly,
                        false => &LinkEvent::Reconnected,
                    });
                    client.changed.wait_for(|| replied() || !connected() || over()).await;
                    if replied() {
                        failures = 0;
                    }
                }
                Some(change) => {
                    close(connection.file).await;
                    let export = &client.export;
                    client
                        .fail(format!("export `{export}` is another after a reconnect: {change}"));
                }
            },
            Err(e) => client.notify(&LinkEvent::ConnectFailed(e.chain())),
        }
    }
    disconnect(&client).await;
    client.set_closed();
}

/// Sleeps for `time`; shorter while requests wait, and at most until the client is closed.
async fn back_off(client: &Rc<ClientState>, time: Nanos) {
    let began = now();
    let patience = Nanos((client.options.timeout.0 / 8).max(BACKOFF_FIRST_NS));
    loop {
        let waits = client.has_work();
        let until = began + if waits { time.min(patience) } else { time };
        if now() >= until || client.closing.get() && !waits {
            return;
        }
        sleep((until - now()).min(BACK_OFF_STEP)).await;
    }
}

/// Ends the connection in order, and those that were lost and that the server has not ended: after
/// some time it is not waited for. Nor is it when the connection is wanted again meanwhile.
pub(crate) async fn disconnect(client: &Rc<ClientState>) {
    let link = client.link.borrow().clone();
    let late: Vec<_> = client.closing_links.borrow().iter().chain(&link).cloned().collect();
    spawn(async move {
        sleep(DISCONNECT_TIME).await;
        for link in late {
            link.cut_off().await;
        }
    });
    if let Some(link) = link {
        link.send_disconnect().await;
        link.break_off("closed");
    }
    let ended = || client.closing_links.borrow().is_empty() && client.link.borrow().is_none();
    let is_wanted = || !client.closing.get() && !client.resting.get();
    client.changed.wait_for(|| ended() || is_wanted()).await;
}

/// Fails requests that have waited too long.
pub(crate) async fn expire(client: Rc<ClientState>) {
    let timeout = client.options.timeout;
    let step = Nanos((timeout.0 / 8).clamp(1_000_000, 1_000_000_000));
    loop {
        let connected = || client.link.borrow().is_some();
        let waits = || client.work.borrow().has_waiting(connected());
        let over = || client.closing.get() && !client.has_work();
        client.changed.wait_for(|| waits() || over()).await;
        if over() {
            return;
        }
        sleep(step).await;
        client.work.borrow_mut().expire(now(), timeout, connected(), &client.stats);
        if !client.has_work() {
            client.changed.wake_all();
        }
    }
}
