// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timer: wakes a wait list at a time that may be moved or cleared.
//!
//! A task of the reactor cannot be cancelled. So a timer keeps at most one task that counts: when
//! it wakes up it looks at `due`, and sleeps again if that is later. A due time earlier than the
//! task's own starts another task, and the first one ends without effect.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use block::Nanos;
use reactor::WaitList;

/// See the module.
pub(crate) struct Timer(Rc<State>);

struct State {
    due: Cell<Option<Nanos>>,
    /// When the task that counts wakes up.
    sleeps_until: Cell<Option<Nanos>>,
    wakes: Rc<WaitList>,
}

impl Timer {
    /// A timer that is not set, and will wake `wakes`.
    pub(crate) fn new(wakes: Rc<WaitList>) -> Timer {
        let (due, sleeps_until) = (Cell::new(None), Cell::new(None));
        Timer(Rc::new(State { due, sleeps_until, wakes }))
    }

    /// Sets, moves or clears the timer.
    pub(crate) fn set(&self, due: Option<Nanos>) {
        self.0.due.set(due);
        let Some(due) = due else { return };
        if self.0.sleeps_until.get().is_none_or(|until| until > due) {
            self.0.sleeps_until.set(Some(due));
            reactor::spawn(sleep_until(Rc::downgrade(&self.0), due));
        }
    }
}

/// The task. It does not keep the timer alive.
async fn sleep_until(timer: Weak<State>, mut until: Nanos) {
    loop {
        let now = reactor::now();
        reactor::sleep(Nanos(until.0.saturating_sub(now.0))).await;
        let Some(timer) = timer.upgrade() else { return };
        if timer.sleeps_until.get() != Some(until) {
            return; // Another task counts.
        }
        timer.sleeps_until.set(None);
        match timer.due.get().filter(|due| *due > reactor::now()) {
            Some(later) => until = later,
            None => return timer.wakes.wake_all(),
        }
        timer.sleeps_until.set(Some(until));
    }
}
