// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each answer of a server means: a server that gives one answer to every request.
//!
//! The tests of whole volumes have a server that is an object store (`lab/e2e/src/bucket`).
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use block::Buf;
use objstore::StoreClient;
use objvol::{ObjectStore, StoreError};
use reactor::Reactor;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::client;

/// Reads a request and answers it with these bytes; returns its head.
pub(crate) fn serve(stream: &mut (impl Read + Write), answer: &str) -> String {
    let mut reader = BufReader::new(&mut *stream);
    let (mut head, mut body) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.to_ascii_lowercase();
        if let Some(len) = lower.strip_prefix("content-length: ") {
            body = len.trim().parse().unwrap();
        }
        if line == "\r\n" || line.is_empty() {
            break;
        }
        head.push_str(&lower);
    }
    reader.read_exact(&mut vec![0; body]).unwrap();
    stream.write_all(answer.as_bytes()).unwrap();
    head
}

pub(crate) type Heads = JoinHandle<Vec<String>>;

/// Answers `requests` requests, each on a connection of its own, with these bytes.
fn server(answer: String, requests: usize) -> (u16, Heads) {
    server_with(requests, move |mut stream| serve(&mut stream, &answer))
}

/// Has `serve` serve `requests` connections.
pub(crate) fn server_with(
    requests: usize,
    serve: impl Fn(TcpStream) -> String + Send + 'static,
) -> (u16, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accept = move || (0..requests).map(|_| serve(listener.accept().unwrap().0)).collect();
    #[expect(clippy::disallowed_methods, reason = "the server of a test")]
    let thread = std::thread::spawn(accept);
    (port, thread)
}

/// A client of a bucket at this port.
pub(crate) fn bucket_at(port: u16) -> (Reactor, Rc<StoreClient>) {
    bucket_with(("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")), "AWS_ALLOW_HTTP")
}

/// A client of a bucket at an endpoint, with a variable that is true.
fn bucket_with(endpoint: (&str, String), variable: &str) -> (Reactor, Rc<StoreClient>) {
    let variables = [
        endpoint,
        (variable, "true".into()),
        ("AWS_ACCESS_KEY_ID", "key".into()),
        ("AWS_SECRET_ACCESS_KEY", "secret".into()),
        ("AWS_SESSION_TOKEN", "session".into()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value)).into();
    client("s3://bucket/a/b", &variables)
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n{headers}\r\n{body}"
    )
}

/// What the three kinds of requests make of an answer.
fn outcomes(answer: String) -> [Result<(), StoreError>; 3] {
    let (port, server) = server(answer, 3);
    let (reactor, store) = bucket_at(port);
    let outcomes = reactor.block_on(async move {
        let put = store.put_absent("manifest/01", Buf::copy_of(b"object")).await;
        let got = store.get("manifest/01", 0..100).await.map(drop);
        [put, got, store.delete("manifest/01").await]
    });
    server.join().unwrap();
    outcomes
}

#[test]
fn every_status_has_its_outcome() {
    use StoreError::{Conflict, Denied, Exists, NoBucket, NotFound, Throttled, Unknown};
    let denied = || Err(Denied(String::new()));
    for (status, put, get, delete) in [
        ("412 Precondition Failed", Err(Exists), Err(Exists), Err(Exists)),
        ("409 ConditionalRequestConflict", Err(Conflict), Err(Conflict), Err(Conflict)),
        ("409 OperationAborted", Err(Conflict), Err(Conflict), Err(Conflict)),
        ("409 Conflict", denied(), denied(), denied()),
        ("404 Not Found", Err(NotFound), Err(NotFound), Ok(())),
        ("404 NoSuchBucket", Err(NoBucket), Err(NoBucket), Err(NoBucket)),
        ("301 Moved Permanently", denied(), denied(), denied()),
        ("416 Range Not Satisfiable", Err(NotFound), Err(NotFound), Ok(())),
        ("429 Too Many Requests", Err(Throttled), Err(Throttled), Err(Throttled)),
        ("503 Slow Down", Err(Throttled), Err(Throttled), Err(Throttled)),
        ("500 Internal Server Error", Err(Unknown), Err(Unknown), Err(Unknown)),
        ("502 Bad Gateway", Err(Unknown), Err(Unknown), Err(Unknown)),
        ("504 Gateway Timeout", Err(Unknown), Err(Unknown), Err(Unknown)),
        ("408 Request Timeout", Err(Unknown), Err(Unknown), Err(Unknown)),
        ("400 Bad Request", denied(), denied(), denied()),
        ("401 Unauthorized", denied(), denied(), denied()),
        ("403 Forbidden", denied(), denied(), denied()),
        ("405 Method Not Allowed", denied(), denied(), denied()),
        ("501 Not Implemented", denied(), denied(), denied()),
    ] {
        // The words behind some numbers above are a code that matters.
        let codes = ["ConditionalRequestConflict", "OperationAborted", "NoSuchBucket"];
        let code = codes.into_iter().find(|code| status.ends_with(code)).unwrap_or("TheCode");
        let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        let found = outcomes(answer(status, "", &body)).map(|outcome| match outcome {
            Err(Denied(why)) => {
                assert!(why.contains("TheCode") && why.contains(&status[..3]), "{status}: {why}");
                assert!(!why.contains("xml"), "{status}: {why}");
                Err(Denied(String::new()))
            }
            other => other,
        });
        assert_eq!(found, [put, get, delete], "{status}");
    }
}

