// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A secondary core: the reactor of one thread, and its replicas of devices of core 0.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{Base, Bio, BlockDevice, CoreId, Error, Limits, OnIoError, Op, Sector, Status};
use dm::Flat;
use queue::Leaf;
use reactor::{Msg, Reactor, Remote, post, spawn};
use uring::{Files, Uring};

use crate::leaves::SharedLeaf;
use crate::secondary::owner::{core_has_left, core_has_refreshed, leaf_has_failed};
use crate::secondary::parts::CountedRoute;
use crate::secondary::{CorePool, DeviceHandle, LeaseEntry, LocalMapping, ReplicaMode};

thread_local! {
    /// For the owner's requests: closures that run on this thread.
    static THIS_CORE: RefCell<Weak<CoreState>> = const { RefCell::new(Weak::new()) };
}

/// The secondary core of this thread. It ends when it is dropped.
pub struct SecondaryCore {
    // Dropped first: its tasks use the rest.
    reactor: Option<Reactor>,
    inner: Rc<CoreState>,
}

struct CoreState {
    slot: usize,
    pool: Arc<CorePool>,
    files: Files,
    present: Rc<Cell<bool>>,
    /// The generation that the replicas are of.
    seen: Cell<u64>,
    /// The generation that was reported to the owner on leaving.
    reported: Cell<u64>,
    replicas: RefCell<BTreeMap<u64, Rc<Replica>>>,
    bases: RefCell<BTreeMap<u64, LocalBase>>,
    /// Bios of this core on their way to parts of engines.
    in_flight: Rc<Cell<u64>>,
    /// Bases of mappings that are withdrawn, until their requests have ended.
    retired: RefCell<Vec<Rc<Retired>>>,
}

struct LocalBase {
    leaf: Rc<dyn Leaf>,
    _reporter: Rc<FaultReporter>,
}

/// A base of the withdrawn mapping of a lease.
struct Retired {
    lease: u64,
    base: Rc<dyn Base>,
}

/// Reports to core 0 which bios failed here.
struct FaultReporter(u64);

impl OnIoError for FaultReporter {
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        let leaf = self.0;
        let report = move || leaf_has_failed(leaf, (op, sector, len), status);
        post(CoreId(0), Msg::Call(Box::new(report)));
    }
}

/// A device of core 0, on this core.
pub struct Replica {
    entry: Arc<LeaseEntry>,
    remote: Remote,
    present: Rc<Cell<bool>>,
    active: RefCell<ActiveMode>,
}

enum ActiveMode {
    Remote,
    Flat(Arc<LocalMapping>, Flat),
    Leaf(Arc<LocalMapping>, Rc<dyn Base>),
    Parts(Arc<LocalMapping>, Rc<dyn Base>, Limits),
    Closed,
}

impl ActiveMode {
    fn bases(&self) -> &[Rc<dyn Base>] {
        match self {
            ActiveMode::Flat(_, flat) => flat.bases(),
            ActiveMode::Leaf(_, base) | ActiveMode::Parts(_, base, _) => std::slice::from_ref(base),
            ActiveMode::Remote | ActiveMode::Closed => &[],
        }
    }

    fn is(&self, mode: &ReplicaMode) -> bool {
        match (self, mode) {
            (
                ActiveMode::Flat(now, _) | ActiveMode::Leaf(now, _) | ActiveMode::Parts(now, ..),
                ReplicaMode::Local(local),
            ) => Arc::ptr_eq(now, local),
            (ActiveMode::Closed, ReplicaMode::Closed) => true,
            // A mapping that could not be made here may be made at the next refresh.
            _ => false,
        }
    }
}

impl Replica {
    /// Whether bios complete as they are submitted: this core has a mapping that ends in memory.
    /// Valid inside [`SecondaryCore::block_on`].
    pub(crate) fn is_in_memory(&self) -> bool {
        match &*self.active.borrow() {
            ActiveMode::Flat(local, _) | ActiveMode::Leaf(local, _) => local.is_in_memory(),
            ActiveMode::Parts(..) | ActiveMode::Remote | ActiveMode::Closed => false,
        }
    }
}

