// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Size of the write buffer, and the frames that keep its data in memory that outlives the process
//! (`docs/format/journal.md`).
use std::rc::Rc;

use block::Status;
use format::{FRAME_TAG_BYTES, FrameTag, frame_offset};
use reactor::SharedMemory;

use crate::config::{Config, Mode};

/// The longest segment, and so the longest run.
const SEGMENT_BYTES: u32 = 1 << 20;
/// There are at least so many segments: one is filled while others are written.
const SEGMENTS_MIN: u32 = 4;
/// The buffer takes at most this part of the slots: they are in use until they are written.
const PART_OF_SLOTS: u32 = 8;

/// How many blocks the buffer of a cache with so many slots has; 0: none.
pub(crate) fn buffer_blocks(config: &Config, slots: u32) -> u32 {
    let blocks = (config.write_buffer / config.block_size).min(slots / PART_OF_SLOTS);
    let blocks = config.test_sizes.buffer_blocks.unwrap_or(blocks);
    let segment = segment_blocks(config, blocks);
    if config.mode == Mode::Pmem || segment == 0 { 0 } else { blocks - blocks % segment }
}

/// Blocks of a segment of a buffer of so many blocks.
pub(crate) fn segment_blocks(config: &Config, blocks: u32) -> u32 {
    (SEGMENT_BYTES / config.block_size).min(blocks / SEGMENTS_MIN)
}

/// Memory that outlives the process, for the data of the buffer.
#[derive(Clone)]
pub(crate) struct Frames {
    pub(crate) memory: Rc<dyn SharedMemory>,
    pub(crate) count: u32,
}

impl Frames {
    /// Stores a block and then its tag.
    pub(crate) fn store(&self, place: u32, tag: FrameTag, data: &[u8]) -> Result<(), Status> {
        let offset = |frame: u64| frame_offset(frame, self.count.into(), data.len() as u64);
        let at = usize::try_from(offset(place.into())).expect("within the memory");
        self.memory.write(at, data)?;
        self.memory.write(place as usize * FRAME_TAG_BYTES, &tag.encode())
    }
}
