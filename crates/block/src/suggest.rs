// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of an error about an unknown name: the name that was probably meant, or those there are.

/// Names of a list that an error prints whole; longer lists only get a suggestion and a count.
const NAMES_PRINTED_MAX: usize = 48;
/// From this similarity on a name is suggested: one minus the share of letters that are to be
/// inserted, dropped, replaced or swapped. Chosen: a letter or two in names of usual length.
const SIMILARITY_MIN: f64 = 0.7;

/// The name among `known` that is most like `word`, if any is like it.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    // None is like a word of twice its length, and a comparison takes as long as both are.
    let longest = known.iter().map(|name| name.len()).max()?;
    if word.len() > 2 * longest {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let similarity =
        |name: &str| strsim::normalized_damerau_levenshtein(&word, &name.to_ascii_lowercase());
    let best =
        known.iter().map(|&name| (similarity(name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN).map(|(_, name)| name)
}

/// What an error about the unknown name `word` ends with: "did you mean `x`?" when one of the names
/// is like it, else all names, or the first of them and how many there are.
///
/// ```
/// assert_eq!(block::name_hint("hihg", &["high", "low"]), "did you mean `high`?");
/// assert_eq!(block::name_hint("colour", &["high", "low"]), "there are high, low");
/// assert_eq!(block::name_hint("colour", &[]), "there are none");
/// ```
pub fn name_hint(word: &str, known: &[&str]) -> String {
    if let Some(name) = nearest(word, known) {
        return format!("did you mean `{name}`?");
    }
    if known.is_empty() {
        return "there are none".to_owned();
    }
    let printed = known[..known.len().min(NAMES_PRINTED_MAX)].join(", ");
    match known.len() - known.len().min(NAMES_PRINTED_MAX) {
        0 => format!("there are {printed}"),
        more => format!("there are {printed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let known = ["high_watermark", "low_watermark", "writeback_jobs", "writeback_order"];
        for (word, name) in [
            ("hgih_watermark", Some("high_watermark")),
            ("HIGH_WATERMARK", Some("high_watermark")),
            ("writeback_job", Some("writeback_jobs")),
            ("nosuch", None),
            ("writeback_limit", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), name, "{word}");
        }
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let names: Vec<String> = (0..56).map(|n| format!("{n}{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = name_hint("nosuch", &names);
        assert!(hint.ends_with("4646, 4747 and 8 more"), "{hint}");
    }
}
