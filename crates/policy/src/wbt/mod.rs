// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback throttling: how much of which writes may be in flight at a device, so that the reads
//! beside them stay quick.
//!
//! ```text
//!   a write comes or ends ── Who, Signs ──▶ InForce ──▶ it goes, in pieces, or waits
//!                                              ▲ a copy, until the law changes
//!   a window ends ────────── Sample ───────▶ Control ──▶ Verdict, other limits
//! ```
//!
//! Two laws speak the same words: `kernel` (the published one) and `tail` (ours). They hold no
//! request and count none in flight; whoever asks tells them.
//!
//! Invariants
//! - T1 What a law allows depends on what it was told alone: same samples and signs, same answer.
//!   Between two samples, and changes of target or device, [`InForce`] is all of it.
//! - T2 While a law is off it allows everything.
//! - T3 A law that allows nothing (`ios` 0) with nothing in flight wants its timer, and allows
//!   something again after a bounded number of windows.
#[cfg(test)]
mod extremes_tests;
mod kernel;
mod reads;
mod tail;

pub use kernel::{Control as KernelControl, Qd1Rule, Shape};
pub use reads::{BUCKETS, Reads, bucket_end_ns, bucket_of};
pub use tail::Control as TailControl;

/// The law in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The published control law, exactly.
    Kernel,
    /// The tail of the reads, and bytes in flight.
    #[default]
    Tail,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 2] = [Mode::Tail, Mode::Kernel];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Kernel => "kernel",
            Mode::Tail => "tail",
        }
    }
}

/// What sort of request it is. Reads that somebody may wait for, flushes and the like never ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Who {
    /// Somebody waits for it.
    Sync,
    /// A client's, and nobody is known to wait.
    Normal,
    /// An engine's writeback; by our law the reads that it needs, too.
    Background,
    /// Gives space back.
    Discard,
}

impl Who {
    /// All, most urgent first.
    pub const ALL: [Who; 4] = [Who::Sync, Who::Normal, Who::Background, Who::Discard];

    /// The count of [`Signs::in_flight`] that it is part of.
    pub fn count(self) -> usize {
        usize::from(self == Who::Discard)
    }
}

/// What a law must know of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Requests that it works on at once; at least 1.
    pub queue_depth: u32,
    /// Whether seeks cost.
    pub rotational: bool,
    /// Whether a write ends in a cache that a power cut empties.
    pub volatile_cache: bool,
}

impl Device {
    /// The target for a medium of which nothing is known yet: 2 ms flash, 75 ms rotational, as the
    /// kernel has it.
    pub fn guessed_target_ns(&self) -> u64 {
        if self.rotational { 75_000_000 } else { 2_000_000 }
    }
}

/// How long a read may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// However long: nothing is throttled.
    Off,
    /// What the law finds right for the device.
    #[default]
    Default,
    /// So many nanoseconds.
    Ns(u64),
}

/// Where the target in force comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Somebody has set it.
    Set,
    /// It is the guess for the medium.
    Guessed,
    /// From the device's own reads.
    Measured,
}

impl Origin {
    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Set => "set",
            Origin::Guessed => "guessed",
            Origin::Measured => "measured",
        }
    }
}

/// What is known when a write asks, or has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// The clock.
    pub now_ns: u64,
    /// When a foreground read was last issued or completed.
    pub last_read_ns: Option<u64>,
    /// When a writer was last made to wait because too much was dirty.
    pub dirty_wait_ns: Option<u64>,
}

impl Signs {
    /// Whether a writer was made to wait less than `ns` ago.
    pub fn dirty_waited_within(&self, ns: u64) -> bool {
        self.dirty_wait_ns.is_some_and(|then| self.now_ns.saturating_sub(then) < ns)
    }

    /// Whether there was a foreground read less than `ns` ago.
    pub fn read_within(&self, ns: u64) -> bool {
        self.last_read_ns.is_some_and(|then| self.now_ns.saturating_sub(then) < ns)
    }
}

/// How much may be in flight for a write to be let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// It goes if fewer requests of its count are in flight. 0 holds it whatever is (T3).
    pub ios: u32,
    /// It goes if no more bytes are in flight with it, or nothing is.
    pub bytes: u64,
    /// A longer one goes in pieces of so much; each asks by itself.
    pub piece_bytes: u32,
}

impl Allowance {
    /// Everything may go.
    pub const UNLIMITED: Allowance =
        Allowance { ios: u32::MAX, bytes: u64::MAX, piece_bytes: u32::MAX };

    /// So many requests of whatever length.
    pub fn of_ios(ios: u32) -> Allowance {
        Allowance { ios, ..Allowance::UNLIMITED }
    }
}

/// What a window came to. Times are from the device's taking a request to its end.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The clock at the window's end.
    pub now_ns: u64,
    /// Its true length.
    pub window_ns: u64,
    /// Foreground reads that ended in it.
    pub reads: Reads,
    /// Of those, the ones beside which nothing but other such reads was in flight from issue to
    /// end.
    pub clean_reads: Reads,
    /// Tracked requests that ended in it.
    pub writes: u32,
    /// Their bytes; discards have none.
    pub write_bytes: u64,
    /// For how long of it tracked requests other than discards were in flight.
    pub write_busy_ns: u64,
    /// How long the foreground read that is being watched has been with the device: one at a time
    /// is, from its issue to its end.
    pub read_outstanding_ns: Option<u64>,
    /// Tracked requests in flight at its end.
    pub in_flight: u32,
    /// Whether a writer was made to wait for dirty memory in the last second.
    pub dirty_waited: bool,
    /// Whether a write was held back by this law in it.
    pub held: bool,
}

