// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One frame on a terminal of 80 columns and more: devices above, write caches, clients below.
//!
//! ```text
//!   millpond 0.2.0 pid 42: 2 devices, 1 client; every 1s, by name
//!   DEVICE         SIZE      STATE      READ/s  ...
//!   wc             64.0 MiB  drain 45 % ...
//!
//!   CACHE         R HIT W HIT  ONCE/s ...
//!   wc             97 %  81 %      70 ...
//!
//!   CLIENT   DEVICE         PEER ...
//!   nbd1     wc             pid 7 (uid 0) ...
//!   q quit  s sort  ...
//! ```
use super::view::{CACHE_HEAD, CLIENT_HEAD, DEVICE_HEAD, View};

const KEYS: &str = "q quit  s sort  r reverse  p pause  + - interval  arrows scroll";

/// Widths of the columns of devices: 80 with the gaps; the name takes what a wider terminal has.
const DEVICE_WIDTHS: [usize; 9] = [14, 9, 10, 9, 9, 6, 7, 5, 3];
/// Widths of the columns of write caches, in the same way.
const CACHE_WIDTHS: [usize; 9] = [13, 5, 5, 7, 7, 8, 9, 9, 9];
/// Widths of the columns of clients; the peer takes what a wider terminal has.
const CLIENT_WIDTHS: [usize; 7] = [8, 14, 21, 7, 6, 9, 9];
/// The first so many columns are texts, on the left; figures are on the right.
const DEVICE_TEXTS: usize = 3;
const CACHE_TEXTS: usize = 1;
const CLIENT_TEXTS: usize = 4;
/// The column that takes what is left.
const DEVICE_WIDEST: usize = 0;
const CACHE_WIDEST: usize = 0;
const CLIENT_WIDEST: usize = 2;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const REVERSED: &str = "\x1b[7m";
const PLAIN: &str = "\x1b[0m";

/// A line and its style.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    style: &'static str,
    text: String,
}

/// What is written to show the frame.
pub(super) fn frame(view: &View, rows: usize, columns: usize) -> String {
    let mut out = String::from("\x1b[H");
    for (nth, line) in lines(view, rows, columns).into_iter().enumerate() {
        if nth > 0 {
            out.push_str("\r\n");
        }
        out.push_str(line.style);
        out.push_str(&line.text);
        // The rest of the line keeps the style of a heading.
        out.push_str("\x1b[K");
        out.push_str(PLAIN);
    }
    out.push_str("\x1b[J");
    out
}

/// As many lines as the terminal has rows, none longer than its columns.
fn lines(view: &View, rows: usize, columns: usize) -> Vec<Line> {
    let title = Line { style: BOLD, text: view.title() };
    let device = |cells| row(cells, DEVICE_WIDTHS, (DEVICE_TEXTS, DEVICE_WIDEST), columns);
    let client = |cells| row(cells, CLIENT_WIDTHS, (CLIENT_TEXTS, CLIENT_WIDEST), columns);
    let cache = |cells| row(cells, CACHE_WIDTHS, (CACHE_TEXTS, CACHE_WIDEST), columns);
    // Title, keys, two heads, a gap; with write caches one more of each. Clients get half of the
    // rest at most, caches half of what is left then, devices the others.
    let has_caches = !view.caches().is_empty();
    let free = rows.saturating_sub(if has_caches { 7 } else { 5 });
    let clients = view.clients().len().min(free / 2);
    let caches = view.caches().len().min((free - clients) / 2);
    let free = free - caches;
    let devices = view.devices().len().min(free - clients);
    let mut all = vec![title];
    let head = |text| Line { style: REVERSED, text };
    let plain = |text| Line { style: PLAIN, text };
    all.push(head(device(DEVICE_HEAD.map(str::to_owned))));
    all.extend(view.devices()[..devices].iter().map(|d| plain(device(d.cells()))));
    if has_caches {
        all.push(plain(String::new()));
        all.push(head(cache(CACHE_HEAD.map(str::to_owned))));
        all.extend(view.caches()[..caches].iter().map(|c| plain(cache(c.cells()))));
    }
    let gap = free - clients - devices + 1;
    all.extend((0..gap).map(|_| plain(String::new())));
    all.push(head(client(CLIENT_HEAD.map(str::to_owned))));
    all.extend(view.clients()[..clients].iter().map(|c| plain(client(c.cells()))));
    all.push(Line { style: DIM, text: KEYS.to_owned() });
    all.truncate(rows);
    for line in &mut all {
        // No name can steer the terminal.
        line.text = control::plain(&line.text).replace('\n', " ").chars().take(columns).collect();
    }
    all
}

fn row<const N: usize>(
    cells: [String; N],
    mut widths: [usize; N],
    (texts, widest): (usize, usize),
    columns: usize,
) -> String {
    let taken = widths.iter().sum::<usize>() + N - 1;
    widths[widest] += columns.saturating_sub(taken);
    let cell = |(nth, (cell, width)): (usize, (String, usize))| {
        let cut: String = cell.chars().take(width).collect();
        if nth < texts { format!("{cut:<width$}") } else { format!("{cut:>width$}") }
    };
    let cells = cells.into_iter().zip(widths).enumerate().map(cell);
    cells.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::top::view::Sort;
    use crate::top::view::tests::view;

    #[test]
    fn a_frame_fills_a_terminal_and_no_line_is_too_long() {
        for (rows, columns) in [(24, 80), (50, 200), (6, 40), (1, 1)] {
            let lines = lines(&view(Sort::Name), rows, columns);
            assert_eq!(lines.len(), rows);
            assert!(lines.iter().all(|line| line.text.chars().count() <= columns), "{lines:?}");
        }
        let shown = lines(&view(Sort::Name), 24, 80);
        assert_eq!(shown[23].text, KEYS);
        let a = "a              1.0 MiB   drain 45 %   4.0 KiB   2.0 KiB     11       -     -   1";
        assert_eq!(shown[2].text, a);
        let cache =
            "a              75 %  50 %      35       3        0  64.0 KiB   2.0 KiB   2.0 KiB";
        assert_eq!(shown[6].text, cache);
    }

    #[test]
    fn without_a_sample_there_are_headings_only() {
        let empty = View::new(Sort::Name, Duration::from_secs(1));
        let shown = frame(&empty, 24, 80);
        assert!(shown.contains("DEVICE") && shown.contains("CLIENT"), "{shown:?}");
    }
}
