// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Secondary cores: threads other than core 0 on which requests may enter. Core 0 owns every
//! device; a secondary core has a *replica* of those that it uses.
//!
//! ```text
//!   core 0 (owner)                              secondary core: a thread with a reactor and a ring
//!   dm ── publish, withdraw ─▶ Owner ─┐         replica ── local: Flat ─▶ bases of this core
//!                                     │            │              same memory, same open files
//!   Lease (open, exported) ─ handle ──┼──────▶     └───── remote: Remote ─▶ the device on core 0
//!                                     └─ refresh ─▶ switches, waits for its bases, answers
//! ```
//!
//! A replica has a flat mapping of its own while the device on core 0 has one that ends at leaves
//! only; then a bio takes no lock and writes no cache line that others use. While the device is one
//! engine that is divided among cores, a replica has the way to its parts (`parts`). Otherwise (a
//! cache below, `mapping=clone`, a suspended device) all bios go to core 0 by messages, where they
//! are deferred or served as those of core 0 are. So a replica never defers and has no state.
//!
//! How a mapping is withdrawn, for a suspend, a swap or a removal:
//!
//! 1. Owner: sets the device's leases to remote, begins a new generation, reads which cores are
//!    present (`presence.rs`), and asks these to refresh.
//! 2. Secondary core, at that message: drops the mappings that are not in force any more; from here
//!    on their bios go to core 0. Waits until the bases of the mappings in question, and of no
//!    others, have no request of it in flight. Answers.
//! 3. Secondary core that leaves first (its thread returns to the system call in which it waits):
//!    has nothing in flight by then (HO-S2), sees the new generation (HO-P2), and reports to the
//!    owner that it left.
//! 4. Secondary core that was not present: sees the new generation when it enters (HO-P1), and
//!    drops the mapping before it submits anything.
//! 5. Owner: has an answer or a report of leaving from every core that it asked. No core uses the
//!    mapping any more, and all its requests have ended.
//!
//! So a thread that sleeps outside of [`SecondaryCore::block_on`], in a read of /dev/fuse say,
//! delays no suspend, however long it sleeps; and one that is inside reads its mailbox in every
//! round.
//!
//! Invariants
//! - HO-S1 A replica submits only inside `block_on`: checked at every bio.
//! - HO-S2 `block_on` does not return while this core has requests in flight on its own bases.
//! - HO-S3 A mapping is used only if it was in force at the last refresh, or came into force after
//!   it: the mode of a lease changes before its generation begins.
//! - HO-S4 A lease names a device, not a minor number or a name, which are used again: it is made
//!   of an open device, and is closed when it ends.
//! - HO-S5 Files and memory belong to core 0: when it closes a leaf, lock and space are free though
//!   a sleeping secondary core still has its base (`uring` closes the file; a `mem:` is emptied).
//!
//! Use:
//!
//! ```text
//!   // once, before core 0 starts; room for 16 secondary cores
//!   let pool = CorePool::new(16)?;
//!   Uring::with_mailboxes(CoreId(0), pool.mailboxes());
//!
//!   // on core 0
//!   let owner = Owner::new(pool, &dm, leaves.clone());
//!   let lease = owner.lease(dm.open("mycache")?);                    // keep while it is used
//!   let handle: DeviceHandle = lease.handle();                       // Clone, Send
//!
//!   // on any thread, the first time and every time
//!   pool.on_this_thread(|core| {
//!       let device = core.device(&handle);                           // Rc<dyn BlockDevice>
//!       let done = core.block_on(async move {
//!           reactor::read(&*device, Class::Foreground, Sector(0), bufs).await
//!       });
//!   })?;
//!
//!   // or, where one function is the whole thread: a core of its own
//!   let core = pool.enter()?;
//! ```
mod core;
mod owner;
mod parts;
mod presence;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{CoreId, Error, Limits, MakeDevice};
use dm::Plan;
use reactor::Export;
use uring::{Files, Mailbox, Sender};

pub use self::core::{Replica, SecondaryCore};
pub(crate) use self::core::{device_on_this_core, files_of_this_core};
pub use owner::{Lease, Owner};

use crate::leaves::SharedLeaf;
use crate::memory;
use presence::Presence;

/// The mapping by which a replica works without core 0.
enum LocalMapping {
    /// A flat mapping and the leaves that it ends at, in order.
    Flat(Plan, Vec<SharedLeaf>),
    /// The device is a leaf.
    Leaf(SharedLeaf),
    /// The device is an engine that is divided among cores: makes the way to its parts.
    Parts(MakeDevice, Limits),
}

impl fmt::Debug for LocalMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocalMapping::Flat(..) => "Flat",
            LocalMapping::Leaf(_) => "Leaf",
            LocalMapping::Parts(..) => "Parts",
        })
    }
}

