// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guard: an origin that can't be used behind the back of its cache (option `guard_origin`).
//!
//! ```text
//!   clients' view   [ superblocks, ...                          ... second partition table ]
//!                     │ image in memory                                    │
//!   origin          [ slot 0 | slot 1 ]     data, as without a guard     [ slot 0 | slot 1 ]
//!                     signature, and the packed image
//! ```
//!
//! The two ranges of an origin at which file systems, RAID and partition tables have their
//! superblocks hold the *image* of the range, packed, behind a signature. Nothing that looks for a
//! file system finds one. [`GuardedOrigin`] is the origin as the cache sees it: it serves the image
//! in the place of these bytes.
//!
//! | state | the origin's range has | the record on the cache device has |
//! |---|---|---|
//! | none, detached | the image | |
//! | guarding | the image; its front half may be torn | the front half of the image |
//! | guarded | a slot, or two; the second may be torn | |
//! | detaching | the image; its front half may be torn | the front half of the image |
//!
//! ```text
//!             record, slot 0, flush          record, slot 1, flush
//!   detached ───────────────────▶ guarding ───────────────────────▶ guarded
//!       ▲       record                        front half, flush        │  slot 0 is the newest;
//!       └─────────────────────── detaching ◀───────────────────────────┘  rear half, flush; record
//! ```
//!
//! Invariants
//! - WC-GU1 The whole image of a range is durable on the origin alone in every state but guarding
//!   and detaching; in these two the origin and the record have it together.
//! - WC-GU2 A record is durable before the origin is written to in its state, and the origin is
//!   durable before the next record. Both copies of a record are written, one after the other.
//! - WC-GU3 A slot is written only when the other one is durable and has the image of every write
//!   that has ended before.
//!   A flush that has failed may have lost the newer of two slots, and no later one makes it
//!   durable.
//! - WC-GU4 A write into a range ends after a slot has its image. So whoever flushes the origin
//!   makes it durable.
//! - WC-GU5 An origin is changed only if it is what the record says it is: slots of this cache, or
//!   sectors of the front half and of the slot that replaces it. Else somebody has used the origin,
//!   and the cache is not opened. An operator who adopts it takes the range as it is: what is left
//!   of slots goes first, so that it is never taken for a guard, then the range is detached.
//! - WC-GU6 The origin of another cache's guard is never used.
//! - WC-GU7 A flush of the guard that fails, of the origin or of the cache device, counts as one of
//!   the cache that has failed: it may have lost what the cache has written.
mod attach;
mod device;
mod find;
mod open;
mod record;
mod restore;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::{BlockDevice, Error, Sector};
use format::{GuardRange, GuardSlot};
use reactor::WaitList;

pub(crate) use self::device::GuardedOrigin;
pub(crate) use self::find::{FoundGuard, find, find_use, refuse_guarded};
pub(crate) use self::open::{is_on, open};
pub(crate) use self::restore::view_origin;
pub use self::restore::{
    DamagedRanges, OriginGuard, find_guard, restore_damaged_origin, restore_origin,
};
use crate::config::Config;
use crate::events::{CacheEvent, OnEvent, UnguardedReason};
use crate::writeback::Writeback;

/// What the guard of every range needs.
pub(crate) struct Place {
    pub(crate) origin: Rc<dyn BlockDevice>,
    /// The cache device, for the records; `None` if it is lost.
    pub(crate) device: Option<Rc<dyn BlockDevice>>,
    pub(crate) config: Config,
    pub(crate) uuid: [u8; 16],
    /// Sectors of the origin that the cache maps.
    pub(crate) sectors: Sector,
}

impl Place {
    /// The header of a slot; `is_alone`: the other slot may have a part of the image instead.
    fn slot(&self, range: GuardRange, sequence: u64, is_alone: bool) -> GuardSlot {
        let (uuid, cache) = (self.uuid, self.config.cache.clone());
        GuardSlot { uuid, sequence, range, is_alone, origin_sectors: self.sectors.0, cache }
    }
}

/// The slots of a range on the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SlotState {
    /// The slot that is durable.
    durable: u8,
    /// The other one is newer, and a flush makes it durable.
    is_other_newer: bool,
    /// How many slots had been written when the other one was.
    written: u64,
    /// The sequence of the newest slot.
    sequence: u64,
}

/// A range that is guarded.
struct GuardedRange {
    range: GuardRange,
    /// What clients see of it.
    image: RefCell<Vec<u8>>,
    slots: Cell<SlotState>,
    /// A detach has begun: slot 0 is durable, and the rear half is no slot any more.
    is_rear_free: Cell<bool>,
    /// A detach has come so far that the front half may have been written.
    detaching: RefCell<Option<Rc<DetachedHalves>>>,
}

