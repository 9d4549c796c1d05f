// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has ended of the tags of a queue, until the task of the queue takes it.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Completion, Status};
use reactor::{KeptOp, OnDone, WaitList, watched};

/// What is no tag, but ends as one does, where tags are taken several at a time. A queue has at
/// most 4096 tags.
pub(crate) const PREPARED: u16 = u16::MAX - 3;
/// Tags can be taken.
pub(crate) const TAKEN: u16 = u16::MAX - 2;
/// A commit of several tags has ended.
pub(crate) const COMMITTED: u16 = u16::MAX - 1;
/// No bio is being submitted.
const NONE: u16 = u16::MAX;

/// Commands and bios of tags that have ended. A tag has one of either under way at a time, so the
/// queue knows which it was.
#[derive(Debug)]
pub(crate) struct TagCompletions {
    ended: RefCell<VecDeque<(u16, Status)>>,
    changed: WaitList,
    /// The tag whose bio is being submitted.
    submitting: Cell<u16>,
    /// How that bio has ended.
    at_once: Cell<Status>,
}

impl TagCompletions {
    pub(crate) fn new() -> Rc<TagCompletions> {
        Rc::new(TagCompletions {
            ended: RefCell::default(),
            changed: WaitList::new(),
            submitting: Cell::new(NONE),
            at_once: Cell::new(Status::Ok),
        })
    }

    /// Where the commands and bios of `tag` end.
    pub(crate) fn place(self: &Rc<Self>, tag: u16) -> KeptOp {
        KeptOp::new(self.clone(), tag.into())
    }

    /// Finishes what is no tag.
    pub(crate) fn completion(self: &Rc<Self>, what: u16) -> Completion {
        watched(self.clone(), what.into())
    }

    /// A tag's request has come, with others.
    pub(crate) fn push(&self, tag: u16) {
        self.ended.borrow_mut().push_back((tag, Status::Ok));
    }

    /// The next one.
    pub(crate) fn take(&self) -> Option<(u16, Status)> {
        self.ended.borrow_mut().pop_front()
    }

    /// Calls `submit`, which submits the bio of `tag`. Returns how the bio has ended, if that was
    /// at once; then it is not among those to be taken.
    #[inline]
    pub(crate) fn submit(&self, tag: u16, submit: impl FnOnce()) -> Option<Status> {
        self.submitting.set(tag);
        submit();
        let has_ended = self.submitting.replace(NONE) == NONE;
        has_ended.then(|| self.at_once.get())
    }

    /// Whether there is one.
    pub(crate) fn has_some(&self) -> bool {
        !self.ended.borrow().is_empty()
    }

    /// Waits until there is one.
    pub(crate) async fn wait(&self) {
        self.changed.wait_for(|| self.has_some()).await;
    }
}

impl OnDone for TagCompletions {
    fn on_done(&self, status: Status, tag: u64) {
        let tag = u16::try_from(tag).expect("made of a tag");
        if tag == self.submitting.get() {
            self.submitting.set(NONE);
            return self.at_once.set(status);
        }
        let mut ended = self.ended.borrow_mut();
        let is_first = ended.is_empty();
        ended.push_back((tag, status));
        if is_first {
            self.changed.wake_all();
        }
    }
}
