// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tags that are taken and committed several at a time (Linux 7.0): the kernel says by one command
//! which tags have a request, again and again, and by another it is told what has become of them.
//!
//! ```text
//!   prepare (all tags, once) ─▶ take ─▶ tags ─▶ requests ─▶ bios ─▶ results of a turn ─▶ commit
//!                                ▲                                                         │
//!                                └──────────────── the tags are the kernel's again ◀───────┘
//! ```
//!
//! Invariants
//! - UB-B1 Each tag that was taken is in one commit, once; from then on it is the kernel's, which
//!   may give it out before it answers the commit.
//! - UB-B2 What a turn of the queue has ended is committed in that turn: nothing waits for more.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::Status;
use reactor::KeptOp;

use crate::channel::{Channel, TagResult};
use crate::planted::Fault;
use crate::queue::Queue;
use crate::tag_completions::{COMMITTED, PREPARED, TAKEN, TagCompletions};

/// What such a queue keeps beside its tags.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Where it is told that tags have requests.
    taken: Rc<KeptOp>,
    /// Where commits fail.
    committed: Rc<KeptOp>,
    /// Ended in this turn, and not committed.
    results: RefCell<Vec<TagResult>>,
    /// Commits after the last tag was given out, which are under way.
    last_commits: Cell<u32>,
    /// No tag will be given out any more.
    has_ended: Cell<bool>,
}

impl Batch {
    pub(crate) fn new(ends: &Rc<TagCompletions>) -> Batch {
        Batch {
            taken: Rc::new(ends.place(TAKEN)),
            committed: Rc::new(ends.place(COMMITTED)),
            results: RefCell::default(),
            last_commits: Cell::new(0),
            has_ended: Cell::new(false),
        }
    }

    /// A request has ended.
    pub(crate) fn commit(&self, tag: u16, result: i32) {
        self.results.borrow_mut().push(TagResult { tag, result });
    }
}

impl<C: Channel> Queue<C> {
    /// Offers all tags to the kernel.
    pub(crate) fn prepare(&self) {
        let buffers = self.buffers.as_ref().expect("such queues have buffers");
        self.channel.prepare(buffers, self.ends.completion(PREPARED));
    }

    /// A command has ended that is no single tag's.
    pub(crate) fn batch_ended(&self, what: u16, status: Status) {
        let batch = self.batch.as_ref().expect("all tags have places");
        match (what, status) {
            (PREPARED, Status::Ok) => {
                self.has_offered.set(true);
                self.changed.wake_all();
                let buffers = self.buffers.as_ref().expect("such queues have buffers");
                self.channel.take(buffers, &batch.taken);
            }
            (TAKEN, Status::Ok) => self.channel.taken(&mut |tag| self.ends.push(tag)),
            (PREPARED, status) => {
                // Whoever waits until the tags are offered hears of it, whatever it is.
                self.refused(if status == Status::NoDevice { Status::Io } else { status });
                batch.has_ended.set(true);
            }
            (TAKEN, status) => {
                self.refused(status);
                batch.has_ended.set(true);
            }
            (_, status) => {
                batch.last_commits.set(batch.last_commits.get().saturating_sub(1));
                if status != Status::Ok {
                    self.refused(status);
                }
            }
        }
        // What has been taken is committed first.
        if batch.has_ended.get() && batch.last_commits.get() == 0 && self.in_flight() == 0 {
            self.tags.set(0);
            self.changed.wake_all();
        }
    }

    /// Commits what has ended in this turn (UB-B2).
    pub(crate) fn send_commits(&self) {
        let Some(batch) = &self.batch else { return };
        let mut results = batch.results.borrow_mut();
        if results.is_empty() {
            return;
        }
        // The kernel has ended the requests before it says that it gives out no tag any more. Later
        // commits have to end before the queue does.
        let is_last = batch.has_ended.get();
        batch.last_commits.set(batch.last_commits.get() + u32::from(is_last));
        let buffers = self.buffers.as_ref().expect("such queues have buffers");
        self.channel.commit(&results, buffers, is_last, &batch.committed);
        if !self.spec.planted.is(Fault::CommitAgain) {
            results.clear(); // UB-B1
        }
    }
}
