// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Texts from outside on their way to an object store: variables of the environment, files of
//! tokens, and what a provider of keys and the store answer.
//!
//! What must hold (OC-C5): whatever the checks let through never makes the library panic while it
//! builds, signs or sends a request, or reads an answer. Here a panic unwinds; in the program it
//! would end the daemon.
#![no_main]

use std::path::Path as FilePath;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode};
use objstore::StoreUrl;
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));

/// Those that are taken; the numbers of an input choose among them.
const NAMES: [&str; 19] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_METADATA_ENDPOINT",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_REQUEST_PAYER",
    "AWS_CONDITIONAL_PUT",
];

#[derive(Arbitrary, Debug)]
struct Input {
    bucket: Option<String>,
    prefix: String,
    variables: Vec<(u8, String)>,
    /// What the file of a token holds: of an agent, or of a role.
    token: Option<(bool, Vec<u8>)>,
    answers: Vec<Answer>,
}

#[derive(Arbitrary, Clone, Debug)]
enum Answer {
    /// Anything.
    Bytes(u16, Vec<u8>),
    /// Keys, as agents give them out.
    Keys(String, String, String),
    /// Keys, as the service for roles gives them out.
    RoleKeys(String, String),
    /// A page of a listing: a name, and how it goes on.
    Page(String, String, u8),
    /// A part of an object.
    Part(String, Vec<u8>),
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

impl Answer {
    fn response(&self) -> (u16, Option<&str>, Vec<u8>) {
        let until = "2099-01-01T00:00:00Z";
        match self {
            Answer::Bytes(status, bytes) => (100 + status % 500, None, bytes.clone()),
            Answer::Keys(key, secret, token) => {
                let body = format!(
                    "{{\"AccessKeyId\":{key:?},\"SecretAccessKey\":{secret:?},\"Token\":{token:?},\
                     \"Expiration\":\"{until}\"}}"
                );
                (200, None, body.into())
            }
            Answer::RoleKeys(key, token) => {
                let body = format!(
                    "<R><AssumeRoleWithWebIdentityResult><Credentials><SessionToken>{}\
                     </SessionToken><SecretAccessKey>s</SecretAccessKey><AccessKeyId>{}\
                     </AccessKeyId><Expiration>{until}</Expiration></Credentials>\
                     </AssumeRoleWithWebIdentityResult></R>",
                    xml(token),
                    xml(key)
                );
                (200, None, body.into())
            }
            Answer::Page(name, token, many) => {
                let many = 1usize << (many % 18);
                let body = format!(
                    "<L><Contents><Key>{}</Key><Size>1</Size><LastModified>{until}</LastModified>\
                     </Contents><NextContinuationToken>{}</NextContinuationToken></L>",
                    xml(&name.repeat(many.min(1 + 70_000 / name.len().max(1)))),
                    xml(token)
                );
                (200, None, body.into())
            }
            Answer::Part(range, bytes) => (206, Some(range), bytes.clone()),
        }
    }
}

/// Answers what the input says, one after another.
#[derive(Clone, Debug)]
struct Outside {
    answers: Arc<Vec<Answer>>,
    next: Arc<AtomicUsize>,
}

impl HttpConnector for Outside {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Outside {
    fn call<'s, 'a>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>
    where
        's: 'a,
        Self: 'a,
    {
        // What the client of the program does first.
        let _url: reqwest::Url = request.uri().to_string().parse().expect("a URL");
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self.answers.get(nth).cloned().unwrap_or(Answer::Bytes(400, Vec::new()));
        let (status, range, body) = answer.response();
        let mut response = HttpResponse::new(body.into());
        *response.status_mut() = reqwest::StatusCode::from_u16(status).expect("of three digits");
        if let Some(value) = range.and_then(|range| range.parse().ok()) {
            response.headers_mut().insert("content-range", value);
        }
        Box::pin(async move { Ok(response) })
    }
}

/// A place for the file of a token, of this process.
static TOKEN: LazyLock<String> = LazyLock::new(|| {
    let dir = if FilePath::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    format!("{dir}/millpond-fuzz-token-{}", std::process::id())
});

fuzz_target!(|input: Input| {
    let mut variables: Vec<(String, String)> = vec![("AWS_ALLOW_HTTP".into(), "true".into())];
    for (nth, value) in &input.variables {
        variables.push((NAMES[usize::from(*nth) % NAMES.len()].into(), value.clone()));
    }
    if let Some((is_role, token)) = &input.token {
        std::fs::write(&*TOKEN, token).expect("a file in memory");
        let name = match is_role {
            true => "AWS_WEB_IDENTITY_TOKEN_FILE",
            false => "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        };
        variables.push((name.into(), TOKEN.clone()));
    }
    let bucket = input.bucket.as_deref().unwrap_or("bucket");
    let prefix = match StoreUrl::parse(&format!("s3://bucket/{}", input.prefix)) {
        Ok(_) => input.prefix.as_str(),
        Err(_) => "disks/one",
    };
    let outside = Outside { answers: Arc::new(input.answers), next: Arc::new(AtomicUsize::new(0)) };
    let Ok(store) = objstore::bucket(bucket, &variables, Arc::new(outside)) else { return };
    RUNTIME.block_on(async {
        let path = Path::from(format!("{prefix}/manifest/0000000000000001"));
        let _ = store.put_opts(&path, vec![1, 2].into(), PutMode::Create.into()).await;
        let range = Some(GetRange::Bounded(0..1024));
        let options = GetOptions { range, ..GetOptions::default() };
        if let Ok(found) = store.get_opts(&path, options).await {
            let _ = found.bytes().await;
        }
        let options = PaginatedListOptions::default();
        let _ = store.list_paginated(Some(prefix), options).await;
        let _ = store.delete(&path).await;
    });
});
