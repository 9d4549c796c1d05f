// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published law: a scale step that the shortest read of a window moves, and a number of
//! requests in flight that follows from it.
//!
//! ```text
//!   step   -3   -2   -1    0    1    2    3    4       (queue depth 128)
//!   max    96   61   31   16    8    4    2    1
//!          ◀── OK, writes alone      reads too slow ──▶
//! ```
//!
//! Invariants
//! - K1 A boost stops at the first depth that the device's queue bounds, a throttling at depth 1:
//!   so steps are bounded.
//! - K2 A window without any sign changes nothing; five of them move the step by one towards 0.
use super::{Allowance, Depth, Device, Facts, Origin, Sample, Signs, Target, Verdict, Who};

/// Requests in flight at step 0, if the device takes as many.
const DEFAULT_DEPTH: u32 = 16;
/// A window at step 0 and below.
const WINDOW_NS: u64 = 100_000_000;
/// Fewer writes than this in a window say nothing.
const WRITES_MIN: u32 = 3;
/// Windows without a sign until the step moves towards 0.
const UNKNOWN_WINDOWS: u32 = 5;
/// Reads within this are beside what is written now.
const CLOSE_READ_NS: u64 = 100_000_000;
/// A writer that was made to wait within this counts as waiting.
const RECENT_WAIT_NS: u64 = 1_000_000_000;

/// Depths no longer change there.
const STEP_MAX: i32 = 31;

/// What holds for a device that works on one request at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Qd1Rule {
    /// Two in flight unless throttled: one is ready when the other ends.
    #[default]
    Kernel,
    /// Two in flight at every step, as the rule was first published.
    Always,
    /// As for any other device: one. For benchmarks of what the rule is worth.
    None,
}

/// What one may choose of the law; the default is the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests in flight at step 0, if the device takes as many.
    pub default_depth: u32,
    /// See [`Qd1Rule`].
    pub qd1: Qd1Rule,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { default_depth: DEFAULT_DEPTH, qd1: Qd1Rule::Kernel }
    }
}

/// The depths at `step`, and whether a boost can't go on from there.
fn depth_at(shape: Shape, queue_depth: u32, step: i32) -> (Depth, bool) {
    let (max, is_bounded) = max_at(shape, queue_depth, step);
    let depth = if max <= 2 {
        Depth { max, normal: max, background: 1 }
    } else {
        Depth { max, normal: max.div_ceil(2), background: max.div_ceil(4) }
    };
    (depth, is_bounded)
}

fn max_at(shape: Shape, queue_depth: u32, step: i32) -> (u32, bool) {
    if queue_depth == 1 {
        match shape.qd1 {
            Qd1Rule::Kernel => return (if step > 0 { 1 } else { 2 }, step <= 0),
            Qd1Rule::Always => return (2, step <= 0),
            Qd1Rule::None => {}
        }
    }
    let depth = shape.default_depth.min(queue_depth);
    if step > 0 {
        (1 + ((depth - 1) >> step.min(STEP_MAX)), false)
    } else if step == 0 {
        (depth, false)
    } else {
        let boosted = 1 + (u64::from(depth - 1) << (-step).min(STEP_MAX));
        let bound = (u64::from(queue_depth) * 3 / 4).max(1);
        let max = u32::try_from(boosted.min(bound)).expect("at most the queue depth");
        (max, boosted > bound || queue_depth == 1)
    }
}

/// How long a window is at `step`: about 100 ms / sqrt(step + 1), as the kernel reckons it.
fn window_at(step: i32) -> u64 {
    let step = u64::try_from(step).unwrap_or(0);
    if step == 0 { WINDOW_NS } else { (WINDOW_NS << 4) / ((step + 1) << 8).isqrt() }
}

/// What is allowed until the step moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InForce {
    depth: Depth,
    volatile_cache: bool,
}

impl InForce {
    /// In the kernel's order; the first that holds.
    pub(super) fn limit(&self, who: Who, signs: &Signs) -> u32 {
        if who == Who::Discard {
            self.depth.background
        } else if who == Who::Sync || signs.dirty_waited_within(RECENT_WAIT_NS) {
            self.depth.max
        } else if who == Who::Background || signs.read_within(CLOSE_READ_NS) {
            self.depth.background
        } else {
            self.depth.normal
        }
    }

    #[inline]
    pub(super) fn allowance(&self, who: Who, signs: &Signs) -> Allowance {
        Allowance::of_ios(self.limit(who, signs))
    }

