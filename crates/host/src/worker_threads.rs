// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worker threads: secondary cores that run as long as the daemon, for engines that divide their
//! devices among cores (zram), for sessions of NBD, and for queues of block
//! devices and of virtual machines. Threads of doors, in contrast, are secondary cores only while
//! they serve a request themselves.
//!
//! ```text
//!   start   cores 1..N · core 0            end   core 0 (devices go) · cores 1..N
//! ```
//!
//! Invariants
//! - HO-W1 They run before core 0 starts and until it has ended: a message to one is answered.
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use block::{CoreId, Error, ErrorKind};
use control::Failure;
use reactor::WaitList;
use uring::Sender;

use crate::io_failure::io_failure;
use crate::secondary::CorePool;
use crate::vhost_user;

/// Cores that devices may run on, core 0 among them.
pub const CORES_MAX: u32 = 16;

thread_local! {
    /// Whether this thread is to end, and the list that is woken then.
    static END: Rc<(RefCell<bool>, WaitList)> = Rc::default();
}

/// The threads. Dropping it ends them and waits for them.
pub struct WorkerThreads(Vec<WorkerThread>);

struct WorkerThread {
    core: CoreId,
    sender: Sender,
    thread: Option<JoinHandle<()>>,
}

impl WorkerThreads {
    /// Starts all but core 0 of `count` cores; returns when each takes messages.
    pub fn start(pool: &Arc<CorePool>, count: u32) -> Result<WorkerThreads, Failure> {
        if count == 0 || count > CORES_MAX {
            let message = format!("--cores {count}: 1 to {CORES_MAX} are allowed");
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        let mut cores = WorkerThreads(Vec::new());
        for nth in 1..count {
            let name = format!("core{nth}");
            let (started, wait) = mpsc::channel();
            let pool = pool.clone();
            let thread = std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || run(&pool, &started))
                .map_err(|e| io_failure(&e, format!("thread of {name}")))?;
            let (core, sender) = match wait.recv() {
                Ok(started) => started?,
                Err(_) => return Err(Failure::new(ErrorKind::Io, format!("{name} ended at once"))),
            };
            cores.0.push(WorkerThread { core, sender, thread: Some(thread) });
        }
        Ok(cores)
    }

    /// The ids of all cores, core 0 first.
    pub fn ids(&self) -> Vec<CoreId> {
        std::iter::once(CoreId(0)).chain(self.0.iter().map(|worker| worker.core)).collect()
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let end = || {
                let state = END.with(Rc::clone);
                state.0.replace(true);
                state.1.wake_all();
            };
            // An error means that it has ended. One that panicked has ended the process.
            let _ = worker.sender.call(end);
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

block::debug_as!(WorkerThreads, s => "WorkerThreads({:?})", s.ids());

fn run(pool: &Arc<CorePool>, started: &mpsc::Sender<Result<(CoreId, Sender), Error>>) {
    let secondary = match pool.enter() {
        Ok(secondary) => secondary,
        Err(e) => return drop(started.send(Err(e))),
    };
    let core = secondary.core();
    let _ = started.send(Ok((core, pool.sender(core))));
    secondary.block_on_to_the_end(async {
        let end = END.with(Rc::clone);
        end.1.wait_for(|| *end.0.borrow()).await;
        nbd::end_sessions_of_this_core();
        vhost_user::end_queues_of_this_core();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    use reactor::{Reactor, call, core_id};
    use uring::Uring;

    #[test]
    fn cores_answer_until_they_are_dropped() {
        let pool = CorePool::new(4).unwrap();
        let cores = WorkerThreads::start(&pool, 3).unwrap();
        assert_eq!(cores.ids(), [CoreId(0), CoreId(1), CoreId(2)]);
        let uring = Uring::with_mailboxes(CoreId(0), pool.mailboxes()).unwrap();
        let core0 = Reactor::enter(CoreId(0), Box::new(uring));
        for core in cores.ids() {
            let asked = core0.block_on(async move {
                call(core, move || async move {
                    let name = std::thread::current().name().map(str::to_owned);
                    (core_id(), name)
                })
                .await
            });
            let name = format!("core{}", core.0);
            let here = core == CoreId(0);
            assert!(asked.0 == core && (here || asked.1 == Some(name)), "{asked:?}");
        }
        drop(core0);
        drop(cores);
        // Their slots are free again.
        assert_eq!(pool.enter().unwrap().core(), CoreId(1));
    }

    #[test]
    fn the_number_of_cores_is_bounded() {
        let pool = CorePool::new(4).unwrap();
        for count in [0, 17] {
            let e = WorkerThreads::start(&pool, count).unwrap_err();
            assert_eq!(e.message, format!("--cores {count}: 1 to 16 are allowed"));
        }
        let e = WorkerThreads::start(&pool, 6).unwrap_err();
        assert!(e.to_string().contains("room for 4"), "{e}");
    }
}
