// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes as a tree of folders, by their paths.
use crate::host::Attribute;
use crate::tree::NodeKind;

/// The entry at `path`; "" is the folder of the device.
pub(crate) fn at(all: &[Attribute], path: &str) -> Option<NodeKind> {
    if path.is_empty() {
        return Some(NodeKind::Folder);
    }
    if let Some(found) = all.iter().find(|a| a.path == path) {
        return Some(NodeKind::Text { readable: found.readable, writable: found.writable });
    }
    let below = |a: &Attribute| a.path.strip_prefix(path).is_some_and(|r| r.starts_with('/'));
    all.iter().any(below).then_some(NodeKind::Folder)
}

/// The names in the folder at `path`, sorted and unique, and whether each is a folder.
pub(crate) fn list(all: &[Attribute], path: &str) -> Vec<(String, bool)> {
    let below = |a: &Attribute| -> Option<(String, bool)> {
        let rest = match path {
            "" => &*a.path,
            _ => a.path.strip_prefix(path)?.strip_prefix('/')?,
        };
        Some(match rest.split_once('/') {
            Some((folder, _)) => (folder.to_owned(), true),
            None => (rest.to_owned(), false),
        })
    };
    let mut names: Vec<(String, bool)> = all.iter().filter_map(below).collect();
    names.sort();
    names.dedup();
    names
}

/// The path of `name` in the folder at `path`.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// The folder of `path`; none for the folder of the device.
pub(crate) fn parent(path: &str) -> Option<&str> {
    if path.is_empty() { None } else { Some(path.rsplit_once('/').map_or("", |(up, _)| up)) }
}

/// The value in a write to an attribute, as in sysfs: text without one trailing newline.
pub(crate) fn value(data: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(data).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Vec<Attribute> {
        let paths = [("size", false), ("queue/fua", false), ("queue/wbt_lat_usec", true)];
        let attribute = |(path, writable): (&str, bool)| Attribute {
            path: path.into(),
            readable: true,
            writable,
        };
        paths.map(attribute).to_vec()
    }

    #[test]
    fn paths_make_folders() {
        let all = some();
        assert_eq!(at(&all, ""), Some(NodeKind::Folder));
        assert_eq!(at(&all, "queue"), Some(NodeKind::Folder));
        assert_eq!(at(&all, "queu"), None);
        assert_eq!(at(&all, "queue/fua"), Some(NodeKind::Text { readable: true, writable: false }));
        assert_eq!(
            at(&all, "queue/wbt_lat_usec"),
            Some(NodeKind::Text { readable: true, writable: true })
        );
        assert_eq!(list(&all, ""), [("queue".into(), true), ("size".into(), false)]);
        let queue = [("fua".into(), false), ("wbt_lat_usec".into(), false)];
        assert_eq!(list(&all, "queue"), queue);
        assert_eq!(list(&all, "size"), []);
    }

    #[test]
    fn paths_go_down_and_up() {
        assert_eq!(join("", "queue"), "queue");
        assert_eq!(join("queue", "fua"), "queue/fua");
        assert_eq!(parent("queue/fua"), Some("queue"));
        assert_eq!(parent("queue"), Some(""));
        assert_eq!(parent(""), None);
    }

    #[test]
    fn a_written_value_loses_one_newline() {
        assert_eq!(value(b"75000\n"), Some("75000"));
        assert_eq!(value(b"a\n\n"), Some("a\n"));
        assert_eq!(value(b"\xff"), None);
    }
}
