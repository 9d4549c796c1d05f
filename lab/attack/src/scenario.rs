// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices that are attacked: their tables and disks, what disks may do, what an operator does.

use crate::client::{Load, Zeroes};
use crate::history::{ErrorScope, Rules};

/// What a disk does besides being lossy, at times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// FLUSHes fail and lose data.
    pub flushes: bool,
    /// Writes fail, half done.
    pub writes: bool,
    /// Reads fail: any, and all of a range.
    pub reads: bool,
    /// It loses its connections, for a while, and perhaps what was not flushed; or it is silent
    /// for longer than its client waits.
    pub connections: bool,
}

impl Faults {
    /// Whether there is nothing.
    pub fn is_none(&self) -> bool {
        *self == NO
    }
}

const NO: Faults = Faults { flushes: false, writes: false, reads: false, connections: false };
const FLUSHES: Faults = Faults { flushes: true, ..NO };
const READS: Faults = Faults { reads: true, ..NO };
const ALL_ERRORS: Faults = Faults { flushes: true, writes: true, reads: true, ..NO };
const CONNECTIONS: Faults = Faults { connections: true, ..NO };

/// What is wrong with a disk while the operator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Nothing.
    None,
    /// It fails all writes, half done.
    Refuses,
    /// It fails all reads.
    Unreadable,
    /// It answers nothing.
    Hangs,
    /// It ends its connections, and takes none for a while.
    Away,
}

/// A verb that is given while a disk is in trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are called as in the manual")]
pub enum Verb {
    Remove,
    RemoveDeferred,
    RemoveForce,
    Stop,
    Terminate,
    Reload,
    Flush,
    Drain,
    Resize,
    Upgrade,
    Uncache,
    Replace,
}

impl Verb {
    /// Whether it must end in a bounded time while a disk is in trouble.
    pub fn waits_for_none(self) -> bool {
        matches!(self, Verb::RemoveForce | Verb::Stop | Verb::Terminate)
    }
}

/// What happens in each round, in place of random orders and one of the usual ends.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// One of these verbs, while clients work and a disk is in trouble of one of these kinds.
    Verbs(&'static [Verb], &'static [Outage]),
    /// A removal by force while the first disk holds writes, and one of these tables over it.
    LateWrites(&'static [&'static str]),
    /// These tables, or an upgrade, and the first table again; the first disk loses what was not
    /// flushed.
    Swaps(&'static [&'static str]),
}

/// In place of a table: the daemon hands over to a successor.
pub const UPGRADE: &str = "upgrade";

/// The name of a device below the one under attack.
pub const BELOW: &str = "low";

/// A device under attack; it is called `dev`.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its table; `DISK0` and `DISK1` are its disks.
    pub table: &'static str,
    /// The table of the device [`BELOW`] that it stands on, if there is one.
    pub below: Option<&'static str>,
    /// Bytes of the disks.
    pub disks: &'static [u64],
    /// Cores of the daemon.
    pub cores: u64,
    /// Which sectors are used, and how.
    pub load: Load,
    /// Whether clients by file are there, too.
    pub files: bool,
    /// What it promises.
    pub rules: Rules,
    /// An orderly end, or a removal, makes everything durable.
    pub end_is_flush: bool,
    /// What each disk does.
    pub faults: [Faults; 2],
    /// The first disk alone is at every moment what a disk may hold after a power cut.
    pub origin_alone: bool,
    /// Orders that an operator gives in one go, words with blanks between; `TABLE` is the table,
    /// `-` a pause.
    pub orders: &'static [&'static [&'static str]],
    /// What its rounds are, if they are no usual ones.
    pub act: Option<Act>,
    /// Why CI leaves it out, and `all` too: what is known to be wrong and not mended yet.
    pub known: Option<&'static str>,
}

const MIB: u64 = 1 << 20;
const KEEPS: Rules =
    Rules { error_scope: ErrorScope::Device, loss_is_visible: false, forgets_when_loaded: false };
