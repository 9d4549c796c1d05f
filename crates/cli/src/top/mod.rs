// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond top`: devices and clients with their rates, again and again.
//!
//! ```text
//!   the API ──▶ Sample ─┐
//!                       ├─▶ View: rates between two samples ─┬▶ screen
//!   the API ──▶ Sample ─┘     ▲ keys: sort, pause, interval  └▶ text (`--once`)
//! ```
//!
//! Invariants
//! - CL-T1 The terminal is restored however the loop ends: by a key, a signal or an error.
mod sample;
mod screen;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::time::Duration;

use block::ErrorKind;
use clap::Args;
use control::Failure;
use host::{io_failure, print};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::client::Client;
use sample::Sample;
use terminal::{Key, Terminal, keys};
use view::{Sort, View};

/// Watch devices and clients: rates, latency, what is dirty, drains
///
/// Rates are those of NBD clients. A device with `queue/iostats` set to 1 counts all requests, and
/// has a mean latency, too. Write caches have a table of their own: the shares of reads and writes
/// that they had, blocks that were read and did not enter (once only, sequential, budget of a day),
/// and bytes written to the cache device (data, admitted reads, metadata). Keys: q quits, s sorts
/// by the next column, r reverses, p pauses, + and - change the interval, the arrows move.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond top
  millpond top --interval 5s --sort write
  millpond top --once")]
pub struct TopArgs {
    /// Time between two samples: 500ms, 2s; 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Sort by this column
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Sort::Name)]
    sort: Sort,
    /// Print one frame as text and end: the rates of one interval
    #[arg(long)]
    once: bool,
}

/// Shortest and longest interval.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

fn interval(text: &str) -> Result<Duration, String> {
    let time = host::parse_time(text).ok().map(|t| Duration::from_nanos(t.0));
    let (least, most) = INTERVALS;
    time.filter(|time| (least..=most).contains(time))
        .ok_or_else(|| "100ms to 60s is allowed, a number with ms, s or m".to_owned())
}

/// Runs the verb.
pub(crate) async fn run(client: &Client, a: &TopArgs) -> Result<(), Failure> {
    if a.once {
        let before = Sample::take(client).await?;
        tokio::time::sleep(a.interval).await;
        let view = View::new(a.sort, a.interval).updated(before);
        return print(&view.updated(Sample::take(client).await?).text());
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let text =
            "standard input and output must be a terminal; `--once` prints one frame as text";
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    // A daemon that does not answer is reported before the screen is taken.
    let first = Sample::take(client).await?;
    watch(client, View::new(a.sort, a.interval).updated(first)).await
}

/// Shows samples until a key or a signal ends it.
async fn watch(client: &Client, mut view: View) -> Result<(), Failure> {
    // Before the screen is taken, so that none of them ends the process with it.
    let mut ends = Signals::new()?;
    let mut resized = handler(SignalKind::window_change())?;
    let terminal = Terminal::take()?;
    let mut keys = keys();
    let mut next = Instant::now() + view.interval();
    loop {
        let (rows, columns) = Terminal::size();
        terminal.write(&screen::frame(&view, rows, columns))?;
        tokio::select! {
            () = sleep_until(next) => {
                next = Instant::now() + view.interval();
                if !view.is_paused() {
                    view = view.updated(Sample::take(client).await?);
                }
            }
            key = keys.recv() => match key {
                Some(Key::Char('q') | Key::Escape) => return Ok(()),
                Some(key) => {
                    view.press(key);
                    next = next.min(Instant::now() + view.interval());
                }
                None => return Err(Failure::new(ErrorKind::Io, "the terminal sends no more keys")),
            },
            _ = resized.recv() => {}
            () = ends.any() => return Ok(()),
        }
    }
}

fn handler(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|e| io_failure(&e, "signals"))
}

/// The signals that end it.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        Ok(Signals {
            terminate: handler(SignalKind::terminate())?,
            interrupt: handler(SignalKind::interrupt())?,
            hangup: handler(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_bounds_and_units() {
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "2", "99ms", "61s", "often", ""] {
            assert!(interval(wrong).unwrap_err().contains("100ms to 60s"), "{wrong}");
        }
    }
}
