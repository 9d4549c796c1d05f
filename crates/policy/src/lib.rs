// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decisions as pure state: when to write back, what next, how fast writers may write, and to which
//! opener an error must be reported.
//!
//! Engines pass measurements in and get decisions back. Nothing here does I/O, waits or reads a
//! clock: time is an argument, `now_ns`, so every decision is tested by a table.
//!
//! Absent on purpose: devices, bios, the reactor, randomness.

mod backoff;
mod bandwidth;
pub mod destage;
mod dirty;
mod errseq;
mod evict;
pub mod gap_plan;
mod idle;
mod pacer;
mod rate;
mod read_admission;
mod readahead;
mod request_costs;
mod sweep;
mod tail_limit;
mod watermarks;
pub mod wbt;

pub use backoff::{BACKOFF_FIRST_NS, BACKOFF_MAX_NS, backoff_ns};
pub use bandwidth::{BANDWIDTH_START, Bandwidth};
pub use dirty::{
    Admission, Bound, DIRTY_BYTES_MIN, Dirtier, DirtyLimits, DirtyThrottle, LIMIT_MIN_BYTES,
    LIMIT_START_BYTES, PAUSE_MAX_NS, PAUSE_MIN_NS, RATIO_ONE, Thresholds,
};
pub use errseq::{ErrSeq, ErrSeqSample, OPENERS_MAX};
pub use evict::S3Fifo;
pub use idle::{Ages, IdleAction, IdleOrder, IdlePolicy, IdleRules, IdleState, IdleTotals, Step};
pub use pacer::{DELAY_MAX_NS, Pacer};
pub use rate::RateLimit;
pub use read_admission::{DailyBudget, Ghosts, ReadAdmission, Refusal, Room, UseCounts};
pub use readahead::{ORDER_MAX, STREAMS_MAX, Streams, StreamsWithin};
pub use request_costs::{RequestCost, RequestCosts};
pub use sweep::{Run, Sweep};
pub use tail_limit::TailLimit;
pub use watermarks::Watermarks;
