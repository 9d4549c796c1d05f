// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `dmsetup ls --tree`: each device with the devices below it.
//!
//! ```text
//!   top (999:1)                 inverted   (/d.img)
//!    └─low (999:0)                          └─low (999:0)
//!       └─(/d.img)                             └─top (999:1)
//! ```
use std::fmt::Write;

use crate::api::{Dependency, Device};
use crate::plain;

/// What every listing prints when there is no device.
pub const NO_DEVICES: &str = "No devices found\n";

/// The characters of branches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TreeGlyphs {
    /// `├─`
    #[default]
    Utf,
    /// `|-`
    Ascii,
    /// The line drawing set of terminals.
    Vt100,
}

impl TreeGlyphs {
    /// Before a node with sisters below, before the last one, and beside what is below a node with
    /// sisters below.
    fn all(self) -> [&'static str; 3] {
        match self {
            TreeGlyphs::Utf => ["├─", "└─", "│ "],
            TreeGlyphs::Ascii => ["|-", "`-", "| "],
            TreeGlyphs::Vt100 => ["\x1b(0\x0ftq\x1b(B", "\x1b(0\x0fmq\x1b(B", "\x1b(0\x0fx\x1b(B "],
        }
    }
}

/// How the tree is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// The characters of branches.
    pub glyphs: TreeGlyphs,
    /// Numbers behind the names; leaves are shown only with them.
    pub device: bool,
    /// `<dm-N>` behind the names.
    pub blkdevname: bool,
    /// `ACTIVE` or `SUSPENDED`.
    pub active: bool,
    /// `RW` or `RO`.
    pub rw: bool,
    /// The open count.
    pub open: bool,
    /// The UUID.
    pub uuid: bool,
    /// Leaves first, and below them the devices that use them.
    pub inverted: bool,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            glyphs: TreeGlyphs::Utf,
            device: true,
            blkdevname: false,
            active: false,
            rw: false,
            open: false,
            uuid: false,
            inverted: false,
        }
    }
}

struct Node {
    label: String,
    below: Vec<usize>,
}

/// The tree. `deps` belongs to `devices` by index.
pub fn drawn(devices: &[Device], deps: &[Vec<Dependency>], style: &Style) -> String {
    if devices.is_empty() {
        return NO_DEVICES.into();
    }
    let mut nodes: Vec<Node> =
        devices.iter().map(|d| Node { label: style.device_label(d), below: Vec::new() }).collect();
    let mut leaves: Vec<&Dependency> = Vec::new();
    // In the order of the devices, each followed by the leaves that are met first below it.
    let mut tops = Vec::new();
    let mut has_parent = vec![false; devices.len()];
    for (nth, below) in deps.iter().enumerate() {
        if style.inverted && !below.iter().any(|d| style.shows(devices, d)) {
            tops.push(nth);
        }
        for dep in below.iter().filter(|d| style.shows(devices, d)) {
            let at = mapped(devices, dep).unwrap_or_else(|| {
                let known = leaves.iter().position(|l| *l == dep);
                devices.len()
                    + known.unwrap_or_else(|| {
                        leaves.push(dep);
                        nodes.push(Node { label: style.leaf_label(dep), below: Vec::new() });
                        has_parent.push(true);
                        if style.inverted {
                            tops.push(nodes.len() - 1);
                        }
                        leaves.len() - 1
                    })
            });
            if style.inverted {
                nodes[at].below.push(nth);
            } else {
                nodes[nth].below.push(at);
                has_parent[at] = true;
            }
        }
    }
    if !style.inverted {
        tops = (0..devices.len()).filter(|at| !has_parent[*at]).collect();
    }
    let mut out = String::new();
    for top in tops {
        let _ = writeln!(out, "{}", nodes[top].label);
        branches(&nodes, top, "", style.glyphs.all(), &mut out);
    }
    out
}

/// Ends, because tables can't contain their own device, and soon, because the daemon bounds how
/// deep devices are nested.
fn branches(nodes: &[Node], at: usize, indent: &str, glyphs: [&str; 3], out: &mut String) {
    let [one, last, beside] = glyphs;
    for (nth, below) in nodes[at].below.iter().enumerate() {
        let is_last = nth + 1 == nodes[at].below.len();
        let stroke = if is_last { last } else { one };
        let _ = writeln!(out, "{indent} {stroke}{}", nodes[*below].label);
        let next = format!("{indent} {}", if is_last { "  " } else { beside });
        branches(nodes, *below, &next, glyphs, out);
    }
}

fn mapped(devices: &[Device], dep: &Dependency) -> Option<usize> {
    let number = dep.number?;
    devices.iter().position(|d| d.name == dep.name && (d.major, d.minor) == number)
}

