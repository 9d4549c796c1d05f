// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults: known bugs that tests switch on, to prove that the tests find them. Only with
//! the cargo feature `planted`.

/// One bug each.
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "only tests see it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Writeback: a page leaves memory although it changed while it was written.
    EvictChangedPage,
    /// Writeback: a page leaves memory although its write failed.
    EvictFailedWrite,
    /// Writeback: the budget of a failed write is not refunded.
    KeepBudgetOfFailed,
    /// Writeback: blocks that were written for nothing are never freed.
    LeakBlocks,
    /// A block is free at once, although a read of it may be in flight.
    ReuseDuringRead,
    /// Read-back does not keep blocks from being reused.
    ReadUnpinned,
    /// A block is free before its discard has ended.
    FreeBeforeDiscard,
    /// A page that changed while it was read from a sparse block is restored to memory.
    RestoreChangedPage,
    /// A page that was read back is merged although it was written meanwhile.
    MergeUnchecked,
    /// Read-back takes raw pages without checking their checksums.
    SkipPageChecksum,
}
