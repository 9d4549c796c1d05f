// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Helper threads for system calls that may wait for a file system, so that no core waits.
//!
//! ```text
//!   core                                  helper thread
//!   call ── work ───────────────────────▶ stat, open, flock, fallocate, ...
//!   waits, at most DEADLINE ◀── result ── or: drops what comes too late
//!   close ── descriptor ────────────────▶ close (it may write back, or ask a server)
//! ```
//!
//! The threads are the process's, made when they are needed; an idle one ends after [`IDLE_TIME`],
//! but for the last: where no more threads can be started, that one does all work.
//!
//! Invariants
//! - UR-H1 A call ends within [`DEADLINE`], whatever the file system does.
//! - UR-H2 If a call was abandoned, its helper closes what the call has opened.
//! - UR-H3 There are at most [`THREADS_MAX`] threads, including stuck ones. While a call for a path
//!   is stuck, further calls for it are refused at once, so one path can't use up the threads.
//! - UR-H4 A close is never refused: it waits for a thread if it must.
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use block::{Error, ErrorKind, Nanos};
use reactor::{CoreLocal, WaitList, sleep};

use crate::mailbox::Sender;

/// How long a core waits for a helper. Chosen: a disk that spins up answers in less. The unit tests
/// wait in real time, and for less.
pub const DEADLINE: Nanos = Nanos::from_secs(if cfg!(test) { 2 } else { 10 });
/// Most threads. Chosen: more than opens at a time in practice, and little memory.
const THREADS_MAX: usize = 32;
/// How long a thread waits for more work.
const IDLE_TIME: Duration = Duration::from_secs(5);

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    threads: usize,
    idle: usize,
    /// Why the last thread that was needed could not be started.
    no_thread: Option<String>,
    /// Paths of abandoned calls that still run.
    stuck: Vec<String>,
    /// Closes that have not ended, by number.
    closing: BTreeSet<u64>,
    closes: u64,
}

struct Pool {
    state: Mutex<State>,
    /// There is work.
    work: Condvar,
    /// A close has ended.
    closed: Condvar,
}

