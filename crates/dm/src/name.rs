// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of mapped devices: what is allowed, and how others are mangled for a path.
use std::cell::OnceCell;

use block::{Error, is_steering};

/// Longest name in its mangled form, bytes (the kernel's `DM_NAME_LEN` less the final zero).
pub const NAME_BYTES_MAX: usize = 127;

fn plain(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&c)
}

/// The name with every byte outside `0-9 A-Z a-z # + - . : = @ _` as `\xNN`.
pub fn mangle(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for b in name.bytes() {
        if plain(b) {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// The name with `\xNN` decoded; as it is when the bytes make no text.
pub fn unmangle(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let code = name
            .get(i..i + 4)
            .and_then(|c| c.strip_prefix("\\x"))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(code.unwrap_or(bytes[i]));
        i += if code.is_some() { 4 } else { 1 };
    }
    String::from_utf8(out).unwrap_or_else(|_| name.to_owned())
}

/// The name that a user's word means (unmangled), if it is one a device may have.
pub(crate) fn check(word: &str) -> Result<String, Error> {
    let name = unmangle(word);
    let wrong = |why: &str| Err(Error::invalid(format!("device name `{word}`: {why}")));
    if name.is_empty() {
        return wrong("a name can't be empty");
    }
    if name.contains('/') {
        return wrong("a name can't contain '/'");
    }
    if name.chars().any(is_steering) {
        return wrong("a name can't contain control characters, nor such of writing direction");
    }
    if [".", "..", "control"].contains(&&*name) {
        return wrong("a name can't be `.`, `..` or `control`");
    }
    if mangle(&name).len() > NAME_BYTES_MAX {
        return wrong(
            "a name has at most 127 bytes (other than 0-9 A-Z a-z # + - . : = @ _ count 4)",
        );
    }
    Ok(name)
}

/// A name that can change while others hold a reference to it: old ones live as long as the device.
pub(crate) struct Names {
    name: String,
    next: OnceCell<Box<Names>>,
}

impl Names {
    pub(crate) fn new(name: String) -> Names {
        Names { name, next: OnceCell::new() }
    }

    fn last(&self) -> &Names {
        let mut at = self;
        while let Some(next) = at.next.get() {
            at = next;
        }
        at
    }

    pub(crate) fn get(&self) -> &str {
        &self.last().name
    }

    pub(crate) fn set(&self, name: String) {
        let fresh = self.last().next.set(Box::new(Names::new(name)));
        assert!(fresh.is_ok(), "the last name has no next");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangling_keeps_the_allowed_characters_and_reverses() {
        assert_eq!(mangle("az09#+-.:=@_"), "az09#+-.:=@_");
        assert_eq!(mangle("a b%"), "a\\x20b\\x25");
        assert_eq!(unmangle("a\\x20b\\x25"), "a b%");
        assert_eq!(unmangle(&mangle("größe")), "größe");
        assert_eq!(unmangle("\\xff\\xzz"), "\\xff\\xzz");
    }

    #[test]
    fn names_that_no_device_may_have_are_refused() {
        let long = "x".repeat(128);
        for bad in
            ["", "a/b", "a\nb", "a\u{9b}b", "\u{202e}a", "a\\x1b", ".", "..", "control", &long]
        {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert!(check("a\\x2fb").is_err());
        assert!(check(&"x".repeat(127)).is_ok());
        assert!(check(&" ".repeat(32)).is_err());
        assert_eq!(check("a\\x20b").unwrap(), "a b");
    }

    #[test]
    fn a_renamed_device_keeps_references_to_its_old_name_alive() {
        let names = Names::new("old".into());
        let old = names.get();
        names.set("new".into());
        assert_eq!((old, names.get()), ("old", "new"));
    }
}
