// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests to a store, repeated until their outcome is known.
//!
//! Invariants
//! - OV-R1 A request is repeated with the same bytes until the store has decided about it. An
//!   outage has no end that a request does not wait for.
//! - OV-R2 "It exists" is no failure and no success: what is there is read back and compared. It is
//!   the writer's own if the whole head is the same, the nonce of the opening included.
//! - OV-R3 Only an opening may give up on a store that does not answer: nothing has been
//!   acknowledged yet; and the end of a close, when everything is in the store; and a change of the
//!   owner record (OV-A6).
//! - OV-R4 Nothing is read that is longer than any object of its kind, and what may be long is
//!   counted in the memory of the process before it is read: others may write under the prefix.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Error, ErrorKind, Nanos, Planted, Reservation};
use format::objvol::{HEAD_BYTES_MAX, RECORD_BYTES_MAX, stated_head_bytes};

use crate::config::OpenOptions;
use crate::planted::Fault;
use crate::request_counts::RequestCounts;
use crate::store::{ObjectStore, StoreError, WholeWork};

/// The first wait before a request is repeated. Chosen: about one round trip to a bucket.
const BACKOFF_FIRST_NS: u64 = 50_000_000;
/// The longest wait. Chosen: an outage that has ended is noticed within seconds, and a thousand
/// volumes that wait send a hundred requests a second.
const BACKOFF_MAX_NS: u64 = 10_000_000_000;
/// What is read of an object before its head's length is known, bytes. Chosen: the head of a
/// segment of 4 MiB in extents of 4 KiB, so that it takes one request; at 100 MB/s its bytes take
/// less than a hundredth of one of 50 ms.
const HEAD_GUESS: u64 = 32 << 10;

/// What is read of a long object before its length is asked for, bytes. Chosen: most checkpoints
/// are shorter, and take one request; eight that are read at once are 8 MiB.
const WHOLE_GUESS: u64 = 1 << 20;
/// Bytes of memory for each of a long object while it is decoded: itself, and what its entries
/// become. Chosen: an extent has at least 4 bytes in a checkpoint, and 32 decoded.
const DECODED_SHARE: u64 = 8;
/// Bytes of memory for a name of a listing, beside its own.
const NAME_BYTES: u64 = 64;

/// How long a task waits after a refusal of the store before it sends the request again.
const DENIED_WAIT: Nanos = Nanos::from_secs(10);

/// What a store is asked to do: rights are given by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Put,
    Get,
    List,
    Delete,
}

/// The store refuses, for a reason that repeating does not change, or has not answered for longer
/// than somebody wants to wait: the text is for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) kind: ErrorKind,
    pub(crate) why: String,
    pub(crate) operation: Operation,
}

impl Denial {
    /// The refusal of an operation; `None` for an outcome that repeating may change (OV-R1).
    fn of(operation: Operation, error: &StoreError) -> Option<Denial> {
        let (kind, why) = match error {
            StoreError::Denied(why) => (ErrorKind::Denied, why.clone()),
            // Where an object would be made or listed nothing but the bucket can be missing.
            StoreError::NotFound | StoreError::NoBucket => {
                (ErrorKind::NotFound, StoreError::NoBucket.to_string())
            }
            StoreError::Exists
            | StoreError::Conflict
            | StoreError::Unknown
            | StoreError::Throttled => return None,
        };
        Some(Denial { kind, why, operation })
    }
}

/// Outcome of a put-if-absent.
#[derive(Debug)]
pub(crate) enum Creation {
    /// The object is there, and it is the one that was to be put.
    Own,
    /// Another object is there: its head.
    Other(Buf),
}

/// A long object.
pub(crate) enum Whole<T> {
    /// What was made of it, and the memory that this takes.
    Decoded(T, Option<Reservation>),
    /// It is longer than any that is right: so many bytes.
    TooLong(u64),
}

