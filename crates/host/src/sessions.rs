// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cores that serve sessions of NBD, and queues of virtual machines.
//!
//! ```text
//!   core 0: accept, handshake, places, figures ──▶ the core with the fewest sessions
//!                                                    server of sessions ── replica of the device
//! ```
//!
//! A session goes to another core only if that core has the device itself: while all its bios would
//! go to core 0, it is served there. Which core serves it is decided when it begins, and stays. The
//! queues of a virtual machine go to the cores in turn, the first one to the core with the fewest
//! sessions.
use std::cell::Cell;
use std::rc::Rc;

use block::CoreId;
use nbd::Options;

use crate::secondary::Owner;

/// Which sessions each core serves.
pub(crate) struct SessionCores {
    pub(crate) owner: Rc<Owner>,
    /// Of each server, on core 0 and on the others.
    options: Options,
    cores: Vec<(CoreId, Cell<u32>)>,
}

impl SessionCores {
    /// The servers on `cores` share the bounds of `all`. Core 0 comes first.
    pub(crate) fn new(owner: Rc<Owner>, all: &Options, cores: &[CoreId]) -> Rc<SessionCores> {
        let least = u64::from(nbd::wire::REQUEST_BYTES_MAX);
        // No more cores than can have room for a request each.
        let count = u64::try_from(cores.len()).expect("at most 16");
        let count = count.min(all.bytes_max / least).max(1);
        let options = Options { bytes_max: all.bytes_max / count, ..all.clone() };
        let count = usize::try_from(count).expect("at most 16");
        let cores = cores.iter().take(count).map(|core| (*core, Cell::new(0))).collect();
        Rc::new(SessionCores { owner, options, cores })
    }

    /// How many cores there are.
    pub(crate) fn count(&self) -> usize {
        self.cores.len()
    }

    /// The bounds of each server.
    pub(crate) fn options(&self) -> Options {
        self.options.clone()
    }

    /// Begins a session of the device with this minor number, on the core that serves fewest.
    pub(crate) fn begin(self: &Rc<SessionCores>, minor: u32) -> SessionCore {
        let is_spread = self.owner.is_on_every_core(minor);
        let all = if is_spread { self.cores.len() } else { 1 };
        let sessions = |nth: &usize| self.cores[*nth].1.get();
        let nth = (0..all).min_by_key(sessions).expect("core 0 is one");
        self.cores[nth].1.set(sessions(&nth) + 1);
        SessionCore { all: self.clone(), nth, is_spread }
    }
}

block::debug_as!(SessionCores, s => "SessionCores({:?})", s.cores);

/// The core of one session. The session counts as long as this lives.
pub(crate) struct SessionCore {
    all: Rc<SessionCores>,
    nth: usize,
    /// Whether each core has the device.
    is_spread: bool,
}

impl SessionCore {
    /// The core, unless it is core 0.
    pub(crate) fn other(&self) -> Option<CoreId> {
        (self.nth > 0).then(|| self.all.cores[self.nth].0)
    }

    /// The cores of what the session divides, in order, of the first `count` cores; core 0 alone
    /// where only that one has the device.
    pub(crate) fn in_turn(&self, count: usize) -> Vec<CoreId> {
        let all = if self.is_spread { self.all.cores.len().min(count) } else { 1 };
        (0..all).map(|nth| self.all.cores[(self.nth + nth) % all].0).collect()
    }
}

impl Drop for SessionCore {
    fn drop(&mut self) {
        let sessions = &self.all.cores[self.nth].1;
        sessions.set(sessions.get() - 1);
    }
}
