// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bytes that requests of all queues of a core have in memory at a time.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::crashing;
use reactor::WaitList;

/// A bound of bytes. Requests that find no room wait, in the order in which they came.
#[derive(Debug)]
pub struct ByteBudget {
    max: u64,
    used: Cell<u64>,
    next: Cell<u64>,
    /// Those that wait, first come first.
    queue: RefCell<VecDeque<u64>>,
    freed: WaitList,
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes are free again when this is dropped"]
pub(crate) struct ByteReservation {
    budget: Rc<ByteBudget>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `max` bytes. A request that is larger is admitted when it is alone.
    pub fn new(max: u64) -> Rc<ByteBudget> {
        let (queue, freed) = (RefCell::default(), WaitList::new());
        Rc::new(ByteBudget { max, used: Cell::new(0), next: Cell::new(0), queue, freed })
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.get()
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.used.get() == 0 || self.used.get() + bytes <= self.max
    }

    /// Takes `bytes` if there is room for them and nobody waits.
    pub(crate) fn try_take(self: &Rc<Self>, bytes: u64) -> Option<ByteReservation> {
        let is_free = self.queue.borrow().is_empty() && self.has_room(bytes);
        is_free.then(|| self.taken(bytes))
    }

    /// Waits until there is room for `bytes`, behind those that wait now, and takes it.
    pub(crate) fn wait(
        self: &Rc<Self>,
        bytes: u64,
    ) -> impl Future<Output = ByteReservation> + 'static {
        let mine = self.next.replace(self.next.get() + 1);
        self.queue.borrow_mut().push_back(mine);
        let budget = self.clone();
        async move {
            let is_first = || budget.queue.borrow().front() == Some(&mine);
            budget.freed.wait_for(|| is_first() && budget.has_room(bytes)).await;
            budget.queue.borrow_mut().pop_front();
            // There may be room for the next one, too.
            budget.freed.wake_all();
            budget.taken(bytes)
        }
    }

    fn taken(self: &Rc<Self>, bytes: u64) -> ByteReservation {
        self.used.set(self.used.get() + bytes);
        ByteReservation { budget: self.clone(), bytes }
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.budget.used.set(self.budget.used.get() - self.bytes);
        if !crashing() {
            self.budget.freed.wake_all();
        }
    }
}
