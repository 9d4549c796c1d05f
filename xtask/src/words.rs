// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of words that a machine can check; docs/glossary.md and CONTRIBUTING.md have the rest.
//!
//! | names of | rule |
//! |---|---|
//! | types, and files of modules | a noun of storage or of computing: none of [`NO_NOUNS`] |
//! | tests | at most 60 characters |
//! | folders | not `target`, which is where cargo builds |

use crate::source::words;

/// Words that may not be the whole name of a type or of a module's file: pronouns, prepositions,
/// adverbs and numbers; participles of saying and having; metaphors. In this order.
const NO_NOUNS: &str = "\
    Alone Aside Asides At AtOnce Away Before Below Beside Both By Elsewhere Few Further Here How
    Long Now Nothing Once Only Others Ours Over Short Since Still Sure Then There To Together
    Two Until Way What Which While Who Whose With
    Admit Asked Built Came Gathered Given Happened Happening Heard Hearing Hello Held Kept
    KeptAway Known Lend Lent Loan Look News Restored Said Seen Shown Signs Spoilt Swept Taken
    Tell TellPart Teller Telling Terms Told Tried Wanted
    Alarm Allowance Anchor Anchors Bare Bell Better Books Door Dress Ends Face Facts Fate Fates
    Flight Flying Gate Grace Ground Hang Herald InForce Keeper Lab Law Leave Losses Mutation
    Nature Noisy Obstacle Pond Shard Shards Spare Steer Strokes Survey Survivors Tally Tickets
    Trouble Turns Twins Workers";

const TEST_NAME_MAX: usize = 60;

/// What introduces the name of a type.
const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait", "type", "union"];

/// Findings in the path of one file, as line and text.
pub(crate) fn path_findings(path: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut folders = path.split('/');
    let file = folders.next_back().unwrap_or(path);
    if folders.any(|folder| folder == "target") {
        found.push((1, "a folder called 'target' reads as build output: try 'targets'".to_owned()));
    }
    if let Some(stem) = file.strip_suffix(".rs") {
        let module = stem.strip_suffix("_tests").unwrap_or(stem);
        if let Some(word) = forbidden(&camel(module)) {
            found.push((1, format!("the file {file}: {}", advice(word))));
        }
    }
    found
}

/// Findings in the names of one Rust file's types and tests. `code` is its text without comments
/// and literals.
pub(crate) fn code_findings(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_test = false;
    for (line, n) in code.lines().zip(1..) {
        is_test |= line.trim_start().starts_with("#[test]");
        let mut before = "";
        for word in words(line) {
            if TYPE_KEYWORDS.contains(&before)
                && let Some(word) = forbidden(word)
            {
                found.push((n, format!("the type {word}: {}", advice(word))));
            }
            if before == "fn" && std::mem::take(&mut is_test) {
                found.extend(test_name_problem(word).map(|problem| (n, problem)));
            }
            before = word;
        }
    }
    found
}

fn forbidden(name: &str) -> Option<&'static str> {
    NO_NOUNS.split_whitespace().find(|word| *word == name)
}

fn advice(word: &str) -> String {
    format!(
        "'{word}' does not say what it is; take a noun of storage or computing \
         (docs/glossary.md; the list is in xtask/src/words.rs)"
    )
}

fn test_name_problem(name: &str) -> Option<String> {
    let length = name.chars().count();
    (length > TEST_NAME_MAX).then(|| {
        format!("the test {name} has {length} characters, at most {TEST_NAME_MAX} are allowed")
    })
}

/// `part_of` as `PartOf`.
fn camel(snake: &str) -> String {
    let upper = |word: &str| {
        let mut chars = word.chars();
        let first = chars.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(chars).collect::<String>()
    };
    snake.split('_').map(upper).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_dialect_name_no_type() {
        let judge = |code: &str| code_findings(code);
        for code in ["struct Then;", "pub(crate) enum Before {", "type Then<'a> = (bool, u32);"] {
            assert_eq!(judge(code).len(), 1, "{code}");
        }
        let found = judge("\npub unsafe trait Before {}\n");
        assert_eq!(found[0].0, 2);
        assert!(found[0].1.contains("docs/glossary.md"), "{found:?}");
        for code in ["struct Owner;", "use other::Then;", "enum Then2 {", "struct Then_;"] {
            assert_eq!(judge(code), [], "{code}");
        }
    }

    #[test]
    fn words_of_the_dialect_name_no_file() {
        for path in ["crates/a/src/then.rs", "crates/a/src/before_tests.rs"] {
            assert_eq!(path_findings(path).len(), 1, "{path}");
        }
        for path in ["crates/a/src/pending.rs", "docs/then.md", "crates/a/then/mod.rs"] {
            assert_eq!(path_findings(path), [], "{path}");
        }
    }

    #[test]
    fn no_folder_is_called_target() {
        let found = path_findings("crates/a/src/target/open.rs");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].1.contains("'targets'"), "{found:?}");
        for path in ["crates/a/src/targets/open.rs", "crates/a/src/target.rs"] {
            assert_eq!(path_findings(path), [], "{path}");
        }
    }

    #[test]
    fn a_test_name_has_at_most_60_characters() {
        let judge = |name: &str| {
            let code = format!("#[test]\n#[should_panic]\nfn {name}() {{}}\n");
            code_findings(&code)
        };
        assert_eq!(judge(&"a".repeat(60)), []);
        let found = judge(&"a".repeat(61));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 3);
        assert!(found[0].1.contains("61 characters, at most 60"), "{found:?}");
        let helper = format!("#[test]\nfn short() {{}}\nfn {}() {{}}\n", "a".repeat(61));
        assert_eq!(code_findings(&helper), []);
    }
}
