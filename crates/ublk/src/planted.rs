// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of this room that its tests plant, to prove that they would be found.

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Tags that were committed are committed again, with the next ones.
    CommitAgain,
    /// A queue that was left commits what has ended.
    CommitAfterLeave,
}
