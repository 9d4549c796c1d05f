// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of core 0, and the handle by which other threads call into it.
//!
//! ```text
//!   control thread (tokio)                      core 0 (reactor on io_uring)
//!   core.call(closure) ──── Sender ────────────▶ spawn(closure(engine))
//!        ▲                                              │
//!        └──────────────── oneshot ◀────────────────────┘
//! ```
use std::cell::RefCell;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use block::{CoreId, ErrorKind};
use control::Failure;
use reactor::{Reactor, spawn};
use tokio::sync::oneshot;
use uring::{Sender, Uring};

use crate::engine::Engine;
use crate::io_failure::io_failure;
use crate::secondary::CorePool;
use crate::worker_threads::WorkerThreads;

thread_local! {
    static ENGINE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// Room for secondary cores: worker threads, and threads of the doors.
const SECONDARY_CORES_MAX: u16 = 32;

/// Core 0 for other threads.
#[derive(Clone)]
pub(crate) struct CoreHandle {
    sender: Sender,
    pool: Arc<CorePool>,
}

/// The threads of core 0 and of the workers. A panic in one ends the process before it is joined.
#[derive(Debug)]
pub(crate) struct CoreThreads {
    core0: JoinHandle<()>,
    workers: WorkerThreads,
}

impl CoreThreads {
    /// Waits until they have ended, after [`CoreHandle::end`].
    pub(crate) fn join(self) {
        let _ = self.core0.join();
        drop(self.workers);
    }
}

impl CoreHandle {
    /// Starts the thread of core 0 and `cores - 1` workers; returns when they take calls. They keep
    /// in `memory_dir` what outlives the process.
    pub(crate) fn start(
        default_export: Option<String>,
        cores: u32,
        memory_dir: Option<&Path>,
    ) -> Result<(CoreHandle, CoreThreads), Failure> {
        uring::start_helper()?;
        let pool = CorePool::with_memory_in(SECONDARY_CORES_MAX, memory_dir.map(Path::to_owned))?;
        let workers = WorkerThreads::start(&pool, cores)?;
        let ids = workers.ids();
        let sender = pool.owner();
        let (started, wait) = mpsc::channel();
        let of_thread = pool.clone();
        let thread = std::thread::Builder::new()
            .name("core0".into())
            .spawn(move || run(of_thread, default_export, &ids, &started))
            .map_err(|e| io_failure(&e, "thread of core 0"))?;
        match wait.recv() {
            Ok(Ok(())) => Ok((CoreHandle { sender, pool }, CoreThreads { core0: thread, workers })),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::new(ErrorKind::Io, "core 0 ended as it began")),
        }
    }

    /// Runs `f` on core 0 and returns its result. Dropping the future stops it only before it has
    /// begun.
    pub(crate) async fn call<T, F, Fut>(&self, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Engine>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.sender.call(move || {
            if reply.is_closed() {
                return; // its client disconnected before anything was done
            }
            let engine = ENGINE.with_borrow(Clone::clone).expect("set before the first call");
            spawn(async move {
                // An error means that its client has disconnected.
                let _ = reply.send(f(engine).await);
            });
        })?;
        answer.await.map_err(|_| Failure::new(ErrorKind::Busy, "the daemon is shutting down"))
    }

    /// Runs `f` on core 0, after the calls before it, without an answer.
    pub(crate) fn post(&self, f: impl FnOnce(&Rc<Engine>) + Send + 'static) -> Result<(), Failure> {
        self.sender.call(move || {
            f(&ENGINE.with_borrow(Clone::clone).expect("set before the first call"));
        })?;
        Ok(())
    }

    /// The secondary cores.
    pub(crate) fn pool(&self) -> &Arc<CorePool> {
        &self.pool
    }

    /// Ends the thread of core 0.
    pub(crate) async fn end(&self) {
        // An error means that it has ended.
        let _ = self.call(async |engine: Rc<Engine>| engine.end()).await;
    }
}

block::debug_as!(CoreHandle, _s => "CoreHandle");

fn run(
    pool: Arc<CorePool>,
    default_export: Option<String>,
    cores: &[CoreId],
    started: &mpsc::Sender<Result<(), Failure>>,
) {
    let uring = match Uring::with_mailboxes(CoreId(0), pool.mailboxes()) {
        Ok(uring) => uring,
        Err(e) => {
            let _ = started.send(Err(e.into()));
            return;
        }
    };
    let files = uring.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(uring));
    let engine = reactor.on(|| {
        pool.set_up_memory(&files);
        Rc::new(Engine::new(files, default_export, pool, cores))
    });
    ENGINE.set(Some(engine.clone()));
    let _ = started.send(Ok(()));
    reactor.run(|| engine.ended());
    // Devices are dropped on their core.
    reactor.on(|| {
        drop(ENGINE.take());
        drop(engine);
    });
}
