// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults of the client and of a server that pauses: known bugs that tests switch on, to
//! prove that they find them. `docs/mutations.md` lists those of the server.

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

/// A fault of a server that pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted"), expect(unreachable_pub, reason = "only tests name it"))]
pub enum ServerFault {
    /// What has come of a WRITE whose data are still coming is dropped.
    DropPart,
    /// The last READ before the pause is executed and answered once more after it.
    RepeatLast,
    /// A WRITE of which a part has come is executed with what has come.
    ExecutePart,
    /// A session that is paused goes on to receive.
    ReceiveInPause,
    /// A session counts as paused while replies are on their way.
    ParkEarly,
    /// The failure of the FLUSH of a pause is forgotten.
    ForgetFlushFailure,
}