impl BlockDevice for Replica {
    fn name(&self) -> &str {
        &self.entry.name
    }

    fn limits(&self) -> Limits {
        match &*self.active.borrow() {
            ActiveMode::Flat(_, flat) => flat.limits().clone(),
            ActiveMode::Leaf(_, base) => base.limits(),
            ActiveMode::Parts(.., limits) => limits.clone(),
            ActiveMode::Remote | ActiveMode::Closed => self.entry.state().limits.clone(),
        }
    }

    fn takes_client_memory(&self) -> bool {
        match &*self.active.borrow() {
            ActiveMode::Flat(_, flat) => flat.takes_client_memory(),
            ActiveMode::Leaf(_, base) => base.takes_client_memory(),
            ActiveMode::Parts(..) | ActiveMode::Remote | ActiveMode::Closed => false,
        }
    }

    fn submit(&self, bio: Bio) {
        // HO-S1
        assert!(self.present.get(), "a bio outside of block_on, where nobody waits for it");
        match &*self.active.borrow() {
            ActiveMode::Flat(_, flat) => flat.submit(bio),
            ActiveMode::Leaf(_, base) => base.submit(bio),
            // Core 0 refuses what the limits do not allow, and counts it.
            ActiveMode::Parts(_, base, limits) => match limits.check(&bio) {
                Ok(()) => base.submit(bio),
                Err(_) => self.remote.submit(bio),
            },
            ActiveMode::Remote => self.remote.submit(bio),
            ActiveMode::Closed => bio.complete(Status::NoDevice),
        }
    }
}

impl SecondaryCore {
    pub(super) fn new(pool: Arc<CorePool>) -> Result<SecondaryCore, Error> {
        let slot = pool.take_slot()?;
        let driver = Uring::with_mailboxes(CorePool::core(slot), pool.mailboxes());
        let driver = driver.inspect_err(|_| pool.free_slot(slot))?;
        let files = driver.files();
        let reactor = Reactor::enter(CorePool::core(slot), Box::new(driver));
        reactor.on(|| pool.set_up_memory(&files));
        // Replicas read the mode in force when they are made.
        let inner = Rc::new(CoreState {
            slot,
            pool,
            files,
            present: Rc::default(),
            seen: Cell::new(0),
            reported: Cell::new(0),
            replicas: RefCell::default(),
            bases: RefCell::default(),
            in_flight: Rc::default(),
            retired: RefCell::default(),
        });
        THIS_CORE.set(Rc::downgrade(&inner));
        Ok(SecondaryCore { reactor: Some(reactor), inner })
    }

    /// The id of this core.
    pub(crate) fn core(&self) -> CoreId {
        CorePool::core(self.inner.slot)
    }

    /// Opens files and connections on this core.
    pub fn files(&self) -> &Files {
        &self.inner.files
    }

    /// A leaf of core 0 on this core, for a stack of this core's own.
    pub fn open(&self, leaf: &SharedLeaf) -> Rc<dyn Leaf> {
        leaf.open(&self.inner.files)
    }

    /// The replica of a leased device, for use inside [`SecondaryCore::block_on`]: the same one at
    /// every call, until the lease ends. Its name is the device's when the lease began.
    pub fn device(&self, handle: &DeviceHandle) -> Rc<Replica> {
        self.inner.replica(&handle.0)
    }

    #[cfg(test)]
    pub(super) fn has_local_mapping(&self, handle: &DeviceHandle) -> bool {
        let now =
            self.inner.replicas.borrow().get(&handle.0.id).map(|r| r.active.borrow().bases().len());
        now.is_some_and(|bases| bases > 0)
    }

