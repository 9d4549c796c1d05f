// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The last events of the log, kept in memory for the page of `--metrics`.
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use control::plain;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Events that are kept, and the bytes of each.
const EVENTS_MAX: usize = 50;
const TEXT_BYTES_MAX: usize = 400;

static LAST: Mutex<VecDeque<LoggedEvent>> = Mutex::new(VecDeque::new());

/// An event of the log.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoggedEvent {
    /// Milliseconds since 1970.
    time_ms: u64,
    level: &'static str,
    text: String,
}

/// The last events, oldest first.
pub(crate) fn last_events() -> Vec<LoggedEvent> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
}

/// Keeps the events that are logged, except those for debugging.
pub(crate) struct EventRing;

impl<S: Subscriber> Layer<S> for EventRing {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let mut text = EventText::default();
        event.record(&mut text);
        push(level.as_str(), &format!("{}{}", text.message, text.fields));
    }
}

#[expect(clippy::disallowed_methods, reason = "the time of day, for people")]
fn push(level: &'static str, text: &str) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let event = LoggedEvent { time_ms, level, text: plain(&text[..end]).to_string() };
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.len() == EVENTS_MAX {
        last.pop_front();
    }
    last.push_back(event);
}

/// The message of an event, and its other fields.
#[derive(Default)]
pub(crate) struct EventText {
    pub(crate) message: String,
    pub(crate) fields: String,
    /// The field of this name.
    pub(crate) device: String,
}

impl Visit for EventText {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "device" {
            value.clone_into(&mut self.device);
        }
        let _ = write!(self.fields, " {}={value}", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// One test, as there is one ring.
    #[test]
    fn the_last_events_are_kept_shortened_and_without_debugging() {
        let subscriber = tracing_subscriber::registry().with(EventRing);
        tracing::subscriber::with_default(subscriber, || {
            for nth in 0..EVENTS_MAX + 7 {
                tracing::info!(device = "d", nth, "made");
            }
            tracing::debug!("not kept");
            tracing::error!("{}", "ü".repeat(TEXT_BYTES_MAX));
        });
        let events = last_events();
        assert_eq!(events.len(), EVENTS_MAX);
        let [.., before, last] = events.as_slice() else { unreachable!() };
        assert_eq!((before.level, before.text.as_str()), ("INFO", "made device=d nth=56"));
        assert_eq!((last.level, last.text.len()), ("ERROR", TEXT_BYTES_MAX));
    }
}
