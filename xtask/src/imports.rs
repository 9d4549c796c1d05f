// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modules that a Rust file declares and the paths that it imports, outside of its tests.
//!
//! A scanner, not a parser: it knows `mod`, `use` with braces, `as` and globs, and paths in code.

use crate::source::is_word;

/// The names of modules from the root of a crate down.
pub(crate) type ModulePath = Vec<String>;

/// What one file says.
#[derive(Debug, Default)]
pub(crate) struct FileImports {
    /// The modules with files of their own: `mod a;`.
    pub(crate) modules: Vec<ModulePath>,
    /// The modules in this file: `mod a { ... }`.
    pub(crate) inline_modules: Vec<ModulePath>,
    pub(crate) imports: Vec<Import>,
}

/// One path of a `use`, or a path in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// The module that it stands in.
    pub(crate) module: ModulePath,
    pub(crate) path: Vec<String>,
    /// What a `use` calls the item; none for a glob and for a path in code.
    pub(crate) name: Option<String>,
    /// Whether it is a `pub use`.
    pub(crate) public: bool,
}

struct Token<'a> {
    line: usize,
    text: &'a str,
}

/// Reads the file of `module`. `code` is its text without comments and literals.
pub(crate) fn read(module: &[String], code: &str) -> FileImports {
    let mut scanner = Scanner {
        tokens: tokens(code),
        at: 0,
        module: module.to_vec(),
        depth: 0,
        inline_depths: Vec::new(),
        found: FileImports::default(),
    };
    scanner.scan();
    scanner.found
}

