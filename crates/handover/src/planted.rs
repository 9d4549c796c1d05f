// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults: known bugs of a hand-over that tests switch on, to prove that they find them.
//! `docs/mutations.md` lists them.
use block::Planted;

/// A fault of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Locks do not cross with their files: the old daemon gives them up, and the successor takes
    /// them.
    LocksGivenUp,
    /// The old daemon closes what it has handed over before COMMIT.
    LeaveEarly,
    /// What a client has sent, and nobody has executed, does not cross.
    UnreadDropped,
    /// The successor reads requests when its devices are open, and not only after COMMIT.
    ServeBeforeCommit,
    /// The old daemon sends COMMIT before the successor has said that its devices are open.
    CommitEarly,
    /// After a failure the old daemon does not wait for the last request of the successor.
    GoOnEarly,
    /// After a failure the old daemon does not open anew what the successor may have written to.
    NotOpenedAnew,
    /// After a failure the old daemon does not end the successor.
    SuccessorLeftAlive,
    /// An error after COMMIT makes the old daemon go on.
    GoOnAfterCommit,
}

/// At most one fault, and none by default.
pub type PlantedFault = Planted<Fault>;