/// A store whose requests are repeated.
pub(crate) struct Requests {
    store: Rc<dyn ObjectStore>,
    counts: Rc<RequestCounts>,
    /// How long a request is repeated; `None`: without an end.
    patience: Cell<Option<Nanos>>,
    /// The last refusal that a task waits out, for the status.
    denial: RefCell<Option<Denial>>,
    pub(crate) planted: Planted<Fault>,
}

/// The waits between attempts.
struct Backoff {
    attempts: u32,
    began: Nanos,
}

impl Backoff {
    fn begin() -> Backoff {
        Backoff { attempts: 0, began: reactor::now() }
    }

    /// Waits twice as long as the time before, with jitter: half to all of it. Fails for a refusal,
    /// and when the request has been repeated for long enough (OV-R3).
    async fn wait(
        &mut self,
        of: &Requests,
        operation: Operation,
        outcome: &StoreError,
    ) -> Result<(), Denial> {
        if let Some(denial) = Denial::of(operation, outcome) {
            return Err(denial);
        }
        let waited = reactor::now().saturating_sub(self.began);
        if of.patience.get().is_some_and(|patience| waited >= patience) {
            let last = of.store.last_failure().unwrap_or_else(|| outcome.to_string());
            let why = format!("no answer for {} s: {last}", waited.0 / 1_000_000_000);
            return Err(Denial { kind: ErrorKind::Io, why, operation });
        }
        let most = BACKOFF_FIRST_NS.saturating_mul(1 << self.attempts.min(20)).min(BACKOFF_MAX_NS);
        self.attempts += 1;
        of.counts.add(|counts| &counts.repeated, 1);
        let jitter = reactor::random() % (most / 2 + 1);
        reactor::sleep(Nanos(most - jitter)).await;
        Ok(())
    }
}

impl Requests {
    pub(crate) fn new(store: Rc<dyn ObjectStore>, options: &OpenOptions) -> Rc<Requests> {
        Rc::new(Requests {
            store,
            counts: options.counts.clone(),
            patience: Cell::new(options.patience),
            denial: RefCell::default(),
            planted: options.planted,
        })
    }

    /// From now on requests are repeated for so long; `None`: without an end (OV-R1).
    pub(crate) fn set_patience(&self, patience: Option<Nanos>) {
        self.patience.set(patience);
    }

    /// Requests to the same store that are repeated for so long.
    pub(crate) fn within(&self, patience: Option<Nanos>) -> Requests {
        let Requests { store, counts, planted, .. } = self;
        Requests {
            store: store.clone(),
            counts: counts.clone(),
            patience: Cell::new(patience),
            denial: RefCell::default(),
            planted: *planted,
        }
    }

    /// The store refuses, or does not answer: why.
    pub(crate) fn failure(&self) -> Option<String> {
        self.denial().or_else(|| self.last_failure())
    }

