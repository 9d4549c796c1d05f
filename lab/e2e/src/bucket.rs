// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bucket: an object store with S3's interface over HTTP, in memory, with conditional writes. On
//! demand it does what real ones do on a bad day.
//!
//! ```text
//!   PUT If-None-Match: *   GET Range   GET ?list-type=2   DELETE
//!      └─ Faults: lost request · lost answer · done twice (412 on one's own) · done late · 409 ·
//!                 500 · 503 · slow
//! ```
//!
//! It looks at the key of an authorization, and does not check signatures: those are the library's.
//! It also gives out keys, as the agent of EKS does.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderValue, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::Result;
use crate::stamp::Random;

/// Names in a page of a listing: few, so that there are many pages.
const PAGE_NAMES: usize = 7;
/// Where keys are given out.
const PROVIDER: &str = "/credentials";
/// A key that nobody asks for again.
pub const FAR_EXPIRY: &str = "2099-01-01T00:00:00Z";
/// A key that is asked for each time.
pub const PAST_EXPIRY: &str = "2020-01-01T00:00:00Z";
/// How long a slow answer takes.
const SLOW: Duration = Duration::from_millis(400);
/// How much later a request is done that is done late.
const LATE: Duration = Duration::from_secs(3);

/// What happens to so many requests of a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Nothing is done, and the connection is closed.
    pub lost_request: u64,
    /// It is done, and the connection is closed.
    pub lost_answer: u64,
    /// It is done, and then once more: the answer is the second one's.
    pub doubled: u64,
    /// The connection is closed, and later it is done.
    pub late: u64,
    /// A PUT is answered with 409, and not done.
    pub conflict: u64,
    /// 500, and it is done or not.
    pub internal: u64,
    /// 503, and it is not done.
    pub throttled: u64,
    /// The answer takes long.
    pub slow: u64,
}

impl Faults {
    /// Some of each.
    pub fn some() -> Faults {
        Faults {
            lost_request: 15,
            lost_answer: 30,
            doubled: 30,
            late: 15,
            conflict: 15,
            internal: 30,
            throttled: 15,
            slow: 15,
        }
    }
}

#[derive(Debug)]
struct Store {
    objects: BTreeMap<String, Bytes>,
    faults: Faults,
    random: Random,
    /// Requests that met a fault.
    met: u64,
    conditional: bool,
    /// How conditional PUTs are answered, none of which is done.
    refusal: Option<(StatusCode, &'static str)>,
    /// Keys whose requests are done; others are refused.
    accepted: Vec<String>,
    /// The key that is given out, and when that says that it expires.
    offered: (String, &'static str),
    /// How many requests were refused.
    refused: u64,
    /// How many were done with the key that is given out.
    done_by_offered: u64,
}

/// The key of [`Bucket::variables`].
const KEY: &str = "e2e";
/// What who asks for a key has to show.
const TOKEN: &str = "a token";

/// The server. Dropped, it ends.
#[derive(Debug)]
pub struct Bucket {
    store: Arc<Mutex<Store>>,
    port: u16,
    _runtime: Runtime,
}

type Answer = Response<Full<Bytes>>;

fn held(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bucket {
    /// Starts it, empty and without faults, on a port of this machine.
    pub fn start() -> Result<Bucket> {
        let error = |e: std::io::Error| format!("the bucket: {e}");
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().map_err(error)?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).map_err(error)?;
        let port = listener.local_addr().map_err(error)?.port();
        let store = Arc::new(Mutex::new(Store {
            objects: BTreeMap::new(),
            faults: Faults::default(),
            random: Random::new(1),
            met: 0,
            conditional: true,
            refusal: None,
            accepted: vec![KEY.into()],
            offered: (KEY.into(), FAR_EXPIRY),
            refused: 0,
            done_by_offered: 0,
        }));
        runtime.spawn(serve(listener, store.clone()));
        Ok(Bucket { store, port, _runtime: runtime })
    }

    /// The variables by which a daemon finds it, in its folder's environment.
    pub fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_ACCESS_KEY_ID", KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ]
    }

    /// The same for a daemon that asks for its key, and shows the token in this file.
    pub fn variables_of_provider(&self, token: &Path) -> Result<[(&'static str, String); 4]> {
        std::fs::write(token, TOKEN).map_err(|e| format!("{}: {e}", token.display()))?;
        let [endpoint, http, ..] = self.variables();
        let provider = format!("http://127.0.0.1:{}{PROVIDER}", self.port);
        Ok([
            endpoint,
            http,
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", provider),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.display().to_string()),
        ])
    }

    /// From now on only requests with these keys are done.
    pub fn accept(&self, keys: &[&str]) {
        held(&self.store).accepted = keys.iter().map(|key| (*key).to_owned()).collect();
    }

    /// From now on this key is given out.
    pub fn offer(&self, key: &str, expiry: &'static str) {
        let mut store = held(&self.store);
        store.offered = (key.to_owned(), expiry);
        store.done_by_offered = 0;
    }

    /// How many requests were refused for their key.
    pub fn refused(&self) -> u64 {
        held(&self.store).refused
    }

    /// How many requests with the key that is given out were done.
    pub fn done_by_offered(&self) -> u64 {
        held(&self.store).done_by_offered
    }

    /// From now on requests meet these.
    pub fn set_faults(&self, faults: Faults) {
        held(&self.store).faults = faults;
    }

    /// From now on a PUT replaces what is there, whatever its condition.
    pub fn ignore_conditions(&self) {
        held(&self.store).conditional = false;
    }

    /// From now on a PUT with a condition is answered with this status and code, and not done.
    pub fn refuse_conditions(&self, status: u16, code: &'static str) {
        let status = StatusCode::from_u16(status).expect("a status of HTTP");
        held(&self.store).refusal = Some((status, code));
    }

    /// How many requests have met a fault.
    pub fn faults_met(&self) -> u64 {
        held(&self.store).met
    }

    /// Names and sizes of what is there.
    pub fn objects(&self) -> Vec<(String, usize)> {
        held(&self.store).objects.iter().map(|(name, data)| (name.clone(), data.len())).collect()
    }
}

async fn serve(listener: TcpListener, store: Arc<Mutex<Store>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let store = store.clone();
        let service = service_fn(move |request| handle(store.clone(), request));
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { drop(connection.await) });
    }
}

