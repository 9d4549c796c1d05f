// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may change devices: verbs, beside each other, or a hand-over alone (HO-UP4). A verb that
//! only waits, for a flush or a drain, does not keep a hand-over from its begin: it goes on beside
//! it, is done again if the hand-over fails and has ended its work, and is for the successor if the
//! hand-over succeeds.
//!
//! ```text
//!   verb that changes   ──lock── work ──────────────────────────────────▶ answer
//!   verb that waits     ──lock── work ─┬────────────────────────────────▶ answer
//!                                      └ hand-over: lock given up ─┬ failed ─▶ lock, waits on
//!                                                                  └ done ───▶ "ask the successor"
//! ```
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use block::{Error, ErrorKind};
use control::Failure;
use tokio::sync::{OwnedRwLockReadGuard, RwLock, RwLockWriteGuard, watch};

/// How far a hand-over is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandoverState {
    /// There is none.
    None,
    UnderWay,
    /// A successor has the devices.
    Done,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Changes {
    lock: Arc<RwLock<()>>,
    state: watch::Sender<HandoverState>,
}

/// The right of a hand-over to be alone. Without [`HandoverGuard::done`] verbs go on after it.
#[derive(Debug)]
pub(crate) struct HandoverGuard<'a> {
    changes: &'a Changes,
    guard: Option<RwLockWriteGuard<'a, ()>>,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes { lock: Arc::default(), state: watch::channel(HandoverState::None).0 }
    }
}

impl Changes {
    /// The right to change something, until the guard is dropped.
    ///
    /// # Errors
    /// `EBUSY` while a hand-over is under way.
    pub(crate) fn begin(&self) -> Result<OwnedRwLockReadGuard<()>, Error> {
        self.lock.clone().try_read_owned().map_err(|_| {
            Error::busy("an upgrade is under way: nothing can be changed before its end")
        })
    }

    /// The same, when no hand-over is under way any more.
    pub(crate) async fn begin_later(&self) -> OwnedRwLockReadGuard<()> {
        self.lock.clone().read_owned().await
    }

    /// Waits until no verb changes anything, at most for `time`, and keeps new ones from it.
    ///
    /// # Errors
    /// `EBUSY` when one does not end in time.
    pub(crate) async fn hand_over(&self, time: Duration) -> Result<HandoverGuard<'_>, Failure> {
        let text = "another upgrade is under way";
        let is_first = self.state.send_if_modified(|state| {
            let is_none = *state == HandoverState::None;
            if is_none {
                *state = HandoverState::UnderWay;
            }
            is_none
        });
        if !is_first {
            return Err(Failure::new(ErrorKind::Busy, text));
        }
        let mut handover = HandoverGuard { changes: self, guard: None };
        let guard = tokio::time::timeout(time, self.lock.write()).await.map_err(|_| {
            let text = "a change of a device (a suspend, a load, an uncache ...) does not end in \
                        time: try again when it has";
            Failure::new(ErrorKind::Busy, text)
        })?;
        handover.guard = Some(guard);
        Ok(handover)
    }

    /// A verb that waits for `work`, which changes no table, and may be done again after an error.
    ///
    /// # Errors
    /// Those of `work`; and [`Failure::handed_over`] when a successor has the devices.
    pub(crate) async fn waiting<T, F>(&self, work: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let mut state = self.state.subscribe();
        let mut attempt = pin!(None);
        // A hand-over that failed may have ended the work.
        let mut was_interrupted = false;
        loop {
            let over = |state: &HandoverState| *state != HandoverState::UnderWay;
            if state.wait_for(over).await.is_ok_and(|state| *state == HandoverState::Done) {
                return Err(Failure::handed_over());
            }
            let Ok(guard) = self.lock.try_read() else {
                // One begins just now.
                tokio::task::yield_now().await;
                continue;
            };
            if attempt.is_none() {
                attempt.set(Some(work()));
            }
            let Some(running) = attempt.as_mut().as_pin_mut() else { continue };
            let under_way = state.wait_for(|state| *state != HandoverState::None);
            let ended = tokio::select! {
                biased;
                ended = running => Some(ended),
                _ = under_way => None,
            };
            drop(guard);
            match ended {
                Some(Err(_)) if was_interrupted => {
                    was_interrupted = false;
                    attempt.set(None);
                }
                Some(ended) => return ended,
                None => was_interrupted = true,
            }
        }
    }

    /// Completes when a successor has the devices.
    pub(crate) async fn handed_over(&self) {
        let is_done = |state: &HandoverState| *state == HandoverState::Done;
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(is_done).await;
    }
}

