// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Core`: tasks, run queue and event loop.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use block::{BlockDevice, Budget, CoreId, Nanos, OpKey, Opener, Status, crashing, set_crashing};
use slab::Slab;

use crate::call::Calls;
use crate::core_local::CoreLocals;
use crate::driver::{Driver, Event, FileId, Found, Msg, OpResult, Sqe};
use crate::exports::{Export, Exports};
use crate::op_table::OpTable;
use crate::outbox::Outbox;
use crate::pollers::Pollers;
use crate::shared_memory::SharedMemoryStore;
use crate::timers::Timers;

/// Tasks polled in one turn of the loop before the driver is asked again: completions do not wait
/// behind a busy run queue. Large enough that replies are sent together.
const POLLS_PER_ROUND_MAX: usize = 1024;
/// How long a turn polls tasks, and after how many of them it looks at the clock. Chosen: what a
/// client of a fast disk waits for a read.
const ROUND_MAX: Nanos = Nanos(200_000);
/// The same for few tasks that compute for long and say so ([`count_work`]), before the first look.
const WORK_PER_ROUND_MAX: Nanos = Nanos(300_000);
const POLLS_BETWEEN_LOOKS: usize = 16;

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A task, and its waker. Taken out while the task is being polled.
struct Task(Option<(TaskFuture, Waker)>);

/// A task, for its waker. A waker never leaves the thread of its core: a wake on another thread
/// finds no such core there, and the assertion in `wake_by_ref` catches the bug.
struct TaskRef {
    core: CoreId,
    task: usize,
    queued: std::sync::atomic::AtomicBool,
}

impl Wake for TaskRef {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        use std::sync::atomic::Ordering::Relaxed;
        if self.queued.swap(true, Relaxed) {
            return;
        }
        let task = Cell::new(Some(self.clone()));
        let push = |c: &Core| {
            if let Some(t) = task.take() {
                c.run_queue.borrow_mut().push_back(t);
            }
        };
        let here =
            CURRENT.with_borrow(|c| c.as_ref().filter(|c| c.0.id == self.core).map(|c| push(&c.0)));
        if here.is_none() {
            CORES.with_borrow(|cores| {
                if let Some(c) = cores.get(&self.core) {
                    push(&c.0);
                } else {
                    assert!(crashing(), "a task was woken on a thread that does not run its core");
                }
            });
        }
    }
}

/// The cached time of a turn of the loop.
#[derive(Clone, Copy)]
enum LoopTime {
    /// The loop does not run: a simulator polls the core.
    NotRunning,
    /// Not read in this turn.
    Unknown,
    At(Nanos),
}

pub(crate) struct Core {
    pub(crate) id: CoreId,
    pub(crate) driver: RefCell<Box<dyn Driver>>,
    pub(crate) pollers: RefCell<Pollers>,
    loop_time: Cell<LoopTime>,
    pub(crate) ops: RefCell<OpTable>,
    pub(crate) sq: RefCell<Vec<Sqe>>,
    run_queue: RefCell<VecDeque<Arc<TaskRef>>>,
    tasks: RefCell<Slab<Task>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) exports: RefCell<Exports>,
    outbox: RefCell<Outbox>,
    openers: Cell<u32>,
    memory: RefCell<Arc<Budget>>,
    pub(crate) shared_memory: RefCell<Option<Rc<dyn SharedMemoryStore>>>,
    pub(crate) others_share_memory: Cell<bool>,
    pub(crate) calls: Calls,
    pub(crate) locals: RefCell<CoreLocals>,
    /// What tasks have computed in this turn, as far as they have said so.
    work: Cell<Nanos>,
}

/// A core, for the run loops of drivers.
#[derive(Clone)]
pub struct CoreRef(Rc<Core>);

