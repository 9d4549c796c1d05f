// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power cuts and kills.

use std::collections::BTreeMap;

use block::{Nanos, crashing, set_crashing};

use super::ops::OpKind;
use super::{Scheduled, World, usize_of};
use crate::events::{TraceEvent, record};
use crate::media::InFlight;

impl World {
    /// Drops all requests and messages; returns the writes in flight, by disk.
    fn take_in_flight(&mut self) -> Vec<Vec<InFlight>> {
        let mut in_flight: Vec<Vec<InFlight>> = Vec::new();
        in_flight.resize_with(self.disks.len(), Vec::new);
        for mut op in std::mem::take(&mut self.ops) {
            let op = &mut op.1;
            if !self.disks.get(op.disk).is_some_and(|disk| disk.keeps_data) {
                continue;
            }
            let data = match &mut op.what {
                OpKind::Write { begun: Some(_), .. } => continue,
                OpKind::Write { data, .. } => data.take().unwrap_or_default(),
                OpKind::Discard | OpKind::WriteZeroes => vec![0; usize_of(op.len)],
                OpKind::Read { .. } | OpKind::Flush { .. } | OpKind::Refused(_) => continue,
            };
            in_flight[op.disk].push(InFlight { offset: op.offset, data });
        }
        drop_quietly(std::mem::take(&mut self.due));
        self.streams.clear();
        for disk in &mut self.disks {
            disk.model.power_cut();
        }
        self.cut = None;
        in_flight
    }

    /// Cuts the power and restores it. The reactors must be dropped before; the disks can be opened
    /// again after.
    pub fn crash(&mut self) {
        let (step, in_flight) = (self.steps, self.ops.len());
        record(self.now, TraceEvent::PowerCut { step, in_flight });
        let pending = self.take_in_flight();
        for (disk, pending) in self.disks.iter_mut().zip(pending) {
            disk.media.power_cut(pending, &mut self.rng);
        }
        self.memories.power_cut(&mut self.rng);
        self.mix(u64::MAX);
    }

    /// Kills the process with the power on: caches keep their contents, but those in its memory;
    /// each write in flight takes effect or not. The reactors must be dropped before.
    pub fn kill(&mut self) {
        let (step, in_flight) = (self.steps, self.ops.len());
        record(self.now, TraceEvent::Killed { step, in_flight });
        let pending = self.take_in_flight();
        for (disk, pending) in self.disks.iter_mut().zip(pending) {
            match disk.limits.survives_kill {
                true => disk.media.kill(pending, &mut self.rng),
                false => disk.media.power_cut(pending, &mut self.rng),
            }
        }
        self.mix(u64::MAX - 1);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop_quietly(std::mem::take(&mut self.due));
    }
}

/// Messages may carry bios, whose completions panic when they are dropped.
pub(super) fn drop_quietly(due: BTreeMap<(Nanos, u64), Scheduled>) {
    let before = crashing();
    set_crashing(true);
    drop(due);
    set_crashing(before);
}
