// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults: known bugs that tests switch on, to prove that the tests find them. Only with
//! the cargo feature `planted`.

/// One bug each.
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "only tests see it"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A FLUSH does not wait for the ioends that it has sent.
    FlushWithoutWaiting,
    /// A FLUSH does not flush the device below.
    SkipFlush,
    /// A FUA write is handled as any other.
    IgnoreFua,
    /// A page is clean when its write has ended, although it was written again meanwhile.
    CleanRewrittenPage,
    /// Pages that could not be written count as clean.
    DropFailed,
    /// A write changes pages in the memory from which they are being written below.
    WriteInPlace,
    /// The cached answer of the mapping is used whatever its generation.
    StaleMap,
    /// A page that is written in part is not read first.
    SkipPartialRead,
    /// A discard does not wait for pages that are being written.
    DiscardWithoutWaiting,
    /// Memory has no limit.
    NoMemoryLimit,
    /// Every FLUSH after an error fails, also those of openers that have got the error.
    ReportTwice,
    /// A write does not wait for a read of its pages, which then overwrites it.
    WriteDuringRead,
    /// A FLUSH looks at its end, not at its beginning, which errors its opener has not got.
    SampleAtEnd,
    /// A FLUSH that fails also reports the loss of writes that were acknowledged after it came.
    ReportLaterErrors,
    /// A write that was in flight while a flush below failed is acknowledged as any other.
    IgnoreDoubt,
    /// An opener that comes after a failed flush below does not get the error.
    SkipNewOpeners,
    /// Pages that were in flight below while a flush there failed count as written.
    TrustWritesDuringFailedFlush,
    /// The zero runs of the device below count whatever was held when it was asked.
    ZeroRunsLookLate,
    /// The zero runs of the device below count whatever is held when it has answered.
    ZeroRunsLookEarly,
}
