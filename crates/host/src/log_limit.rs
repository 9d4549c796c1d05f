// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit of the log: of one kind of event and one device ten lines a second, then one line that
//! sums up the rest. A kind is the place in the program that logs it.
//!
//! Events for debugging have no limit: they are asked for by `MILLPOND_LOG`.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::event_ring::EventText;

/// The target of events that have a limit of their own, and of summaries.
pub(crate) const UNLIMITED: &str = "unlimited";

const LINES_MAX: u64 = 10;
const WINDOW: Duration = Duration::from_secs(1);
/// Kinds and devices in one second that are counted apart; the rest is one kind.
const KINDS_MAX: usize = 256;

/// Drops events beyond the limit.
#[derive(Default)]
pub(crate) struct LogLimit(Arc<Mutex<Windows>>);

/// What was logged in this second, by kind and device.
#[derive(Debug, Default)]
struct Windows {
    by_kind: BTreeMap<(&'static str, String), Window>,
    /// A thread ends them when their second is over.
    is_ending: bool,
}

#[derive(Debug)]
struct Window {
    level: Level,
    lines: u64,
    /// Events beyond those.
    more: u64,
    /// The message of the last.
    last: String,
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == UNLIMITED || *metadata.level() > Level::INFO {
            return true;
        }
        let mut text = EventText::default();
        event.record(&mut text);
        let mut windows = lock(&self.0);
        let is_line =
            windows.is_line((metadata.name(), text.device), *metadata.level(), text.message);
        if !std::mem::replace(&mut windows.is_ending, true) {
            drop(windows);
            let windows = self.0.clone();
            let thread = std::thread::Builder::new().name("log-limit".into());
            if thread.spawn(move || end_after_window(&windows)).is_err() {
                lock(&self.0).is_ending = false;
            }
        }
        is_line
    }
}

fn lock(windows: &Mutex<Windows>) -> MutexGuard<'_, Windows> {
    windows.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own, which has nothing else to do")]
fn end_after_window(windows: &Mutex<Windows>) {
    std::thread::sleep(WINDOW);
    let summaries = lock(windows).end();
    for (level, text) in summaries {
        match level {
            Level::ERROR => tracing::error!(target: UNLIMITED, "{text}"),
            Level::WARN => tracing::warn!(target: UNLIMITED, "{text}"),
            _ => tracing::info!(target: UNLIMITED, "{text}"),
        }
    }
}

impl Windows {
    /// Counts an event; returns whether it gets a line of its own.
    fn is_line(&mut self, kind: (&'static str, String), level: Level, message: String) -> bool {
        let is_full = self.by_kind.len() >= KINDS_MAX && !self.by_kind.contains_key(&kind);
        let kind = if is_full { ("other events", String::new()) } else { kind };
        let new = || Window { level, lines: 0, more: 0, last: String::new() };
        let window = self.by_kind.entry(kind).or_insert_with(new);
        if window.lines < LINES_MAX {
            window.lines += 1;
            return true;
        }
        window.more += 1;
        window.level = window.level.min(level);
        window.last = message;
        false
    }

    /// Ends all windows; returns a line for each that has dropped events.
    fn end(&mut self) -> Vec<(Level, String)> {
        self.is_ending = false;
        let windows = std::mem::take(&mut self.by_kind).into_iter();
        let dropped = windows.filter(|(_, window)| window.more > 0);
        dropped
            .map(|((_, device), Window { level, more, last, .. })| {
                let of = if device.is_empty() { String::new() } else { format!(" of {device}") };
                (level, format!("{more} more events{of} in this second, the last: {last}"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_events_of_a_kind_and_device_get_lines_and_the_rest_one() {
        let mut windows = Windows::default();
        let mut log = |kind, device: &str, nth: u32| {
            windows.is_line((kind, device.to_owned()), Level::WARN, format!("message {nth}"))
        };
        let lines = (0..25).filter(|nth| log("connected", "a", *nth)).count();
        assert_eq!(lines, 10);
        assert!(log("connected", "b", 0) && log("failed", "a", 0));
        let text = "15 more events of a in this second, the last: message 24".to_owned();
        assert_eq!(windows.end(), [(Level::WARN, text)]);
        assert!(windows.is_line(("connected", "a".into()), Level::WARN, String::new()));
        assert_eq!(windows.end(), []);
    }

    #[test]
    fn any_number_of_devices_takes_bounded_memory_and_lines() {
        let mut windows = Windows::default();
        let kind = |nth: u32| ("connected", nth.to_string());
        let lines =
            (0..10_000).filter(|nth| windows.is_line(kind(*nth), Level::INFO, String::new()));
        assert_eq!(lines.count(), KINDS_MAX + 10);
        assert_eq!(windows.by_kind.len(), KINDS_MAX + 1);
        assert_eq!(windows.end().len(), 1);
    }
}
