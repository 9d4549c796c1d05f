// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shards: further cores, on which requests may enter. Core 0 owns every device; a shard has a
//! *replica* of those that it uses.
//!
//! ```text
//!   core 0 (owner)                              shard: a thread with a reactor and a ring
//!   dm ── publish, withdraw ─▶ Owner ─┐         replica ── local: Flat ─▶ bases of this core
//!                                     │            │              same memory, same open files
//!   Lent (open, exported) ── Handle ──┼──────▶     └───── remote: Remote ─▶ the device on core 0
//!                                     └─ Look ─▶ switches, waits for its bases, answers
//! ```
//!
//! A replica goes by a flat mapping of its own while the device on core 0 has one that ends at
//! leaves only; then a bio takes no lock and writes no cache line that others use. Otherwise (a
//! cache below, `mapping=clone`, a suspended device) all bios go to core 0 by messages, where they
//! are deferred or served as those of core 0 are. So a replica never defers and has no state.
//!
//! How a mapping is withdrawn, for a suspend, a swap or a removal:
//!
//! 1. Owner: marks the device's entry as remote, begins a new generation, looks which shards are
//!    present (`presence.rs`), and posts them a *look*.
//! 2. Shard, at the look: goes through its replicas and drops mappings that are not in force; from
//!    here on their bios go to core 0. Waits until the bases of those mappings have ended what they
//!    were sent. Answers.
//! 3. Shard that leaves first (its thread returns to whatever it waits in): has nothing in flight
//!    by then (S2), sees the new generation (P2), and tells the owner that it left.
//! 4. Shard that was not present: sees the new generation when it enters (P1), and drops the
//!    mapping before it submits anything.
//! 5. Owner: has every answer or leave that it waits for. Nobody goes by the mapping any more, and
//!    all that went by it has ended.
//!
//! So a thread that sleeps outside of [`Shard::block_on`], in a read of /dev/fuse say, holds
//! nothing up, however long it sleeps; and one that is inside looks into its mailbox every round.
//!
//! Invariants
//! - S1 A replica submits only inside `block_on`: checked at every bio.
//! - S2 `block_on` does not return while anything of this shard is in flight on its own bases.
//! - S3 A mapping is used only if it was in force at the last look, or came into force after that:
//!   an entry changes before its generation begins.
//! - S4 An entry is about one device, not about a minor number or a name, which are used again: it
//!   is lent for an open device and closed for good when the loan ends.
//! - S5 Files and memory belong to core 0: when it closes a leaf, lock and space are free though a
//!   sleeping shard still has its base (U5 of `uring`; a `mem:` is emptied).
//!
//! Use:
//!
//! ```text
//!   // once, before core 0 starts; room for 16 shards
//!   let shards = Shards::new(16)?;
//!   Uring::with_mailboxes(CoreId(0), shards.mailboxes());
//!
//!   // on core 0
//!   let owner = Owner::new(shards, dm.clone(), leaves.clone());      // tells dm
//!   let lent = owner.lend(dm.open("mycache")?);                      // keep while it is used
//!   let handle: Handle = lent.handle();                              // Clone, Send: give it away
//!
//!   // on any thread, the first time and every time
//!   shards.here(|shard| {
//!       let device = shard.device(&handle);                          // Rc<dyn BlockDevice>
//!       let done = shard.block_on(async move {
//!           reactor::read(&*device, Class::Foreground, Sector(0), bufs).await
//!       });
//!   })?;
//!
//!   // or, where one function is the whole thread: a shard of one's own
//!   let shard = shards.enter()?;
//! ```
mod core;
mod owner;
mod presence;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{CoreId, Error, Limits};
use dm::Plan;
use reactor::Export;
use uring::{Mailbox, Sender};

pub(crate) use self::core::adopt_here;
pub use self::core::{Replica, Shard};
pub use owner::{Lent, Owner};

use crate::leaves::SharedLeaf;
use presence::Presence;

/// What a replica needs to do without core 0.
#[derive(Debug)]
enum Local {
    /// A flat mapping and what it ends at, in order.
    Flat(Plan, Vec<SharedLeaf>),
    /// The device is a leaf.
    Leaf(SharedLeaf),
}

impl Local {
    fn is_in_memory(&self) -> bool {
        match self {
            Local::Flat(_, leaves) => leaves.iter().all(SharedLeaf::is_in_memory),
            Local::Leaf(leaf) => leaf.is_in_memory(),
        }
    }
}

/// How a replica of a device is to work, by the owner's last word.
#[derive(Clone, Debug)]
enum Force {
    /// By core 0.
    Remote,
    Local(Arc<Local>),
    /// The loan has ended: not at all.
    Closed,
}

/// One loan of a device to the shards.
#[derive(Debug)]
struct Entry {
    id: u64,
    name: String,
    export: Export,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    force: Force,
    limits: Limits,
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names a device that core 0 has lent, on any thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Entry>);

/// Room for shards, and what they and the owner share.
pub struct Shards {
    /// The owner's first, then those of the shards.
    mailboxes: Vec<Mailbox>,
    owner: Sender,
    presence: Presence,
    /// Which shards there are now.
    taken: Mutex<Vec<bool>>,
}

thread_local! {
    /// Whether `HERE` was set: looked at first, so that `HERE` is made after the reactor's own
    /// variables and goes before them when the thread ends.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
    static HERE: RefCell<Option<Shard>> = const { RefCell::new(None) };
}

impl Shards {
    /// Room for `count` shards besides core 0.
    pub fn new(count: u16) -> Result<Arc<Shards>, Error> {
        let mailboxes: Vec<Mailbox> =
            (0..=count).map(|_| Mailbox::new()).collect::<Result<_, _>>()?;
        let owner = mailboxes[0].sender();
        let presence = Presence::new(usize::from(count));
        let taken = Mutex::new(vec![false; usize::from(count)]);
        Ok(Arc::new(Shards { mailboxes, owner, presence, taken }))
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

    /// Makes this thread a shard. Fails when there is no room for another.
    pub fn enter(self: &Arc<Shards>) -> Result<Shard, Error> {
        Shard::new(self.clone())
    }

    /// Runs `f` with this thread's shard, which is made at the first call and goes with the thread.
    pub(crate) fn here<R>(self: &Arc<Shards>, f: impl FnOnce(&Shard) -> R) -> Result<R, Error> {
        if !ENTERED.get() {
            let shard = self.enter()?;
            HERE.set(Some(shard));
            ENTERED.set(true);
        }
        Ok(HERE.with_borrow(|shard| f(shard.as_ref().expect("set above, for good"))))
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

    /// The core that a shard is.
    fn core(slot: usize) -> CoreId {
        CoreId(u16::try_from(slot + 1).expect("made from a u16"))
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards(room for {}, {:?})", self.presence.shards(), self.presence)
    }
}
