// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote: a device of another core, as a device of this one.
//!
//! ```text
//!   this core                          the core that owns the device
//!   Remote::submit ── Msg::Submit ───▶ device.submit
//!   op slot ◀──────── Msg::Complete ── completion
//! ```
//!
//! A hop costs two messages, each with all others of its round: one lock of a mailbox and at most
//! one bell for the batch. The border contract holds across it because messages between two cores
//! stay in order: what has completed here had completed there before.
use std::rc::Rc;

use block::{Bio, BlockDevice, CoreId, Limits};

use crate::core::{core_id, post};
use crate::core_local::CoreLocal;
use crate::driver::Msg;
use crate::exports::Export;

/// Forwards bios to the core that owns the device.
pub struct Remote {
    core: CoreId,
    device: Export,
    name: String,
    limits: Limits,
}

impl Remote {
    /// The device that `core` has exported as `device`, with the name and limits it has there.
    pub fn new(core: CoreId, device: Export, name: impl Into<String>, limits: Limits) -> Remote {
        Remote { core, device, name: name.into(), limits }
    }
}

impl BlockDevice for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        // The owner checks it.
        post(self.core, Msg::Submit { device: self.device, bio });
    }
}

block::debug_as!(Remote, s => "Remote({} on core {})", s.name, s.core.0);

/// A device of one core by its names, from which every core makes a device of its own.
#[derive(Clone, Copy, Debug)]
pub struct SharedDeviceName {
    /// The core that has it.
    pub core: CoreId,
    /// Its name on that core.
    pub local: CoreLocal,
    /// Its name for the others.
    pub export: Export,
}

impl SharedDeviceName {
    /// The device itself, a `T`, on its own core, and a [`Remote`] on any other one; `None` on its
    /// own core when it is not kept any more.
    pub fn device<T: BlockDevice + 'static>(
        self,
        name: &str,
        limits: &Limits,
    ) -> Option<Rc<dyn BlockDevice>> {
        if self.core == core_id() {
            return Some(self.local.get::<T>()?);
        }
        Some(Rc::new(Remote::new(self.core, self.export, name, limits.clone())))
    }
}
