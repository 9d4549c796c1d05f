// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server of the control API: connections, access and bounds. `routes` serves the requests.
//! The listener of `--metrics` (`observe`) uses its sockets and checks.
//!
//! ```text
//!   accept ─▶ slot (64 for local sockets, 64 for TCP) ─▶ request ──answered soon──▶ next request
//!                                                           │ after 100 ms
//!                                                           └▶ slot of a waiting request,
//!                                                              its own is free for the next
//! ```
//!
//! Invariants
//! - HO-H1 A request that takes long (`wait`, a message, a suspend) gives the slot of its
//!   connection back and takes one of the waiting requests; it is refused when none is free.
//! - HO-H2 Connections by TCP take no slots of local sockets, of either kind.
//! - HO-H3 A request whose client disconnects before anything was changed changes nothing. Opening
//!   the devices that a table names does not count as a change.
//! - HO-H4 A request that waits for the daemon's end has a slot of a kind of its own: the end waits
//!   for all others, and is told to these afterwards.
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener as StdTcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::ErrorKind;
use control::{Failure, api};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, ORIGIN};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nbd::Peer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::addr::Addr;
use crate::descriptors::Places;
use crate::endpoints::{Endpoint, Source};
use crate::fd_store::FdStore;
use crate::io_failure::io_failure;
use crate::passed::ListenerRole;
use crate::routes::{self, ResponseBody, Route, State, shutdown};
use crate::rundir::remove_stale_socket;
use crate::stop;

/// A request that takes longer is a waiting one.
const SHORT_REQUEST_TIME: Duration = Duration::from_millis(100);
/// Time to send a request's head, and again for its body.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Largest request head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept: no free descriptors, most likely.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// At most one line of the log about them in this time.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How many requests may wait for the daemon's end.
const ENDING: usize = 4;
/// Time for answers to leave at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A listening socket for HTTP.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at a place, by the listener that was passed for it or by one of its own; a Unix
    /// socket of its own is for its owner only. `what` names it in errors. Needs a runtime.
    pub(crate) fn open(what: &str, place: Endpoint) -> Result<Listener, Failure> {
        let Endpoint { addr, source } = place;
        let passed = match source {
            Source::Unit(socket) | Source::Before(socket, _) => Some(socket),
            Source::Open => None,
        };
        let failed = |e: std::io::Error| io_failure(&e, format!("{what} {addr}"));
        match &addr {
            Addr::Unix(path) => {
                let std = match passed {
                    Some(socket) => socket.into(),
                    None => bind_unix(path, failed)?,
                };
                std.set_nonblocking(true).map_err(failed)?;
                UnixListener::from_std(std).map(Listener::Unix).map_err(failed)
            }
            Addr::Tcp(tcp) => {
                let std = match passed {
                    Some(socket) => socket.into(),
                    None => StdTcpListener::bind(tcp).map_err(failed)?,
                };
                std.set_nonblocking(true).map_err(failed)?;
                TcpListener::from_std(std).map(Listener::Tcp).map_err(failed)
            }
        }
    }

    /// Listens at places; returns each listener with where it is now. Those that it opens are kept
    /// in the store.
    pub(crate) fn open_all(
        what: &str,
        role: ListenerRole,
        places: Vec<Endpoint>,
        store: &mut FdStore,
    ) -> Result<Vec<HttpListener>, Failure> {
        let open = |place: Endpoint| {
            let asked = place.addr.clone();
            let is_new = matches!(place.source, Source::Open);
            let mut passed = place.source.passed(role);
            let listener = Listener::open(what, place)?;
            let addr = listener.addr(&asked);
            if is_new {
                passed.stored = store.keep(role, &listener);
            }
            Ok(HttpListener { listener, addr, passed })
        };
        places.into_iter().map(open).collect()
    }
}

/// A listener, where it is, and what a successor is told of it.
#[derive(Debug)]
pub(crate) struct HttpListener {
    pub(crate) listener: Listener,
    pub(crate) addr: Addr,
    pub(crate) passed: handover::Listener,
}

