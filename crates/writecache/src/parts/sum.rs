// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sum: what all parts tell, as one.
//!
//! | what | of all parts |
//! |---|---|
//! | numbers of blocks, requests and errors | the sum |
//! | FLUSHes, which all parts get; measured costs and rates; `drain_only` | the largest |
//! | the errno | that of the first part that has one |
//! | an error and its sector | those of the part with the lowest sector |
//! | lists of sectors | one list, ascending |
//! | the state of a drain | counts and rates summed, the longest time |
use std::collections::BTreeMap;

use block::{Error, ErrorKind};

use crate::status::attributes;

/// Sectors that `bad_block_list` shows at most, as for one part.
const BAD_LIST_MAX: usize = 256;
/// Status fields, from 0: the errno, and FLUSHes.
const ERRNO: usize = 0;
const FLUSHES: usize = 12;

/// What one part says: its status line, and its attributes in the order of `status::attributes`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartReport {
    pub(crate) status: String,
    pub(crate) attributes: Vec<String>,
}

/// What all parts together say.
#[derive(Clone, Debug, Default)]
pub(crate) struct AggregatedStatus {
    status: String,
    attributes: BTreeMap<&'static str, String>,
}

impl AggregatedStatus {
    pub(super) fn of(reports: &[PartReport]) -> AggregatedStatus {
        let lines: Vec<&str> = reports.iter().map(|part| &*part.status).collect();
        let sector = attributes().position(|name| name == "writeback_error_sector");
        let mut aggregated =
            AggregatedStatus { status: status(&lines), attributes: BTreeMap::new() };
        for (nth, name) in attributes().enumerate() {
            let of = |part: &PartReport| part.attributes.get(nth).cloned().unwrap_or_default();
            let values: Vec<String> = reports.iter().map(of).collect();
            let value = match name {
                "writeback_error" | "writeback_error_sector" => {
                    let at = |part: &PartReport| part.attributes.get(sector?)?.parse::<u64>().ok();
                    let in_trouble = reports.iter().filter(|part| of(part) != "none");
                    let lowest = in_trouble.min_by_key(|part| at(part).unwrap_or(u64::MAX));
                    lowest.map_or_else(|| "none".to_owned(), of)
                }
                _ => combine(name, &values),
            };
            aggregated.attributes.insert(name, value);
        }
        aggregated.attributes.insert("format", "native".to_owned());
        aggregated
    }

    pub(super) fn set(&mut self, name: &'static str, value: u64) {
        self.attributes.insert(name, value.to_string());
    }

