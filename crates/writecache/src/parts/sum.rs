// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sum: the reports of all parts as one status line and one set of attributes. Numbers are added
//! as numbers; the rule of each attribute is in [`FIGURES`].
//!
//! | what | of all parts |
//! |---|---|
//! | numbers of blocks, requests and errors | the sum |
//! | FLUSHes, which all parts get; measured costs and rates; `drain_only` | the largest |
//! | the errno | the one of the first part that has an error |
//! | an error and its sector | the one with the lowest sector |
//! | lists of sectors | one list, ascending |
//! | the journal | `none` if a part has none |
//! | percentages | of the sums |
//! | the read cache | why a part has none, if one has none |
//! | the state of a drain | counts and rates summed, the longest time |
use std::collections::BTreeMap;

use block::value::Value;
use block::{Error, ErrorKind};

use crate::cache::JOURNAL_IN_MEMORY;
use crate::events::{BAD_LIST_MAX, BadBlocks};
use crate::figures::{Combine, FIGURES, share};
use crate::status::{StatusFields, status_text};
use crate::writeback::jobs::DrainProgress;

/// Status fields, from 0: the errno, and FLUSHes.
const ERRNO: usize = 0;
const FLUSHES: usize = 12;

/// The report of one part.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartReport {
    /// Its status fields; `None` before its first resume.
    pub(crate) status: Option<StatusFields>,
    /// Its attributes in the order of [`FIGURES`].
    pub(crate) values: Vec<Value>,
    pub(crate) bad: BadBlocks,
    pub(crate) drain: Option<DrainProgress>,
}

/// The status of all parts together.
#[derive(Clone, Debug, Default)]
pub(crate) struct AggregatedStatus {
    status: String,
    attributes: BTreeMap<&'static str, Value>,
}

impl AggregatedStatus {
    pub(super) fn of(reports: &[PartReport]) -> AggregatedStatus {
        let fields: Option<Vec<StatusFields>> = reports.iter().map(|part| part.status).collect();
        let mut attributes = BTreeMap::new();
        for (nth, figure) in FIGURES.iter().enumerate() {
            let name = figure.attr.spec.name;
            let value = match (figure.combine, name) {
                (Combine::Own, "bad_block_list") => bad_blocks(reports).to_string().into(),
                (Combine::Own, "drain_state") => {
                    drain(reports).map_or("idle".into(), |state| state.to_string().into())
                }
                (Combine::Own, "journal") => journal(reports, nth),
                (Combine::Own, "read_cache_state") => read_cache_state(reports, nth),
                (Combine::Percent(part, whole), _) => {
                    let sum = |name| attributes.get(name).and_then(Value::number).unwrap_or(0);
                    share(sum(part), sum(whole)).into()
                }
                (Combine::Own, _) => lowest_error(reports, nth),
                (rule, _) => combine(rule, reports.iter().filter_map(|part| part.values.get(nth))),
            };
            attributes.insert(name, value);
        }
        attributes.insert("format", "native".into());
        let status = fields.map(|fields| status_text(&status(&fields))).unwrap_or_default();
        AggregatedStatus { status, attributes }
    }

    pub(super) fn set(&mut self, name: &'static str, value: u64) {
        self.attributes.insert(name, value.into());
    }

    pub(crate) fn status(&self) -> String {
        self.status.clone()
    }

    pub(crate) fn attribute(&self, name: &str) -> Option<Value> {
        self.attributes.get(name).cloned()
    }
}

fn first_that_is_not_zero(mut numbers: impl Iterator<Item = i64>) -> i64 {
    numbers.find(|n| *n != 0).unwrap_or(0)
}

/// The status fields of all parts together.
fn status(parts: &[StatusFields]) -> StatusFields {
    std::array::from_fn(|nth| {
        let of_parts = parts.iter().map(|of_part| of_part[nth]);
        match nth {
            ERRNO => first_that_is_not_zero(of_parts),
            FLUSHES => of_parts.max().unwrap_or(0),
            _ => of_parts.sum(),
        }
    })
}

fn combine<'a>(rule: Combine, values: impl Iterator<Item = &'a Value>) -> Value {
    if rule == Combine::FirstNotZero {
        let signed = values.map(|value| match value {
            Value::Signed(n) => *n,
            other @ (Value::Number(_) | Value::Flag(_) | Value::Text(_)) => {
                other.number().and_then(|n| i64::try_from(n).ok()).unwrap_or(0)
            }
        });
        return Value::Signed(first_that_is_not_zero(signed));
    }
    let numbers = values.filter_map(Value::number);
    match rule {
        Combine::Largest => numbers.max().unwrap_or(0).into(),
        Combine::Sum | Combine::FirstNotZero | Combine::Percent(..) | Combine::Own => {
            numbers.sum::<u64>().into()
        }
    }
}

/// The value number `nth`, the state of the journal: that of a part without one, if there is any.
fn journal(reports: &[PartReport], nth: usize) -> Value {
    let in_memory = Value::from(JOURNAL_IN_MEMORY);
    let mut states = reports.iter().filter_map(|part| part.values.get(nth));
    states.find(|state| **state != in_memory).cloned().unwrap_or(in_memory)
}

/// The value number `nth`, the state of the read cache: the longest one says why a part has none.
fn read_cache_state(reports: &[PartReport], nth: usize) -> Value {
    let states = reports.iter().filter_map(|part| part.values.get(nth));
    states.max_by_key(|state| state.to_string().len()).cloned().unwrap_or_else(|| "off".into())
}

