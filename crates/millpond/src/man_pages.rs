// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Man pages: of every verb from the command line's table, and those of the configuration file and
//! of tables from the pages in `docs`.
use std::fmt::Write;

use clap::{Arg, ArgAction, Command};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Pages that belong together: each one names the others of its line under SEE ALSO.
const RELATED: [&str; 9] = [
    "daemon reload save stop run",
    "create load resume table targets help",
    "suspend resume",
    "remove remove_all clear recover",
    "drain flush recover message uncache replace-cache resize",
    "status show top info ls deps wait clients disconnect",
    "get set",
    "inspect recover wipe",
    "mkvol check inspect",
];

const SOURCE: &str = concat!("millpond ", env!("CARGO_PKG_VERSION"));
const MANUAL: &str = "millpond manual";

/// The man page of a verb, or of the program: clap's sections, and what follows the help as
/// sections of its own.
pub(crate) fn of_command(name: &str, command: Command) -> Vec<u8> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (synopsis, subcommands) = (synopsis(&command), command.has_subcommands());
    let man = clap_mangen::Man::new(command.after_help(""));
    let mut page = title(name, 1).into_bytes();
    man.render_name_section(&mut page).unwrap();
    page.extend(format!(".SH SYNOPSIS\n{synopsis}\n").bytes());
    man.render_description_section(&mut page).unwrap();
    man.render_options_section(&mut page).unwrap();
    if subcommands {
        man.render_subcommands_section(&mut page).unwrap();
    }
    page.extend(after_help(&after).bytes());
    page.extend(see_also(name).bytes());
    page
}

/// The page of section 5 or 7 that `docs/NAME.md` is, with sections of the target types.
pub(crate) fn of_document(
    (name, section, summary): (&str, u8, &str),
    document: &str,
    targets: &[(&str, String)],
) -> Vec<u8> {
    let mut page = title(name, section);
    write!(page, ".SH NAME\n{} \\- {}\n", escape(name), escape(summary)).unwrap();
    page.push_str(".SH DESCRIPTION\n");
    page.push_str(&sections(document));
    for (target, text) in targets {
        write!(page, ".SH TARGET {}\n.nf\n{}.fi\n", target.to_uppercase(), escape(text)).unwrap();
    }
    page.push_str(&see_also(name));
    page.into_bytes()
}

fn title(name: &str, section: u8) -> String {
    format!(".TH {name} {section} \"\" \"{SOURCE}\" \"{MANUAL}\"\n")
}

/// The command with its options, their values, and its arguments.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escape(name))];
    let visible = |arg: &&Arg| {
        !arg.is_hide_set() && !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version)
    };
    let (positional, options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(visible).partition(|arg| arg.is_positional());
    for arg in options {
        let text = arg.to_string();
        let (option, value) = text.split_once(' ').unwrap_or((&text, ""));
        let value = match value.trim_matches(['<', '>']) {
            "" => String::new(),
            value => format!(" \\fI{}\\fR", escape(value)),
        };
        let word = format!("\\fB{}\\fR{value}", escape(option));
        words.push(if arg.is_required_set() { word } else { format!("[{word}]") });
    }
    words.extend(positional.iter().map(|arg| format!("\\fI{}\\fR", escape(&arg.to_string()))));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR".into());
    }
    words.join("\n")
}

/// `Examples:` and indented lines, `Exit codes: ...`, and plain paragraphs.
fn after_help(after: &str) -> String {
    let mut out = String::new();
    for paragraph in after.split("\n\n").filter(|p| !p.is_empty()) {
        let text = escape(paragraph);
        if let Some(examples) = text.strip_prefix("Examples:\n") {
            write!(out, ".SH EXAMPLES\n.nf\n{examples}\n.fi\n").unwrap();
        } else if let Some(codes) = text.strip_prefix("Exit codes: ") {
            write!(out, ".SH EXIT STATUS\n{codes}\n").unwrap();
        } else {
            write!(out, ".SH NOTES\n{text}\n").unwrap();
        }
    }
    out
}