/// Words, `::`, and every other character by itself.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (text, line) in code.lines().zip(1..) {
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let len = if is_word(first) {
                rest.find(|c| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(Token { line, text: &rest[..len] });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

struct Scanner<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    /// The module that the token stands in.
    module: ModulePath,
    /// How many braces are open.
    depth: usize,
    /// How many were open before each inline module around the token.
    inline_depths: Vec<usize>,
    found: FileImports,
}

impl<'a> Scanner<'a> {
    /// The token so many places ahead; empty behind the last.
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn scan(&mut self) {
        // What stands before an item.
        let (mut test, mut public) = (false, false);
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "#" if self.peek(1) == "[" => {
                    test |= self.is_test_attribute();
                    self.skip_group("[", "]");
                    continue;
                }
                "pub" => {
                    public = true;
                    self.at += 1;
                    if self.peek(0) == "(" && matches!(self.peek(1), "crate" | "super" | "in") {
                        self.skip_group("(", ")");
                    }
                    continue;
                }
                "mod" if matches!(self.peek(2), ";" | "{") => self.module(test),
                // `use<'a>` bounds a type.
                "use" if self.peek(1) != "<" => {
                    self.at += 1;
                    self.tree(&[], public);
                }
                "{" => {
                    self.depth += 1;
                    self.at += 1;
                }
                "}" => self.close(),
                // Behind a type, or in front of another crate's name.
                "::" => self.at += 2,
                first if first.starts_with(is_word) => self.path(),
                _ => self.at += 1,
            }
            (test, public) = (false, false);
        }
    }

    fn is_test_attribute(&self) -> bool {
        let words = [self.peek(2), self.peek(4), self.peek(6)];
        matches!(words, ["cfg", "test", _] | ["cfg", "all", "test"])
    }

    /// Goes behind the bracket that closes the next one.
    fn skip_group(&mut self, open: &str, close: &str) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            let token = self.peek(0);
            self.at += 1;
            if token == open {
                depth += 1;
            } else if token == close {
                depth -= 1;
                if depth == 0 {
                    return;
                }
            }
        }
    }

    fn module(&mut self, test: bool) {
        let mut module = self.module.clone();
        module.push(self.peek(1).to_owned());
        let inline = self.peek(2) == "{";
        match (inline, test) {
            (true, true) => return self.skip_group("{", "}"),
            (true, false) => {
                self.found.inline_modules.push(module.clone());
                self.inline_depths.push(self.depth);
                self.depth += 1;
                self.module = module;
            }
            (false, true) => {}
            (false, false) => self.found.modules.push(module),
        }
        self.at += 3;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.inline_depths.last() == Some(&self.depth) {
            self.inline_depths.pop();
            self.module.pop();
        }
        self.at += 1;
    }

    /// One tree of a `use`, up to the `,`, `}` or `;` behind it.
    fn tree(&mut self, prefix: &[String], public: bool) {
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        let mut path = prefix.to_vec();
        let mut alias = None;
        loop {
            match self.peek(0) {
                "" | "," | "}" | ";" => break,
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "" | "}") {
                        self.tree(&path, public);
                        if self.peek(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    self.at += 1;
                    alias = Some(self.peek(0).to_owned());
                }
                "::" => {}
                word => path.push(word.to_owned()),
            }
            self.at += 1;
        }
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.or_else(|| path.last().filter(|last| *last != "*").cloned());
        self.found.imports.push(Import { line, module: self.module.clone(), path, name, public });
    }

    /// A path in code; a word alone is none.
    fn path(&mut self) {
        let line = self.tokens[self.at].line;
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && self.peek(1).starts_with(is_word) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        if path.len() > 1 {
            let module = self.module.clone();
            self.found.imports.push(Import { line, module, path, name: None, public: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The imports of a file of module `m`: `line module path as name`.
    fn judge(code: &str) -> Vec<String> {
        let show = |import: &Import| {
            let public = if import.public { "pub " } else { "" };
            let module = import.module.join("::");
            let path = import.path.join("::");
            let name = import.name.as_deref().map_or(String::new(), |name| format!(" as {name}"));
            format!("{} {module} {public}{path}{name}", import.line)
        };
        read(&["m".to_owned()], code).imports.iter().map(show).collect()
    }

    #[test]
    fn a_use_names_each_path() {
        assert_eq!(judge("use crate::a::B;"), ["1 m crate::a::B as B"]);
        assert_eq!(judge("pub(crate) use a::B as C;"), ["1 m pub a::B as C"]);
        assert_eq!(judge("pub(in crate::a) use b::*;"), ["1 m pub b::*"]);
        let nested =
            "use super::{\n    a::{self, B as C,\n        D},\n    E,\n};\nuse self::f::*;\n";
        let expected = [
            "2 m super::a as a",
            "2 m super::a::B as C",
            "3 m super::a::D as D",
            "4 m super::E as E",
            "6 m self::f::*",
        ];
        assert_eq!(judge(nested), expected);
    }

    #[test]
    fn paths_in_code_are_imports_without_a_name() {
        let code =
            "fn f(x: &super::A) -> impl Fn() + use<'_> {\n    b::c::<u8>::d(<A>::e::f, g)\n}";
        assert_eq!(judge(code), ["1 m super::A", "2 m b::c"]);
    }

    #[test]
    fn modules_are_declared_or_inline() {
        let code = "pub mod a;\nmod b {\n    mod c;\n    use super::X;\n}\nuse d::Y;\n";
        let found = read(&["m".to_owned()], code);
        assert_eq!(found.modules, [vec!["m", "a"], vec!["m", "b", "c"]]);
        assert_eq!(found.inline_modules, [["m", "b"]]);
        assert_eq!(judge(code), ["4 m::b super::X as X", "6 m d::Y as Y"]);
    }

    #[test]
    fn tests_do_not_count() {
        let code = "#[cfg(test)]\n#[path = x]\npub(super) mod a;\n\
            #[cfg(all(test, feature = x))]\nmod b { fn f() {} use super::X; }\n\
            #[cfg(test)]\nuse d::Z;\nmod c;\n";
        let found = read(&[], code);
        assert_eq!(found.modules, [["c"]]);
        assert_eq!(found.inline_modules, [[""; 0]; 0]);
        assert_eq!(judge(code), ["7 m d::Z as Z"]);
    }
}
