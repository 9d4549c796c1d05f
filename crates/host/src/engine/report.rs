// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices and lines of tables as the control API shows them, and what messages say of leaves.
use std::path::PathBuf;

use block::{Sector, UnsavedBlocks};
use control::api;
use dm::DeviceInfo;

use crate::leaf_word::{LeafWord, parse};

pub(super) fn device(info: DeviceInfo) -> api::Device {
    api::Device {
        name: info.name,
        uuid: info.uuid,
        major: info.major,
        minor: info.minor,
        size_sectors: info.size_sectors,
        suspended: info.suspended,
        read_only: info.read_only,
        deferred_remove: info.deferred_remove,
        live_table: info.live_table,
        inactive_table: info.inactive_table,
        open_count: info.open_count,
        event_nr: info.event_nr,
        targets: info.targets,
        problems: Vec::new(),
        block_device: None,
    }
}

pub(super) fn line(l: dm::TargetLine) -> api::Line {
    api::Line { start: l.start, length: l.len, target: l.kind, params: l.params }
}

/// The path of the file that a word of a table names, if a tool can open it.
pub(super) fn path_of(word: &str) -> Option<PathBuf> {
    match parse(word) {
        Ok(LeafWord::Path(path) | LeafWord::Pmem(path)) => Some(path),
        Ok(LeafWord::Nbd(_) | LeafWord::Mem(_) | LeafWord::Null(_)) | Err(_) => None,
    }
}

/// The warning about blocks that stay in a cache without a device.
pub(super) fn unsaved_warning(unsaved: &UnsavedBlocks) -> String {
    let UnsavedBlocks { cache, start, origin, .. } = unsaved;
    if unsaved.is_missing {
        return format!("{unsaved} stay there, and {origin} alone is perhaps stale");
    }
    if let Ok(LeafWord::Mem(_) | LeafWord::Null(_)) = parse(cache) {
        return format!(
            "{unsaved} are gone with the last device that has {cache} open, for it is in memory; \
             {origin} alone is stale"
        );
    }
    let start = match *start {
        Sector::ZERO => String::new(),
        start => format!(" --start-sector {start}"),
    };
    let recover = match (path_of(cache), path_of(origin)) {
        (Some(cache), Some(origin)) => format!(
            ", or `millpond recover --cache {}{start} --origin {}`,",
            cache.display(),
            origin.display()
        ),
        _ => String::new(),
    };
    format!(
        "{unsaved} stay there, and {origin} alone is stale: only a table over both{recover} brings \
         them together"
    )
}
