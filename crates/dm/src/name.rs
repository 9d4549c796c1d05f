// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names of mapped devices: what is allowed, and how others are mangled for a path.
use std::cell::{Cell, OnceCell};

use block::{Error, ErrorKind, is_control_char};

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
    if name.chars().any(is_control_char) {
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

/// Most names that one device may have had. Chosen: more than anybody gives, and soon gone through.
const NAMES_MAX: usize = 1000;

/// A name that can change while others hold a reference to it: all that it has been live as long as
/// the device.
pub(crate) struct Names {
    first: Name,
    /// How many there are before the present one.
    before: Cell<usize>,
}

struct Name {
    text: String,
    next: OnceCell<Box<Name>>,
}

impl Name {
    fn new(text: String) -> Name {
        Name { text, next: OnceCell::new() }
    }
}

impl Names {
    pub(crate) fn new(name: String) -> Names {
        Names { first: Name::new(name), before: Cell::new(0) }
    }

    pub(crate) fn get(&self) -> &str {
        let mut at = &self.first;
        for _ in 0..self.before.get() {
            at = at.next.get().expect("as many as were counted");
        }
        &at.text
    }

    /// One that it had before is taken again.
    pub(crate) fn set(&self, name: &str) -> Result<(), Error> {
        let (mut at, mut before) = (&self.first, 0);
        while at.text != name {
            before += 1;
            if before == NAMES_MAX {
                let e = format!("{}: it has had {NAMES_MAX} names: make it anew", self.get());
                return Err(Error::new(ErrorKind::Limit, e));
            }
            at = at.next.get_or_init(|| Box::new(Name::new(name.to_owned())));
        }
        self.before.set(before);
        Ok(())
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
        names.set("new").unwrap();
        assert_eq!((old, names.get()), ("old", "new"));
    }

    /// Each name took memory and time of all later ones, and hundreds of thousands would have ended
    /// the program as the device went: they were dropped one within the other.
    #[test]
    fn a_device_has_a_bounded_number_of_names() {
        let names = Names::new("0".into());
        for nth in 1..NAMES_MAX {
            names.set(&nth.to_string()).unwrap();
        }
        let e = names.set("one more").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Limit);
        assert_eq!(names.get(), "999");
        for name in ["7", "0", "999", "7"] {
            names.set(name).unwrap();
            assert_eq!(names.get(), name);
        }
    }
}
