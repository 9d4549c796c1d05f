// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The op table: the requests of one core that are in flight, one slot each (RE-R2).
use std::rc::Rc;
use std::task::Waker;

use block::{Completion, OpKey, Status};
use slab::Slab;

use crate::driver::OpResult;

/// Gets the end of a chained or watched request, before the task that waits for it. It may count
/// and wake; it must not submit or complete (RE-R3). Exceptions, which only queue: a leaf may push
/// requests that waited for this end to the driver ([`crate::push_bio`]), and complete a bio that
/// it had cut in pieces; an engine may enter what has ended into its own state, and hand a request
/// over to a task of its own.
pub trait OnDone {
    /// The request ended with `status`. `tag` is the one given to [`crate::chain`] or
    /// [`crate::watched`].
    fn on_done(&self, status: Status, tag: u64);

    /// The same for a chained request. The watcher completes `parent`, now or later, with the
    /// status that the submitter gets.
    #[inline]
    fn on_chained_done(&self, status: Status, tag: u64, parent: Completion) {
        self.on_done(status, tag);
        parent.complete(status);
    }
}

pub(crate) enum Slot {
    Waiting(Option<Waker>),
    Done(OpResult),
    /// The future was dropped first; the slot is removed when the outcome comes.
    Orphan,
    /// A bio that was remapped in place: its watcher, and the completion that the outcome goes to.
    Chain {
        parent: Completion,
        watcher: Rc<dyn OnDone>,
        tag: u64,
    },
    /// No task waits: only the watcher gets the outcome.
    Watched {
        watcher: Rc<dyn OnDone>,
        tag: u64,
    },
    /// The same for one request after the other ([`crate::KeptOp`]).
    Kept {
        watcher: Rc<dyn OnDone>,
        tag: u64,
        /// Looked at in debug builds only, as it would cost a look-up for each request.
        under_way: UnderWay,
    },
}

/// Whether the requests of a place that is kept end once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnderWay {
    /// There is none.
    Nothing,
    /// One, which ends once.
    Once,
    /// Those that end as often as they may.
    Often,
}

/// All requests of one core that are in flight.
#[derive(Default)]
pub(crate) struct OpTable(pub(crate) Slab<Slot>);

impl OpTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: Slot) -> OpKey {
        OpKey(u32::try_from(self.0.insert(slot)).expect("fewer than 2^32 requests in flight"))
    }

    /// The outcome that a future waits for, if there is one. The slot is removed then.
    #[inline]
    pub(crate) fn take_outcome(&mut self, key: OpKey) -> Option<OpResult> {
        let Slot::Done(result) = self.0[index(key)] else { return None };
        self.0.remove(index(key));
        Some(result)
    }

    /// Stores the outcome if a future waits for it, or else removes the slot. Returns what the slot
    /// was: the caller notifies it once the table is not borrowed.
    pub(crate) fn end(&mut self, key: OpKey, result: OpResult) -> Slot {
        let slot = self.0.get_mut(index(key)).expect("an op ends once, and only after it began");
        match slot {
            Slot::Waiting(_) => std::mem::replace(slot, Slot::Done(result)),
            Slot::Orphan | Slot::Chain { .. } | Slot::Watched { .. } => self.0.remove(index(key)),
            Slot::Kept { watcher, tag, under_way } => {
                if cfg!(debug_assertions) && *under_way != UnderWay::Often {
                    let was = std::mem::replace(under_way, UnderWay::Nothing);
                    assert!(was == UnderWay::Once, "a request was completed twice");
                }
                Slot::Watched { watcher: watcher.clone(), tag: *tag }
            }
            Slot::Done(_) => panic!("a request was completed twice"),
        }
    }
}

impl Slot {
    /// Wakes the task that waits, or calls the watcher.
    #[inline]
    pub(crate) fn notify(self, status: Status) {
        match self {
            Slot::Waiting(Some(waker)) => waker.wake(),
            Slot::Waiting(None) | Slot::Orphan => {}
            Slot::Chain { parent, watcher, tag } => watcher.on_chained_done(status, tag, parent),
            Slot::Watched { watcher, tag } => watcher.on_done(status, tag),
            Slot::Done(_) | Slot::Kept { .. } => unreachable!("a request ends once"),
        }
    }
}

pub(crate) fn index(key: OpKey) -> usize {
    key.0 as usize
}