thread_local! {
    /// One entry in production; all cores of the world in simulation.
    static CORES: RefCell<BTreeMap<CoreId, CoreRef>> = const { RefCell::new(BTreeMap::new()) };
    /// Cleared when the core is dropped. Without a destructor each access costs less.
    static CURRENT: RefCell<ManuallyDrop<Option<CoreRef>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// The core that runs on this thread now.
pub fn current() -> CoreRef {
    CURRENT.with_borrow(|c| c.as_ref().expect("a reactor runs on this thread").clone())
}

pub(crate) fn with_core<R>(f: impl FnOnce(&Core) -> R) -> R {
    CURRENT.with_borrow(|c| f(&c.as_ref().expect("a reactor runs on this thread").0))
}

/// The core that runs on this thread now.
pub fn core_id() -> CoreId {
    with_core(|c| c.id)
}

/// The driver's clock.
pub fn now() -> Nanos {
    with_core(|c| c.driver.borrow().now())
}

/// The driver's clock, read at most once in each turn of the event loop.
///
/// A turn begins when `park` returns: its events are delivered, timers fire, tasks run. When a
/// request ends, the cached time lies between its true end and [`now`]. In a task it is early by at
/// most the time that the turn has run. In the simulator, where code takes no time, it is [`now`].
pub fn loop_time() -> Nanos {
    with_core(Core::loop_time)
}

/// The task that runs has computed for about so long. Tasks that are ready then wait for the next
/// turn, so that the driver is asked meanwhile. For work of a tenth of a millisecond and more, of
/// which many tasks may have some at the same time; one task alone yields.
pub fn count_work(time: Nanos) {
    with_core(|c| c.work.set(c.work.get() + time));
}

/// Whether this turn of the loop has lasted so long that a task with more to do should yield, for
/// the driver to be asked. Reads the clock. Never in the simulator, where code takes no time.
pub fn turn_is_over() -> bool {
    with_core(|c| {
        let begun = c.loop_time();
        c.driver.borrow().now().saturating_sub(begun) >= ROUND_MAX
    })
}

/// Random bits from the driver: seeded under simulation.
pub fn random() -> u64 {
    with_core(|c| c.driver.borrow_mut().random())
}

/// The budget for whatever may become large: unlimited until [`set_memory`] is called.
pub fn memory() -> Arc<Budget> {
    with_core(|c| c.memory.borrow().clone())
}

/// Sets the budget of this core, before any device is opened. All cores of a process share one.
pub fn set_memory(budget: Arc<Budget>) {
    with_core(|c| *c.memory.borrow_mut() = budget);
}

/// A new opener. Its number is unique among all cores, until this core has made 16,777,215 more.
pub fn new_opener() -> Opener {
    const BITS: u32 = 24;
    with_core(|c| {
        let nth = c.openers.get() % ((1 << BITS) - 1) + 1;
        c.openers.set(nth);
        Opener(u32::from(c.id.0) << BITS | nth)
    })
}

/// Starts a task on this core. It runs until it ends; only a power cut cancels it.
pub fn spawn(future: impl Future<Output = ()> + 'static) {
    start(Box::pin(future));
}

/// As [`spawn`]: one function for all types of tasks, which is compiled once.
fn start(future: TaskFuture) {
    with_core(|c| {
        let mut tasks = c.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let queued = std::sync::atomic::AtomicBool::new(true);
        let task = Arc::new(TaskRef { core: c.id, task: entry.key(), queued });
        let waker = Waker::from(task.clone());
        entry.insert(Task(Some((future, waker))));
        c.run_queue.borrow_mut().push_back(task);
    });
}

/// Lets other cores reach `device`, by a [`crate::Remote`], until [`unexport`].
pub fn export(device: Rc<dyn BlockDevice>) -> Export {
    with_core(|c| c.exports.borrow_mut().insert(device))
}

/// Ends an export. Bios of other cores that arrive later fail with `NoDevice`. No effect when it
/// has ended.
pub fn unexport(export: Export) {
    // Dropping a device may close files or submit, so nothing may be borrowed here.
    drop(with_core(|c| c.exports.borrow_mut().remove(export)));
}

/// Ends each Recv and Accept of this core that waits on a socket: with the bytes or the connection
/// that it has, or else with [`Status::Again`]. The socket is not shut down: what arrives later is
/// for the next Recv or Accept, here or in another process that has the socket. No effect on what
/// is submitted after this call, and on other requests.
pub fn end_waits(file: FileId) {
    let core = current();
    // What was pushed before comes before.
    core.submit_pushed();
    core.0.driver.borrow_mut().end_waits(file);
}

/// Has all that tasks have pushed begin now, and not at the end of this turn: for what another
/// program waits for while this turn goes on. Costs a system call.
pub fn begin_pushed() {
    let core = current();
    core.submit_pushed();
    core.0.driver.borrow_mut().begin();
}

/// Sends a message to another core, together with the others of this turn. Messages from one core
/// to another arrive in order.
pub fn post(to: CoreId, msg: Msg) {
    with_core(|c| c.outbox.borrow_mut().push(to, msg));
}

impl Core {
    fn loop_time(&self) -> Nanos {
        if let LoopTime::At(time) = self.loop_time.get() {
            return time;
        }
        let now = self.driver.borrow().now();
        if matches!(self.loop_time.get(), LoopTime::Unknown) {
            self.loop_time.set(LoopTime::At(now));
        }
        now
    }
}

impl CoreRef {
    /// This core's name.
    pub fn id(&self) -> CoreId {
        self.0.id
    }

    /// Number of runnable tasks.
    pub fn ready(&self) -> usize {
        self.0.run_queue.borrow().len()
    }

    /// Makes this core the one that runs on this thread.
    pub fn make_current(&self) {
        CURRENT.with_borrow_mut(|c| {
            if !c.as_ref().is_some_and(|now| Rc::ptr_eq(&now.0, &self.0)) {
                **c = Some(self.clone());
            }
        });
    }

    /// Polls the `nth` runnable task.
    pub fn poll_nth(&self, nth: usize) {
        let mut run_queue = self.0.run_queue.borrow_mut();
        let next = if nth == 0 { run_queue.pop_front() } else { run_queue.remove(nth) };
        drop(run_queue);
        let Some(task) = next else { return };
        task.queued.store(false, std::sync::atomic::Ordering::Relaxed);
        self.make_current();
        let taken = self.0.tasks.borrow_mut().get_mut(task.task).and_then(|t| t.0.take());
        let Some((mut future, waker)) = taken else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.0.tasks.borrow_mut()[task.task].0 = Some((future, waker));
        } else {
            drop(future);
            drop(self.0.tasks.borrow_mut().remove(task.task));
        }
    }

    /// Hands everything that tasks have pushed and posted to the driver.
    pub fn flush_sq(&self) {
        self.submit_pushed();
        self.send_mail();
    }

    fn submit_pushed(&self) {
        let mut sq = self.0.sq.borrow_mut();
        if !sq.is_empty() {
            self.0.driver.borrow_mut().submit(&mut sq);
        }
    }

    fn send_mail(&self) {
        let next = || self.0.outbox.borrow_mut().take_one();
        while let Some((to, mut batch)) = next() {
            self.0.driver.borrow_mut().post_batch(to, &mut batch);
            // Messages that can't be delivered are dropped while nothing is borrowed.
            batch.clear();
            self.0.outbox.borrow_mut().give_back(to, batch);
        }
    }

    /// When the next timer fires.
    pub fn next_timer(&self) -> Option<Nanos> {
        self.0.timers.borrow().next()
    }

    /// Whether no request is in flight.
    pub fn idle(&self) -> bool {
        self.0.ops.borrow().is_empty()
    }

    /// Wakes the tasks whose time has come.
    pub fn fire_timers(&self) {
        // Without a timer that may fire a turn does not read the clock.
        let next = self.next_timer();
        if !next.is_some_and(|time| self.0.driver.borrow().may_have_come(time)) {
            return;
        }
        let now = self.0.loop_time();
        while let Some(waker) = self.0.timers.borrow_mut().pop_due(now) {
            waker.wake();
        }
    }

    /// Whether a task waits for a poller.
    pub fn has_pollers(&self) -> bool {
        !self.0.pollers.borrow().is_empty()
    }

    /// Wakes the tasks of pollers that are ready. Returns whether there were any.
    pub fn wake_ready(&self) -> bool {
        self.make_current();
        self.0.pollers.borrow_mut().wake_ready()
    }

    /// Wakes the tasks of all pollers: the core is about to sleep.
    pub fn end_pollers(&self) {
        self.make_current();
        self.0.pollers.borrow_mut().end();
    }

    /// Looks for events and ready pollers before a sleep, and wakes the tasks of pollers.
    fn poll_awake(&self, deadline: Option<Nanos>) -> Found {
        if deadline == Some(Nanos::ZERO) {
            self.wake_ready();
            return Found::Event; // tasks are ready: it does not sleep
        }
        let is_ready = || self.0.pollers.borrow().has_ready();
        let found = self.0.driver.borrow_mut().poll(deadline, &is_ready);
        match found {
            Found::Event | Found::Ready => drop(self.wake_ready()),
            Found::Nothing => self.end_pollers(),
        }
        found
    }

    /// Ends an op of this core, which is the current one.
    fn finish(&self, key: OpKey, result: OpResult) {
        let ended = self.0.ops.borrow_mut().end(key, result);
        ended.notify(result.status);
    }

    /// Takes one event of the driver.
    pub fn deliver(&self, event: Event) {
        self.make_current();
        self.take(event);
    }

    /// The same, for the core that is the current one.
    fn take(&self, event: Event) {
        match event {
            Event::Cqe { home, key, result } if home == self.0.id => self.finish(key, result),
            Event::Cqe { home, key, result } => post(home, Msg::Complete { key, result }),
            Event::Msg(Msg::Complete { key, result }) => self.finish(key, result),
            Event::Msg(Msg::Submit { device, bio }) => {
                let device = self.0.exports.borrow().get(device);
                match device {
                    Some(device) => device.submit(bio),
                    None => bio.complete(Status::NoDevice),
                }
            }
            Event::Msg(Msg::Call(f)) => f(),
        }
    }
}

