// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attribute names that more than one room must spell the same way.

/// Blocks that the running `message NAME 0 flush` has written back.
pub const FLUSH_DONE_BLOCKS: &str = "flush_done_blocks";
/// Blocks that the running flush set out to write back; 0 when none runs.
pub const FLUSH_TOTAL_BLOCKS: &str = "flush_total_blocks";
/// Command of a write cache: writes everything back within limits.
pub const DRAIN: &str = "drain";
/// `idle`, or how far a drain is: `running done=BLOCKS total=BLOCKS ...`.
pub const DRAIN_STATE: &str = "drain_state";
