// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Patience with the dead: a process that was killed holds its sockets and disks a little longer,
//! because the kernel takes a ring down in the background, after the last request in flight.
use block::{Error, ErrorKind, Nanos};
use reactor::{now, sleep};

/// How long a starting daemon takes `Busy` for the work of a ghost. Seen: a few milliseconds; a
/// slow disk in the middle of a flush may need seconds.
pub(crate) const STARTING: Nanos = Nanos::from_secs(5);
/// How long between two tries.
const PAUSE: Nanos = Nanos::from_millis(5);

/// Tries until it is not `Busy` any more, at most for `patience`; zero tries once.
pub(crate) async fn patiently<T>(
    patience: Nanos,
    attempt: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = now() + patience;
    loop {
        match attempt().await {
            Err(e) if e.kind() == ErrorKind::Busy && now() < deadline => sleep(PAUSE).await,
            done => return done,
        }
    }
}