impl HttpListener {
    /// Another descriptor of the socket.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Failure> {
        let copy = self.listener.as_fd().try_clone_to_owned();
        copy.map_err(|e| io_failure(&e, self.addr.to_string()))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(unix) => unix.as_fd(),
            Listener::Tcp(tcp) => tcp.as_fd(),
        }
    }
}

fn bind_unix(
    path: &Path,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<StdUnixListener, Failure> {
    remove_stale_socket(path)?;
    let std = StdUnixListener::bind(path).map_err(&failed)?;
    // A client that connects before this is refused by the check of its uid.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(&failed)?;
    Ok(std)
}

impl Listener {
    /// Where it listens now: with the port that the system has chosen for port 0.
    fn addr(&self, asked: &Addr) -> Addr {
        match self {
            Listener::Unix(_) => asked.clone(),
            Listener::Tcp(tcp) => tcp.local_addr().map_or(asked.clone(), Addr::Tcp),
        }
    }

    /// Whether only this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Listener::Unix(_) => true,
            Listener::Tcp(tcp) => tcp.local_addr().is_ok_and(|addr| addr.ip().is_loopback()),
        }
    }
}

/// The places of connections: of local sockets, and of TCP (HO-H2).
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    local: SlotPool,
    tcp: SlotPool,
}

/// Places of one kind of listener.
#[derive(Clone, Debug)]
struct SlotPool {
    /// How many there are of each.
    places: Places,
    /// Of connections, while they idle or have a request that has just come.
    serving: Arc<Semaphore>,
    /// Of requests that take long (HO-H1).
    waiting: Arc<Semaphore>,
    /// Of requests that wait for the daemon's end (HO-H4).
    ending: Arc<Semaphore>,
}

impl SlotPool {
    fn new() -> SlotPool {
        let places = Places::of_process();
        let slots = |count| Arc::new(Semaphore::new(count));
        SlotPool {
            serving: slots(places.control),
            waiting: slots(places.waiting),
            ending: slots(ENDING),
            places,
        }
    }

    async fn all_free(&self) {
        let Places { control, waiting, .. } = self.places;
        all_of(&self.serving, control).await;
        all_of(&self.waiting, waiting).await;
    }
}

/// Waits until all of these slots are free.
async fn all_of(slots: &Semaphore, count: usize) {
    let all = u32::try_from(count).expect("at most some hundred");
    let _ = slots.acquire_many(all).await; // they are never closed
}

impl Connections {
    pub(crate) fn new() -> Connections {
        Connections { local: SlotPool::new(), tcp: SlotPool::new() }
    }

    fn of(&self, listener: &Listener) -> &SlotPool {
        match listener {
            Listener::Unix(_) => &self.local,
            Listener::Tcp(_) => &self.tcp,
        }
    }

    /// Waits until all connections have ended, for `DRAIN_TIME` at most. Nothing is served after
    /// it.
    pub(crate) async fn drain(&self) {
        let free = async {
            self.local.all_free().await;
            self.tcp.all_free().await;
        };
        // Connections that do not read their response in time are dropped.
        let _ = tokio::time::timeout(DRAIN_TIME, free).await;
    }

    /// The same for the requests that wait for the end, which they have been told now (HO-H4).
    pub(crate) async fn drain_ending(&self) {
        let free = async {
            all_of(&self.local.ending, ENDING).await;
            all_of(&self.tcp.ending, ENDING).await;
        };
        let _ = tokio::time::timeout(DRAIN_TIME, free).await;
    }
}

