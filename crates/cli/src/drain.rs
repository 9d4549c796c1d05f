// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `millpond drain`: writes the dirty blocks of a write cache to its origin, within a time or as
//! fast as limits allow, and shows the progress. A signal stops it; the device keeps working.
use std::time::Duration;

use block::{ErrorKind, Nanos};
use clap::Args;
use control::{Failure, api, attr, parse_size, paths};
use host::{Format, Listing, parse_time, print};
use serde_json::json;
use tokio::time::Instant;

use crate::client::{AGAIN, Client};
use crate::progress::{LongOp, show_while};

/// Write everything of a write cache back, gently
///
/// Covers the blocks that are dirty when it begins; reads and writes continue, and blocks written
/// meanwhile are cached as usual. Without limits it is as fast as the origin. With --within it
/// takes about all of that time, whatever is dirty: it writes no faster than it must, so that
/// clients feel it least. Ctrl-C stops it: nothing is lost, and it can be started again. Clean
/// copies stay in the cache: to use the origin without it, send the message `flush` afterwards,
/// which has little left to do.
///
/// The progress is shown after 2 seconds; where standard error is no terminal, as a line at each
/// 5 % or after 10 seconds. The time left is that at the rate of the last 10 seconds.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  millpond drain wc
  millpond drain wc --within 10m
  millpond drain wc --p99 5ms
  millpond drain wc --rate 50M -o json

Exit codes: 0 all is on the origin; 1 stopped, not done in time, or blocks are failing: it shows how
many are left; 2 usage; 3 there is no such device; 4 a drain of it is running.")]
pub struct DrainArgs {
    /// The device
    pub(crate) name: String,
    /// Take this time, at no higher rate than needed; fail if it is too short: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    within: Option<Nanos>,
    /// Slow down so that 99 of 100 requests of clients take no longer: 800us, 5ms
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    p99: Option<Nanos>,
    /// Write at most so many bytes a second: 50M
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<u64>,
    #[command(flatten)]
    listing: Listing,
}

/// Nanoseconds in a second.
const NS: u128 = 1_000_000_000;

fn rate(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    if bytes == 0 { Err("a positive number of bytes is allowed".into()) } else { Ok(bytes) }
}

impl DrainArgs {
    /// The words of the attribute `drain`, so long after it was asked for.
    fn words(&self, elapsed: Duration) -> String {
        let within = self.within.map(|time| Duration::from_nanos(time.0).saturating_sub(elapsed));
        let within = within.map(|left| format!("within={}", left.as_nanos().div_ceil(NS).max(1)));
        let p99 = self.p99.map(|t| format!("p99={}", t.0.div_ceil(1000)));
        let rate = self.rate.map(|r| format!("rate={r}"));
        [within, p99, rate].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

/// Runs the verb.
pub(crate) async fn drain(client: &Client, a: &DrainArgs) -> Result<(), Failure> {
    let began = Instant::now();
    let drained = async {
        loop {
            let value = a.words(began.elapsed());
            match set(client, &a.name, value).await {
                // It ended there: what is left is drained at the successor.
                Err(failure) if failure.is_handed_over() => tokio::time::sleep(AGAIN).await,
                drained => return drained,
            }
        }
    };
    stoppable(client, &a.name, drained).await?;
    if a.listing.format == Format::Json {
        let seconds = began.elapsed().as_secs_f64();
        print(&format!("{}\n", json!({ "device": a.name, "drained": true, "seconds": seconds })))?;
    }
    Ok(())
}

/// Shows the progress of a drain of `name` until the request that began it is answered. A signal
/// stops the drain: the answer is then its failure.
pub(crate) async fn stoppable<T>(
    client: &Client,
    name: &str,
    answer: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let answer = async {
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                signal = tokio::signal::ctrl_c() => {
                    signal.map_err(|e| Failure::new(ErrorKind::Io, format!("signals: {e}")))?;
                    // Fails if no drain is running. The answer to the request is what counts.
                    let _ = set(client, name, "stop".into()).await;
                }
            }
        }
    };
    show_while(client, LongOp::Drain, name, answer).await
}

async fn set(client: &Client, name: &str, value: String) -> Result<api::Attribute, Failure> {
    let body = api::Attribute { value: api::Value::Text(value) };
    client.put_once(&paths::attribute(name, attr::DRAIN), &body).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        drain: DrainArgs,
    }

    fn words(line: &str) -> Result<String, String> {
        let words = std::iter::once("drain").chain(line.split_ascii_whitespace());
        Line::try_parse_from(words)
            .map(|l| l.drain.words(Duration::ZERO))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn limits_become_the_words_of_the_attribute() {
        assert_eq!(words("wc"), Ok(String::new()));
        let all = "wc --within 10m --p99 5ms --rate 50M";
        assert_eq!(words(all), Ok("within=600 p99=5000 rate=52428800".to_owned()));
        // Half a second is no time in which it would be done at no speed.
        assert_eq!(words("wc --within 500ms"), Ok("within=1".to_owned()));
        // After an upgrade what is left of the time counts.
        let line = Line::try_parse_from(["drain", "wc", "--within", "10m"]).unwrap();
        assert_eq!(line.drain.words(Duration::from_secs(90)), "within=510");
        assert_eq!(line.drain.words(Duration::from_secs(900)), "within=1");
        for bad in ["wc --within soon", "wc --p99 -1", "wc --rate 0", ""] {
            assert!(words(bad).is_err(), "`{bad}`");
        }
    }
}
