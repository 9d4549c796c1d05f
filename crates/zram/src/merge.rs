// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Merge: requests that are not whole pages. A write merges its sectors into the page.
//!
//! ```text
//!   read   |....rrrr|rrrrrrrr|rr......|   one read of whole pages; the edges go to scratch memory
//!   write  |....wwww|wwwwwwww|ww......|   the edges are merged; between them it is a plain write
//! ```
//!
//! Invariant
//! - ZR-MG1 A page in memory is read, merged and replaced without an `.await` in between. A page
//!   that was written back is read first, while its blocks are pinned so that they cannot be reused
//!   (ZR-RB1); the data count only if the slot still names the same place afterwards. If the page
//!   cannot be read it stays as it is, and the write fails.
//!
//! Cost of a merged write: the page is decompressed, or read back, in addition to a plain write.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Buf, Bufs, Op, Sector, Status};

use crate::layout::{PAGE_SECTORS, page_ceil, page_floor};
use crate::part::Part;
use crate::planted::Fault;
use crate::read::BackedPages;
use crate::slot::{Flags, PAGE};

fn bytes(len: Sector) -> usize {
    usize::try_from(len.bytes()).expect("some of a request's data, or less than a page")
}

impl Part {
    /// Makes a bio one of whole pages: a read is widened, the edges of a write or of zeroes are
    /// merged, those of a discard are dropped. Returns whether any page is left to do.
    pub(crate) async fn merge_edges(self: &Rc<Self>, bio: &mut Bio) -> Result<bool, Status> {
        let (start, end) = (bio.sector, bio.end());
        if bio.op == Op::Read {
            widen(bio);
            return Ok(true);
        }
        let (from, to) = (page_ceil(start), page_floor(end));
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

    /// Merges some `sectors` of a bio, a part of one page (ZR-MG1).
    async fn merge(self: &Rc<Self>, bio: &Bio, sectors: Range<Sector>) -> Result<(), Status> {
        let nth = u32::try_from(sectors.start.0 / PAGE_SECTORS).expect("checked at its entry");
        let first = bytes(sectors.start - page_floor(sectors.start));
        let within = first..first + bytes(sectors.end - sectors.start);
        let put = |page: &mut [u8]| match bio.op {
            Op::Write => bio.bufs.take_at(bytes(sectors.start - bio.sector), &mut page[within]),
            Op::WriteZeroes => page[within].fill(0),
            Op::Read | Op::Discard | Op::Flush => unreachable!("they are not merged"),
        };
        let mut page = vec![0; PAGE];
        loop {
            let slot = self.slot(nth);
            if !slot.has(Flags::BACKED) {
                self.page_of(slot, &mut page).inspect_err(|_| {
                    self.counters.failed_reads.add(1);
                    let nth = self.global(nth);
                    self.set_last_error(format!("slot {nth}: its object in memory is damaged"));
                })?;
                break;
            }
            let backing = self.backing.as_ref().expect("there is one: a page is on it");
            let _pin = backing.space().pin();
            let bufs = Bufs::from(Buf::alloc(PAGE));
            let wanted: BackedPages = [(nth, 0)].into_iter().collect();
            self.read_back(&wanted, &bufs).await.ok()?;
            let now = self.slot(nth);
            let is_same = now.has(Flags::BACKED) && now.place == slot.place;
            if is_same || backing.space().is_planted(Fault::MergeUnchecked) {
                bufs.take_at(0, &mut page);
                break;
            }
        }
        put(&mut page);
        let page = Bufs::from(Buf::copy_of(&page));
        self.write_pages(&page, nth..nth + 1, 0).ok()
    }
}

/// Extends a read to whole pages.
fn widen(bio: &mut Bio) {
    let (from, to) = (page_floor(bio.sector), page_ceil(bio.end()));
    let scratch = |len: Sector| (len > Sector::ZERO).then(|| Buf::alloc(bytes(len)).all());
    let (front, back) = (scratch(bio.sector - from), scratch(to - bio.end()));
    let mut bufs = Bufs::new();
    bufs.extend(front);
    bufs.extend(bio.bufs.iter().cloned());
    bufs.extend(back);
    (bio.sector, bio.len, bio.bufs) = (from, to - from, bufs);
}
