// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last events of a world, kept for the report of a failing seed; and the faults of streams.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;

use block::{Nanos, Status};

/// A fault that one end of a stream sees, while the other end continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// Its next Recv fails; the stream itself still works.
    Error,
    /// No more bytes pass in either direction. This end gets a timeout, the other one a reset
    /// later.
    TimedOut,
}

/// Number of events in a failure report, unless MILLPOND_EVENTS says another.
const KEPT: usize = 50;

/// One event; formatted only when a seed has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TraceEvent {
    Submitted { disk: usize, op: &'static str, id: usize, offset: u64, len: u64, fua: bool },
    Completed { disk: usize, op: &'static str, id: usize, offset: u64, len: u64, status: Status },
    Stalled { id: usize, extra: Nanos },
    Message { to: u16, what: &'static str },
    PowerCut { step: u64, in_flight: usize },
    Killed { step: u64, in_flight: usize },
    Rotted { disk: usize, offset: u64 },
    Misplaced { disk: usize, id: usize, to: Option<u64> },
    StreamCut { stream: usize, how: StreamFault },
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TraceEvent::Submitted { disk, op, id, offset, len, fua } => {
                let fua = if fua { " fua" } else { "" };
                write!(f, "disk {disk}: #{id} {op}{fua} {}+{} submitted", offset / 512, len / 512)
            }
            TraceEvent::Completed { disk, op, id, offset, len, status } => {
                write!(f, "disk {disk}: #{id} {op} {}+{}: {status}", offset / 512, len / 512)
            }
            TraceEvent::Stalled { id, extra } => write!(f, "#{id} stalls for {} ns", extra.0),
            TraceEvent::Message { to, what } => write!(f, "core {to} gets {what}"),
            TraceEvent::PowerCut { step, in_flight } => {
                write!(f, "POWER CUT at step {step}, {in_flight} in flight")
            }
            TraceEvent::Killed { step, in_flight } => {
                write!(f, "KILLED at step {step}, {in_flight} in flight")
            }
            TraceEvent::Rotted { disk, offset } => {
                write!(f, "disk {disk}: bit rot at byte {offset}")
            }
            TraceEvent::StreamCut { stream, how } => write!(f, "stream {stream} is cut: {how:?}"),
            TraceEvent::Misplaced { disk, id, to: None } => {
                write!(f, "disk {disk}: #{id} is a lost write")
            }
            TraceEvent::Misplaced { disk, id, to: Some(to) } => {
                write!(f, "disk {disk}: #{id} is misdirected to sector {}", to / 512)
            }
        }
    }
}

thread_local! {
    /// Events of the newest world on this thread. They outlive it, for the failure report.
    static LAST: RefCell<VecDeque<(Nanos, TraceEvent)>> = const { RefCell::new(VecDeque::new()) };
    static NUMBER: usize = number();
}

fn number() -> usize {
    let asked = crate::seeds::variable("MILLPOND_EVENTS").map(usize::try_from);
    asked.and_then(Result::ok).map_or(KEPT, |asked| asked.max(1))
}

/// Drops the events of the previous world.
pub(crate) fn clear() {
    LAST.with_borrow_mut(VecDeque::clear);
}

pub(crate) fn record(at: Nanos, what: TraceEvent) {
    LAST.with_borrow_mut(|last| {
        if last.len() == NUMBER.with(|number| *number) {
            last.pop_front();
        }
        last.push_back((at, what));
    });
}

/// The last events of this thread's last world, one a line.
pub(crate) fn report() -> String {
    LAST.with_borrow(|last| {
        last.iter().map(|(at, what)| format!("  {:>14} ns  {what}\n", at.0)).collect()
    })
}
