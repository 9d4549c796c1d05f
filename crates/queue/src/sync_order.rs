// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sync order: when the success of a FLUSH or FUA write may be reported.
//!
//! A *sync* is a FLUSH or a FUA write that is with the driver. A sync that fails may have lost data
//! that another sync, which succeeds, was to make durable: the disk has dropped its volatile cache,
//! or the system reports an error of the page cache once only. The driver may deliver the success
//! before the failure, though the failure happened first. So a success is held until every sync
//! that was in flight when it arrived has ended, too.
//!
//! ```text
//!   FLUSH 1  ├───────────────────┤ ok, held ┄┄┄┄┄┤ reported: fails, because FLUSH 2 failed
//!   FLUSH 2      ├───────────────┼──────────┤ error
//!   FLUSH 3                      │   ├──────┼──────────  began later: FLUSH 1 does not wait for it
//! ```
//!
//! One `SyncOrder` serves the leaves of all cores on a file.
//!
//! Invariants
//! - QU-SO1 A sync is registered before the driver gets it and until the driver has ended it.
//! - QU-SO2 A held success waits only for syncs that were in flight when it arrived: its wait is
//!   bounded by the time that the driver takes for these.
//! - QU-SO3 The end of a sync at one core wakes held successes of all cores.
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::CoreId;
use reactor::{CoreLocal, Msg, WaitList, core_id, post};

/// The number of a sync: later ones have larger numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SyncNumber(u64);

/// Syncs with smaller numbers than this must end before a success is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold(SyncNumber);

/// A core where successes are held.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Holder {
    core: CoreId,
    ended: CoreLocal,
}

#[derive(Default)]
struct State {
    next: SyncNumber,
    /// Ascending.
    in_flight: Vec<SyncNumber>,
    holders: Vec<Holder>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct SyncOrder(Mutex<State>);

impl SyncOrder {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sync goes to the driver. QU-SO1.
    pub(crate) fn begin(&self) -> SyncNumber {
        let mut state = self.lock();
        let number = state.next;
        state.next = SyncNumber(number.0 + 1);
        state.in_flight.push(number);
        number
    }

    /// The driver has ended the sync. Returns what a success of it must wait for, if anything.
    pub(crate) fn end(&self, number: SyncNumber) -> Option<Hold> {
        let mut state = self.lock();
        let at = state.in_flight.binary_search(&number).expect("it was in flight");
        state.in_flight.remove(at);
        let hold = (!state.in_flight.is_empty()).then_some(Hold(state.next));
        if !state.holders.is_empty() {
            let holders = state.holders.clone();
            drop(state);
            holders.into_iter().for_each(Holder::wake); // QU-SO3
        }
        hold
    }

    /// Waits until the syncs that `hold` names have ended.
    pub(crate) async fn passed(&self, hold: Hold) {
        let ended = Rc::new(WaitList::new());
        let holder = Holder { core: core_id(), ended: CoreLocal::keep(ended.clone()) };
        self.lock().holders.push(holder);
        // Registered first, then looked at: an end in between wakes it.
        ended.wait_for(|| self.lock().in_flight.first().is_none_or(|&first| first >= hold.0)).await;
        self.lock().holders.retain(|other| *other != holder);
        holder.ended.release();
    }
}

impl Holder {
    fn wake(self) {
        let look = move || {
            if let Some(ended) = self.ended.get::<WaitList>() {
                ended.wake_all();
            }
        };
        if self.core == core_id() { look() } else { post(self.core, Msg::Call(Box::new(look))) }
    }
}
