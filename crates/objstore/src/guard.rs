// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Guard`: what stands between the library and HTTP.
//!
//! ```text
//!   library ─ request ─▶ Guard ─ token of a file put in ─────────▶ HTTP
//!           ◀─ answer ── Guard ◀─ at most so many bytes of a body ─┘
//! ```
//!
//! Invariants
//! - OC-C5 No text from outside ends the process: variables, files of tokens and what a provider of
//!   keys answers are checked before the library makes a part of a request of them. One that can't
//!   be sent is a refusal with its cause.
//! - OC-C6 No answer takes more memory than was asked for, or than its kind needs.
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, CredentialProvider, aws::AwsCredential};
use reqwest::header::HeaderValue;

use crate::answer;
use crate::outside_text::{check_label, check_word};
use crate::stream::next_of;
use crate::variables::Settings;

/// Bytes of an answer that no length was asked of. Chosen: a page of a listing has a thousand
/// names, of up to 1024 bytes each.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Bytes of an answer that says what is wrong: only its beginning is shown.
const ERROR_BYTES_MAX: u64 = 16 << 10;
/// What the library reads in the place of a file of tokens.
pub(crate) const NO_TOKEN: &str = "/dev/null";

/// Something that the library must not see; for the operator.
#[derive(Clone, Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn refusal(why: impl Into<String>) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, Refusal(why.into()))
}

/// Makes guarded clients of unguarded ones.
#[derive(Debug)]
pub(crate) struct GuardedConnector {
    pub(crate) inner: Arc<dyn HttpConnector>,
    pub(crate) settings: Arc<Settings>,
}

impl HttpConnector for GuardedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let (inner, settings) = (self.inner.connect(options)?, self.settings.clone());
        Ok(HttpClient::new(Guard { inner, settings }))
    }
}

#[derive(Debug)]
struct Guard {
    inner: HttpClient,
    settings: Arc<Settings>,
}

/// What a request is for, as far as that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// An object, or a listing.
    Store,
    /// A word of the metadata service, which becomes a header or a part of a URL.
    MetadataToken,
    MetadataRole,
}

/// The number of bytes that a request asks for.
fn wanted(request: &HttpRequest) -> Option<u64> {
    let range = request.headers().get("range")?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// By what no request to a store has, and not by where it goes: a metadata service may have an
/// address below that of the store. No object of ours is named like a folder.
fn purpose(request: &HttpRequest) -> Purpose {
    let uri = request.uri();
    if request.headers().contains_key("x-aws-ec2-metadata-token-ttl-seconds") {
        Purpose::MetadataToken
    } else if uri.path().ends_with("/iam/security-credentials/") && uri.query().is_none() {
        Purpose::MetadataRole
    } else {
        Purpose::Store
    }
}

/// At most `most` bytes of a body; whether that is all of it.
async fn start_of(body: HttpResponseBody, most: u64) -> Result<(Vec<u8>, bool), HttpError> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let (mut all, mut stream) = (Vec::new(), body.bytes_stream());
    while let Some(next) = next_of(&mut stream).await {
        let bytes = next?;
        let room = most - all.len();
        if bytes.len() > room {
            all.extend_from_slice(&bytes[..room]);
            return Ok((all, false));
        }
        all.extend_from_slice(&bytes);
    }
    Ok((all, true))
}

/// OC-C5: what the library makes a header, or a part of a URL, of.
fn metadata_word(bytes: Vec<u8>, purpose: Purpose) -> Result<Vec<u8>, HttpError> {
    let wrong = |why: &str| refusal(format!("an answer of the metadata service {why}"));
    let text = String::from_utf8(bytes).map_err(|_| wrong("is not text"))?;
    let word = text.trim();
    match purpose {
        // IAM: letters, digits and +=,.@-_
        Purpose::MetadataRole => check_label(&word.replace(['+', '=', ',', '@'], "-")),
        Purpose::MetadataToken | Purpose::Store => check_word(word),
    }
    .map_err(wrong)?;
    Ok(word.as_bytes().to_vec())
}

