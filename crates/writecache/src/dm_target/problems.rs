// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Problems: what an operator has to act on, as `/healthz` lists it.
use block::Status;
use block::value::{Value, digits};

use crate::recovery::dm::NO_JOURNAL_BY_FORMAT;

/// Ranges of sectors that a problem names at most.
const RANGES_MAX: usize = 8;

/// The problems of a cache whose attributes are read by `attribute`, of a process that has a
/// directory for journals or not.
pub(super) fn problems(
    attribute: impl Fn(&str) -> Option<Value>,
    has_directory: bool,
) -> Vec<String> {
    let number = |name| attribute(name).and_then(|value| value.number()).unwrap_or(0);
    let text = |name| attribute(name).map(|value| value.to_string()).unwrap_or_default();
    let mut found = Vec::new();
    let (bad, rotten) = (number("bad_blocks"), number("rotten_blocks"));
    let unreadable = bad.saturating_sub(rotten);
    if bad > 0 {
        let sectors = ranges(&text("bad_block_list"), number("block_size") / 512, bad);
        found.push(match (unreadable, rotten) {
            (_, 0) => format!(
                "{bad} dirty blocks can't be read from the cache device at present, and are tried \
                 again: {sectors}"
            ),
            (0, _) => format!(
                "{bad} dirty blocks do not match their checksum on the cache device, and are lost \
                 until they are written again: {sectors}"
            ),
            (_, _) => format!(
                "{bad} dirty blocks can't be read from the cache device: {unreadable} are tried \
                 again; {rotten} do not match their checksum, and are lost until they are written \
                 again: {sectors}"
            ),
        });
    }
    if number("drain_only") > 0 {
        found.push("the cache device fails: the cache takes nothing new".to_owned());
    }
    let failing = number("failing_blocks");
    if failing > 0 {
        let (error, sector) = (text("writeback_error"), text("writeback_error_sector"));
        found.push(format!(
            "the origin refuses {failing} dirty blocks ({error} at sector {sector}): writeback is \
             retried"
        ));
    }
    let errno = number("error");
    if errno > 0 && found.is_empty() {
        let error = Status::from_errno(i32::try_from(errno).unwrap_or(i32::MAX));
        found.push(format!(
            "the cache has failed ({error}): it serves reads only until its table is loaded again"
        ));
    }
    let journal = text("journal");
    // Of a process without a directory the program tells once.
    if let Some(why) = journal.strip_prefix("none: ").filter(|_| errno == 0 && has_directory)
        && why != NO_JOURNAL_BY_FORMAT
    {
        found.push(format!(
            "it has no journal in memory ({why}): a `kill -9` of the daemon loses writes that no \
             FLUSH followed"
        ));
    }
    found
}

/// The sectors of `count` blocks of which `list` has the first sectors of some, in order: `sectors
/// 8 to 23, 80 to 87 and 3 more blocks`.
fn ranges(list: &str, block_sectors: u64, count: u64) -> String {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut left = count;
    for first in list.split(' ').map_while(digits) {
        let is_full = ranges.len() == RANGES_MAX;
        match ranges.last_mut() {
            Some((_, end)) if *end == first => *end += block_sectors,
            _ if is_full => break,
            _ => ranges.push((first, first + block_sectors)),
        }
        left = left.saturating_sub(1);
    }
    let ranges = ranges.iter().map(|(first, end)| format!("{first} to {}", end.saturating_sub(1)));
    let named = ranges.collect::<Vec<_>>().join(", ");
    match left {
        0 => format!("sectors {named}"),
        left => format!("sectors {named} and {left} more blocks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &'static [(&str, u64)]) -> Vec<String> {
        let known = |name: &str| values.iter().find(|(known, _)| *known == name);
        problems(
            |name| match name {
                "bad_block_list" => Some("8 16".into()),
                name => known(name).map(|(_, value)| (*value).into()),
            },
            true,
        )
    }

    fn with_journal(state: &'static str, has_directory: bool) -> Vec<String> {
        problems(|name| (name == "journal").then(|| state.into()), has_directory)
    }

    #[test]
    fn a_cache_that_should_have_a_journal_and_has_none_says_so() {
        for why in ["none: a part of its memory is lost", "none: cannot reserve its space"] {
            let found = with_journal(why, true);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(&why["none: ".len()..]), "{found:?}");
            assert!(with_journal(why, false).is_empty());
        }
        for state in ["in memory", "none: the kernel's format has none"] {
            assert!(with_journal(state, true).is_empty(), "{state}");
        }
    }

    #[test]
    fn a_cache_without_errors_has_no_problem() {
        assert_eq!(with(&[("error", 0), ("dirty_blocks", 7)]), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_failure_is_a_problem() {
        const SIZE: (&str, u64) = ("block_size", 4096);
        for (values, word) in [
            (
                &[("error", 5), ("bad_blocks", 2), SIZE][..],
                "2 dirty blocks can't be read from the cache device at present, and are tried \
                 again: sectors 8 to 23",
            ),
            (&[("bad_blocks", 2), ("rotten_blocks", 2), SIZE], "are lost until they are written"),
            (
                &[("bad_blocks", 5), ("rotten_blocks", 2), SIZE],
                "3 are tried again; 2 do not match their checksum, and are lost until they are \
                 written again: sectors 8 to 23 and 3 more blocks",
            ),
            (&[("error", 5), ("drain_only", 1)], "takes nothing new"),
            (&[("error", 5), ("failing_blocks", 3)], "the origin refuses 3 dirty blocks"),
            (&[("error", 5)], "has failed (I/O error)"),
            (&[("error", 28)], "has failed (no space left on device)"),
        ] {
            let found = with(values);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(word), "{found:?}");
        }
    }

    /// A list of sectors was cut in the middle of a number.
    #[test]
    fn sectors_are_named_as_ranges_and_the_others_counted() {
        let list: Vec<String> = (0..256).map(|nth| (nth * 8).to_string()).collect();
        assert_eq!(
            ranges(&(list.join(" ") + " +44"), 8, 300),
            "sectors 0 to 2047 and 44 more blocks"
        );
        let apart: Vec<String> = (0..20).map(|nth| (nth * 16).to_string()).collect();
        let want = "sectors 0 to 7, 16 to 23, 32 to 39, 48 to 55, 64 to 71, 80 to 87, 96 to 103, \
                    112 to 119 and 12 more blocks";
        assert_eq!(ranges(&apart.join(" "), 8, 20), want);
    }
}
