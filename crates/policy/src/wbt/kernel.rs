// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published algorithm: the shortest read latency of each window moves a scale step, and the
//! step gives the number of requests in flight.
//!
//! ```text
//!   step   -3   -2   -1    0    1    2    3    4       (queue depth 128)
//!   max    96   61   31   16    8    4    2    1
//!          ◀── OK, writes alone      reads too slow ──▶
//! ```
//!
//! Invariants
//! - PO-K1 Boosting stops at the first depth that the device's queue limits, throttling stops at
//!   depth 1. So steps are bounded.
//! - PO-K2 A window without reads and writes changes nothing; five of them move the step by one
//!   towards 0.
use super::{
    ControlStats, Depth, DeviceTraits, Inputs, LatencyTarget, Quota, TargetSource, ThrottleClass,
    Verdict, WindowSample,
};

/// Requests in flight at step 0, if the device takes as many.
const DEFAULT_DEPTH: u32 = 16;
/// Length of a window at step 0 and below.
const WINDOW_NS: u64 = 100_000_000;
/// A window with fewer writes than this is not judged.
const WRITES_MIN: u32 = 3;
/// Windows without reads and writes before the step moves towards 0.
const UNKNOWN_WINDOWS: u32 = 5;
/// A read within this time counts as recent.
const CLOSE_READ_NS: u64 = 100_000_000;
/// A writer that was delayed within this time counts as waiting.
const RECENT_WAIT_NS: u64 = 1_000_000_000;

/// Depths do not change beyond this step.
const STEP_MAX: i32 = 31;

/// The rule for a device with queue depth 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Qd1Rule {
    /// Two in flight unless throttled: the second is ready when the first ends.
    #[default]
    Kernel,
    /// Two in flight at every step: the rule as first published.
    Always,
    /// No special rule: one in flight. For benchmarks of the rule.
    None,
}

/// Parameters of the algorithm; the defaults are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelParams {
    /// Requests in flight at step 0, if the device takes as many.
    pub default_depth: u32,
    /// See [`Qd1Rule`].
    pub qd1: Qd1Rule,
}

impl Default for KernelParams {
    fn default() -> KernelParams {
        KernelParams { default_depth: DEFAULT_DEPTH, qd1: Qd1Rule::Kernel }
    }
}

/// The depths at `step`, and whether boosting must stop there.
fn depth_at(params: KernelParams, queue_depth: u32, step: i32) -> (Depth, bool) {
    let (max, is_bounded) = max_at(params, queue_depth, step);
    let depth = if max <= 2 {
        Depth { max, normal: max, background: 1 }
    } else {
        Depth { max, normal: max.div_ceil(2), background: max.div_ceil(4) }
    };
    (depth, is_bounded)
}

fn max_at(params: KernelParams, queue_depth: u32, step: i32) -> (u32, bool) {
    if queue_depth == 1 {
        match params.qd1 {
            Qd1Rule::Kernel => return (if step > 0 { 1 } else { 2 }, step <= 0),
            Qd1Rule::Always => return (2, step <= 0),
            Qd1Rule::None => {}
        }
    }
    let depth = params.default_depth.min(queue_depth);
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

/// Length of a window at `step`: about 100 ms / sqrt(step + 1), computed as in the kernel.
fn window_at(step: i32) -> u64 {
    let step = u64::try_from(step).unwrap_or(0);
    if step == 0 { WINDOW_NS } else { (WINDOW_NS << 4) / ((step + 1) << 8).isqrt() }
}

/// The limits at the current step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelLimits {
    depth: Depth,
    volatile_cache: bool,
}

impl KernelLimits {
    /// Conditions in the kernel's order; the first that holds decides.
    pub(super) fn limit(&self, class: ThrottleClass, inputs: &Inputs) -> u32 {
        if class == ThrottleClass::Discard {
            self.depth.background
        } else if class == ThrottleClass::Sync || inputs.dirty_waited_within(RECENT_WAIT_NS) {
            self.depth.max
        } else if class == ThrottleClass::Background || inputs.read_within(CLOSE_READ_NS) {
            self.depth.background
        } else {
            self.depth.normal
        }
    }

    #[inline]
    pub(super) fn quota(&self, class: ThrottleClass, inputs: &Inputs) -> Quota {
        Quota::of_ios(self.limit(class, inputs))
    }

    /// A device with a volatile cache completes writes early and may still be busy with them. There
    /// the next ones start when all have ended, unless a writer waits for dirty memory.
    pub(super) fn wakes(&self, ended: ThrottleClass, in_flight: u32, inputs: &Inputs) -> bool {
        let limit = if ended == ThrottleClass::Discard {
            self.depth.background
        } else if self.volatile_cache && !inputs.dirty_waited_within(RECENT_WAIT_NS) {
            0
        } else {
            self.depth.normal
        };
        in_flight == 0 || (in_flight < limit && limit - in_flight >= self.depth.background / 2)
    }
}

/// The throttle control of one device.
#[derive(Clone, Debug)]
pub struct Control {
    device: DeviceTraits,
    params: KernelParams,
    target: LatencyTarget,
    step: i32,
    /// Boosting must stop at this step.
    is_scaled_max: bool,
    depth: Depth,
    /// Windows without reads and writes since the step last moved.
    unknown: u32,
}

impl Control {
    /// A control for `device` with the kernel's parameters and the default target.
    pub fn new(device: DeviceTraits) -> Control {
        Control::with_params(device, KernelParams::default())
    }

    /// A control with other parameters.
    pub fn with_params(device: DeviceTraits, params: KernelParams) -> Control {
        let mut control = Control {
            device,
            params,
            target: LatencyTarget::Default,
            step: 0,
            is_scaled_max: false,
            depth: Depth::default(),
            unknown: 0,
        };
        control.reset();
        control
    }

    /// Drops all measurements.
    fn reset(&mut self) {
        self.step = 0;
        self.is_scaled_max = false;
        self.unknown = 0;
        self.depth = self.compute().0;
    }

    fn compute(&self) -> (Depth, bool) {
        depth_at(self.params, self.device.queue_depth.max(1), self.step)
    }

    pub(super) fn target(&self) -> LatencyTarget {
        self.target
    }

    pub(super) fn set_target(&mut self, target: LatencyTarget) {
        self.target = target;
        self.reset();
    }

    pub(super) fn set_device(&mut self, device: DeviceTraits) {
        self.device = device;
        self.reset();
    }

    pub(super) fn target_ns(&self) -> u64 {
        match self.target {
            LatencyTarget::Off => 0,
            LatencyTarget::Default => self.device.guessed_target_ns(),
            LatencyTarget::Ns(ns) => ns,
        }
    }

    pub(super) fn limits(&self) -> KernelLimits {
        KernelLimits { depth: self.depth, volatile_cache: self.device.volatile_cache }
    }

    fn judge(&self, sample: &WindowSample) -> Verdict {
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

    pub(super) fn close_window(&mut self, sample: &WindowSample) -> Verdict {
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

    /// Sets a boosted step to 0 at once; raises any other by one.
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

    pub(super) fn stats(&self) -> ControlStats {
        let target_source = match self.target {
            LatencyTarget::Default => TargetSource::Guessed,
            LatencyTarget::Off | LatencyTarget::Ns(_) => TargetSource::Set,
        };
        ControlStats {
            target_source,
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
