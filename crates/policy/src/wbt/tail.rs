// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our law: the tail of the reads of a window against a target, and bytes in flight that follow.
use super::{Allowance, Depth, Device, Facts, Origin, Sample, Signs, Target, Verdict, Who};

/// A window.
const WINDOW_NS: u64 = 100_000_000;
/// Reads within this are beside what is written now.
const CLOSE_READ_NS: u64 = 1_000_000_000;
/// Bytes in flight beside reads: from as much as any device takes to one small request.
const LIMIT_BYTES_MAX: u64 = 64 << 20;
const LIMIT_BYTES_MIN: u64 = 64 << 10;

/// The law of one device.
#[derive(Clone, Debug)]
pub struct Control {
    device: Device,
    target: Target,
    limit_bytes: u64,
}

impl Control {
    /// The law for `device`, with the default target.
    pub fn new(device: Device) -> Control {
        Control { device, target: Target::Default, limit_bytes: LIMIT_BYTES_MAX }
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    pub(super) fn set_target(&mut self, target: Target) {
        self.target = target;
        self.limit_bytes = LIMIT_BYTES_MAX;
    }

    pub(super) fn set_device(&mut self, device: Device) {
        self.device = device;
        self.limit_bytes = LIMIT_BYTES_MAX;
    }

    pub(super) fn target_ns(&self) -> u64 {
        match self.target {
            Target::Off => 0,
            Target::Default => self.device.guessed_target_ns(),
            Target::Ns(ns) => ns,
        }
    }

    fn piece_bytes(&self) -> u32 {
        u32::try_from(self.limit_bytes / 2).unwrap_or(u32::MAX)
    }

    pub(super) fn allowance(&self, who: Who, signs: &Signs) -> Allowance {
        match who {
            Who::Normal | Who::Background if signs.read_within(CLOSE_READ_NS) => Allowance {
                ios: u32::MAX,
                bytes: self.limit_bytes,
                piece_bytes: self.piece_bytes(),
            },
            Who::Sync | Who::Normal | Who::Background | Who::Discard => Allowance::UNLIMITED,
        }
    }

    pub(super) fn wakes(&self, _ended: Who, _signs: &Signs) -> bool {
        true
    }

    pub(super) fn close_window(&mut self, sample: &Sample) -> Verdict {
        let stuck = sample.read_outstanding_ns.is_some_and(|ns| ns > self.target_ns());
        let verdict = match sample.reads.percentile_ns(990) {
            Some(tail_ns) if stuck || tail_ns > self.target_ns() => Verdict::Exceeded,
            Some(_) => Verdict::Ok,
            None if stuck => Verdict::Exceeded,
            None if sample.writes > 0 || sample.in_flight > 0 => Verdict::UnknownWrites,
            None => Verdict::Unknown,
        };
        self.limit_bytes = match verdict {
            Verdict::Exceeded => self.limit_bytes / 2,
            Verdict::Ok if sample.held => self.limit_bytes + self.limit_bytes / 8,
            Verdict::Ok | Verdict::UnknownWrites | Verdict::Unknown => self.limit_bytes,
        };
        self.limit_bytes = self.limit_bytes.clamp(LIMIT_BYTES_MIN, LIMIT_BYTES_MAX);
        verdict
    }

    pub(super) fn window_ns(&self) -> u64 {
        WINDOW_NS
    }

    pub(super) fn wants_timer(&self) -> bool {
        false
    }

    pub(super) fn step(&self) -> i32 {
        (LIMIT_BYTES_MAX / self.limit_bytes).ilog2().cast_signed()
    }

    pub(super) fn depth(&self) -> Depth {
        let depth = self.device.queue_depth;
        Depth { max: depth, normal: depth, background: depth }
    }

    pub(super) fn facts(&self) -> Facts {
        let origin = match self.target {
            Target::Default => Origin::Guessed,
            Target::Off | Target::Ns(_) => Origin::Set,
        };
        Facts {
            origin,
            limit_bytes: self.limit_bytes,
            piece_bytes: self.piece_bytes(),
            clean_read_ns: None,
            probes: 0,
        }
    }
}
