// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue: its tags, from the first fetch to the end. One task serves all of them, by what has
//! ended of each: the command that has offered it, or the bio of its request.
//!
//! ```text
//!            ┌─────────────── commit_and_fetch ◀─────────────────────┐
//!   fetch ─▶ waits in the kernel ─▶ request ─▶ memory ─▶ copy in ─▶ bio ─▶ copy out
//!            │                                       (write)              (read)
//!            │                          where the kernel copies: the tag's buffer, no copies here
//!            └▶ NoDevice: the device was stopped, the tag ends
//!            └▶ another error: the queue has failed, the tag ends
//! ```
//! A tag may have a command of its own, as above, or tags are taken and committed several at a time
//! (`batch`).
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use block::latency::{Latencies, TurnCounts};
use block::{
    Bio, BlockDevice, Buf, Bufs, Class, Completion, Flags, Limits, Nanos, Op, OpenDevice, Opener,
    Planted, Slice, Status,
};
use reactor::{KeptOp, WaitList, loop_time, spawn, turn_is_over, yield_now};

use crate::abi::MAX_IO_BYTES;
use crate::batch::Batch;
use crate::budget::{ByteBudget, ByteReservation};
use crate::channel::Channel;
use crate::figures::{Figures, Stats};
use crate::planted::Fault;
use crate::request::{Request, errno};
use crate::tag_buffers::TagBuffers;
use crate::tag_completions::TagCompletions;

/// After so many ends the task looks whether others are to get a turn.
const ENDS_BETWEEN_LOOKS: usize = 16;

/// Where the data of requests are in memory.
#[derive(Clone, Debug)]
pub enum DataMemory {
    /// In a buffer of each tag, into and out of which the kernel copies.
    OfTags {
        /// The kernel's largest request, bytes.
        max_io_bytes: u32,
    },
    /// In buffers from the pool, into and out of which the queue copies by the character device
    /// (user copy). Their bytes are counted with those of other queues.
    Pooled(Rc<ByteBudget>),
}

/// What a queue serves.
pub struct QueueSpec {
    /// Where bios go.
    pub device: OpenDevice,
    /// Whether writes are refused: asked for each.
    pub is_read_only: Box<dyn Fn() -> bool>,
    /// Where the times of requests are recorded.
    pub latencies: Option<Arc<Latencies>>,
    /// Where the data of its requests are, as the device was made in the kernel.
    pub memory: DataMemory,
    /// Its tags.
    pub depth: u16,
    /// For tests.
    pub planted: Planted<Fault>,
}

/// How a queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The device was stopped.
    Stopped,
    /// The kernel has refused a command.
    Failed(Status),
}

/// A request whose bio is at the device.
struct ServedRequest {
    op: Op,
    bytes: i32,
    begun: Nanos,
    pooled: Option<PooledData>,
}

/// The data of a request, where the queue copies them.
struct PooledData {
    data: Slice,
    _reserved: ByteReservation,
}

/// One queue of a device, served by a task of this core.
pub struct Queue<C: Channel> {
    pub(crate) channel: C,
    pub(crate) spec: QueueSpec,
    /// Where the kernel copies.
    pub(crate) buffers: Option<Rc<TagBuffers>>,
    /// The request of each tag; none of a tag that the kernel has, or whose request waits for
    /// memory.
    taken: RefCell<Vec<Option<ServedRequest>>>,
    pub(crate) ends: Rc<TagCompletions>,
    /// Where the commands and bios of each tag end.
    places: Vec<KeptOp>,
    /// Where tags are taken several at a time.
    pub(crate) batch: Option<Batch>,
    /// Tags that have not ended.
    pub(crate) tags: Cell<u16>,
    /// The kernel has been offered all tags.
    pub(crate) has_offered: Cell<bool>,
    failed: Cell<Option<Status>>,
    /// UB-Q4
    pub(crate) left: Cell<bool>,
    figures: Arc<Figures>,
    /// Requests that were committed in the turn in which they came.
    at_once: TurnCounts,
    pub(crate) changed: WaitList,
}

impl<C: Channel> Queue<C> {
    /// Offers all tags to the kernel, and serves them, by a task.
    pub fn start(channel: C, spec: QueueSpec) -> Rc<Queue<C>> {
        let depth = spec.depth;
        let buffers = match spec.memory {
            DataMemory::OfTags { max_io_bytes } => {
                Some(Rc::new(TagBuffers::new(depth, max_io_bytes)))
            }
            DataMemory::Pooled(_) => None,
        };
        let ends = TagCompletions::new();
        let queue = Rc::new(Queue {
            batch: channel.takes_several().then(|| Batch::new(&ends)),
            channel,
            spec,
            buffers,
            taken: RefCell::new((0..depth).map(|_| None).collect()),
            places: (0..depth).map(|tag| ends.place(tag)).collect(),
            ends,
            tags: Cell::new(depth),
            has_offered: Cell::new(false),
            failed: Cell::new(None),
            left: Cell::new(false),
            figures: Arc::default(),
            at_once: TurnCounts::default(),
            changed: WaitList::new(),
        });
        spawn(queue.clone().serve());
        queue
    }