static POOL: Pool = Pool {
    state: Mutex::new(State {
        work: VecDeque::new(),
        threads: 0,
        idle: 0,
        no_thread: None,
        stuck: Vec::new(),
        closing: BTreeSet::new(),
        closes: 0,
    }),
    work: Condvar::new(),
    closed: Condvar::new(),
};

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work, and makes a thread for it if none is idle.
    fn begin(&'static self, work: Work) {
        let mut state = self.lock();
        state.work.push_back(work);
        if state.idle < state.work.len() && state.threads < THREADS_MAX {
            state.threads += 1;
            drop(state);
            // Without it the others take the work, or the call runs into its deadline.
            let _ = self.start_thread();
        } else {
            drop(state);
            self.work.notify_one();
        }
    }

    /// Starts a thread that is counted already.
    fn start_thread(&'static self) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("helper".into());
        let started = thread.spawn(|| self.serve()).map(drop);
        let mut state = self.lock();
        state.no_thread = started.as_ref().err().map(ToString::to_string);
        state.threads -= usize::from(started.is_err());
        started
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let (back, waited) =
                self.work.wait_timeout(state, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.work.is_empty() && state.threads > 1 {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// The stage of a call.
enum Stage<T> {
    Queued,
    Running,
    Ended(Result<T, Error>),
    /// The caller has stopped waiting.
    Abandoned,
}

/// The caller's end of a call: a drop abandons it.
struct Caller<T>(Arc<Mutex<Stage<T>>>);

impl<T> Caller<T> {
    fn abandon(&self) -> Stage<T> {
        let mut stage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *stage, Stage::Abandoned)
    }
}

impl<T> Drop for Caller<T> {
    fn drop(&mut self) {
        drop(self.abandon());
    }
}

fn refused(what: &str, why: &str) -> Error {
    Error::new(ErrorKind::Io, format!("{what}: {why}"))
}

/// Runs `work` on a helper and returns its result. `what` is its path, for errors. If the future is
/// dropped, the work still runs to its end.
///
/// # Errors
/// `ETIMEDOUT` if the file system has not answered within [`DEADLINE`] (UR-H1), or has not answered
/// an earlier call for the same path; else the error of `work`.
pub(crate) async fn call<T: Send + 'static>(
    sender: Sender,
    what: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let seconds = DEADLINE.0 / 1_000_000_000;
    if POOL.lock().stuck.iter().any(|path| path == what) {
        return Err(refused(what, "the file system has not answered an earlier call yet"));
    }
    let done = Rc::new(WaitList::new());
    let name = CoreLocal::keep(done.clone());
    let waiting = Caller(Arc::new(Mutex::new(Stage::Queued)));
    let (stage, path) = (waiting.0.clone(), what.to_owned());
    POOL.begin(Box::new(move || {
        {
            let mut stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*stage, Stage::Abandoned) {
                return;
            }
            *stage = Stage::Running;
        }
        let result = work();
        let mut now = stage.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now, Stage::Abandoned) {
            drop(now);
            drop(result); // UR-H2
            let mut state = POOL.lock();
            if let Some(at) = state.stuck.iter().position(|p| *p == path) {
                state.stuck.swap_remove(at);
            }
            return;
        }
        *now = Stage::Ended(result);
        drop(now);
        // Fails if the core has ended; then nothing waits there.
        let _ = sender.call(move || {
            if let Some(done) = name.get::<WaitList>() {
                done.wake_all();
            }
        });
    }));
    let stage = waiting.0.clone();
    let ended = move || {
        let stage = stage.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*stage, Stage::Ended(_))
    };
    within(DEADLINE, done.wait_for(ended)).await;
    name.release();
    // Under the pool's lock: else the helper could remove its path before it is added.
    let mut state = POOL.lock();
    match waiting.abandon() {
        Stage::Ended(result) => result,
        Stage::Running => {
            state.stuck.push(what.to_owned());
            let stuck = state.stuck.len();
            drop(state);
            let why = format!(
                "the file system did not answer within {seconds} s (ETIMEDOUT; {stuck} of \
                 {THREADS_MAX} helper threads are stuck like this)"
            );
            Err(refused(what, &why))
        }
        Stage::Queued | Stage::Abandoned => {
            let why = match (&state.no_thread, state.threads) {
                (Some(e), threads) => format!(
                    "no helper thread was free within {seconds} s ({threads} are there), and no \
                     more can be started: {e} (a limit of threads: TasksMax=, pids.max, ulimit -u)"
                ),
                (None, threads) => {
                    format!("all {threads} helper threads wait for file systems that do not answer")
                }
            };
            drop(state);
            Err(refused(what, &why))
        }
    }
}

/// Runs `work` on a thread of its own and returns its result, however long that takes. If the
/// future is dropped, the work still runs to its end. For calls that wait for something other than
/// a file system: one that waits for ever keeps no thread from others.
///
/// # Errors
/// When there is no thread; else the error of `work`.
pub(crate) async fn call_apart<T: Send + 'static>(
    sender: Sender,
    name: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = Rc::new(WaitList::new());
    let list = CoreLocal::keep(done.clone());
    let result = Arc::new(Mutex::new(None));
    let of_thread = result.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let ended = work();
        *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        // Fails if the core has ended; then nothing waits there.
        let _ = sender.call(move || {
            if let Some(done) = list.get::<WaitList>() {
                done.wake_all();
            }
        });
    });
    if let Err(e) = thread {
        list.release();
        return Err(Error::io(format!("no thread for {name}")).because(e));
    }
    let mut ended = None;
    done.wait_for(|| {
        ended = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        ended.is_some()
    })
    .await;
    list.release();
    ended.expect("waited for above")
}

/// Waits for `future`, but not longer than `time`.
async fn within(time: Nanos, future: impl Future<Output = ()>) {
    let (mut future, mut timer) = (pin!(future), pin!(sleep(time)));
    poll_fn(|cx| {
        if future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        timer.as_mut().poll(cx)
    })
    .await;
}

/// Closes something on a helper (UR-H4).
pub(crate) fn close(closing: impl FnOnce() + Send + 'static) {
    let mut state = POOL.lock();
    let number = state.closes;
    state.closes += 1;
    state.closing.insert(number);
    drop(state);
    POOL.begin(Box::new(move || {
        closing();
        POOL.lock().closing.remove(&number);
        POOL.closed.notify_all();
    }));
}

