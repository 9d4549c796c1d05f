// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling: how many writes may be in flight at a device while reads must stay fast.
//!
//! ```text
//!   a write arrives or ends ─ ThrottleClass, Inputs ─▶ ThrottleLimits ──▶ send, split, or wait
//!                                                         ▲ a copy, until the limits change
//!   a window ends ────────── WindowSample ─────────────▶ Control ──▶ Verdict, new limits
//! ```
//!
//! Two algorithms share this interface: `kernel` (the published one) and `tail` (ours). They hold
//! no requests and do not count what is in flight; the caller passes that in.
//!
//! Invariants
//! - PO-T1 The limits depend on the arguments alone: equal samples and inputs give equal limits.
//!   Between two samples, and changes of target or device, [`ThrottleLimits`] is the whole state.
//! - PO-T2 While throttling is off, every request may start.
//! - PO-T3 If an algorithm allows no request (`ios` 0) with none in flight, it wants its timer, and
//!   it allows requests again after a bounded number of windows.
#[cfg(test)]
mod extremes_tests;
mod histogram;
mod kernel;
mod tail;

pub use histogram::{BUCKETS, LatencyHistogram, bucket_end_ns, bucket_of};
pub use kernel::{Control as KernelControl, KernelParams, Qd1Rule};
pub use tail::{Control as TailControl, SEEK_MIN_NS};

/// The throttling algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The published algorithm, exactly.
    Kernel,
    /// Ours: steers by the tail latency of reads, and limits bytes in flight.
    #[default]
    Tail,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 2] = [Mode::Tail, Mode::Kernel];

    /// Its name in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Kernel => "kernel",
            Mode::Tail => "tail",
        }
    }
}

/// The class of a throttled request. Foreground reads, flushes and write zeroes are not throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ThrottleClass {
    /// A client waits for it.
    Sync,
    /// A client's write that no one is known to wait for.
    Normal,
    /// Writeback of an engine; with [`Mode::Tail`] also the reads that writeback needs.
    Background,
    /// A discard.
    Discard,
}

impl ThrottleClass {
    /// All classes, most urgent first.
    pub const ALL: [ThrottleClass; 4] = [
        ThrottleClass::Sync,
        ThrottleClass::Normal,
        ThrottleClass::Background,
        ThrottleClass::Discard,
    ];

    /// Index of the in-flight count that it belongs to: 0 for writes, 1 for discards.
    pub fn count(self) -> usize {
        usize::from(self == ThrottleClass::Discard)
    }
}

/// The properties of a device that the algorithms depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTraits {
    /// Requests that it serves in parallel; at least 1.
    pub queue_depth: u32,
    /// Whether it has to seek.
    pub rotational: bool,
    /// Whether it completes writes in a volatile cache.
    pub volatile_cache: bool,
}

impl DeviceTraits {
    /// The target before the first measurement, as in the kernel: 2 ms for flash, 75 ms for
    /// rotational devices.
    pub fn guessed_target_ns(&self) -> u64 {
        if self.rotational { 75_000_000 } else { 2_000_000 }
    }
}

/// How long a read should take at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencyTarget {
    /// No limit: nothing is throttled.
    Off,
    /// The value that the algorithm chooses for the device.
    #[default]
    Default,
    /// This many nanoseconds.
    Ns(u64),
}

/// Where the current target comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSource {
    /// An operator has set it.
    Set,
    /// The default for the kind of device.
    Guessed,
    /// Measured from the device's own reads.
    Measured,
}

impl TargetSource {
    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            TargetSource::Set => "set",
            TargetSource::Guessed => "guessed",
            TargetSource::Measured => "measured",
        }
    }
}

/// What the caller knows when a write wants to start, or has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The current time.
    pub now_ns: u64,
    /// When the last foreground read was issued or completed.
    pub last_read_ns: Option<u64>,
    /// When a writer was last delayed because too much was dirty.
    pub dirty_wait_ns: Option<u64>,
}

impl Inputs {
    /// Whether a writer was delayed less than `ns` ago.
    pub fn dirty_waited_within(&self, ns: u64) -> bool {
        self.dirty_wait_ns.is_some_and(|then| self.now_ns.saturating_sub(then) < ns)
    }

