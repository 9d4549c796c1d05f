// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices and lines of tables as the control API shows them, and what messages say of leaves.
use std::path::PathBuf;

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
        flush: None,
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
