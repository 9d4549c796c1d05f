// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client of the control API: one HTTP request a connection.
use std::path::PathBuf;
use std::time::Duration;

use block::ErrorKind;
use control::Failure;
use host::{RunDir, io_failure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

/// How long after an upgrade a request is sent to the successor.
pub(crate) const AGAIN: Duration = Duration::from_millis(10);

/// Talks to the daemon of one run dir.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    run_dir: PathBuf,
}

impl Client {
    pub fn new(run_dir: &RunDir) -> Client {
        Client { socket: run_dir.control(), run_dir: run_dir.path().into() }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.call(Method::DELETE, path, None).await
    }

    pub(crate) async fn post<B, T>(&self, path: &str, body: &B) -> Result<T, Failure>
    where
        B: Serialize,
        T: DeserializeOwned,
    {
        self.call(Method::POST, path, Some(to_json(body))).await
    }

    pub(crate) async fn put<B, T>(&self, path: &str, body: &B) -> Result<T, Failure>
    where
        B: Serialize,
        T: DeserializeOwned,
    {
        self.call(Method::PUT, path, Some(to_json(body))).await
    }

    /// The same, without asking a successor again.
    pub(crate) async fn put_once<B, T>(&self, path: &str, body: &B) -> Result<T, Failure>
    where
        B: Serialize,
        T: DeserializeOwned,
    {
        self.call_once(Method::PUT, path, Some(to_json(body))).await
    }

    /// Sends a request; when a live upgrade has come between, the same request to the successor.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, Failure> {
        loop {
            let answer = self.call_once(method.clone(), path, body.clone()).await;
            match answer {
                Err(failure) if failure.is_handed_over() => tokio::time::sleep(AGAIN).await,
                answer => return answer,
            }
        }
    }

    async fn call_once<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, Failure> {
        let stream = self.connect().await?;
        let lost = |e: hyper::Error| {
            const ECONNRESET: i32 = 104;
            let text =
                format!("the daemon at {} closed the connection: {e}", self.socket.display());
            Failure::unreachable(ECONNRESET, text)
        };
        let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        // It ends with the exchange; `send_request` returns its errors, too.
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "millpond")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|e| Failure::new(ErrorKind::Invalid, format!("{path}: {e}")))?;
        let answer = send.send_request(request).await.map_err(lost)?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await.map_err(lost)?.to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|e| misunderstood(status, &e));
        }
        Err(serde_json::from_slice(&bytes).unwrap_or_else(|e| misunderstood(status, &e)))
    }

    /// A connection to the daemon.
    pub(crate) async fn connect(&self) -> Result<UnixStream, Failure> {
        UnixStream::connect(&self.socket).await.map_err(|e| {
            if e.kind() == std::io::ErrorKind::PermissionDenied {
                let message = format!(
                    "{}: {}: it is another user's",
                    self.socket.display(),
                    block::without_errno(&e)
                );
                return Failure::new(ErrorKind::Denied, message);
            }
            const ENOENT: i32 = 2;
            const ECONNREFUSED: i32 = 111;
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            let text = format!(
                "no daemon answers at {} ({}); start one with `millpond daemon --run-dir {}`, or \
                 say with --run-dir or MILLPOND_RUN_DIR where one runs",
                self.socket.display(),
                what(&e),
                self.run_dir.display()
            );
            Failure::unreachable(if missing { ENOENT } else { ECONNREFUSED }, text)
        })
    }
}

/// The runtime of HTTP, on this thread. A thread for what blocks stays once it has been started
/// (`host::blocking`).
pub fn runtime() -> Result<Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_keep_alive(host::KEEP_BLOCKING_THREADS);
    builder.build().map_err(|e| io_failure(&e, "tokio runtime"))
}

fn to_json(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("the types of the API have string keys and no failing parts")
}

fn misunderstood(status: StatusCode, e: &serde_json::Error) -> Failure {
    let message = format!("the daemon's answer ({status}) was not understood: {e}; same version?");
    Failure::new(ErrorKind::Io, message)
}

fn what(e: &std::io::Error) -> String {
    if e.kind() == std::io::ErrorKind::NotFound {
        return "no such socket".into();
    }
    block::without_errno(e)
}
