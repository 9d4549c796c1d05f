// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An origin that records the cache above it, as a volume does: it takes changes from nobody else.
use std::cell::Cell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, CacheAbove, CacheRecord, Class, Error, Limits, LocalFuture, Nanos, Op,
    Sector, Status, ZeroRuns,
};

/// What the origin knows, which outlives the program.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The cache that is recorded.
    pub(crate) cache: Cell<Option<[u8; 16]>>,
    /// It is another history of the origin when this changes.
    pub(crate) lineage: Cell<u64>,
    /// The time that a change of the record takes.
    pub(crate) delay: Cell<Nanos>,
    /// It was not opened yet, or is suspended.
    pub(crate) is_closed: Cell<bool>,
    /// The cache that is recorded is there.
    is_attached: Cell<bool>,
}

impl Record {
    /// The program has ended.
    pub(crate) fn end_life(&self) {
        self.is_attached.set(false);
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.is_attached.get()
    }
}

pub(crate) struct RecordingOrigin {
    below: Rc<dyn BlockDevice>,
    record: Rc<Record>,
}

impl RecordingOrigin {
    pub(crate) fn over(below: Rc<dyn BlockDevice>, record: &Rc<Record>) -> Rc<RecordingOrigin> {
        Rc::new(RecordingOrigin { below, record: record.clone() })
    }

    /// Half of the time passes before the change is durable.
    async fn change(&self, cache: Option<[u8; 16]>) {
        let half = Nanos(self.record.delay.get().0 / 2);
        reactor::sleep(half).await;
        self.record.cache.set(cache);
        reactor::sleep(half).await;
    }
}

impl BlockDevice for RecordingOrigin {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn submit(&self, bio: Bio) {
        let changes = matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes);
        if changes && self.record.cache.get().is_some() && !self.record.is_attached() {
            return bio.complete(Status::ReadOnly);
        }
        self.below.submit(bio);
    }

    fn identity(&self) -> Option<String> {
        let is_open = !self.record.is_closed.get();
        is_open.then(|| format!("volume of lineage {}", self.record.lineage.get()))
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        Some(self)
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.below.zero_runs(at, len)
    }
}

impl CacheRecord for RecordingOrigin {
    fn attach(self: Rc<Self>, cache: CacheAbove) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            if self.identity().as_ref() != Some(&cache.origin) {
                return Err(Error::invalid("it is another volume"));
            }
            match self.record.cache.get() {
                Some(other) if other != cache.uuid => {
                    return Err(Error::busy("another cache belongs to it"));
                }
                Some(_) => {}
                None => self.change(Some(cache.uuid)).await,
            }
            self.record.is_attached.set(true);
            Ok(())
        })
    }

    fn leave(&self, uuid: [u8; 16]) {
        if self.record.cache.get() == Some(uuid) {
            self.record.is_attached.set(false);
        }
    }

    fn release(self: Rc<Self>, uuid: [u8; 16]) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            if self.record.cache.get() != Some(uuid) {
                return Ok(());
            }
            let flushed = reactor::flush(&*self.below, Class::Foreground).await;
            flushed.map_err(|status| Error::io(format!("flush: {status}")))?;
            self.record.is_attached.set(false);
            self.change(None).await;
            Ok(())
        })
    }
}
