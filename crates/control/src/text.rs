// SPDX-License-Identifier: Apache-2.0 OR MIT
//! dmsetup's output, character for character where ours can be the same.
//!
//! Mapped devices live in this process, not in the kernel, so they have no major number; 254, the
//! first that Linux gives out dynamically, is printed where a script expects one.
use std::fmt::Write;

use crate::api::{Deps, Device, Line, State, TargetType, Version};

const MAJOR: u64 = 254;
/// What `dmsetup` prints when there is nothing to list.
pub const NO_DEVICES: &str = "No devices found\n";

fn tables_present(d: &Device) -> &'static str {
    match (d.live, d.inactive) {
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
        let state = match d.state {
            State::Active => "ACTIVE",
            State::Suspended => "SUSPENDED",
        };
        let fields = [
            ("Name:", d.name.clone()),
            ("State:", state.into()),
            // No page cache above us, so nothing reads ahead.
            ("Read Ahead:", "0".into()),
            ("Tables present:", tables_present(d).into()),
            ("Open count:", d.open_count.to_string()),
            ("Event number:", d.event_nr.to_string()),
            ("Major, minor:", format!("{MAJOR}, {}", d.minor)),
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
    let width = devices.iter().map(|d| d.name.len()).max().unwrap_or(0).max(16);
    let mut out = format!("{:<width$} Maj Min Stat Open Targ Event  UUID\n", "Name");
    for d in devices {
        let stat = [
            if d.live { 'L' } else { '-' },
            if d.inactive { 'I' } else { '-' },
            if d.state == State::Suspended { 's' } else { '-' },
            'w',
        ];
        let stat: String = stat.iter().collect();
        let row = format!(
            "{:<width$} {MAJOR:>3} {:>3} {stat:<4} {:>4} {:>4} {:>6}  {}",
            d.name,
            d.minor,
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
        let _ = writeln!(out, "{}\t({MAJOR}:{})", d.name, d.minor);
        out
    })
}

/// `dmsetup ls --tree`: each device that nothing stands on, with what it stands on below it.
/// `deps` belongs to `devices` by index.
pub fn tree(devices: &[Device], deps: &[Deps]) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let used = |name: &str| deps.iter().any(|d| d.devices.iter().any(|n| n == name));
    let mut out = String::new();
    for d in devices.iter().filter(|d| !used(&d.name)) {
        branch(devices, deps, &d.name, "", "", &mut out);
    }
    out
}

fn branch(
    devices: &[Device],
    deps: &[Deps],
    name: &str,
    head: &str,
    indent: &str,
    out: &mut String,
) {
    let found = devices.iter().position(|d| d.name == name);
    match found {
        Some(at) => {
            let _ = writeln!(out, "{head}{name} ({MAJOR}:{})", devices[at].minor);
        }
        None => {
            let _ = writeln!(out, "{head}({name})");
        }
    }
    // Tables cannot refer to themselves, so this ends; the daemon bounds the depth of stacks.
    let below = found.and_then(|at| deps.get(at)).map_or(&[][..], |d| &d.devices);
    for (at, dep) in below.iter().enumerate() {
        let last = at + 1 == below.len();
        let head = format!("{indent} {}", if last { "└─" } else { "├─" });
        let next = format!("{indent} {}", if last { "  " } else { "│ " });
        branch(devices, deps, dep, &head, &next, out);
    }
}

/// `dmsetup status` and `dmsetup table` of one device; with `name` when several are listed.
pub fn lines(name: Option<&str>, lines: &[Line]) -> String {
    let head = name.map(|n| format!("{n}: ")).unwrap_or_default();
    if lines.is_empty() {
        return if name.is_some() { format!("{head}\n") } else { String::new() };
    }
    lines.iter().fold(String::new(), |mut out, l| {
        // dmsetup leaves one blank after a target that has nothing to say.
        let _ = writeln!(out, "{head}{} {} {} {}", l.start, l.length, l.target, l.text);
        out
    })
}

/// `dmsetup deps`; with `name` when several are listed.
pub fn deps(name: Option<&str>, deps: &Deps) -> String {
    let mut out = name.map(|n| format!("{n}: ")).unwrap_or_default();
    let _ = write!(out, "{} dependencies\t:", deps.devices.len());
    for d in &deps.devices {
        let _ = write!(out, " ({d})");
    }
    out.push('\n');
    out
}

/// `dmsetup targets`.
pub fn targets(targets: &[TargetType]) -> String {
    targets.iter().fold(String::new(), |mut out, t| {
        let [major, minor, patch] = t.version;
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

    fn device(name: &str, minor: u64) -> Device {
        Device {
            name: name.into(),
            uuid: None,
            state: State::Active,
            live: true,
            inactive: false,
            open_count: 1,
            event_nr: 2,
            minor,
            targets: 1,
            size_sectors: 8,
        }
    }

    #[test]
    fn info_is_dmsetups_paragraph() {
        let d = Device { uuid: Some("u-1".into()), ..device("wc", 0) };
        assert_eq!(
            info(&[d]),
            "Name:              wc\n\
             State:             ACTIVE\n\
             Read Ahead:        0\n\
             Tables present:    LIVE\n\
             Open count:        1\n\
             Event number:      2\n\
             Major, minor:      254, 0\n\
             Number of targets: 1\n\
             UUID: u-1\n\n"
        );
    }

    #[test]
    fn info_columns_mark_live_inactive_suspended() {
        let d = Device { state: State::Suspended, inactive: true, ..device("wc", 7) };
        assert_eq!(
            info_columns(&[d]),
            "Name             Maj Min Stat Open Targ Event  UUID\n\
             wc               254   7 LIsw    1    1      2\n"
        );
    }

    #[test]
    fn status_names_the_device_only_in_a_listing_of_several() {
        let l = [Line { start: 0, length: 8, target: "zero".into(), text: String::new() }];
        assert_eq!(lines(None, &l), "0 8 zero \n");
        assert_eq!(lines(Some("z"), &l), "z: 0 8 zero \n");
        assert_eq!(lines(Some("z"), &[]), "z: \n");
    }

    #[test]
    fn tree_hangs_what_is_below_under_what_is_above() {
        let devices = [device("low", 0), device("top", 1)];
        let deps = [
            Deps { devices: vec!["/d.img".into()] },
            Deps { devices: vec!["low".into(), "mem:4K".into()] },
        ];
        assert_eq!(
            tree(&devices, &deps),
            "top (254:1)\n ├─low (254:0)\n │  └─(/d.img)\n └─(mem:4K)\n"
        );
    }

    #[test]
    fn deps_targets_and_ls_print_as_dmsetup_does() {
        let d = Deps { devices: vec!["a".into(), "b".into()] };
        assert_eq!(deps(None, &d), "2 dependencies\t: (a) (b)\n");
        assert_eq!(deps(Some("wc"), &d), "wc: 2 dependencies\t: (a) (b)\n");
        let t = TargetType { name: "linear".into(), version: [1, 5, 0] };
        assert_eq!(targets(&[t]), "linear           v1.5.0\n");
        assert_eq!(ls(&[device("wc", 3)]), "wc\t(254:3)\n");
        assert_eq!(ls(&[]), NO_DEVICES);
    }
}
