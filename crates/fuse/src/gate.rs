// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gate: writes of whole blocks pass together, a write of a part of a block passes alone.
//!
//! It belongs to one device on one core. A write of a part of a block is rare (nobody does it who
//! cares about speed), so the common case costs a counter, up and down.
use std::cell::Cell;
use std::fmt;

use reactor::WaitList;

/// Who writes to a device through files.
#[derive(Default)]
pub struct Gate {
    together: Cell<usize>,
    alone: Cell<bool>,
    /// Writers that want to be alone: they go first, or many others could keep them out for ever.
    want_alone: Cell<usize>,
    changed: WaitList,
}

impl Gate {
    /// Nobody writes yet.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Passes together with others of the kind.
    pub(crate) async fn together(&self) -> Together<'_> {
        let free = || !self.alone.get() && self.want_alone.get() == 0;
        if !free() {
            self.changed.wait_for(free).await;
        }
        self.together.set(self.together.get() + 1);
        Together(self)
    }

    /// Passes when nobody else is in, and keeps everybody out.
    pub(crate) async fn alone(&self) -> Alone<'_> {
        self.want_alone.set(self.want_alone.get() + 1);
        self.changed.wait_for(|| !self.alone.get() && self.together.get() == 0).await;
        self.want_alone.set(self.want_alone.get() - 1);
        self.alone.set(true);
        Alone(self)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({} together, alone: {})", self.together.get(), self.alone.get())
    }
}

#[must_use]
pub(crate) struct Together<'a>(&'a Gate);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        let left = self.0.together.get() - 1;
        self.0.together.set(left);
        if left == 0 && self.0.want_alone.get() > 0 {
            self.0.changed.wake_all();
        }
    }
}

#[must_use]
pub(crate) struct Alone<'a>(&'a Gate);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.alone.set(false);
        self.0.changed.wake_all();
    }
}
