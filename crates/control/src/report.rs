// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's reports: what `info -c` knows of a device, in columns, rows or assignments.
//!
//! ```text
//!   aligned   Name             Maj Min      unaligned  wc:999:0        rows   Name wc other
//!             wc               999   0      prefixed   DM_NAME='wc'           Maj 999 999
//! ```
//!
//! Invariants
//! - CT-R1 The bytes are those of dmsetup 1.02.185, blanks at the ends of lines included: scripts
//!   cut by column.
use std::fmt::Write;

use crate::api::{Dependency, Device};
use crate::plain;

/// A column that a report may have.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The word that asks for it.
    pub id: &'static str,
    /// The title of its column.
    pub heading: &'static str,
    /// How wide it is at least.
    pub width: usize,
    /// Numbers are aligned to the right.
    pub number: bool,
    /// The word that asks for all of its kind: `name_all`, ...
    pub group: &'static str,
}

const fn text(group: &'static str, id: &'static str, heading: &'static str, width: usize) -> Field {
    Field { id, heading, width, number: false, group }
}

const fn number(
    group: &'static str,
    id: &'static str,
    heading: &'static str,
    width: usize,
) -> Field {
    Field { id, heading, width, number: true, group }
}

/// All there are, in the order of `name_all`, `info_all`, ...
pub const FIELDS: [Field; 29] = [
    text("name_all", "name", "Name", 16),
    text("name_all", "mangled_name", "MangledName", 16),
    text("name_all", "unmangled_name", "UnmangledName", 16),
    text("name_all", "uuid", "UUID", 32),
    text("name_all", "mangled_uuid", "MangledUUID", 32),
    text("name_all", "unmangled_uuid", "UnmangledUUID", 32),
    number("name_all", "read_ahead", "RAhead", 6),
    text("info_all", "blkdevname", "BlkDevName", 16),
    text("info_all", "attr", "Stat", 4),
    text("info_all", "tables_loaded", "Tables", 6),
    text("info_all", "suspended", "Suspended", 9),
    text("info_all", "readonly", "Read-only", 9),
    text("info_all", "devno", "DevNo", 5),
    number("info_all", "major", "Maj", 3),
    number("info_all", "minor", "Min", 3),
    number("info_all", "open", "Open", 4),
    number("info_all", "segments", "Targ", 4),
    number("info_all", "events", "Event", 6),
    number("deps_all", "device_count", "#Devs", 5),
    text("deps_all", "devs_used", "DevNamesUsed", 16),
    text("deps_all", "devnos_used", "DevNosUsed", 16),
    text("deps_all", "blkdevs_used", "BlkDevNamesUsed", 16),
    number("deps_all", "device_ref_count", "#Refs", 5),
    text("deps_all", "names_using_dev", "RefNames", 8),
    text("deps_all", "devnos_using_dev", "RefDevNos", 9),
    text("splitname_all", "subsystem", "Subsys", 6),
    text("splitname_all", "vg_name", "VG", 4),
    text("splitname_all", "lv_name", "LV", 4),
    text("splitname_all", "lv_layer", "LVLayer", 7),
];

/// The default fields of `info -c`.
pub const INFO: &str = "name,major,minor,attr,open,segments,events,uuid";
/// The default fields of `splitname`.
pub const SPLITNAME: &str = "vg_name,lv_name,lv_layer";

/// The field that a word means; case and underscores do not matter.
fn field(word: &str) -> Option<&'static Field> {
    let same = |a: &str, b: &str| {
        let plain = |s: &str| s.replace('_', "").to_ascii_lowercase();
        plain(a) == plain(b)
    };
    FIELDS.iter().find(|f| same(f.id, word))
}

/// The fields that a list means; `Err` is the word that means none.
pub fn fields(list: &str) -> Result<Vec<&'static Field>, String> {
    let mut found = Vec::new();
    for word in list.trim_start_matches(',').split(',') {
        let of_group: Vec<_> = FIELDS.iter().filter(|f| f.group == word || word == "all").collect();
        if !of_group.is_empty() {
            found.extend(of_group);
        } else {
            found.push(field(word).ok_or_else(|| word.to_owned())?);
        }
    }
    Ok(found)
}

