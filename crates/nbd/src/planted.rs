// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults of the client: known bugs that tests switch on, to prove that they find them.

/// A fault of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "only tests name it"))]
pub enum Fault {
    /// Newer changes do not wait for the end of the old connection.
    IgnoreGuards,
    /// A new connection releases the guards.
    FenceAtReconnect,
    /// A flush after a reconnect succeeds although writes were lost.
    PretendFlush,
    /// A write in flight while a flush failed is not reported by the next flush.
    NeverInDoubt,
    /// The serial number in a reply's cookie is not checked.
    CookieUnchecked,
    /// A write in flight when the connection is lost is completed.
    ForgetInFlight,
    /// FUA is not sent.
    IgnoreFua,
    /// If FUA is a write and a flush, only the flush is sent again.
    ForgetFuaWrite,
    /// A request that is answered while it is still being sent is not waited for.
    ForgetSending,
    /// An answer to one request counts as progress of all.
    AnyAnswerIsProgress,
}
