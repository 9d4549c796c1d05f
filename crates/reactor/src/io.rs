// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in flight: the op table, the futures that wait on it, and completion chains.
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::{
    Bio, BlockDevice, Bufs, Class, Completion, CoreId, Flags, Op, OpKey, Opener, Sector, Status,
    crashing,
};
use slab::Slab;

use crate::core::{Core, post, with_core};
use crate::driver::{FileId, Msg, OpResult, Sqe, SqeOp};

/// Told when a chained or watched request has ended, before whoever waits for it. May count and
/// wake; must not submit or complete (RE-R3). A leaf may hand the driver what waited for the end,
/// with [`push_bio`], and complete what it had cut in pieces: both only queue.
pub trait OnDone {
    /// The request ended with `status`. `tag` is what [`chain`] or [`watched`] was given.
    fn on_done(&self, status: Status, tag: u64);

    /// The same for a chained request. The watcher completes `parent`, now or later, with the
    /// status that the submitter gets.
    #[inline]
    fn on_chained_done(&self, status: Status, tag: u64, parent: Completion) {
        self.on_done(status, tag);
        parent.complete(status);
    }
}

enum Slot {
    Waiting(Option<Waker>),
    Done(OpResult),
    /// The future was dropped first; the slot goes when the outcome comes.
    Orphan,
    /// The record of a bio that was remapped in place: who watches, and whose outcome it is.
    Chain {
        parent: Completion,
        watcher: Rc<dyn OnDone>,
        tag: u64,
    },
    /// Nobody waits: the watcher is all that hears of it.
    Watched {
        watcher: Rc<dyn OnDone>,
        tag: u64,
    },
}

/// All requests of one core that are in flight.
#[derive(Default)]
pub(crate) struct OpTable(Slab<Slot>);

impl OpTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    fn insert(&mut self, slot: Slot) -> OpKey {
        OpKey(u32::try_from(self.0.insert(slot)).expect("fewer than 2^32 requests in flight"))
    }
    /// Stores the outcome where a future looks for it, or takes the slot out where none does.
    /// Returns what the slot was: who is to be told, once nothing is borrowed.
    fn end(&mut self, key: OpKey, result: OpResult) -> Slot {
        let slot = self.0.get_mut(index(key)).expect("an op ends once, and only after it began");
        match slot {
            Slot::Waiting(_) => std::mem::replace(slot, Slot::Done(result)),
            Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } => self.0.remove(index(key)),
            Slot::Done(_) => panic!("a request was completed twice"),
        }
    }
}

impl Slot {
    /// Tells whoever waited of the end.
    #[inline]
    fn tell(self, status: Status) {
        match self {
            Slot::Waiting(Some(waker)) => waker.wake(),
            Slot::Waiting(None) | Slot::Orphan => {}
            Slot::Chain { parent, watcher, tag } => watcher.on_chained_done(status, tag, parent),
            Slot::Watched { watcher, tag } => watcher.on_done(status, tag),
            Slot::Done(_) => unreachable!("what has ended does not end"),
        }
    }
}

fn index(key: OpKey) -> usize {
    key.0 as usize
}

/// Ends an op of the current core.
pub(crate) fn finish(key: OpKey, result: OpResult) {
    with_core(|c| c.ops.borrow_mut().end(key, result)).tell(result.status);
}

/// The [`block::FinishFn`] of this reactor.
fn finish_from_anywhere(home: CoreId, key: OpKey, status: Status) {
    let result = OpResult::from(status);
    // One look at the core, for every bio that ends.
    let here = |c: &Core| (c.id == home).then(|| c.ops.borrow_mut().end(key, result));
    match with_core(here) {
        Some(ended) => ended.tell(status),
        None => post(home, Msg::Complete { key, result }),
    }
}

#[inline]
fn new_completion(slot: Slot) -> (OpKey, Completion) {
    let (id, key) = with_core(|c| (c.id, c.ops.borrow_mut().insert(slot)));
    (key, Completion::new(finish_from_anywhere, id, key))
}

/// A completion that tells `watcher` first and then `parent`: what a mapped device puts into a bio
/// that it remaps in place. Costs one slot of the op table, no allocation.
pub fn chain(parent: Completion, watcher: Rc<dyn OnDone>, tag: u64) -> Completion {
    new_completion(Slot::Chain { parent, watcher, tag }).1
}

/// A completion of which only `watcher` is told: what an engine puts into a bio of its own when no
/// task waits for it. Costs one slot of the op table, no allocation.
pub fn watched(watcher: Rc<dyn OnDone>, tag: u64) -> Completion {
    new_completion(Slot::Watched { watcher, tag }).1
}

fn poll_op(key: OpKey, cx: &mut Context<'_>) -> Poll<OpResult> {
    with_core(|c| match &mut c.ops.borrow_mut().0[index(key)] {
        Slot::Done(result) => Poll::Ready(*result),
        Slot::Waiting(waker) => {
            match waker {
                Some(w) if w.will_wake(cx.waker()) => {}
                _ => *waker = Some(cx.waker().clone()),
            }
            Poll::Pending
        }
        Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } => {
            unreachable!("no future has this slot")
        }
    })
}

