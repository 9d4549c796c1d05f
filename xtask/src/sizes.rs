// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How large one thing may be: the fields of a struct and the lines of a function.
//!
//! The code is formatted by rustfmt, so what begins at a column ends at the next `}` there.

use crate::source::words;

const FIELDS_MAX: usize = 20;
const FUNCTION_LINES_MAX: usize = 100;

/// Structs that may have more than [`FIELDS_MAX`] fields, each with its reason. Only ever gets
/// shorter.
const LARGE_STRUCTS: &[(&str, &str)] = &[
    ("LoadgenArgs", "each field is an option of the command line"),
    ("Hdd", "not divided yet"),
    ("Job", "not divided yet"),
    ("Stats", "each field is a counter"),
    ("SuperblockMedia", "each field is one of the media format"),
];

/// Findings in one Rust file, as line and text. `code` is its text without comments and literals.
pub(crate) fn findings(code: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some(name) = named(line, "struct") {
            let count = fields(body(&lines[at..]));
            if count > FIELDS_MAX && !LARGE_STRUCTS.iter().any(|(large, _)| *large == name) {
                found.push((
                    at + 1,
                    format!(
                        "the struct {name} has {count} fields, at most {FIELDS_MAX} are allowed: \
                     group those that change together in a struct of their own"
                    ),
                ));
            }
        }
        if let Some(name) = named(line, "fn") {
            let count = body(&lines[at..]).len();
            if count > FUNCTION_LINES_MAX {
                found.push((
                    at + 1,
                    format!(
                        "the function {name} has {count} lines, at most {FUNCTION_LINES_MAX} are \
                     allowed"
                    ),
                ));
            }
        }
    }
    found
}

/// The name that `keyword` introduces in a line.
fn named<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let mut words = words(line);
    words.find(|word| *word == keyword)?;
    words.next()
}

/// The lines of the item that begins with the first line; that line alone if it has no body.
fn body<'a, 'b>(lines: &'a [&'b str]) -> &'a [&'b str] {
    let column = |line: &str| line.len() - line.trim_start().len();
    let Some(first) = lines.first() else { return lines };
    let indent = column(first);
    // The signature ends where a line opens the body, or where there is none.
    let opens = lines.iter().position(|line| {
        let line = line.trim_end();
        line.ends_with('{') || line.ends_with('}') || line.ends_with(';')
    });
    let Some(opens) = opens.filter(|at| lines[*at].trim_end().ends_with('{')) else {
        return &lines[..1];
    };
    let is_end = |line: &&str| column(line) == indent && line.trim_start().starts_with('}');
    let end = lines[opens + 1..].iter().position(is_end);
    end.map_or(&lines[..1], |end| &lines[..opens + end + 2])
}

/// How many named fields a struct's lines have.
fn fields(body: &[&str]) -> usize {
    let indent = body.first().map_or(0, |line| line.len() - line.trim_start().len()) + 4;
    let is_field = |line: &&&str| {
        let code = line.trim_start();
        let is_in_place = line.len() - code.len() == indent;
        let name = code.split([':', '<', '(']).next().and_then(|before| words(before).last());
        is_in_place && code.contains(':') && name.is_some() && !code.starts_with(['#', '}', '|'])
    };
    body.iter().skip(1).filter(is_field).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_struct(fields: usize) -> String {
        let fields: String =
            (0..fields).map(|n| format!("        pub(crate) f{n}: u8,\n")).collect();
        format!("mod a {{\n    struct Large<T> {{\n        #[cfg(x)]\n{fields}    }}\n}}\n")
    }

    #[test]
    fn a_struct_has_at_most_20_fields() {
        assert_eq!(findings(&of_struct(20)), []);
        let found = findings(&of_struct(21));
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == 2 && found[0].1.contains("Large has 21 fields"), "{found:?}");
        assert_eq!(findings("struct A;\nstruct B(u8);\nstruct C {}\n"), []);
    }

    #[test]
    fn a_function_has_at_most_100_lines() {
        let with = |lines: usize| {
            let body = "        {\n        }\n".repeat(lines / 2 - 1);
            let signature = "    fn a();\n    fn long(\n        x: u8,\n    ) {\n";
            format!("trait A {{\n{signature}{body}    }}\n}}\n")
        };
        // The signature has three lines, and the last brace is one.
        assert_eq!(findings(&with(98)), []);
        let found = findings(&with(100));
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == 3 && found[0].1.contains("long has 102 lines"), "{found:?}");
    }
}