/// A core with its driver. Dropping it is a power cut: tasks are dropped unfinished.
pub struct Reactor(CoreRef);

impl Reactor {
    /// Sets a core up on this thread.
    pub fn enter(id: CoreId, driver: Box<dyn Driver>) -> Reactor {
        let core = CoreRef(Rc::new(Core {
            id,
            driver: RefCell::new(driver),
            pollers: RefCell::default(),
            loop_time: Cell::new(LoopTime::NotRunning),
            ops: RefCell::default(),
            sq: RefCell::default(),
            run_queue: RefCell::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            exports: RefCell::default(),
            outbox: RefCell::default(),
            openers: Cell::new(0),
            memory: RefCell::new(Arc::new(Budget::unlimited())),
            shared_memory: RefCell::default(),
            others_share_memory: Cell::default(),
            calls: Calls::default(),
            locals: RefCell::default(),
            work: Cell::new(Nanos::ZERO),
        }));
        CORES.with_borrow_mut(|c| {
            assert!(c.insert(id, core.clone()).is_none(), "core entered twice on one thread");
        });
        core.make_current();
        Reactor(core)
    }

    /// The core, for a driver's own run loop.
    pub fn core(&self) -> &CoreRef {
        &self.0
    }

    /// Runs `f` as this core.
    pub fn on<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.make_current();
        f()
    }

    /// The event loop of the real driver. Returns `true` when `until()` holds. When nothing can
    /// happen any more, returns what `until()` returns then.
    pub fn run(&self, until: impl FnMut() -> bool) -> bool {
        self.0.make_current();
        let ended = self.event_loop(until);
        self.0.0.loop_time.set(LoopTime::NotRunning);
        ended
    }

    fn event_loop(&self, mut until: impl FnMut() -> bool) -> bool {
        let core = &self.0;
        let mut events = Vec::new();
        loop {
            let (mut polls, mut give_up) = (0, None);
            core.0.work.set(Nanos::ZERO);
            let has_time = || core.0.work.get() < WORK_PER_ROUND_MAX;
            while core.ready() > 0 && polls < POLLS_PER_ROUND_MAX && has_time() {
                core.poll_nth(0);
                polls += 1;
                if polls % POLLS_BETWEEN_LOOKS == 0 {
                    // A turn of few tasks does not read the clock.
                    let now = core.0.driver.borrow().now();
                    if now >= *give_up.get_or_insert(now + ROUND_MAX) {
                        break;
                    }
                }
            }
            if until() {
                core.send_mail();
                return true;
            }
            core.flush_sq();
            let mut deadline = if core.ready() > 0 { Some(Nanos::ZERO) } else { core.next_timer() };
            if core.has_pollers() {
                match core.poll_awake(deadline) {
                    Found::Event => deadline = Some(Nanos::ZERO),
                    // The tasks of pollers go on. Nobody has to be asked for events.
                    Found::Ready | Found::Nothing => {
                        core.0.loop_time.set(LoopTime::Unknown);
                        core.fire_timers();
                        continue;
                    }
                }
            }
            let reachable =
                || !core.0.exports.borrow().is_empty() || core.0.driver.borrow().expects_calls();
            if deadline.is_none() && core.idle() && !reachable() {
                return until();
            }
            core.0.driver.borrow_mut().park(deadline, &mut events);
            core.0.loop_time.set(LoopTime::Unknown);
            for event in events.drain(..) {
                core.take(event);
            }
            core.fire_timers();
        }
    }

    /// Runs until `future` has ended. Panics when it can never end.
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let out = Rc::new(RefCell::new(None));
        let (set, test) = (out.clone(), out.clone());
        self.on(|| spawn(async move { *set.borrow_mut() = Some(future.await) }));
        assert!(self.run(|| test.borrow().is_some()), "deadlock: no task can run");
        out.take().expect("set, asserted above")
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let before = crashing();
        set_crashing(true);
        self.0.make_current();
        let core = &self.0.0;
        // Dropped tasks may wake or spawn others, so the table must not be borrowed.
        drop(core.tasks.take());
        drop(core.run_queue.take());
        drop(core.timers.take());
        drop(core.pollers.take());
        drop(core.sq.take());
        drop(core.exports.take());
        drop(core.locals.take());
        drop(core.outbox.take());
        drop(core.ops.take());
        CORES.with_borrow_mut(|c| c.remove(&core.id));
        CURRENT.with_borrow_mut(|c| c.take());
        set_crashing(before);
    }
}
