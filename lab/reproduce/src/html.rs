// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report as one HTML page: tables and plots, no script, no request to another host.
use std::fmt::Write;

use crate::headline;
use crate::report::{Mark, Plot, Report, Section};
use crate::svg::draw;
use crate::text::{cells, head, preface};

const STYLE: &str = include_str!("page.css");

/// The text with the characters escaped that HTML gives a meaning.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>millpond reproduce</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>millpond reproduce</h1>\n<p>{}</p>\n",
            escaped(&preface(self))
        );
        if !self.run.is_empty() || !self.facts.is_empty() {
            out.push_str("<dl>\n");
            for (name, value) in self.run.iter().chain(&self.facts) {
                let (name, value) = (escaped(name), escaped(value));
                let _ = writeln!(out, "<dt>{name}</dt><dd>{value}</dd>"); // this cannot fail
            }
            out.push_str("</dl>\n");
        }
        out.push_str(&headline::figure(self));
        for section in &self.sections {
            of_section(&mut out, section);
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

fn of_section(out: &mut String, section: &Section) {
    let name = escaped(section.name);
    let _ = writeln!(out, "<section id=\"{name}\">\n<h2>{name}</h2>");
    if let Some(error) = &section.error {
        let _ = writeln!(out, "<p class=\"error\">Could not be run: {}</p>", escaped(error));
    }
    if !section.rows.is_empty() {
        out.push_str("<table>\n<thead><tr>");
        for title in head() {
            let _ = write!(out, "<th>{title}</th>");
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &section.rows {
            // On a narrow page a row is a list: each cell has its title.
            let cell = |(title, text): (&str, &String)| {
                let class = if text == "-" { " class=\"none\"" } else { "" };
                format!("<td{class} data-title=\"{title}\">{}</td>", escaped(text))
            };
            let cells: String = head().into_iter().zip(&cells(row)).map(cell).collect();
            let _ = writeln!(out, "<tr>{cells}</tr>");
        }
        out.push_str("</tbody></table>\n");
    }
    for note in &section.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
    }
    out.push_str("<div class=\"plots\">\n");
    section.plots.iter().for_each(|plot| of_plot(out, plot));
    out.push_str("</div>\n</section>\n");
}

fn of_plot(out: &mut String, plot: &Plot) {
    let (id, title) = (escaped(&plot.id.replace(' ', "-")), escaped(&plot.title));
    let _ = write!(out, "<figure id=\"{id}\"><figcaption>{title}");
    let _ = writeln!(out, "<small>{}</small></figcaption>\n{}", escaped(plot.y), draw(plot));
    out.push_str("<ul>");
    for (nth, series) in plot.series.iter().enumerate() {
        let name = escaped(&series.name);
        let _ = write!(out, "<li><span class=\"s{nth}\"></span>{name}</li>");
    }
    if plot.marks.iter().any(|mark| matches!(mark, Mark::Published { .. })) {
        out.push_str("<li><span class=\"published\"></span>published</li>");
    }
    out.push_str("</ul></figure>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_report_cannot_become_markup() {
        let evil = "<script>alert('x')</script> & \"y\"";
        let report = Report {
            is_simulated: false,
            run: vec![("command", evil.to_owned())],
            facts: vec![("CPU", evil.to_owned())],
            sections: vec![Section {
                name: "x",
                notes: vec![evil.to_owned()],
                error: Some(evil.to_owned()),
                ..Section::default()
            }],
        };
        let page = report.html();
        assert!(!page.contains("<script"), "{page}");
        let said = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;y&quot;";
        assert_eq!(page.matches(said).count(), 4, "{page}");
    }
}