/// The place of a connection.
#[derive(Debug)]
struct ConnectionSlot {
    slots: SlotPool,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionSlot {
    /// The request takes long: gives the place of the connection away (HO-H1). False when there is
    /// none of the other kind.
    fn move_to(&self, others: &Arc<Semaphore>) -> bool {
        let other = others.clone().try_acquire_owned().ok();
        let found = other.is_some();
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = other;
        found
    }
}

/// Failed accepts of a listener: no descriptor is free, most likely, and that lasts.
#[derive(Default)]
pub(crate) struct AcceptFailures {
    logged: Option<Instant>,
    /// Since that line.
    count: u64,
}

impl AcceptFailures {
    /// Pauses after one. A minute has one line of the log.
    pub(crate) async fn pause_after(&mut self, e: &std::io::Error, listener: &str) {
        self.count += 1;
        let now = Instant::now();
        if self.logged.is_none_or(|logged| now >= logged + ACCEPT_LOG_INTERVAL) {
            let count = std::mem::take(&mut self.count);
            tracing::warn!(error = %e, count, "accept on the {listener} failed");
            self.logged = Some(now);
        }
        tokio::time::sleep(ACCEPT_RETRY).await;
    }
}

/// Serves clients that connect to `listener` until the daemon shuts down.
pub(crate) async fn serve(listener: Listener, connections: Connections, state: Arc<State>) {
    let (mut closing, mut pause) = (state.closing.clone(), state.pause.subscribe());
    let mut failures = AcceptFailures::default();
    loop {
        unpaused(&mut pause).await;
        let slots = connections.of(&listener).clone();
        let Ok(permit) = slots.serving.clone().acquire_owned().await else { return };
        let slot = ConnectionSlot { slots, held: Mutex::new(Some(permit)) };
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shutdown(&mut closing) => return,
            () = paused(&mut pause) => continue,
        };
        match accepted {
            Ok(Stream::Unix(stream)) if may_connect(&stream) => {
                let caller = Caller { peer: Peer::Local, is_root: is_root(&stream) };
                tokio::spawn(connection(stream, (caller, slot), state.clone()));
            }
            Ok(Stream::Unix(_)) => tracing::warn!("control connection of another user refused"),
            Ok(Stream::Tcp(stream)) => {
                let caller = Caller { peer: Peer::Network, is_root: false };
                tokio::spawn(connection(stream, (caller, slot), state.clone()));
            }
            Err(e) => failures.pause_after(&e, "control socket").await,
        }
    }
}

/// Waits until listeners are paused: a successor is about to have them.
pub(crate) async fn paused(pause: &mut watch::Receiver<bool>) {
    // An error means that the daemon ends.
    let _ = pause.wait_for(|paused| *paused).await;
}

/// Waits until they are not.
pub(crate) async fn unpaused(pause: &mut watch::Receiver<bool>) {
    let _ = pause.wait_for(|paused| !paused).await;
}

/// A connection that was accepted.
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(tokio::net::TcpStream),
}

pub(crate) async fn accept(listener: &Listener) -> std::io::Result<Stream> {
    match listener {
        Listener::Unix(l) => l.accept().await.map(|(s, _)| Stream::Unix(s)),
        Listener::Tcp(l) => l.accept().await.map(|(s, _)| Stream::Tcp(s)),
    }
}

/// Our user and root may.
pub(crate) fn may_connect(stream: &UnixStream) -> bool {
    let us = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == us || peer.uid() == 0)
}

/// Who sends requests.
#[derive(Clone, Copy, Debug)]
struct Caller {
    peer: Peer,
    /// Known of local sockets only.
    is_root: bool,
}

fn is_root(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0)
}

