// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The output of `millpond help TARGET`: the arguments, options and attributes of a target type,
//! from its tables.
use block::Access;
use block::attr::{Kind, Manual, OptionForm, Spec};

/// The page of a target type.
pub fn page(manual: &Manual) -> String {
    let Manual { name, version: (major, minor, patch), about, arguments, specs, .. } = manual;
    let gap = if arguments.is_empty() { "" } else { " " };
    let mut page = format!("{name} {major}.{minor}.{patch}: {about}\n\n");
    page.push_str(&format!("Table line:\n  START LENGTH {name}{gap}{arguments}\n"));
    let specs = specs();
    let is_option = |spec: &&&Spec| spec.form != OptionForm::Never;
    let options: String = specs.iter().filter(is_option).map(|spec| option(spec)).collect();
    if !options.is_empty() {
        page.push_str(&format!("\nOptions:\n{options}"));
    }
    let rest = specs.iter().filter(|spec| spec.form == OptionForm::Never);
    let attributes: String = rest.map(|spec| attribute(spec)).collect();
    if !attributes.is_empty() {
        page.push_str(&format!("\nAttributes besides the options:\n{attributes}"));
    }
    page
}

/// The pages' list.
pub fn list(manuals: &[&Manual]) -> String {
    let line = |manual: &&Manual| format!("{:<12} {}\n", manual.name, manual.about);
    manuals.iter().map(line).collect()
}

/// What is known of the attribute or option of this name, in each of the tables that have it; none
/// when none has.
pub fn attribute_page(name: &str, tables: &[(&str, Vec<&'static Spec>)]) -> Option<String> {
    let mut pages = Vec::new();
    for (owner, specs) in tables {
        for spec in specs.iter().filter(|spec| spec.name.eq_ignore_ascii_case(name)) {
            pages.push(of_owner(owner, spec));
        }
    }
    (!pages.is_empty()).then(|| pages.join("\n"))
}

fn of_owner(owner: &str, spec: &Spec) -> String {
    let option = match spec.form {
        OptionForm::Never => "no",
        OptionForm::Name => "yes, the name alone",
        OptionForm::Value => "yes, the name and a value",
    };
    let live = match spec.access {
        Access::Read | Access::ReadMany => "no: it can only be read",
        Access::ReadWrite => "yes: `millpond set`",
        Access::Write if spec.progress.is_some() => {
            "it is a command that may take long: `millpond set` runs it"
        }
        Access::Write => "it is a command: `millpond set` runs it",
    };
    let mut lines = vec![("values", values(spec))];
    if !spec.default.is_empty() {
        lines.push(("default", spec.default.to_owned()));
    }
    lines.push(("set while in use", live.to_owned()));
    lines.push(("in a table line", option.to_owned()));
    let lines = lines.into_iter().map(|(label, text)| format!("  {label:<18}{text}\n"));
    format!("{} of {owner}: {}\n{}", spec.name, spec.help, lines.collect::<String>())
}

fn rights(access: Access) -> &'static str {
    match access {
        Access::Read | Access::ReadMany => "read-only",
        Access::Write => "write-only",
        Access::ReadWrite => "read and set",
    }
}

fn option(spec: &Spec) -> String {
    let word = if spec.form == OptionForm::Value { " VALUE" } else { "" };
    let set = if spec.access.writes() { "attribute, too" } else { "of table lines only" };
    let default = match spec.default {
        "" => String::new(),
        default => format!("; default {default}"),
    };
    let values = match spec.form {
        OptionForm::Value => format!("{}{default}; ", allowed(spec)),
        OptionForm::Name | OptionForm::Never => String::new(),
    };
    format!("  {}{word}\n      {}\n      {values}{set}\n", spec.name, spec.help)
}

fn attribute(spec: &Spec) -> String {
    let values = values(spec);
    format!("  {}\n      {}\n      {values}; {}\n", spec.name, spec.help, rights(spec.access))
}

fn values(spec: &Spec) -> String {
    match spec.kind {
        Kind::Number { unit: "", .. } if !spec.access.writes() => "a number".to_owned(),
        Kind::Number { unit, .. } if !spec.access.writes() => unit.to_owned(),
        Kind::Flag => "0 or 1".to_owned(),
        Kind::Number { .. }
        | Kind::NumberOr { .. }
        | Kind::Time { .. }
        | Kind::Size { .. }
        | Kind::Seconds { .. }
        | Kind::Choice(_)
        | Kind::Text(_) => allowed(spec),
    }
}

/// The allowed values, as the error prints them.
fn allowed(spec: &Spec) -> String {
    spec.kind.to_string().trim_end_matches(',').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    static JOBS: Spec =
        Spec::new("jobs", Kind::Number { min: 1, max: 9, unit: "writes" }, "writes at once")
            .access(Access::ReadWrite)
            .option(OptionForm::Value)
            .default("2");
    static LAZY: Spec = Spec::new("lazy", Kind::Flag, "nothing is done").option(OptionForm::Name);
    static DONE: Spec =
        Spec::new("done", Kind::Number { min: 0, max: u64::MAX, unit: "writes" }, "writes so far");

    #[test]
    fn an_attribute_is_described_for_each_that_has_it() {
        let tables = [("engine", vec![&JOBS, &LAZY]), ("leaves", vec![&DONE, &JOBS])];
        let of = |owner: &str| {
            format!(
                "jobs of {owner}: writes at once\n  \
                 values            a number from 1 to 9 writes\n  \
                 default           2\n  \
                 set while in use  yes: `millpond set`\n  \
                 in a table line   yes, the name and a value\n"
            )
        };
        let page = attribute_page("Jobs", &tables).unwrap();
        assert_eq!(page, format!("{}\n{}", of("engine"), of("leaves")));
        let done = attribute_page("done", &tables).unwrap();
        assert!(done.contains("  set while in use  no: it can only be read\n"), "{done}");
        assert!(!done.contains("default"), "{done}");
        assert_eq!(attribute_page("jobz", &tables), None);
    }

    #[test]
    fn a_page_has_arguments_options_and_attributes() {
        let manual = Manual {
            name: "engine",
            version: (1, 2, 3),
            about: "does it",
            arguments: "DEVICE [#opt_args [OPTION [VALUE]]...]",
            specs: || vec![&JOBS, &LAZY, &DONE],
            metrics: Vec::new,
        };
        let text = "\
engine 1.2.3: does it

Table line:
  START LENGTH engine DEVICE [#opt_args [OPTION [VALUE]]...]

Options:
  jobs VALUE
      writes at once
      a number from 1 to 9 writes; default 2; attribute, too
  lazy
      nothing is done
      of table lines only

Attributes besides the options:
  done
      writes so far
      writes; read-only
";
        assert_eq!(page(&manual), text);
        assert_eq!(list(&[&manual]), "engine       does it\n");
    }
}
