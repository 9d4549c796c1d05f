// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A queue: the tasks of its tags, from the first fetch to the end.
//!
//! ```text
//!            ┌────────────── commit_and_fetch ◀──────────────┐
//!   fetch ─▶ waits in the kernel ─▶ request ─▶ memory ─▶ copy in ─▶ bio ─▶ copy out
//!            │                                       (write)          (read)
//!            │                          where the kernel copies: the tag's buffer, no copies here
//!            └▶ NoDevice: the device was stopped, the tag ends
//!            └▶ another error: the queue has failed, the tag ends
//! ```
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use block::latency::Latencies;
use block::{BlockDevice, Buf, Class, Flags, Op, OpenDevice, Slice, Status};
use reactor::{OpResult, WaitList, discard, flush, loop_time, read, spawn, write, write_zeroes};

use crate::abi::MAX_IO_BYTES;
use crate::budget::{ByteBudget, ByteReservation};
use crate::channel::Channel;
use crate::figures::{Figures, Stats};
use crate::request::{Request, errno};
use crate::tag_buffers::TagBuffers;

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
}

/// How a queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The device was stopped.
    Stopped,
    /// The kernel has refused a command.
    Failed(Status),
}

/// One queue of a device, served by tasks of this core.
pub struct Queue<C: Channel> {
    channel: C,
    spec: QueueSpec,
    /// Where the kernel copies.
    buffers: Option<TagBuffers>,
    /// Tags whose task has not ended.
    tags: Cell<u16>,
    /// Tags that the kernel has been offered for the first time.
    offered: Cell<u16>,
    failed: Cell<Option<Status>>,
    /// UB-Q4
    left: Cell<bool>,
    figures: Arc<Figures>,
    changed: WaitList,
}

impl<C: Channel> Queue<C> {
    /// Offers all tags to the kernel, each by a task.
    pub fn start(channel: C, spec: QueueSpec) -> Rc<Queue<C>> {
        let depth = spec.depth;
        let buffers = match spec.memory {
            DataMemory::OfTags { max_io_bytes } => Some(TagBuffers::new(depth, max_io_bytes)),
            DataMemory::Pooled(_) => None,
        };
        let queue = Rc::new(Queue {
            channel,
            spec,
            buffers,
            tags: Cell::new(depth),
            offered: Cell::new(0),
            failed: Cell::new(None),
            left: Cell::new(false),
            figures: Arc::default(),
            changed: WaitList::new(),
        });
        for tag in 0..depth {
            spawn(queue.clone().serve_tag(tag));
        }
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
        let all = || self.offered.get() == self.spec.depth || self.failed.get().is_some();
        self.changed.wait_for(all).await;
        self.failed.get().map_or(Ok(()), Err)
    }

    /// Waits until every tag has ended: nothing of the queue is in flight any more.
    pub async fn ended(&self) -> Ended {
        self.changed.wait_for(|| self.tags.get() == 0).await;
        self.failed.get().map_or(Ended::Stopped, Ended::Failed)
    }

    /// UB-Q1: all commands of a tag are this task's.
    async fn serve_tag(self: Rc<Self>, tag: u16) {
        let fetched = self.offer(tag, 0, |buf| self.channel.fetch(tag, buf));
        self.offered.set(self.offered.get() + 1);
        self.changed.wake_all();
        let mut answer = fetched.await;
        while self.has_request(answer) {
            let descriptor = self.channel.descriptor(tag);
            let request = Request::decode(descriptor, &self.limits(), self.max_io_bytes());
            let begun = loop_time();
            self.figures.take();
            let result = match request {
                Ok(request) if !self.left.get() => self.perform(tag, request).await,
                Ok(_) => return, // UB-Q4
                Err(status) => Err(status),
            };
            if self.left.get() {
                return; // UB-Q4
            }
            if let (Some(times), Ok(request)) = (&self.spec.latencies, request) {
                times.record(request.op, loop_time().saturating_sub(begun));
            }
            let op = request.ok().map(|request| request.op);
            self.figures.commit(op, result);
            let read_bytes = match (op, result) {
                (Some(Op::Read), Ok(bytes)) => bytes.unsigned_abs() as usize,
                _ => 0,
            };
            let result = result.unwrap_or_else(|status| -errno(status));
            let commit = |buf: Option<&Buf>| self.channel.commit_and_fetch(tag, result, buf);
            answer = self.offer(tag, read_bytes, commit).await;
        }
        self.tags.set(self.tags.get() - 1);
        self.changed.wake_all();
    }

    fn has_request(&self, answer: OpResult) -> bool {
        if answer.status == Status::Ok {
            return true;
        }
        if answer.status != Status::NoDevice {
            self.failed.set(self.failed.get().or(Some(answer.status)));
            self.changed.wake_all();
        }
        false
    }

    fn limits(&self) -> block::Limits {
        self.spec.device.limits()
    }

    fn max_io_bytes(&self) -> u32 {
        match self.spec.memory {
            DataMemory::OfTags { max_io_bytes } => max_io_bytes,
            DataMemory::Pooled(_) => MAX_IO_BYTES,
        }
    }

    /// Calls `offer` with the buffer with which a tag is offered, if the kernel copies.
    fn offer<R>(&self, tag: u16, read_bytes: usize, offer: impl FnOnce(Option<&Buf>) -> R) -> R {
        match &self.buffers {
            Some(buffers) => buffers.offer(tag, read_bytes, |buf| offer(Some(buf))),
            None => offer(None),
        }
    }

    /// Memory for the data of a tag's request (UB-Q2).
    async fn memory(&self, tag: u16, bytes: usize) -> (Slice, Option<ByteReservation>) {
        match (&self.buffers, &self.spec.memory) {
            (None, DataMemory::Pooled(budget)) => {
                let reserved = budget.take(bytes as u64).await;
                (Buf::alloc(bytes).into(), Some(reserved))
            }
            (Some(buffers), _) => (buffers.data(tag, bytes), None),
            (None, DataMemory::OfTags { .. }) => unreachable!("made with buffers"),
        }
    }

    /// Does a request; returns the bytes of its data.
    async fn perform(&self, tag: u16, request: Request) -> Result<i32, Status> {
        let Request { op, sector, len, flags } = request;
        if op.is_write() && (self.spec.is_read_only)() {
            return Err(Status::ReadOnly);
        }
        let device = &self.spec.device;
        let bytes = request.data_bytes();
        match op {
            Op::Read => {
                let (data, _reserved) = self.memory(tag, bytes).await;
                read(device, Class::Foreground, sector, data.clone().into()).await?;
                if self.buffers.is_none() {
                    self.channel.copy_out(tag, &data)?; // UB-Q3
                }
            }
            Op::Write => {
                let (data, _reserved) = self.memory(tag, bytes).await;
                if self.buffers.is_none() {
                    self.channel.copy_in(tag, &data)?;
                }
                let class = match flags.contains(Flags::FUA) {
                    true => Class::Foreground,
                    false => Class::Normal,
                };
                write(device, flags, class, sector, data.into()).await?;
            }
            Op::Flush => flush(device, Class::Foreground).await?,
            Op::Discard => discard(device, Class::Normal, sector, len).await?,
            Op::WriteZeroes => write_zeroes(device, flags, Class::Normal, sector, len).await?,
        }
        Ok(i32::try_from(bytes).expect("at most a request's largest"))
    }
}

impl<C: Channel> fmt::Debug for Queue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} of {} tags)", self.tags.get(), self.spec.depth)
    }
}
