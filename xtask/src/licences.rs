// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every dependency may be used under a licence on the allow list of deny.toml, and every one that
//! we name ourselves has its line in docs/dependencies.md.
//!
//! cargo-deny checks the same and more (`make deny`); this needs nothing but cargo.

use std::path::Path;

use spdx::{Expression, ParseMode};

use crate::metadata::{self, Package};

/// Findings in this checkout.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"));
    let allowed = allow_list(&read("deny.toml")?)?;
    let packages = metadata::read(root)?;
    let mut found = licence_findings(&packages, &allowed);
    found.extend(undocumented(&packages, &read("docs/dependencies.md")?));
    Ok(found)
}

/// The strings of `allow = [...]` in the section `[licenses]`.
fn allow_list(deny_toml: &str) -> Result<Vec<String>, String> {
    let section = deny_toml.split("\n[licenses]").nth(1).ok_or("deny.toml: no [licenses]")?;
    let list = section.split("\nallow = [").nth(1).ok_or("deny.toml: no allow list")?;
    let list = list.split(']').next().unwrap_or_default();
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    let names: Vec<String> = list.lines().filter_map(quoted).collect();
    if names.is_empty() { Err("deny.toml: empty allow list".to_owned()) } else { Ok(names) }
}

fn licence_findings(packages: &[Package], allowed: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages.iter().filter(|p| p.outside) {
        let named = format!("{} {}", package.name, package.version);
        match package.license.as_deref() {
            None => found.push(format!("{named} names no licence")),
            Some(expression) => match satisfied(expression, allowed) {
                Ok(true) => {}
                Ok(false) => found.push(format!(
                    "{named} is under '{expression}', which deny.toml does not allow"
                )),
                Err(why) => found.push(format!("{named}: licence '{expression}': {why}")),
            },
        }
    }
    found
}

/// Direct dependencies of ours (tests' too) without a line `| name | ...` in the document.
fn undocumented(packages: &[Package], document: &str) -> Vec<String> {
    let ours: Vec<&Package> = packages.iter().filter(|p| !p.outside).collect();
    let mut names: Vec<&str> = ours
        .iter()
        .flat_map(|p| &p.dependencies)
        .map(|d| d.name.as_str())
        .filter(|name| !ours.iter().any(|p| p.name == *name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let described = |name: &str| document.lines().any(|l| l.starts_with(&format!("| {name} |")));
    names
        .into_iter()
        .filter(|name| !described(name))
        .map(|name| format!("{name} has no line in docs/dependencies.md"))
        .collect()
}

/// Whether an SPDX expression can be met with allowed licences alone. An exception (`WITH`) only
/// adds rights: it is enough that the licence itself is allowed.
fn satisfied(expression: &str, allowed: &[String]) -> Result<bool, String> {
    // Lax: old packages write MIT/Apache-2.0, and GPL-3.0 without -only or -or-later.
    let expression =
        Expression::parse_mode(expression, ParseMode::LAX).map_err(|e| e.to_string())?;
    Ok(expression.evaluate(|request| {
        request.license.id().is_some_and(|id| allowed.iter().any(|name| name == id.name))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn allowed() -> Vec<String> {
        ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).to_vec()
    }

    #[test]
    fn expressions_are_met_by_allowed_licences_alone() {
        let cases = [
            ("MIT", true),
            ("MIT OR GPL-3.0", true),
            ("GPL-2.0-only", false),
            ("MIT/Apache-2.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("GPL-3.0 AND MIT OR Apache-2.0", true),
        ];
        for (expression, expected) in cases {
            assert_eq!(satisfied(expression, &allowed()), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn broken_expressions_are_errors() {
        for expression in ["", "MIT OR", "(MIT", "MIT Apache-2.0", "MIT WITH"] {
            assert!(satisfied(expression, &allowed()).is_err(), "{expression}");
        }
    }

    #[test]
    fn packages_without_an_allowed_licence_are_found() {
        let package = |name: &str, license: Option<&str>| Package {
            name: name.to_owned(),
            license: license.map(str::to_owned),
            outside: true,
            ..Package::default()
        };
        let packages =
            [package("good", Some("MIT")), package("bad", Some("AGPL-3.0")), package("none", None)];
        let found = licence_findings(&packages, &allowed());
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn direct_dependencies_need_a_line_in_the_document() {
        let dependency = |name: &str| Dependency { name: name.to_owned(), dev: false };
        let ours = |name: &str, dependencies| Package {
            name: name.to_owned(),
            dependencies,
            ..Package::default()
        };
        let packages = [
            ours("block", vec![dependency("slab"), dependency("smallvec")]),
            ours("dm", vec![dependency("block")]),
        ];
        let found = undocumented(&packages, "| name | why |\n| slab | slots |\n");
        assert_eq!(found, ["smallvec has no line in docs/dependencies.md"]);
    }

    #[test]
    fn the_allow_list_is_read_from_deny_toml() {
        let text = "x = 1\n[licenses]\nversion = 2\nallow = [\n  \"MIT\",\n  \"ISC\", # short\n]\n";
        assert_eq!(allow_list(text).unwrap(), ["MIT", "ISC"]);
        assert!(allow_list("[bans]\n").is_err());
    }
}
