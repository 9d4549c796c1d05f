// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in columns, and short forms of times.
use std::fmt::Write;

/// The rows, each cell as wide as the widest of its column.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// `1 client`, `2 clients`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `35s`, `12m05s`, `3h07m`, `2d04h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        86_400.. => format!("{}d{:02}h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_as_wide_as_their_column() {
        let rows = [["A", "LONG", "C"], ["abc", "d", "e"]].map(|row| row.map(str::to_owned));
        assert_eq!(columns(&rows), "A    LONG  C\nabc  d     e\n");
        assert_eq!(columns::<3>(&[]), "");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(1, "client"), "1 client");
        assert_eq!(counted(0, "client"), "0 clients");
        assert_eq!(counted(2, "table"), "2 tables");
    }

    #[test]
    fn a_duration_has_two_units_at_most() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (725, "12m05s"),
            (3600, "1h00m"),
            (11_220, "3h07m"),
            (187_200, "2d04h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
