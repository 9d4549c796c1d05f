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
use std::rc::{Rc, Weak};

use block::{Base, Bio, BlockDevice, CoreId, Limits, LocalFuture, OnFault, Status};

use crate::core::{post, spawn, with_core};
use crate::driver::Msg;
use crate::exports::Export;
use crate::io::asked;

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

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

/// The end of a flat mapping when the device that it stands on is a base on its own core.
impl Base for Remote {
    fn submit_checked(&self, bio: Bio) {
        self.submit(bio);
    }

    /// Asks the owner: what was submitted here before is there before the question, and its
    /// outcomes are here before the answer.
    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        let (home, key, answer) = asked();
        let device = self.device;
        let ask = move || {
            let base = with_core(|c| c.exports.borrow().get(device)).and_then(|d| d.as_base());
            spawn(async move {
                if let Some(base) = base {
                    base.quiesced().await;
                }
                post(home, Msg::Complete { key, result: Status::Ok.into() });
            });
        };
        post(self.core, Msg::Call(Box::new(ask)));
        Box::pin(async move {
            let _ = answer.await; // says no more than that it came
        })
    }

    /// No effect: whoever wants to hear of the device's faults watches it where it is.
    fn watch(&self, _watcher: Weak<dyn OnFault>) {}
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({} on core {})", self.name, self.core.0)
    }
}