impl Guard {
    /// The token of a file, where the library has read none.
    fn put_token(&self, request: &mut HttpRequest) -> Result<(), HttpError> {
        let is_blank = |name: &str| request.headers().get(name).is_some_and(HeaderValue::is_empty);
        if let Some(file) = &self.settings.agent_token
            && is_blank("authorization")
        {
            let token = file.read().map_err(refusal)?;
            let value = HeaderValue::from_str(&token).map_err(|_| refusal("a token is no text"))?;
            request.headers_mut().insert("authorization", value);
        }
        let uri = request.uri().to_string();
        if let Some(file) = &self.settings.role_token
            && uri.ends_with("&WebIdentityToken=")
        {
            let token = file.read().map_err(refusal)?;
            let mut whole = uri;
            for byte in token.bytes() {
                if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                    whole.push(char::from(byte));
                } else {
                    whole.push_str(&format!("%{byte:02X}"));
                }
            }
            *request.uri_mut() =
                whole.parse().map_err(|_| refusal("a token is too long for a URL"))?;
        }
        Ok(())
    }

    async fn serve(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.put_token(&mut request)?;
        // The client below believes that each is a URL.
        if reqwest::Url::parse(&request.uri().to_string()).is_err() {
            return Err(refusal("the request has no valid URL"));
        }
        let (wanted, purpose) = (wanted(&request), purpose(&request));
        let (head, body) = self.inner.execute(request).await?.into_parts();
        let status = head.status.as_u16();
        if !head.status.is_success() {
            let (bytes, _) = start_of(body, ERROR_BYTES_MAX).await?;
            let words = answer::words(&bytes);
            // The library keeps the words of other answers only.
            if head.status.is_redirection() && status != 304 {
                return Err(refusal(format!("the store answers {}: {words}", head.status)));
            }
            return Ok(HttpResponse::from_parts(head, words.into()));
        }
        let most = match wanted {
            // The whole object, which the library refuses.
            Some(_) if status != 206 => {
                return Ok(HttpResponse::from_parts(head, Vec::new().into()));
            }
            Some(wanted) => wanted,
            None => ANSWER_BYTES_MAX,
        };
        let (bytes, is_whole) = start_of(body, most).await?;
        if !is_whole {
            return Err(refusal(format!("an answer has more than {most} bytes"))); // OC-C6
        }
        let bytes = match purpose {
            Purpose::Store => bytes,
            Purpose::MetadataToken | Purpose::MetadataRole => metadata_word(bytes, purpose)?,
        };
        Ok(HttpResponse::from_parts(head, bytes.into()))
    }
}

/// The shape of an asynchronous function of a trait of the library.
type Called<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl HttpService for Guard {
    fn call<'s, 'a>(&'s self, request: HttpRequest) -> Called<'a, Result<HttpResponse, HttpError>>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(self.serve(request))
    }
}

/// Keys of a provider, each checked before a request is signed with it (OC-C5).
#[derive(Debug)]
pub(crate) struct CheckedKeys(pub(crate) Arc<dyn CredentialProvider<Credential = AwsCredential>>);

impl CheckedKeys {
    async fn checked(&self) -> object_store::Result<Arc<AwsCredential>> {
        let keys = self.0.get_credential().await?;
        let AwsCredential { key_id, secret_key, token } = &*keys;
        let all = [
            ("access key", Some(key_id)),
            ("secret key", Some(secret_key)),
            ("session token", token.as_ref()),
        ];
        for (name, text) in all {
            if let Err(why) = text.map_or(Ok(()), |text| check_word(text)) {
                let why = Refusal(format!("the {name} that the provider of keys gives out {why}"));
                return Err(object_store::Error::Generic { store: "S3", source: Box::new(why) });
            }
        }
        Ok(keys)
    }
}

impl CredentialProvider for CheckedKeys {
    type Credential = AwsCredential;

    fn get_credential<'s, 'a>(&'s self) -> Called<'a, object_store::Result<Arc<AwsCredential>>>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(self.checked())
    }
}
