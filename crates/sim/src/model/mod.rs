// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Device models: when a command completes, in virtual time. Models hold no data.
//!
//! A model is a queueing machine that the world drives: it takes commands, returns the time of its
//! next event, and returns the ids of completed commands. Its queue has no bound; the host limits
//! what is in flight.
//!
//! | model | for |
//! |---|---|
//! | [`Hdd`] | destage order and pacing on a rotating disk; two presets |
//! | [`Flash`] | SATA SSD and NVMe: latency, bandwidth, queue depth |
//! | [`Cloud`] | a volume of a cloud: requests and bytes a second |
//! | [`Turnaround`] | a host that gets completions late, around any of these |
//! | [`Uniform`] | correctness seeds: every command takes a random time |
//!
//! Invariants
//! - SI-M1 A model is a function of its parameters and of its submissions and their times: no
//!   hidden randomness (`Uniform` has a seed among its parameters).
//! - SI-M2 `next_event` is never in the past once `pop_done` has run for that moment.

mod cloud;
mod flash;
mod hdd;
mod turnaround;
mod uniform;

pub use cloud::{Cloud, CloudParams};
pub use flash::{Flash, FlashParams};
pub use hdd::{Hdd, HddParams};
pub use turnaround::Turnaround;
pub use uniform::Uniform;

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data from the medium.
    Read,
    /// Data to the medium (write zeroes too).
    Write,
    /// Everything accepted so far to the medium.
    Flush,
    /// A discard.
    Discard,
}

/// One command as a device sees it.
#[derive(Clone, Copy, Debug)]
pub struct Cmd {
    pub kind: Kind,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// The write is done when it is on the medium.
    pub fua: bool,
}

impl Cmd {
    /// A read.
    pub fn read(offset_bytes: u64, len_bytes: u64) -> Cmd {
        Cmd { kind: Kind::Read, offset_bytes, len_bytes, fua: false }
    }
    /// A write into the device's cache, if it has one.
    pub fn write(offset_bytes: u64, len_bytes: u64) -> Cmd {
        Cmd { kind: Kind::Write, offset_bytes, len_bytes, fua: false }
    }
    /// A flush.
    pub fn flush() -> Cmd {
        Cmd { kind: Kind::Flush, offset_bytes: 0, len_bytes: 0, fua: false }
    }
}

/// A device in virtual time.
pub trait Model {
    /// Takes command `id` at `now_ns`. Ids are the caller's; each comes back once.
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd);
    /// The time of the next event, if there is one.
    fn next_event(&self) -> Option<u64>;
    /// Runs to `now_ns` and appends the completed ids, in order.
    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>);
    /// A power cut: drops every command; the device is idle again.
    fn power_cut(&mut self);
}

/// Time that `bytes` take at `bytes_per_s`.
fn transfer_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
    u64::try_from(ns).expect("a transfer takes less than 584 years")
}

/// Issues `cmds` in order with at most `depth` in flight; the time until all are done.
pub fn drive(model: &mut dyn Model, cmds: &[Cmd], depth: usize) -> u64 {
    assert!(depth > 0, "depth must be at least 1");
    let (mut now, mut next, mut in_flight, mut done) = (0, 0, 0, Vec::new());
    while next < cmds.len() || in_flight > 0 {
        while in_flight < depth && next < cmds.len() {
            model.submit(now, next as u64, cmds[next]);
            next += 1;
            in_flight += 1;
        }
        now = model.next_event().expect("something is in flight");
        model.pop_done(now, &mut done);
        in_flight -= done.len();
        done.clear();
    }
    now
}