const PASSES: Rules = Rules { loss_is_visible: true, ..KEEPS };
const EACH_CLIENT: Rules = Rules { error_scope: ErrorScope::Each, ..PASSES };
/// A write cache whose cache device fails stops: loaded again it has what it had committed, and
/// each client is told.
const STOPS: Rules = Rules { forgets_when_loaded: true, ..EACH_CLIENT };

const SECTORS: Load =
    Load { first: 0, count: 16384, grain: 1, zeroes: Zeroes::Fua, long_zeroes: false, flushes: 8 };
/// Whole blocks of caches and pages only.
const BLOCKS: Load = Load { grain: 8, ..SECTORS };

const SUSPEND: &[&str] = &["suspend dev", "-", "resume dev"];
const RELOAD: &[&str] = &["load dev --table TABLE", "resume dev"];
const CLEANER: &[&str] = &["message dev 0 cleaner", "-", "load dev --table TABLE", "resume dev"];

const OF_ANY: &[&[&str]] = &[SUSPEND, RELOAD];
const OF_CACHE: &[&[&str]] = &[
    SUSPEND,
    RELOAD,
    CLEANER,
    &["message dev 0 flush"],
    &["drain dev"],
    &["set dev high_watermark 20", "set dev low_watermark 5"],
    &["set dev low_watermark 45", "set dev high_watermark 50"],
    &["set dev autocommit_blocks 8"],
    &["set dev autocommit_time 20"],
    &["set dev max_age 100"],
    &["set dev max_age none"],
];
const OF_PAGES: &[&[&str]] = &[
    SUSPEND,
    RELOAD,
    &["set dev dirty_bytes 65536", "set dev dirty_background_bytes 8192"],
    &["set dev dirty_bytes 0", "set dev dirty_background_bytes 0"],
    &["set dev dirty_writeback_centisecs 1", "set dev dirty_expire_centisecs 1"],
    &["set dev ioend_bytes 4096"],
    &["set dev ioend_bytes 1M"],
];

const VERBS: &[Verb] = &[
    Verb::Remove,
    Verb::RemoveDeferred,
    Verb::RemoveForce,
    Verb::Stop,
    Verb::Terminate,
    Verb::Reload,
    Verb::Flush,
    Verb::Drain,
    Verb::Resize,
    Verb::Upgrade,
    Verb::Uncache,
    Verb::Replace,
];

const PLAIN: Scenario = Scenario {
    name: "plain",
    table: "0 16384 writecache s DISK0 DISK1 4096 0",
    below: None,
    disks: &[8 * MIB, 4 * MIB],
    cores: 1,
    load: SECTORS,
    files: false,
    rules: KEEPS,
    end_is_flush: true,
    faults: [NO, NO],
    origin_alone: false,
    orders: OF_CACHE,
    act: None,
    known: None,
};

const ORDERED: Scenario = Scenario {
    name: "ordered",
    table: "0 16384 writecache s DISK0 DISK1 4096 1 ordered",
    load: Load { long_zeroes: true, ..SECTORS },
    origin_alone: true,
    ..PLAIN
};
const LINEAR: Scenario = Scenario {
    name: "linear",
    table: "0 16384 linear DISK0 0",
    disks: &[8 * MIB],
    rules: PASSES,
    end_is_flush: false,
    faults: [ALL_ERRORS, NO],
    orders: OF_ANY,
    ..PLAIN
};
const BUFFERED: Scenario = Scenario {
    name: "buffered",
    table: "0 16384 buffered DISK0 2 memory 8M",
    disks: &[8 * MIB],
    rules: EACH_CLIENT,
    faults: [Faults { reads: true, ..FLUSHES }, NO],
    orders: OF_PAGES,
    ..PLAIN
};

const OUTAGES: &[Outage] = &[Outage::None, Outage::Refuses, Outage::Unreadable, Outage::Hangs];