/// How a report is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Columns are as wide as their widest value.
    pub aligned: bool,
    /// The first line has their names.
    pub headings: bool,
    /// The separator of two values.
    pub separator: String,
    /// A line is a field of all devices.
    pub rows: bool,
    /// Each value follows `DM_NAME=` and so on.
    pub prefixes: bool,
    /// With prefixes, values are quoted.
    pub quoted: bool,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            aligned: true,
            headings: true,
            separator: " ".into(),
            rows: false,
            prefixes: false,
            quoted: true,
        }
    }
}

/// A report of values; each of `values` has one for each field.
pub fn report(fields: &[&Field], values: &[Vec<String>], layout: &Layout) -> String {
    let shown = |f: &Field, value: &str| match (layout.prefixes, layout.quoted) {
        (false, _) => plain(value).into_owned(),
        (true, true) => {
            // For a shell's `eval`: a quote ends the text, is one by itself, and begins it again.
            let quoted = plain(value).replace('\'', r"'\''");
            format!("DM_{}='{quoted}'", f.id.to_ascii_uppercase())
        }
        (true, false) => {
            format!("DM_{}={}", f.id.to_ascii_uppercase(), mangle_but(value, b"/,"))
        }
    };
    let mut lines: Vec<Vec<String>> = Vec::new();
    if layout.headings {
        lines.push(fields.iter().map(|f| f.heading.to_owned()).collect());
    }
    for row in values {
        lines.push(fields.iter().zip(row).map(|(f, v)| shown(f, v)).collect());
    }
    if layout.rows {
        let column = |nth: usize| lines.iter().map(|l| l[nth].clone()).collect();
        lines = (0..fields.len()).map(column).collect();
    } else if layout.aligned {
        for (nth, f) in fields.iter().enumerate() {
            let wide = lines.iter().map(|l| l[nth].chars().count()).max().unwrap_or(0).max(f.width);
            for (line_no, line) in lines.iter_mut().enumerate() {
                let right = f.number && !(layout.headings && line_no == 0);
                let cell = &line[nth];
                line[nth] = if right { format!("{cell:>wide$}") } else { format!("{cell:<wide$}") };
            }
        }
    }
    lines.iter().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "{}", line.join(&layout.separator));
        out
    })
}

/// Sorts rows by the values of `key`: numbers by size, the rest by bytes. Equal ones stay as they
/// were.
pub fn sort_by_key<T>(rows: &mut [T], key: &Field, descending: bool, value: impl Fn(&T) -> String) {
    rows.sort_by(|a, b| {
        let (a, b) = (value(a), value(b));
        let order = if key.number {
            a.parse::<u64>().unwrap_or(0).cmp(&b.parse().unwrap_or(0))
        } else {
            a.cmp(&b)
        };
        if descending { order.reverse() } else { order }
    });
}

/// A device and its neighbours.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The device.
    pub device: &'a Device,
    /// The devices below it.
    pub deps: &'a [Dependency],
    /// The devices above it.
    pub users: Vec<&'a Device>,
}