    /// Why the last request has no outcome, until one has one again.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.store.last_failure()
    }

    /// Why the store refused the last request that a task waits out, if it has executed none of
    /// its kind since.
    pub(crate) fn denial(&self) -> Option<String> {
        self.denial.borrow().as_ref().map(|denial| denial.why.clone())
    }

    /// The store has executed a request of this kind.
    fn executed(&self, operation: Operation) {
        self.denial.borrow_mut().take_if(|denial| denial.operation == operation);
    }

    /// The store refuses what must be done: the operator must help, and then it goes on.
    pub(crate) async fn wait_out(&self, denial: Denial) {
        *self.denial.borrow_mut() = Some(denial);
        reactor::sleep(DENIED_WAIT).await;
    }

    /// The store's name for users.
    pub(crate) fn store_name(&self) -> &str {
        self.store.name()
    }

    /// Creates an object, or finds out what is there instead. `head_bytes` of it are compared.
    pub(crate) async fn put(
        &self,
        name: &str,
        object: &Buf,
        head_bytes: usize,
    ) -> Result<Creation, Denial> {
        let mut backoff = Backoff::begin();
        loop {
            self.counts.add(|counts| &counts.puts, 1);
            self.counts.add(|counts| &counts.put_bytes, object.len() as u64);
            match self.store.put_absent(name, object.clone()).await {
                Ok(()) => {
                    self.executed(Operation::Put);
                    return Ok(Creation::Own);
                }
                Err(outcome @ StoreError::Exists) => {
                    if self.planted.is(Fault::BelieveExists) {
                        return Ok(Creation::Own);
                    }
                    // OV-R2. None: deleted meanwhile, or the store was wrong.
                    if let Some(there) = self.head(name).await? {
                        let is_own = there.read(|there| {
                            let same = |own: &[u8]| there.get(..head_bytes) == Some(own);
                            object.read(|own| same(&own[..head_bytes]))
                        });
                        return Ok(if is_own { Creation::Own } else { Creation::Other(there) });
                    }
                    backoff.wait(self, Operation::Put, &outcome).await?;
                }
                Err(outcome) => backoff.wait(self, Operation::Put, &outcome).await?,
            }
        }
    }

    /// The first bytes of an object, with all of its head; `None` if there is no object.
    pub(crate) async fn head(&self, name: &str) -> Result<Option<Buf>, Denial> {
        let Some(begin) = self.get(name, 0..HEAD_GUESS).await? else { return Ok(None) };
        // A damaged head states anything; its decoder says so.
        match begin.read(stated_head_bytes) {
            Ok(bytes) if bytes > begin.len() as u64 && begin.len() as u64 == HEAD_GUESS => {
                self.get(name, 0..bytes.min(HEAD_BYTES_MAX as u64)).await // OV-R4
            }
            Ok(_) | Err(_) => Ok(Some(begin)),
        }
    }

    /// A whole manifest or owner record, and of a longer object its beginning, which is none
    /// (OV-R4); `None` if there is no object.
    pub(crate) async fn record(&self, name: &str) -> Result<Option<Buf>, Denial> {
        self.get(name, 0..RECORD_BYTES_MAX as u64 + 1).await
    }

    /// What `decode` makes of a whole object of at most `most` bytes, where the store does that
    /// (OV-R4); `None` if there is no object.
    pub(crate) async fn decoded<T: Send + 'static>(
        &self,
        name: &str,
        most: u64,
        decode: impl Fn(&[u8]) -> T + Clone + Send + 'static,
    ) -> Result<Option<Whole<T>>, Denial> {
        let guess = most.min(WHOLE_GUESS);
        match self.try_decode(name, guess, decode.clone()).await? {
            None => return Ok(None),
            Some(Some(value)) => return Ok(Some(Whole::Decoded(value, None))),
            Some(None) => {}
        }
        let listed = self.list(name, "").await?;
        let Some((_, bytes)) = listed.into_iter().find(|(found, _)| found == name) else {
            return Ok(None); // deleted meanwhile
        };
        if bytes > most {
            return Ok(Some(Whole::TooLong(bytes)));
        }
        let memory = self.reserve(bytes.saturating_mul(DECODED_SHARE), name)?;
        let found = self.try_decode(name, bytes, decode).await?;
        Ok(found.map(|value| match value {
            Some(value) => Whole::Decoded(value, Some(memory)),
            None => Whole::TooLong(bytes + 1), // the store lists less than it has
        }))
    }

    /// The same, without a value of an object that is longer.
    async fn try_decode<T: Send + 'static>(
        &self,
        name: &str,
        most: u64,
        decode: impl Fn(&[u8]) -> T + Clone + Send + 'static,
    ) -> Result<Option<Option<T>>, Denial> {
        let mut backoff = Backoff::begin();
        loop {
            self.counts.add(|counts| &counts.gets, 1);
            let decode = decode.clone();
            let work: WholeWork =
                Box::new(move |object| Box::new((object.len() as u64, decode(object))));
            match self.store.get_whole(name, most, work).await {
                Ok(done) => {
                    self.executed(Operation::Get);
                    let done = done.map(|done| {
                        *done.downcast::<(u64, T)>().expect("it is what the work returns")
                    });
                    let bytes = done.as_ref().map_or(most, |(bytes, _)| *bytes);
                    self.counts.add(|counts| &counts.get_bytes, bytes);
                    return Ok(Some(done.map(|(_, value)| value)));
                }
                Err(StoreError::NotFound) => return Ok(None),
                Err(outcome) => backoff.wait(self, Operation::Get, &outcome).await?,
            }
        }
    }

    /// Memory for what a store has; its lack is a refusal.
    fn reserve(&self, bytes: u64, what: &str) -> Result<Reservation, Denial> {
        let reserved = reactor::memory().reserve(bytes, what);
        reserved.map_err(|e: Error| Denial {
            kind: e.kind(),
            why: e.to_string(),
            operation: Operation::Get,
        })
    }

    /// Bytes of an object; `None` if there is no object, or it ends before them.
    pub(crate) async fn get(
        &self,
        name: &str,
        range: std::ops::Range<u64>,
    ) -> Result<Option<Buf>, Denial> {
        let mut backoff = Backoff::begin();
        loop {
            self.counts.add(|counts| &counts.gets, 1);
            match self.store.get(name, range.clone()).await {
                Ok(bytes) => {
                    self.executed(Operation::Get);
                    self.counts.add(|counts| &counts.get_bytes, bytes.len() as u64);
                    return Ok(Some(bytes));
                }
                Err(StoreError::NotFound) => return Ok(None),
                Err(outcome) => backoff.wait(self, Operation::Get, &outcome).await?,
            }
        }
    }

    /// The same, of one request that may fail: for what nobody waits for yet.
    pub(crate) async fn try_get(&self, name: &str, range: std::ops::Range<u64>) -> Option<Buf> {
        self.counts.add(|counts| &counts.gets, 1);
        let bytes = self.store.get(name, range).await.ok()?;
        self.counts.add(|counts| &counts.get_bytes, bytes.len() as u64);
        Some(bytes)
    }

    /// All names that begin with `prefix` and come after `after`, with the lengths of the objects.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: &str,
    ) -> Result<Vec<(String, u64)>, Denial> {
        let (mut all, mut after) = (Vec::new(), after.to_owned());
        let mut memory = self.reserve(0, "")?;
        let mut backoff = Backoff::begin();
        loop {
            self.counts.add(|counts| &counts.lists, 1);
            match self.store.list(prefix, &after).await {
                Ok(page) => {
                    self.executed(Operation::List);
                    backoff = Backoff::begin();
                    let bytes = page.objects.iter().map(|(name, _)| name.len() as u64 + NAME_BYTES);
                    let (bytes, what) = (memory.bytes() + bytes.sum::<u64>(), "a listing");
                    memory.grow_to(bytes, what).map_err(|e| Denial {
                        kind: e.kind(),
                        why: e.to_string(),
                        operation: Operation::List,
                    })?; // OV-R4
                    all.extend(page.objects);
                    match all.last() {
                        Some((last, _)) if page.has_more => after.clone_from(last),
                        Some(_) | None => return Ok(all),
                    }
                }
                Err(outcome) => backoff.wait(self, Operation::List, &outcome).await?,
            }
        }
    }

    /// Deletes an object, if it is there.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Denial> {
        let mut backoff = Backoff::begin();
        loop {
            self.counts.add(|counts| &counts.deletes, 1);
            match self.store.delete(name).await {
                Ok(()) | Err(StoreError::NotFound) => {
                    self.executed(Operation::Delete);
                    return Ok(());
                }
                Err(outcome) => backoff.wait(self, Operation::Delete, &outcome).await?,
            }
        }
    }
}

/// Creates a short object, all of which is compared.
pub(crate) async fn put_whole(
    requests: &Requests,
    name: &str,
    object: &[u8],
) -> Result<Creation, Denial> {
    requests.put(name, &Buf::copy_of(object), object.len()).await
}

/// The error of a refusal, with the store's name.
pub(crate) fn denied(requests: &Requests, Denial { kind, why, .. }: &Denial) -> Error {
    Error::new(*kind, format!("{}: {why}", requests.store_name()))
}
