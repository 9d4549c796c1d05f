// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shard: the reactor of one thread, and its replicas of what core 0 has lent.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use block::{Base, Bio, BlockDevice, CoreId, Error, Limits, OnIoError, Op, Sector, Status};
use dm::Flat;
use queue::Leaf;
use reactor::{Msg, Reactor, Remote, post, set_memory, spawn};
use uring::{Files, Uring};

use crate::leaves::SharedLeaf;
use crate::memory;
use crate::secondary::owner::{leaf_has_failed, shard_has_left, shard_has_looked};
use crate::secondary::{Entry, Force, Handle, Local, Shards};

thread_local! {
    /// For the owner's looks: closures that run on this thread.
    static INNER: RefCell<Weak<Inner>> = const { RefCell::new(Weak::new()) };
}

/// A core of this thread. It stays here, and ends when it is dropped.
pub struct Shard {
    // Goes first: what it runs uses the rest.
    reactor: Option<Reactor>,
    inner: Rc<Inner>,
}

struct Inner {
    slot: usize,
    shards: Arc<Shards>,
    files: Files,
    present: Rc<Cell<bool>>,
    /// The generation that the replicas know.
    seen: Cell<u64>,
    /// The generation that the owner was told on leaving.
    told: Cell<u64>,
    replicas: RefCell<BTreeMap<u64, Rc<Replica>>>,
    bases: RefCell<BTreeMap<u64, ShardBase>>,
    /// Bases of mappings that are not used any more, until they have ended what those sent.
    retired: RefCell<Vec<Rc<Retired>>>,
}

struct ShardBase {
    leaf: Rc<dyn Leaf>,
    _tell: Rc<Tell>,
}

struct Retired(Rc<dyn Base>);

/// Tells core 0 which bios failed here.
struct Tell(u64);

impl OnIoError for Tell {
    fn on_io_error(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        let leaf = self.0;
        let tell = move || leaf_has_failed(leaf, (op, sector, len), status);
        post(CoreId(0), Msg::Call(Box::new(tell)));
    }
}

/// A device of core 0, on this core.
pub struct Replica {
    entry: Arc<Entry>,
    remote: Remote,
    present: Rc<Cell<bool>>,
    now: RefCell<Now>,
}

enum Now {
    Remote,
    Flat(Arc<Local>, Flat),
    Leaf(Arc<Local>, Rc<dyn Base>),
    Closed,
}

impl Now {
    fn bases(&self) -> &[Rc<dyn Base>] {
        match self {
            Now::Flat(_, flat) => flat.bases(),
            Now::Leaf(_, base) => std::slice::from_ref(base),
            Now::Remote | Now::Closed => &[],
        }
    }

    fn is(&self, force: &Force) -> bool {
        match (self, force) {
            (Now::Flat(now, _) | Now::Leaf(now, _), Force::Local(local)) => Arc::ptr_eq(now, local),
            (Now::Closed, Force::Closed) => true,
            // A mapping that could not be made here may be made the next time.
            _ => false,
        }
    }
}

impl Replica {
    /// Whether bios are served on this thread as they are submitted: by a mapping of this core's
    /// that ends in memory. To be asked inside [`Shard::block_on`].
    pub(crate) fn is_in_memory(&self) -> bool {
        match &*self.now.borrow() {
            Now::Flat(local, _) | Now::Leaf(local, _) => local.is_in_memory(),
            Now::Remote | Now::Closed => false,
        }
    }
}

impl BlockDevice for Replica {
    fn name(&self) -> &str {
        &self.entry.name
    }

    fn limits(&self) -> Limits {
        match &*self.now.borrow() {
            Now::Flat(_, flat) => flat.limits().clone(),
            Now::Leaf(_, base) => base.limits(),
            Now::Remote | Now::Closed => self.entry.state().limits.clone(),
        }
    }

    fn submit(&self, bio: Bio) {
        assert!(self.present.get(), "a bio outside of block_on, where nobody waits for it"); // S1
        match &*self.now.borrow() {
            Now::Flat(_, flat) => flat.submit(bio),
            Now::Leaf(_, base) => base.submit(bio),
            Now::Remote => self.remote.submit(bio),
            Now::Closed => bio.complete(Status::NoDevice),
        }
    }
}