    /// Runs until `future` has ended, and everything that this core has in flight on its own bases
    /// (HO-S2).
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let value = self.run(future, || self.inner.is_idle());
        self.inner.leave();
        value
    }

    /// The same for a thread that ends with the daemon, when core 0 has ended: nobody waits for
    /// requests that are in flight then. A disk that hangs would never end them.
    pub(crate) fn block_on_to_the_end<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> T {
        self.run(future, || true)
    }

    /// Runs until `future` has ended, and `is_done` returns true.
    fn run<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
        is_done: impl Fn() -> bool,
    ) -> T {
        let out = Rc::new(RefCell::new(None));
        let (set, inner) = (out.clone(), &self.inner);
        let reactor = self.reactor.as_ref().expect("there until it is dropped");
        reactor.on(|| {
            inner.enter();
            spawn(async move { *set.borrow_mut() = Some(future.await) });
        });
        let done = || out.borrow().is_some() && is_done();
        assert!(reactor.run(done), "deadlock: no task can run");
        out.take().expect("set: the run has ended")
    }
}

impl Drop for SecondaryCore {
    fn drop(&mut self) {
        let reactor = self.reactor.take().expect("dropped once");
        // A late answer to a request in flight (with core 0 only: HO-S2) must not reach a successor
        // in the same slot.
        let used_up = !reactor.core().idle();
        reactor.on(|| {
            self.inner.replicas.take();
            self.inner.retired.take();
            self.inner.bases.take();
        });
        drop(reactor);
        if !used_up {
            self.inner.pool.free_slot(self.inner.slot);
        }
    }
}

block::debug_as!(SecondaryCore, s => "SecondaryCore({})", s.core().0);

impl CoreState {
    /// From here on bios may be submitted, and the owner asks before it withdraws a mapping.
    fn enter(self: &Rc<Self>) {
        assert!(!self.present.replace(true), "block_on within block_on");
        let generation = self.pool.presence.enter(self.slot);
        if generation != self.seen.get() {
            self.refresh(generation);
            // HO-S2: nothing was in flight.
            self.retired.take();
            self.forget_bases();
        }
    }

    /// Nothing is in flight and nothing will be submitted: the owner need not ask.
    fn leave(&self) {
        self.present.set(false);
        let generation = self.pool.presence.leave(self.slot);
        if generation != self.reported.replace(generation) {
            let slot = self.slot;
            // An error means that core 0 has ended: then nothing waits.
            let _ = self.pool.owner.call(move || core_has_left(slot, generation));
        }
    }

    fn is_idle(&self) -> bool {
        let bases = self.bases.borrow();
        self.in_flight.get() == 0 && bases.values().all(|base| base.leaf.stats().in_flight() == 0)
    }

    fn replica(&self, entry: &Arc<LeaseEntry>) -> Rc<Replica> {
        if let Some(replica) = self.replicas.borrow().get(&entry.id) {
            return replica.clone();
        }
        let (mode, limits) = {
            let state = entry.state();
            (state.mode.clone(), state.limits.clone())
        };
        let replica = Rc::new(Replica {
            entry: entry.clone(),
            remote: Remote::new(CoreId(0), entry.export, entry.name.clone(), limits),
            present: self.present.clone(),
            active: RefCell::new(self.active_mode(&mode)),
        });
        if !matches!(mode, ReplicaMode::Closed) {
            self.replicas.borrow_mut().insert(entry.id, replica.clone());
        }
        replica
    }