/// A connection that is closed without an answer.
#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cut")
    }
}
impl std::error::Error for Cut {}
impl From<Infallible> for Cut {
    fn from(never: Infallible) -> Cut {
        match never {}
    }
}

/// What is asked.
#[derive(Clone, Debug)]
enum Operation {
    Put { name: String, data: Bytes, if_absent: bool },
    Get { name: String, range: Option<Range<usize>> },
    List { prefix: String, after: String },
    Delete { name: String },
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    None,
    LostRequest,
    LostAnswer,
    Doubled,
    Late,
    Conflict,
    Internal,
    Throttled,
    Slow,
}

impl Store {
    fn fault(&mut self, operation: &Operation) -> FaultKind {
        let faults = self.faults;
        let is_put = matches!(operation, Operation::Put { .. });
        let mut draw = self.random.below(1000);
        for (per_mille, fault) in [
            (faults.lost_request, FaultKind::LostRequest),
            (faults.lost_answer, FaultKind::LostAnswer),
            (faults.doubled, FaultKind::Doubled),
            (faults.late, FaultKind::Late),
            (if is_put { faults.conflict } else { 0 }, FaultKind::Conflict),
            (faults.internal, FaultKind::Internal),
            (faults.throttled, FaultKind::Throttled),
            (faults.slow, FaultKind::Slow),
        ] {
            if draw < per_mille {
                self.met += 1;
                return fault;
            }
            draw -= per_mille;
        }
        FaultKind::None
    }

    fn give_key(&self) -> Answer {
        let (key, expiry) = &self.offered;
        let key = json!({
            "AccessKeyId": key, "SecretAccessKey": "secret", "Token": "session",
            "Expiration": expiry,
        });
        Response::new(Full::new(key.to_string().into()))
    }

    fn admit(&mut self, key: &str) -> bool {
        let is_accepted = self.accepted.iter().any(|accepted| accepted == key);
        self.refused += u64::from(!is_accepted);
        self.done_by_offered += u64::from(is_accepted && self.offered.0 == key);
        is_accepted
    }

