// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text and answers from outside that no request can carry, or that have no end (OC-C5, OC-C6).
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;

use block::Buf;
use objstore::{StoreUrl, UnboundClient, Variables};
use objvol::{ObjectStore, StoreError};

use crate::answers::{answer, bucket_at, serve, server_with};
use crate::client;

fn owned(variables: &[(&str, String)]) -> Variables {
    variables.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// Each ended the process while the first request was built.
#[test]
fn a_client_is_not_made_of_what_no_request_can_carry() {
    let url = StoreUrl::parse("s3://bucket/a").unwrap();
    for (name, value) in [
        ("AWS_ENDPOINT_URL", "storage:9000"),
        ("AWS_ENDPOINT_URL_S3", ""),
        ("AWS_REGION", "eu-1\n"),
        ("AWS_SESSION_TOKEN", "token\n"),
        ("AWS_UNSIGNED_PAYLOAD", "true"),
    ] {
        let e = UnboundClient::open(&url, &owned(&[(name, value.into())])).unwrap_err();
        assert_eq!(e.kind(), block::ErrorKind::Invalid);
        let text = e.to_string();
        assert!(text.starts_with("s3://bucket/a: ") && text.contains(name), "{text}");
    }
}

fn keys(key: &str, token: &str) -> String {
    let body = format!(
        "{{\"AccessKeyId\":\"{key}\",\"SecretAccessKey\":\"secret\",\"Token\":\"{token}\",\
         \"Expiration\":\"2099-01-01T00:00:00Z\"}}"
    );
    answer("200 OK", "", &body)
}

fn variables_of_agent(port: u16, token: &Path) -> Variables {
    owned(&[
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://127.0.0.1:{port}/keys")),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.display().to_string()),
    ])
}

/// In service: the agent gave out a key with a line break, and the daemon ended.
#[test]
fn keys_that_no_header_can_carry_are_a_refusal() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a token\n").unwrap();
    for (key, session, wrong) in
        [("key", "a\\nb", "session token"), ("key\\n", "a", "access key"), ("", "a", "access key")]
    {
        let answer = keys(key, session);
        let (port, server) = server_with(1, move |mut stream| serve(&mut stream, &answer));
        let (reactor, store) = client("s3://bucket/a", &variables_of_agent(port, &token));
        let put = reactor
            .block_on(async move { store.put_absent("manifest/01", Buf::copy_of(b"x")).await });
        let Err(StoreError::Denied(why)) = put else { panic!("{put:?}") };
        assert!(why.contains(&format!("the {wrong} that the provider")), "{why}");
        // The line break at the end of the file is no part of the token.
        let heads = server.join().unwrap();
        assert!(heads[0].contains("\r\nauthorization: a token\r\n"), "{}", heads[0]);
    }
}

/// In service: somebody wrote the file anew.
#[test]
fn a_token_file_is_read_and_checked_for_each_request_of_keys() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a").unwrap();
    let (reactor, store) = client("s3://bucket/a", &variables_of_agent(1, &token));
    std::fs::write(&token, "a\nb").unwrap();
    reactor.block_on(async move {
        let put = async || store.put_absent("manifest/01", Buf::copy_of(b"x")).await;
        for (text, why) in [(Some("a\nb"), "has a line break"), (None, "can't be read")] {
            match text {
                Some(text) => std::fs::write(&token, text).unwrap(),
                None => std::fs::remove_file(&token).unwrap(),
            }
            let found = put().await;
            assert!(matches!(&found, Err(StoreError::Denied(w)) if w.contains(why)), "{found:?}");
        }
    });
}

#[test]
fn a_token_of_a_role_is_sent_without_its_line_break() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a\nb").unwrap();
    let url = StoreUrl::parse("s3://bucket/a").unwrap();
    let variables = owned(&[
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.display().to_string()),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r".into()),
    ]);
    let e = UnboundClient::open(&url, &variables).unwrap_err().to_string();
    assert!(e.contains("AWS_WEB_IDENTITY_TOKEN_FILE has a line break"), "{e}");
    std::fs::write(&token, "a.b-c\n").unwrap();
    UnboundClient::open(&url, &variables).unwrap();
}

/// The role of a machine: its name becomes a part of a URL. A fuzzer found a service at an address
/// below that of the store, whose words were taken for those of the store.
#[test]
fn words_of_the_metadata_service_are_checked() {
    let cases = [("a?b", "", "has characters"), ("", "", "is empty")];
    for (role, below, why) in cases.into_iter().chain([("a?b", "/bucket", "has characters")]) {
        let answers = [answer("200 OK", "", "token"), answer("200 OK", "", role)];
        let next = std::cell::Cell::new(0);
        let (port, server) = server_with(2, move |mut stream| {
            let nth = next.replace(next.get() + 1);
            serve(&mut stream, &answers[nth])
        });
        let endpoint = format!("http://127.0.0.1:{port}");
        let variables = owned(&[
            ("AWS_METADATA_ENDPOINT", format!("{endpoint}{below}")),
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ALLOW_HTTP", "true".into()),
        ]);
        let (reactor, store) = client("s3://bucket/a", &variables);
        let got = reactor.block_on(async move { store.get("manifest/01", 0..10).await.map(drop) });
        let Err(StoreError::Denied(text)) = got else { panic!("{got:?}") };
        assert!(text.contains("metadata service") && text.contains(why), "{text}");
        assert_eq!(server.join().unwrap().len(), 2);
    }
}