    /// The mode that a replica works in when `mode` is in force.
    fn active_mode(&self, mode: &ReplicaMode) -> ActiveMode {
        let local = match mode {
            ReplicaMode::Remote => return ActiveMode::Remote,
            ReplicaMode::Closed => return ActiveMode::Closed,
            ReplicaMode::Local(local) => local,
        };
        match &**local {
            LocalMapping::Parts(make, limits) => make().map_or(ActiveMode::Remote, |way| {
                let way = Rc::new(CountedRoute::new(way, self.in_flight.clone()));
                ActiveMode::Parts(local.clone(), way, limits.clone())
            }),
            LocalMapping::Leaf(leaf) => ActiveMode::Leaf(local.clone(), self.base(leaf)),
            LocalMapping::Flat(plan, leaves) => {
                let bases: Vec<_> = leaves.iter().map(|leaf| self.base(leaf)).collect();
                plan.on(&bases)
                    .map_or(ActiveMode::Remote, |flat| ActiveMode::Flat(local.clone(), flat))
            }
        }
    }

    fn base(&self, leaf: &SharedLeaf) -> Rc<dyn Base> {
        let mut bases = self.bases.borrow_mut();
        let new = || {
            let (leaf, reporter) = (leaf.open(&self.files), Rc::new(FaultReporter(leaf.id)));
            let as_fault: Rc<dyn OnIoError> = reporter.clone();
            leaf.watch(Rc::downgrade(&as_fault));
            LocalBase { leaf, _reporter: reporter }
        };
        bases.entry(leaf.id).or_insert_with(new).leaf.clone()
    }

    /// Switches to the mappings in force; the bases of withdrawn ones are retired.
    fn refresh(self: &Rc<Self>, generation: u64) {
        self.seen.set(generation);
        for replica in self.replicas.borrow().values() {
            let mode = replica.entry.state().mode.clone();
            if replica.active.borrow().is(&mode) {
                continue;
            }
            let old = replica.active.replace(self.active_mode(&mode));
            for base in old.bases() {
                self.retire(Rc::new(Retired { lease: replica.entry.id, base: base.clone() }));
            }
        }
        let closed = |r: &Replica| matches!(*r.active.borrow(), ActiveMode::Closed);
        self.replicas.borrow_mut().retain(|_, replica| !closed(replica));
    }

    /// Keeps the base until its requests have ended.
    fn retire(self: &Rc<Self>, retired: Rc<Retired>) {
        self.retired.borrow_mut().push(retired.clone());
        let inner = self.clone();
        spawn(async move {
            retired.base.clone().quiesced().await;
            inner.retired.borrow_mut().retain(|r| !Rc::ptr_eq(r, &retired));
            drop(retired);
            inner.forget_bases();
        });
    }

    /// Closes bases that no mapping uses.
    fn forget_bases(&self) {
        self.bases.borrow_mut().retain(|_, base| Rc::strong_count(&base.leaf) > 1);
    }
}

fn this_core() -> Rc<CoreState> {
    THIS_CORE.with_borrow(Weak::upgrade).expect("a secondary core runs on this thread")
}

/// [`SecondaryCore::device`] of the core of this thread.
pub(crate) fn device_on_this_core(handle: &DeviceHandle) -> Rc<Replica> {
    this_core().replica(&handle.0)
}

/// [`SecondaryCore::files`] of the core of this thread.
pub(crate) fn files_of_this_core() -> Files {
    this_core().files.clone()
}

/// Step 2, on the secondary core: the owner asks this thread to refresh, and to answer when nothing
/// is in flight by withdrawn mappings of `leases`. Those of others may take longer: a device below
/// one is suspended, or a disk hangs.
pub(super) fn refresh_this_core(generation: u64, leases: &[u64]) {
    // Absent when the core is ending: it has left, and reported that.
    let Some(inner) = THIS_CORE.with_borrow(Weak::upgrade) else { return };
    inner.refresh(generation);
    let mut waiting = inner.retired.borrow().clone();
    waiting.retain(|retired| leases.contains(&retired.lease));
    spawn(async move {
        for retired in waiting {
            retired.base.clone().quiesced().await;
        }
        inner.forget_bases();
        let slot = inner.slot;
        post(CoreId(0), Msg::Call(Box::new(move || core_has_refreshed(slot, generation))));
    });
}