    /// With a volatile cache writes end early, so the device may still be busy with them: only when
    /// all have ended go the next, unless somebody waits for dirty memory.
    pub(super) fn wakes(&self, ended: Who, in_flight: u32, signs: &Signs) -> bool {
        let limit = if ended == Who::Discard {
            self.depth.background
        } else if self.volatile_cache && !signs.dirty_waited_within(RECENT_WAIT_NS) {
            0
        } else {
            self.depth.normal
        };
        in_flight == 0 || (in_flight < limit && limit - in_flight >= self.depth.background / 2)
    }
}

/// The law of one device.
#[derive(Clone, Debug)]
pub struct Control {
    device: Device,
    shape: Shape,
    target: Target,
    step: i32,
    /// A boost can't go on.
    is_scaled_max: bool,
    depth: Depth,
    /// Windows without a sign since the step last moved.
    unknown: u32,
}

impl Control {
    /// The kernel's law for `device`, with the default target.
    pub fn new(device: Device) -> Control {
        Control::with_shape(device, Shape::default())
    }

    /// A law of another shape.
    pub fn with_shape(device: Device, shape: Shape) -> Control {
        let mut law = Control {
            device,
            shape,
            target: Target::Default,
            step: 0,
            is_scaled_max: false,
            depth: Depth::default(),
            unknown: 0,
        };
        law.reset();
        law
    }

    /// As if nothing had been seen.
    fn reset(&mut self) {
        self.step = 0;
        self.is_scaled_max = false;
        self.unknown = 0;
        self.depth = self.compute().0;
    }

    fn compute(&self) -> (Depth, bool) {
        depth_at(self.shape, self.device.queue_depth.max(1), self.step)
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    pub(super) fn set_target(&mut self, target: Target) {
        self.target = target;
        self.reset();
    }

    pub(super) fn set_device(&mut self, device: Device) {
        self.device = device;
        self.reset();
    }

    pub(super) fn target_ns(&self) -> u64 {
        match self.target {
            Target::Off => 0,
            Target::Default => self.device.guessed_target_ns(),
            Target::Ns(ns) => ns,
        }
    }

    pub(super) fn in_force(&self) -> InForce {
        InForce { depth: self.depth, volatile_cache: self.device.volatile_cache }
    }

    fn judge(&self, sample: &Sample) -> Verdict {
        let target_ns = self.target_ns();
        let (reads, writes) = (sample.reads.count(), sample.writes);
        let outstanding_ns = sample.read_outstanding_ns.unwrap_or(0);
        if outstanding_ns > self.window_ns() || (outstanding_ns > target_ns && reads == 0) {
            return Verdict::Exceeded;
        }
        if reads < 1 || writes < WRITES_MIN {
            let writing = writes > 0 || sample.dirty_waited || sample.in_flight > 0;
            return if writing { Verdict::UnknownWrites } else { Verdict::Unknown };
        }
        if sample.reads.min_ns().is_some_and(|min_ns| min_ns > target_ns) {
            Verdict::Exceeded
        } else {
            Verdict::Ok
        }
    }

    pub(super) fn close_window(&mut self, sample: &Sample) -> Verdict {
        let verdict = self.judge(sample);
        match verdict {
            Verdict::Exceeded => self.throttle(),
            Verdict::Ok | Verdict::UnknownWrites => self.boost(),
            Verdict::Unknown => {
                self.unknown += 1;
                if self.unknown >= UNKNOWN_WINDOWS {
                    self.drift();
                }
            }
        }
        verdict
    }

    fn boost(&mut self) {
        if !self.is_scaled_max {
            self.step -= 1;
            (self.depth, self.is_scaled_max) = self.compute();
            self.unknown = 0;
        }
    }

    /// A boosted step goes to 0 at once, any other up by one.
    fn throttle(&mut self) {
        self.scale_down(if self.step < 0 { 0 } else { (self.step + 1).min(STEP_MAX) });
    }

    fn scale_down(&mut self, step: i32) {
        if self.depth.max > 1 {
            self.step = step;
            self.is_scaled_max = false;
            self.depth = self.compute().0;
            self.unknown = 0;
        }
    }

    fn drift(&mut self) {
        if self.step > 0 {
            self.boost();
        } else if self.step < 0 {
            self.scale_down(self.step + 1);
        }
    }

    pub(super) fn window_ns(&self) -> u64 {
        window_at(self.step)
    }

    pub(super) fn wants_timer(&self) -> bool {
        self.step != 0
    }

    pub(super) fn step(&self) -> i32 {
        self.step
    }

    pub(super) fn depth(&self) -> Depth {
        self.depth
    }

    pub(super) fn facts(&self) -> Facts {
        let origin = match self.target {
            Target::Default => Origin::Guessed,
            Target::Off | Target::Ns(_) => Origin::Set,
        };
        Facts {
            origin,
            limit_bytes: u64::MAX,
            piece_bytes: u32::MAX,
            clean_read_ns: None,
            probes: 0,
        }
    }
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
