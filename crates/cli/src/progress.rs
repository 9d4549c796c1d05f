// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of a long command on standard error: a bar on a terminal; elsewhere a line at each 5 %,
//! or after 10 seconds.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use block::Nanos;
use block::attr::Spec;
use control::{api, attr, paths, plain};
use host::print_error;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::client::Client;

/// Shorter commands show no progress.
pub(crate) const QUIET: Duration = Duration::from_secs(2);
/// How often a bar is drawn, and a line may be printed, after that.
const EVERY: Duration = Duration::from_secs(1);
/// Rate and time left are those of this last time.
const WINDOW: Duration = Duration::from_secs(10);
/// Samples of the window: one for each [`EVERY`], and the one before the window.
const SAMPLES_MAX: usize = 12;
/// Without a terminal a line is printed after so many percent, or so much time.
const LINE_PERCENT: u64 = 5;
const LINE_AFTER: Duration = Duration::from_secs(10);

/// Rate and time left of a command, and which of its lines are printed without a terminal. Times
/// are those since its start.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Times and what was done then, of the last [`WINDOW`] and one before it.
    samples: VecDeque<(Duration, u64)>,
    /// Time and percentage of the last line.
    printed: Option<(Duration, u64)>,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        Meter { samples: VecDeque::from([(Duration::ZERO, 0)]), printed: None }
    }

    /// Adds a sample.
    pub(crate) fn record(&mut self, elapsed: Duration, done: u64) {
        self.samples.push_back((elapsed, done));
        let from = elapsed.saturating_sub(WINDOW);
        while self.samples.get(1).is_some_and(|(at, _)| *at <= from)
            || self.samples.len() > SAMPLES_MAX
        {
            self.samples.pop_front();
        }
    }

    /// What was done a second.
    fn rate(&self) -> f64 {
        let ends = self.samples.front().zip(self.samples.back());
        let Some(((from, before), (to, after))) = ends else { return 0.0 };
        let seconds = to.saturating_sub(*from).as_secs_f64();
        if seconds > 0.0 { after.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    }

    /// Done of total, rate, time left at that rate.
    pub(crate) fn line(&self, total: u64, unit: &str) -> String {
        let (done, rate) = (self.done(), self.rate());
        let left = if rate > 0.0 {
            format!("{:.0} s left", total.saturating_sub(done) as f64 / rate)
        } else {
            "time left unknown".into()
        };
        format!("{done} of {total} {unit} ({} %), {rate:.0} {unit}/s, {left}", percent(done, total))
    }

    /// Whether a line is to be printed now where there is no terminal; counts it as printed.
    pub(crate) fn is_line_due(&mut self, total: u64) -> bool {
        let now = self.samples.back().map_or(Duration::ZERO, |(at, _)| *at);
        let percent = percent(self.done(), total);
        let due = self.printed.is_none_or(|(at, before)| {
            percent / LINE_PERCENT > before / LINE_PERCENT || now.saturating_sub(at) >= LINE_AFTER
        });
        if due {
            self.printed = Some((now, percent));
        }
        due
    }

    fn done(&self) -> u64 {
        self.samples.back().map_or(0, |(_, done)| *done)
    }
}

fn percent(done: u64, total: u64) -> u64 {
    u64::try_from(100 * u128::from(done.min(total)) / u128::from(total.max(1))).unwrap_or(100)
}

/// The progress of a tool that works on a core of its own, on standard error; dropped, its line
/// on a terminal goes away.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    verb: &'static str,
    unit: &'static str,
    began: Nanos,
    /// When the last sample was taken.
    sampled: Cell<Nanos>,
    meter: RefCell<Meter>,
    is_shown: Cell<bool>,
}

impl ProgressLine {
    /// The line of a tool that begins now.
    pub(crate) fn begin(verb: &'static str, unit: &'static str) -> ProgressLine {
        let (meter, began) = (Meter::new().into(), reactor::now());
        ProgressLine { verb, unit, began, sampled: began.into(), meter, is_shown: Cell::default() }
    }

    /// So much is done. Shows it when the tool has run for [`QUIET`], and again after [`EVERY`].
    pub(crate) fn show(&self, done: u64, total: u64) {
        let (now, since) = (reactor::now(), |from: Nanos| {
            Duration::from_nanos(reactor::now().saturating_sub(from).0)
        });
        if total == 0
            || since(self.began) < QUIET
            || self.is_shown.get() && since(self.sampled.get()) < EVERY
        {
            return;
        }
        self.sampled.set(now);
        let mut meter = self.meter.borrow_mut();
        meter.record(since(self.began), done);
        let line = meter.line(total, self.unit);
        self.is_shown.set(true);
        if stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[Kmillpond: {}: {line}", self.verb);
        } else if meter.is_line_due(total) {
            print_error(&format!("millpond: {}: {line}", self.verb));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.is_shown.get() && stderr().is_terminal() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// A command that may take long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LongOp {
    /// A write cache is flushed.
    Flush,
    /// A write cache is drained.
    Drain,
    /// A device does what was written to this attribute.
    Command(&'static Spec),
}

impl LongOp {
    fn label(self) -> &'static str {
        match self {
            LongOp::Flush => "flushing",
            LongOp::Drain => "draining",
            LongOp::Command(spec) => spec.name,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            LongOp::Flush | LongOp::Drain => "blocks",
            LongOp::Command(_) => "pages",
        }
    }
}

/// Progress of one command.
#[derive(Debug)]
struct Progress {
    what: LongOp,
    name: String,
    began: Instant,
    meter: RefCell<Meter>,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(what: LongOp, name: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
                .expect("a constant template");
            ProgressBar::new(0).with_style(style).with_prefix(format!(
                "{} {}",
                what.label(),
                plain(name)
            ))
        });
        Progress { what, name: name.into(), began: Instant::now(), meter: Meter::new().into(), bar }
    }

