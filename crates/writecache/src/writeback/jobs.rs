// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs: a `flush` and a `drain`, each with the blocks that it still has to write.
use std::fmt;

use block::value::{TimeUnit, size, time_in};
use block::{Error, Nanos};
use roaring::RoaringTreemap;

/// Longest time that may be given: a year.
const WITHIN_S_MAX: u64 = 365 * 24 * 3600;
/// The same maximum as that of the option `foreground_p99_target`.
const P99_US_MAX: u64 = 60_000_000;

/// A `flush`, or a `drain`: the blocks that were dirty when it began and are not on the origin yet.
pub(super) struct FlushJob {
    pub(super) number: u64,
    pub(super) todo: RoaringTreemap,
    pub(super) total: u64,
    /// Blocks that were given up.
    pub(super) left: RoaringTreemap,
    /// Blocks are written in the order of epochs: a block that can't be written delays others.
    pub(super) in_order: bool,
    /// An operator has stopped it; what is left stays in the cache.
    pub(super) is_stopped: bool,
}

impl FlushJob {
    pub(super) fn new(number: u64, todo: RoaringTreemap, in_order: bool) -> FlushJob {
        let total = todo.len();
        FlushJob { number, todo, total, left: RoaringTreemap::new(), in_order, is_stopped: false }
    }

    /// The job does not wait for this block any longer; the block stays dirty.
    pub(super) fn give_up(&mut self, block: u64) {
        if self.todo.remove(block) || self.in_order {
            self.left.insert(block);
        }
    }

    /// Whether all blocks are written that can be. `retired` returns whether all epochs of its
    /// beginning are retired.
    pub(super) fn is_done(&self, retired: impl Fn() -> bool) -> bool {
        match self.in_order {
            true => !self.left.is_empty() || retired(),
            false => self.todo.is_empty(),
        }
    }

    /// Blocks that are durable on the origin, or have left the cache.
    pub(super) fn done(&self) -> u64 {
        // With epochs there may be more left than was dirty at the beginning, because of older
        // versions.
        self.total.saturating_sub(self.todo.len() + self.left.len())
    }

    pub(super) fn give_up_all(&mut self) {
        self.left |= std::mem::take(&mut self.todo);
    }

    /// Ends the job. Returns the blocks that were not written: those that were given up, and with
    /// epochs also those that they have delayed. Otherwise blocks that are still in `todo` have
    /// newer versions.
    pub(super) fn end(&mut self) -> &RoaringTreemap {
        if self.left.is_empty() {
            self.todo.clear();
        } else {
            self.give_up_all();
        }
        &self.left
    }
}

/// What an operator stops. The blocks that are left stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Drain,
    DrainAndFlush,
}

impl Stop {
    /// Reads `stop` or `stop flush`.
    pub(crate) fn parse(text: &str) -> Option<Stop> {
        let mut words = text.split_ascii_whitespace();
        match (words.next()?, words.next(), words.next()) {
            ("stop", None, None) => Some(Stop::Drain),
            ("stop", Some("flush"), None) => Some(Stop::DrainAndFlush),
            _ => None,
        }
    }
}

/// The limits of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainLimits {
    /// The time in which it should end.
    pub(crate) within: Option<Nanos>,
    /// Like `foreground_p99_target`, while it runs.
    pub(crate) p99: Option<Nanos>,
    /// Like `writeback_rate_max`, while it runs; 0: no limit.
    pub(crate) rate: u64,
}

impl DrainLimits {
    /// Reads the words `within=SECONDS p99=MICROSECONDS rate=BYTES_PER_SECOND`, each at most once.
    pub(crate) fn parse(text: &str) -> Result<DrainLimits, Error> {
        let mut limits = DrainLimits::default();
        let mut seen = Vec::new();
        for word in text.split_ascii_whitespace() {
            let wrong = || {
                Error::invalid(format!(
                    "writecache: drain: `{word}`: allowed are `within=SECONDS` (1 to \
                     {WITHIN_S_MAX}), `p99=MICROSECONDS` (1 to {P99_US_MAX}), \
                     `rate=BYTES_A_SECOND` (from 1), each once, or `stop`, or `stop flush`"
                ))
            };
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            if seen.contains(&name) {
                return Err(wrong());
            }
            seen.push(name);
            let time = |unit: TimeUnit, max| -> Result<_, Error> {
                let count = time_in(name, value, unit, 1..=max).map_err(|_| wrong())?;
                Ok(Some(Nanos(count * unit.one().0)))
            };
            match name {
                "within" => limits.within = time(TimeUnit::Second, WITHIN_S_MAX)?,
                "p99" => limits.p99 = time(TimeUnit::Microsecond, P99_US_MAX)?,
                "rate" => {
                    let rate = size(value.strip_prefix('+').unwrap_or(value));
                    limits.rate = rate.filter(|rate| *rate > 0).ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(limits)
    }
}

/// The progress of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainProgress {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) failing: u64,
    pub(crate) blocks_per_s: u64,
    /// Unknown until the first block is written.
    pub(crate) seconds_left: Option<u64>,
    pub(crate) deadline_seconds: Option<u64>,
}

impl fmt::Display for DrainProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrainProgress { done, total, failing, blocks_per_s, .. } = self;
        write!(
            f,
            "running done={done} total={total} failing={failing} blocks_per_s={blocks_per_s}"
        )?;
        if let Some(seconds) = self.seconds_left {
            write!(f, " seconds_left={seconds}")?;
        }
        match self.deadline_seconds {
            Some(seconds) => write!(f, " deadline_seconds={seconds}"),
            None => Ok(()),
        }
    }
}

pub(crate) struct DrainJob {
    pub(super) job: FlushJob,
    pub(crate) limits: DrainLimits,
    pub(super) began: Nanos,
}

impl DrainJob {
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.limits.within.map(|within| self.began.0.saturating_add(within.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_stops_a_drain_or_a_flush_too() {
        assert_eq!(Stop::parse(" stop\n"), Some(Stop::Drain));
        assert_eq!(Stop::parse("stop flush"), Some(Stop::DrainAndFlush));
        for text in ["", "flush", "stop drain", "stop flush now", "rate=5"] {
            assert_eq!(Stop::parse(text), None, "{text}");
        }
    }

    #[test]
    fn words_come_in_any_order_and_wrong_ones_are_refused() {
        let table = [
            ("", DrainLimits::default()),
            (
                "rate=5 within=600 p99=5000",
                DrainLimits {
                    within: Some(Nanos::from_secs(600)),
                    p99: Some(Nanos::from_millis(5)),
                    rate: 5,
                },
            ),
            (
                "rate=+5 within=10m p99=5ms",
                DrainLimits {
                    within: Some(Nanos::from_secs(600)),
                    p99: Some(Nanos::from_millis(5)),
                    rate: 5,
                },
            ),
        ];
        for (text, limits) in table {
            assert_eq!(DrainLimits::parse(text).unwrap(), limits, "{text}");
        }
        let wrong = [
            "within=0",
            "within=31536001",
            "p99=0",
            "p99=60000001",
            "rate=0",
            "rate=-1",
            "rate=1 rate=2",
            "fast",
            "within=10d",
            "within=1500ms",
            "p99=5MiB",
            "bogus=1",
            "stop drain",
            "stop flush now",
        ];
        for text in wrong {
            let said = DrainLimits::parse(text).unwrap_err().to_string();
            assert!(said.contains("within=SECONDS") && said.contains("`stop`"), "{text}: {said}");
        }
    }
}
