// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Handles that keep a mapped device in use: of openers, and of messages on their way to a target.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Error, Sector, crashing};
use reactor::Generation;

use super::MappedDevice;
use crate::in_flight::InFlight;

/// The target of a message, counted as in flight until this is dropped.
pub(crate) struct MessageTarget {
    pub(crate) target: Rc<dyn block::Target>,
    pub(crate) line_no: usize,
    in_flight: Rc<InFlight>,
    generation: Generation,
}

impl Drop for MessageTarget {
    fn drop(&mut self) {
        if !crashing() {
            self.in_flight.leave(self.generation);
        }
    }
}

/// A mapped device held open: an export, or a table that uses it. Closing is dropping.
#[must_use = "the device is closed when this is dropped"]
pub struct Opened(Rc<MappedDevice>);

impl Opened {
    /// The device, for submitting bios while this lives.
    pub fn device(&self) -> &Rc<MappedDevice> {
        &self.0
    }
}

block::debug_as!(Opened, s => "Opened({})", s.0.name());

impl Drop for Opened {
    fn drop(&mut self) {
        let left = self.0.opens.count.get() - 1;
        self.0.opens.count.set(left);
        if left == 0 && self.0.opens.remove_at_close.get() && !crashing() {
            let Some(dm) = self.0.dm.upgrade() else { return };
            let device = self.0.clone();
            reactor::spawn(async move { dm.remove_deferred(&device).await });
        }
    }
}

impl MappedDevice {
    /// Holds the device open: it can't be removed meanwhile.
    pub fn open(self: &Rc<Self>) -> Result<Opened, Error> {
        self.check_not_removed()?;
        self.opens.count.set(self.opens.count.get() + 1);
        Ok(Opened(self.clone()))
    }

    pub(crate) fn open_count(&self) -> u32 {
        self.opens.count.get()
    }

    /// Whether the device is removed when the last opener closes it.
    pub(crate) fn remove_at_close(&self) -> &Cell<bool> {
        &self.opens.remove_at_close
    }

    /// The target that holds `sector`, for a message of these words.
    pub(crate) fn message_to(
        &self,
        sector: Sector,
        words: &[String],
    ) -> Result<MessageTarget, Error> {
        let name = self.name();
        let live = self.live().ok_or_else(|| Error::not_found(format!("{name}: no live table")))?;
        let Some(entry) = live.find(sector) else {
            let end = live.limits().capacity;
            return Err(Error::invalid(format!(
                "{name}: Target message sector outside device: sector {sector}, must be below {end}"
            )));
        };
        let is_taken = self.is_suspended() && entry.target.takes_while_suspended(words);
        if self.lifecycle.holds_bios() && !is_taken {
            // DM-D2: a message may do I/O. Its target would have to refuse it anyway.
            return Err(Error::busy(format!("{name}: is suspended: resume it first")));
        }
        let target = entry.target.clone();
        let line_no = entry.line_no;
        let in_flight = self.drain.live.borrow().clone();
        let generation = in_flight.enter();
        Ok(MessageTarget { target, line_no, in_flight, generation })
    }
}
