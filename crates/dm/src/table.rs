// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table language: text to lines, checked as far as no device is needed for it.
//!
//! ```text
//!   # a comment
//!   0    1024 linear  /dev/sdb 0
//!   1024 2048 striped 2 128 /dev/sdc 0 /dev/sdd 0
//!   │    │    │       └ arguments, split at white space; a backslash quotes the next character
//!   │    │    └ target type
//!   │    └ length in sectors, or a size (1000M), or `-`: the whole of the devices
//!   └ first sector: where the line before ended
//! ```
use block::value::{digits, size};
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
    pub len: Length,
    /// Target type.
    pub kind: String,
    /// Its arguments, unquoted.
    pub args: Vec<String>,
}

/// Length of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many sectors.
    Sectors(Sector),
    /// `-`: as long as the devices of the line allow. Only the last line can have it.
    Whole,
}

/// Parses a table. Empty lines and lines that begin with `#` are skipped; no line at all is legal.
pub fn parse(text: &str) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    // Unknown after a line whose length is that of its devices.
    let mut next = Some(Sector::ZERO);
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
        next = match line.len {
            Length::Sectors(len) => Some(line.start + len),
            Length::Whole => None,
        };
        lines.push(line);
    }
    Ok(lines)
}

/// Checks that a line is of the form `START LENGTH TYPE`, whatever follows.
///
/// # Errors
/// What it lacks, or which number is none.
pub fn check_format(line: &str) -> Result<(), Error> {
    let head: Vec<&str> = line.split_ascii_whitespace().take(3).collect();
    parse_line(&head.join(" "), 0).map(drop)
}

pub(crate) fn parse_line(raw: &str, line_no: usize) -> Result<Line, Error> {
    let mut words = split(raw)?.into_iter();
    let (Some(start), Some(len), Some(kind)) = (words.next(), words.next(), words.next()) else {
        return Err(Error::invalid(format!(
            "invalid format: `{}` must be START_SECTOR LENGTH_SECTORS TARGET_TYPE [ARGUMENTS]",
            raw.trim()
        )));
    };
    let start = sectors(&start, "start sector", "")?;
    let len = match len.as_str() {
        "-" => Length::Whole,
        word => Length::Sectors(sectors(word, "length", ", or `-` for the whole device")?),
    };
    Ok(Line { line_no, start, len, kind, args: words.collect() })
}

/// A number of sectors, or a size with a suffix that is a whole number of them; no more than a
/// device can have.
pub(crate) fn sectors_of(word: &str) -> Option<Sector> {
    let bytes = || size(word).filter(|bytes| Sector::from_bytes(*bytes).bytes() == *bytes);
    digits(word).map(Sector).or_else(|| bytes().map(Sector::from_bytes))
}

fn sectors(word: &str, what: &str, or: &str) -> Result<Sector, Error> {
    sectors_of(word).ok_or_else(|| {
        let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let allowed = match digits {
            true => format!("too large: at most {SECTORS_MAX} sectors are allowed"),
            false => format!(
                "must be a number of sectors (of 512 bytes), or a size with K, M, G, T or P that \
                 is a multiple of 512 bytes{or}"
            ),
        };
        Error::invalid(format!("invalid {what} `{word}`: {allowed}"))
    })
}

fn check_place(line: &Line, next: Option<Sector>) -> Result<(), Error> {
    let start = line.start;
    let Some(next) = next else {
        return Err(Error::invalid("only the last line can have the length `-`"));
    };
    if let Length::Sectors(len) = line.len {
        check_length(start, len)?;
    }
    if start != next {
        let overlap = if start < next { " (it overlaps the line before)" } else { "" };
        return Err(Error::invalid(format!(
            "Gap in table: starts at sector {start}, must start at {next}{overlap}"
        )));
    }
    Ok(())
}

/// Whether a line of this length is one that a device can have.
pub(crate) fn check_length(start: Sector, len: Sector) -> Result<(), Error> {
    if len == Sector::ZERO {
        return Err(Error::invalid("zero-length target: the length must be at least 1 sector"));
    }
    if start.checked_add(len).is_none_or(|end| end > SECTORS_MAX) {
        return Err(Error::invalid(format!(
            "too large device: sector {start} + length {len} is beyond {SECTORS_MAX} sectors"
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
            len: Length::Sectors(Sector(32)),
            kind: "zero".into(),
            args: vec![],
        };
        assert_eq!(lines[1], zero);
    }

    #[test]
    fn lengths_are_sectors_sizes_or_the_whole_device() {
        let lines = parse("0 1000M zero\n1000M 8 zero\n1048580096b - linear a 1G\n").unwrap();
        let places: Vec<_> = lines.iter().map(|line| (line.start.0, line.len)).collect();
        let sectors = |n| Length::Sectors(Sector(n));
        let want = [(0, sectors(2_048_000)), (2_048_000, sectors(8)), (2_048_008, Length::Whole)];
        assert_eq!(places, want);
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
                "line 1: invalid start sector `+0`: must be a number of sectors (of 512 bytes), or \
                 a size with K, M, G, T or P that is a multiple of 512 bytes",
            ),
            (
                "0 700b zero",
                "line 1: invalid length `700b`: must be a number of sectors (of 512 bytes), or a \
                 size with K, M, G, T or P that is a multiple of 512 bytes, or `-` for the whole \
                 device",
            ),
            (
                "- 8 zero",
                "line 1: invalid start sector `-`: must be a number of sectors (of 512 \
                 bytes), or a size with K, M, G, T or P that is a multiple of 512 bytes",
            ),
            (
                "0 - linear a 0\n8 8 zero",
                "line 2: zero: only the last line can have the length `-`",
            ),
            (
                "0 16E zero",
                "line 1: invalid length `16E`: must be a number of sectors (of 512 bytes), or a \
                 size with K, M, G, T or P that is a multiple of 512 bytes, or `-` for the whole \
                 device",
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
            assert_eq!(split(&format!("x {} y", block::quote(word))).unwrap()[1], word);
        }
    }
}
