// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner's side, on core 0: lends devices, and publishes and withdraws their mappings.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};

use block::{Base, BlockDevice, LocalFuture, Op, Sector, Status};
use dm::{Dm, Flat, MappedDevice, Opened, Replicas};
use queue::Leaf;
use reactor::{Msg, WaitList, export, post, unexport};

use crate::leaves::Leaves;
use crate::secondary::core::look_here;
use crate::secondary::{Entry, Force, Handle, Local, Shards, State};

thread_local! {
    /// For what shards tell: closures that run on core 0.
    static OWNER: RefCell<Weak<Owner>> = const { RefCell::new(Weak::new()) };
}

/// What core 0 knows of its shards.
pub struct Owner {
    shards: Arc<Shards>,
    dm: Weak<Dm>,
    leaves: Leaves,
    /// Mappings in force, by minor number; of devices that `dm` has now.
    published: RefCell<BTreeMap<u32, Arc<Local>>>,
    lent: RefCell<Vec<Loan>>,
    next_id: Cell<u64>,
    /// Shards that were asked and have not answered, by generation.
    asked: RefCell<BTreeMap<u64, BTreeSet<usize>>>,
    news: WaitList,
}

struct Loan {
    entry: Arc<Entry>,
    /// Absent when it is a leaf.
    device: Option<Rc<MappedDevice>>,
}

/// What is lent: kept open as long as this lives.
#[must_use = "the loan ends when this is dropped"]
pub struct Lent {
    owner: Rc<Owner>,
    entry: Arc<Entry>,
    _opened: Option<Opened>,
}

impl Owner {
    /// Begins to follow what `dm` publishes.
    pub fn new(shards: Arc<Shards>, dm: &Rc<Dm>, leaves: Leaves) -> Rc<Owner> {
        let owner = Rc::new(Owner {
            shards,
            dm: Rc::downgrade(dm),
            leaves,
            published: RefCell::default(),
            lent: RefCell::default(),
            next_id: Cell::new(0),
            asked: RefCell::default(),
            news: WaitList::new(),
        });
        OWNER.set(Rc::downgrade(&owner));
        dm.set_replicas(Rc::new(Follow(owner.clone())));
        owner
    }

    /// Lends a mapped device to the shards.
    pub fn lend(self: &Rc<Owner>, opened: Opened) -> Lent {
        let device = opened.device().clone();
        // S4: it is open, so its minor number is its own.
        let local = self.published.borrow().get(&device.minor()).cloned();
        let entry = self.entry(device.clone(), local);
        self.lent.borrow_mut().push(Loan { entry: entry.clone(), device: Some(device) });
        Lent { owner: self.clone(), entry, _opened: Some(opened) }
    }

    /// Lends a leaf.
    pub fn lend_leaf(self: &Rc<Owner>, leaf: &Rc<dyn Leaf>) -> Lent {
        let base: Rc<dyn Base> = leaf.clone();
        let local = self.leaves.share(&base).map(|leaf| Arc::new(Local::Leaf(leaf)));
        let entry = self.entry(leaf.clone(), local);
        self.lent.borrow_mut().push(Loan { entry: entry.clone(), device: None });
        Lent { owner: self.clone(), entry, _opened: None }
    }

    fn entry(&self, device: Rc<dyn BlockDevice>, local: Option<Arc<Local>>) -> Arc<Entry> {
        let id = self.next_id.replace(self.next_id.get() + 1);
        let (name, limits) = (device.name().to_owned(), device.limits());
        let state = Mutex::new(State { force: force(local), limits });
        Arc::new(Entry { id, name, export: export(device), state })
    }

    /// The loans of the device that has this minor number now.
    fn for_each_loan(&self, minor: u32, f: impl Fn(&Entry)) {
        let devices = self.dm.upgrade().map(|dm| dm.devices()).unwrap_or_default();
        let Some(device) = devices.iter().find(|d| d.minor() == minor) else { return };
        for loan in self.lent.borrow().iter() {
            if loan.device.as_ref().is_some_and(|d| Rc::ptr_eq(d, device)) {
                f(&loan.entry);
            }
        }
    }

