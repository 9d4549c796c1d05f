// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What keeps a mapped device in use: open handles, and messages on their way to a target.
use std::fmt;
use std::rc::Rc;

use block::{BlockDevice, crashing};
use reactor::Generation;

use super::MappedDevice;
use crate::gate::Gate;

/// The target of a message, counted as in flight until this is dropped.
pub(crate) struct MessageTarget {
    pub(crate) target: Rc<dyn block::Target>,
    pub(crate) line_no: usize,
    pub(super) gate: Rc<Gate>,
    pub(super) generation: Generation,
}

impl Drop for MessageTarget {
    fn drop(&mut self) {
        if !crashing() {
            self.gate.leave(self.generation);
        }
    }
}

/// A mapped device held open: an export, or a table that uses it. Closing is dropping.
#[must_use = "the device is closed when this is dropped"]
pub struct Opened(pub(super) Rc<MappedDevice>);

impl Opened {
    /// The device, for submitting bios while this lives.
    pub fn device(&self) -> &Rc<MappedDevice> {
        &self.0
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.0.name())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let left = self.0.opens.get() - 1;
        self.0.opens.set(left);
        if left == 0 && self.0.remove_at_close.get() && !crashing() {
            let Some(dm) = self.0.dm.upgrade() else { return };
            let device = self.0.clone();
            reactor::spawn(async move { dm.remove_deferred(&device).await });
        }
    }
}