/// What a detach writes.
struct DetachedHalves {
    /// To the front half, and to the record before.
    image: Vec<u8>,
    /// What the origin had in the front half before: slot 0.
    slot: Vec<u8>,
    /// To the rear half.
    rear: Vec<u8>,
}

/// The guard of an origin.
pub(crate) struct Guard {
    place: Place,
    /// At most one of each number.
    ranges: RefCell<Vec<Rc<GuardedRange>>>,
    /// The sequence of the newest record of each range.
    records: [Cell<u64>; format::GUARD_RANGES as usize],
    /// A request into a range, an attach or a detach is under way: one at a time.
    is_busy: Cell<bool>,
    free: WaitList,
    /// Slots that were written.
    written: Cell<u64>,
    /// Flushes of the origin that have failed.
    failed_flushes: Cell<u64>,
    /// The origin was given back; the table asks for a guard.
    is_released: Cell<bool>,
    on_event: RefCell<Option<OnEvent>>,
    /// The engine above it, once that is there.
    writeback: RefCell<Weak<Writeback>>,
}

/// The right to change ranges, until dropped.
struct RangesLock<'a>(&'a Guard);

impl Drop for RangesLock<'_> {
    fn drop(&mut self) {
        self.0.is_busy.set(false);
        self.0.free.wake_all();
    }
}

impl Guard {
    fn new(place: Place) -> Rc<Guard> {
        Rc::new(Guard {
            place,
            ranges: RefCell::default(),
            records: [Cell::new(0), Cell::new(0)],
            is_busy: Cell::new(false),
            free: WaitList::new(),
            written: Cell::new(0),
            failed_flushes: Cell::new(0),
            is_released: Cell::new(false),
            on_event: RefCell::default(),
            writeback: RefCell::default(),
        })
    }

    async fn lock(&self) -> RangesLock<'_> {
        self.free.wait_for(|| !self.is_busy.get()).await;
        self.is_busy.set(true);
        RangesLock(self)
    }

    /// How many ranges are guarded.
    pub(crate) fn guarded_ranges(&self) -> u64 {
        self.ranges.borrow().len() as u64
    }

    /// Guards what is not guarded yet. Ranges that can't be guarded are reported.
    ///
    /// # Errors
    /// Those of the devices; the next open goes on.
    pub(crate) async fn attach(&self) -> Result<(), Error> {
        let lock = self.lock().await;
        let wanted = GuardRange::of_origin(self.place.sectors.0);
        if wanted.is_empty() {
            self.notify_unguarded(0, UnguardedReason::SmallOrigin);
        }
        let before = self.guarded_ranges();
        for range in wanted {
            let has = self.ranges.borrow().iter().find(|has| has.range.nth == range.nth).cloned();
            match has {
                Some(has) if !has.is_rear_free.get() => continue,
                // A detach has failed half way.
                Some(has) => self.detach_range(&has).await?,
                None => {}
            }
            self.attach_range(range).await?;
        }
        self.is_released.set(false);
        if self.guarded_ranges() > before {
            self.notify(CacheEvent::Guarded);
        }
        drop(lock);
        Ok(())
    }

    /// As [`Guard::attach`], if the origin was given back before, or never had the guard that the
    /// table asks for. An error is reported: the cache works without a guard.
    pub(crate) async fn attach_again(&self) {
        if self.is_released.get()
            && let Err(e) = self.attach().await
        {
            self.notify_unguarded(0, UnguardedReason::Failed(e.kind()));
        }
    }

    /// The guard is put on the origin by [`Guard::attach_again`].
    pub(crate) fn attach_later(&self) {
        self.is_released.set(true);
    }

    /// Gives the origin back: it has what clients see, durably.
    ///
    /// # Errors
    /// Those of the devices; what is guarded still is served as before.
    pub(crate) async fn detach(&self) -> Result<(), Error> {
        let lock = self.lock().await;
        self.is_released.set(true);
        loop {
            let Some(next) = self.ranges.borrow().first().cloned() else { break };
            self.detach_range(&next).await?;
        }
        drop(lock);
        Ok(())
    }

    pub(crate) fn set_writeback(&self, writeback: &Rc<Writeback>) {
        *self.writeback.borrow_mut() = Rc::downgrade(writeback);
    }

    pub(crate) fn set_on_event(&self, on_event: Option<OnEvent>) {
        *self.on_event.borrow_mut() = on_event;
    }

    fn notify_unguarded(&self, sector: u64, why: UnguardedReason) {
        self.notify(CacheEvent::Unguarded { sector: Sector(sector), why });
    }

    fn notify(&self, event: CacheEvent) {
        if let Some(on_event) = &*self.on_event.borrow() {
            on_event(event);
        }
    }
}
