// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that are not whole pages: a write merges its sectors into the page.
//!
//! ```text
//!   read   |....rrrr|rrrrrrrr|rr......|   one read of the whole pages; the edges go to scratch
//!   write  |....wwww|wwwwwwww|ww......|   the edges are merged, what lies between is a plain write
//! ```
//!
//! Invariant
//! - ZR-MG1 Between the look at a page and its replacement nothing else runs: a page in memory is
//!   read and written in one go. One that was written back is read first; what came counts only if
//!   the slot still names the same place, whose blocks are pinned meanwhile, so that they can't
//!   have been written anew (ZR-RB1). A page that can't be read stays as it is, and the write
//!   fails.
//!
//! Cost of a merged write: the page is decompressed, or read back, beside what its write costs.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Buf, Bufs, Op, Sector, Status};

use crate::layout::PAGE_SECTORS;
use crate::mutation::Mutation;
use crate::read::Wanted;
use crate::shard::Shard;
use crate::slot::{Flags, PAGE};

/// Whether a bio begins and ends where pages do.
#[inline]
pub(crate) fn is_whole(bio: &Bio) -> bool {
    (bio.sector.0 | bio.len.0) & (PAGE_SECTORS - 1) == 0
}

pub(crate) fn down(at: Sector) -> Sector {
    Sector(at.0 / PAGE_SECTORS * PAGE_SECTORS)
}

pub(crate) fn up(at: Sector) -> Sector {
    Sector(at.0.next_multiple_of(PAGE_SECTORS))
}

fn bytes(len: Sector) -> usize {
    usize::try_from(len.bytes()).expect("a part of a request's data, or less than a page")
}

impl Shard {
    /// Makes a bio one of whole pages: a read is widened, of a write or of zeroes the edges are
    /// merged first, of a discard they are left as they are. False when nothing is left to do.
    pub(crate) async fn merge_edges(self: &Rc<Self>, bio: &mut Bio) -> Result<bool, Status> {
        let (start, end) = (bio.sector, bio.end());
        if bio.op == Op::Read {
            widen(bio);
            return Ok(true);
        }
        let (from, to) = (up(start), down(end));
        if bio.op == Op::Discard {
            (bio.sector, bio.len) = (from, to.saturating_sub(from));
            return Ok(from < to);
        }
        if from > to {
            // Within one page.
            self.merge(bio, start..end).await?;
            return Ok(false);
        }
        if start < from {
            self.merge(bio, start..from).await?;
        }
        if to < end {
            self.merge(bio, to..end).await?;
        }
        if bio.op == Op::Write && from < to {
            bio.bufs = bio.bufs.slice(bytes(from - start)..bytes(to - start));
        }
        (bio.sector, bio.len) = (from, to - from);
        Ok(from < to)
    }

    /// Merges the sectors `part` of a bio, which are of one page and not all of it (ZR-MG1).
    async fn merge(self: &Rc<Self>, bio: &Bio, part: Range<Sector>) -> Result<(), Status> {
        let nth = u32::try_from(part.start.0 / PAGE_SECTORS).expect("checked at its entry");
        let first = bytes(part.start - down(part.start));
        let within = first..first + bytes(part.end - part.start);
        let put = |page: &mut [u8]| match bio.op {
            Op::Write => bio.bufs.take_at(bytes(part.start - bio.sector), &mut page[within]),
            Op::WriteZeroes => page[within].fill(0),
            Op::Read | Op::Discard | Op::Flush => unreachable!("nothing of them is merged"),
        };
        let mut page = vec![0; PAGE];
        loop {
            let slot = self.slot(nth);
            if !slot.has(Flags::BACKED) {
                self.page_of(slot, &mut page).inspect_err(|_| {
                    self.counters.failed_reads.add(1);
                    let nth = self.global(nth);
                    self.note_error(format!("slot {nth}: its object in memory is damaged"));
                })?;
                break;
            }
            let backing = self.backing.as_ref().expect("there is one: a page is on it");
            let _pin = backing.space().pin();
            let bufs = Bufs::from(Buf::alloc(PAGE));
            let wanted: Wanted = [(nth, 0)].into_iter().collect();
            self.read_back(&wanted, &bufs).await.ok()?;
            let now = self.slot(nth);
            let is_same = now.has(Flags::BACKED) && now.place == slot.place;
            if is_same || backing.space().has(Mutation::MergeUnchecked) {
                bufs.take_at(0, &mut page);
                break;
            }
        }
        put(&mut page);
        let page = Bufs::from(Buf::copy_of(&page));
        self.write_pages(&page, nth..nth + 1, 0).ok()
    }
}

/// Has a read ask for whole pages.
fn widen(bio: &mut Bio) {
    let (from, to) = (down(bio.sector), up(bio.end()));
    let scratch = |len: Sector| (len > Sector::ZERO).then(|| Buf::alloc(bytes(len)).all());
    let (front, back) = (scratch(bio.sector - from), scratch(to - bio.end()));
    let mut bufs = Bufs::new();
    bufs.extend(front);
    bufs.extend(bio.bufs.iter().cloned());
    bufs.extend(back);
    (bio.sector, bio.len, bio.bufs) = (from, to - from, bufs);
}