    pub(crate) fn status(&self) -> String {
        self.status.clone()
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        self.attributes.get(name).cloned()
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or(0)
}

fn first_that_is_not_zero(mut numbers: impl Iterator<Item = i64>) -> i64 {
    numbers.find(|n| *n != 0).unwrap_or(0)
}

/// One status line of several.
fn status(lines: &[&str]) -> String {
    let fields: Vec<Vec<i64>> =
        lines.iter().map(|line| line.split(' ').map(number).collect()).collect();
    let count = fields.iter().map(Vec::len).min().unwrap_or(0);
    let field = |n: usize| {
        let of_parts = fields.iter().map(|of_part| of_part[n]);
        match n {
            ERRNO => first_that_is_not_zero(of_parts),
            FLUSHES => of_parts.max().unwrap_or(0),
            _ => of_parts.sum(),
        }
    };
    (0..count).map(|n| field(n).to_string()).collect::<Vec<_>>().join(" ")
}

fn combine(name: &str, values: &[String]) -> String {
    let numbers = || values.iter().map(|value| number(value));
    match name {
        "error" => first_that_is_not_zero(numbers()).to_string(),
        "block_size" | "origin_command_ns" | "origin_read_rate" | "origin_write_rate"
        | "drain_only" => numbers().max().unwrap_or(0).to_string(),
        "bad_block_list" => bad_block_list(values),
        "drain_state" => drain_state(values),
        _ => numbers().sum::<i64>().to_string(),
    }
}

fn bad_block_list(lists: &[String]) -> String {
    let words = || lists.iter().flat_map(|list| list.split(' '));
    let left_out = |word: &str| word.strip_prefix('+')?.parse::<usize>().ok();
    let mut more: usize = words().filter_map(left_out).sum();
    // `+N` is no sector, but the number of those that are left out.
    let sector = |word: &str| word.parse().ok().filter(|_| !word.starts_with('+'));
    let mut sectors: Vec<u64> = words().filter_map(sector).collect();
    sectors.sort_unstable();
    more += sectors.len().saturating_sub(BAD_LIST_MAX);
    sectors.truncate(BAD_LIST_MAX);
    let mut list: Vec<String> = sectors.iter().map(u64::to_string).collect();
    list.extend((more > 0).then(|| format!("+{more}")));
    if list.is_empty() { "none".to_owned() } else { list.join(" ") }
}

fn drain_state(states: &[String]) -> String {
    let running: Vec<&String> = states.iter().filter(|state| *state != "idle").collect();
    if running.is_empty() {
        return "idle".to_owned();
    }
    let of = |name: &str| {
        let words = running.iter().flat_map(|state| state.split(' '));
        let values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        values.map(number).collect::<Vec<_>>()
    };
    let mut state = "running".to_owned();
    for name in ["done", "total", "failing", "blocks_per_s"] {
        state.push_str(&format!(" {name}={}", of(name).iter().sum::<i64>()));
    }
    // A part that has written nothing yet can't tell how long it takes.
    let seconds = of("seconds_left");
    if seconds.len() == running.len() {
        state.push_str(&format!(" seconds_left={}", seconds.iter().max().unwrap_or(&0)));
    }
    if let Some(seconds) = of("deadline_seconds").iter().max() {
        state.push_str(&format!(" deadline_seconds={seconds}"));
    }
    state
}

/// What came of something that all parts did: the first error, and of how many parts.
pub(super) fn outcome(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let of = outcomes.len();
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    for (nth, outcome) in outcomes.into_iter().enumerate() {
        let Err(e) = outcome else { continue };
        // A word that no part knows, or a wrong time: it has nothing to do with parts.
        if matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Busy) {
            return Err(e);
        }
        let which = match failed {
            1 => format!("part {nth} of {of}"),
            _ => format!("{failed} of {of} parts, the first of them part {nth}"),
        };
        return Err(e.within(which));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
        words.map(str::to_owned).to_vec()
    }

    #[test]
    fn status_fields_are_summed_but_for_the_errno_and_flushes() {
        let lines = ["0 10 9 8 7 6 5 4 3 2 1 0 5 1", "-5 10 1 2 3 4 5 6 7 8 9 10 5 2"];
        assert_eq!(status(&lines), "-5 20 10 10 10 10 10 10 10 10 10 10 5 3");
    }

    #[test]
    fn lists_of_sectors_become_one() {
        assert_eq!(bad_block_list(&strings(["none", "none"])), "none");
        assert_eq!(bad_block_list(&strings(["64 8", "none", "16"])), "8 16 64");
        let long: Vec<String> = (0..300).map(|n| (n * 8).to_string()).collect();
        let found = bad_block_list(&[format!("{} +7", long[..256].join(" ")), long[256].clone()]);
        assert!(found.ends_with(" 2040 +8"), "{found}");
    }

    #[test]
    fn drains_are_summed() {
        assert_eq!(drain_state(&strings(["idle", "idle"])), "idle");
        let one = "running done=1 total=10 failing=1 blocks_per_s=5 seconds_left=2 \
                   deadline_seconds=9";
        let other = "running done=2 total=20 failing=0 blocks_per_s=6 seconds_left=3 \
                     deadline_seconds=8";
        assert_eq!(
            drain_state(&strings([one, other, "idle"])),
            "running done=3 total=30 failing=1 blocks_per_s=11 seconds_left=3 deadline_seconds=9"
        );
        let early = "running done=0 total=20 failing=0 blocks_per_s=0";
        assert_eq!(
            drain_state(&strings([one, early])),
            "running done=1 total=30 failing=1 blocks_per_s=5 deadline_seconds=9"
        );
    }

    #[test]
    fn an_outcome_names_the_parts_that_failed() {
        let io = || Err(Error::io("no"));
        assert!(outcome(vec![Ok(()), Ok(())]).is_ok());
        assert_eq!(outcome(vec![Ok(()), io()]).unwrap_err().to_string(), "part 1 of 2: no");
        let two = outcome(vec![io(), Ok(()), io()]).unwrap_err().to_string();
        assert_eq!(two, "2 of 3 parts, the first of them part 0: no");
    }
}
