// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's output, made of the API's answers.
use std::fmt::Write;

use crate::api::{Dependency, Device, Line, TargetType, Version};

/// What `dmsetup` prints when there is nothing to list.
pub const NO_DEVICES: &str = "No devices found\n";

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
        out.push('\n');
    }
    out
}

/// `dmsetup info -c`: one row a device.
pub fn info_columns(devices: &[Device]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let wide = devices.iter().map(|d| d.name.len()).max().unwrap_or(0).max(16);
    let mut out = format!("{:<wide$} Maj Min Stat Open Targ Event  UUID\n", "Name");
    for d in devices {
        let mark = |on, c| if on { c } else { '-' };
        let stat = [
            mark(d.live_table, 'L'),
            mark(d.inactive_table, 'I'),
            mark(d.suspended, 's'),
            if d.read_only { 'r' } else { 'w' },
        ];
        let row = format!(
            "{:<wide$} {:>3} {:>3} {} {:>4} {:>4} {:>6} {}",
            d.name,
            d.major,
            d.minor,
            String::from_iter(stat),
            d.open_count,
            d.targets,
            d.event_nr,
            d.uuid.as_deref().unwrap_or("")
        );
        out.push_str(row.trim_end());
        out.push('\n');
    }
    out
}

/// `dmsetup ls`.
pub fn ls(devices: &[Device]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    devices.iter().fold(String::new(), |mut out, d| {
        let _ = writeln!(out, "{}\t({}:{})", d.name, d.major, d.minor);
        out
    })
}

/// `dmsetup ls --tree`: each device that nothing stands on, with what it stands on below it.
/// `deps` belongs to `devices` by index.
pub fn tree(devices: &[Device], deps: &[Vec<Dependency>]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let used = |name: &str| deps.iter().flatten().any(|d| d.name == name);
    let mut out = String::new();
    for d in devices.iter().filter(|d| !used(&d.name)) {
        let root = Dependency { name: d.name.clone(), number: Some((d.major, d.minor)) };
        branch(devices, deps, &root, "", "", &mut out);
    }
    out
}

/// Ends, because tables can't contain their own device, and soon, because the daemon bounds how
/// deep devices are nested.
fn branch(
    devices: &[Device],
    deps: &[Vec<Dependency>],
    node: &Dependency,
    head: &str,
    indent: &str,
    out: &mut String,
) {
    let Some((major, minor)) = node.number else {
        let _ = writeln!(out, "{head}({})", node.name);
        return;
    };
    let _ = writeln!(out, "{head}{} ({major}:{minor})", node.name);
    let at = devices.iter().position(|d| d.name == node.name);
    let below = at.and_then(|at| deps.get(at)).map_or(&[][..], Vec::as_slice);
    for (nth, dep) in below.iter().enumerate() {
        let last = nth + 1 == below.len();
        let head = format!("{indent} {}", if last { "└─" } else { "├─" });
        let next = format!("{indent} {}", if last { "  " } else { "│ " });
        branch(devices, deps, dep, &head, &next, out);
    }
}

/// `dmsetup status` and `dmsetup table` of one device; with `name` when several are listed. A
/// target that has nothing to say leaves a blank at the end of its line, as with dmsetup.
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
pub fn deps(name: Option<&str>, deps: &[Dependency]) -> String {
    let mut out = name.map(|n| format!("{n}: ")).unwrap_or_default();
    let _ = write!(out, "{} dependencies\t:", deps.len());
    for d in deps {
        let _ = match d.number {
            Some((major, minor)) => write!(out, " ({major}, {minor})"),
            None => write!(out, " ({})", d.name),
        };
    }
    out.push('\n');
    out
}

/// `dmsetup targets`.
pub fn targets(targets: &[TargetType]) -> String {
    targets.iter().fold(String::new(), |mut out, t| {
        let (major, minor, patch) = t.version;
        let _ = writeln!(out, "{:<16} v{major}.{minor}.{patch}", t.name);
        out
    })
}

/// `dmsetup version`: the command line is the library, the daemon the driver.
pub fn version(cli: &str, daemon: &Version) -> String {
    format!("Library version:   {cli}\nDriver version:    {}\n", daemon.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, minor: u32) -> Device {
        Device {
            name: name.into(),
            uuid: None,
            major: 254,
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
             Major, minor:      254, 0\n\
             Number of targets: 1\n\
             UUID: u-1\n\n"
        );
        assert_eq!(info(&[]), NO_DEVICES);
    }

    #[test]
    fn info_columns_mark_live_inactive_suspended_and_how_it_is_written() {
        let d = Device { suspended: true, inactive_table: true, ..device("wc", 7) };
        assert_eq!(
            info_columns(&[d]),
            "Name             Maj Min Stat Open Targ Event  UUID\n\
             wc               254   7 LIsw    1    1      2\n"
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
    fn tree_hangs_what_is_below_under_what_is_above() {
        let devices = [device("low", 0), device("top", 1)];
        let low = Dependency { name: "low".into(), number: Some((254, 0)) };
        let deps = [vec![leaf("/d.img")], vec![low, leaf("mem:4K")]];
        assert_eq!(
            tree(&devices, &deps),
            "top (254:1)\n ├─low (254:0)\n │  └─(/d.img)\n └─(mem:4K)\n"
        );
        assert_eq!(tree(&[], &[]), NO_DEVICES);
    }

    #[test]
    fn deps_targets_and_ls_print_as_dmsetup_does() {
        let low = Dependency { name: "low".into(), number: Some((254, 0)) };
        let d = [low, leaf("/d.img")];
        assert_eq!(deps(None, &d), "2 dependencies\t: (254, 0) (/d.img)\n");
        assert_eq!(deps(Some("wc"), &d), "wc: 2 dependencies\t: (254, 0) (/d.img)\n");
        let t = TargetType { name: "linear".into(), version: (1, 5, 0) };
        assert_eq!(targets(&[t]), "linear           v1.5.0\n");
        assert_eq!(ls(&[device("wc", 3)]), "wc\t(254:3)\n");
        assert_eq!(ls(&[]), NO_DEVICES);
    }
}
