// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of aligned text, texts on the left and figures on the right; and the same as Markdown.
use std::fmt;

/// A figure with `digits` decimal places; a dash if it is not finite.
pub fn fixed(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// A title, a heading, rows and notes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    title: String,
    /// The first so many columns are texts.
    texts: usize,
    /// The heading is the first one.
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// A table with these columns and no row.
    pub fn new(title: impl Into<String>, texts: &[&str], figures: &[&str]) -> Table {
        let head = texts.iter().chain(figures).map(|name| (*name).to_owned()).collect();
        let (title, texts) = (title.into(), texts.len());
        Table { title, texts, rows: vec![head], notes: Vec::new() }
    }

    /// Adds a row; it may have fewer figures than there are columns.
    ///
    /// # Panics
    /// If the number of texts is not the number of columns of texts.
    pub fn row(&mut self, texts: &[&str], figures: impl IntoIterator<Item = String>) {
        assert_eq!(texts.len(), self.texts, "a text for each column of texts");
        let texts = texts.iter().map(|text| (*text).to_owned());
        self.rows.push(texts.chain(figures).collect());
    }

    /// Adds a line below.
    pub fn note(&mut self, line: impl Into<String>) {
        self.notes.push(line.into());
    }

    /// Whether it has only the heading.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// For a document.
    pub fn markdown(&self) -> String {
        let columns = self.rows[0].len();
        let line = |cells: &[String]| {
            let missing = vec![String::new(); columns - cells.len()];
            format!("| {} |\n", [cells, &missing].concat().join(" | "))
        };
        let mut out = format!("### {}\n\n{}", self.title, line(&self.rows[0]));
        let mark = |at| if at < self.texts { "---" } else { "---:" }.to_owned();
        out.push_str(&line(&(0..columns).map(mark).collect::<Vec<_>>()));
        self.rows[1..].iter().for_each(|row| out.push_str(&line(row)));
        if !self.notes.is_empty() {
            out.push('\n');
        }
        self.notes.iter().for_each(|note| out.push_str(&format!("- {note}\n")));
        out
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        if !self.is_empty() {
            f.write_str(&aligned(&self.rows, self.texts))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {}", note.replace('\n', "\n  ")))
    }
}

/// Rows with aligned columns: the first `texts` columns to the left, the others to the right.
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

    fn table() -> Table {
        let mut table = Table::new("flushes", &["way"], &["s", "writes"]);
        table.row(&["sorted"], [fixed(1.26, 1), "10".to_owned()]);
        table.row(&["lru"], [fixed(f64::NAN, 1)]);
        table
    }

    #[test]
    fn texts_begin_and_figures_end_below_each_other() {
        let mut table = table();
        table.note("two\nlines");
        let lines = ["flushes", "  way       s  writes", "  sorted  1.3      10", "  lru       -"];
        let shown = format!("{}\n  two\n  lines\n", lines.join("\n"));
        assert_eq!(table.to_string(), shown);
    }

    #[test]
    fn markdown_has_all_cells_in_every_row() {
        let mut table = table();
        table.note("on a disk");
        let shown = "### flushes\n\n| way | s | writes |\n| --- | ---: | ---: |\n\
                     | sorted | 1.3 | 10 |\n| lru | - |  |\n\n- on a disk\n";
        assert_eq!(table.markdown(), shown);
    }
}