    /// Whether there was a foreground read less than `ns` ago.
    pub fn read_within(&self, ns: u64) -> bool {
        self.last_read_ns.is_some_and(|then| self.now_ns.saturating_sub(then) < ns)
    }
}

/// How much may be in flight when a request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The request starts if fewer requests of its count are in flight. 0: it waits (PO-T3).
    pub ios: u32,
    /// It starts if at most this many bytes are in flight with it, or if nothing is in flight.
    pub bytes: u64,
    /// A longer request is split into pieces of this size; each piece is admitted by itself.
    pub piece_bytes: u32,
}

impl Quota {
    /// Every request may start.
    pub const UNLIMITED: Quota = Quota { ios: u32::MAX, bytes: u64::MAX, piece_bytes: u32::MAX };

    /// This many requests, of any length.
    pub fn of_ios(ios: u32) -> Quota {
        Quota { ios, ..Quota::UNLIMITED }
    }
}

/// Measurements of one window. Latencies run from submission to the device until completion.
#[derive(Clone, Debug, Default)]
pub struct WindowSample {
    /// The time at the window's end.
    pub now_ns: u64,
    /// Its actual length.
    pub window_ns: u64,
    /// Foreground reads that ended in it.
    pub reads: LatencyHistogram,
    /// Those of them during which nothing but other foreground reads was in flight.
    pub clean_reads: LatencyHistogram,
    /// Throttled requests that ended in it.
    pub writes: u32,
    /// Their bytes; discards have none.
    pub write_bytes: u64,
    /// How long of it throttled requests other than discards were in flight.
    pub write_busy_ns: u64,
    /// How long the watched foreground read has been in flight. One read is watched at a time, from
    /// its issue to its end.
    pub read_outstanding_ns: Option<u64>,
    /// Throttled requests in flight at its end.
    pub in_flight: u32,
    /// Whether a writer was delayed because too much was dirty, within the last second.
    pub dirty_waited: bool,
    /// Whether the throttle delayed a write in it.
    pub held: bool,
}

/// The result of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Verdict {
    /// Reads were within the target.
    Ok,
    /// Reads took too long.
    Exceeded,
    /// There were writes, but too few reads to judge by.
    UnknownWrites,
    /// There were neither.
    Unknown,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 4] =
        [Verdict::Ok, Verdict::Exceeded, Verdict::UnknownWrites, Verdict::Unknown];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Exceeded => "exceeded",
            Verdict::UnknownWrites => "unknown-writes",
            Verdict::Unknown => "unknown",
        }
    }
}

/// Requests that may be in flight, by urgency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// For requests that a client waits for.
    pub max: u32,
    /// For other client writes.
    pub normal: u32,
    /// For writeback, and for all while there are reads.
    pub background: u32,
}

/// Figures of the algorithm for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlStats {
    /// Where the target comes from.
    pub target_source: TargetSource,
    /// Bytes that background writes may have in flight while there are reads; `u64::MAX`: no limit.
    pub limit_bytes: u64,
    /// Size of the pieces into which requests are split; `u32::MAX`: not split.
    pub piece_bytes: u32,
    /// The tail latency of reads while nothing else was in flight.
    pub clean_read_ns: Option<u64>,
    /// How often writes were paused to measure such reads.
    pub probes: u64,
}

/// The current limits: a small copy, so that a request need not take the lock of [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThrottleLimits {
    is_on: bool,
    algorithm: AlgorithmLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AlgorithmLimits {
    Kernel(kernel::KernelLimits),
    Tail(tail::TailLimits),
}

impl ThrottleLimits {
    /// The algorithm that made them.
    pub fn mode(&self) -> Mode {
        match self.algorithm {
            AlgorithmLimits::Kernel(_) => Mode::Kernel,
            AlgorithmLimits::Tail(_) => Mode::Tail,
        }
    }

    /// Whether reads of writeback are throttled like [`ThrottleClass::Background`] writes. The
    /// published algorithm throttles writes only.
    pub fn tracks_reads(&self) -> bool {
        matches!(self.algorithm, AlgorithmLimits::Tail(_))
    }

