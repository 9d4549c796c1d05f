// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queues of one device, each served by a core of its own or by one that serves others too.
//!
//! ```text
//!   this core                                  another core
//!   Queues ── start: call ──────────────────▶  Queue: one task
//!          ◀─ ended ────────────────────────     │
//!          ── leave, release: call ─────────▶    │
//!          ◀─ figures: atomics ─────────────     │ counts
//! ```
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use block::{CoreId, Status};
use reactor::{CoreLocal, WaitList, call, core_id, spawn};

use crate::channel::Channel;
use crate::figures::{Figures, Stats};
use crate::queue::{Ended, Queue, QueueSpec};

/// Makes a queue's channel, and what it serves, on the core that serves it.
pub type MakeQueue<C> = Box<dyn FnOnce() -> (C, QueueSpec) + Send>;

/// How a queue is made.
pub enum NewQueue<C> {
    /// On this core.
    Here(C, QueueSpec),
    /// On another one.
    On(CoreId, MakeQueue<C>),
}

/// The queues of a device, for the core that has started them.
pub struct Queues<C: Channel> {
    all: Vec<QueueHandle>,
    ends: Rc<QueueEnds>,
    channel: PhantomData<fn() -> C>,
}

/// A queue as other cores know it.
struct QueueHandle {
    core: CoreId,
    /// The queue, on that core.
    name: CoreLocal,
    figures: Arc<Figures>,
}

/// How many queues have ended.
#[derive(Default)]
struct QueueEnds {
    count: Cell<usize>,
    failed: Cell<Option<Status>>,
    changed: WaitList,
}

impl QueueEnds {
    fn result(&self) -> Ended {
        self.failed.get().map_or(Ended::Stopped, Ended::Failed)
    }
}

/// Starts a queue on this core.
fn start<C: Channel>(channel: C, spec: QueueSpec) -> (CoreLocal, Arc<Figures>) {
    let queue = Queue::start(channel, spec);
    let figures = queue.figures().clone();
    (CoreLocal::keep(queue), figures)
}

impl<C: Channel> Queues<C> {
    /// Starts all queues: each offers its tags to the kernel.
    pub async fn start(new: Vec<NewQueue<C>>) -> Queues<C> {
        let mut all = Vec::new();
        for queue in new {
            let (core, (name, figures)) = match queue {
                NewQueue::Here(channel, spec) => (core_id(), start(channel, spec)),
                NewQueue::On(core, make) => {
                    let started = call(core, move || async move {
                        let (channel, spec) = make();
                        start(channel, spec)
                    });
                    (core, started.await)
                }
            };
            all.push(QueueHandle { core, name, figures });
        }
        let queues = Queues { all, ends: Rc::default(), channel: PhantomData };
        for queue in &queues.all {
            let ended = queue.on(async |queue: Rc<Queue<C>>| queue.ended().await);
            let ends = queues.ends.clone();
            spawn(async move {
                if let Some(Ended::Failed(status)) = ended.await {
                    ends.failed.set(ends.failed.get().or(Some(status)));
                }
                ends.count.set(ends.count.get() + 1);
                ends.changed.wake_all();
            });
        }
        queues
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The cores that serve them, in the order of the queues.
    pub fn cores(&self) -> impl Iterator<Item = CoreId> {
        self.all.iter().map(|queue| queue.core)
    }

    /// Their figures, with the core that serves each.
    pub fn stats(&self) -> impl Iterator<Item = (CoreId, Stats)> {
        self.all.iter().map(|queue| (queue.core, queue.figures.stats()))
    }

    /// Requests that were taken and not committed.
    pub fn in_flight(&self) -> u64 {
        self.all.iter().map(|queue| queue.figures.in_flight()).sum()
    }

    /// Waits until the kernel has been offered every tag, or has refused one.
    pub async fn offered(&self) -> Result<(), Status> {
        for queue in &self.all {
            let offered = queue.on(async |queue: Rc<Queue<C>>| queue.offered().await);
            offered.await.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Waits until nothing of any queue is in flight any more.
    pub async fn ended(&self) -> Ended {
        self.ends.changed.wait_for(|| self.ends.count.get() == self.count()).await;
        self.ends.result()
    }

    /// The same, or until one has failed: the others then go on until the device is stopped.
    pub async fn ended_or_failed(&self) -> Ended {
        let is_over = || self.ends.count.get() == self.count() || self.ends.failed.get().is_some();
        self.ends.changed.wait_for(is_over).await;
        self.ends.result()
    }

    /// Waits until each core that serves a queue has handled what was posted to it before.
    pub async fn reach(&self) {
        self.on_each(|_| ()).await;
    }

    /// [`Queue::leave`] of all: when this returns, none commits anything (UB-Q4).
    pub async fn leave(&self) {
        let leave = |name: CoreLocal| {
            if let Some(queue) = name.get::<Queue<C>>() {
                queue.leave();
            }
        };
        self.on_each(leave).await;
    }

    /// Drops the queues, after they have ended; `close` gets the channel of each, on its core.
    pub async fn release(&self, close: fn(&C)) {
        self.on_each(move |name| {
            if let Some(queue) = name.get::<Queue<C>>() {
                close(queue.channel());
            }
            name.release();
        })
        .await;
    }

    /// Calls `f` for each queue on its core, at once, and waits until all calls have returned.
    async fn on_each(&self, f: impl Fn(CoreLocal) + Copy + Send + 'static) {
        let of = |queue: &QueueHandle| {
            let name = queue.name;
            let run = move || {
                f(name);
                std::future::ready(())
            };
            call(queue.core, run)
        };
        for called in self.all.iter().map(of).collect::<Vec<_>>() {
            called.await;
        }
    }
}

impl QueueHandle {
    /// Runs `f` with the queue on its core; nothing when it was released.
    fn on<C, T, F, Fut>(&self, f: F) -> impl Future<Output = Option<T>> + 'static
    where
        C: Channel,
        T: Send + 'static,
        F: FnOnce(Rc<Queue<C>>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let name = self.name;
        call(self.core, move || {
            let work = name.get::<Queue<C>>().map(f);
            async move {
                match work {
                    Some(work) => Some(work.await),
                    None => None,
                }
            }
        })
    }
}

block::debug_as!(<C: Channel> Queues<C>, s =>
    "Queues({} of {} ended)", s.ends.count.get(), s.count());