impl Shard {
    pub(super) fn new(shards: Arc<Shards>) -> Result<Shard, Error> {
        let slot = shards.take_slot()?;
        let driver = Uring::with_mailboxes(Shards::core(slot), shards.mailboxes());
        let driver = driver.inspect_err(|_| shards.free_slot(slot))?;
        let files = driver.files();
        let reactor = Reactor::enter(Shards::core(slot), Box::new(driver));
        reactor.on(|| set_memory(memory::budget()));
        // Nothing to know yet: what replicas there will be look by themselves when they are made.
        let inner = Rc::new(Inner {
            slot,
            shards,
            files,
            present: Rc::default(),
            seen: Cell::new(0),
            told: Cell::new(0),
            replicas: RefCell::default(),
            bases: RefCell::default(),
            retired: RefCell::default(),
        });
        INNER.set(Rc::downgrade(&inner));
        Ok(Shard { reactor: Some(reactor), inner })
    }

    /// Which core this is.
    pub(crate) fn core(&self) -> CoreId {
        Shards::core(self.inner.slot)
    }

    /// What opens files and connections on this core.
    pub fn files(&self) -> &Files {
        &self.inner.files
    }

    /// A leaf of core 0 on this core, for who builds something of his own on it.
    pub fn open(&self, leaf: &SharedLeaf) -> Rc<dyn Leaf> {
        leaf.open(&self.inner.files)
    }

    /// The device that core 0 has lent, for use inside [`Shard::block_on`]. The same one at every
    /// call, until the loan ends; its name is that of when it was lent.
    pub fn device(&self, handle: &Handle) -> Rc<Replica> {
        self.inner.replica(&handle.0)
    }

    #[cfg(test)]
    pub(super) fn inner_is_local(&self, handle: &Handle) -> bool {
        let now =
            self.inner.replicas.borrow().get(&handle.0.id).map(|r| r.now.borrow().bases().len());
        now.is_some_and(|bases| bases > 0)
    }

    /// Runs until `future` has ended, and everything that this shard has in flight on its own bases
    /// (S2).
    pub fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let out = Rc::new(RefCell::new(None));
        let (set, inner) = (out.clone(), &self.inner);
        let reactor = self.reactor.as_ref().expect("there until it is dropped");
        reactor.on(|| {
            inner.enter();
            spawn(async move { *set.borrow_mut() = Some(future.await) });
        });
        let done = || out.borrow().is_some() && inner.is_quiet();
        assert!(reactor.run(done), "deadlock: no task can run");
        inner.leave();
        out.take().expect("set: the run has ended")
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let reactor = self.reactor.take().expect("dropped once");
        // A late answer to what is in flight (with core 0 only: S2) must not reach a successor.
        let used_up = !reactor.core().idle();
        reactor.on(|| {
            self.inner.replicas.take();
            self.inner.retired.take();
            self.inner.bases.take();
        });
        drop(reactor);
        if !used_up {
            self.inner.shards.free_slot(self.inner.slot);
        }
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard(core {})", self.core().0)
    }
}

impl Inner {
    /// From here on bios may be submitted, and the owner asks before it takes anything away.
    fn enter(&self) {
        assert!(!self.present.replace(true), "block_on within block_on");
        let generation = self.shards.presence.enter(self.slot);
        if generation != self.seen.get() {
            self.look(generation);
            // S2: nothing was in flight.
            self.retired.take();
            self.forget_bases();
        }
    }

    /// Nothing is in flight and nothing will be submitted: the owner need not ask.
    fn leave(&self) {
        self.present.set(false);
        let generation = self.shards.presence.leave(self.slot);
        if generation != self.told.replace(generation) {
            let slot = self.slot;
            // Core 0 has ended: nobody waits.
            let _ = self.shards.owner.call(move || shard_has_left(slot, generation));
        }
    }

    fn is_quiet(&self) -> bool {
        self.bases.borrow().values().all(|base| base.leaf.stats().in_flight() == 0)
    }

    fn replica(&self, entry: &Arc<Entry>) -> Rc<Replica> {
        if let Some(replica) = self.replicas.borrow().get(&entry.id) {
            return replica.clone();
        }
        let (force, limits) = {
            let state = entry.state();
            (state.force.clone(), state.limits.clone())
        };
        let replica = Rc::new(Replica {
            entry: entry.clone(),
            remote: Remote::new(CoreId(0), entry.export, entry.name.clone(), limits),
            present: self.present.clone(),
            now: RefCell::new(self.now(&force)),
        });
        if !matches!(force, Force::Closed) {
            self.replicas.borrow_mut().insert(entry.id, replica.clone());
        }
        replica
    }

