// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retries while something is busy. A process that was killed holds its sockets and disks a little
//! longer: the kernel closes a ring in the background, after its last request in flight.
use block::{Error, ErrorKind, Nanos};
use reactor::{now, sleep};
use uring::LockOwner;

/// How long a starting daemon retries. Measured: the kernel needs a few milliseconds; a slow disk
/// in the middle of a flush may need seconds.
const START_TIME: Nanos = Nanos::from_secs(5);
/// The same for what a process may have that has ended. Chosen: twice what the kernel gives a disk
/// for one command; a machine under load was seen to need more than 5 s.
const AFTER_KILL_TIME: Nanos = Nanos::from_secs(60);
/// After so long the log says what is waited for.
const LOG_AFTER: Nanos = Nanos::from_secs(2);
/// Pause between two attempts, before and after that line.
const PAUSES: [Nanos; 2] = [Nanos::from_millis(5), Nanos::from_millis(50)];

/// How patient whoever needs something busy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A verb: its client hears at once.
    #[default]
    None,
    /// A daemon that starts.
    Start,
    /// The same, after one of the same run directory that did not end in order.
    StartAfterKill,
}

impl Patience {
    /// How long something busy is waited for.
    pub(crate) fn time(self, owner: LockOwner) -> Nanos {
        use LockOwner::{Running, Unknown};
        match (self, owner) {
            (Patience::None, _) => Nanos::ZERO,
            (_, LockOwner::Ended) | (Patience::StartAfterKill, Unknown) => AFTER_KILL_TIME,
            (Patience::Start | Patience::StartAfterKill, Running | Unknown) => START_TIME,
        }
    }

    /// Runs `attempt` until it does not fail as `Busy`, once at least. `owner` finds out who it is.
    pub(crate) async fn retry<T>(
        self,
        attempt: impl AsyncFn() -> Result<T, Error>,
        owner: impl AsyncFn() -> LockOwner,
    ) -> Result<T, Error> {
        let (begin, mut is_logged) = (now(), false);
        loop {
            let e = match attempt().await {
                Err(e) if e.kind() == ErrorKind::Busy && self != Patience::None => e,
                done => return done,
            };
            let waited = now().saturating_sub(begin);
            let is_long = waited >= LOG_AFTER;
            if is_long {
                let time = self.time(owner().await);
                if waited >= time {
                    return Err(e);
                }
                if !std::mem::replace(&mut is_logged, true) {
                    let seconds = time.0 / 1_000_000_000;
                    tracing::warn!(
                        "{e}: the start waits for it, {seconds} s at most: a process that was \
                         killed keeps what it had open until its last request has ended"
                    );
                }
            }
            sleep(PAUSES[usize::from(is_long)]).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use sim::{Machine, World};

    use super::*;

    /// How long a start waits for something that is free after `busy_s`, in seconds of virtual
    /// time; and whether it gets it.
    fn wait(patience: Patience, owner: LockOwner, busy_s: u64) -> (u64, bool) {
        let machine = Machine::boot(&World::calm(1), 1);
        let waited = machine.block_on(async move {
            let begin = now();
            let free_at = begin + Nanos::from_secs(busy_s);
            let attempt = async || match now() < free_at {
                true => Err(Error::busy("disk: is in use")),
                false => Ok(()),
            };
            let got = patience.retry(attempt, async || owner).await.is_ok();
            (now().saturating_sub(begin).0 / 1_000_000_000, got)
        });
        waited.expect("the power stays on")
    }

    #[test]
    fn what_a_dead_process_has_is_waited_for_longer() {
        use LockOwner::{Ended, Running, Unknown};
        for patience in [Patience::Start, Patience::StartAfterKill] {
            assert_eq!(wait(patience, Running, 4), (4, true));
            assert_eq!(wait(patience, Running, 50), (5, false));
            assert_eq!(wait(patience, Ended, 50), (50, true));
            assert_eq!(wait(patience, Ended, 90), (60, false));
        }
        assert_eq!(wait(Patience::Start, Unknown, 50), (5, false));
        assert_eq!(wait(Patience::StartAfterKill, Unknown, 50), (50, true));
        assert_eq!(wait(Patience::None, Ended, 1), (0, false));
    }
}