    /// Asks the daemon for the progress and shows it, if there is any.
    async fn show(&self, client: &Client) {
        let (done, total) = match self.what {
            LongOp::Flush => (
                self.number(client, attr::FLUSH_DONE_BLOCKS).await,
                self.number(client, attr::FLUSH_TOTAL_BLOCKS).await,
            ),
            LongOp::Drain => named_fields(self.text(client, attr::DRAIN_STATE).await),
            LongOp::Command(spec) => {
                let attribute = spec.progress.unwrap_or_default();
                done_and_total(self.text(client, attribute).await)
            }
        };
        let (Some(done), Some(total @ 1..)) = (done, total) else { return };
        let mut meter = self.meter.borrow_mut();
        meter.record(self.began.elapsed(), done);
        let text = meter.line(total, self.what.unit());
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(text);
            }
            None if meter.is_line_due(total) => {
                let (label, name) = (self.what.label(), plain(&self.name));
                print_error(&format!("millpond: {label} {name}: {text}"));
            }
            None => (),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    async fn number(&self, client: &Client, attr: &str) -> Option<u64> {
        self.text(client, attr).await?.trim().parse().ok()
    }

    async fn text(&self, client: &Client, attr: &str) -> Option<String> {
        let answer = client.get::<api::Attribute>(&paths::attribute(&self.name, attr)).await;
        Some(answer.ok()?.value.to_string())
    }
}

/// Waits for `answer`; shows the progress when that takes longer than [`QUIET`].
pub(crate) async fn show_while<T>(
    client: &Client,
    what: LongOp,
    name: &str,
    answer: impl Future<Output = T>,
) -> T {
    tokio::pin!(answer);
    let progress = Progress::new(what, name);
    let mut tick = interval_at(Instant::now() + QUIET, EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let answer = loop {
        tokio::select! {
            answer = &mut answer => break answer,
            _ = tick.tick() => progress.show(client).await,
        }
    };
    progress.finish();
    answer
}

/// `DONE TOTAL`.
fn done_and_total(text: Option<String>) -> (Option<u64>, Option<u64>) {
    let text = text.unwrap_or_default();
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok());
    (words.next().flatten(), words.next().flatten())
}

/// Of `running done=N total=N ...`.
fn named_fields(text: Option<String>) -> (Option<u64>, Option<u64>) {
    let text = text.unwrap_or_default();
    let field = |name: &str| {
        let mut words = text.split_ascii_whitespace();
        words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    (field("done"), field("total"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_line_shows_done_total_rate_and_time_left() {
        let mut meter = Meter::new();
        meter.record(seconds(5), 500);
        let line = meter.line(2000, "blocks");
        assert_eq!(line, "500 of 2000 blocks (25 %), 100 blocks/s, 15 s left");
        let mut meter = Meter::new();
        meter.record(seconds(5), 0);
        let line = meter.line(2000, "pages");
        assert_eq!(line, "0 of 2000 pages (0 %), 0 pages/s, time left unknown");
    }

    #[test]
    fn the_time_left_follows_the_last_ten_seconds() {
        let mut meter = Meter::new();
        // A minute at 1000 a second, then 100 a second.
        for second in 1..=60 {
            meter.record(seconds(second), 1000 * second);
        }
        assert!(meter.line(70_000, "blocks").ends_with("1000 blocks/s, 10 s left"));
        for second in 1..=10 {
            meter.record(seconds(60 + second), 60_000 + 100 * second);
        }
        assert!(meter.line(70_000, "blocks").ends_with("100 blocks/s, 90 s left"));
        for second in 1..=10 {
            meter.record(seconds(70 + second), 61_000);
        }
        assert!(meter.line(70_000, "blocks").ends_with("0 blocks/s, time left unknown"));
        assert!(meter.samples.len() <= SAMPLES_MAX);
    }

    /// The seconds of a command in which a line is printed without a terminal.
    fn lines(total: u64, done: impl Fn(u64) -> u64, last: u64) -> Vec<u64> {
        let mut meter = Meter::new();
        let due = |second: &u64| {
            meter.record(seconds(*second), done(*second));
            meter.is_line_due(total)
        };
        (2..=last).filter(due).collect()
    }

    #[test]
    fn lines_come_at_each_5_percent_or_after_10_seconds() {
        // 1 % a second: each fifth second.
        let fast = lines(100, |second| second, 30);
        assert_eq!(fast, [2, 5, 10, 15, 20, 25, 30]);
        // 588 seconds as the time that was given demands: 0.17 % a second.
        let slow = lines(588, |second| second, 588);
        assert_eq!(slow[..5], [2, 12, 22, 30, 40]);
        assert!(slow.len() < 80, "{} lines", slow.len());
        // Nothing is done: a line each 10 seconds all the same.
        assert_eq!(lines(100, |_| 0, 30), [2, 12, 22]);
    }

    #[test]
    fn the_texts_of_the_attributes_are_read() {
        assert_eq!(done_and_total(Some("5 9\n".into())), (Some(5), Some(9)));
        assert_eq!(done_and_total(Some("5".into())), (Some(5), None));
        assert_eq!(done_and_total(None), (None, None));
        let running = "running done=5 total=9 failing=0 blocks_per_s=3 seconds_left=1";
        assert_eq!(named_fields(Some(running.into())), (Some(5), Some(9)));
        assert_eq!(named_fields(Some("idle".into())), (None, None));
    }
}
