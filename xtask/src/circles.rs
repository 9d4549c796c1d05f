// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files of a crate import each other: at most four in a circle.
//!
//! The files of a circle can only be understood together: each needs all others, directly or
//! through others. An import is a `use` or a path in code that begins with `crate`, `super`, `self`
//! or a module that the file declares. It leads to the file with the item's module.
//!
//! - A name that a module has by a `use` leads to the file behind it. A `pub use` is no import.
//! - Modules of tests, and their files, do not count. Only they may have a `#[path]`: it is not
//!   followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::imports::{self, FileImports, Import, ModulePath};
use crate::metadata::Package;
use crate::source::code_only;

const CIRCLE_FILES_MAX: usize = 4;

/// How many `use` a path may lead through: one can name itself.
const USES_MAX: usize = 6;

/// Findings in the crates of this checkout.
pub(crate) fn check(root: &Path, packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    for package in packages.iter().filter(|p| !p.outside) {
        let folder = package.manifest.with_file_name("src");
        let shown = folder.strip_prefix(root).unwrap_or(&folder).display().to_string();
        let text_of = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
        for file in ["lib.rs", "main.rs"] {
            let circles = Modules::read(file, &text_of).circles();
            let large = circles.iter().filter(|circle| circle.is_large());
            found.extend(large.map(|circle| circle.finding(&package.name, &shown)));
        }
    }
    found
}

/// Files each of which imports all others, directly or through others of them.
#[derive(Debug)]
struct Circle {
    files: Vec<String>,
    /// One for each file that another imports.
    imports: Vec<FileImport>,
}

#[derive(Debug, Clone)]
struct FileImport {
    from: String,
    line: usize,
    /// What stands there.
    path: String,
    to: String,
}

impl Circle {
    fn is_large(&self) -> bool {
        self.files.len() > CIRCLE_FILES_MAX
    }

    fn finding(&self, name: &str, folder: &str) -> String {
        let mut text = format!(
            "{name} has {} files that import each other in a circle, at most {CIRCLE_FILES_MAX} \
             are allowed; move what they share to a file that imports none of them: {}",
            self.files.len(),
            self.files.join(", ")
        );
        for FileImport { from, line, path, to } in &self.imports {
            text += &format!("\n    {folder}/{from}:{line}: imports {path} from {to}");
        }
        text
    }
}

/// The modules of a crate.
#[derive(Debug, Default)]
struct Modules {
    /// The file that each stands in.
    files: BTreeMap<ModulePath, String>,
    /// The path behind each name that a module has by a `use`.
    names: BTreeMap<(ModulePath, String), Vec<String>>,
    imports: Vec<Import>,
}

impl Modules {
    /// The module of the file `root` and those that it declares, down to the last.
    fn read(root: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Modules {
        let mut modules = Modules::default();
        let mut left = vec![(ModulePath::new(), vec![root.to_owned()])];
        while let Some((module, files)) = left.pop() {
            let text = |file: String| text_of(&file).map(|text| (file, text));
            let Some((file, text)) = files.into_iter().find_map(text) else { continue };
            let read = imports::read(&module, &code_only(&text));
            for child in &read.modules {
                let path = child.join("/");
                left.push((child.clone(), vec![format!("{path}.rs"), format!("{path}/mod.rs")]));
            }
            modules.add(module, &file, read);
        }
        modules
    }

    fn add(&mut self, module: ModulePath, file: &str, read: FileImports) {
        for inline in read.inline_modules {
            self.files.insert(inline, file.to_owned());
        }
        self.files.insert(module, file.to_owned());
        for Import { module, path, name, public, .. } in &read.imports {
            let Some(name) = name else { continue };
            let key = (module.clone(), name.clone());
            if *public {
                self.names.insert(key, path.clone());
            } else {
                self.names.entry(key).or_insert_with(|| path.clone());
            }
        }
        self.imports.extend(read.imports);
    }

    /// The file that a path leads to; none if it leaves the crate.
    fn file_of(&self, module: &[String], path: &[String], uses: usize) -> Option<&str> {
        let (mut module, mut rest) = (module.to_vec(), path);
        let first = rest.first()?;
        if first == "crate" {
            module.clear();
            rest = &rest[1..];
        } else if first == "self" || first == "super" {
            while let Some(step) = rest.first().filter(|step| *step == "self" || *step == "super") {
                if step == "super" {
                    module.pop();
                }
                rest = &rest[1..];
            }
        } else if !self.files.contains_key(&child(&module, first)) {
            return None;
        }
        while let Some(next) = rest.first().map(|name| child(&module, name))
            && self.files.contains_key(&next)
        {
            module = next;
            rest = &rest[1..];
        }
        let file = self.files.get(&module).map(String::as_str);
        let Some((name, behind)) = rest.split_first() else { return file };
        let whole = self.names.get(&(module.clone(), name.clone())).filter(|_| uses > 0);
        let whole = whole.map(|path| [path, behind].concat());
        whole.and_then(|path| self.file_of(&module, &path, uses - 1)).or(file)
    }

    /// The first import of each file by another.
    fn file_imports(&self) -> BTreeMap<(&str, &str), FileImport> {
        let mut found = BTreeMap::new();
        for import in self.imports.iter().filter(|import| !import.public) {
            let Import { line, module, path, .. } = import;
            let from = self.files[module].as_str();
            let Some(to) = self.file_of(module, path, USES_MAX).filter(|to| *to != from) else {
                continue;
            };
            found.entry((from, to)).or_insert_with(|| FileImport {
                from: from.to_owned(),
                line: *line,
                path: path.join("::"),
                to: to.to_owned(),
            });
        }
        found
    }

    fn circles(&self) -> Vec<Circle> {
        let imports = self.file_imports();
        let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, _) in imports.keys() {
            reached.entry(from).or_insert_with(|| reached_from(from, &imports));
        }
        let mut circles = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for (file, others) in &reached {
            if seen.contains(file) || !others.contains(file) {
                continue;
            }
            let returns = |other: &&str| reached.get(other).is_some_and(|back| back.contains(file));
            let files: BTreeSet<&str> = others.iter().copied().filter(returns).collect();
            seen.extend(&files);
            let inside = |from, to| files.contains(from) && files.contains(to);
            let inside = imports.iter().filter(|((from, to), _)| inside(from, to));
            circles.push(Circle {
                imports: inside.map(|(_, import)| import.clone()).collect(),
                files: files.into_iter().map(str::to_owned).collect(),
            });
        }
        circles
    }
}

