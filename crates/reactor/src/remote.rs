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
use std::fmt;

use block::{Bio, BlockDevice, CoreId, Limits};

use crate::core::post;
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

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({} on core {})", self.name, self.core.0)
    }
}
