// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS between a socket and the sender and receiver of a connection.
//!
//! ```text
//!   socket ──Recv 64 KiB──▶ inbox ──▶ rustls ──▶ the receiver's buffer
//!   socket ◀──Send───────── records ◀── rustls ◀── at most 64 KiB of the sender's buffers
//! ```
//!
//! Connections without TLS do not come here.
//!
//! Invariants
//! - NB-T1 A connection holds at most the inbox, one part of its sender, and what rustls holds of a
//!   handshake or a record, however much the peer sends.
//! - NB-T2 One task at a time makes records and sends them, so they leave in the order of their
//!   numbers. The receiver sends nothing; what rustls wants to send leaves with the next part.
//! - NB-T3 Bytes that came in the clear are never taken as if they had come by TLS: whatever
//!   follows STARTTLS before the handshake ends the connection, and nothing that was negotiated
//!   before it holds after it.
//! - NB-T4 Handshakes take at most a quarter of a core's time, however many clients begin one.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use block::{Buf, Bufs, Nanos, Slice, Status};
use reactor::{FileId, OpResult, SqeOp, now, sleep};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

/// Ciphertext of one receive.
const INBOX_BYTES: usize = 64 << 10;
/// Plaintext of one send.
const PART_BYTES: usize = 64 << 10;
/// How many times as long as it took a step of a handshake the next one waits (NB-T4).
const HANDSHAKE_PAUSE: u64 = 3;

type OnFailure = Box<dyn Fn(FileId, &str)>;

/// How a server speaks TLS at a listener.
pub struct TlsServer {
    config: RefCell<Arc<ServerConfig>>,
    on_failure: OnFailure,
    /// Until when no further step of a handshake begins (NB-T4).
    paused_until: Cell<Nanos>,
}

impl TlsServer {
    /// `on_failure` is called with the socket and the cause of each failed handshake.
    pub fn new(
        config: Arc<ServerConfig>,
        on_failure: impl Fn(FileId, &str) + 'static,
    ) -> TlsServer {
        let (config, on_failure) = (RefCell::new(config), Box::new(on_failure));
        TlsServer { config, on_failure, paused_until: Cell::new(Nanos::ZERO) }
    }

    /// Other certificates, for connections that come from now on.
    pub fn set_config(&self, config: Arc<ServerConfig>) {
        self.config.replace(config);
    }

    /// The handshake with a client that has sent STARTTLS.
    pub(crate) async fn accept(
        &self,
        file: FileId,
        io: impl AsyncFn(SqeOp) -> OpResult,
    ) -> Option<Tls> {
        let session = ServerConnection::new(self.config.borrow().clone());
        let accepted = match session {
            Ok(session) => Tls::new(session.into()).negotiate(Some(&self.paused_until), io).await,
            Err(e) => Err(e.to_string()),
        };
        accepted.map_err(|why: String| (self.on_failure)(file, &why)).ok()
    }
}

block::debug_as!(TlsServer, _s => "TlsServer");

/// How a client speaks TLS to its server.
#[derive(Clone)]
pub struct TlsClient {
    /// Certificates.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    pub name: ServerName<'static>,
}

impl TlsClient {
    /// The handshake with a server that has agreed to STARTTLS.
    pub(crate) async fn connect(&self, io: impl AsyncFn(SqeOp) -> OpResult) -> Result<Tls, String> {
        let session = ClientConnection::new(self.config.clone(), self.name.clone());
        Tls::new(session.map_err(|e| e.to_string())?.into()).negotiate(None, io).await
    }
}

block::debug_as!(TlsClient, s => "TlsClient({:?})", s.name);

/// TLS on one connection.
pub(crate) struct Tls {
    session: RefCell<Connection>,
    inbox: Buf,
    /// What of the inbox rustls has not taken yet.
    unread: Cell<(usize, usize)>,
    /// Why the receiving direction has failed.
    failure: RefCell<Option<String>>,
}

impl Tls {
    fn new(mut session: Connection) -> Tls {
        // Its callers bound what it holds (NB-T1).
        session.set_buffer_limit(None);
        Tls {
            session: RefCell::new(session),
            inbox: Buf::alloc(INBOX_BYTES),
            unread: Cell::new((0, 0)),
            failure: RefCell::default(),
        }
    }

