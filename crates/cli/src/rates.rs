// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rates: how much counters of clients and devices have grown in a second.
use std::collections::BTreeMap;
use std::iter::Sum;
use std::time::Duration;

use block::size_text;
use control::api;
use serde::Serialize;

/// What went through a device or a client in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) read: f64,
    pub(crate) written: f64,
    pub(crate) requests: f64,
}

impl Sum for Rates {
    fn sum<I: Iterator<Item = Rates>>(all: I) -> Rates {
        all.fold(Rates::default(), |a, b| Rates {
            read: a.read + b.read,
            written: a.written + b.written,
            requests: a.requests + b.requests,
        })
    }
}

/// The same in whole numbers, as `show` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ClientRates {
    read_bytes_per_second: u64,
    written_bytes_per_second: u64,
    requests_per_second: u64,
}

impl From<Rates> for ClientRates {
    fn from(rates: Rates) -> ClientRates {
        // They are no more than what memory can move: they fit.
        let whole = |rate: f64| rate.round() as u64;
        ClientRates {
            read_bytes_per_second: whole(rates.read),
            written_bytes_per_second: whole(rates.written),
            requests_per_second: whole(rates.requests),
        }
    }
}

impl ClientRates {
    /// `read 20.0 MiB/s, written 1.0 MiB/s, 5376 requests/s`.
    pub(crate) fn text(self) -> String {
        let (read, written) = (self.read_bytes_per_second, self.written_bytes_per_second);
        format!(
            "read {}/s, written {}/s, {} requests/s",
            size_text(read),
            size_text(written),
            self.requests_per_second
        )
    }
}

/// How much a counter has grown a second; a counter that shrank began again.
pub(crate) fn growth(before: u64, now: u64, time: Duration) -> f64 {
    let grown = if now >= before { now - before } else { now };
    grown as f64 / time.as_secs_f64().max(1e-3)
}

/// The rates of clients that count, by id. A client that is new since `before` began with 0.
pub(crate) fn client_rates(
    before: &[api::Client],
    now: &[api::Client],
    time: Duration,
) -> BTreeMap<String, Rates> {
    let counting = now.iter().filter(|client| client.requests.is_some());
    let rates = counting.map(|client| {
        let before = before.iter().find(|other| other.id == client.id);
        let grown = |of: fn(&api::Client) -> Option<u64>| {
            growth(before.and_then(of).unwrap_or(0), of(client).unwrap_or(0), time)
        };
        let rates = Rates {
            read: grown(|c| c.read_bytes),
            written: grown(|c| c.written_bytes),
            requests: grown(|c| c.requests),
        };
        (client.id.clone(), rates)
    });
    rates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded_and_have_units() {
        let rates = [(3.6, 0.0, 1.4), (1024.0, 1_048_576.0, 5.0)]
            .map(|(read, written, requests)| Rates { read, written, requests });
        let text = ClientRates::from(rates.into_iter().sum::<Rates>()).text();
        assert_eq!(text, "read 1.0 KiB/s, written 1.0 MiB/s, 6 requests/s");
    }
}
