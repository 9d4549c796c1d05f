// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Problems: what an operator has to act on, as `/healthz` lists it.
use block::value::Value;

use crate::recovery::dm::NO_JOURNAL_BY_FORMAT;

/// The problems of a cache whose attributes are read by `attribute`, of a process that has a
/// directory for journals or not.
pub(super) fn problems(
    attribute: impl Fn(&str) -> Option<Value>,
    has_directory: bool,
) -> Vec<String> {
    let number = |name| attribute(name).and_then(|value| value.number()).unwrap_or(0);
    let text = |name| attribute(name).map(|value| value.to_string()).unwrap_or_default();
    let mut found = Vec::new();
    match (number("bad_blocks"), text("bad_block_list")) {
        (0, _) => {}
        (lost, list) => {
            let list: String = list.chars().take(100).collect();
            found.push(format!(
                "{lost} dirty blocks can't be read from the cache device and are lost until they \
                 are written again: sectors {list}"
            ));
        }
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
        found.push(format!(
            "the cache has failed (errno {errno}): it serves reads only until its table is loaded \
             again"
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with(values: &'static [(&str, u64)]) -> Vec<String> {
        let known = |name: &str| values.iter().find(|(known, _)| *known == name);
        problems(|name| known(name).map(|(_, value)| (*value).into()), true)
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
        for (values, word) in [
            (&[("error", 5), ("bad_blocks", 2)][..], "2 dirty blocks can't be read"),
            (&[("error", 5), ("drain_only", 1)], "takes nothing new"),
            (&[("error", 5), ("failing_blocks", 3)], "the origin refuses 3 dirty blocks"),
            (&[("error", 5)], "has failed (errno 5)"),
        ] {
            let found = with(values);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(word), "{found:?}");
        }
    }
}
