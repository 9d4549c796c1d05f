// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner, on core 0: leases devices to the secondary cores, and publishes and withdraws their
//! mappings.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};

use block::{Base, BlockDevice, Limits, LocalFuture, MakeDevice, Op, Sector, Status};
use dm::{Dm, Flat, MappedDevice, Opened, Replicas};
use queue::Leaf;
use reactor::{Msg, WaitList, export, post, unexport};

use crate::leaves::Leaves;
use crate::secondary::core::refresh_this_core;
use crate::secondary::{CorePool, DeviceHandle, LeaseEntry, LeaseState, LocalMapping, ReplicaMode};

thread_local! {
    /// For reports of secondary cores: closures that run on core 0.
    static OWNER: RefCell<Weak<Owner>> = const { RefCell::new(Weak::new()) };
}

/// What core 0 knows of the secondary cores.
pub struct Owner {
    pool: Arc<CorePool>,
    dm: Weak<Dm>,
    leaves: Leaves,
    /// Mappings in force, by minor number of devices that exist.
    published: RefCell<BTreeMap<u32, Arc<LocalMapping>>>,
    leases: RefCell<Vec<Record>>,
    next_id: Cell<u64>,
    /// Cores that were asked to refresh and have not answered, by generation.
    pending: RefCell<BTreeMap<u64, BTreeSet<usize>>>,
    pending_changed: WaitList,
}

struct Record {
    entry: Arc<LeaseEntry>,
    /// Absent when it is a leaf.
    device: Option<Rc<MappedDevice>>,
}

/// A device that secondary cores may use; it is open as long as the lease lives.
#[must_use = "the lease ends when this is dropped"]
pub struct Lease {
    owner: Rc<Owner>,
    entry: Arc<LeaseEntry>,
    _opened: Option<Rc<Opened>>,
}

impl Owner {
    /// An owner that publishes the mappings of `dm` from now on.
    pub fn new(pool: Arc<CorePool>, dm: &Rc<Dm>, leaves: Leaves) -> Rc<Owner> {
        let owner = Rc::new(Owner {
            pool,
            dm: Rc::downgrade(dm),
            leaves,
            published: RefCell::default(),
            leases: RefCell::default(),
            next_id: Cell::new(0),
            pending: RefCell::default(),
            pending_changed: WaitList::new(),
        });
        OWNER.set(Rc::downgrade(&owner));
        dm.set_replicas(Rc::new(Publisher(owner.clone())));
        owner
    }

    /// Whether the secondary cores have the device with this minor number themselves.
    pub(crate) fn is_on_every_core(&self, minor: u32) -> bool {
        self.published.borrow().contains_key(&minor)
    }

    /// The same, also while their mapping is being replaced by another one.
    pub(crate) fn can_be_on_every_core(&self, device: &MappedDevice) -> bool {
        device.is_on_every_core(|base| self.leaves.share(base).is_some())
    }

    /// Leases a mapped device to the secondary cores.
    pub fn lease(self: &Rc<Owner>, opened: impl Into<Rc<Opened>>) -> Lease {
        let opened = opened.into();
        let device = opened.device().clone();
        // HO-S4: it is open, so its minor number belongs to it.
        let local = self.published.borrow().get(&device.minor()).cloned();
        let entry = self.entry(device.clone(), local);
        self.leases.borrow_mut().push(Record { entry: entry.clone(), device: Some(device) });
        Lease { owner: self.clone(), entry, _opened: Some(opened) }
    }

    /// Leases a leaf.
    pub fn lease_leaf(self: &Rc<Owner>, leaf: &Rc<dyn Leaf>) -> Lease {
        let base: Rc<dyn Base> = leaf.clone();
        let local = self.leaves.share(&base).map(|leaf| Arc::new(LocalMapping::Leaf(leaf)));
        let entry = self.entry(leaf.clone(), local);
        self.leases.borrow_mut().push(Record { entry: entry.clone(), device: None });
        Lease { owner: self.clone(), entry, _opened: None }
    }

    fn entry(
        &self,
        device: Rc<dyn BlockDevice>,
        local: Option<Arc<LocalMapping>>,
    ) -> Arc<LeaseEntry> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let (name, limits) = (device.name().to_owned(), device.limits());
        let state = Mutex::new(LeaseState { mode: mode_of(local), limits });
        Arc::new(LeaseEntry { id, name, export: export(device), state })
    }

    /// Calls `f` for each lease of the device that has this minor number now.
    fn for_each_lease(&self, minor: u32, mut f: impl FnMut(&LeaseEntry)) {
        let devices = self.dm.upgrade().map(|dm| dm.devices()).unwrap_or_default();
        let Some(device) = devices.iter().find(|d| d.minor() == minor) else { return };
        for record in self.leases.borrow().iter() {
            if record.device.as_ref().is_some_and(|d| Rc::ptr_eq(d, device)) {
                f(&record.entry);
            }
        }
    }

    /// Begins a generation and asks the cores that are present to refresh, and to answer when
    /// nothing is in flight by withdrawn mappings of `leases`; returns its number.
    fn request_refresh(&self, leases: &[u64]) -> u64 {
        let presence = &self.pool.presence;
        let generation = presence.change();
        let present: BTreeSet<usize> =
            (0..presence.cores()).filter(|s| presence.is_present(*s)).collect();
        for core in &present {
            let leases = leases.to_vec();
            let refresh = Box::new(move || refresh_this_core(generation, &leases));
            post(CorePool::core(*core), Msg::Call(refresh));
        }
        if !present.is_empty() {
            self.pending.borrow_mut().insert(generation, present);
        }
        generation
    }

    fn mark_answered(&self, core: usize, generations: impl Fn(u64) -> bool) {
        let mut pending = self.pending.borrow_mut();
        for (_, cores) in pending.iter_mut().filter(|(g, _)| generations(**g)) {
            cores.remove(&core);
        }
        pending.retain(|_, cores| !cores.is_empty());
        drop(pending);
        self.pending_changed.wake_all();
    }
}