    /// The kernel's side.
    pub fn channel(&self) -> &C {
        &self.channel
    }

    /// Its figures.
    pub fn stats(&self) -> Stats {
        self.figures.stats()
    }

    /// Requests that were taken and not committed.
    pub fn in_flight(&self) -> u64 {
        self.figures.in_flight()
    }

    pub(crate) fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    /// Commits nothing from now on: the kernel gives its requests to the next server (UB-Q4).
    pub fn leave(&self) {
        self.left.set(true);
        self.changed.wake_all();
    }

    /// Waits until the kernel has been offered every tag, or has refused one.
    pub async fn offered(&self) -> Result<(), Status> {
        let is_over = || self.has_offered.get() || self.failed.get().is_some();
        self.changed.wait_for(is_over).await;
        self.failed.get().map_or(Ok(()), Err)
    }

    /// Waits until every tag has ended: nothing of the queue is in flight any more.
    pub async fn ended(&self) -> Ended {
        self.changed.wait_for(|| self.tags.get() == 0).await;
        self.failed.get().map_or(Ended::Stopped, Ended::Failed)
    }

    /// UB-Q1: all commands of all tags are this task's.
    async fn serve(self: Rc<Self>) {
        if self.batch.is_some() {
            self.prepare();
        } else {
            for tag in 0..self.spec.depth {
                self.offer(tag, 0, |buf, done| self.channel.fetch(tag, buf, done));
            }
            self.has_offered.set(true);
            self.changed.wake_all();
        }
        while self.tags.get() > 0 {
            self.ends.wait().await;
            self.take_ends();
            if self.ends.has_some() {
                yield_now().await;
            }
        }
    }

    /// Takes what has ended, and tells the kernel of it.
    fn take_ends(self: &Rc<Self>) {
        self.take_until_turn_is_over();
        self.send_commits();
        if let Some(times) = &self.spec.latencies {
            self.at_once.record(times);
        }
    }

    /// Takes what has ended, and what ends meanwhile, until others are to get a turn.
    fn take_until_turn_is_over(self: &Rc<Self>) {
        // They stay for so long: nothing else runs.
        let limits = self.spec.device.limits();
        let mut ends = 0;
        while let Some((tag, status)) = self.ends.take() {
            let taken = self.taken.borrow_mut().get_mut(usize::from(tag)).map(Option::take);
            match taken {
                Some(None) => self.fetched(tag, status, &limits),
                Some(Some(taken)) => {
                    let took = loop_time().saturating_sub(taken.begun);
                    self.done(tag, taken, status, took);
                }
                None => self.batch_ended(tag, status),
            }
            ends += 1;
            if ends % ENDS_BETWEEN_LOOKS == 0 && turn_is_over() {
                return;
            }
        }
    }

    /// The command has ended that had offered a tag.
    fn fetched(self: &Rc<Self>, tag: u16, status: Status, limits: &Limits) {
        if status != Status::Ok {
            return self.end(status);
        }
        let descriptor = self.channel.descriptor(tag);
        let request = Request::decode(descriptor, limits, self.max_io_bytes());
        self.figures.take();
        match request {
            _ if self.left.get() => {} // UB-Q4
            Ok(request) if request.op.is_write() && (self.spec.is_read_only)() => {
                self.commit(tag, Some(request.op), Nanos::ZERO, Err(Status::ReadOnly));
            }
            Ok(request) => self.begin(tag, request),
            Err(status) => self.commit(tag, None, Nanos::ZERO, Err(status)),
        }
    }

    /// A tag ends: the device was stopped, or the kernel has refused a command.
    fn end(&self, status: Status) {
        self.refused(status);
        self.tags.set(self.tags.get() - 1);
        self.changed.wake_all();
    }

    /// The kernel has refused a command; `NoDevice` says that the device was stopped.
    pub(crate) fn refused(&self, status: Status) {
        if status != Status::NoDevice {
            self.failed.set(self.failed.get().or(Some(status)));
        }
    }

    /// Counts the data of a request where they need memory (UB-Q2), and sends its bio then.
    fn begin(self: &Rc<Self>, tag: u16, request: Request) {
        let budget = match &self.spec.memory {
            DataMemory::Pooled(budget) if request.has_data() => budget,
            DataMemory::Pooled(_) | DataMemory::OfTags { .. } => {
                return self.submit(tag, request, None, None);
            }
        };
        let bytes = request.data_bytes() as u64;
        if let Some(reserved) = budget.try_take(bytes) {
            return self.submit(tag, request, None, Some(reserved));
        }
        let (queue, begun, reserved) = (self.clone(), loop_time(), budget.wait(bytes));
        spawn(async move {
            let reserved = reserved.await;
            if !queue.left.get() {
                queue.submit(tag, request, Some(begun), Some(reserved));
            }
        });
    }

