// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of core 0, and how the control path, on another thread, calls into it.
//!
//! ```text
//!   control thread (tokio)                      core 0 (reactor on io_uring)
//!   core.call(closure) ──── Sender ────────────▶ spawn(closure(engine))
//!        ▲                                              │
//!        └──────────────── oneshot ◀────────────────────┘
//! ```
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use block::{CoreId, ErrorKind};
use control::Failure;
use reactor::{Reactor, set_memory, spawn};
use tokio::sync::oneshot;
use uring::{Sender, Uring};

use crate::engine::Engine;
use crate::memory;
use crate::rundir::refused;
use crate::secondary::Shards;
use crate::worker_threads::Cores;

thread_local! {
    static ENGINE: RefCell<Option<Rc<Engine>>> = const { RefCell::new(None) };
}

/// Further cores that there is room for: those of engines, and threads of the doors.
const SHARDS_MAX: u16 = 32;

/// The core as the control path has it.
#[derive(Clone)]
pub(crate) struct Core {
    sender: Sender,
    shards: Arc<Shards>,
}

/// The threads of core 0 and of the cores beside it; a panic there has ended the process before
/// anybody could join it.
#[derive(Debug)]
pub(crate) struct Threads {
    core0: JoinHandle<()>,
    beside: Cores,
}

impl Threads {
    /// Waits until they have ended; core 0 has been told to ([`Core::end`]).
    pub(crate) fn join(self) {
        let _ = self.core0.join();
        drop(self.beside);
    }
}

impl Core {
    /// Starts the threads of core 0 and of `cores - 1` beside it; returns when they take calls.
    pub(crate) fn start(
        default_export: Option<String>,
        cores: u32,
    ) -> Result<(Core, Threads), Failure> {
        let shards = Shards::new(SHARDS_MAX)?;
        let beside = Cores::start(&shards, cores)?;
        let ids = beside.ids();
        let sender = shards.owner();
        let (started, wait) = mpsc::channel();
        let of_thread = shards.clone();
        let thread = std::thread::Builder::new()
            .name("core0".into())
            .spawn(move || run(of_thread, default_export, &ids, &started))
            .map_err(|e| refused(&e, "thread of core 0"))?;
        match wait.recv() {
            Ok(Ok(())) => Ok((Core { sender, shards }, Threads { core0: thread, beside })),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::new(ErrorKind::Io, "core 0 ended as it began")),
        }
    }

    /// Runs `f` on the core and returns what it comes to. Dropping the future stops it only while
    /// it has not begun.
    pub(crate) async fn call<T, F, Fut>(&self, f: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Engine>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (tell, answer) = oneshot::channel();
        self.sender.call(move || {
            if tell.is_closed() {
                return; // its client has gone before anything was done
            }
            let engine = ENGINE.with_borrow(Clone::clone).expect("set before the first call");
            spawn(async move {
                // Nobody may wait any more: a client that has gone.
                let _ = tell.send(f(engine).await);
            });
        })?;
        answer.await.map_err(|_| Failure::new(ErrorKind::Busy, "the daemon is shutting down"))
    }

    /// Runs `f` on the core, after what was posted before, without an answer.
    pub(crate) fn post(&self, f: impl FnOnce(&Rc<Engine>) + Send + 'static) -> Result<(), Failure> {
        self.sender.call(move || {
            f(&ENGINE.with_borrow(Clone::clone).expect("set before the first call"));
        })?;
        Ok(())
    }

    /// The cores besides this one.
    pub(crate) fn shards(&self) -> &Arc<Shards> {
        &self.shards
    }

    /// Lets the core's thread end.
    pub(crate) async fn end(&self) {
        // It may have ended already.
        let _ = self.call(async |engine: Rc<Engine>| engine.end()).await;
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Core")
    }
}

fn run(
    shards: Arc<Shards>,
    default_export: Option<String>,
    cores: &[CoreId],
    started: &mpsc::Sender<Result<(), Failure>>,
) {
    let uring = match Uring::with_mailboxes(CoreId(0), shards.mailboxes()) {
        Ok(uring) => uring,
        Err(e) => {
            let _ = started.send(Err(e.into()));
            return;
        }
    };
    let files = uring.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(uring));
    let engine = reactor.on(|| {
        set_memory(memory::budget());
        Rc::new(Engine::new(files, default_export, shards, cores))
    });
    ENGINE.set(Some(engine.clone()));
    let _ = started.send(Ok(()));
    reactor.run(|| engine.ended());
    // Devices go while their core is there.
    reactor.on(|| {
        drop(ENGINE.take());
        drop(engine);
    });
}