const DEGRADED: Scenario = Scenario {
    name: "degraded",
    disks: &[8 * MIB, 4 * MIB, 4 * MIB],
    load: Load { count: 4096, ..SECTORS },
    rules: STOPS,
    act: Some(Act::Verbs(VERBS, OUTAGES)),
    ..PLAIN
};

/// All of them.
pub const ALL: &[Scenario] = &[
    PLAIN,
    Scenario { name: "block512", table: "0 16384 writecache s DISK0 DISK1 512 0", ..PLAIN },
    ORDERED,
    Scenario { name: "ordered-errors", faults: [ALL_ERRORS, NO], ..ORDERED },
    Scenario { name: "dm", table: "0 16384 writecache s DISK0 DISK1 4096 2 format dm", ..PLAIN },
    Scenario {
        name: "metadata_only",
        // Without a guard, whose slots may show first that a disk has lied.
        table: "0 16384 writecache s DISK0 DISK1 4096 2 metadata_only no_guard",
        rules: PASSES,
        faults: [ALL_ERRORS, NO],
        ..PLAIN
    },
    Scenario {
        name: "small",
        table: "0 16384 writecache s DISK0 DISK1 4096 1 no_guard",
        disks: &[8 * MIB, MIB],
        load: BLOCKS,
        ..PLAIN
    },
    Scenario { name: "errors", faults: [ALL_ERRORS, NO], rules: PASSES, ..PLAIN },
    Scenario { name: "reads", faults: [READS, NO], ..PLAIN },
    Scenario { name: "cache-errors", faults: [NO, ALL_ERRORS], rules: STOPS, ..PLAIN },
    Scenario { name: "lost-origin", faults: [CONNECTIONS, NO], rules: PASSES, ..PLAIN },
    Scenario { name: "lost-cache", faults: [NO, CONNECTIONS], rules: STOPS, ..PLAIN },
    Scenario { name: "files", files: true, ..PLAIN },
    BUFFERED,
    Scenario { name: "lost-buffered", faults: [CONNECTIONS, NO], ..BUFFERED },
    Scenario {
        name: "buffered-files",
        table: "0 16384 buffered DISK0 2 memory 8M",
        disks: &[8 * MIB],
        files: true,
        orders: OF_PAGES,
        ..PLAIN
    },
    LINEAR,
    Scenario { name: "lost-linear", faults: [CONNECTIONS, NO], ..LINEAR },
    DEGRADED,
    Scenario { name: "degraded-away", act: Some(Act::Verbs(VERBS, &[Outage::Away])), ..DEGRADED },
    Scenario {
        name: "late-writes",
        table: "0 16384 writecache s low DISK1 4096 1 no_guard",
        below: Some("0 16384 linear DISK0 0"),
        load: Load { count: 1024, ..SECTORS },
        act: Some(Act::LateWrites(&[
            "0 16384 linear DISK0 0",
            "0 16384 writecache s DISK0 DISK2 4096 1 no_guard",
        ])),
        ..DEGRADED
    },
    Scenario {
        name: "swaps",
        act: Some(Act::Swaps(&[
            "0 16384 zero",
            "0 16384 error",
            "0 8192 linear DISK0 0\n8192 8192 linear DISK0 8192",
            "0 16384 linear DISK0 0",
            UPGRADE,
        ])),
        ..LINEAR
    },
    Scenario { name: "upgrades", act: Some(Act::Verbs(&[Verb::Upgrade], OUTAGES)), ..DEGRADED },
];

/// Those of these names; `all` are all in which nothing is known to be wrong.
pub fn named(names: &str) -> crate::Result<Vec<Scenario>> {
    if names == "all" {
        return Ok(ALL.iter().filter(|s| s.known.is_none()).copied().collect());
    }
    let find = |name: &str| {
        let known = || ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", ");
        let found = ALL.iter().find(|s| s.name == name).copied();
        found.ok_or_else(|| format!("no scenario `{name}`: all, {}", known()))
    };
    names.split(',').map(find).collect()
}
