// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The seam: what a driver does for a core, and what crosses it.
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use block::{Bio, Buf, Bufs, CoreId, Nanos, OpKey, Slice, Status};

use crate::exports::Export;

/// A file, block device, socket or simulated disk that the driver has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// One request to the driver. Its outcome is an [`Event::Cqe`] with the same core and key.
#[derive(Debug)]
pub struct Sqe {
    /// Core whose op table `key` belongs to.
    pub home: CoreId,
    /// The waiting op.
    pub key: OpKey,
    /// What it is about.
    pub file: FileId,
    /// What to do.
    pub what: SqeOp,
}

/// What a driver can be asked for. Offsets and lengths are bytes.
#[derive(Debug)]
pub enum SqeOp {
    /// Fill all of `bufs`; a short read is an error.
    Read {
        /// Where it begins.
        offset: u64,
        /// What to fill.
        bufs: Bufs,
    },
    /// Write all of `bufs`.
    Write {
        /// Where it begins.
        offset: u64,
        /// What to write.
        bufs: Bufs,
        /// Durable when complete.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Give the range back; it may read as zeroes afterwards.
    Discard {
        /// Where it begins.
        offset: u64,
        /// How much.
        len: u64,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Where it begins.
        offset: u64,
        /// How much.
        len: u64,
        /// Whether the space may be given back.
        unmap: bool,
    },
    /// A command to the kernel driver behind the file (io_uring's `URING_CMD`). It may wait in the
    /// kernel for any time, and nothing but the kernel driver ends it. The outcome's value is what
    /// the driver answered; an answer below zero is the status.
    Command {
        /// The driver's number of the command.
        code: u32,
        /// Its arguments, in the order of this machine's bytes.
        args: [u8; 16],
        /// Memory that it names, and how it ends.
        memory: CommandMemory,
    },
    /// Take a connection of a listening socket; the outcome's value is the new [`FileId`].
    Accept,
    /// Receive at least one byte; the outcome's value is the number, 0 at the end of the stream.
    /// `NoDevice` when the other side has gone without an orderly end (a reset), `Timeout` when it
    /// has not been heard of for too long: then nobody knows what it does.
    Recv {
        /// Where to put it.
        into: Slice,
    },
    /// Send all of `bufs`, in order. `NoDevice` when the other side takes no more, or when this
    /// side has ended its stream.
    Send {
        /// What to send.
        bufs: Bufs,
    },
    /// Shut a socket down: everything pending on it ends. On a listener the pending accept ends and
    /// later ones fail, here: another process that has the same socket goes on.
    Shutdown,
    /// End the stream to the other side of a socket: a send that is pending ends. What the other
    /// side sends can still be received.
    ShutdownWrite,
    /// Close the file; the id is free for another.
    Close,
}

/// Memory of a command to a kernel driver ([`SqeOp::Command`]), which may be used until the command
/// has ended.
#[derive(Debug)]
pub enum CommandMemory {
    /// None.
    None,
    /// The arguments name a place in it.
    Named(Buf),
    /// The command points at it.
    Sent(Rc<SentMemory>),
    /// The kernel driver answers again and again.
    Stream(Rc<StreamMemory>),
    /// The command points at this address, in memory that a stream of the same file keeps
    /// ([`StreamMemory::new`]) and whose owner leaves it as it is until the kernel driver has taken
    /// it. There is an event for an error only, so the op has to be a [`crate::KeptOp`]; the driver
    /// keeps nothing of the command. `NoDevice` when nothing is under way on the file.
    OfStream(u64),
}

/// What a command points at. The kernel driver takes it and answers as the command begins.
pub struct SentMemory {
    /// What it points at.
    pub data: Buf,
    /// The answer when all of it is done; another one is an error, `Io`.
    pub whole: u32,
    /// Whether there is an event when all of it is done, which wakes the core; else there is one
    /// for an error only, and the op has to be a [`crate::KeptOp`].
    pub wakes: bool,
    /// Further memory that `data` names.
    pub keep: Rc<dyn Any>,
}

/// Where a kernel driver puts the answers of one command. There is an event with `Ok` when some
/// have come, and none had been left, and a last one with an error. So the op has to be a
/// [`crate::KeptOp`].
pub struct StreamMemory {
    answers: RefCell<Vec<u8>>,
    _keep: Rc<dyn Any>,
}

impl StreamMemory {
    /// For answers; `keep` is memory that the kernel driver uses until the last one.
    pub fn new(keep: Rc<dyn Any>) -> StreamMemory {
        StreamMemory { answers: RefCell::default(), _keep: keep }
    }

