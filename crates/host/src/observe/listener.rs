// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener of `--metrics`: GET and HEAD of a few paths, one request a connection.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::families;
use super::monitor::{Monitor, Observed};
use super::page::page;
use super::status::status;
use crate::descriptors::Places;
use crate::http::{
    AcceptFailures, Listener, Stream, accept, check_host, may_connect, paused, response, unpaused,
};
use crate::routes::shutdown;

/// Time for a whole connection: its request, and the answer to the last byte.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Largest request head; hyper's least.
const HEAD_BYTES_MAX: usize = 8 << 10;

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hosts {
    /// Requests by an address or `localhost`: a web page elsewhere may not (see `http`).
    Own,
    /// The listener is for other machines anyway.
    Any,
}

/// Serves clients that connect to `listener` until the daemon shuts down.
pub(crate) async fn serve(
    listener: Listener,
    monitor: Arc<Monitor>,
    mut closing: watch::Receiver<bool>,
    mut pause: watch::Receiver<bool>,
) {
    let hosts = if listener.is_local() { Hosts::Own } else { Hosts::Any };
    let places = Places::of_process().metrics;
    let mut failures = AcceptFailures::default();
    let mut connections: VecDeque<Connection> = VecDeque::new();
    loop {
        unpaused(&mut pause).await;
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shutdown(&mut closing) => return,
            () = paused(&mut pause) => continue,
        };
        connections.retain(|connection| !connection.task.is_finished());
        if connections.len() >= places {
            // HO-O3: of those that are being answered only if there is no other.
            let silent = connections.iter().position(|one| !one.has_asked.load(Relaxed));
            if let Some(one) = connections.remove(silent.unwrap_or(0)) {
                one.task.abort();
            }
        }
        match accepted {
            Ok(Stream::Unix(stream)) if may_connect(&stream) => {
                connections.push_back(Connection::begin(stream, None, monitor.clone()));
            }
            Ok(Stream::Unix(_)) => tracing::warn!("metrics connection of another user refused"),
            Ok(Stream::Tcp(stream)) => {
                let hosts = Some(hosts);
                connections.push_back(Connection::begin(stream, hosts, monitor.clone()));
            }
            Err(e) => failures.pause_after(&e, "metrics socket").await,
        }
        // What has come on the others is read before one more is accepted.
        tokio::task::yield_now().await;
    }
}

/// A connection.
struct Connection {
    task: JoinHandle<()>,
    /// Whether its request has come.
    has_asked: Arc<AtomicBool>,
}

impl Connection {
    fn begin<S>(stream: S, hosts: Option<Hosts>, monitor: Arc<Monitor>) -> Connection
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let has_asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(connection(stream, hosts, monitor, has_asked.clone()));
        Connection { task, has_asked }
    }
}

async fn connection<S>(
    stream: S,
    hosts: Option<Hosts>,
    monitor: Arc<Monitor>,
    has_asked: Arc<AtomicBool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        has_asked.store(true, Relaxed);
        let monitor = monitor.clone();
        async move { Ok::<_, Infallible>(respond(&monitor, hosts, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::debug!(error = %e, "metrics connection ended"),
        Err(_) => tracing::debug!("metrics connection cut off: it took too long"),
    }
}

async fn respond(
    monitor: &Monitor,
    hosts: Option<Hosts>,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    if hosts == Some(Hosts::Own)
        && let Err(failure) = check_host(request)
    {
        return response(StatusCode::FORBIDDEN, TEXT, format!("{failure}\n"));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let text = format!("{}: only GET and HEAD are allowed here\n", request.method());
        let mut refused = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, text);
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let path = request.uri().path();
    if path == "/" {
        return page();
    }
    if !matches!(path, "/metrics" | "/healthz" | "/status.json") {
        let text = "no such path; there are /, /metrics, /healthz and /status.json\n";
        return response(StatusCode::NOT_FOUND, TEXT, text);
    }
    let observed = match monitor.observed().await {
        Ok(observed) => observed,
        Err(failure) => {
            return response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{failure}\n"));
        }
    };
    match path {
        "/metrics" => response(StatusCode::OK, METRICS, families::text(&observed.snapshot)),
        "/status.json" => {
            let json = status(&observed).to_string();
            response(StatusCode::OK, "application/json", json)
        }
        _ => health(&observed),
    }
}

fn health(observed: &Observed) -> Response<Full<Bytes>> {
    let devices = observed.snapshot.devices.len();
    if observed.problems.is_empty() {
        let plural = if devices == 1 { "" } else { "s" };
        return response(StatusCode::OK, TEXT, format!("ok, {devices} device{plural}\n"));
    }
    let lines: String = observed.problems.iter().map(|line| format!("{line}\n")).collect();
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, lines)
}
