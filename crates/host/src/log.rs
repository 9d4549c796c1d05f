// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log: one line an event, with key=value, on standard error (`log_queue`). `MILLPOND_LOG` sets the
//! level. Events
//! of one kind get ten lines a second and a summary (`log_limit`); for blocks of a device the
//! summary has the sectors, here.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use block::{Nanos, Sector};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;

use crate::event_ring::EventRing;
use crate::log_limit::{LogLimit, UNLIMITED};
use crate::log_queue::{self, QueueWriter};

/// Lines of one kind and device in one [`WINDOW`]; the others are summed up in one more line.
const LINES_MAX: u64 = 10;
const WINDOW: Nanos = Nanos::from_secs(1);
/// Runs of sectors that are remembered of a window, and those that the summary shows.
const RUNS_MAX: usize = 4096;
const RUNS_SHOWN: usize = 16;

/// Starts logging at `default` and above, or at the level of `MILLPOND_LOG`.
pub fn start(default: Level) {
    let asked = std::env::var("MILLPOND_LOG").ok();
    let known = asked.as_ref().and_then(|level| level.parse().ok());
    let level = known.unwrap_or(default);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(QueueWriter)
        .with_ansi(false)
        .with_target(false);
    let subscriber = tracing_subscriber::registry()
        .with(lines)
        .with(EventRing)
        .with(LogLimit::default())
        .with(LevelFilter::from_level(level));
    log_queue::start();
    // Fails only when it was started before; then the first stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    if let (Some(asked), None) = (asked, known) {
        let allowed = "error, warn, info, debug or trace is allowed";
        tracing::warn!("MILLPOND_LOG `{asked}`: {allowed}; it is {default}");
    }
}

/// Logs the begin and the end of work that may take long.
pub(crate) async fn long_work<T, E: fmt::Display>(
    device: &str,
    what: &str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let began = reactor::now();
    tracing::info!(device, "{what} begins");
    let ended = work.await;
    let seconds = seconds_since(began);
    match &ended {
        Ok(_) => tracing::info!(device, seconds, "{what} has ended"),
        Err(error) => tracing::warn!(device, seconds, %error, "{what} has failed"),
    }
    ended
}

/// The time since `began` in seconds, as lines of the log have it.
pub(crate) fn seconds_since(began: Nanos) -> String {
    format!("{:.1}", Nanos(reactor::now().0 - began.0).as_secs_f64())
}

/// Logs what happens to the blocks of one device.
pub(crate) struct BlockLog {
    device: String,
    block_sectors: u64,
    windows: RefCell<BTreeMap<&'static str, Window>>,
}

/// What happened since the first line of the second.
#[derive(Debug, Default)]
struct Window {
    lines: u64,
    /// Events beyond those.
    more: u64,
    /// First sectors and ends of their blocks, apart.
    runs: BTreeMap<u64, u64>,
    /// Events of which only the number is known.
    unplaced: u64,
}

impl BlockLog {
    pub(crate) fn new(device: &str, block_bytes: u32) -> BlockLog {
        let block_sectors = Sector::from_bytes(block_bytes.into()).0;
        BlockLog { device: device.to_owned(), block_sectors, windows: RefCell::default() }
    }

    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Logs an error about the block at `sector`; `kind` is its kind, in the plural.
    pub(crate) fn error(
        self: &Rc<Self>,
        kind: &'static str,
        sector: Sector,
        line: &dyn fmt::Display,
    ) {
        let mut windows = self.windows.borrow_mut();
        if !windows.contains_key(kind) {
            let log = self.clone();
            reactor::spawn(async move {
                reactor::sleep(WINDOW).await;
                log.sum_up(kind);
            });
        }
        if windows.entry(kind).or_default().is_line(sector.0, self.block_sectors) {
            tracing::error!(target: UNLIMITED, device = self.device, "{line}");
        }
    }

    /// The end of a window: the next event begins another.
    fn sum_up(&self, kind: &'static str) {
        let window = self.windows.borrow_mut().remove(kind);
        if let Some(text) = window.and_then(|window| window.summary(kind)) {
            tracing::error!(target: UNLIMITED, device = self.device, "{text}");
        }
    }
}

impl Window {
    /// Counts an event; returns whether it gets a line of its own.
    fn is_line(&mut self, sector: u64, len: u64) -> bool {
        if self.lines < LINES_MAX {
            self.lines += 1;
            return true;
        }
        self.more += 1;
        let (mut start, mut end) = (sector, sector.saturating_add(len));
        // It is joined with the runs that it meets or overlaps.
        while let Some((&s, &e)) = self.runs.range(..=end).next_back().filter(|(_, e)| **e >= start)
        {
            self.runs.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        if self.runs.len() < RUNS_MAX {
            self.runs.insert(start, end);
        } else {
            self.unplaced += 1;
        }
        false
    }

    fn summary(&self, kind: &str) -> Option<String> {
        if self.more == 0 {
            return None;
        }
        let runs = self.runs.iter().take(RUNS_SHOWN);
        let shown: Vec<String> = runs.map(|(start, end)| format!("{start}-{}", end - 1)).collect();
        let left_out = self.runs.len() - shown.len();
        let mut text = format!("{} {kind} more: sectors {}", self.more, shown.join(", "));
        if left_out > 0 || self.unplaced > 0 {
            text.push_str(&format!(", and {left_out} runs and {} blocks elsewhere", self.unplaced));
        }
        Some(text)
    }
}

block::debug_as!(BlockLog, s => "BlockLog({})", s.device);

#[cfg(test)]
mod tests {
    use super::*;

    /// Tried as a new user would: a dead cache device wrote one line of 390 bytes for each 4 KiB
    /// block, 100 GB for a dirty cache of 1 TB.
    #[test]
    fn ten_of_many_blocks_get_a_line_and_the_rest_a_summary() {
        let mut window = Window::default();
        let lines = (0..2048u64).filter(|nth| window.is_line(nth * 8, 8)).count();
        assert_eq!(lines, 10);
        let text = window.summary("bad blocks").unwrap();
        assert_eq!(text, "2038 bad blocks more: sectors 80-16383");
    }

    #[test]
    fn a_summary_is_short_wherever_the_blocks_lie() {
        let mut window = Window::default();
        // Every other block, from the end to the beginning; some of them twice.
        for nth in (0..10_000u64).rev() {
            window.is_line(nth * 16, 8);
            window.is_line(nth * 16, 8);
        }
        assert_eq!(window.runs.len(), RUNS_MAX);
        let text = window.summary("bad blocks").unwrap();
        assert!(text.starts_with("19990 bad blocks more: sectors "), "{text}");
        assert!(text.ends_with("and 4080 runs and 11798 blocks elsewhere"), "{text}");
        assert!(text.len() < 500, "{text}");
    }

    #[test]
    fn a_few_events_have_no_summary() {
        let mut window = Window::default();
        assert!((0..10).all(|nth| window.is_line(nth, 1)));
        assert_eq!(window.summary("bad blocks"), None);
    }
}