fn mode_of(local: Option<Arc<LocalMapping>>) -> ReplicaMode {
    local.map_or(ReplicaMode::Remote, ReplicaMode::Local)
}

fn with_owner(f: impl FnOnce(&Owner)) {
    // Absent when core 0 is ending: then nothing waits.
    if let Some(owner) = OWNER.with_borrow(Weak::upgrade) {
        f(&owner);
    }
}

/// Report of a secondary core, on core 0: it has refreshed, and has nothing in flight by withdrawn
/// mappings of the leases that `generation` is about.
pub(super) fn core_has_refreshed(core: usize, generation: u64) {
    with_owner(|owner| owner.mark_answered(core, |g| g == generation));
}

/// Report of a secondary core, on core 0: it has left with nothing in flight, and will see
/// `generation` and those before when it enters again.
pub(super) fn core_has_left(core: usize, generation: u64) {
    with_owner(|owner| owner.mark_answered(core, |g| g <= generation));
}

/// Report of a secondary core, on core 0: a bio failed on its base of a leaf.
pub(super) fn leaf_has_failed(leaf: u64, (op, sector, len): (Op, Sector, Sector), cause: Status) {
    with_owner(|owner| {
        if let Some(leaf) = owner.leaves.by_id(leaf) {
            leaf.stats().failed_on_other_core(op, sector, len, cause);
        }
    });
}

/// Publishes and withdraws mappings for `dm`.
struct Publisher(Rc<Owner>);

impl Replicas for Publisher {
    fn withdraw(&self, minor: u32) -> LocalFuture<()> {
        let owner = self.0.clone();
        Box::pin(async move {
            owner.published.borrow_mut().remove(&minor);
            // HO-S3: before the generation begins.
            let mut leases = Vec::new();
            owner.for_each_lease(minor, |entry| {
                entry.state().mode = ReplicaMode::Remote;
                leases.push(entry.id);
            });
            let generation = owner.request_refresh(&leases);
            let is_pending = || owner.pending.borrow().contains_key(&generation);
            owner.pending_changed.wait_for(|| !is_pending()).await;
        })
    }

    fn publish(&self, minor: u32, flat: &Flat) {
        let owner = &self.0;
        let leaves: Option<_> = flat.bases().iter().map(|b| owner.leaves.share(b)).collect();
        let local = leaves.map(|leaves| Arc::new(LocalMapping::Flat(flat.plan(), leaves)));
        let mut published = owner.published.borrow_mut();
        match &local {
            Some(local) => published.insert(minor, local.clone()),
            None => published.remove(&minor),
        };
        drop(published);
        owner.for_each_lease(minor, |entry| {
            *entry.state() =
                LeaseState { mode: mode_of(local.clone()), limits: flat.limits().clone() };
        });
        owner.request_refresh(&[]);
    }

    fn publish_parts(&self, minor: u32, make: MakeDevice, limits: &Limits) {
        let local = Arc::new(LocalMapping::Parts(make, limits.clone()));
        self.0.published.borrow_mut().insert(minor, local.clone());
        self.0.for_each_lease(minor, |entry| {
            let mode = ReplicaMode::Local(local.clone());
            *entry.state() = LeaseState { mode, limits: limits.clone() };
        });
        self.0.request_refresh(&[]);
    }

    fn set_limits(&self, minor: u32, limits: &Limits) {
        self.0.for_each_lease(minor, |entry| entry.state().limits = limits.clone());
    }
}

impl Lease {
    /// How secondary cores name the device.
    pub fn handle(&self) -> DeviceHandle {
        DeviceHandle(self.entry.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        self.entry.state().mode = ReplicaMode::Closed;
        self.owner.leases.borrow_mut().retain(|record| !Arc::ptr_eq(&record.entry, &self.entry));
        unexport(self.entry.export);
        // Nothing waits, as the users of a lease end before it does. Cores that are present for as
        // long as the daemon runs drop their replica now, others when they enter.
        self.owner.request_refresh(&[]);
    }
}

block::debug_as!(Lease, s => "Lease({})", s.entry.name);

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases = self.leases.borrow().len();
        write!(f, "Owner({:?}, {leases} leases)", self.pool)
    }
}