impl Style {
    fn shows(&self, devices: &[Device], dep: &Dependency) -> bool {
        self.device || mapped(devices, dep).is_some()
    }

    fn device_label(&self, d: &Device) -> String {
        let mut out = d.name.clone();
        if self.blkdevname {
            let _ = write!(out, " <dm-{}>", d.minor);
        }
        if self.device {
            let _ = write!(out, " ({}:{})", d.major, d.minor);
        }
        let open = d.open_count.to_string();
        let facts: Vec<&str> = [
            (self.active, if d.suspended { "SUSPENDED" } else { "ACTIVE" }),
            (self.rw, if d.read_only { "RO" } else { "RW" }),
            (self.open, &open),
            (self.uuid, d.uuid.as_deref().unwrap_or_default()),
        ]
        .into_iter()
        .filter_map(|(wanted, fact)| wanted.then_some(fact))
        .collect();
        if !facts.is_empty() {
            let _ = write!(out, " [{}]", facts.join(", "));
        }
        out
    }

    /// A leaf with numbers is a device of the kernel; one without is a file or memory.
    fn leaf_label(&self, dep: &Dependency) -> String {
        match dep.number {
            Some((major, minor)) if self.blkdevname => {
                format!(" <{}> ({major}:{minor})", plain(&dep.name))
            }
            Some((major, minor)) => format!(" ({major}:{minor})"),
            None => format!("({})", plain(&dep.name)),
        }
    }
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
            event_nr: 2,
            targets: 1,
            problems: Vec::new(),
            flush: None,
            block_device: None,
        }
    }

    fn dep(name: &str, number: Option<(u32, u32)>) -> Dependency {
        Dependency { name: name.into(), number }
    }

    #[test]
    fn what_is_below_hangs_under_what_is_above() {
        let devices = [device("low", 0), device("top", 1)];
        let deps =
            [vec![dep("/d.img", None)], vec![dep("low", Some((999, 0))), dep("mem:4K", None)]];
        let tree = |style: Style| drawn(&devices, &deps, &style);
        assert_eq!(
            tree(Style::default()),
            "top (999:1)\n ├─low (999:0)\n │  └─(/d.img)\n └─(mem:4K)\n"
        );
        assert_eq!(
            tree(Style { glyphs: TreeGlyphs::Vt100, device: false, ..Style::default() }),
            "top\n \x1b(0\x0fmq\x1b(Blow\n"
        );
        assert_eq!(drawn(&[], &[], &Style::default()), NO_DEVICES);
    }

    /// What dmsetup 1.02.185 printed for such devices.
    #[test]
    fn the_styles_are_dmsetups() {
        let mut devices =
            [device("low", 0), device("top", 1), device("ro", 3), device("my dev", 12)];
        devices[0].open_count = 1;
        devices[1].uuid = Some("u-1".into());
        (devices[2].suspended, devices[2].read_only) = (true, true);
        let loops = [dep("loop0", Some((7, 0))), dep("loop1", Some((7, 1)))];
        let deps =
            [vec![loops[0].clone()], vec![dep("low", Some((999, 0)))], Vec::new(), loops.to_vec()];
        let tree = |style: Style| drawn(&devices, &deps, &style);
        let ascii = Style { glyphs: TreeGlyphs::Ascii, ..Style::default() };
        assert_eq!(
            tree(Style { active: true, rw: true, open: true, uuid: true, ..ascii }),
            "top (999:1) [ACTIVE, RW, 1, u-1]\n \
             `-low (999:0) [ACTIVE, RW, 1, ]\n    `- (7:0)\n\
             ro (999:3) [SUSPENDED, RO, 3, ]\n\
             my dev (999:12) [ACTIVE, RW, 12, ]\n |- (7:0)\n `- (7:1)\n"
        );
        assert_eq!(
            tree(Style { inverted: true, ..ascii }),
            " (7:0)\n |-low (999:0)\n |  `-top (999:1)\n `-my dev (999:12)\nro (999:3)\n \
             (7:1)\n `-my dev (999:12)\n"
        );
        assert_eq!(tree(Style { device: false, ..ascii }), "top\n `-low\nro\nmy dev\n");
        assert_eq!(
            tree(Style { blkdevname: true, ..ascii }),
            "top <dm-1> (999:1)\n `-low <dm-0> (999:0)\n    `- <loop0> (7:0)\nro <dm-3> (999:3)\n\
             my dev <dm-12> (999:12)\n |- <loop0> (7:0)\n `- <loop1> (7:1)\n"
        );
    }
}
