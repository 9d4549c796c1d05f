// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gaps of failed filled writes: the origin may have lost their data, so the cache keeps them.
//!
//! ```text
//!   filled write fails ─▶ its gaps, as they were gathered ─▶ free slots ─▶ commit ─▶ dirty
//!                                                              │ none free
//!                                                              └▶ the origin again, flushed
//! ```
//!
//! After an error the range of a write is undefined. Then the data of the gaps exist only in the
//! buffer of the write.
//!
//! Invariant
//! - WC-SP1 Before the gaps of a failed write are unlocked, their data are in the cache, dirty and
//!   committed, or durably on the origin again. A newer version of a block stays.
//!
//! A power cut between the error and the commit loses the data of the gaps, which are only in
//! memory then (decision 0022 says what can be lost, and when).
use std::ops::Range;

use block::{Bufs, Class, Flags, Nanos, Sector, Slice, Status};
use policy::BACKOFF_FIRST_NS;

use super::Writeback;
use crate::events::CacheEvent;
use crate::map::State;
use crate::planted::Fault;
use crate::store::media::CHANGES_AT_ONCE_MAX;

/// How often a gap is written, once a second, while the origin refuses it and no slot becomes free.
const TRIES_MAX: u32 = 5;

impl Writeback {
    /// WC-SP1. Keeps `data`, the contents of a gap over which a write has failed.
    pub(super) async fn keep_gap(&self, gap: Range<u64>, data: Slice) {
        let size = self.store.block_bytes();
        let from = |at: u64| {
            let bytes = usize::try_from(at - gap.start).expect("within a run") * size;
            Bufs::from(data.slice(bytes..data.len()))
        };
        let mut at = gap.start;
        for attempt in 1.. {
            if !self.store.has_fault(Fault::ForgetFailedGaps) {
                at = self.keep_in_slots(at..gap.end, &from(at)).await;
            }
            if at == gap.end {
                return;
            }
            let sector = self.store.sector_of(at);
            let Err(status) = self.write_gap(sector, from(at)).await else { return };
            if self.store.has_fault(Fault::ForgetFailedGaps) {
                return;
            }
            if attempt == TRIES_MAX
                || self.store.life.stopping.get()
                || self.store.health().is_err()
            {
                return self.store.notify(CacheEvent::GapLost { status, sector });
            }
            reactor::sleep(Nanos(BACKOFF_FIRST_NS)).await;
        }
    }

    /// Writes data to the origin durably, because there is no other copy.
    async fn write_gap(&self, sector: Sector, data: Bufs) -> Result<(), Status> {
        let (flags, class, flush_errors) =
            (Flags::BACKGROUND, Class::Background, self.origin_flush_errors());
        reactor::write(&*self.origin.device, flags, class, sector, data).await?;
        self.flush_origin(class, flush_errors).await
    }

    /// Writes blocks to free slots until none is left. Returns the end of the blocks that it has
    /// written.
    async fn keep_in_slots(&self, range: Range<u64>, data: &Bufs) -> u64 {
        let size = self.store.block_bytes();
        let mut at = range.start;
        if !self.store.changes_begun.get() && self.store.begin_changes().await.is_err() {
            return at;
        }
        while at < range.end && self.store.health().is_ok() {
            let want = (range.end - at).min(CHANGES_AT_ONCE_MAX as u64);
            let max = u32::try_from(want).expect("at most CHANGES_AT_ONCE_MAX");
            let Some(slots) = self.store.slots.borrow_mut().allocate(max) else {
                let c = self.store.counts();
                if c.clean + c.limbo == 0 {
                    break;
                }
                self.store.reserve_unlogged(CHANGES_AT_ONCE_MAX).await;
                self.store.slots.borrow_mut().evict(max, None);
                self.store.commit().await.ok();
                continue;
            };
            let nth = |block: u64| usize::try_from(block - range.start).expect("within a run");
            let end = at + slots.len() as u64;
            let part = data.slice(nth(at) * size..nth(end) * size);
            let sector = self.store.slot_sector(slots.start);
            let flags = Flags::BACKGROUND;
            let io =
                reactor::write(&*self.store.device, flags, Class::Background, sector, part).await;
            if io.is_err() {
                slots.for_each(|slot| self.store.slots.borrow_mut().abandon(slot));
                break;
            }
            for (block, slot) in (at..end).zip(slots) {
                self.store.reserve_unlogged(1).await;
                let crc = self.store.checksum_of(data, nth(block));
                let mut map = self.store.slots.borrow_mut();
                match map.find(block).map(|found| found.state) {
                    // The block has a newer version, or had one that is unreadable now.
                    Some(State::Dirty | State::Bad | State::Zero) => map.abandon(slot),
                    None | Some(_) => {
                        map.install(block, slot, crc);
                        self.pacing.installs.set(self.pacing.installs.get() + 1);
                    }
                }
            }
            at = end;
        }
        at
    }
}
