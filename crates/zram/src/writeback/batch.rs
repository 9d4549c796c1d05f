// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Batch: pages on their way into one backing write.
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
use crate::shard::Shard;
use crate::slot::{Flags, PAGE, Slot};

/// A page in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked {
    pub(crate) nth: u32,
    pub(crate) at: Address,
    size: u16,
    priority: u8,
}

impl Picked {
    /// Whether the slot is as it was picked.
    pub(crate) fn is_of(&self, slot: Slot) -> bool {
        usize::from(self.size) == slot.size() && self.priority == slot.priority()
    }
}

/// What came of a page that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// It takes so many bytes.
    Yes(usize),
    /// It does not fit.
    Full,
    /// It is not to be written any more.
    Gone,
    /// It cannot be read.
    Damaged(Status),
}

enum Content {
    Raw(Buf),
    Packed(Packer),
}

/// Pages that become one write.
pub(crate) struct Batch {
    first: u32,
    content: Content,
    pages: Vec<Picked>,
    object_bytes: u64,
}

/// A batch that is to be written.
pub(crate) struct Full {
    pub(crate) buf: Buf,
    pub(crate) blocks: u32,
    pub(crate) pages: Vec<Picked>,
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
    pub(crate) fn new(backing: &Backing, run: &Range<u32>, pages: Option<Vec<Picked>>) -> Batch {
        let bytes = (run.end - run.start) as usize * PAGE;
        let content = if backing.is_packed() {
            let generation = backing.generation.get().wrapping_add(1);
            backing.generation.set(generation);
            Content::Packed(Packer::new(bytes, 0, generation))
        } else {
            Content::Raw(Buf::alloc(bytes))
        };
        let pages = pages.unwrap_or_default();
        Batch { first: run.start, content, pages, object_bytes: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Copies the page of a slot that is in memory, and marks it as picked.
    pub(crate) fn add(&mut self, shard: &Shard, nth: u32) -> Added {
        let slot = shard.slot(nth);
        let (size, priority) = (slot.size(), slot.priority());
        let (at, bytes) = match &mut self.content {
            Content::Raw(buf) => {
                let from = self.pages.len() * PAGE;
                if from == buf.len() {
                    return Added::Full;
                }
                let copied = buf.write(|b| {
                    let page = &mut b[from..from + PAGE];
                    shard.page_of(slot, page).map(|()| format::checksum(page))
                });
                match copied {
                    Ok(check) => (Address::raw(self.first + block_at(from), check), PAGE),
                    Err(status) => return Added::Damaged(status),
                }
            }
            Content::Packed(packer) => {
                if !packer.fits(size) {
                    return Added::Full;
                }
                let fill = |out: &mut [u8]| shard.object_of(slot, out);
                let offset = packer.push_page(nth, priority, size, fill);
                let block = self.first + block_at(offset.at);
                let at = Address::packed(block, offset.at % PAGE, offset.check);
                (at, object_bytes(size))
            }
        };
        shard.set_flags(nth, Flags::PICKED);
        let size = u16::try_from(size).expect("at most a page");
        self.pages.push(Picked { nth, at, size, priority });
        self.object_bytes +=
            if matches!(self.content, Content::Raw(_)) { PAGE as u64 } else { u64::from(size) };
        Added::Yes(bytes)
    }

    /// Closes it: every byte of its blocks is ours.
    pub(crate) fn finish(self) -> Full {
        let (buf, blocks) = match self.content {
            Content::Raw(buf) => (buf, self.pages.len()),
            Content::Packed(packer) => packer.finish(),
        };
        let blocks = u32::try_from(blocks).expect("at most those of its run");
        Full { buf, blocks, pages: self.pages, object_bytes: self.object_bytes }
    }
}

fn block_at(byte: usize) -> u32 {
    u32::try_from(byte / PAGE).expect("at most the blocks of a run")
}
