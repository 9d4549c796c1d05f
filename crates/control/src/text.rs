// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's output, made of the API's answers.
use std::fmt::Write;

use crate::api::{Dependency, Device, Line, TargetType, Version};
use crate::report::{INFO, Layout, Subject, fields, mangle, report};
use crate::tree::{self, NO_DEVICES};

/// Major number of mapped devices; `dm`'s.
const MAJOR: u32 = 999;

fn state(d: &Device) -> String {
    let mut out = String::from(if d.suspended { "SUSPENDED" } else { "ACTIVE" });
    if d.read_only {
        out.push_str(" (READ-ONLY)");
    }
    if d.deferred_remove {
        out.push_str(" (DEFERRED REMOVE)");
    }
    out
}

fn tables_present(d: &Device) -> &'static str {
    match (d.live_table, d.inactive_table) {
        (true, true) => "LIVE & INACTIVE",
        (true, false) => "LIVE",
        (false, true) => "INACTIVE",
        (false, false) => "None",
    }
}

/// `dmsetup info`: one paragraph a device.
pub fn info(devices: &[Device]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let mut out = String::new();
    for d in devices {
        let fields = [
            ("Name:", d.name.clone()),
            ("State:", state(d)),
            // There is no page cache above us, so nothing reads ahead.
            ("Read Ahead:", "0".into()),
            ("Tables present:", tables_present(d).into()),
            ("Open count:", d.open_count.to_string()),
            ("Event number:", d.event_nr.to_string()),
            ("Major, minor:", format!("{}, {}", d.major, d.minor)),
            ("Number of targets:", d.targets.to_string()),
        ];
        for (label, value) in fields {
            let _ = writeln!(out, "{label:<19}{value}");
        }
        if let Some(uuid) = &d.uuid {
            let _ = writeln!(out, "UUID: {uuid}");
        }
        if let Some(path) = &d.block_device {
            let _ = writeln!(out, "Block device: {path}");
        }
        out.push('\n');
    }
    out
}

/// `dmsetup info -c`: one row a device.
pub fn info_columns(devices: &[Device]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let columns = fields(INFO).expect("the default columns exist");
    let row = |d| columns.iter().map(|f| Subject::alone(d).value(f)).collect();
    report(&columns, &devices.iter().map(row).collect::<Vec<_>>(), &Layout::default())
}

/// How `ls` and `deps` name devices: `-o` of dmsetup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// Major and minor number.
    #[default]
    Devno,
    /// A mapped device's name, and the word that opens a leaf.
    Devname,
    /// The kernel's name: `dm-N`.
    Blkdevname,
}

/// `dmsetup ls`.
pub fn ls(devices: &[Device], naming: Naming) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    devices.iter().fold(String::new(), |mut out, d| {
        let _ = match naming {
            Naming::Devno => writeln!(out, "{}\t({}:{})", d.name, d.major, d.minor),
            Naming::Devname => writeln!(out, "{0}\t({0})", d.name),
            Naming::Blkdevname => writeln!(out, "{}\t(dm-{})", d.name, d.minor),
        };
        out
    })
}

/// `dmsetup ls --target`: the numbers as `deps` writes them.
pub fn ls_of_target(devices: &[Device]) -> String {
    devices.iter().fold(String::new(), |mut out, d| {
        let _ = writeln!(out, "{}\t({}, {})", d.name, d.major, d.minor);
        out
    })
}

/// `dmsetup ls --tree`: each device that no other uses, with the devices below it.
/// `deps` belongs to `devices` by index.
pub fn tree(devices: &[Device], deps: &[Vec<Dependency>]) -> String {
    tree::drawn(devices, deps, &tree::Style::default())
}

/// `dmsetup status` and `dmsetup table` of one device; with `name` when several are listed. A
/// target without a status leaves a blank at the end of its line, as with dmsetup.
pub fn lines(name: Option<&str>, lines: &[Line]) -> String {
    let prefix = name.map(|n| format!("{n}: ")).unwrap_or_default();
    if lines.is_empty() {
        return format!("{prefix}\n");
    }
    lines.iter().fold(String::new(), |mut out, l| {
        let _ = writeln!(out, "{prefix}{} {} {} {}", l.start, l.length, l.target, l.params);
        out
    })
}

/// `dmsetup deps`, numbers for mapped devices, names for leaves, which have no numbers; with `name`
/// when several are listed.
pub fn deps(name: Option<&str>, deps: &[Dependency], naming: Naming) -> String {
    let mut out = name.map(|n| format!("{n}: ")).unwrap_or_default();
    let _ = write!(out, "{} dependencies\t:", deps.len());
    for d in deps {
        let _ = match (d.number, naming) {
            (Some((major, minor)), Naming::Devno) => write!(out, " ({major}, {minor})"),
            (Some((MAJOR, minor)), Naming::Blkdevname) => write!(out, " (dm-{minor})"),
            (Some(_) | None, _) => write!(out, " ({})", d.name),
        };
    }
    out.push('\n');
    out
}

