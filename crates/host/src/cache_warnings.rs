// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What whoever makes a write cache should know of its two devices, and can still change.
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use block::{BlockDevice, Error, Sector, size_text};
use dm::Context;

use crate::claims::Claims;
use crate::leaves::Leaves;

/// What a warning of a sparse file is about, bytes.
struct Room {
    /// Its length.
    len: u64,
    /// What it has no room for yet.
    needed: u64,
    /// What its file system has left.
    free: u64,
}

/// Warns of a cache in memory, of devices that may be swapped, of an origin without FLUSH, and of
/// a sparse cache file that its file system may have no room for. `start` is where the cache begins
/// on its device.
pub(crate) async fn warn(
    (claims, leaves): (&Claims, &Leaves),
    ctx: &Context,
    [origin, cache]: &[Rc<dyn BlockDevice>; 2],
    start: Sector,
) {
    claims.warn_of_memory(leaves, ctx, cache);
    let name = ctx.device();
    let (of_origin, of_cache) = (origin.limits(), cache.limits());
    // A device with a start sector is shared, and may be large. In memory there is nothing to lose.
    let are_on_files = [origin, cache].iter().all(|d| !claims.files_below(leaves, d).is_empty());
    if of_cache.capacity > of_origin.capacity && start == Sector::ZERO && are_on_files {
        leaves.warn(format!(
            "{name}: the cache device {} is larger than the origin {}: the origin comes first in \
             the table; are they swapped?",
            cache.name(),
            origin.name()
        ));
    }
    if of_origin.loses_all {
        leaves.warn(format!(
            "{name}: the origin {} is in memory, so this device offers no FLUSH: what is written \
             back is gone when the daemon ends",
            origin.name()
        ));
    } else if !of_origin.keeps {
        leaves.warn(format!(
            "{name}: the origin {} offers no FLUSH: a FLUSH of this device makes durable what the \
             cache holds, and what is written back is as safe as the origin makes it by itself. \
             nbd-server offers FLUSH with `flush = true`",
            origin.name()
        ));
    }
    for path in claims.files_below(leaves, cache) {
        let asked = path.clone();
        let room = leaves.on_helper(name, move || room_of(&asked)).await;
        // Where that is not known nothing is said.
        let Ok(Some(room)) = room else { continue };
        // Of a file that is shared, or mapped in part, the cache takes its part.
        let most = (of_cache.capacity - start.min(of_cache.capacity)).bytes();
        if room.needed.min(most) > room.free {
            leaves.warn(format!("{name}: {}", room.text(&path)));
        }
    }
}

impl Room {
    fn text(&self, path: &Path) -> String {
        format!(
            "the cache file {0} is sparse: it may need {1} more, and its file system has {2} free. \
             Once that is full the cache takes no writes. Make room there; `fallocate -l {3} {0}` \
             keeps it",
            path.display(),
            size_text(self.needed),
            size_text(self.free),
            self.len
        )
    }
}

/// What a file may still need; `None` of what is no file, or not sparse.
fn room_of(path: &Path) -> Result<Option<Room>, Error> {
    let failed = |e: std::io::Error| Error::io(path.display().to_string()).because(e);
    let file = std::fs::metadata(path).map_err(failed)?;
    let needed = file.len().saturating_sub(file.blocks() * 512);
    if !file.is_file() || needed == 0 {
        return Ok(None);
    }
    let system = rustix::fs::statvfs(path).map_err(|e| failed(e.into()))?;
    Ok(Some(Room { len: file.len(), needed, free: system.f_bavail * system.f_frsize }))
}
