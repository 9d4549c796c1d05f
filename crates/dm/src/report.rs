// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What verbs take and return, as data; `control` has the text that dmsetup prints for it.

/// One device, as `info` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name, unmangled.
    pub name: String,
    /// Its UUID, if it has one.
    pub uuid: Option<String>,
    /// Major number, the same for all.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Whether bios wait.
    pub suspended: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it goes when the last opener has closed it.
    pub deferred_remove: bool,
    /// Whether there is a live table.
    pub live_table: bool,
    /// Whether there is an inactive table.
    pub inactive_table: bool,
    /// Whether its attributes can give it a table.
    pub has_setup: bool,
    /// Exports and tables that hold it open.
    pub open_count: u32,
    /// Number of the last event.
    pub event_nr: u32,
    /// Lines of the live table.
    pub targets: usize,
    /// Size of the live table.
    pub size_sectors: u64,
}

/// One line of `status` or `table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetLine {
    /// First sector.
    pub start: u64,
    /// Length in sectors.
    pub len: u64,
    /// Target type.
    pub kind: String,
    /// The target's words.
    pub params: String,
}

/// One device that a table stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Its name: a mapped device's, or the word that opens the leaf.
    pub name: String,
    /// Major and minor number, for mapped devices.
    pub number: Option<(u32, u32)>,
}

/// One line of `targets`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetVersion {
    /// Target type.
    pub name: &'static str,
    /// Its version.
    pub version: (u32, u32, u32),
}

/// How `remove` treats a device that is in use or does not go cleanly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remove {
    /// `EBUSY` when open; stays, suspended, when a target can't settle its state.
    #[default]
    IfUnused,
    /// The table is replaced at once by one that fails all I/O, whatever hangs below; what its
    /// targets still held may be lost.
    Force,
    /// Removed now, or when the last opener has closed it.
    Deferred,
    /// As `IfUnused`, once what only its caches have is written back.
    Drained,
}