    /// Sends the bio of a request. `begun`: when it came, if that was not in this turn. `reserved`:
    /// the bytes of its data, where the queue copies them.
    fn submit(
        &self,
        tag: u16,
        request: Request,
        begun: Option<Nanos>,
        reserved: Option<ByteReservation>,
    ) {
        let Request { op, sector, len, flags } = request;
        let (mut bufs, mut pooled) = (Bufs::new(), None);
        if request.has_data() {
            let bytes = request.data_bytes();
            let data = match &self.buffers {
                Some(buffers) => buffers.data(tag, bytes),
                None => Buf::alloc(bytes).into(),
            };
            if let Some(reserved) = reserved {
                if op == Op::Write
                    && let Err(status) = self.channel.copy_in(tag, &data)
                {
                    return self.commit(tag, Some(op), Nanos::ZERO, Err(status));
                }
                pooled = Some(PooledData { data: data.clone(), _reserved: reserved });
            }
            bufs = data.into();
        }
        let class = match op {
            Op::Read | Op::Flush => Class::Foreground,
            Op::Write if flags.contains(Flags::FUA) => Class::Foreground,
            Op::Write | Op::Discard | Op::WriteZeroes => Class::Normal,
        };
        let bytes = i32::try_from(request.data_bytes()).expect("at most a request's largest");
        let (opener, done) = (Opener::NONE, self.places[usize::from(tag)].completion());
        let bio = Bio { op, flags, class, opener, sector, len, bufs, done };
        let ended = self.ends.submit(tag, || self.spec.device.submit(bio));
        // Without a look at the clock where all of it was in one turn.
        let is_at_once = ended.is_some() && begun.is_none();
        let now = if is_at_once { Nanos::ZERO } else { loop_time() };
        let begun = begun.unwrap_or(now);
        let taken = ServedRequest { op, bytes, begun, pooled };
        match ended {
            Some(status) => self.done(tag, taken, status, now.saturating_sub(begun)),
            None => self.taken.borrow_mut()[usize::from(tag)] = Some(taken),
        }
    }

    /// The bio of a request has ended, which was here for so long.
    fn done(&self, tag: u16, taken: ServedRequest, status: Status, took: Nanos) {
        let ServedRequest { op, bytes, begun: _, pooled } = taken;
        let mut result = status.ok().map(|()| bytes);
        if let (Op::Read, Ok(_), Some(PooledData { data, .. })) = (op, result, &pooled) {
            // UB-Q3
            result = self.channel.copy_out(tag, data).map(|()| bytes);
        }
        self.commit(tag, Some(op), took, result);
    }

    /// Tells the kernel what became of a request, with which it gets the tag again. `op` is absent
    /// if it was none that we know; `took` is how long it was here.
    fn commit(&self, tag: u16, op: Option<Op>, took: Nanos, result: Result<i32, Status>) {
        if self.left.get() && !self.spec.planted.is(Fault::CommitAfterLeave) {
            return; // UB-Q4
        }
        match op {
            Some(op) if took == Nanos::ZERO => self.at_once.count(op),
            Some(op) => self.record(op, took),
            None => {}
        }
        self.figures.commit(op, result);
        let read_bytes = match (op, result) {
            (Some(Op::Read), Ok(bytes)) => bytes.unsigned_abs() as usize,
            _ => 0,
        };
        let result = result.unwrap_or_else(|status| -errno(status));
        match &self.batch {
            Some(batch) => {
                if let Some(buffers) = &self.buffers {
                    buffers.offer(tag, read_bytes, |_| ());
                }
                batch.commit(tag, result);
            }
            None => self.offer(tag, read_bytes, |buf, done| {
                self.channel.commit_and_fetch(tag, result, buf, done);
            }),
        }
    }

    fn record(&self, op: Op, took: Nanos) {
        if let Some(times) = &self.spec.latencies {
            times.record(op, took);
        }
    }

    fn max_io_bytes(&self) -> u32 {
        match self.spec.memory {
            DataMemory::OfTags { max_io_bytes } => max_io_bytes,
            DataMemory::Pooled(_) => MAX_IO_BYTES,
        }
    }

    /// Calls `offer` with the buffer with which a tag is offered, if the kernel copies.
    fn offer(&self, tag: u16, read_bytes: usize, offer: impl FnOnce(Option<&Buf>, Completion)) {
        let done = self.places[usize::from(tag)].completion();
        match &self.buffers {
            Some(buffers) => buffers.offer(tag, read_bytes, |buf| offer(Some(buf), done)),
            None => offer(None, done),
        }
    }
}

block::debug_as!(<C: Channel> Queue<C>, s => "Queue({} of {} tags)", s.tags.get(), s.spec.depth);
