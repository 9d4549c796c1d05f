// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What has ended of the tags of a queue, until the task of the queue takes it.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Completion, Status};
use reactor::{OnDone, WaitList, watched};

/// Commands and bios of tags that have ended. A tag has one of either under way at a time, so the
/// queue knows which it was.
#[derive(Debug, Default)]
pub(crate) struct TagCompletions {
    ended: RefCell<VecDeque<(u16, Status)>>,
    changed: WaitList,
}

impl TagCompletions {
    /// Finishes a command or a bio of `tag`.
    pub(crate) fn completion(self: &Rc<Self>, tag: u16) -> Completion {
        watched(self.clone(), tag.into())
    }

    /// The next one.
    pub(crate) fn take(&self) -> Option<(u16, Status)> {
        self.ended.borrow_mut().pop_front()
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
        let mut ended = self.ended.borrow_mut();
        let is_first = ended.is_empty();
        ended.push_back((tag, status));
        if is_first {
            self.changed.wake_all();
        }
    }
}