/// The value number `nth` (an error or its sector) of the part whose error has the lowest sector.
fn lowest_error(reports: &[PartReport], nth: usize) -> Value {
    let sector = FIGURES.iter().position(|f| f.attr.spec.name == "writeback_error_sector");
    let at = |part: &PartReport| part.values.get(sector?)?.number();
    let none = Value::from("none");
    let failing = reports.iter().filter(|part| part.values.get(nth).is_some_and(|v| *v != none));
    let lowest = failing.min_by_key(|part| at(part).unwrap_or(u64::MAX));
    lowest.map_or(none.clone(), |part| part.values[nth].clone())
}

fn bad_blocks(reports: &[PartReport]) -> BadBlocks {
    let mut sectors: Vec<u64> =
        reports.iter().flat_map(|part| part.bad.sectors.iter().copied()).collect();
    sectors.sort_unstable();
    let beyond = sectors.len().saturating_sub(BAD_LIST_MAX) as u64;
    sectors.truncate(BAD_LIST_MAX);
    let left_out = reports.iter().map(|part| part.bad.left_out).sum::<u64>() + beyond;
    BadBlocks { sectors, left_out }
}

fn drain(reports: &[PartReport]) -> Option<DrainProgress> {
    let running = || reports.iter().filter_map(|part| part.drain.as_ref());
    running().next()?;
    // A part that has written nothing yet has no estimate of its time.
    let seconds: Option<Vec<u64>> = running().map(|part| part.seconds_left).collect();
    Some(DrainProgress {
        done: running().map(|part| part.done).sum(),
        total: running().map(|part| part.total).sum(),
        failing: running().map(|part| part.failing).sum(),
        blocks_per_s: running().map(|part| part.blocks_per_s).sum(),
        seconds_left: seconds.and_then(|seconds| seconds.into_iter().max()),
        deadline_seconds: running().filter_map(|part| part.deadline_seconds).max(),
    })
}

/// The outcome of an operation of all parts: the first error, and how many parts have one.
pub(super) fn outcome(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let of = outcomes.len();
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    for (nth, outcome) in outcomes.into_iter().enumerate() {
        let Err(e) = outcome else { continue };
        // The request was invalid or came at a wrong time: this is not an error of one part.
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

    #[test]
    fn status_fields_are_summed_but_for_the_errno_and_flushes() {
        let parts = [
            [0, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 5, 1],
            [-5, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 5, 2],
        ];
        assert_eq!(status_text(&status(&parts)), "-5 20 10 10 10 10 10 10 10 10 10 10 5 3");
    }

    #[test]
    fn numbers_are_combined_by_their_rule() {
        let values = [Value::Number(7), Value::Flag(true), Value::Number(2)];
        let of = |rule| combine(rule, values.iter()).to_string();
        assert_eq!([of(Combine::Sum), of(Combine::Largest)], ["10", "7"]);
        let errnos = [Value::Signed(0), Value::Signed(-5), Value::Signed(-28)];
        assert_eq!(combine(Combine::FirstNotZero, errnos.iter()), Value::Signed(-5));
    }

    #[test]
    fn an_error_is_that_of_the_part_with_the_lowest_sector() {
        let names: Vec<_> = FIGURES.iter().map(|figure| figure.attr.spec.name).collect();
        let nth = |name| names.iter().position(|known| *known == name).unwrap();
        let part = |error: &str, sector: Value| {
            let mut values = vec![Value::Number(0); FIGURES.len()];
            values[nth("writeback_error")] = error.into();
            values[nth("writeback_error_sector")] = sector;
            PartReport { values, ..PartReport::default() }
        };
        let parts = [
            part("none", "none".into()),
            part("EIO", Value::Number(64)),
            part("ENOSPC", Value::Number(8)),
        ];
        let whole = AggregatedStatus::of(&parts);
        assert_eq!(whole.attribute("writeback_error").unwrap(), "ENOSPC");
        assert_eq!(whole.attribute("writeback_error_sector").unwrap(), Value::Number(8));
        let whole = AggregatedStatus::of(&parts[..1]);
        assert_eq!(whole.attribute("writeback_error").unwrap(), "none");
    }

    #[test]
    fn lists_of_sectors_become_one() {
        let of = |sectors: &[u64], left_out| {
            let bad = BadBlocks { sectors: sectors.to_vec(), left_out };
            PartReport { bad, ..PartReport::default() }
        };
        let text = |parts: &[PartReport]| bad_blocks(parts).to_string();
        assert_eq!(text(&[of(&[], 0), of(&[], 0)]), "none");
        assert_eq!(text(&[of(&[64, 8], 0), of(&[], 0), of(&[16], 0)]), "8 16 64");
        let long: Vec<u64> = (0..257).map(|n| n * 8).collect();
        let found = text(&[of(&long[..256], 7), of(&long[256..], 0)]);
        assert!(found.ends_with(" 2040 +8"), "{found}");
    }

    #[test]
    fn drains_are_summed() {
        let of = |drain| PartReport { drain, ..PartReport::default() };
        let text = |parts: &[PartReport]| drain(parts).map(|drain| drain.to_string());
        assert_eq!(text(&[of(None), of(None)]), None);
        let one = DrainProgress {
            done: 1,
            total: 10,
            failing: 1,
            blocks_per_s: 5,
            seconds_left: Some(2),
            deadline_seconds: Some(9),
        };
        let other = DrainProgress {
            done: 2,
            total: 20,
            failing: 0,
            blocks_per_s: 6,
            seconds_left: Some(3),
            deadline_seconds: Some(8),
        };
        assert_eq!(
            text(&[of(Some(one)), of(Some(other)), of(None)]).unwrap(),
            "running done=3 total=30 failing=1 blocks_per_s=11 seconds_left=3 deadline_seconds=9"
        );
        let early = DrainProgress { total: 20, ..DrainProgress::default() };
        assert_eq!(
            text(&[of(Some(one)), of(Some(early))]).unwrap(),
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