async fn connection<S>(stream: S, (caller, slot): (Caller, ConnectionSlot), state: Arc<State>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut closing = state.closing.clone();
    let slot = Arc::new(slot);
    let service = service_fn(move |request| {
        let (state, slot) = (state.clone(), slot.clone());
        async move { Ok::<_, Infallible>(respond(&state, caller, &slot, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = shutdown(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(error = %e, "control connection ended");
    }
}

async fn respond(
    state: &Arc<State>,
    caller: Caller,
    slot: &ConnectionSlot,
    request: Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let began = tokio::time::Instant::now();
    let (slots, most) = match stop::waits_for_end(request.uri()) {
        true => (&slot.slots.ending, ENDING),
        false => (&slot.slots.waiting, slot.slots.places.waiting),
    };
    let answer = handle(state, caller, request);
    tokio::pin!(answer);
    let soon = tokio::time::timeout(SHORT_REQUEST_TIME, &mut answer).await;
    let took_long = soon.is_err();
    let answer = match soon {
        Ok(answer) => answer,
        Err(_) if slot.move_to(slots) => answer.await,
        Err(_) => {
            let message = format!(
                "{most} requests wait already: this one is not waited for; what it has \
                 begun goes on"
            );
            Err(Failure::new(ErrorKind::Busy, message))
        }
    };
    let seconds = format!("{:.3}", began.elapsed().as_secs_f64());
    match &answer {
        Ok(_) => tracing::debug!(%method, path, seconds, "control request done"),
        Err(e) => tracing::debug!(%method, path, seconds, error = %e, "control request failed"),
    }
    let mut response = match answer {
        Ok(ResponseBody::Json(json)) => response(StatusCode::OK, "application/json", json),
        Ok(ResponseBody::Text(text)) => response(StatusCode::OK, "text/plain; version=0.0.4", text),
        Err(failure) => {
            let status = StatusCode::from_u16(failure.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let json = serde_json::to_vec(&failure).unwrap_or_default();
            response(status, "application/json", json)
        }
    };
    if took_long {
        // Its connection has no slot of its own any more.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a Host header names the daemon by something that no name server decides on: an address,
/// or localhost. Another name can be a web page's whose owner points it at us, so that a browser
/// takes our answers for that page's own.
fn is_own_host(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((v6, port)) => {
            return v6.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
        }
        None => match host.split_once(':') {
            Some((name, _)) if !is_port(&host[name.len()..]) => return false,
            Some((name, _)) => name,
            None => host,
        },
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok()
}

/// Whether this is a colon and a port.
fn is_port(text: &str) -> bool {
    let digits = text.strip_prefix(':').unwrap_or_default();
    digits.bytes().all(|b| b.is_ascii_digit()) && digits.parse::<u16>().is_ok()
}

/// Refuses a request by TCP that was sent to another name (see `is_own_host`).
pub(crate) fn check_host(request: &Request<Incoming>) -> Result<(), Failure> {
    let headers = request.headers().get_all(HOST).iter();
    let hosts = headers.map(|host| host.to_str().unwrap_or_default());
    let named = request.uri().authority().map(Authority::as_str);
    let mut count = 0;
    for host in hosts.chain(named) {
        count += 1;
        if !is_own_host(host) {
            let message = format!(
                "host `{host}`: allowed are localhost and addresses, such as 127.0.0.1:8080 or \
                 [::1]:8080"
            );
            return Err(Failure::new(ErrorKind::Denied, message));
        }
    }
    if count == 0 {
        return Err(Failure::new(ErrorKind::Denied, "a request by TCP must have a Host header"));
    }
    Ok(())
}

async fn handle(
    state: &Arc<State>,
    caller: Caller,
    request: Request<Incoming>,
) -> Result<ResponseBody, Failure> {
    if caller.peer == Peer::Network {
        check_host(&request)?;
    }
    if request.headers().contains_key(ORIGIN) {
        // Any web page may send requests from a browser: the API is for programs.
        return Err(Failure::new(ErrorKind::Denied, "requests of web pages are refused"));
    }
    let query = request.uri().query().unwrap_or_default();
    let route = Route::parse(request.method(), request.uri().path(), query)?;
    let body = Limited::new(request.into_body(), api::BODY_BYTES_MAX).collect();
    let body = tokio::time::timeout(REQUEST_TIME, body).await.map_err(|_| {
        Failure::new(
            ErrorKind::Invalid,
            format!("body of the request: not sent in {REQUEST_TIME:?}"),
        )
    })?;
    let body = body.map_err(|e| {
        let most = api::BODY_BYTES_MAX;
        Failure::new(ErrorKind::Invalid, format!("body of the request (at most {most} bytes): {e}"))
    })?;
    // HO-H3: hyper checks whether the client is connected when it has nothing else to do, and drops
    // this future when it is not.
    tokio::task::yield_now().await;
    routes::answer(state, route, &body.to_bytes(), caller.is_root).await
}

pub(crate) fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
