// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The border to an object store: the few operations that a volume needs of it.
//!
//! A volume never changes an object: it creates objects under names that nobody has used, reads
//! parts of them, lists names and deletes objects. Everything that decides who may write is decided
//! by [`ObjectStore::put_absent`].
use std::any::Any;
use std::fmt;
use std::ops::Range;

use block::{Buf, LocalFuture};

/// One page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names, ascending by their bytes, with the length of each object in bytes.
    pub objects: Vec<(String, u64)>,
    /// There are more names behind the last one.
    pub has_more: bool,
}

/// Why an operation of a store did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// `put_absent`: there is an object of this name (HTTP 412). After a request whose answer was
    /// lost, and with stores that send a request twice, it may be the caller's own.
    Exists,
    /// `put_absent`: another request for the name is under way (HTTP 409): nothing is decided.
    Conflict,
    /// There is no such object (HTTP 404).
    NotFound,
    /// There is no such bucket (HTTP 404 with that code).
    NoBucket,
    /// The outcome is unknown: no answer in time, a lost connection, an error 5xx. The request may
    /// have taken effect, may take effect at any time from now on, or never.
    Unknown,
    /// The store asks for fewer requests (HTTP 429, 503 SlowDown); it has not done anything.
    Throttled,
    /// The store refuses: credentials, rights. The text is for the operator.
    Denied(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Exists => f.write_str("the object exists already"),
            StoreError::Conflict => f.write_str("another request for the object is under way"),
            StoreError::NotFound => f.write_str("no such object"),
            StoreError::NoBucket => f.write_str("the bucket is not there"),
            StoreError::Unknown => f.write_str("no answer, or an error of the store"),
            StoreError::Throttled => f.write_str("the store asks for fewer requests"),
            StoreError::Denied(why) => write!(f, "refused: {why}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// What is done with a whole object, and its result.
pub type WholeWork = Box<dyn FnOnce(&[u8]) -> Box<dyn Any + Send> + Send>;

/// A prefix of a bucket.
///
/// Lifecycle: shared by `Rc` on one core. Any number of operations may be under way at once, in any
/// order. An operation begins when its future is first polled. Dropping the future does not undo
/// it: a request that was sent may take effect at any time later, also after its process has ended.
///
/// What a volume relies on, beside that:
/// - `put_absent` creates an object whole or not at all, and at most one of all requests for a name
///   that nobody deletes succeeds (conditional writes: `If-None-Match: *`);
/// - an object whose `put_absent` or `delete` has succeeded is seen, or not seen, by every `get`
///   and `list` that begins later (strong consistency, as S3 has had since December 2020);
/// - nobody else writes or deletes under the prefix: no lifecycle rules, no clean-up.
pub trait ObjectStore {
    /// Its name for users: URL of the prefix.
    fn name(&self) -> &str;

    /// Where its objects are: the same for two names of one place.
    fn place(&self) -> &str {
        self.name()
    }

    /// Why the last request had no outcome, until one has one again: for the operator.
    fn last_failure(&self) -> Option<String> {
        None
    }

    /// Creates the object `name` if there is none. All errors but `NotFound`; an error other than
    /// `Exists`, `Conflict` and `Throttled` says nothing about whether the object is there.
    fn put_absent(&self, name: &str, object: Buf) -> LocalFuture<Result<(), StoreError>>;

    /// Reads the bytes `range` of an object; fewer where the object ends before, and at least one.
    /// `NotFound` also where the object ends before the range.
    fn get(&self, name: &str, range: Range<u64>) -> LocalFuture<Result<Buf, StoreError>>;

    /// Reads a whole object and hands it to `work`, the result of which is returned; `None`,
    /// without work, for an object of more than `most` bytes. A store that has threads does the
    /// work there: a long object takes no time of the core.
    fn get_whole(
        &self,
        name: &str,
        most: u64,
        work: WholeWork,
    ) -> LocalFuture<Result<Option<Box<dyn Any + Send>>, StoreError>> {
        let read = self.get(name, 0..most + 1);
        Box::pin(async move {
            let object = read.await?;
            Ok((object.len() as u64 <= most).then(|| object.read(work)))
        })
    }

    /// Lists objects whose names begin with `prefix` and come after `after` by their bytes, at most
    /// as many as the store likes, at least one if there are any.
    fn list(&self, prefix: &str, after: &str) -> LocalFuture<Result<Listing, StoreError>>;

    /// Deletes an object. Succeeds also where there was none.
    fn delete(&self, name: &str) -> LocalFuture<Result<(), StoreError>>;
}
