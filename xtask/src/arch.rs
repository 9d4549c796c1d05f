// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which room may see which: a room depends only on rooms of lower floors. Inside a room few files
//! import each other: `circles.rs`.
//!
//! ```text
//!   beside   attack bench e2e loadgen reproduce xtask   depend on anything, no room on them
//!   6        millpond
//!   5        cli
//!   4        host
//!   3        uring sim  nbd fuse vhost objstore  control handover
//!   2        dm queue writecache zram pagecache objvol
//!   1        reactor
//!   0        block format policy
//! ```
//!
//! Invariants
//! - A room never sees its own floor: engines do not know each other, doors neither.
//! - Floors 0 to 2 see no driver (they lie higher) and of the outside only the crates listed here.
//! - Dev-dependencies are free: an engine's tests use the simulator.

use std::path::Path;

use crate::circles;
use crate::metadata::{self, Package};

/// The rooms, lowest floor first.
const FLOORS: [&[&str]; 7] = [
    &["block", "format", "policy"],
    &["reactor"],
    &["dm", "queue", "writecache", "zram", "pagecache", "objvol"],
    &["uring", "sim", "nbd", "fuse", "ublk", "vhost", "objstore", "control", "handover"],
    &["host"],
    &["cli"],
    &["millpond"],
];

/// The first floor that may know threads, clocks, sockets and everything on crates.io.
pub(crate) const FIRST_FREE_FLOOR: usize = 3;

/// Members that stand beside the building.
const BESIDE: &[&str] = &["attack", "bench", "e2e", "loadgen", "reproduce", "xtask"];

/// Outside crates that floors 0 to 2 may use: data structures, codecs, checksums.
/// What may be seen there is decision 0004.
const OUTSIDE_BELOW: &[&str] = &["bitflags", "crc-fast", "roaring", "slab", "smallvec", "zerocopy"];

/// What one room of floors 0 to 2 may use besides, and the others may not.
const OUTSIDE_OF_ROOM: &[(&str, &str)] = &[
    // The memory of `block::Ram`: mapped, and returned to the system page by page.
    ("rustix", "block"),
    // How similar two names are, for errors about an unknown one.
    ("strsim", "block"),
    // The images of an origin's superblocks.
    ("lz4_flex", "format"),
    // Its compression: the two in C run on the caller's thread and do nothing else.
    ("flate2", "zram"),
    ("lz4", "zram"),
    ("lz4_flex", "zram"),
    ("zstd", "zram"),
];

/// Outside crates that belong to few rooms.
const OF_ROOMS: &[(&str, &[&str])] = &[
    ("io-uring", &["uring", "ublk"]),
    ("tokio", &["host", "cli", "objstore"]),
    ("hyper", &["host", "cli"]),
    ("fuser", &["fuse"]),
    ("object_store", &["objstore"]),
    ("reqwest", &["objstore"]),
];

/// The floor of a room; none for outside crates and for what stands beside.
pub(crate) fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// Findings in this checkout.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    let packages = metadata::read(root)?;
    let mut found = findings(&packages);
    found.extend(circles::check(root, &packages));
    Ok(found)
}

