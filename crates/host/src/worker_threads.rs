// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cores besides core 0: threads that run for as long as the daemon, for engines that divide
//! their devices (zram, a write cache in parts). Doors' threads are cores only while they serve
//! something themselves.
//!
//! ```text
//!   start   cores 1..N · core 0            end   core 0 (devices go) · cores 1..N
//! ```
//!
//! Invariants
//! - C1 They run before core 0 begins and until it has ended: who is asked there answers.
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use block::{CoreId, Error, ErrorKind};
use control::Failure;
use reactor::WaitList;
use uring::Sender;

use crate::rundir::refused;
use crate::secondary::Shards;

/// Cores that devices may run on, core 0 among them.
pub const CORES_MAX: u32 = 16;

thread_local! {
    /// Set and woken when this thread is told to end.
    static END: Rc<(RefCell<bool>, WaitList)> = Rc::default();
}

/// The threads. They end when it is dropped, which waits for them.
pub struct Cores(Vec<Further>);

struct Further {
    core: CoreId,
    sender: Sender,
    thread: Option<JoinHandle<()>>,
}

impl Cores {
    /// Starts all but core 0 of `count` cores; returns when each takes calls.
    pub fn start(shards: &Arc<Shards>, count: u32) -> Result<Cores, Failure> {
        if count == 0 || count > CORES_MAX {
            let message = format!("--cores {count}: 1 to {CORES_MAX} are allowed");
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        let mut cores = Cores(Vec::new());
        for nth in 1..count {
            let name = format!("core{nth}");
            let (started, wait) = mpsc::channel();
            let shards = shards.clone();
            let thread = std::thread::Builder::new()
                .name(name.clone())
                .spawn(move || run(&shards, &started))
                .map_err(|e| refused(&e, format!("thread of {name}")))?;
            let (core, sender) = match wait.recv() {
                Ok(started) => started?,
                Err(_) => return Err(Failure::new(ErrorKind::Io, format!("{name} ended at once"))),
            };
            cores.0.push(Further { core, sender, thread: Some(thread) });
        }
        Ok(cores)
    }

    /// Core 0 and these.
    pub fn ids(&self) -> Vec<CoreId> {
        std::iter::once(CoreId(0)).chain(self.0.iter().map(|further| further.core)).collect()
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        for further in &mut self.0 {
            let tell = || {
                let end = END.with(Rc::clone);
                end.0.replace(true);
                end.1.wake_all();
            };
            // One that has ended needs no word, and one that has panicked has ended the process.
            let _ = further.sender.call(tell);
            if let Some(thread) = further.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cores({:?})", self.ids())
    }
}

fn run(shards: &Arc<Shards>, started: &mpsc::Sender<Result<(CoreId, Sender), Error>>) {
    let shard = match shards.enter() {
        Ok(shard) => shard,
        Err(e) => return drop(started.send(Err(e))), // who started it waits
    };
    let core = shard.core();
    let _ = started.send(Ok((core, shards.sender(core))));
    shard.block_on(async {
        let end = END.with(Rc::clone);
        end.1.wait_for(|| *end.0.borrow()).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    use reactor::{Reactor, call, core_id};
    use uring::Uring;

    #[test]
    fn cores_answer_until_they_are_dropped() {
        let shards = Shards::new(4).unwrap();
        let cores = Cores::start(&shards, 3).unwrap();
        assert_eq!(cores.ids(), [CoreId(0), CoreId(1), CoreId(2)]);
        let uring = Uring::with_mailboxes(CoreId(0), shards.mailboxes()).unwrap();
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
        // Their places are free again.
        assert_eq!(shards.enter().unwrap().core(), CoreId(1));
    }

    #[test]
    fn the_number_of_cores_is_bounded() {
        let shards = Shards::new(4).unwrap();
        for count in [0, 17] {
            let e = Cores::start(&shards, count).unwrap_err();
            assert_eq!(e.message, format!("--cores {count}: 1 to 16 are allowed"));
        }
        let e = Cores::start(&shards, 6).unwrap_err();
        assert!(e.to_string().contains("room for 4"), "{e}");
    }
}
