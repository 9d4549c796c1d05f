// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Progress of a long message on standard error: a bar on a terminal, a line a second elsewhere.
use std::io::IsTerminal;
use std::time::Duration;

use control::{api, attr, paths};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::client::Client;

/// Shorter messages show nothing: who waits less than this does not wonder.
pub(crate) const QUIET: Duration = Duration::from_secs(2);
/// How often it is shown after that.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// What is shown of a running flush.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn new(name: &str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{prefix} {wide_bar} {msg}")
                .expect("a constant template");
            ProgressBar::new(0).with_style(style).with_prefix(format!("flushing {name}"))
        });
        Progress { name: name.into(), began: Instant::now(), bar }
    }

    /// Asks the daemon how far it is and shows it; nothing while it does not say.
    pub(crate) async fn show(&self, client: &Client) {
        let (Some(done), Some(total)) = (
            self.ask(client, attr::FLUSH_DONE_BLOCKS).await,
            self.ask(client, attr::FLUSH_TOTAL_BLOCKS).await,
        ) else {
            return;
        };
        if total == 0 {
            return;
        }
        let text = line(done, total, self.began.elapsed());
        match &self.bar {
            Some(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(text);
            }
            None => eprintln!("millpond: flushing {}: {text}", self.name),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    async fn ask(&self, client: &Client, attr: &str) -> Option<u64> {
        let answer = client.get::<api::Attribute>(&paths::attribute(&self.name, attr)).await;
        answer.ok()?.value.trim().parse().ok()
    }
}

/// Blocks done of total, rate since the beginning, time left at that rate.
fn line(done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = if rate > 0.0 {
        format!("{:.0} s left", total.saturating_sub(done) as f64 / rate)
    } else {
        "time left unknown".into()
    };
    let percent = 100 * done.min(total) / total.max(1);
    format!("{done} of {total} blocks ({percent} %), {rate:.0} blocks/s, {left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_done_total_rate_and_time_left() {
        assert_eq!(
            line(500, 2000, Duration::from_secs(5)),
            "500 of 2000 blocks (25 %), 100 blocks/s, 15 s left"
        );
        assert_eq!(
            line(0, 2000, Duration::from_secs(5)),
            "0 of 2000 blocks (0 %), 0 blocks/s, time left unknown"
        );
    }
}
