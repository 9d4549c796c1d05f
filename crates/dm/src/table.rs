// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table language: text to lines, checked as far as no device is needed for it.
//!
//! ```text
//!   # a comment
//!   0    1024 linear  /dev/sdb 0
//!   1024 2048 striped 2 128 /dev/sdc 0 /dev/sdd 0
//!   │    │    │       └ arguments, split at white space; a backslash quotes the next character
//!   │    │    └ target type
//!   │    └ length in sectors
//!   └ first sector: where the line before ended
//! ```
use block::value::digits;
use block::{Error, Sector};

/// Largest device, in sectors: offsets in bytes fit a signed 64-bit number (the kernel's `loff_t`).
pub const SECTORS_MAX: Sector = Sector((1 << 54) - 1);
/// Lines of one table; a bound, far above any table seen (a device of a million 4 KiB extents
/// belongs into a target of its own).
pub const LINES_MAX: usize = 1 << 16;

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it stands in the text, from 1; errors name it.
    pub line_no: usize,
    /// First sector.
    pub start: Sector,
    /// Length.
    pub len: Sector,
    /// Target type.
    pub kind: String,
    /// Its arguments, unquoted.
    pub args: Vec<String>,
}

/// Parses a table. Empty lines and lines that begin with `#` are skipped; no line at all is legal.
pub fn parse(text: &str) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    let mut next = Sector::ZERO;
    for (i, raw) in text.lines().enumerate() {
        let line_no = i + 1;
        if raw.trim().is_empty() || raw.trim_start().starts_with('#') {
            continue;
        }
        if lines.len() == LINES_MAX {
            return Err(Error::invalid(format!(
                "line {line_no}: too many lines: a table has at most {LINES_MAX}"
            )));
        }
        let line = parse_line(raw, line_no).map_err(|e| e.within(format!("line {line_no}")))?;
        check_place(&line, next).map_err(|e| e.within(format!("line {line_no}: {}", line.kind)))?;
        next = line.start + line.len;
        lines.push(line);
    }
    Ok(lines)
}

fn parse_line(raw: &str, line_no: usize) -> Result<Line, Error> {
    let mut words = split(raw)?.into_iter();
    let (Some(start), Some(len), Some(kind)) = (words.next(), words.next(), words.next()) else {
        return Err(Error::invalid(format!(
            "invalid format: `{}` must be START_SECTOR LENGTH_SECTORS TARGET_TYPE [ARGUMENTS]",
            raw.trim()
        )));
    };
    let start = sectors(&start, "start sector")?;
    let len = sectors(&len, "length")?;
    Ok(Line { line_no, start, len, kind, args: words.collect() })
}

fn sectors(word: &str, what: &str) -> Result<Sector, Error> {
    let number = digits(word).ok_or_else(|| {
        let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let allowed = match digits {
            true => format!("too large: at most {SECTORS_MAX} sectors are allowed"),
            false => "must be a number of sectors (of 512 bytes), decimal digits only".to_owned(),
        };
        Error::invalid(format!("invalid {what} `{word}`: {allowed}"))
    })?;
    Ok(Sector(number))
}

fn check_place(line: &Line, next: Sector) -> Result<(), Error> {
    let Line { start, len, .. } = *line;
    if len == Sector::ZERO {
        return Err(Error::invalid("zero-length target: the length must be at least 1 sector"));
    }
    if start.checked_add(len).is_none_or(|end| end > SECTORS_MAX) {
        return Err(Error::invalid(format!(
            "too large device: sector {start} + length {len} is beyond {SECTORS_MAX} sectors"
        )));
    }
    if start != next {
        let overlap = if start < next { " (it overlaps the line before)" } else { "" };
        return Err(Error::invalid(format!(
            "Gap in table: starts at sector {start}, must start at {next}{overlap}"
        )));
    }
    Ok(())
}

/// Splits at white space; a backslash quotes the next character.
fn split(line: &str) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c.is_ascii_whitespace() {
            words.extend(word.take());
            continue;
        }
        let c = if c == '\\' {
            chars.next().ok_or_else(|| {
                Error::invalid("couldn't split parameters: a backslash ends the line")
            })?
        } else {
            c
        };
        word.get_or_insert_default().push(c);
    }
    words.extend(word);
    Ok(words)
}

/// The word as a table line must spell it: white space and backslashes quoted.
pub fn quote(word: &str) -> String {
    let mut out = String::with_capacity(word.len());
    for c in word.chars() {
        if c.is_ascii_whitespace() || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_lines_of_start_length_type_and_arguments() {
        let text = "# head\n\n0 64 linear /dev/a\\ b 0\n  64 32\tzero \n#tail\n";
        let lines = parse(text).unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].args, ["/dev/a b", "0"]);
        let zero = Line {
            line_no: 4,
            start: Sector(64),
            len: Sector(32),
            kind: "zero".into(),
            args: vec![],
        };
        assert_eq!(lines[1], zero);
    }

    #[test]
    fn an_empty_table_is_legal() {
        assert_eq!(parse(" \n# nothing\n").unwrap(), []);
    }

    #[test]
    fn errors_name_line_target_and_what_is_allowed() {
        let cases = [
            ("0 0 zero", "line 1: zero: zero-length target: the length must be at least 1 sector"),
            (
                "0 64 zero\n100 8 linear a 0",
                "line 2: linear: Gap in table: starts at sector 100, must start at 64",
            ),
            (
                "0 64 zero\n32 64 zero",
                "line 2: zero: Gap in table: starts at sector 32, must start at 64 \
                 (it overlaps the line before)",
            ),
            ("8 8 zero", "line 1: zero: Gap in table: starts at sector 8, must start at 0"),
            (
                "0 18446744073709551615 zero",
                "line 1: zero: too large device: sector 0 + length 18446744073709551615 is beyond \
                 18014398509481983 sectors",
            ),
            (
                "0 18446744073709551616 zero",
                "line 1: invalid length `18446744073709551616`: too large: at most \
                 18014398509481983 sectors are allowed",
            ),
            (
                "+0 1 zero",
                "line 1: invalid start sector `+0`: must be a number of sectors (of 512 bytes), \
                 decimal digits only",
            ),
            (
                "0 64",
                "line 1: invalid format: `0 64` must be START_SECTOR LENGTH_SECTORS TARGET_TYPE \
                 [ARGUMENTS]",
            ),
            ("0 64 linear a\\", "line 1: couldn't split parameters: a backslash ends the line"),
        ];
        for (text, want) in cases {
            let e = parse(text).unwrap_err();
            assert_eq!(e.to_string(), want);
            assert_eq!(e.kind().errno_name(), "EINVAL");
        }
    }

    #[test]
    fn a_quoted_word_splits_back_into_itself() {
        for word in ["plain", "with space", "tab\tand\\backslash"] {
            assert_eq!(split(&format!("x {} y", quote(word))).unwrap()[1], word);
        }
    }
}