    /// For drivers: adds an answer. Returns whether none had been left.
    pub fn add(&self, answer: &[u8]) -> bool {
        let mut answers = self.answers.borrow_mut();
        let was_empty = answers.is_empty();
        answers.extend_from_slice(answer);
        was_empty
    }

    /// Takes the answers that have come, in order.
    pub fn take(&self, take: impl FnOnce(&[u8])) {
        let mut answers = self.answers.borrow_mut();
        take(&answers);
        answers.clear();
    }
}

block::debug_as!(SentMemory, s => "SentMemory({} bytes)", s.data.len());

block::debug_as!(StreamMemory, s => "StreamMemory({} bytes)", s.answers.borrow().len());

/// Outcome of a request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpResult {
    /// Whether it was done.
    pub status: Status,
    /// Bytes received or the new file, for those that return one.
    pub value: u32,
}

impl From<Status> for OpResult {
    fn from(status: Status) -> OpResult {
        OpResult { status, value: 0 }
    }
}

/// What crosses cores.
pub enum Msg {
    /// A bio for a device that the receiving core has exported.
    Submit {
        /// From [`crate::export`].
        device: Export,
        /// The bio.
        bio: Bio,
    },
    /// An outcome for an op of the receiving core.
    Complete {
        /// The waiting op.
        key: OpKey,
        /// Its outcome.
        result: OpResult,
    },
    /// Run this on the receiving core; how the control path enters.
    Call(Box<dyn FnOnce() + Send>),
}

impl fmt::Debug for Msg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Msg::Submit { device, bio } => write!(f, "Submit({device:?}, {bio:?})"),
            Msg::Complete { key, result } => write!(f, "Complete({key:?}, {result:?})"),
            Msg::Call(_) => f.write_str("Call"),
        }
    }
}

/// What a driver hands to a core.
#[derive(Debug)]
pub enum Event {
    /// A request has ended.
    Cqe {
        /// Core that waits.
        home: CoreId,
        /// Its op.
        key: OpKey,
        /// The outcome.
        result: OpResult,
    },
    /// A message of another core.
    Msg(Msg),
}

/// What a driver that polls has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// `park` has something to return at once.
    Event,
    /// A poller is ready.
    Ready,
    /// Nothing in as much time as a poll may take now. A `park` that follows sleeps at once.
    Nothing,
}

/// The only door to the world. Called once a batch, so engines stay concrete code.
///
/// Every submitted [`Sqe`] yields exactly one [`Event::Cqe`], at a later `park`, never inside
/// `submit`; commands to a kernel driver may yield none or several ([`CommandMemory`]). The driver
/// holds the buffers of a request until it has ended.
pub trait Driver {
    /// Nanoseconds since an epoch that all cores share; never goes back.
    fn now(&self) -> Nanos;
    /// Takes the whole batch, in order of submission.
    fn submit(&mut self, batch: &mut Vec<Sqe>);
    /// Ends what waits on a socket of this core: each Recv and Accept that was submitted before
    /// ends, with the bytes or the connection that it has, or else with `Again`. The socket itself
    /// stays as it is, for this process and for others that have it; nothing that has arrived is
    /// lost. See [`crate::end_waits`].
    fn end_waits(&mut self, file: FileId) {
        unreachable!("this driver has no sockets, and {file:?} is one");
    }
    /// Sends a message to another core, after all that was sent to it before.
    fn post(&mut self, to: CoreId, msg: Msg);
    /// Sends what gathered for a core in a round, in order. What is left in `batch` can't be
    /// delivered and may be dropped; bios that can't be are ended.
    fn post_batch(&mut self, to: CoreId, batch: &mut Vec<Msg>) {
        for msg in batch.drain(..) {
            self.post(to, msg);
        }
    }
    /// Waits until something has happened or `deadline` has come, and appends what happened. A
    /// deadline in the past only collects.
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>);
    /// Whether it would poll now before it sleeps.
    fn polls(&self) -> bool {
        false
    }
    /// Has what was submitted begin, and looks for events awake, as long as that pays, until
    /// `deadline` at most. Between the looks it calls `is_ready`.
    fn poll(&mut self, _deadline: Option<Nanos>, _is_ready: &dyn Fn() -> bool) -> Found {
        Found::Nothing
    }
    /// Whether a deadline may have come, so far as the driver can tell without its clock.
    fn may_have_come(&self, _deadline: Nanos) -> bool {
        true
    }
    /// Has what was submitted begin now, and not at the next `park`. It waits for nothing.
    fn begin(&mut self) {}
    /// Random bits: seeded under simulation, the system's otherwise.
    fn random(&mut self) -> u64;
    /// Whether somebody outside the cores may still send a [`Msg::Call`], so that a core without
    /// requests and timers must wait for it instead of ending.
    fn expects_calls(&self) -> bool {
        false
    }
}