fn see_also(name: &str) -> String {
    let verb = name.strip_prefix("millpond-").unwrap_or_default();
    let lines = RELATED.iter().filter(|line| line.split(' ').any(|word| word == verb));
    let mut pages = Vec::new();
    for other in lines.flat_map(|line| line.split(' ')).filter(|other| *other != verb) {
        let page = format!("millpond-{other}(1)");
        if !pages.contains(&page) {
            pages.push(page);
        }
    }
    pages.sort();
    for page in ["millpond(1)", "millpond.toml(5)", "millpond(7)"] {
        pages.push(page.into());
    }
    format!(".SH SEE ALSO\n{}\n", escape(&pages.join(", ")))
}

/// Text as roff prints it unchanged.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let lines: Vec<String> = text
        .split('\n')
        .map(|l| if l.starts_with('.') { format!("\\&{l}") } else { l.to_owned() })
        .collect();
    lines.join("\n")
}

/// The Markdown of our pages as roff: without its title, and without the targets of links.
fn sections(markdown: &str) -> String {
    let mut out = String::new();
    let (mut in_title, mut in_code, mut in_item, mut cell) = (false, false, false, 0);
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { level: HeadingLevel::H1, .. }) => in_title = true,
            Event::End(TagEnd::Heading(HeadingLevel::H1)) => in_title = false,
            Event::Start(Tag::Heading { .. }) => out.push_str("\n.SH "),
            Event::Start(Tag::Paragraph) if !in_item => out.push_str("\n.PP\n"),
            Event::Start(Tag::Item) => {
                in_item = true;
                out.push_str("\n.IP \\(bu 2\n");
            }
            Event::End(TagEnd::Item) => in_item = false,
            Event::Start(Tag::CodeBlock(_)) => {
                in_code = true;
                out.push_str("\n.PP\n.nf\n");
            }
            Event::End(TagEnd::CodeBlock) => {
                in_code = false;
                out.push_str(".fi\n");
            }
            Event::Start(Tag::TableRow | Tag::TableHead) => {
                cell = 0;
                out.push_str("\n.TP\n");
            }
            Event::End(TagEnd::TableCell) => {
                cell += 1;
                out.push('\n');
            }
            Event::Start(Tag::TableCell) if cell > 1 => out.push_str(".br\n"),
            Event::Code(code) => write!(out, "\\fB{}\\fR", escape(&code)).unwrap(),
            Event::Start(Tag::Strong) => out.push_str("\\fB"),
            Event::End(TagEnd::Strong) => out.push_str("\\fR"),
            Event::Text(_) if in_title => (),
            Event::Text(text) if in_code => {
                let indented = text.lines().map(|line| format!("    {line}\n"));
                out.push_str(&escape(&indented.collect::<String>()));
            }
            Event::Text(text) => out.push_str(&escape(&text)),
            Event::SoftBreak | Event::HardBreak => out.push('\n'),
            Event::End(TagEnd::Paragraph | TagEnd::Heading(_)) => out.push('\n'),
            Event::Start(_)
            | Event::End(_)
            | Event::InlineMath(_)
            | Event::DisplayMath(_)
            | Event::Html(_)
            | Event::InlineHtml(_)
            | Event::FootnoteReference(_)
            | Event::Rule
            | Event::TaskListMarker(_) => (),
        }
    }
    let lines: Vec<&str> = out.lines().filter(|line| !line.is_empty()).collect();
    lines.join("\n") + "\n"
}

#[test]
fn markdown_becomes_roff() {
    let text = "# Title\n\nA `word-x` of\n**it**, [there](a.md).\n\n## Part\n\n- one\n- two's\n\n\
                ```toml\n.a = \"\\\\\"\n\n# b\n```\n";
    let roff = ".PP\nA \\fBword\\-x\\fR of\n\\fBit\\fR, there\\&.\n.SH Part\n.IP \\(bu 2\none\n\
                .IP \\(bu 2\ntwo\\(aqs\n.PP\n.nf\n    .a = \"\\e\\e\"\n    \n    # b\n.fi\n";
    assert_eq!(sections(text), roff);
}