    /// How a replica goes when `force` is in force.
    fn now(&self, force: &Force) -> Now {
        let local = match force {
            Force::Remote => return Now::Remote,
            Force::Closed => return Now::Closed,
            Force::Local(local) => local,
        };
        match &**local {
            Local::Leaf(leaf) => Now::Leaf(local.clone(), self.base(leaf)),
            Local::Flat(plan, leaves) => {
                let bases: Vec<_> = leaves.iter().map(|leaf| self.base(leaf)).collect();
                plan.on(&bases).map_or(Now::Remote, |flat| Now::Flat(local.clone(), flat))
            }
        }
    }

    fn base(&self, leaf: &SharedLeaf) -> Rc<dyn Base> {
        let mut bases = self.bases.borrow_mut();
        let new = || {
            let (leaf, tell) = (leaf.open(&self.files), Rc::new(Tell(leaf.id)));
            let as_fault: Rc<dyn OnIoError> = tell.clone();
            leaf.watch(Rc::downgrade(&as_fault));
            ShardBase { leaf, _tell: tell }
        };
        bases.entry(leaf.id).or_insert_with(new).leaf.clone()
    }

    /// Goes by what is in force now; what is not any more is retired.
    fn look(&self, generation: u64) {
        self.seen.set(generation);
        for replica in self.replicas.borrow().values() {
            let force = replica.entry.state().force.clone();
            if replica.now.borrow().is(&force) {
                continue;
            }
            let old = replica.now.replace(self.now(&force));
            let retired = old.bases().iter().map(|base| Rc::new(Retired(base.clone())));
            self.retired.borrow_mut().extend(retired);
        }
        let closed = |r: &Replica| matches!(*r.now.borrow(), Now::Closed);
        self.replicas.borrow_mut().retain(|_, replica| !closed(replica));
    }

    /// Lets bases go that no mapping uses.
    fn forget_bases(&self) {
        self.bases.borrow_mut().retain(|_, base| Rc::strong_count(&base.leaf) > 1);
    }
}

/// A leaf that an engine has on a core of its own. Failures are reported to core 0.
struct OfEngine {
    leaf: Rc<dyn Leaf>,
    _tell: Rc<Tell>,
}

impl BlockDevice for OfEngine {
    fn name(&self) -> &str {
        self.leaf.name()
    }

    fn limits(&self) -> Limits {
        self.leaf.limits()
    }

    fn submit(&self, bio: Bio) {
        self.leaf.submit(bio);
    }

    fn writer_throttled(&self) {
        self.leaf.writer_throttled();
    }
}

/// The leaf on the core of this thread, for an engine that keeps it as long as it likes: it counts
/// for no replica, and nobody takes it back. Whoever has it on core 0 closes it there last.
pub(crate) fn adopt_here(leaf: &SharedLeaf) -> Rc<dyn BlockDevice> {
    let inner = INNER.with_borrow(Weak::upgrade).expect("engines are on cores, and those last");
    let (tell, leaf) = (Rc::new(Tell(leaf.id)), leaf.open(&inner.files));
    let as_fault: Rc<dyn OnIoError> = tell.clone();
    leaf.watch(Rc::downgrade(&as_fault));
    Rc::new(OfEngine { leaf, _tell: tell })
}

/// Step 2, on the shard: the owner asks this thread to look.
pub(super) fn look_here(generation: u64) {
    // Absent when the shard is ending: it has left, and told so.
    let Some(inner) = INNER.with_borrow(Weak::upgrade) else { return };
    inner.look(generation);
    let waiting = inner.retired.borrow().clone();
    spawn(async move {
        for retired in &waiting {
            retired.0.clone().quiesced().await;
        }
        inner.retired.borrow_mut().retain(|r| !waiting.iter().any(|w| Rc::ptr_eq(r, w)));
        drop(waiting);
        inner.forget_bases();
        let slot = inner.slot;
        post(CoreId(0), Msg::Call(Box::new(move || shard_has_looked(slot, generation))));
    });
}
