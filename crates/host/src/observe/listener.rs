// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listener of `--metrics`: GET and HEAD of a few paths, one request a connection.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
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
use crate::http::{Listener, Stream, accept, check_host, may_connect, paused, response, unpaused};
use crate::routes::shutdown;

/// Connections at a time (HO-O3).
const CONNECTIONS_MAX: usize = 32;
/// Time for a whole connection: its request, and the answer to the last byte.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Largest request head; hyper's least.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Pause after a failed accept: no free descriptors, most likely.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        unpaused(&mut pause).await;
        let accepted = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = shutdown(&mut closing) => return,
            () = paused(&mut pause) => continue,
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort(); // HO-O3
        }
        match accepted {
            Ok(Stream::Unix(stream)) if may_connect(&stream) => {
                connections.push_back(tokio::spawn(connection(stream, None, monitor.clone())));
            }
            Ok(Stream::Unix(_)) => tracing::warn!("metrics connection of another user refused"),
            Ok(Stream::Tcp(stream)) => {
                let connection = connection(stream, Some(hosts), monitor.clone());
                connections.push_back(tokio::spawn(connection));
            }
            Err(e) => {
                tracing::warn!(error = %e, "accept on the metrics socket failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn connection<S>(stream: S, hosts: Option<Hosts>, monitor: Arc<Monitor>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
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