    /// Why TLS has failed on this connection, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    async fn negotiate(
        self,
        pause: Option<&Cell<Nanos>>,
        io: impl AsyncFn(SqeOp) -> OpResult,
    ) -> Result<Tls, String> {
        let ended = || "the connection has ended during the TLS handshake".to_owned();
        loop {
            if self.send_records(&io).await.status != Status::Ok {
                return Err(ended());
            }
            if !self.session.borrow().is_handshaking() {
                return Ok(self);
            }
            let received = io(SqeOp::Recv { into: self.inbox.all() }).await;
            if received.status != Status::Ok || received.value == 0 {
                return Err(ended());
            }
            self.unread.set((0, received.value as usize));
            if let Some(until) = pause {
                while now() < until.get() {
                    sleep(until.get() - now()).await;
                }
            }
            let began = now();
            let taken = self.take_handshake();
            if let Some(until) = pause {
                until.set(now() + Nanos((now() - began).0 * HANDSHAKE_PAUSE)); // NB-T4
            }
            if let Err(e) = taken {
                self.send_records(&io).await; // the alert
                return Err(e.to_string());
            }
        }
    }

    /// Gives rustls what the inbox has of the handshake.
    fn take_handshake(&self) -> Result<(), Failure> {
        let mut session = self.session.borrow_mut();
        while session.is_handshaking() {
            let (start, end) = self.unread.get();
            if start == end {
                break;
            }
            self.unread.set((start + self.take_part(&mut session, start..end)?, end));
        }
        Ok(())
    }

    /// Gives rustls a part of the inbox; returns its length.
    fn take_part(
        &self,
        session: &mut Connection,
        range: std::ops::Range<usize>,
    ) -> Result<usize, Failure> {
        let taken = self.inbox.read(|b| session.read_tls(&mut &b[range]));
        let taken = taken.map_err(|e| Failure(e.to_string()))?;
        session.process_new_packets().map_err(|e| Failure(e.to_string()))?;
        Ok(taken)
    }

    /// Receives at least a byte into `into`, like a receive of the driver.
    pub(crate) async fn recv(&self, into: &Slice, io: impl AsyncFn(SqeOp) -> OpResult) -> OpResult {
        loop {
            match self.take(into) {
                Ok(Plaintext::Bytes(n)) => {
                    let value = u32::try_from(n).expect("at most the buffer of a receive");
                    return OpResult { status: Status::Ok, value };
                }
                Ok(Plaintext::End) => return OpResult { status: Status::Ok, value: 0 },
                Ok(Plaintext::Nothing) => {}
                Err(Failure(why)) => {
                    self.failure.borrow_mut().get_or_insert(why);
                    return Status::Io.into();
                }
            }
            let received = io(SqeOp::Recv { into: self.inbox.all() }).await;
            if received.status != Status::Ok || received.value == 0 {
                return received;
            }
            self.unread.set((0, received.value as usize));
        }
    }

    /// Decrypts what the inbox has into `into`, as far as there is room.
    fn take(&self, into: &Slice) -> Result<Plaintext, Failure> {
        let mut session = self.session.borrow_mut();
        let mut filled = 0;
        while filled < into.len() {
            let read = into.write(|b| session.reader().read(&mut b[filled..]));
            match read {
                Ok(0) if filled == 0 => return Ok(Plaintext::End),
                Ok(0) => break,
                Ok(n) => {
                    filled += n;
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(Failure(e.to_string())),
            }
            let (start, end) = self.unread.get();
            if start == end {
                break;
            }
            match self.take_part(&mut session, start..end) {
                Ok(n) => self.unread.set((start + n, end)),
                // What came before it counts; the next call meets the error again.
                Err(_) if filled > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(if filled > 0 { Plaintext::Bytes(filled) } else { Plaintext::Nothing })
    }

    /// Sends all of `bufs`, like a send of the driver.
    pub(crate) async fn send(&self, bufs: &Bufs, io: impl AsyncFn(SqeOp) -> OpResult) -> OpResult {
        let end = bufs.len_bytes();
        for from in (0..end).step_by(PART_BYTES) {
            let part = bufs.slice(from..end.min(from + PART_BYTES));
            let mut plain = vec![0; part.len_bytes()];
            part.copy_to(&mut plain);
            if self.session.borrow_mut().writer().write_all(&plain).is_err() {
                return Status::Io.into();
            }
            let sent = self.send_records(&io).await;
            if sent.status != Status::Ok {
                return sent;
            }
        }
        Status::Ok.into()
    }

    /// Tells the peer that nothing follows.
    pub(crate) async fn send_end(&self, io: impl AsyncFn(SqeOp) -> OpResult) {
        self.session.borrow_mut().send_close_notify();
        let _ = self.send_records(&io).await;
    }

    /// Sends what rustls wants to send (NB-T2).
    async fn send_records(&self, io: &impl AsyncFn(SqeOp) -> OpResult) -> OpResult {
        let records = {
            let mut session = self.session.borrow_mut();
            let mut out = Vec::new();
            while session.wants_write() {
                // Into memory, which takes all.
                if session.write_tls(&mut out).is_err() {
                    return Status::Io.into();
                }
            }
            out
        };
        if records.is_empty() {
            return Status::Ok.into();
        }
        io(SqeOp::Send { bufs: Buf::copy_of(&records).into() }).await
    }
}

block::debug_as!(Tls, _s => "Tls");

enum Plaintext {
    Bytes(usize),
    /// The peer has ended its direction in order.
    End,
    Nothing,
}

/// Why a session has failed.
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