#[test]
fn no_answer_and_half_an_answer_prove_nothing() {
    let unknown = [(); 3].map(|()| Err(StoreError::Unknown));
    assert_eq!(outcomes(String::new()), unknown);
    let whole = answer("500 Internal Server Error", "", "the end is missing");
    assert_eq!(outcomes(whole[..whole.len() - 7].to_owned()), unknown);
    // Nobody listens.
    let (port, server) = server(String::new(), 0);
    server.join().unwrap();
    let (reactor, store) = bucket_at(port);
    reactor.block_on(async move {
        let put = store.put_absent("manifest/01", Buf::copy_of(b"object")).await;
        assert_eq!(put, Err(StoreError::Unknown));
        assert!(
            store.last_failure().unwrap().starts_with("PUT manifest/01: "),
            "{:?}",
            store.last_failure()
        );
    });
}

#[test]
fn a_body_that_is_cut_off_is_no_object() {
    let headers = "content-range: bytes 0-9/10\r\netag: \"1\"\r\n\
                   last-modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n";
    let whole = answer("206 Partial Content", headers, "0123456789");
    for cut in [0, 4] {
        let (port, server) = server(whole[..whole.len() - cut].to_owned(), 1);
        let (reactor, store) = bucket_at(port);
        let got = reactor.block_on(async move { store.get("manifest/01", 0..100).await });
        let got = got.map(|bytes| bytes.len());
        assert_eq!(got, if cut == 0 { Ok(10) } else { Err(StoreError::Unknown) });
        server.join().unwrap();
    }
}

#[test]
fn a_put_is_conditional_signed_and_whole() {
    let (port, server) = server(answer("200 OK", "etag: \"1\"\r\n", ""), 1);
    let (reactor, store) = bucket_at(port);
    let put = reactor
        .block_on(async move { store.put_absent("manifest/01", Buf::copy_of(b"object")).await });
    assert_eq!(put, Ok(()));
    let heads = server.join().unwrap();
    for part in [
        "put /bucket/a/b/manifest/01 http/1.1",
        "if-none-match: *",
        "content-length: 6",
        "x-amz-security-token: session",
        "authorization: aws4-hmac-sha256 credential=key/",
    ] {
        assert!(heads[0].contains(part), "{part}: {}", heads[0]);
    }
}

/// A certificate that nobody has signed is refused, and taken where the variables say so.
#[test]
fn requests_go_over_tls_and_certificates_are_checked() {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![own.cert.der().clone()], key).unwrap());
    for (variable, is_taken) in
        [("AWS_ALLOW_HTTP", false), ("AWS_ALLOW_INVALID_CERTIFICATES", true)]
    {
        let (config, done) = (config.clone(), answer("200 OK", "etag: \"1\"\r\n", ""));
        let (port, server) = server_with(1, move |stream| {
            let mut tls = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            // The client may have gone in the middle of the handshake.
            match tls.conn.complete_io(&mut tls.sock) {
                Ok(_) => serve(&mut tls, &done),
                Err(e) => e.to_string(),
            }
        });
        let endpoint = ("AWS_ENDPOINT_URL", format!("https://127.0.0.1:{port}"));
        let (reactor, store) = bucket_with(endpoint, variable);
        let put = reactor.block_on(async move {
            let put = store.put_absent("manifest/01", Buf::copy_of(b"object")).await;
            put.map_err(|e| (e, store.last_failure().unwrap_or_default()))
        });
        let head = server.join().unwrap().remove(0);
        match put {
            Ok(()) => assert!(is_taken && head.starts_with("put "), "{head}"),
            Err((e, why)) => {
                assert!(!is_taken && e == StoreError::Unknown, "{e}: {why}");
                assert!(why.contains("certificate"), "{why}");
            }
        }
    }
}
