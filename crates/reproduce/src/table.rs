// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables for people: texts to the left, figures to the right.
use std::fmt;

/// A figure with so many digits behind the point; a dash for none.
pub fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// A title, a head, rows and notes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    title: String,
    /// How many columns are texts; the first ones.
    texts: usize,
    /// The head is the first one.
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// One with columns of texts and of figures, and no row.
    pub fn new(title: impl Into<String>, texts: &[&str], figures: &[&str]) -> Table {
        let head = texts.iter().chain(figures).map(|name| (*name).to_owned()).collect();
        let (title, texts) = (title.into(), texts.len());
        Table { title, texts, rows: vec![head], notes: Vec::new() }
    }

    /// Adds a row; it may have fewer figures than there are columns.
    ///
    /// # Panics
    /// When it has not as many texts as there are columns of texts.
    pub fn row(&mut self, texts: &[&str], figures: impl IntoIterator<Item = String>) {
        assert_eq!(texts.len(), self.texts, "a text for each column of texts");
        let texts = texts.iter().map(|text| (*text).to_owned());
        self.rows.push(texts.chain(figures).collect());
    }

    /// Adds a line below.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        if self.rows.len() > 1 {
            f.write_str(&aligned(&self.rows, self.texts))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {}", note.replace('\n', "\n  ")))
    }
}

/// Rows with their columns below each other; the first `texts` of them begin where their heads
/// begin, the others end where they end.
pub(crate) fn aligned(rows: &[Vec<String>], texts: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let chars = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    let width = |at| rows.iter().map(|row| chars(row, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| {
            if at < texts { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        out.push_str(&format!("  {}\n", line.trim_end()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_begin_and_figures_end_below_each_other() {
        let mut table = Table::new("flushes", &["way"], &["s", "writes"]);
        table.row(&["sorted"], [fixed(1.26, 1), "10".to_owned()]);
        table.row(&["lru"], [fixed(f64::NAN, 1)]);
        table.note("two\nlines");
        let lines = ["flushes", "  way       s  writes", "  sorted  1.3      10", "  lru       -"];
        let shown = format!("{}\n  two\n  lines\n", lines.join("\n"));
        assert_eq!(table.to_string(), shown);
    }
}
