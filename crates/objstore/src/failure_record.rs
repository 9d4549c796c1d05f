// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `FailureRecord`: why the requests to a store have no outcome at the moment. They are repeated
//! without an end, so somebody must say why nothing moves.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// One line in the log in this time, of one store.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    last: Option<String>,
    /// When the last line was logged.
    logged: Option<Instant>,
    /// A line was logged since a request last succeeded.
    is_logged: bool,
}

/// The last failure of a store, until a request has succeeded. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureRecord(Arc<Mutex<State>>);

impl FailureRecord {
    /// A request failed for a reason that repeating it may change.
    pub(crate) fn begin(&self, store: &str, request: &str, why: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.logged.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            tracing::warn!(store, request, why, "a request failed; it is repeated");
            state.logged = Some(now);
            state.is_logged = true;
        }
        state.last = Some(format!("{request}: {why}"));
    }

    /// The store has decided about a request.
    pub(crate) fn end(&self, store: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.take().is_some() && std::mem::take(&mut state.is_logged) {
            tracing::info!(store, "the store answers again");
        }
    }

    /// The failure, if the last request failed.
    pub(crate) fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last.clone()
    }
}
