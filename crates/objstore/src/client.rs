// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `StoreClient`: a store of the world as the `ObjectStore` of a volume.
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use block::{Buf, Error, ErrorKind, LocalFuture};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, GetOptions, GetRange, ObjectStore as Library, ObjectStoreExt,
    PutMode, PutPayload, RetryConfig,
};
use objvol::{Listing, ObjectStore, StoreError};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::connection::Connection;
use crate::directory::Directory;
use crate::failure_record::FailureRecord;
use crate::outcome;
use crate::request::{self, CoreCaller, REQUEST_TIME, REQUESTS_MAX};
use crate::url::{Location, StoreUrl};

/// How long a connection may take.
const CONNECT_TIME: &str = "10 seconds";
/// Names of one page of a listing: what S3 returns in one answer.
const PAGE_NAMES: usize = 1000;

/// What requests on other threads need.
#[derive(Clone, Debug)]
struct Remote {
    name: Arc<str>,
    /// Of a directory the file that it is: links lead there by other names.
    place: Arc<str>,
    connection: Connection,
    /// The prefix in the bucket; empty in a directory.
    root: Path,
    directory: Option<Directory>,
    mode: PutMode,
    failures: FailureRecord,
}

/// A client of a store, for one core.
pub struct StoreClient {
    remote: Remote,
    caller: CoreCaller,
    turns: Arc<Semaphore>,
    runtime: &'static Runtime,
}

/// Variables of an environment.
pub type Variables = Vec<(String, String)>;

/// Those of this process that concern S3: `AWS_ACCESS_KEY_ID` and others.
pub fn variables() -> Variables {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(|(name, _)| name.starts_with("AWS_")).collect()
}

/// S3 as these variables have it: those that the library knows.
fn bucket(bucket: &str, variables: &Variables) -> AmazonS3Builder {
    let seconds = |time: std::time::Duration| format!("{} seconds", time.as_secs());
    let client = |key| AmazonS3ConfigKey::Client(key);
    let mut builder = AmazonS3Builder::new();
    for (name, value) in variables {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    builder
        .with_bucket_name(bucket)
        .with_config(client(ClientConfigKey::Timeout), seconds(REQUEST_TIME))
        .with_config(client(ClientConfigKey::ConnectTimeout), CONNECT_TIME)
        // One DELETE for each object: not every store has the other way.
        .with_config(AmazonS3ConfigKey::DisableBulkDelete, "true")
        .with_retry(RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 0,
            retry_timeout: REQUEST_TIME,
        })
}

/// Whether creates are conditional.
fn mode(bucket: &AmazonS3Builder) -> PutMode {
    match bucket.get_config_value(&AmazonS3ConfigKey::ConditionalPut).as_deref() {
        Some("disabled") => PutMode::Overwrite,
        Some(_) | None => PutMode::Create,
    }
}

/// The client of a directory, and its place.
fn directory(path: &std::path::Path) -> Result<(Arc<dyn Library>, String), Error> {
    let meta = std::fs::metadata(path).map_err(|e| {
        let kind = ErrorKind::of_io(e.kind());
        Error::new(kind, block::without_errno(e))
    })?;
    if !meta.is_dir() {
        return Err(Error::invalid("it is no directory"));
    }
    let opened = LocalFileSystem::new_with_prefix(path);
    let opened = opened.map_err(|e| Error::io(outcome::text(&e)))?;
    let place = format!("device {} inode {}", meta.dev(), meta.ino());
    Ok((Arc::new(opened.with_fsync(true)), place)) // OC-C3
}

impl StoreClient {
    fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        name: &str,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> LocalFuture<Result<T, StoreError>> {
        let (failures, store) = (self.remote.failures.clone(), self.remote.name.clone());
        let text = format!("{what} {name}");
        let watched = async move {
            let Ok(outcome) = tokio::time::timeout(REQUEST_TIME, request).await else {
                failures.begin(&store, &text, "no answer in time");
                return Err(StoreError::Unknown);
            };
            // `reported` has recorded those; the others are decisions of the store.
            if !matches!(outcome, Err(StoreError::Unknown | StoreError::Throttled)) {
                failures.end(&store);
            }
            outcome
        };
        request::run(self.runtime, &self.caller, &self.turns, watched)
    }
}

/// A client that has no core yet.
#[derive(Debug)]
pub struct UnboundClient {
    remote: Remote,
    runtime: &'static Runtime,
}

impl UnboundClient {
    /// A client of `url`. For a directory it looks at the file system; it sends
    /// nothing to a bucket. It waits for that: not on a core thread.
    ///
    /// # Errors
    /// `Invalid` for variables of the environment that are not understood; `NoFile` and others of
    /// the system for a directory.
    pub fn open(url: &StoreUrl, variables: &Variables) -> Result<UnboundClient, Error> {
        let within = |e: Error| e.within(url);
        let runtime = request::runtime()?;
        let mut place: Arc<str> = url.to_string().into();
        let (connection, mode, root, dir) = match url.location() {
            Location::Bucket { bucket: name, prefix } => {
                // The library's connections belong to a runtime.
                let _entered = runtime.enter();
                let bucket = bucket(name, variables);
                let mode = mode(&bucket);
                let connection = Connection::renewable(move || {
                    let built = bucket.clone().build();
                    Ok(Arc::new(built.map_err(|e| Error::invalid(outcome::text(&e)))?))
                });
                (connection.map_err(within)?, mode, Path::from(prefix.as_str()), None)
            }
            Location::Directory(path) => {
                let (client, found) = directory(path).map_err(within)?;
                place = found.into();
                let connection = Connection::fixed(client);
                (connection, PutMode::Create, Path::default(), Some(Directory::new(path, &place)))
            }
        };
        let (name, failures) = (url.to_string().into(), FailureRecord::default());
        let remote = Remote { name, place, connection, root, directory: dir, mode, failures };
        Ok(UnboundClient { remote, runtime })
    }

