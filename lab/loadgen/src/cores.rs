// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where jobs run: one alone on core 0, several each on a core (and thread) of its own; without
//! io_uring, of which every core has one, as tasks of core 0.
//!
//! ```text
//!   core 0 (devices)                 thread of a job
//!   start ─── handle, work ────────▶ replica ── wait for the others ── job::run
//!   wait  ◀── ended(nth, outcome) ── call
//! ```
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Barrier};

use block::{BlockDevice, ErrorKind};
use control::Failure;
use dm::Dm;
use host::{CorePool, DeviceHandle, NbdUri, io_failure};
use nbd::client::Client;
use reactor::{WaitList, spawn};

use crate::job::{self, Counter, Outcome, Work};
use crate::stack_copy::StackCopy;

type Ended = (usize, Result<Outcome, String>);

thread_local! {
    /// On core 0: the outcomes of jobs, and the list that waits for them.
    static ENDED: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
    static ENDED_CHANGED: Rc<WaitList> = Rc::default();
}

/// A device under load.
pub(crate) struct DrivenDevice {
    /// On core 0.
    pub(crate) device: Rc<dyn BlockDevice>,
    /// How it is reached on the cores of jobs, if they have any.
    pub(crate) on_cores: Option<(Arc<CorePool>, Placement)>,
}

/// How a device is reached on the core of a job.
#[derive(Clone)]
pub(crate) enum Placement {
    Replica(DeviceHandle),
    /// A stack that clones bios: built again on that core.
    StackCopy(StackCopy),
    /// An export: by a connection of that core's own.
    Export(String),
}

/// Runs the jobs in parallel, one for each counter, until all have ended.
pub(crate) async fn run(
    driven: &DrivenDevice,
    work: &Work,
    counters: Vec<Arc<Counter>>,
) -> Result<Vec<Outcome>, Failure> {
    let count = counters.len();
    let together = Arc::new(Barrier::new(count));
    for (nth, counter) in counters.into_iter().enumerate() {
        let work = work.of_job(nth, count);
        match &driven.on_cores {
            None => {
                let device = driven.device.clone();
                spawn(async move { ended((nth, job::run(device, work, counter).await)) });
            }
            Some((pool, placement)) => {
                let (pool, placement, together) =
                    (pool.clone(), placement.clone(), together.clone());
                let body = move || {
                    let result = on_its_core(&pool, placement, &together, work, counter);
                    // Core 0 waits for it: it is there.
                    let _ = pool.owner().call(move || ended((nth, result)));
                };
                let thread = std::thread::Builder::new().name(format!("job{nth}"));
                thread.spawn(body).map_err(|e| io_failure(&e, "thread of a job"))?;
            }
        }
    }
    let changed = ENDED_CHANGED.with(Rc::clone);
    changed.wait_for(|| ENDED.with_borrow(|e| e.len() == count)).await;
    let mut done = ENDED.take();
    done.sort_by_key(|(nth, _)| *nth);
    let failed = |e: String| Failure::new(ErrorKind::Io, e);
    done.into_iter().map(|(_, result)| result.map_err(failed)).collect()
}

/// On core 0: records the outcome of a job.
fn ended(job: Ended) {
    ENDED.with_borrow_mut(|all| all.push(job));
    ENDED_CHANGED.with(|changed| changed.wake_all());
}

/// On the thread of a job: the core, and on it the job.
fn on_its_core(
    pool: &Arc<CorePool>,
    placement: Placement,
    together: &Barrier,
    work: Work,
    counter: Arc<Counter>,
) -> Result<Outcome, String> {
    let ready = pool.enter().and_then(|secondary| {
        let (support, device): (_, Rc<dyn BlockDevice>) = match placement {
            Placement::Replica(handle) => (Support::Nothing, secondary.device(&handle)),
            Placement::StackCopy(copy) => {
                let (dm, top) = copy.build(&secondary)?;
                (Support::Stack(dm), top)
            }
            Placement::Export(uri) => {
                let files = secondary.files().clone();
                let open = async move { NbdUri::parse(&uri)?.open(uri, files).await };
                let client = Rc::new(secondary.block_on(open)?);
                (Support::Connection(client.clone()), client)
            }
        };
        Ok((secondary, support, device))
    });
    // Also when this job can't start, as the others wait for it.
    together.wait();
    let (secondary, support, device) = ready.map_err(|e| e.chain())?;
    secondary.block_on(async move {
        let outcome = job::run(device, work, counter).await;
        match support {
            Support::Nothing => {}
            Support::Stack(dm) => drop(dm),
            Support::Connection(client) => {
                if let Some(client) = Rc::into_inner(client) {
                    client.close().await;
                }
            }
        }
        outcome
    })
}

/// What a job's device needs as long as the job runs.
enum Support {
    Nothing,
    Stack(Rc<Dm>),
    Connection(Rc<Client>),
}
