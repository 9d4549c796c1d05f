// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Workers: tasks that are kept and used again, so that handling a bio allocates nothing.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::core::spawn;

/// A worker that waits for an item; `listed` says that it is on the idle list.
struct Idle {
    waker: Waker,
    listed: Rc<Cell<bool>>,
}

impl Idle {
    fn wake(self) {
        self.listed.set(false);
        self.waker.wake();
    }
}

struct Shared<T> {
    queue: RefCell<VecDeque<T>>,
    idle: RefCell<Vec<Idle>>,
    workers: Cell<usize>,
    busy: Cell<usize>,
    closed: Cell<bool>,
}

/// A set of tasks that take items from one queue, each handling one item at a time.
///
/// The set grows to the largest number of items ever handled at once, at most `max`, and items
/// beyond that wait in the queue. Items are taken in order; they end in any order. Dropping the
/// set lets the workers finish what is queued and end.
pub struct Workers<T> {
    shared: Rc<Shared<T>>,
    start: Box<dyn Fn(Rc<Shared<T>>)>,
    max: usize,
}

impl<T: 'static> Workers<T> {
    /// A set without workers; `handle` makes the future of one item.
    pub fn new<F, Fut>(max: usize, handle: F) -> Workers<T>
    where
        F: Fn(T) -> Fut + Clone + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        assert!(max > 0, "workers without a worker");
        let shared = Rc::new(Shared {
            queue: RefCell::default(),
            idle: RefCell::default(),
            workers: Cell::new(0),
            busy: Cell::new(0),
            closed: Cell::new(false),
        });
        let start = Box::new(move |shared: Rc<Shared<T>>| {
            let handle = handle.clone();
            spawn(async move {
                let listed = Rc::new(Cell::new(false));
                while let Some(item) = next(&shared, &listed).await {
                    handle(item).await;
                    shared.busy.set(shared.busy.get() - 1);
                }
            });
        });
        Workers { shared, start, max }
    }

    /// Queues an item.
    pub fn push(&self, item: T) {
        self.shared.queue.borrow_mut().push_back(item);
        if let Some(worker) = self.shared.idle.borrow_mut().pop() {
            worker.wake();
        } else if self.shared.workers.get() < self.max {
            self.shared.workers.set(self.shared.workers.get() + 1);
            (self.start)(self.shared.clone());
        }
    }

    /// Items queued or being handled.
    pub fn pending(&self) -> usize {
        self.shared.queue.borrow().len() + self.shared.busy.get()
    }
}

async fn next<T>(shared: &Shared<T>, listed: &Rc<Cell<bool>>) -> Option<T> {
    poll_fn(|cx| {
        let item = shared.queue.borrow_mut().pop_front();
        if item.is_none() && !shared.closed.get() {
            if !listed.replace(true) {
                let (waker, listed) = (cx.waker().clone(), listed.clone());
                shared.idle.borrow_mut().push(Idle { waker, listed });
            }
            return Poll::Pending;
        }
        if listed.replace(false) {
            // Polled without having been called: it must not be called while it is busy.
            shared.idle.borrow_mut().retain(|idle| !Rc::ptr_eq(&idle.listed, listed));
        }
        shared.busy.set(shared.busy.get() + usize::from(item.is_some()));
        Poll::Ready(item)
    })
    .await
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.shared.closed.set(true);
        for w in self.shared.idle.take() {
            w.wake();
        }
    }
}

impl<T> fmt::Debug for Workers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workers({} of {})", self.shared.workers.get(), self.max)
    }
}