impl LocalMapping {
    fn is_in_memory(&self) -> bool {
        match self {
            LocalMapping::Flat(_, leaves) => leaves.iter().all(SharedLeaf::is_in_memory),
            LocalMapping::Leaf(leaf) => leaf.is_in_memory(),
            LocalMapping::Parts(..) => false,
        }
    }
}

/// How the replicas of a device work: set by the owner.
#[derive(Clone, Debug)]
enum ReplicaMode {
    /// Bios go to core 0.
    Remote,
    Local(Arc<LocalMapping>),
    /// The lease has ended: bios fail.
    Closed,
}

/// The part of a lease that all cores see.
#[derive(Debug)]
struct LeaseEntry {
    id: u64,
    name: String,
    export: Export,
    state: Mutex<LeaseState>,
}

#[derive(Debug)]
struct LeaseState {
    mode: ReplicaMode,
    limits: Limits,
}

impl LeaseEntry {
    fn state(&self) -> MutexGuard<'_, LeaseState> {
        // No panic under the lock leaves it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names a leased device, on any thread.
#[derive(Clone, Debug)]
pub struct DeviceHandle(Arc<LeaseEntry>);

/// Room for secondary cores, and what they share with the owner.
pub struct CorePool {
    /// Of core 0 first, then of the secondary cores.
    mailboxes: Vec<Mailbox>,
    owner: Sender,
    presence: Presence,
    /// Which slots have a secondary core now.
    taken: Mutex<Vec<bool>>,
    /// Where its cores open memory that outlives the process.
    memory_dir: Option<PathBuf>,
}

thread_local! {
    /// Whether `HERE` was set. It is read first, so that `HERE` is made after the reactor's own
    /// variables and is dropped before them when the thread ends.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    static HERE: RefCell<Option<SecondaryCore>> = const { RefCell::new(None) };
}

impl CorePool {
    /// Room for `count` secondary cores.
    pub fn new(count: u16) -> Result<Arc<CorePool>, Error> {
        CorePool::with_memory_in(count, None)
    }

    /// The same, for cores that open memory that outlives the process in `memory_dir`.
    pub(crate) fn with_memory_in(
        count: u16,
        memory_dir: Option<PathBuf>,
    ) -> Result<Arc<CorePool>, Error> {
        let mailboxes: Vec<Mailbox> =
            (0..=count).map(|_| Mailbox::new()).collect::<Result<_, _>>()?;
        let owner = mailboxes[0].sender();
        let presence = Presence::new(usize::from(count));
        let taken = Mutex::new(vec![false; usize::from(count)]);
        Ok(Arc::new(CorePool { mailboxes, owner, presence, taken, memory_dir }))
    }

    /// Sets the memory of the core that runs on this thread.
    pub(crate) fn set_up_memory(&self, files: &Files) {
        memory::set_up(files, self.memory_dir.as_deref());
    }

    /// The mailboxes of all cores, for the driver of one.
    pub fn mailboxes(&self) -> Vec<Mailbox> {
        self.mailboxes.clone()
    }

    /// How the control path calls core 0.
    pub fn owner(&self) -> Sender {
        self.owner.clone()
    }

    /// How threads that are no core call one.
    pub(crate) fn sender(&self, core: CoreId) -> Sender {
        self.mailboxes[usize::from(core.0)].sender()
    }

    /// Makes this thread a secondary core. Fails when there is no room for another.
    pub fn enter(self: &Arc<CorePool>) -> Result<SecondaryCore, Error> {
        SecondaryCore::new(self.clone())
    }

    /// Runs `f` with this thread's secondary core, which is made at the first call and ends with
    /// the thread.
    pub(crate) fn on_this_thread<R>(
        self: &Arc<CorePool>,
        f: impl FnOnce(&SecondaryCore) -> R,
    ) -> Result<R, Error> {
        if !ENTERED.get() {
            let secondary = self.enter()?;
            HERE.set(Some(secondary));
            ENTERED.set(true);
        }
        Ok(HERE.with_borrow(|secondary| f(secondary.as_ref().expect("set above, and never unset"))))
    }

    fn take_slot(&self) -> Result<usize, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.len();
        let free = taken.iter_mut().position(|t| !std::mem::replace(t, true));
        free.ok_or_else(|| Error::busy(format!("no core is free: there is room for {count}")))
    }

    fn free_slot(&self, slot: usize) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)[slot] = false;
    }

    /// The id of the core in a slot.
    fn core(slot: usize) -> CoreId {
        CoreId(u16::try_from(slot + 1).expect("made from a u16"))
    }
}

block::debug_as!(CorePool, s => "CorePool(room for {}, {:?})", s.presence.cores(), s.presence);
