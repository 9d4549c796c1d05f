// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes beside each other: each has a core of its own, and one of them is killed while the
//! others go on. What it had sent to disks ends as if it were alive, as in the kernel.
use block::{CoreId, Nanos};
use reactor::FileId;

use super::stop::drop_quietly;
use super::{Scheduled, World};
use crate::events::{TraceEvent, record};

/// Longest time that a request of a killed process needs beyond its model's: the disk hangs.
/// Chosen: longer than the next process needs to open its devices.
const ORPHAN_DELAY_NS_MAX: u64 = 500_000_000;

impl World {
    /// Requests to disks of this process that are under way.
    pub fn count_in_flight(&self, core: CoreId) -> usize {
        self.ops.iter().filter(|(_, op)| op.core == core).count()
    }

    /// Kills the process of this core, whose reactor must be dropped before. Its sockets are
    /// closed; its requests to disks go on, and keep its lifeline.
    pub(crate) fn kill_process(&mut self, core: CoreId) {
        let in_flight = self.count_in_flight(core);
        record(self.now, TraceEvent::Killed { step: self.steps, in_flight });
        for (_, op) in &mut self.ops {
            op.is_orphan |= op.core == core;
        }
        let is_for = |due: &Scheduled| match due {
            Scheduled::Msg(to, _) | Scheduled::Ready(to, _) => *to == core,
            Scheduled::Op(_) | Scheduled::Stream(_) => false,
        };
        let (dropped, due) =
            std::mem::take(&mut self.due).into_iter().partition(|(_, due)| is_for(due));
        self.due = due;
        drop_quietly(dropped);
        self.streams.forget_requests_of(core);
        let lifeline = self.streams.lifelines.get(&core).copied().filter(|_| in_flight > 0);
        let owned = self.streams.owners.iter().filter(|(_, owner)| **owner == core);
        let files: Vec<FileId> = owned.map(|(file, _)| *file).collect();
        for file in files {
            if Some(file) != lifeline {
                self.close_stream(file);
            }
        }
        self.mix(u64::from(core.0));
    }

    /// Every second request of a killed process is late.
    pub(super) fn orphan_delay(&mut self) -> Nanos {
        match self.rng.below(2) {
            0 => Nanos::ZERO,
            _ => Nanos(self.rng.below(ORPHAN_DELAY_NS_MAX)),
        }
    }

    /// A request of a process that has been killed has ended.
    pub(super) fn orphan_ended(&mut self, core: CoreId) {
        if self.count_in_flight(core) == 0
            && let Some(file) = self.streams.lifelines.remove(&core)
        {
            self.close_stream(file);
        }
    }
}