/// `dmsetup table --concise` of one device: it can be given to `create --concise`. A backslash
/// precedes each separator that belongs to a value.
pub fn concise(d: &Device, lines: &[Line]) -> String {
    let quoted = |value: &str| {
        value.chars().fold(String::new(), |mut out, c| {
            if [',', ';', '\\'].contains(&c) {
                out.push('\\');
            }
            out.push(c);
            out
        })
    };
    let uuid = quoted(d.uuid.as_deref().unwrap_or_default());
    let access = if d.read_only { "ro" } else { "rw" };
    let mut out = format!("{},{uuid},{},{access}", quoted(&d.name), d.minor);
    for l in lines {
        let _ = write!(out, ",{} {} {} {}", l.start, l.length, l.target, quoted(&l.params));
    }
    out
}

/// `dmsetup mangle` of one device: names are kept unmangled, so all are in order.
pub fn mangled(d: &Device) -> String {
    let name = mangle(&d.name);
    match &d.uuid {
        Some(uuid) => format!("{name}: {uuid}: name and UUID already in correct form\n"),
        None => format!("{name}: [no UUID]: name already in correct form\n"),
    }
}

/// `dmsetup targets`.
pub fn targets(targets: &[TargetType]) -> String {
    targets.iter().fold(String::new(), |mut out, t| {
        let (major, minor, patch) = t.version;
        let _ = writeln!(out, "{:<16} v{major}.{minor}.{patch}", t.name);
        out
    })
}

/// The first line of [`version`]: what can be printed without a daemon.
pub fn cli_version(cli: &str) -> String {
    format!("Library version:   {cli}\n")
}

/// `dmsetup version`: the command line is the library, the daemon the driver.
pub fn version(cli: &str, daemon: &Version) -> String {
    format!("{}Driver version:    {}\n", cli_version(cli), daemon.version)
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
            open_count: 1,
            event_nr: 2,
            targets: 1,
            problems: Vec::new(),
            flush: None,
            block_device: None,
        }
    }

    fn leaf(name: &str) -> Dependency {
        Dependency { name: name.into(), number: None }
    }

    #[test]
    fn info_is_dmsetups_paragraph() {
        let d = Device { uuid: Some("u-1".into()), deferred_remove: true, ..device("wc", 0) };
        assert_eq!(
            info(&[d]),
            "Name:              wc\n\
             State:             ACTIVE (DEFERRED REMOVE)\n\
             Read Ahead:        0\n\
             Tables present:    LIVE\n\
             Open count:        1\n\
             Event number:      2\n\
             Major, minor:      999, 0\n\
             Number of targets: 1\n\
             UUID: u-1\n\n"
        );
        assert_eq!(info(&[]), NO_DEVICES);
    }

    #[test]
    fn info_columns_mark_live_inactive_suspended_and_writable() {
        let d = Device { suspended: true, inactive_table: true, ..device("wc", 7) };
        assert_eq!(
            info_columns(&[d]),
            format!(
                "Name             Maj Min Stat Open Targ Event  UUID{0}\n\
                 wc               999   7 LIsw    1    1      2 {0}    \n",
                " ".repeat(28)
            )
        );
    }

    #[test]
    fn status_names_the_device_only_in_a_listing_of_several() {
        let params = String::new();
        let l = [Line { start: 0, length: 8, target: "zero".into(), params }];
        assert_eq!(lines(None, &l), "0 8 zero \n");
        assert_eq!(lines(Some("z"), &l), "z: 0 8 zero \n");
        assert_eq!(lines(Some("z"), &[]), "z: \n");
    }

    #[test]
    fn deps_targets_and_ls_print_as_dmsetup_does() {
        let low = Dependency { name: "low".into(), number: Some((999, 0)) };
        let d = [low, leaf("/d.img")];
        assert_eq!(deps(None, &d, Naming::Devno), "2 dependencies\t: (999, 0) (/d.img)\n");
        assert_eq!(
            deps(Some("wc"), &d, Naming::Devno),
            "wc: 2 dependencies\t: (999, 0) (/d.img)\n"
        );
        let t = TargetType { name: "linear".into(), version: (1, 5, 0) };
        assert_eq!(targets(&[t]), "linear           v1.5.0\n");
        assert_eq!(deps(None, &d, Naming::Blkdevname), "2 dependencies\t: (dm-0) (/d.img)\n");
        assert_eq!(deps(None, &d, Naming::Devname), "2 dependencies\t: (low) (/d.img)\n");
        for (naming, want) in [
            (Naming::Devno, "wc\t(999:3)\n"),
            (Naming::Devname, "wc\t(wc)\n"),
            (Naming::Blkdevname, "wc\t(dm-3)\n"),
        ] {
            assert_eq!(ls(&[device("wc", 3)], naming), want);
            assert_eq!(ls(&[], naming), NO_DEVICES);
        }
        assert_eq!(ls_of_target(&[device("wc", 3)]), "wc\t(999, 3)\n");
    }
    #[test]
    fn a_concise_table_quotes_its_separators() {
        let line = |params: &str| Line {
            start: 0,
            length: 8,
            target: "linear".into(),
            params: params.into(),
        };
        let d = Device { uuid: Some("u,1".into()), ..device("a;b", 3) };
        assert_eq!(
            concise(&d, &[line("mem:4M,x 0"), line("")]),
            "a\\;b,u\\,1,3,rw,0 8 linear mem:4M\\,x 0,0 8 linear "
        );
        assert_eq!(concise(&device("new", 2), &[]), "new,,2,rw");
        assert_eq!(mangled(&d), "a\\x3bb: u,1: name and UUID already in correct form\n");
        assert_eq!(mangled(&device("z", 0)), "z: [no UUID]: name already in correct form\n");
    }
}
