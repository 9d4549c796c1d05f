// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text in columns, and short forms of times.
use std::fmt::Write;
use std::iter::once;

/// The rows under a head, each cell as wide as the widest of its column. Without a row it is the
/// text `none`, or the head alone if that is empty.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    none: &str,
) -> String {
    let rows: Vec<_> = once(head.map(str::to_owned)).chain(rows).collect();
    if rows.len() == 1 && !none.is_empty() {
        return none.into();
    }
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
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

/// `2026-11-24 15:47:17 UTC` from seconds since 1970.
pub(crate) fn utc(seconds: u64) -> String {
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
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
    use std::iter::empty;

    use super::*;

    #[test]
    fn cells_are_as_wide_as_their_column() {
        let head = ["A", "LONG", "C"];
        let row = ["abc", "d", "e"].map(str::to_owned);
        assert_eq!(table(head, once(row), "None\n"), "A    LONG  C\nabc  d     e\n");
        assert_eq!(table(head, empty(), "None\n"), "None\n");
        assert_eq!(table(head, empty(), ""), "A  LONG  C\n");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(1, "client"), "1 client");
        assert_eq!(counted(0, "client"), "0 clients");
        assert_eq!(counted(2, "table"), "2 tables");
    }

    #[test]
    fn a_time_is_a_date_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_795_535_237, "2026-11-24 15:47:17 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
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
