// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Labels of numbered invariants: `WC-I3` is invariant I3 of the room `writecache`.
//!
//! A label is defined where a comment's list item begins with it (`//! - WC-I3 A slot ...`) and
//! cited everywhere else, in Rust and in Markdown.
//!
//! - A defined label carries the prefix of the room in whose folder it stands.
//! - A label is defined once in the workspace.
//! - A cited label is defined.

use std::collections::BTreeMap;

/// The prefix of each room, and the folder that defines its labels.
const ROOMS: &[(&str, &str)] = &[
    ("AT", "lab/attack/"),
    ("BE", "lab/bench/"),
    ("BL", "crates/block/"),
    ("CL", "crates/cli/"),
    ("CT", "crates/control/"),
    ("DM", "crates/dm/"),
    ("EE", "lab/e2e/"),
    ("FM", "crates/format/"),
    ("FU", "crates/fuse/"),
    ("HO", "crates/host/"),
    ("HV", "crates/handover/"),
    ("LG", "lab/loadgen/"),
    ("ML", "crates/millpond/"),
    ("NB", "crates/nbd/"),
    ("OC", "crates/objstore/"),
    ("OV", "crates/objvol/"),
    ("PC", "crates/pagecache/"),
    ("PO", "crates/policy/"),
    ("QU", "crates/queue/"),
    ("RE", "crates/reactor/"),
    ("RP", "lab/reproduce/"),
    ("SI", "crates/sim/"),
    ("UB", "crates/ublk/"),
    ("UR", "crates/uring/"),
    ("VH", "crates/vhost/"),
    ("WC", "crates/writecache/"),
    ("ZR", "crates/zram/"),
];

/// The labels of all files that were read.
#[derive(Debug, Default)]
pub(crate) struct Labels {
    /// Where each label is defined first.
    defined: BTreeMap<String, String>,
    /// Where each label is cited first.
    cited: BTreeMap<String, String>,
    found: Vec<String>,
}

impl Labels {
    /// Reads the labels of one file.
    pub(crate) fn read(&mut self, path: &str, text: &str) {
        let rust = path.ends_with(".rs");
        // The tests of this check cite what nobody defines.
        if (!rust && !path.ends_with(".md")) || path.starts_with("xtask/") {
            return;
        }
        for (line, n) in text.lines().zip(1..) {
            let place = format!("{path}:{n}");
            let defined = rust.then(|| defined_label(line)).flatten();
            if let Some(label) = defined {
                self.define(path, &place, label);
            }
            for label in cited_labels(line).filter(|label| Some(*label) != defined) {
                self.cited.entry(label.to_owned()).or_insert_with(|| place.clone());
            }
        }
    }

    fn define(&mut self, path: &str, place: &str, label: &str) {
        let room = ROOMS.iter().find(|(_, folder)| path.starts_with(folder));
        let Some((prefix, _)) = room else {
            self.found.push(format!(
                "{place}: {label} stands in no room that has labels; allowed are the folders of \
                 xtask/src/labels.rs"
            ));
            return;
        };
        if label.split_once('-').is_none_or(|(found, _)| found != *prefix) {
            self.found.push(format!(
                "{place}: the label {label} lacks the prefix of its room: {prefix}-..."
            ));
            return;
        }
        match self.defined.get(label) {
            Some(first) => self.found.push(format!(
                "{place}: {label} is defined at {first} already: take another letter or number"
            )),
            None => drop(self.defined.insert(label.to_owned(), place.to_owned())),
        }
    }

    /// What was found, when all files have been read.
    pub(crate) fn findings(self) -> Vec<String> {
        let undefined = self.cited.iter().filter(|(label, _)| !self.defined.contains_key(*label));
        let mut found = self.found;
        found.extend(undefined.map(|(label, place)| {
            format!("{place}: {label} is cited, and no invariant is defined by this label")
        }));
        found
    }
}

/// The label that a comment's list item begins with, with or without a prefix.
fn defined_label(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let item = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
    let item = item.trim_start().strip_prefix("- ")?;
    let label = item.split([' ', ':', '.']).next()?;
    let number = label.split_once('-').map_or(label, |(_, number)| number);
    is_number(number).then_some(label)
}

/// The labels with the prefix of a room in a line, wherever they stand.
fn cited_labels(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').filter(|word| {
        word.split_once('-').is_some_and(|(prefix, number)| {
            ROOMS.iter().any(|(room, _)| *room == prefix) && is_number(number)
        })
    })
}

/// `I3`, `PO12`: up to three capitals, then digits.
fn is_number(word: &str) -> bool {
    let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
    let capitals = word.len() - digits.len();
    (1..=3).contains(&capitals)
        && (1..=2).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(files: &[(&str, &str)]) -> Vec<String> {
        let mut labels = Labels::default();
        for (path, text) in files {
            labels.read(path, text);
        }
        labels.findings()
    }

    #[test]
    fn a_label_carries_the_prefix_of_its_room() {
        let found = judge(&[("crates/attic/src/a.rs", "//! - DM-F1 A bio.\n")]);
        assert!(found[0].contains("stands in no room"), "{found:?}");
        assert_eq!(judge(&[("crates/block/src/a.rs", "//! - BL-F1 A bio.\n")]), [""; 0]);
        let found = judge(&[("crates/block/src/a.rs", "//!\n//! - F1 A bio.\n")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/block/src/a.rs:2: "), "{found:?}");
        assert!(found[0].contains("BL-..."), "{found:?}");
        assert_eq!(judge(&[("crates/block/src/a.rs", "/// - DM-F1 A bio.\n")]).len(), 1);
    }

    #[test]
    fn a_label_is_defined_once() {
        let twice = [
            ("crates/block/src/a.rs", "//! - BL-F1 A bio.\n"),
            ("crates/block/src/b.rs", "//! - BL-F1 Another.\n//! - BL-F2 Third.\n"),
        ];
        let found = judge(&twice);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("crates/block/src/a.rs:1"), "{found:?}");
    }

    #[test]
    fn a_cited_label_is_defined() {
        let defined = ("crates/block/src/a.rs", "//! - BL-F1 A bio. See BL-F1.\n// BL-F1: so\n");
        assert_eq!(judge(&[defined, ("docs/a.md", "BL-F1, `BL-F1` and (BL-F1)\n")]), [""; 0]);
        let found = judge(&[defined, ("docs/a.md", "as BL-F2 says\n")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:1: BL-F2 is cited"), "{found:?}");
        // Words that only look alike.
        for text in ["CRC-32C", "XBL-F9", "BL-F", "BL-12", "BL-FOUR4", "UTF-8"] {
            assert_eq!(judge(&[("docs/a.md", text)]), [""; 0], "{text}");
        }
    }
}