impl HandoverGuard<'_> {
    /// A successor has the devices: no verb changes anything any more.
    pub(crate) fn done(mut self) {
        self.changes.state.send_replace(HandoverState::Done);
        // Never given back.
        #[expect(clippy::mem_forget, reason = "the process exits")]
        std::mem::forget(self.guard.take());
    }
}

impl Drop for HandoverGuard<'_> {
    fn drop(&mut self) {
        self.guard = None;
        self.changes.state.send_if_modified(|state| {
            let failed = *state == HandoverState::UnderWay;
            if failed {
                *state = HandoverState::None;
            }
            failed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn run<F: Future>(work: F) -> F::Output {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap().block_on(work)
    }

    fn io() -> Failure {
        Failure::new(ErrorKind::Io, "ended by a suspend")
    }

    /// Both at once; the first one is polled first.
    async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
        tokio::join!(biased; a, b)
    }

    #[test]
    fn a_verb_that_waits_is_for_the_successor() {
        run(async {
            let changes = Changes::default();
            let verb = changes.waiting(std::future::pending::<Result<(), Failure>>);
            let upgrade = async { changes.hand_over(SOON).await.unwrap().done() };
            let (verb, ()) = both(verb, upgrade).await;
            assert!(verb.unwrap_err().is_handed_over());
            // And one that comes after it.
            let late = changes.waiting(async || Ok(())).await;
            assert!(late.unwrap_err().is_handed_over());
            assert!(changes.begin().is_err());
        });
    }

    #[test]
    fn a_verb_is_done_again_when_a_failed_hand_over_ended_it() {
        run(async {
            let (changes, held, begun) = (Changes::default(), Notify::new(), Cell::new(0));
            let verb = changes.waiting(async || {
                begun.set(begun.get() + 1);
                if begun.get() == 1 {
                    held.notified().await;
                    return Err(io());
                }
                Ok(begun.get())
            });
            let upgrade = async {
                let guard = changes.hand_over(SOON).await.unwrap();
                held.notify_one();
                drop(guard);
            };
            assert_eq!(both(verb, upgrade).await.0, Ok(2));
        });
    }

    #[test]
    fn an_error_of_its_own_is_the_answer() {
        run(async {
            let changes = Changes::default();
            let begun = Cell::new(0);
            let failed = changes.waiting(async || {
                begun.set(begun.get() + 1);
                Err::<(), _>(io())
            });
            assert_eq!((failed.await, begun.get()), (Err(io()), 1));
        });
    }

    #[test]
    fn a_verb_that_goes_on_after_a_failed_hand_over_is_not_repeated() {
        run(async {
            let (changes, held, begun) = (Changes::default(), Notify::new(), Cell::new(0));
            let verb = changes.waiting(async || {
                begun.set(begun.get() + 1);
                held.notified().await;
                Ok(begun.get())
            });
            let upgrade = async {
                drop(changes.hand_over(SOON).await.unwrap());
                held.notify_one();
            };
            assert_eq!(both(verb, upgrade).await.0, Ok(1));
        });
    }

    #[test]
    fn a_verb_that_changes_something_is_waited_for() {
        run(async {
            let changes = Changes::default();
            let change = changes.begin().unwrap();
            let late = changes.hand_over(Duration::from_millis(5)).await.unwrap_err();
            assert!(late.message.contains("does not end in time"), "{late}");
            drop(change);
            let guard = changes.hand_over(SOON).await.unwrap();
            let refused = changes.begin().unwrap_err().to_string();
            assert!(refused.contains("an upgrade is under way"), "{refused}");
            assert!(changes.hand_over(SOON).await.unwrap_err().message.contains("another"));
            drop(guard);
            drop(changes.begin().unwrap());
        });
    }
}