fn child(module: &[String], name: &str) -> ModulePath {
    let mut path = module.to_vec();
    path.push(name.to_owned());
    path
}

/// The files that one imports, directly or through others.
fn reached_from<'a>(
    file: &'a str,
    imports: &BTreeMap<(&'a str, &'a str), FileImport>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut left = vec![file];
    while let Some(file) = left.pop() {
        let next = imports.keys().filter(|(from, _)| *from == file).map(|(_, to)| *to);
        left.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Circle> {
        let text_of = |file: &str| {
            let mut with_name = files.iter().filter(|(name, _)| *name == file);
            with_name.next().map(|(_, text)| (*text).to_owned())
        };
        Modules::read("lib.rs", &text_of).circles()
    }

    /// The files of each circle.
    fn judge(files: &[(&str, &str)]) -> Vec<String> {
        circles(files).iter().map(|circle| circle.files.join(" ")).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle() {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\nuse a::A;\n");
        let files = [
            root,
            ("a.rs", "use crate::b::B;\n"),
            ("b/mod.rs", "fn f() -> super::c::C {}\n"),
            ("c.rs", "use super::a;\nuse crate::d::*;\n"),
            ("d.rs", "use block::Bio; // use crate::a;\n"),
        ];
        assert_eq!(judge(&files), ["a.rs b/mod.rs c.rs"]);
        let line =
            [root, ("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::c::C;\n"), ("c.rs", "")];
        assert_eq!(judge(&line), [""; 0]);
    }

    #[test]
    fn two_circles_stay_two() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a.rs", "use crate::{b::B, c::C};\n"),
            ("b.rs", "use crate::a::A;\n"),
            ("c.rs", "use crate::d::D;\n"),
            ("d.rs", "use crate::c::C;\n"),
        ];
        assert_eq!(judge(&files), ["a.rs b.rs", "c.rs d.rs"]);
    }

    #[test]
    fn a_pub_use_leads_to_the_file_behind_it() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub(crate) use b::B as C;\n"),
            ("a.rs", "use crate::C;\n"),
            ("b.rs", "fn f() { crate::A::new() }\n"),
        ];
        assert_eq!(judge(&files), ["a.rs b.rs"]);
        let files = [("lib.rs", "mod a;\npub use a::A;\n"), ("a.rs", "use crate::X;\n")];
        assert_eq!(judge(&files), [""; 0]);
    }

    #[test]
    fn a_parent_and_its_children_may_be_a_circle() {
        let files = [
            ("lib.rs", "mod a;\n"),
            ("a.rs", "mod b;\nmod c;\nuse b::B;\nmod inline {\n    use super::c::C;\n}\n"),
            ("a/b.rs", "use super::*;\n"),
            ("a/c.rs", "use super::B;\n"),
        ];
        assert_eq!(judge(&files), ["a.rs a/b.rs a/c.rs"]);
    }

    #[test]
    fn a_name_of_itself_ends() {
        let files =
            [("lib.rs", "mod a;\npub use crate::A;\nuse a::B;\n"), ("a.rs", "use crate::A;\n")];
        assert_eq!(judge(&files), ["a.rs lib.rs"]);
    }

    #[test]
    fn tests_are_in_no_circle() {
        let files = [
            ("lib.rs", "mod a;\n#[cfg(test)]\nmod b;\n"),
            ("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"),
            ("b.rs", "use crate::a::A;\n"),
        ];
        assert_eq!(judge(&files), [""; 0]);
    }

    #[test]
    fn a_circle_has_at_most_four_files() {
        let ring = |count: usize| {
            let name = |n: usize| format!("f{}", n % count);
            let root: String = (0..count).map(|n| format!("mod {};\n", name(n))).collect();
            let file = |n| (format!("{}.rs", name(n)), format!("use crate::{};\n", name(n + 1)));
            let files: BTreeMap<String, String> =
                (0..count).map(file).chain([("lib.rs".to_owned(), root)]).collect();
            Modules::read("lib.rs", &|file: &str| files.get(file).cloned()).circles()
        };
        let (four, five) = (ring(4), ring(5));
        assert!(four.len() == 1 && !four[0].is_large(), "{four:?}");
        assert!(five.len() == 1 && five[0].is_large(), "{five:?}");
    }

    #[test]
    fn a_finding_names_the_files_and_the_imports() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "\nuse crate::b::{B, C};\n"),
            ("b.rs", "use super::a::A;\n"),
        ];
        let found = circles(&files)[0].finding("dm", "crates/dm/src");
        let lines: Vec<&str> = found.lines().collect();
        assert!(lines[0].starts_with("dm has 2 files that import each other"), "{found}");
        assert!(lines[0].ends_with(": a.rs, b.rs"), "{found}");
        let imports = [
            "    crates/dm/src/a.rs:2: imports crate::b::B from b.rs",
            "    crates/dm/src/b.rs:1: imports super::a::A from a.rs",
        ];
        assert_eq!(lines[1..], imports);
    }
}
