// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Segments: pieces of the origin that are being read ahead, or were and are kept for their reader.
use std::ops::Range;

use block::{Bio, Buf, Bufs};
use roaring::RoaringBitmap;
use slab::Slab;

use crate::lifecycle::TaskGuard;

/// Segments at once: each change of the origin looks at all of them. Chosen: 16 MiB in requests of
/// 256 KiB.
pub(super) const SEGMENTS_MAX: usize = 64;

/// A piece of the origin in memory.
pub(super) struct Segment {
    pub(super) blocks: Range<u64>,
    data: Buf,
    /// The watch of its blocks (WC-AH1).
    pub(super) watch: usize,
    /// `Writeback::origin_flush_errors` before it was read (WC-AH2).
    pub(super) flush_errors: u64,
    /// Whether nobody may be served from it (WC-AH5).
    pub(super) is_void: bool,
    /// Reads that wait for its data; `None` when they are there.
    waiting: Option<Vec<Bio>>,
    /// Until then.
    guard: Option<TaskGuard>,
    /// Blocks that clients have read, counted from its first.
    used: RoaringBitmap,
    used_at: u64,
}

impl Segment {
    /// One whose data are being read, or will be.
    pub(super) fn new(
        blocks: Range<u64>,
        data: Buf,
        watch: usize,
        flush_errors: u64,
        guard: TaskGuard,
    ) -> Segment {
        Segment {
            blocks,
            data,
            watch,
            flush_errors,
            is_void: false,
            waiting: Some(Vec::new()),
            guard: Some(guard),
            used: RoaringBitmap::new(),
            used_at: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    pub(super) fn data(&self) -> &Buf {
        &self.data
    }

    pub(super) fn block_count(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    pub(super) fn used_blocks(&self) -> u64 {
        self.used.len()
    }

    fn is_read(&self) -> bool {
        self.waiting.is_none()
    }
}

/// Where the blocks of a read are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// All of them in segments whose data are there.
    Data,
    /// All in segments, and the data of this one are still being read.
    Reading(usize),
    /// Not all in segments.
    Nowhere,
}

/// The segments of a cache. No borrow of it is held while a request is submitted or completed.
#[derive(Default)]
pub(super) struct Segments {
    all: Slab<Segment>,
    bytes: u64,
    clock: u64,
}

impl Segments {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn insert(&mut self, segment: Segment) -> usize {
        self.bytes += segment.bytes();
        self.clock += 1;
        self.all.insert(Segment { used_at: self.clock, ..segment })
    }

    pub(super) fn remove(&mut self, key: usize) -> Segment {
        let segment = self.all.remove(key);
        self.bytes -= segment.bytes();
        segment
    }

    pub(super) fn get(&self, key: usize) -> &Segment {
        &self.all[key]
    }

    /// Whether a segment has the block.
    pub(super) fn contains(&self, block: u64) -> bool {
        self.all.iter().any(|(_, segment)| segment.blocks.contains(&block))
    }

    /// The segment that was used least recently of those whose data are there.
    pub(super) fn oldest(&self) -> Option<usize> {
        let read = self.all.iter().filter(|(_, segment)| segment.is_read());
        read.min_by_key(|(_, segment)| segment.used_at).map(|(key, _)| key)
    }

    /// Looks for blocks in segments that are valid.
    pub(super) fn find(&self, blocks: &Range<u64>, is_valid: impl Fn(&Segment) -> bool) -> Found {
        let (mut at, mut reading) = (blocks.start, None);
        while at < blocks.end {
            let has = |(_, s): &(usize, &Segment)| s.blocks.contains(&at) && is_valid(s);
            let Some((key, segment)) = self.all.iter().find(has) else { return Found::Nowhere };
            if !segment.is_read() {
                reading = Some(key);
            }
            at = segment.blocks.end;
        }
        reading.map_or(Found::Data, Found::Reading)
    }

    /// A read waits for the data of a segment.
    pub(super) fn wait(&mut self, key: usize, bio: Bio) {
        self.all[key].waiting.as_mut().expect("its data are not there").push(bio);
    }

    /// The data of a segment are there, or never will be: returns the reads that wait.
    pub(super) fn end_read(&mut self, key: usize) -> Vec<Bio> {
        self.all[key].guard = None;
        self.all[key].waiting.take().expect("ended once")
    }

    /// Copies blocks that were found in valid segments. Returns how many are used for the first
    /// time, and puts the segments of which all are used to `done`.
    pub(super) fn copy(
        &mut self,
        blocks: &Range<u64>,
        block_bytes: usize,
        to: &Bufs,
        is_valid: impl Fn(&Segment) -> bool,
        done: &mut Vec<usize>,
    ) -> u64 {
        let bytes = |count: u64| usize::try_from(count).expect("of a request") * block_bytes;
        let nth = |block: u64| u32::try_from(block).expect("of a segment");
        let (mut at, mut first_uses) = (blocks.start, 0);
        self.clock += 1;
        while at < blocks.end {
            let has = |(_, s): &(usize, &mut Segment)| s.blocks.contains(&at) && is_valid(s);
            let found = self.all.iter_mut().find(has);
            let (key, segment) = found.expect("found before");
            let end = segment.blocks.end.min(blocks.end);
            let from = segment.blocks.start;
            let data = segment.data.all().into();
            to.put_from(bytes(at - blocks.start), &data, bytes(at - from), bytes(end - at));
            first_uses += segment.used.insert_range(nth(at - from)..nth(end - from));
            segment.used_at = self.clock;
            if segment.used_blocks() == segment.block_count() {
                done.push(key);
            }
            at = end;
        }
        first_uses
    }

    /// The keys of all segments.
    pub(super) fn keys(&self) -> Vec<usize> {
        self.all.iter().map(|(key, _)| key).collect()
    }

    /// Nobody may be served from this segment. Returns whether its data are there, so that it can
    /// be removed.
    pub(super) fn make_void(&mut self, key: usize) -> bool {
        let segment = &mut self.all[key];
        segment.is_void = true;
        segment.is_read()
    }
}
