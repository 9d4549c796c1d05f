// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `StoreClient`: a store of the world as the `ObjectStore` of a volume.
use std::any::Any;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use block::{Buf, Error, ErrorKind, LocalFuture};
use object_store::client::{HttpConnector, ReqwestConnector};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt, PutMode, PutPayload};
use objvol::{Listing, ObjectStore, StoreError, WholeWork};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::bucket;
use crate::connection::{Client, Connection};
use crate::directory::Directory;
use crate::failure_record::FailureRecord;
use crate::outcome;
use crate::request::{self, CoreCaller, REQUEST_TIME, REQUESTS_MAX};
use crate::url::{Location, StoreUrl};
use crate::variables::Variables;

/// What an operator may do about a store that refuses the header of a conditional write.
const CONDITIONS_HINT: &str = " (if the store does not take If-None-Match: the option \
     `single_writer` with the variable AWS_CONDITIONAL_PUT=disabled does without it, where \
     there is never a second writer)";

/// What requests on other threads need.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    name: Arc<str>,
    /// Of a directory the file that it is: links lead there by other names.
    place: Arc<str>,
    pub(crate) connection: Connection,
    /// The prefix in the bucket; empty in a directory.
    pub(crate) root: Path,
    pub(crate) directory: Option<Directory>,
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

/// The client of a directory, and its place.
fn directory(path: &std::path::Path) -> Result<(Client, String), Error> {
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
    Ok((Client::Directory(Arc::new(opened.with_fsync(true))), place)) // OC-C3
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
            if !matches!(&outcome, Err(e) if outcome::is_open(e)) {
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
                let (name, variables) = (name.clone(), variables.clone());
                let mode = bucket::mode(&variables);
                let http: Arc<dyn HttpConnector> = Arc::new(ReqwestConnector::default());
                let connection = Connection::renewable(move || {
                    let bucket = bucket::bucket(&name, &variables, http.clone())?;
                    Ok(Client::Bucket(Arc::new(bucket)))
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
    pub(crate) fn path(&self, name: &str) -> Path {
        let whole = format!("{}/{name}", self.root);
        Path::from(whole.as_str())
    }

    /// The outcome of an error, which the log gets, too.
    pub(crate) fn reported(
        &self,
        what: &str,
        name: &str,
        error: &object_store::Error,
    ) -> StoreError {
        let outcome = outcome::of(error);
        if outcome::is_open(&outcome) {
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
        let put = client.library().put_opts(&path, payload, self.mode.clone().into()).await;
        let Err(e) = put else {
            let Some(directory) = &self.directory else { return Ok(()) };
            directory.sync_above(&name).await?;
            return directory.check(); // OC-C3: a sync may have failed meanwhile
        };
        let mut outcome = self.reported("PUT", &name, &e);
        if let StoreError::Denied(why) = &mut outcome
            && matches!(self.mode, PutMode::Create)
            && outcome::may_lack_conditions(why)
        {
            why.push_str(CONDITIONS_HINT);
        }
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
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)), // OC-C6
            ..GetOptions::default()
        };
        let (client, path) = (self.connection.client(), self.path(&name));
        let read = async { client.library().get_opts(&path, options).await?.bytes().await };
        let bytes = read.await.map_err(|e| self.reported("GET", &name, &e))?;
        if bytes.is_empty() { Err(StoreError::NotFound) } else { Ok(bytes.into()) }
    }

    async fn delete(self, name: String) -> Result<(), StoreError> {
        let deleted = self.connection.client().library().delete(&self.path(&name)).await;
        match deleted.map_err(|e| self.reported("DELETE", &name, &e)) {
            Ok(()) | Err(StoreError::NotFound) => Ok(()),
            Err(e) => Err(e),
        }
    }
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
        // A long copy is not made on the core.
        let (of, own) = (self.remote.clone(), name.to_owned());
        self.run("PUT", name, async move { of.put(own, object.read(<[u8]>::to_vec)).await })
    }

    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>> {
        let got = self.remote.clone().get(name.to_owned(), range);
        self.run("GET", name, async move { Ok(Buf::copy_of(&got.await?)) })
    }

    fn get_whole(
        &self,
        name: &str,
        most: u64,
        work: WholeWork,
    ) -> LocalFuture<Result<Option<Box<dyn Any + Send>>, StoreError>> {
        let got = self.remote.clone().get(name.to_owned(), 0..most + 1);
        self.run("GET", name, async move {
            let object = got.await?;
            Ok((object.len() as u64 <= most).then(|| work(&object)))
        })
    }

    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>> {
        let (of, name) = (self.remote.clone(), prefix.to_owned());
        self.run("LIST", prefix, of.list(name, after.to_owned()))
    }

    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>> {
        self.run("DELETE", name, self.remote.clone().delete(name.to_owned()))
    }
}

block::debug_as!(StoreClient, s => "StoreClient({})", s.remote.name);
