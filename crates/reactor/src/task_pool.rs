// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `TaskPool`: tasks that are reused, so that handling a bio allocates nothing.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::core::spawn;

/// A task that waits for an item; `listed`: it is on the idle list.
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
    tasks: Cell<usize>,
    busy: Cell<usize>,
    closed: Cell<bool>,
}

/// A pool of tasks that take items from one queue, each handling one item at a time.
///
/// It grows to the largest number of items ever handled at once, at most `max`, and items
/// beyond that wait in the queue. Items are taken in order; they end in any order. When the
/// pool is dropped, its tasks finish what is queued, and end.
pub struct TaskPool<T> {
    shared: Rc<Shared<T>>,
    start: Box<dyn Fn(Rc<Shared<T>>)>,
    max: usize,
}

impl<T: 'static> TaskPool<T> {
    /// A pool without tasks; `handle` makes the future of one item.
    pub fn new<F, Fut>(max: usize, handle: F) -> TaskPool<T>
    where
        F: Fn(T) -> Fut + Clone + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        assert!(max > 0, "a pool of no task");
        let shared = Rc::new(Shared {
            queue: RefCell::default(),
            idle: RefCell::default(),
            tasks: Cell::new(0),
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
        TaskPool { shared, start, max }
    }

    /// Queues an item.
    pub fn push(&self, item: T) {
        self.shared.queue.borrow_mut().push_back(item);
        if let Some(task) = self.shared.idle.borrow_mut().pop() {
            task.wake();
        } else if self.shared.tasks.get() < self.max {
            self.shared.tasks.set(self.shared.tasks.get() + 1);
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
            // Polled without having been woken: it must not be woken while it is busy.
            shared.idle.borrow_mut().retain(|idle| !Rc::ptr_eq(&idle.listed, listed));
        }
        shared.busy.set(shared.busy.get() + usize::from(item.is_some()));
        Poll::Ready(item)
    })
    .await
}

impl<T> Drop for TaskPool<T> {
    fn drop(&mut self) {
        self.shared.closed.set(true);
        for w in self.shared.idle.take() {
            w.wake();
        }
    }
}

block::debug_as!(<T> TaskPool<T>, s => "TaskPool({} of {})", s.shared.tasks.get(), s.max);
