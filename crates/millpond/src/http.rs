// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket's server: connections, who may connect, bounds; the rest is in `routes`.
use std::convert::Infallible;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::{Failure, api};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::addr::Addr;
use crate::core::Core;
use crate::routes::{self, Answer, Route};
use crate::rundir::{refused, remove_stale_socket};

/// Connections at a time; more wait in the listen queue.
const CONNECTIONS_MAX: usize = 64;
/// Time to send a request's head, and again for its body.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Largest request head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept: no free descriptors, most likely.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Time for answers to leave at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// What requests need.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) version: api::Version,
    /// Turns true when the daemon shuts down.
    pub(crate) closing: watch::Receiver<bool>,
}

/// A listening socket of the control API.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at `addr`, for the owner only where that can be said. Needs a runtime.
    pub(crate) fn bind(addr: &Addr) -> Result<Listener, Failure> {
        let failed = |e: std::io::Error| refused(&e, format!("control socket {addr}"));
        match addr {
            Addr::Unix(path) => {
                remove_stale_socket(path)?;
                let std = StdUnixListener::bind(path).map_err(failed)?;
                // Who slips in before this is turned away by the check of the peer's uid.
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed)?;
                std.set_nonblocking(true).map_err(failed)?;
                UnixListener::from_std(std).map(Listener::Unix).map_err(failed)
            }
            Addr::Tcp(tcp) => {
                let std = StdTcpListener::bind(tcp).map_err(failed)?;
                std.set_nonblocking(true).map_err(failed)?;
                TcpListener::from_std(std).map(Listener::Tcp).map_err(failed)
            }
        }
    }
}

/// The connections of all listeners.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Semaphore>);

impl Connections {
    pub(crate) fn new() -> Connections {
        Connections(Arc::new(Semaphore::new(CONNECTIONS_MAX)))
    }

    /// Waits until all connections have ended, but not for ever. Nothing is served after it.
    pub(crate) async fn drain(&self) {
        let all = u32::try_from(CONNECTIONS_MAX).expect("a small constant");
        // Who does not take his answer in time goes without.
        let _ = tokio::time::timeout(DRAIN_TIME, self.0.acquire_many(all)).await;
    }
}

/// Serves who connects to `listener` until the daemon shuts down.
pub(crate) async fn serve(listener: Listener, connections: Connections, state: Arc<State>) {
    let mut closing = state.closing.clone();
    loop {
        let Ok(permit) = connections.0.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shutdown(&mut closing) => return,
        };
        match accepted {
            Ok(Stream::Unix(stream)) if may_connect(&stream) => {
                tokio::spawn(connection(stream, permit, state.clone()));
            }
            Ok(Stream::Unix(_)) => tracing::warn!("control connection of another user refused"),
            Ok(Stream::Tcp(stream)) => {
                tokio::spawn(connection(stream, permit, state.clone()));
            }
            Err(e) => {
                tracing::warn!(error = %e, "accept on the control socket failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Ends when the daemon shuts down.
pub(crate) async fn shutdown(closing: &mut watch::Receiver<bool>) {
    // Without a sender there is no daemon any more.
    let _ = closing.wait_for(|closing| *closing).await;
}

enum Stream {
    Unix(UnixStream),
    Tcp(tokio::net::TcpStream),
}

async fn accept(listener: &Listener) -> std::io::Result<Stream> {
    match listener {
        Listener::Unix(l) => l.accept().await.map(|(s, _)| Stream::Unix(s)),
        Listener::Tcp(l) => l.accept().await.map(|(s, _)| Stream::Tcp(s)),
    }
}

/// Ourselves and root may.
fn may_connect(stream: &UnixStream) -> bool {
    let us = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == us || peer.uid() == 0)
}

async fn connection<S>(stream: S, _permit: OwnedSemaphorePermit, state: Arc<State>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut closing = state.closing.clone();
    let service = service_fn(move |request| {
        let state = state.clone();
        async move { Ok::<_, Infallible>(respond(&state, request).await) }
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

async fn respond(state: &State, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match handle(state, request).await {
        Ok(Answer::Json(json)) => response(StatusCode::OK, "application/json", json),
        Ok(Answer::Text(text)) => response(StatusCode::OK, "text/plain; version=0.0.4", text),
        Err(failure) => {
            tracing::debug!(%method, path, error = %failure, "control request failed");
            let status = StatusCode::from_u16(failure.http_status())
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let json = serde_json::to_vec(&failure).unwrap_or_default();
            response(status, "application/json", json)
        }
    }
}

async fn handle(state: &State, request: Request<Incoming>) -> Result<Answer, Failure> {
    if request.headers().contains_key(ORIGIN) {
        // A page in a browser, maybe of anybody: the API is for programs.
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
    routes::answer(state, route, &body.to_bytes()).await
}

fn response(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
