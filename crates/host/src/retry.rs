// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retries while something is busy. A process that was killed holds its sockets and disks a little
//! longer: the kernel closes a ring in the background, after its last request in flight.
use block::{Error, ErrorKind, Nanos};
use reactor::{now, sleep};

/// How long a starting daemon retries. Measured: the kernel needs a few milliseconds; a slow disk
/// in the middle of a flush may need seconds.
pub(crate) const START_RETRY_TIME: Nanos = Nanos::from_secs(5);
/// Pause between two attempts.
const PAUSE: Nanos = Nanos::from_millis(5);

/// Runs `attempt` until it does not fail as `Busy`, for `time` at most; once if that is zero.
pub(crate) async fn retry_while_busy<T>(
    time: Nanos,
    attempt: impl AsyncFn() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = now() + time;
    loop {
        match attempt().await {
            Err(e) if e.kind() == ErrorKind::Busy && now() < deadline => sleep(PAUSE).await,
            done => return done,
        }
    }
}
