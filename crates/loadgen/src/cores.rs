// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where jobs run: one alone on core 0, several each on a core (and thread) of its own; without
//! io_uring, of which every core has one, as tasks of core 0.
//!
//! ```text
//!   core 0 (devices)                 thread of a job
//!   start ─── handle, work ────────▶ shard, replica ── wait for the others ── job::run
//!   wait  ◀── ended(nth, outcome) ── call
//! ```
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use block::{BlockDevice, ErrorKind};
use control::Failure;
use dm::Dm;
use host::{Handle, NbdUri, Shards, refused};
use nbd::client::Client;
use reactor::{WaitList, spawn};

use crate::job::{self, Counter, Outcome, Work};
use crate::replay::Replay;

type Ended = (usize, Result<Outcome, String>);

thread_local! {
    /// On core 0: what has come of jobs, and who waits for it.
    static ENDED: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
    static NEWS: Rc<WaitList> = Rc::default();
}

/// What is driven, as jobs find it.
pub(crate) struct Door {
    /// On core 0.
    pub(crate) device: Rc<dyn BlockDevice>,
    /// On the cores of jobs, if they have any.
    pub(crate) elsewhere: Option<(Arc<Shards>, There)>,
}

/// What is driven, as a core of a job finds it.
#[derive(Clone)]
pub(crate) enum There {
    Replica(Handle),
    /// A stack that clones: built again on that core.
    Replay(Replay),
    /// An export: by a connection of that core's own.
    Export(String),
}

/// Runs the jobs beside each other, one for each counter, until all have ended.
pub(crate) async fn run(
    door: &Door,
    work: &Work,
    counters: Vec<Arc<Counter>>,
) -> Result<Vec<Outcome>, Failure> {
    let count = counters.len();
    let together = Arc::new(Barrier::new(count));
    for (nth, counter) in counters.into_iter().enumerate() {
        let work = work.of_job(nth, count);
        match &door.elsewhere {
            None => {
                let device = door.device.clone();
                spawn(async move { ended((nth, job::run(device, work, counter).await)) });
            }
            Some((shards, there)) => {
                let (shards, there, together) = (shards.clone(), there.clone(), together.clone());
                let body = move || {
                    let result = on_its_core(&shards, there, &together, work, counter);
                    // Core 0 waits for it: it is there.
                    let _ = shards.owner().call(move || ended((nth, result)));
                };
                let thread = std::thread::Builder::new().name(format!("job{nth}"));
                thread.spawn(body).map_err(|e| refused(&e, "thread of a job"))?;
            }
        }
    }
    let news = NEWS.with(Rc::clone);
    news.wait_for(|| ENDED.with_borrow(|e| e.len() == count)).await;
    let mut done = ENDED.take();
    done.sort_by_key(|(nth, _)| *nth);
    let failed = |e: String| Failure::new(ErrorKind::Io, e).within("bench");
    done.into_iter().map(|(_, result)| result.map_err(failed)).collect()
}

/// On core 0: takes what has come of a job.
fn ended(job: Ended) {
    ENDED.with_borrow_mut(|all| all.push(job));
    NEWS.with(|news| news.wake_all());
}

/// On the thread of a job: the core, and on it the job.
fn on_its_core(
    shards: &Arc<Shards>,
    there: There,
    together: &Barrier,
    work: Work,
    counter: Arc<Counter>,
) -> Result<Outcome, String> {
    let ready = shards.enter().and_then(|shard| {
        let (held, device): (_, Rc<dyn BlockDevice>) = match there {
            There::Replica(handle) => (Held::Nothing, shard.device(&handle)),
            There::Replay(replay) => {
                let (dm, top) = replay.on(&shard)?;
                (Held::Stack(dm), top)
            }
            There::Export(uri) => {
                let files = shard.files().clone();
                let open = async move { NbdUri::parse(&uri)?.open(uri, files).await };
                let client = Rc::new(shard.block_on(open)?);
                (Held::Connection(client.clone()), client)
            }
        };
        Ok((shard, held, device))
    });
    // Also when this one can't begin: the others wait for it.
    together.wait();
    let (shard, held, device) = ready.map_err(|e| e.chain())?;
    shard.block_on(async move {
        let outcome = job::run(device, work, counter).await;
        match held {
            Held::Nothing => {}
            Held::Stack(dm) => drop(dm),
            Held::Connection(client) => {
                if let Some(client) = Rc::into_inner(client) {
                    client.close().await;
                }
            }
        }
        outcome
    })
}

/// What a job's device stands on, for as long as it runs.
enum Held {
    Nothing,
    Stack(Rc<Dm>),
    Connection(Rc<Client>),
}