/// What a window says about the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Verdict {
    /// Reads were within the target.
    Ok,
    /// Reads took too long.
    Exceeded,
    /// No reads to judge by, but writes.
    UnknownWrites,
    /// Nothing to judge by.
    Unknown,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 4] =
        [Verdict::Ok, Verdict::Exceeded, Verdict::UnknownWrites, Verdict::Unknown];

    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Exceeded => "exceeded",
            Verdict::UnknownWrites => "unknown-writes",
            Verdict::Unknown => "unknown",
        }
    }
}

/// Requests that may be in flight, by how urgent they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// When somebody waits.
    pub max: u32,
    /// When nobody does.
    pub normal: u32,
    /// For writeback, and beside reads.
    pub background: u32,
}

/// What a law has to tell to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where the target comes from.
    pub origin: Origin,
    /// Bytes that background writes may have in flight beside reads; `u64::MAX` for no limit.
    pub limit_bytes: u64,
    /// In pieces of how many bytes; `u32::MAX` for whole.
    pub piece_bytes: u32,
    /// The tail of the device's reads beside which nothing else was in flight.
    pub clean_read_ns: Option<u64>,
    /// How often writes were held for a moment to see such reads.
    pub probes: u64,
}

/// What a law allows until it changes: a small copy, so that those who ask need not reach the law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    is_on: bool,
    law: Law,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    Kernel(kernel::InForce),
    Tail(tail::InForce),
}

impl InForce {
    /// Which law it is of.
    pub fn mode(&self) -> Mode {
        match self.law {
            Law::Kernel(_) => Mode::Kernel,
            Law::Tail(_) => Mode::Tail,
        }
    }

    /// Whether reads of writeback ask, as writes of [`Who::Background`] do. The published law knows
    /// writes alone.
    pub fn tracks_reads(&self) -> bool {
        matches!(self.law, Law::Tail(_))
    }

    /// How much of `who` may go now.
    #[inline]
    pub fn allowance(&self, who: Who, signs: &Signs) -> Allowance {
        match &self.law {
            _ if !self.is_on => Allowance::UNLIMITED,
            Law::Kernel(law) => law.allowance(who, signs),
            Law::Tail(law) => law.allowance(who, signs),
        }
    }

    /// Whether those who wait may ask again after a request of `ended` has ended; so many of its
    /// count are left in flight.
    pub fn wakes(&self, ended: Who, in_flight: u32, signs: &Signs) -> bool {
        match &self.law {
            _ if !self.is_on => true,
            Law::Kernel(law) => law.wakes(ended, in_flight, signs),
            Law::Tail(_) => true,
        }
    }
}

/// The law of one device.
#[derive(Clone, Debug)]
pub enum Control {
    /// See [`Mode::Kernel`].
    Kernel(KernelControl),
    /// See [`Mode::Tail`].
    Tail(Box<TailControl>),
}

/// Calls the same method of whichever law it is.
macro_rules! either {
    ($self:expr, $law:ident => $call:expr) => {
        match $self {
            Control::Kernel($law) => $call,
            Control::Tail($law) => $call,
        }
    };
}

impl Control {
    /// The law `mode` for `device`, on, with its default target.
    pub fn new(mode: Mode, device: Device) -> Control {
        match mode {
            Mode::Kernel => Control::Kernel(KernelControl::new(device)),
            Mode::Tail => Control::Tail(Box::new(TailControl::new(device))),
        }
    }

    /// Which law it is.
    pub fn mode(&self) -> Mode {
        match self {
            Control::Kernel(_) => Mode::Kernel,
            Control::Tail(_) => Mode::Tail,
        }
    }

    /// What it was told to aim at.
    pub fn target(&self) -> Target {
        either!(self, law => law.target())
    }

    /// Aims at `target` from now on, with limits as if nothing had been seen.
    pub fn set_target(&mut self, target: Target) {
        either!(self, law => law.set_target(target));
    }

    /// The target in force; 0 when off.
    pub fn target_ns(&self) -> u64 {
        either!(self, law => law.target_ns())
    }

    /// Whether it throttles at all.
    pub fn is_on(&self) -> bool {
        self.target_ns() > 0
    }

    /// What it allows until it takes note of a window, or is told of another target or device.
    pub fn in_force(&self) -> InForce {
        let law = match self {
            Control::Kernel(law) => Law::Kernel(law.in_force()),
            Control::Tail(law) => Law::Tail(law.in_force()),
        };
        InForce { is_on: self.is_on(), law }
    }

    /// Takes note of a window. Whoever waits may ask again: by our law always, by the kernel's if
    /// the step went down.
    pub fn close_window(&mut self, sample: &Sample) -> Verdict {
        either!(self, law => law.close_window(sample))
    }

    /// How long the next window is to be.
    pub fn window_ns(&self) -> u64 {
        either!(self, law => law.window_ns())
    }

    /// Whether windows go on although nothing is in flight.
    pub fn wants_timer(&self) -> bool {
        self.is_on() && either!(self, law => law.wants_timer())
    }

    /// The scale step: 0 neutral, above it throttled, below it boosted.
    pub fn step(&self) -> i32 {
        either!(self, law => law.step())
    }

    /// The depths in force; all 0 when off.
    pub fn depth(&self) -> Depth {
        if self.is_on() { either!(self, law => law.depth()) } else { Depth::default() }
    }

    /// What else there is to tell.
    pub fn facts(&self) -> Facts {
        either!(self, law => law.facts())
    }

    /// The device is of another sort than was said; limits are as if nothing had been seen.
    pub fn set_device(&mut self, device: Device) {
        either!(self, law => law.set_device(device));
    }
}
