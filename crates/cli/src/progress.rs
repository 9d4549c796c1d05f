// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of a long command on standard error: a bar on a terminal, a line a second elsewhere.
use std::io::IsTerminal;
use std::time::Duration;

use block::attr::Spec;
use control::{api, attr, paths, plain};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::client::Client;

/// Shorter commands show no progress.
pub(crate) const QUIET: Duration = Duration::from_secs(2);
/// How often it is shown after that.
const EVERY: Duration = Duration::from_secs(1);

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
pub(crate) struct Progress {
    what: LongOp,
    name: String,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(what: LongOp, name: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
                .expect("a constant template");
            ProgressBar::new(0).with_style(style).with_prefix(format!(
                "{} {}",
                what.label(),
                plain(name)
            ))
        });
        Progress { what, name: name.into(), began: Instant::now(), bar }
    }

    /// Asks the daemon for the progress and shows it, if there is any.
    pub(crate) async fn show(&self, client: &Client) {
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
        let text = line(done, total, self.what.unit(), self.began.elapsed());
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(text);
            }
            None => eprintln!("millpond: {} {}: {text}", self.what.label(), plain(&self.name)),
        }
    }

    pub(crate) fn finish(&self) {
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

/// Done of total, rate since the beginning, time left at that rate.
pub(crate) fn line(done: u64, total: u64, unit: &str, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = if rate > 0.0 {
        format!("{:.0} s left", total.saturating_sub(done) as f64 / rate)
    } else {
        "time left unknown".into()
    };
    let percent = 100 * done.min(total) / total.max(1);
    format!("{done} of {total} {unit} ({percent} %), {rate:.0} {unit}/s, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_done_total_rate_and_time_left() {
        assert_eq!(
            line(500, 2000, "blocks", Duration::from_secs(5)),
            "500 of 2000 blocks (25 %), 100 blocks/s, 15 s left"
        );
        assert_eq!(
            line(0, 2000, "pages", Duration::from_secs(5)),
            "0 of 2000 pages (0 %), 0 pages/s, time left unknown"
        );
        assert_eq!(done_and_total(Some("5 9\n".into())), (Some(5), Some(9)));
        assert_eq!(done_and_total(Some("5".into())), (Some(5), None));
        assert_eq!(done_and_total(None), (None, None));
        let running = "running done=5 total=9 failing=0 blocks_per_s=3 seconds_left=1";
        assert_eq!(named_fields(Some(running.into())), (Some(5), Some(9)));
        assert_eq!(named_fields(Some("idle".into())), (None, None));
    }
}