    /// The client, for the core that `caller` calls, which is this one.
    pub fn on_this_core(self, caller: CoreCaller) -> StoreClient {
        let UnboundClient { remote, runtime } = self;
        StoreClient { remote, caller, turns: Arc::new(Semaphore::new(REQUESTS_MAX)), runtime }
    }
}

impl Remote {
    fn path(&self, name: &str) -> Path {
        let whole = format!("{}/{name}", self.root);
        Path::from(whole.as_str())
    }

    /// The outcome of an error, which the log gets, too.
    fn reported(&self, what: &str, name: &str, error: &object_store::Error) -> StoreError {
        let outcome = outcome::of(error);
        if matches!(outcome, StoreError::Unknown | StoreError::Throttled) {
            self.failures.begin(&self.name, &format!("{what} {name}"), &outcome::text(error));
        }
        if matches!(outcome, StoreError::Denied(_)) {
            self.connection.renew();
        }
        outcome
    }

    async fn put(self, name: String, object: Vec<u8>) -> Result<(), StoreError> {
        if let Some(directory) = &self.directory {
            directory.check()?;
        }
        let payload = PutPayload::from(object);
        let (client, path) = (self.connection.client(), self.path(&name));
        let put = client.put_opts(&path, payload, self.mode.clone().into()).await;
        let Err(e) = put else {
            let Some(directory) = &self.directory else { return Ok(()) };
            directory.sync_above(&name).await?;
            return directory.check(); // OC-C3: a sync may have failed meanwhile
        };
        let outcome = self.reported("PUT", &name, &e);
        if let Some(directory) = &self.directory {
            directory.note_failure(outcome::errno(&e));
            directory.check()?;
            if outcome == StoreError::Exists {
                directory.sync(&name).await?; // OC-C3
            }
        }
        Err(outcome)
    }

    async fn get(self, name: String, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let wanted = match (range.start, range.end) {
            (0, u64::MAX) => None,
            (start, u64::MAX) => Some(GetRange::Offset(start)),
            (start, end) => Some(GetRange::Bounded(start..end)),
        };
        let options = GetOptions { range: wanted, ..GetOptions::default() };
        let (client, path) = (self.connection.client(), self.path(&name));
        let read = async { client.get_opts(&path, options).await?.bytes().await };
        let bytes = read.await.map_err(|e| self.reported("GET", &name, &e))?;
        if bytes.is_empty() { Err(StoreError::NotFound) } else { Ok(bytes.into()) }
    }

    async fn list(self, prefix: String, after: String) -> Result<Listing, StoreError> {
        // The library's prefixes are whole parts of a path.
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let folder = Some(self.path(folder)).filter(|path| !path.as_ref().is_empty());
        let client = self.connection.client();
        let mut pages = match after.as_str() {
            "" => client.list(folder.as_ref()),
            after => client.list_with_offset(folder.as_ref(), &self.path(after)),
        };
        let mut objects: Vec<(String, u64)> = Vec::new();
        let mut has_more = false;
        while let Some(next) = next_of(&mut pages).await {
            let meta = match next.map_err(|e| self.reported("LIST", &prefix, &e)) {
                Ok(meta) => meta,
                // What came before the error is a page: a long listing needs no luck.
                Err(_) if self.directory.is_none() && !objects.is_empty() => {
                    has_more = true;
                    break;
                }
                Err(e) => return Err(e),
            };
            let Some(name) = self.name_of(&meta.location) else { continue };
            if !name.starts_with(&prefix) || *name <= *after {
                continue;
            }
            // A directory has no order, so it is read to its end.
            if self.directory.is_none() {
                if objects.last().is_some_and(|(last, _)| *last >= name) {
                    let text = format!("its listing of {prefix} is not in order"); // OC-C4
                    return Err(StoreError::Denied(text));
                }
                has_more = objects.len() == PAGE_NAMES;
                if has_more {
                    break;
                }
            }
            objects.push((name, meta.size));
        }
        objects.sort_unstable();
        Ok(Listing { objects, has_more })
    }

    /// The name of an object under the prefix.
    fn name_of(&self, path: &Path) -> Option<String> {
        let rest = path.as_ref().strip_prefix(self.root.as_ref())?;
        let rest = if self.root.as_ref().is_empty() { rest } else { rest.strip_prefix('/')? };
        Some(rest.to_owned())
    }

    async fn delete(self, name: String) -> Result<(), StoreError> {
        let deleted = self.connection.client().delete(&self.path(&name)).await;
        match deleted.map_err(|e| self.reported("DELETE", &name, &e)) {
            Ok(()) | Err(StoreError::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// The next item of a stream.
async fn next_of<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|cx| std::pin::Pin::new(&mut *stream).poll_next(cx)).await
}

impl ObjectStore for StoreClient {
    fn name(&self) -> &str {
        &self.remote.name
    }

    fn place(&self) -> &str {
        &self.remote.place
    }

    fn last_failure(&self) -> Option<String> {
        self.remote.failures.last()
    }

    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>> {
        let object = object.read(<[u8]>::to_vec);
        self.run("PUT", name, self.remote.clone().put(name.to_owned(), object))
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        let bytes = self.run("GET", name, self.remote.clone().get(name.to_owned(), range));
        Box::pin(async move { Ok(Buf::copy_of(&bytes.await?)) })
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        let (of, name) = (self.remote.clone(), prefix.to_owned());
        self.run("LIST", prefix, of.list(name, after.to_owned()))
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        self.run("DELETE", name, self.remote.clone().delete(name.to_owned()))
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreClient({})", self.remote.name)
    }
}