impl<'a> Subject<'a> {
    /// A device of which only itself is shown.
    pub fn alone(device: &'a Device) -> Subject<'a> {
        Subject { device, deps: &[], users: Vec::new() }
    }

    /// Mapped devices have one major number, and it is this device's too.
    fn is_mapped(&self, dep: &Dependency) -> bool {
        dep.number.is_some_and(|(major, _)| major == self.device.major)
    }

    /// What a field shows of it.
    pub fn value(&self, field: &Field) -> String {
        let d = self.device;
        let uuid = d.uuid.as_deref().unwrap_or_default();
        match field.id {
            "name" | "unmangled_name" => d.name.clone(),
            "mangled_name" => mangle(&d.name),
            "uuid" | "unmangled_uuid" => uuid.to_owned(),
            "mangled_uuid" => mangle(uuid),
            // There is no page cache above us, so nothing reads ahead.
            "read_ahead" => "0".into(),
            "blkdevname" => format!("dm-{}", d.minor),
            "attr" => attr(d),
            "tables_loaded" => match (d.live_table, d.inactive_table) {
                (true, true) => "Both".into(),
                (true, false) => "Live".into(),
                (false, true) => "Inactive".into(),
                (false, false) => "None".into(),
            },
            "suspended" => if d.suspended { "Suspended" } else { "Active" }.into(),
            "readonly" => if d.read_only { "Read-only" } else { "Writeable" }.into(),
            "devno" => devno(d),
            "major" => d.major.to_string(),
            "minor" => d.minor.to_string(),
            "open" => d.open_count.to_string(),
            "segments" => d.targets.to_string(),
            "events" => d.event_nr.to_string(),
            "device_count" => self.deps.len().to_string(),
            "devs_used" => {
                // As dmsetup: in the order in which the kernel lists them.
                joined(self.deps.iter().filter(|dep| self.is_mapped(dep)).map(|d| d.name.clone()))
            }
            "devnos_used" => joined(self.deps.iter().map(|d| match d.number {
                Some((major, minor)) => format!("{major}:{minor}"),
                None => d.name.clone(),
            })),
            "blkdevs_used" => joined(self.deps.iter().map(|d| match d.number {
                Some((_, minor)) if self.is_mapped(d) => format!("dm-{minor}"),
                _ => d.name.clone(),
            })),
            "device_ref_count" => self.users.len().to_string(),
            "names_using_dev" => list(self.users.iter().map(|d| d.name.clone())),
            "devnos_using_dev" => list(self.users.iter().map(|d| devno(d))),
            "subsystem" => subsystem(uuid).into(),
            id => split_name(&d.name, subsystem(uuid), id),
        }
    }
}

/// The part of a UUID before its first dash: the subsystem that made the device.
fn subsystem(uuid: &str) -> &str {
    uuid.split_once('-').map_or("", |(subsystem, _)| subsystem)
}

/// `vg_name`, `lv_name` or `lv_layer` of a name that LVM made; nothing for others. Parts stand
/// between single dashes, a double one is a dash within a part.
pub fn split_name(name: &str, subsystem: &str, part: &str) -> String {
    if subsystem != "LVM" {
        return String::new();
    }
    let mut parts = vec![String::new()];
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '-' && chars.next_if_eq(&'-').is_none() {
            parts.push(String::new());
        } else if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    let nth = ["vg_name", "lv_name", "lv_layer"].iter().position(|p| *p == part);
    nth.and_then(|nth| parts.get(nth).cloned()).unwrap_or_default()
}

fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(",")
}

fn list(words: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = words.collect();
    words.sort();
    words.join(",")
}

fn devno(d: &Device) -> String {
    format!("{}:{}", d.major, d.minor)
}

fn attr(d: &Device) -> String {
    let mark = |on, c| if on { c } else { '-' };
    String::from_iter([
        mark(d.live_table, 'L'),
        mark(d.inactive_table, 'I'),
        mark(d.suspended, 's'),
        if d.read_only { 'r' } else { 'w' },
    ])
}

/// A name with every byte outside `0-9 A-Z a-z # + - . : = @ _` as `\xNN`, as in a path.
pub fn mangle(name: &str) -> String {
    mangle_but(name, b"")
}

