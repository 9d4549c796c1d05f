// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How requests are sent, and how their outcome is taken: futures, completion chains and watchers.
use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use block::{
    Bio, BlockDevice, Buf, Bufs, Class, Completion, CoreId, Flags, Op, OpKey, Opener, Sector,
    Status, crashing,
};

use crate::core::{Core, post, with_core};
use crate::driver::{FileId, Msg, OpResult, Sqe, SqeOp};
use crate::op_table::{OnDone, Slot, UnderWay, index};

/// The [`block::FinishFn`] of this reactor.
fn finish_from_anywhere(home: CoreId, key: OpKey, status: Status) {
    let result = OpResult::from(status);
    // For every bio that ends: the core is looked up once.
    let here = |c: &Core| (c.id == home).then(|| c.ops.borrow_mut().end(key, result));
    match with_core(here) {
        Some(ended) => ended.notify(status),
        None => post(home, Msg::Complete { key, result }),
    }
}

#[inline]
fn new_completion(slot: Slot) -> (OpKey, Completion) {
    let (id, key) = with_core(|c| (c.id, c.ops.borrow_mut().insert(slot)));
    (key, Completion::new(finish_from_anywhere, id, key))
}

/// A completion that calls `watcher` and then completes `parent`. A mapped device puts it into a
/// bio that it remaps in place. It costs one slot of the op table, no allocation.
pub fn chain(parent: Completion, watcher: Rc<dyn OnDone>, tag: u64) -> Completion {
    new_completion(Slot::Chain { parent, watcher, tag }).1
}

/// A completion that calls `watcher` only. An engine puts it into a bio of its own for which no
/// task waits. It costs one slot of the op table, no allocation.
pub fn watched(watcher: Rc<dyn OnDone>, tag: u64) -> Completion {
    new_completion(Slot::Watched { watcher, tag }).1
}

/// A place in the op table for one request after the other, whose ends `watcher` gets. For who
/// sends requests without a pause: a completion of it costs nothing.
pub struct KeptOp {
    home: CoreId,
    key: OpKey,
}

impl KeptOp {
    /// A place of this core.
    pub fn new(watcher: Rc<dyn OnDone>, tag: u64) -> KeptOp {
        let slot = Slot::Kept { watcher, tag, under_way: UnderWay::Nothing };
        let (home, key) = with_core(|c| (c.id, c.ops.borrow_mut().insert(slot)));
        KeptOp { home, key }
    }

    /// The completion of the next request. The one before has ended.
    #[inline]
    pub fn completion(&self) -> Completion {
        self.begin(UnderWay::Once);
        Completion::new(finish_from_anywhere, self.home, self.key)
    }

    /// The completion of a request that ends more than once, or of one of several. All requests of
    /// this place are such.
    #[inline]
    pub fn repeated(&self) -> Completion {
        self.begin(UnderWay::Often);
        Completion::new(finish_from_anywhere, self.home, self.key)
    }

    #[inline]
    fn begin(&self, new: UnderWay) {
        if cfg!(debug_assertions) {
            self.note(new);
        }
    }

    fn note(&self, new: UnderWay) {
        with_core(|c| {
            let Slot::Kept { under_way, .. } = &mut c.ops.borrow_mut().0[index(self.key)] else {
                unreachable!("the place is kept")
            };
            let was = std::mem::replace(under_way, new);
            let is_fine = was == UnderWay::Nothing || was == new && new == UnderWay::Often;
            assert!(is_fine, "two requests have one place");
        });
    }
}

impl Drop for KeptOp {
    fn drop(&mut self) {
        if !crashing() {
            drop(with_core(|c| c.ops.borrow_mut().0.remove(index(self.key))));
        }
    }
}

block::debug_as!(KeptOp, s => "KeptOp({})", s.key.0);

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
        Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } | Slot::Kept { .. } => {
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

/// Future of one request to the driver. Its slot is in the op table, so it allocates nothing. The
/// request is under way when the future is made; dropping the future does not cancel it.
#[must_use = "its outcome may be an error"]
pub struct IoFuture(OpKey);

impl IoFuture {
    /// The outcome, if there is one.
    pub fn outcome(&self) -> Option<OpResult> {
        with_core(|c| match &c.ops.borrow().0[index(self.0)] {
            Slot::Done(result) => Some(*result),
            Slot::Waiting(_) => None,
            Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } | Slot::Kept { .. } => {
                unreachable!("no future has this slot")
            }
        })
    }
}

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
block::debug_as!(IoFuture, s => "IoFuture({})", s.0.0);

/// Future of one bio, as [`IoFuture`].
#[must_use = "its outcome may be an error"]
#[derive(Debug)]
pub struct BioFuture(IoFuture);

impl BioFuture {
    /// The outcome, if there is one, or else the future: a device may complete a bio while it is
    /// being submitted.
    #[inline]
    pub fn into_outcome(self) -> Result<Result<(), Status>, BioFuture> {
        let key = self.0.0;
        let Some(result) = with_core(|c| c.ops.borrow_mut().take_outcome(key)) else {
            return Err(self);
        };
        #[expect(clippy::mem_forget, reason = "its slot is removed; Drop would look for it")]
        std::mem::forget(self);
        Ok(result.status.ok())
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

/// Sends a request to the driver; its status goes straight to who has made `done`. For leaves,
/// which pass a bio's on, and for requests for which no task waits ([`watched`]).
pub fn push_bio(done: Completion, file: FileId, what: SqeOp) {
    let (home, key) = done.into_raw();
    with_core(|c| c.sq.borrow_mut().push(Sqe { home, key, file, what }));
}

/// Submits a bio to `dev` and returns the future of its outcome.
#[inline(always)]
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

/// As [`io`], with an opener.
#[inline(always)]
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
#[inline]
pub fn read(dev: &dyn BlockDevice, class: Class, sector: Sector, bufs: Bufs) -> BioFuture {
    let len = sectors(&bufs);
    io(dev, Op::Read, Flags::empty(), class, (sector, len), bufs)
}

/// Writes `bufs` from `sector` on.
#[inline]
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

/// Size of the writes of [`zero_out`].
const ZEROES_BYTES: usize = 1 << 20;

/// Source of zeroes for devices that can't make them: memory that is taken at its first use.
#[derive(Debug, Default)]
pub struct ZeroBuffer(OnceCell<Buf>);

/// Makes a range read as zeroes, by writes of `zeroes` where the device has no [`write_zeroes`].
/// After an error a part of the range may be zeroes. `is_wanted` is asked between these writes: a
/// client may ask for terabytes, and leave.
///
/// # Errors
/// Those of the device; never [`Status::NotSupported`] of a write of zeroes. `Io` when the rest is
/// not wanted.
pub async fn zero_out(
    dev: &dyn BlockDevice,
    flags: Flags,
    class: Class,
    (mut at, len): (Sector, Sector),
    zeroes: &ZeroBuffer,
    is_wanted: impl Fn() -> bool,
) -> Result<(), Status> {
    match write_zeroes(dev, flags, class, at, len).await {
        Err(Status::NotSupported) => {}
        done => return done,
    }
    let zeroes = zeroes.0.get_or_init(|| Buf::zeroed(ZEROES_BYTES));
    let end = at + len;
    while at < end {
        if !is_wanted() {
            return Err(Status::Io);
        }
        let n = (end - at).min(Sector::from_bytes(ZEROES_BYTES as u64));
        let bytes = usize::try_from(n.bytes()).expect("at most a mebibyte");
        write(dev, Flags::empty(), class, at, zeroes.slice(0..bytes).into()).await?;
        at += n;
    }
    Ok(())
}