    /// Begins a generation and asks the shards that are present to look; returns its number.
    fn ask(&self) -> u64 {
        let presence = &self.shards.presence;
        let generation = presence.change();
        let present: BTreeSet<usize> =
            (0..presence.shards()).filter(|s| presence.is_present(*s)).collect();
        for shard in &present {
            let look = Box::new(move || look_here(generation));
            post(Shards::core(*shard), Msg::Call(look));
        }
        if !present.is_empty() {
            self.asked.borrow_mut().insert(generation, present);
        }
        generation
    }

    fn answered(&self, shard: usize, generations: impl Fn(u64) -> bool) {
        let mut asked = self.asked.borrow_mut();
        for (_, shards) in asked.iter_mut().filter(|(g, _)| generations(**g)) {
            shards.remove(&shard);
        }
        asked.retain(|_, shards| !shards.is_empty());
        drop(asked);
        self.news.wake_all();
    }
}

fn force(local: Option<Arc<Local>>) -> Force {
    local.map_or(Force::Remote, Force::Local)
}

fn here(f: impl FnOnce(&Owner)) {
    // Absent when core 0 is ending: nobody waits then.
    if let Some(owner) = OWNER.with_borrow(Weak::upgrade) {
        f(&owner);
    }
}

/// A shard tells, on core 0: it has looked, and by mappings that were withdrawn before
/// `generation` or with it nothing of it is in flight.
pub(super) fn shard_has_looked(shard: usize, generation: u64) {
    here(|owner| owner.answered(shard, |g| g == generation));
}

/// A shard tells, on core 0: it has left with nothing in flight, and will see `generation` and
/// those before when it comes back.
pub(super) fn shard_has_left(shard: usize, generation: u64) {
    here(|owner| owner.answered(shard, |g| g <= generation));
}

/// A shard tells, on core 0: a bio failed on its base of a leaf.
pub(super) fn leaf_has_failed(leaf: u64, (op, sector, len): (Op, Sector, Sector), cause: Status) {
    here(|owner| {
        if let Some(leaf) = owner.leaves.by_id(leaf) {
            leaf.stats().failed_elsewhere(op, sector, len, cause);
        }
    });
}

/// What `dm` tells.
struct Follow(Rc<Owner>);

impl Replicas for Follow {
    fn withdraw(&self, minor: u32) -> LocalFuture<()> {
        let owner = self.0.clone();
        Box::pin(async move {
            owner.published.borrow_mut().remove(&minor);
            // S3: before the generation begins.
            owner.for_each_loan(minor, |entry| entry.state().force = Force::Remote);
            let generation = owner.ask();
            let asked = || owner.asked.borrow().contains_key(&generation);
            owner.news.wait_for(|| !asked()).await;
        })
    }

    fn publish(&self, minor: u32, flat: &Flat) {
        let owner = &self.0;
        let leaves: Option<_> = flat.bases().iter().map(|b| owner.leaves.share(b)).collect();
        let local = leaves.map(|leaves| Arc::new(Local::Flat(flat.plan(), leaves)));
        let mut published = owner.published.borrow_mut();
        match &local {
            Some(local) => published.insert(minor, local.clone()),
            None => published.remove(&minor),
        };
        drop(published);
        owner.for_each_loan(minor, |entry| {
            *entry.state() = State { force: force(local.clone()), limits: flat.limits().clone() };
        });
        owner.ask();
    }
}

impl Lent {
    /// The name by which shards reach the device.
    pub fn handle(&self) -> Handle {
        Handle(self.entry.clone())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        self.entry.state().force = Force::Closed;
        self.owner.lent.borrow_mut().retain(|loan| !Arc::ptr_eq(&loan.entry, &self.entry));
        unexport(self.entry.export);
        // For the next look to come: nobody waits, and what uses a loan ends before it does.
        self.owner.shards.presence.change();
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lent({})", self.entry.name)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lent = self.lent.borrow().len();
        write!(f, "Owner({:?}, {lent} lent)", self.shards)
    }
}