/// The same, of a value in which some more bytes stay: one word of a shell, without a meaning.
fn mangle_but(value: &str, stay: &[u8]) -> String {
    value.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&b) || stay.contains(&b) {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "\\x{b:02x}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, minor: u32) -> Device {
        Device {
            name: name.into(),
            uuid: None,
            major: 999,
            minor,
            size_sectors: 8,
            suspended: false,
            read_only: false,
            deferred_remove: false,
            live_table: true,
            inactive_table: false,
            open_count: minor,
            event_nr: 0,
            targets: 1,
            problems: Vec::new(),
            flush: None,
            block_device: None,
        }
    }

    fn shown(list: &str, devices: &[Device], layout: &Layout) -> String {
        let fields = fields(list).unwrap();
        let row = |d| fields.iter().map(|f| Subject::alone(d).value(f)).collect();
        report(&fields, &devices.iter().map(row).collect::<Vec<_>>(), layout)
    }

    /// What dmsetup 1.02.185 printed for two such devices.
    #[test]
    fn the_layouts_are_dmsetups() {
        let two = [device("low", 1), device("my dev", 12)];
        let layout = Layout::default();
        let unaligned = Layout { aligned: false, ..layout.clone() };
        let bare = Layout { headings: false, separator: ":".into(), ..unaligned.clone() };
        let rows = Layout { rows: true, ..unaligned.clone() };
        let prefixed = Layout { prefixes: true, ..unaligned.clone() };
        for (layout, want) in [
            (
                layout,
                "Name             Min Open\nlow                1    1\nmy dev            12   12\n",
            ),
            (bare.clone(), "low:1:1\nmy dev:12:12\n"),
            (rows.clone(), "Name low my dev\nMin 1 12\nOpen 1 12\n"),
            (
                prefixed.clone(),
                "Name Min Open\nDM_NAME='low' DM_MINOR='1' DM_OPEN='1'\n\
                 DM_NAME='my dev' DM_MINOR='12' DM_OPEN='12'\n",
            ),
            (
                Layout { rows: true, prefixes: true, quoted: false, ..bare },
                "DM_NAME=low:DM_NAME=my\\x20dev\nDM_MINOR=1:DM_MINOR=12\nDM_OPEN=1:DM_OPEN=12\n",
            ),
        ] {
            assert_eq!(shown("name,minor,open", &two, &layout), want);
        }
    }

    #[test]
    fn fields_are_found_by_id_and_by_group() {
        let ids = |list: &str| fields(list).map(|f| f.iter().map(|f| f.id).collect::<Vec<_>>());
        assert_eq!(ids("NAME,u_uid").unwrap(), ["name", "uuid"]);
        assert_eq!(ids(",name").unwrap(), ["name"]);
        assert_eq!(ids("splitname_all").unwrap(), ["subsystem", "vg_name", "lv_name", "lv_layer"]);
        assert_eq!(ids("all").unwrap().len(), FIELDS.len());
        for (list, wrong) in [("name,", ""), ("name,colour", "colour"), ("maj", "maj")] {
            assert_eq!(ids(list).unwrap_err(), wrong);
        }
        for f in &FIELDS {
            assert!(field(f.id) == Some(f), "{f:?}");
        }
    }

    #[test]
    fn sorting_is_by_number_where_there_are_numbers() {
        let mut devices = [device("b", 12), device("a", 3)];
        for (id, descending, first) in
            [("minor", false, "a"), ("minor", true, "b"), ("name", false, "a"), ("name", true, "b")]
        {
            let key = field(id).unwrap();
            sort_by_key(&mut devices, key, descending, |d| Subject::alone(d).value(key));
            assert_eq!(devices[0].name, first, "{id} {descending}");
        }
    }

    #[test]
    fn names_that_lvm_made_split_at_single_dashes() {
        let split = |name: &str| {
            ["vg_name", "lv_name", "lv_layer"].map(|part| split_name(name, "LVM", part))
        };
        assert_eq!(split("v--g-lv-real"), ["v-g", "lv", "real"]);
        assert_eq!(split("a--b--c-d--e-f--g-h"), ["a-b-c", "d-e", "f-g"]);
        assert_eq!(split("nodash"), ["nodash", "", ""]);
        assert_eq!(split_name("vg-lv", "CRYPT", "vg_name"), "");
    }

    #[test]
    fn what_stands_around_a_device_is_listed_by_name_and_number() {
        let (low, top) = (device("low", 0), device("top", 1));
        let deps = [
            Dependency { name: "/d.img".into(), number: None },
            Dependency { name: "base".into(), number: Some((999, 7)) },
        ];
        let s = Subject { device: &low, deps: &deps, users: vec![&top] };
        let value = |id: &str| s.value(field(id).unwrap());
        assert_eq!(value("device_count"), "2");
        assert_eq!(value("devs_used"), "base");
        assert_eq!(value("devnos_used"), "/d.img,999:7");
        assert_eq!(value("blkdevs_used"), "/d.img,dm-7");
        assert_eq!(value("device_ref_count"), "1");
        assert_eq!(value("names_using_dev"), "top");
        assert_eq!(value("devnos_using_dev"), "999:1");
        assert_eq!(mangle("my dev"), "my\\x20dev");
    }
}