    /// The quota of `class` now.
    #[inline]
    pub fn quota(&self, class: ThrottleClass, inputs: &Inputs) -> Quota {
        match &self.algorithm {
            _ if !self.is_on => Quota::UNLIMITED,
            AlgorithmLimits::Kernel(limits) => limits.quota(class, inputs),
            AlgorithmLimits::Tail(limits) => limits.quota(class, inputs),
        }
    }

    /// Whether waiting requests may try again after a request of class `ended` has ended;
    /// `in_flight` requests of its count are left.
    pub fn wakes(&self, ended: ThrottleClass, in_flight: u32, inputs: &Inputs) -> bool {
        match &self.algorithm {
            _ if !self.is_on => true,
            AlgorithmLimits::Kernel(limits) => limits.wakes(ended, in_flight, inputs),
            AlgorithmLimits::Tail(_) => true,
        }
    }
}

/// The throttle control of one device.
#[derive(Clone, Debug)]
pub enum Control {
    /// See [`Mode::Kernel`].
    Kernel(KernelControl),
    /// See [`Mode::Tail`].
    Tail(Box<TailControl>),
}

/// Calls the same method of either algorithm.
macro_rules! either {
    ($self:expr, $control:ident => $call:expr) => {
        match $self {
            Control::Kernel($control) => $call,
            Control::Tail($control) => $call,
        }
    };
}

impl Control {
    /// The algorithm `mode` for `device`, switched on, with its default target.
    pub fn new(mode: Mode, device: DeviceTraits) -> Control {
        match mode {
            Mode::Kernel => Control::Kernel(KernelControl::new(device)),
            Mode::Tail => Control::Tail(Box::new(TailControl::new(device))),
        }
    }

    /// The algorithm.
    pub fn mode(&self) -> Mode {
        match self {
            Control::Kernel(_) => Mode::Kernel,
            Control::Tail(_) => Mode::Tail,
        }
    }

    /// The target that was set.
    pub fn target(&self) -> LatencyTarget {
        either!(self, control => control.target())
    }

    /// Sets the target. Limits start again without measurements.
    pub fn set_target(&mut self, target: LatencyTarget) {
        either!(self, control => control.set_target(target));
    }

    /// The current target; 0 when off.
    pub fn target_ns(&self) -> u64 {
        either!(self, control => control.target_ns())
    }

    /// Whether throttling is on.
    pub fn is_on(&self) -> bool {
        self.target_ns() > 0
    }

    /// The limits until the next window, or change of target or device.
    pub fn limits(&self) -> ThrottleLimits {
        let algorithm = match self {
            Control::Kernel(control) => AlgorithmLimits::Kernel(control.limits()),
            Control::Tail(control) => AlgorithmLimits::Tail(control.limits()),
        };
        ThrottleLimits { is_on: self.is_on(), algorithm }
    }

    /// Windows begin again: takes the clean reads that came while there were none. They show what
    /// the device can do before the first write is limited.
    pub fn learn_at_rest(&mut self, clean_reads: &LatencyHistogram, now_ns: u64) {
        match self {
            Control::Kernel(_) => {}
            Control::Tail(control) => control.learn_at_rest(clean_reads, now_ns),
        }
    }

    /// Evaluates a window. Afterwards waiting requests may try again: always with [`Mode::Tail`],
    /// with [`Mode::Kernel`] if the step went down.
    pub fn close_window(&mut self, sample: &WindowSample) -> Verdict {
        either!(self, control => control.close_window(sample))
    }

    /// Length of the next window.
    pub fn window_ns(&self) -> u64 {
        either!(self, control => control.window_ns())
    }

    /// Whether windows must continue although nothing is in flight.
    pub fn wants_timer(&self) -> bool {
        self.is_on() && either!(self, control => control.wants_timer())
    }

    /// The scale step: 0 neutral, above it throttled, below it boosted.
    pub fn step(&self) -> i32 {
        either!(self, control => control.step())
    }

    /// The current depths; all 0 when off.
    pub fn depth(&self) -> Depth {
        if self.is_on() { either!(self, control => control.depth()) } else { Depth::default() }
    }

    /// Figures for statistics.
    pub fn stats(&self) -> ControlStats {
        either!(self, control => control.stats())
    }

    /// Sets the properties of the device. Limits start again without measurements.
    pub fn set_device(&mut self, device: DeviceTraits) {
        either!(self, control => control.set_device(device));
    }
}
