// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests: run on the threads of tokio, waited for on a core.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use block::{Error, LocalFuture, crashing};
use objvol::StoreError;
use reactor::{CoreLocal, WaitList};
use rustls::crypto::ring;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// After so long a request counts as one without an answer. Chosen: a window of eight segments of
/// 4 MiB passes a line of 2.5 Mbit/s in it.
pub const REQUEST_TIME: Duration = Duration::from_secs(120);
/// Requests of a store under way. Chosen: more than the window's eight and some readers; at 50 ms
/// each they are 1280 a second, which S3 allows a prefix.
pub const REQUESTS_MAX: usize = 64;
/// Threads for requests over HTTP; they only wait, check and encrypt.
const THREADS: usize = 2;
/// Threads for files.
const FILE_THREADS_MAX: usize = 16;
/// How long an idle one stays.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs something on the core that made it, from any thread. Without effect when that has ended.
pub type CallCore = Box<dyn FnOnce(Box<dyn FnOnce() + Send>) + Send>;

/// Makes the way back to this core, for one request: a core may not end while there is one.
pub type CoreCaller = Rc<dyn Fn() -> CallCore>;

/// The threads of tokio: they start with the first store of the process and run to its end.
pub(crate) fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    // NBD's TLS has the same provider, by name. Fails if there is a default already.
    let _ = ring::default_provider().install_default();
    let failed = |e| Error::io("no threads for object stores").because(e);
    check_threads(THREADS + 1).map_err(failed)?;
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(THREADS).max_blocking_threads(FILE_THREADS_MAX);
    builder.thread_keep_alive(FOREVER);
    let runtime = builder.thread_name("objstore").enable_all().build().map_err(failed)?;
    // OC-T1
    runtime.spawn_blocking(|| ());
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Starts so many threads at once, and ends them: tokio panics where it can't start its own.
fn check_threads(count: usize) -> std::io::Result<()> {
    let (keep, ended) = std::sync::mpsc::channel::<()>();
    let ended = Arc::new(Mutex::new(ended));
    let start = |_| {
        let ended = ended.clone();
        std::thread::Builder::new().spawn(move || {
            // Returns when all have been started, or one could not be.
            let _ = ended.lock().map(|ended| ended.recv());
        })
    };
    let started: Vec<_> = (0..count).map(start).collect();
    drop(keep);
    for thread in started {
        let _ = thread?.join();
    }
    Ok(())
}

/// Where the outcome of a request is put, on the core that waits for it.
struct Answer<T> {
    outcome: RefCell<Option<Result<T, StoreError>>>,
    came: WaitList,
}

/// Lets go of the place when nobody waits any more.
struct Name(CoreLocal);

impl Drop for Name {
    fn drop(&mut self) {
        if !crashing() {
            self.0.release();
        }
    }
}

/// Starts `request`, which has a time limit, at the first poll, on the threads of tokio, and waits
/// for it (OC-C2).
pub(crate) fn run<T: Send + 'static>(
    runtime: &'static Runtime,
    caller: &CoreCaller,
    turns: &Arc<Semaphore>,
    request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> LocalFuture<Result<T, StoreError>> {
    let (caller, turns) = (caller.clone(), turns.clone());
    Box::pin(async move {
        let answer = Rc::new(Answer { outcome: RefCell::new(None), came: WaitList::new() });
        let name = Name(CoreLocal::keep(answer.clone()));
        let (place, call) = (name.0, caller());
        runtime.spawn(async move {
            let turn = turns.acquire_owned().await;
            let outcome = request.await;
            drop(turn);
            call(Box::new(move || {
                if let Some(answer) = place.get::<Answer<T>>() {
                    *answer.outcome.borrow_mut() = Some(outcome);
                    answer.came.wake_all();
                }
            }));
        });
        answer.came.wait_for(|| answer.outcome.borrow().is_some()).await;
        let outcome = answer.outcome.borrow_mut().take();
        outcome.expect("waited for above, and taken once")
    })
}