/// Starts the thread that stays, unless there is one.
///
/// # Errors
/// When it can't be started.
pub fn start_helper() -> Result<(), Error> {
    let mut state = POOL.lock();
    if state.threads > 0 {
        return Ok(());
    }
    state.threads += 1;
    drop(state);
    POOL.start_thread().map_err(|e| Error::io("no helper thread").because(e))
}

/// A mark for [`is_closing_since`].
pub(crate) fn closes_begun() -> u64 {
    POOL.lock().closes
}

/// Whether a close that began at `mark` or later has not ended.
pub(crate) fn is_closing_since(mark: u64) -> bool {
    POOL.lock().closing.range(mark..).next().is_some()
}

/// Blocks this thread until the current closes have ended, at most for `time`. For the end of a
/// program: the kernel may take a while to close the files of a process.
pub fn wait_for_closes(time: Duration) {
    let state = POOL.lock();
    let before = state.closes;
    let is_closing = |state: &mut State| state.closing.range(..before).next().is_some();
    let waited = POOL.closed.wait_timeout_while(state, time, is_closing);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::cell::Cell;
    use std::sync::mpsc;

    use block::CoreId;
    use reactor::{Reactor, now};

    use crate::Uring;

    #[test]
    fn a_call_apart_takes_its_time_beside_others() {
        let uring = Uring::new().unwrap();
        let files = uring.files();
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let (release, hang) = mpsc::channel::<()>();
        let done = Rc::new(Cell::new(false));
        let ended = done.clone();
        reactor.block_on(async move {
            let beside = files.clone();
            reactor::spawn(async move {
                let wait = move || hang.recv().map_err(|_| Error::io("gone"));
                beside.apart("test", wait).await.unwrap();
                ended.set(true);
            });
            let name = || Ok(std::thread::current().name().map(str::to_owned));
            assert_eq!(files.apart("other", name).await.unwrap().as_deref(), Some("other"));
            assert!(!done.get());
            release.send(()).unwrap();
            while !done.get() {
                sleep(Nanos::from_millis(1)).await;
            }
            let e = files.apart("bad", || Err::<(), _>(Error::io("no"))).await.unwrap_err();
            assert_eq!(e.to_string(), "no");
        });
    }

    #[test]
    fn a_call_that_hangs_ends_and_its_path_is_refused() {
        let uring = Uring::new().unwrap();
        let files = uring.files();
        let reactor = Reactor::enter(CoreId(0), Box::new(uring));
        let (release, hang) = mpsc::channel::<()>();
        let (on_drop, dropped) = mpsc::channel();
        struct Opened(mpsc::Sender<()>);
        impl Drop for Opened {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        reactor.block_on(async move {
            let begin = now();
            let other = Rc::new(Cell::new(0));
            let count = other.clone();
            let beside = files.clone();
            reactor::spawn(async move {
                while now() - begin < Nanos(DEADLINE.0 / 2) {
                    assert_eq!(beside.away("/quick", || Ok(7)).await.unwrap(), 7);
                    count.set(count.get() + 1);
                    sleep(Nanos::from_millis(20)).await;
                }
            });
            let work = move || {
                let _ = hang.recv();
                Ok(Opened(on_drop))
            };
            let e = files.away("/hung/file", work).await.map(drop).unwrap_err();
            let text = e.to_string();
            assert!(text.contains("/hung/file") && text.contains("within 2 s"), "{text}");
            assert!(now() - begin >= DEADLINE);
            assert!(now() - begin < DEADLINE + Nanos::from_secs(2));
            assert!(other.get() > 10, "other calls went on");
            let e = files.away("/hung/file", || Ok(())).await.unwrap_err();
            assert!(e.to_string().contains("an earlier call"), "{e}");
            assert!(dropped.try_recv().is_err());
            drop(release);
            dropped.recv().unwrap(); // UR-H2
            while files.away("/hung/file", || Ok(())).await.is_err() {
                sleep(Nanos::from_millis(1)).await;
            }
        });
    }
}
