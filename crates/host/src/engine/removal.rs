// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a removal says: in the log, and as warnings about what stays on a cache device.
use block::{Sector, UnsavedBlocks};
use dm::Remove;

use super::report::path_of;
use crate::leaf_word::{LeafWord, parse};

/// How a device is removed, in the log.
pub(super) fn word_of(how: Remove) -> &'static str {
    match how {
        Remove::IfUnused => "unused",
        Remove::Force => "by force",
        Remove::Deferred => "when it is closed",
        Remove::Drained => "after writeback",
    }
}

/// The warnings about what stays in a cache without a device: blocks that the origin does not have,
/// and copies of blocks that it has.
pub(super) fn unsaved_warnings(unsaved: &UnsavedBlocks) -> impl Iterator<Item = String> {
    let UnsavedBlocks { cache, origin, .. } = unsaved;
    let blocks = (!unsaved.is_empty()).then(|| unsaved_warning(unsaved));
    let copies = unsaved.copies_kept.as_ref().map(|why| {
        format!(
            "{cache} may have copies of blocks of {origin} still ({why}), which are old once \
             {origin} is changed without it: make a device with the same table and remove it, \
             which drops them"
        )
    });
    blocks.into_iter().chain(copies)
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