/// Answers one request with a head, and with these bytes again and again until nobody reads.
fn endless(stream: &mut TcpStream, head: &str, part: &str) -> String {
    let request = serve(stream, head);
    while stream.write_all(part.as_bytes()).is_ok() {}
    request
}

#[test]
fn a_listing_without_an_end_is_a_refusal() {
    let part = "<Contents><Key>a/b/x</Key></Contents>".repeat(100);
    let (port, server) = server_with(1, move |mut stream| {
        endless(
            &mut stream,
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n<ListBucketResult>",
            &part,
        )
    });
    let (reactor, store) = bucket_at(port);
    let listed = reactor.block_on(async move { store.list("segment/", "").await });
    let Err(StoreError::Denied(why)) = listed else { panic!("{listed:?}") };
    assert!(why.contains("more than 4194304 bytes"), "{why}");
    server.join().unwrap();
}

#[test]
fn an_object_takes_no_more_than_was_asked_for() {
    // Ten bytes were asked for, as the head of the answer says.
    let head = "HTTP/1.1 206 Partial Content\r\nconnection: close\r\netag: 1\r\n\
                content-range: bytes 0-9/10\r\nlast-modified: Mon, 01 Jan 2024 00:00:00 \
                GMT\r\n\r\n";
    for (head, why) in [(head, Some("more than 10 bytes")), (&head.replace("206", "200"), None)] {
        let head = head.to_owned();
        let (port, server) = server_with(1, move |mut stream| endless(&mut stream, &head, "0123"));
        let (reactor, store) = bucket_at(port);
        let got = reactor.block_on(async move { store.get("manifest/01", 0..10).await.map(drop) });
        match (got, why) {
            (Err(StoreError::Denied(text)), Some(why)) => assert!(text.contains(why), "{text}"),
            (Err(StoreError::Unknown), None) => {}
            (got, _) => panic!("{got:?}"),
        }
        server.join().unwrap();
    }
}

fn page(entries: &str, token: &str) -> String {
    let body = format!(
        "<ListBucketResult>{entries}<NextContinuationToken>{token}</NextContinuationToken>\
         </ListBucketResult>"
    );
    answer("200 OK", "", &body)
}

/// What a listing names goes back to the store, in a URL.
#[test]
fn names_and_words_of_a_listing_that_are_too_long_are_a_refusal() {
    let entry = |name: &str| {
        format!(
            "<Contents><Key>a/b/{name}</Key><Size>1</Size><ETag>1</ETag>\
             <LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    };
    let long = "x".repeat(5_000);
    for (answer, why) in [
        (page(&entry(&long), ""), "a name of 5000 bytes"),
        (page("", &long), "goes on by 5000 bytes"),
    ] {
        let (port, server) = server_with(1, move |mut stream| serve(&mut stream, &answer));
        let (reactor, store) = bucket_at(port);
        let listed = reactor.block_on(async move { store.list("", "").await });
        let Err(StoreError::Denied(text)) = listed else { panic!("{listed:?}") };
        assert!(text.contains(why), "{text}");
        server.join().unwrap();
    }
    // What one page says about the next is not needed where it has a name.
    let whole = page(&entry("segment"), &long);
    let (port, server) = server_with(1, move |mut stream| serve(&mut stream, &whole));
    let (reactor, store) = bucket_at(port);
    let listed = reactor.block_on(async move { store.list("", "").await }).unwrap();
    assert_eq!((listed.objects, listed.has_more), (vec![("segment".to_owned(), 1)], true));
    server.join().unwrap();
}

/// The store's words, which name the right place, were not shown, and it was tried for a minute.
#[test]
fn a_store_elsewhere_and_one_without_conditions_say_what_to_do() {
    for (status, body, words) in [
        (
            "301 Moved Permanently",
            "<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message><Endpoint>s3.eu\
             </Endpoint></Error>",
            ["301", "PermanentRedirect: elsewhere (endpoint s3.eu)"],
        ),
        (
            "501 Not Implemented",
            "<Error><Code>NotImplemented</Code></Error>",
            ["`single_writer`", "AWS_CONDITIONAL_PUT=disabled"],
        ),
        (
            "400 Bad Request",
            "<Error><Code>InvalidArgument</Code></Error>",
            ["`single_writer`", "AWS_CONDITIONAL_PUT=disabled"],
        ),
    ] {
        let answer = answer(status, "", body);
        let (port, server) = server_with(1, move |mut stream| serve(&mut stream, &answer));
        let (reactor, store) = bucket_at(port);
        let put = reactor
            .block_on(async move { store.put_absent("manifest/01", Buf::copy_of(b"x")).await });
        let Err(StoreError::Denied(why)) = put else { panic!("{put:?}") };
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        server.join().unwrap();
    }
}