    fn run(&mut self, operation: &Operation) -> Answer {
        match operation {
            Operation::Put { name, data, if_absent } => {
                if let (true, Some((status, code))) = (*if_absent, self.refusal) {
                    return answer(status, code);
                }
                if *if_absent && self.conditional && self.objects.contains_key(name) {
                    return answer(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
                }
                self.objects.insert(name.clone(), data.clone());
                with_tag(answer(StatusCode::OK, ""))
            }
            Operation::Get { name, range } => self.get(name, range.clone()),
            Operation::List { prefix, after } => self.list(prefix, after),
            Operation::Delete { name } => {
                self.objects.remove(name);
                answer(StatusCode::NO_CONTENT, "")
            }
        }
    }

    fn get(&self, name: &str, range: Option<Range<usize>>) -> Answer {
        let Some(data) = self.objects.get(name) else {
            return answer(StatusCode::NOT_FOUND, "NoSuchKey");
        };
        let Some(range) = range else {
            return with_tag(Response::new(Full::new(data.clone())));
        };
        let end = range.end.min(data.len());
        if range.start >= end {
            return answer(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
        }
        let part = data.slice(range.start..end);
        let mut found = with_tag(Response::new(Full::new(part)));
        *found.status_mut() = StatusCode::PARTIAL_CONTENT;
        let text = format!("bytes {}-{}/{}", range.start, end - 1, data.len());
        found.headers_mut().insert(CONTENT_RANGE, text.parse().expect("digits"));
        found
    }

    fn list(&self, prefix: &str, after: &str) -> Answer {
        let after = after.to_owned();
        let behind = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let mut all =
            self.objects.range::<String, _>(behind).filter(|(name, _)| name.starts_with(prefix));
        let page: Vec<_> = all.by_ref().take(PAGE_NAMES).collect();
        let mut xml = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
        for (name, data) in &page {
            xml.push_str(&format!(
                "<Contents><Key>{name}</Key><Size>{}</Size><ETag>\"1\"</ETag>\
                 <LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>",
                data.len()
            ));
        }
        if let (Some((last, _)), true) = (page.last(), all.next().is_some()) {
            xml.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        }
        xml.push_str("</ListBucketResult>");
        Response::new(Full::new(xml.into()))
    }
}

fn answer(status: StatusCode, code: &str) -> Answer {
    let body = match code {
        "" => String::new(),
        code => format!("<Error><Code>{code}</Code></Error>"),
    };
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}

fn with_tag(mut answer: Answer) -> Answer {
    let headers = answer.headers_mut();
    headers.insert(ETAG, HeaderValue::from_static("\"1\""));
    let time = HeaderValue::from_static("Mon, 01 Jan 2024 00:00:00 GMT");
    headers.insert(LAST_MODIFIED, time);
    answer
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What a request asks; none for one that a bucket does not know.
async fn operation(request: Request<Incoming>) -> Option<Operation> {
    let (head, body) = request.into_parts();
    // /BUCKET/NAME
    let name =
        decoded(head.uri.path().trim_start_matches('/').split_once('/').unwrap_or_default().1);
    let query: BTreeMap<String, String> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), decoded(value)))
        .collect();
    let of = |key: &str| query.get(key).cloned();
    match head.method {
        Method::PUT => {
            let if_absent = head.headers.get(IF_NONE_MATCH).is_some_and(|value| value == "*");
            let data = body.collect().await.ok()?.to_bytes();
            Some(Operation::Put { name, data, if_absent })
        }
        Method::GET if query.contains_key("list-type") => {
            let after = of("continuation-token").or_else(|| of("start-after"));
            Some(Operation::List {
                prefix: of("prefix").unwrap_or_default(),
                after: after.unwrap_or_default(),
            })
        }
        Method::GET => {
            let range = match head.headers.get(RANGE) {
                None => None,
                Some(range) => {
                    let (start, end) =
                        range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
                    let end = if end.is_empty() { usize::MAX - 1 } else { end.parse().ok()? };
                    Some(start.parse().ok()?..end + 1)
                }
            };
            Some(Operation::Get { name, range })
        }
        Method::DELETE => Some(Operation::Delete { name }),
        _ => None,
    }
}

async fn handle(store: Arc<Mutex<Store>>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let authorization = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let authorization = authorization.unwrap_or_default();
    if request.uri().path() == PROVIDER {
        return Ok(match authorization {
            TOKEN => held(&store).give_key(),
            _ => answer(StatusCode::UNAUTHORIZED, "AccessDenied"),
        });
    }
    let credential = authorization.strip_prefix("AWS4-HMAC-SHA256 Credential=").unwrap_or_default();
    let (key, _) = credential.split_once('/').unwrap_or_default();
    if !held(&store).admit(key) {
        return Ok(answer(StatusCode::FORBIDDEN, "AccessDenied"));
    }
    let Some(operation) = operation(request).await else {
        return Ok(answer(StatusCode::NOT_IMPLEMENTED, "NotImplemented"));
    };
    let fault = held(&store).fault(&operation);
    match fault {
        FaultKind::None => Ok(held(&store).run(&operation)),
        FaultKind::Slow => {
            let done = held(&store).run(&operation);
            tokio::time::sleep(SLOW).await;
            Ok(done)
        }
        FaultKind::LostRequest => Err(Cut),
        FaultKind::LostAnswer => {
            held(&store).run(&operation);
            Err(Cut)
        }
        FaultKind::Doubled => {
            let mut store = held(&store);
            store.run(&operation);
            Ok(store.run(&operation))
        }
        FaultKind::Late => {
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                held(&store).run(&operation);
            });
            Err(Cut)
        }
        FaultKind::Conflict => Ok(answer(StatusCode::CONFLICT, "ConditionalRequestConflict")),
        FaultKind::Internal => {
            let mut store = held(&store);
            if store.random.below(2) == 0 {
                store.run(&operation);
            }
            Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"))
        }
        FaultKind::Throttled => Ok(answer(StatusCode::SERVICE_UNAVAILABLE, "SlowDown")),
    }
}
