// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Batch: pages that go into one write to the backing device.
//!
//! ```text
//!   raw      │ page      │ page      │ page      │        a block each, as they were written
//!   packed   │ object │ object   │ object │ object │ 0 │  compressed, one after the other
//! ```
use std::ops::Range;

use block::{Buf, Status};
use format::zram::object_bytes;

use crate::backing::{Address, Backing};
use crate::pack::Packer;
use crate::part::Part;
use crate::slot::{Flags, PAGE, Slot};

/// A page in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickedPage {
    pub(crate) nth: u32,
    pub(crate) at: Address,
    size: u16,
    priority: u8,
}

impl PickedPage {
    /// Whether the slot is as it was when it was picked.
    pub(crate) fn is_of(&self, slot: Slot) -> bool {
        usize::from(self.size) == slot.size() && self.priority == slot.priority()
    }
}

/// The outcome of adding a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddResult {
    /// The page takes so many bytes.
    Added(usize),
    /// It does not fit.
    NoRoom,
    /// It is not a candidate any more.
    NotWanted,
    /// It cannot be read.
    Damaged(Status),
}

enum Content {
    Raw(Buf),
    Packed(Packer),
}

/// See the module.
pub(crate) struct Batch {
    first: u32,
    content: Content,
    pages: Vec<PickedPage>,
    object_bytes: u64,
}

/// A batch that is ready to be written.
pub(crate) struct FinishedBatch {
    pub(crate) buf: Buf,
    pub(crate) blocks: u32,
    pub(crate) pages: Vec<PickedPage>,
    pub(crate) object_bytes: u64,
}

impl Backing {
    /// Bytes on the device that a page takes whose object has `size`.
    pub(crate) fn bytes_of(&self, size: usize) -> usize {
        if self.is_packed() { object_bytes(size) } else { PAGE }
    }

    /// Blocks that such a page takes when it is the first of a run.
    pub(crate) fn blocks_of(&self, size: usize) -> u32 {
        block_at(self.bytes_of(size).next_multiple_of(PAGE)).max(1)
    }
}

impl Batch {
    /// A batch for `run`; `pages` is an empty list to use.
    pub(crate) fn new(
        backing: &Backing,
        run: &Range<u32>,
        pages: Option<Vec<PickedPage>>,
    ) -> Batch {
        let bytes = (run.end - run.start) as usize * PAGE;
        let content = if backing.is_packed() {
            let generation = backing.generation.get().wrapping_add(1);
            backing.generation.set(generation);
            Content::Packed(Packer::new(bytes, generation))
        } else {
            Content::Raw(Buf::alloc(bytes))
        };
        let pages = pages.unwrap_or_default();
        Batch { first: run.start, content, pages, object_bytes: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Copies the page of a slot that is in memory, and marks the slot as picked.
    pub(crate) fn add(&mut self, part: &Part, nth: u32) -> AddResult {
        let slot = part.slot(nth);
        let (size, priority) = (slot.size(), slot.priority());
        let (at, bytes) = match &mut self.content {
            Content::Raw(buf) => {
                let from = self.pages.len() * PAGE;
                if from == buf.len() {
                    return AddResult::NoRoom;
                }
                let copied = buf.write(|b| {
                    let page = &mut b[from..from + PAGE];
                    part.page_of(slot, page).map(|()| format::checksum(page))
                });
                match copied {
                    Ok(check) => (Address::raw(self.first + block_at(from), check), PAGE),
                    Err(status) => return AddResult::Damaged(status),
                }
            }
            Content::Packed(packer) => {
                if !packer.fits(size) {
                    return AddResult::NoRoom;
                }
                let fill = |out: &mut [u8]| part.object_of(slot, out);
                let offset = packer.push_page(nth, priority, size, fill);
                let block = self.first + block_at(offset.at);
                let at = Address::packed(block, offset.at % PAGE, offset.check);
                (at, object_bytes(size))
            }
        };
        part.set_flags(nth, Flags::PICKED);
        let size = u16::try_from(size).expect("at most a page");
        self.pages.push(PickedPage { nth, at, size, priority });
        self.object_bytes +=
            if matches!(self.content, Content::Raw(_)) { PAGE as u64 } else { u64::from(size) };
        AddResult::Added(bytes)
    }

    /// Finishes the batch: every byte of its blocks was written by us.
    pub(crate) fn finish(self) -> FinishedBatch {
        let (buf, blocks) = match self.content {
            Content::Raw(buf) => (buf, self.pages.len()),
            Content::Packed(packer) => packer.finish(),
        };
        let blocks = u32::try_from(blocks).expect("at most those of its run");
        FinishedBatch { buf, blocks, pages: self.pages, object_bytes: self.object_bytes }
    }
}

fn block_at(byte: usize) -> u32 {
    u32::try_from(byte / PAGE).expect("at most the blocks of a run")
}