fn forget_op(key: OpKey) {
    if crashing() {
        return;
    }
    with_core(|c| {
        let mut ops = c.ops.borrow_mut();
        if matches!(ops.0[index(key)], Slot::Done(_)) {
            ops.0.remove(index(key));
        } else {
            ops.0[index(key)] = Slot::Orphan;
        }
    });
}

/// Future of one request to the driver; its slot lives in the op table, so it allocates nothing.
/// The request runs from the moment the future was made; dropping it does not cancel it.
#[must_use = "an outcome that nobody looks at is an error that nobody hears of"]
pub struct IoFuture(OpKey);

impl Future for IoFuture {
    type Output = OpResult;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<OpResult> {
        poll_op(self.0, cx)
    }
}
impl Drop for IoFuture {
    fn drop(&mut self) {
        forget_op(self.0);
    }
}
impl fmt::Debug for IoFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoFuture({})", self.0.0)
    }
}

/// Future of one bio: as [`IoFuture`], with a bio's outcome.
#[must_use = "an outcome that nobody looks at is an error that nobody hears of"]
#[derive(Debug)]
pub struct BioFuture(IoFuture);

impl BioFuture {
    /// The outcome, if there is one: a device may complete a bio while it is being submitted.
    pub fn outcome(&self) -> Option<Result<(), Status>> {
        let IoFuture(key) = self.0;
        with_core(|c| match &c.ops.borrow().0[index(key)] {
            Slot::Done(result) => Some(result.status.ok()),
            Slot::Waiting(_) => None,
            Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } => {
                unreachable!("no future has this slot")
            }
        })
    }
}

impl Future for BioFuture {
    type Output = Result<(), Status>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Pin::new(&mut self.0).poll(cx).map(|r| r.status.ok())
    }
}

/// Sends a request to the driver and returns the future of its outcome.
pub fn driver_io(file: FileId, what: SqeOp) -> IoFuture {
    with_core(|c| {
        let key = c.ops.borrow_mut().insert(Slot::Waiting(None));
        c.sq.borrow_mut().push(Sqe { home: c.id, key, file, what });
        IoFuture(key)
    })
}

/// Sends a bio's request to the driver, the outcome going straight to the bio's submitter: what a
/// leaf does.
pub fn push_bio(done: Completion, file: FileId, what: SqeOp) {
    let (home, key) = done.into_raw();
    with_core(|c| c.sq.borrow_mut().push(Sqe { home, key, file, what }));
}

/// Submits a bio to `dev` and returns the future of its outcome.
pub fn io(
    dev: &dyn BlockDevice,
    op: Op,
    flags: Flags,
    class: Class,
    (sector, len): (Sector, Sector),
    bufs: Bufs,
) -> BioFuture {
    io_by(Opener::NONE, dev, op, flags, class, (sector, len), bufs)
}

/// As [`io`], for somebody.
pub fn io_by(
    opener: Opener,
    dev: &dyn BlockDevice,
    op: Op,
    flags: Flags,
    class: Class,
    (sector, len): (Sector, Sector),
    bufs: Bufs,
) -> BioFuture {
    let (key, done) = new_completion(Slot::Waiting(None));
    dev.submit(Bio { op, flags, class, opener, sector, len, bufs, done });
    BioFuture(IoFuture(key))
}

fn sectors(bufs: &Bufs) -> Sector {
    Sector::from_bytes(bufs.len_bytes() as u64)
}

/// Reads into `bufs` from `sector` on.
pub fn read(dev: &dyn BlockDevice, class: Class, sector: Sector, bufs: Bufs) -> BioFuture {
    let len = sectors(&bufs);
    io(dev, Op::Read, Flags::empty(), class, (sector, len), bufs)
}

/// Writes `bufs` from `sector` on.
pub fn write(
    dev: &dyn BlockDevice,
    flags: Flags,
    class: Class,
    sector: Sector,
    bufs: Bufs,
) -> BioFuture {
    let len = sectors(&bufs);
    io(dev, Op::Write, flags, class, (sector, len), bufs)
}

/// Makes every write that has completed durable.
pub fn flush(dev: &dyn BlockDevice, class: Class) -> BioFuture {
    io(dev, Op::Flush, Flags::empty(), class, (Sector::ZERO, Sector::ZERO), Bufs::new())
}

/// Discards a range.
pub fn discard(dev: &dyn BlockDevice, class: Class, at: Sector, len: Sector) -> BioFuture {
    io(dev, Op::Discard, Flags::empty(), class, (at, len), Bufs::new())
}

/// Makes a range read as zeroes.
pub fn write_zeroes(
    dev: &dyn BlockDevice,
    flags: Flags,
    class: Class,
    at: Sector,
    len: Sector,
) -> BioFuture {
    io(dev, Op::WriteZeroes, flags, class, (at, len), Bufs::new())
}