fn findings(packages: &[Package]) -> Vec<String> {
    let ours: Vec<&Package> = packages.iter().filter(|p| !p.outside).collect();
    let is_ours = |name: &str| ours.iter().any(|p| p.name == name);
    let mut found = Vec::new();
    for package in &ours {
        let room = package.name.as_str();
        if BESIDE.contains(&room) {
            continue;
        }
        let Some(mine) = floor(room) else {
            found.push(format!("{room} has no floor: give it one in xtask/src/arch.rs"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| !d.dev) {
            let problem = if is_ours(&dependency.name) {
                inside_problem(mine, &dependency.name)
            } else {
                outside_problem(room, mine, &dependency.name)
            };
            if let Some(why) = problem {
                found.push(format!("{room} must not depend on {}: {why}", dependency.name));
            }
        }
    }
    found
}

fn inside_problem(mine: usize, dependency: &str) -> Option<String> {
    match floor(dependency) {
        Some(theirs) if theirs < mine => None,
        Some(theirs) if theirs == mine => {
            Some(format!("both are on floor {mine}, siblings do not see each other"))
        }
        Some(theirs) => Some(format!("floor {mine} does not see floor {theirs}")),
        None => Some("it stands beside the rooms".to_owned()),
    }
}

fn outside_problem(room: &str, mine: usize, dependency: &str) -> Option<String> {
    let room_has = OUTSIDE_OF_ROOM.contains(&(dependency, room));
    if mine < FIRST_FREE_FLOOR && !OUTSIDE_BELOW.contains(&dependency) && !room_has {
        let allowed = OUTSIDE_BELOW.join(", ");
        return Some(format!("below floor {FIRST_FREE_FLOOR} only {allowed} are allowed"));
    }
    let (_, rooms) = OF_ROOMS.iter().find(|(name, _)| *name == dependency)?;
    (!rooms.contains(&room)).then(|| format!("only {} may use it", rooms.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn package(name: &str, outside: bool, normal: &[&str], dev: &[&str]) -> Package {
        let dependency = |dev| move |name: &&str| Dependency { name: (*name).to_owned(), dev };
        let dependencies =
            normal.iter().map(dependency(false)).chain(dev.iter().map(dependency(true)));
        Package {
            name: name.to_owned(),
            outside,
            dependencies: dependencies.collect(),
            ..Package::default()
        }
    }

    /// Findings for one room with these normal and dev dependencies, all rooms existing.
    fn judge(room: &str, normal: &[&str], dev: &[&str]) -> Vec<String> {
        let rooms = FLOORS.iter().copied().flatten().chain(BESIDE);
        let mut packages: Vec<Package> = rooms
            .filter(|name| **name != room)
            .map(|name| package(name, false, &[], &[]))
            .collect();
        packages.push(package(room, false, normal, dev));
        findings(&packages)
    }

    #[test]
    fn lower_floors_may_be_seen() {
        assert_eq!(judge("writecache", &["reactor", "block", "format", "policy"], &[]), [""; 0]);
        assert_eq!(judge("nbd", &["dm", "reactor"], &[]), [""; 0]);
        assert_eq!(judge("reproduce", &["sim", "host", "dm"], &[]), [""; 0]);
        assert_eq!(judge("cli", &["reproduce"], &[]).len(), 1);
        assert_eq!(judge("host", &["uring", "nbd", "control", "tokio", "clap"], &[]), [""; 0]);
        assert_eq!(judge("millpond", &["host", "cli", "clap"], &[]), [""; 0]);
    }

    #[test]
    fn siblings_may_not_see_each_other() {
        let found = judge("dm", &["queue"], &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("siblings"), "{found:?}");
        assert_eq!(judge("nbd", &["uring"], &[]).len(), 1);
        assert_eq!(judge("format", &["block"], &[]).len(), 1);
    }

    #[test]
    fn higher_floors_may_not_be_seen() {
        let found = judge("writecache", &["sim"], &[]);
        assert_eq!(found, ["writecache must not depend on sim: floor 2 does not see floor 3"]);
        assert_eq!(judge("reactor", &["dm"], &[]).len(), 1);
    }

    #[test]
    fn dev_dependencies_are_free() {
        assert_eq!(judge("writecache", &[], &["sim", "dm", "proptest"]), [""; 0]);
    }

    #[test]
    fn outside_crates_below_floor_3_come_from_the_list() {
        assert_eq!(judge("reactor", &["slab"], &[]), [""; 0]);
        assert!(judge("reactor", &["tokio"], &[])[0].contains("below floor 3 only"));
        assert!(judge("block", &["libc"], &[])[0].contains("below floor 3 only"));
        assert_eq!(judge("block", &["rustix"], &[]), [""; 0]);
        assert_eq!(judge("reactor", &["rustix"], &[]).len(), 1);
    }

    #[test]
    fn a_crate_of_one_room_stays_there() {
        assert_eq!(judge("uring", &["io-uring", "libc"], &[]), [""; 0]);
        let found = judge("nbd", &["io-uring"], &[]);
        assert_eq!(found, ["nbd must not depend on io-uring: only uring and ublk may use it"]);
        assert_eq!(judge("control", &["tokio"], &[]).len(), 1);
    }

    #[test]
    fn nothing_depends_on_what_stands_beside() {
        assert_eq!(judge("millpond", &["bench"], &[]).len(), 1);
        assert_eq!(judge("millpond", &["loadgen"], &[]).len(), 1);
        assert_eq!(judge("bench", &["millpond", "sim", "anything"], &[]), [""; 0]);
    }

    #[test]
    fn a_room_without_a_floor_is_found() {
        let found = judge("attic", &[], &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("no floor"), "{found:?}");
    }
}
