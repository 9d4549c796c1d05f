// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutations: faults that tests plant to prove that they would be seen.

/// Faults planted on purpose, so that tests can prove that they would be seen. Never set by a
/// table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// A FLUSH does not wait for what it has sent.
    FlushWithoutWaiting,
    /// A FLUSH does not flush the device below.
    SkipFlush,
    /// A FUA write is like any other.
    IgnoreFua,
    /// A page is clean when its write has ended, though it was written again meanwhile.
    CleanAtTheEnd,
    /// Pages that could not be written are forgotten.
    DropFailed,
    /// Pages that are on their way below are changed there.
    WriteInPlace,
    /// An answer of the mapping is used whatever its generation.
    StaleMap,
    /// What is written in part is taken for the whole page.
    PartlyIsWhole,
    /// A discard does not wait for what is being written.
    DiscardAtOnce,
    /// Memory has no limit.
    NoLimit,
    /// Openers hear of an error again and again.
    TellAgain,
    /// A folio that is read again overwrites what was written meanwhile.
    ReadOverDirty,
    /// A FLUSH looks when it ends which errors its opener has not been told of.
    SampleAtEnd,
    /// A FLUSH that fails counts as telling of what was acknowledged after it had come, too.
    TellsOfLater,
    /// A write that was under way while a flush below failed is acknowledged like any other.
    NeverInDoubt,
    /// Who comes after a failed flush below is told nothing of it.
    NewcomersUntold,
    /// What was on its way below while a flush there failed counts as written.
    BesideFailedFlush,
}
