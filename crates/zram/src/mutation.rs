// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mutations: faults that tests plant to prove that they would be seen.

/// Faults planted on purpose, so that tests can prove that they would be seen. Never set by a
/// table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// A commit skips the flush of the device.
    SkipFlush,
    /// A FUA write completes without a commit.
    IgnoreFua,
    /// An object's block is free before the unit that supersedes the object is durable.
    FreeBeforeDurable,
    /// The blocks of a unit are free although the chain still leads through it.
    FreeUnitBeforeCheckpoint,
    /// Replay takes units and objects without checking their checksums.
    DropChecksumCheck,
    /// A unit says that the next one is somewhere else.
    WrongNext,
    /// A superblock names a checkpoint before its map and units are durable.
    SuperblockBeforeData,
    /// A page leaves memory before the unit that holds it is durable.
    EvictBeforeDurable,
    /// A slot goes to an object that was moved before that is durable.
    MoveBeforeDurable,
    /// A flush of the device that failed is forgotten.
    ForgetFailedFlush,
    /// Writeback: a page leaves memory although it was changed while it was written.
    SettleChanged,
    /// Writeback: a page leaves memory although its write has failed.
    SettleFailed,
    /// Writeback: what a failed write was granted is not refunded.
    KeepGrant,
    /// Writeback: blocks that were written for nothing never come free.
    LeakBlocks,
    /// A block is free at once, whoever reads it.
    ReuseAtOnce,
    /// Read-back does not keep blocks from being reused.
    ReadUnpinned,
    /// A block is free before its discard has ended.
    DiscardLate,
    /// A page that changed while it was read from a sparse block is brought back to memory.
    BringBackAnyway,
    /// A page that was read back is merged although it was written meanwhile.
    MergeUnchecked,
    /// Read-back takes raw pages without checking their checksums.
    TakeAnyPage,
}
