// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reader of the kernel's format that shares no code with the engine: what the kernel would find
//! on the media.

use block::Sector;
use format::dm::{CacheContents, EntryState, HEADER_BYTES, Superblock, entries, is_unformatted};
use reactor::FileId;
use sim::WorldRef;
use writecache::Config;

/// The blocks according to all entries; `None` before the first format has ended.
///
/// # Errors
/// Contents that the kernel would refuse, or could not use.
pub(crate) fn survey(
    world: &WorldRef,
    file: FileId,
    config: &Config,
) -> Result<Option<CacheContents>, String> {
    let peek = |offset: u64, len: u64| {
        let mut out = vec![0; usize::try_from(len).unwrap()];
        let at = config.start_sector + Sector::from_bytes(offset);
        world.borrow().peek(file, at, &mut out);
        out
    };
    let header = peek(0, 512);
    if is_unformatted(&header) {
        return Ok(None);
    }
    let superblock = Superblock::decode(&header).map_err(|refusal| refusal.to_string())?;
    let geometry = superblock.geometry();
    let bytes = peek(0, geometry.data_offset());
    let mut survey = CacheContents::new(&superblock);
    let count = usize::try_from(geometry.n_blocks()).unwrap();
    for entry in entries(&bytes[HEADER_BYTES..]).take(count) {
        survey.add(entry).map_err(|refusal| refusal.to_string())?;
        // A commit ahead of the superblock by more than one would come back in two steps.
        if entry.state(superblock.seq_count) == EntryState::Leftover
            && entry.seq_count > superblock.seq_count
        {
            return Err(format!("{entry:?} is ahead of {superblock:?}"));
        }
    }
    Ok(Some(survey))
}
