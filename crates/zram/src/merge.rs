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

use block::{Bio, Buf, Bufs, Edges, Op, Sector, Status, block_start};

use crate::failures::FailureKind;
use crate::layout::PAGE_SECTORS;
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
        if bio.op == Op::Read {
            bio.widen(PAGE_SECTORS);
            return Ok(true);
        }
        let Edges { head, whole, tail } = Edges::of(bio.sector..bio.end(), PAGE_SECTORS);
        if bio.op != Op::Discard {
            for edge in [head, tail].into_iter().filter(|edge| !edge.is_empty()) {
                self.merge(bio, edge).await?;
            }
        }
        let is_left = !whole.is_empty();
        bio.narrow(whole);
        Ok(is_left)
    }

    /// Merges some `sectors` of a bio, a part of one page (ZR-MG1).
    async fn merge(self: &Rc<Self>, bio: &Bio, sectors: Range<Sector>) -> Result<(), Status> {
        let nth = u32::try_from(sectors.start.0 / PAGE_SECTORS).expect("checked at its entry");
        let first = bytes(sectors.start - block_start(sectors.start, PAGE_SECTORS));
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
                    self.note_failure(
                        FailureKind::Damaged,
                        format!("slot {nth}: its object in memory is damaged"),
                    );
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
