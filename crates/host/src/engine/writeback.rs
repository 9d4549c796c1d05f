// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs that wait until caches have written back what they hold. A device below that is out of
//! reach, as a store may be, does not keep them waiting for ever: they fail, say why, and the
//! device goes on as before, its dirty blocks with it.
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use block::Nanos;
use control::{Failure, api};
use reactor::{now, sleep};

use super::Engine;
use crate::log::long_work;

/// Writeback stops when nothing was written for so long because a device below is out of reach.
/// Chosen: a store that is restarted is waited for, and less than a client of the verb takes.
const PATIENCE: Nanos = Nanos::from_secs(30);
const LOOK_INTERVAL: Nanos = Nanos::from_millis(500);
/// What was written back so far.
const WRITTEN: &str = "written_back_bytes";

impl Engine {
    /// Writes back what the device's caches hold, and flushes it.
    ///
    /// It goes on when its client disconnects: another one may wait for the same writeback.
    pub(crate) async fn flush(&self, name: &str) -> Result<api::Empty, Failure> {
        let flushed = async { Ok(self.dm.flush(name).await?) };
        long_work(name, "flush", self.while_written_back(name, &|| true, flushed)).await?;
        Ok(api::Empty {})
    }

    /// Writes back what the caches of a device hold that is to be removed. As [`Engine::flush`].
    pub(super) async fn write_back_unused(&self, name: &str) -> Result<(), Failure> {
        let written = async { Ok(self.dm.write_back_unused(name).await?) };
        let written = self.while_written_back(name, &|| true, written);
        long_work(name, "writeback before the removal", written).await
    }

    /// Does `work`, which waits until blocks are written back. It stops writeback when a device
    /// below keeps it from writing any for a while, and a drain when nobody wants the outcome any
    /// more: `work` then fails, and the device goes on as before.
    pub(super) async fn while_written_back<T>(
        &self,
        name: &str,
        is_wanted: &dyn Fn() -> bool,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let why = RefCell::new(None);
        let (mut work, mut watch) = (pin!(work), pin!(self.stop_when_stuck(name, is_wanted, &why)));
        let outcome = poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => watch.as_mut().poll(cx).map(|never| match never {}),
        });
        let outcome = outcome.await;
        outcome.map_err(|failure| match why.take() {
            Some(why) => Failure { message: format!("{}: {why}", failure.message), ..failure },
            None => failure,
        })
    }

    /// Stops writeback again and again once `why` is known.
    async fn stop_when_stuck(
        &self,
        name: &str,
        is_wanted: &dyn Fn() -> bool,
        why: &RefCell<Option<String>>,
    ) -> Infallible {
        let (mut written, mut moved_at) = (None, now());
        loop {
            sleep(LOOK_INTERVAL).await;
            let written_now = self.dm.sum_of(name, WRITTEN).await;
            let problem = self.problem_below(name);
            if written_now != written || problem.is_none() {
                (written, moved_at) = (written_now, now());
            }
            if !is_wanted() {
                *why.borrow_mut() = Some("the client that asked for it has disconnected".into());
            } else if now() >= moved_at + PATIENCE {
                *why.borrow_mut() = problem;
            }
            if why.borrow().is_some() {
                // A client that has gone ends its own drain. A device below that is out of reach
                // keeps all from their end.
                let stop = if is_wanted() { "stop flush" } else { "stop" };
                self.dm.stop_writeback(name, stop).await;
            }
        }
    }

    /// What keeps a device below from its work.
    fn problem_below(&self, name: &str) -> Option<String> {
        let below = self.dm.deps(name).unwrap_or_default();
        below.iter().find_map(|below| {
            let device = self.device(&below.name).ok()?;
            let problem = device.problems.first().map(|why| format!("{}: {why}", below.name));
            problem.or_else(|| self.problem_below(&below.name))
        })
    }
}
