// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Store: the cache device. Which block is in which slot (`map`), which changes of that are durable
//! (`commit`, `checkpoint`), and whether the device has failed.
//!
//! ```text
//!   Writer, Writeback ──▶ slots ──▶ unlogged ──▶ commit ──▶ log, flush ──▶ durable
//!                                                             └─ half full ─▶ checkpoint
//! ```
mod autocommit;
pub(crate) mod buffer;
mod checkpoint;
mod commit;
mod commit_dm;
pub(crate) mod dm;
pub(crate) mod frames;
mod grow;
mod journal;
pub(crate) mod log;
pub(crate) mod media;
mod replaced;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::{BlockDevice, Bufs, Planted, Sector, Status};
use reactor::GroupCommit;

use self::buffer::WriteBuffer;
use self::frames::buffer_blocks;
use self::grow::Growth;
use self::media::{Media, SlotArea};
use crate::config::{Config, Tuning};
use crate::events::{CacheEvent, Health};
use crate::lifecycle::Lifecycle;
use crate::map::{Counts, Slots};
use crate::planted::Fault;
use crate::recovery::journal::OpenJournal;
use crate::stats::Stats;
use crate::unflushed::UnflushedWrites;
use crate::wait_lists::WaitLists;

/// The cache device of one cache. No borrow of it is held across an await.
pub(crate) struct Store {
    /// The table line. Options that a live device may change are in `tuning`.
    pub(crate) config: Config,
    tuning: Cell<Tuning>,
    pub(crate) device: Rc<dyn BlockDevice>,
    /// A layout with more slots that is ready to be taken.
    growth: RefCell<Option<Growth>>,
    slot_area: Cell<SlotArea>,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) media: Media,
    /// Most unlogged blocks (WC-LR2).
    unlogged_max: Cell<u64>,
    /// Data that are not in their slots yet.
    pub(crate) buffer: WriteBuffer,
    pub(crate) commits: GroupCommit,
    device_flush: GroupCommit,
    pub(crate) health: Health,
    pub(crate) unflushed: UnflushedWrites,
    /// The journal that the cache was opened with, and memory for the next one.
    pub(crate) journal: OpenJournal,
    /// Whether a client has read or changed anything since the last resume (`begin_changes`).
    pub(crate) changes_begun: Cell<bool>,
    /// Reads of one block need nothing but the read: changes have begun, and no read cache counts
    /// them.
    pub(crate) plain_reads: Cell<bool>,
    counts_reads: Cell<bool>,
    pub(crate) life: Lifecycle,
    pub(crate) stats: Stats,
    pub(crate) waits: WaitLists,
}

impl Store {
    pub(crate) fn new(
        config: Config,
        device: Rc<dyn BlockDevice>,
        media: Media,
        mut slots: Slots,
        journal: OpenJournal,
        this: Weak<Store>,
    ) -> Store {
        let count = media.slot_area().slots;
        let is_native = matches!(media, Media::Native(_));
        let has_no_memory = journal.memory.as_ref().is_ok_and(|memory| memory.no_buffer.is_some());
        let has_buffer = is_native && !has_no_memory;
        let places = if has_buffer { buffer_blocks(&config, count) } else { 0 };
        slots.set_buffer_places(places, config.planted);
        Store {
            buffer: WriteBuffer::new(&config, if places > 0 { count } else { 0 }, this),
            tuning: Cell::new(config.tuning),
            unlogged_max: Cell::new(media.unlogged_max(config.ordered)),
            config,
            device,
            growth: RefCell::default(),
            slot_area: Cell::new(media.slot_area()),
            slots: RefCell::new(slots),
            media,
            commits: GroupCommit::default(),
            device_flush: GroupCommit::default(),
            health: Health::default(),
            unflushed: UnflushedWrites::default(),
            journal,
            changes_begun: Cell::new(false),
            plain_reads: Cell::new(false),
            counts_reads: Cell::new(false),
            life: Lifecycle::default(),
            stats: Stats::default(),
            waits: WaitLists::default(),
        }
    }

    /// The options as they are now, with changes to the live device.
    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning.get()
    }

    /// Changes the options and returns the old ones. The caller wakes the tasks that depend on
    /// them.
    pub(crate) fn set_tuning(&self, tuning: Tuning) -> Tuning {
        self.tuning.replace(tuning)
    }

    /// How many slots there are.
    pub(crate) fn slot_count(&self) -> u32 {
        self.slot_area.get().slots
    }

    /// Most unlogged blocks (WC-LR2).
    pub(crate) fn unlogged_max(&self) -> u64 {
        self.unlogged_max.get()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.slots.borrow().counts()
    }

    /// Slots that are free or clean, or will be free soon.
    pub(crate) fn free_blocks(&self) -> u32 {
        let c = self.counts();
        c.free + c.clean + c.limbo
    }

    /// Whether this fault is planted: never in a build without them.
    #[inline]
    pub(crate) fn has_fault(&self, fault: Fault) -> bool {
        self.config.planted.is(fault)
    }

    /// `Err` with the first error, if the cache has failed.
    pub(crate) fn health(&self) -> Result<(), Status> {
        self.health.failed.get().map_or(Ok(()), Err)
    }

    pub(crate) fn failure(&self) -> Option<Status> {
        self.health.failed.get()
    }

    /// WC-I8: the cache fails: from now on it serves reads and refuses all else. What its device
    /// has taken may be lost.
    pub(crate) fn fail(&self, status: Status) {
        if !self.has_fault(Fault::JournalKeptAfterFailure) {
            self.slots.borrow_mut().end_journal(); // WC-J3
        }
        self.health.journal_ended.set(true);
        self.fail_refused(status);
    }

    /// The same because the cache device has refused a write: what it has taken is there, as after
    /// a `kill -9`, and what it has refused is in the frames of the journal.
    pub(crate) fn fail_refused(&self, status: Status) {
        if self.health.failed.get().is_none() {
            self.health.failed.set(Some(status));
            self.slots.borrow_mut().keep_journal();
            self.unflushed.fail();
            self.notify(CacheEvent::Failed { status });
        }
        self.waits.wake_all();
        self.buffer.wake_all();
        self.media.wake_all();
    }

    /// Whether reads are to be counted, for a read cache.
    pub(crate) fn count_reads(&self, counts: bool) {
        self.counts_reads.set(counts);
        self.set_plain_reads();
    }

    fn set_plain_reads(&self) {
        self.plain_reads.set(self.changes_begun.get() && !self.counts_reads.get());
    }

    pub(crate) fn sector_of(&self, block: u64) -> Sector {
        Sector(block * self.config.block_sectors())
    }

    /// Where byte `offset` of the cache area lies on the cache device.
    pub(crate) fn area_sector(&self, offset: u64) -> Sector {
        self.config.start_sector + Sector::from_bytes(offset)
    }

    pub(crate) fn slot_sector(&self, slot: u32) -> Sector {
        self.area_sector(self.slot_area.get().slot_offset(slot))
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.config.block_size as usize
    }

    /// The number of uncommitted blocks at which a commit is due.
    pub(crate) fn commit_threshold(&self) -> u64 {
        u64::from(self.tuning().autocommit_blocks.max(1)).min(self.unlogged_max() / 2).max(1)
    }

    /// Whether many changes wait for a commit, or fill the journal.
    pub(crate) fn is_commit_due(&self) -> bool {
        let slots = self.slots.borrow();
        slots.counts().unlogged >= self.commit_threshold() || slots.is_journal_half_full()
    }

    /// Checksum of block `index` of a request's data.
    pub(crate) fn checksum_of(&self, bufs: &Bufs, index: usize) -> u32 {
        let size = self.block_bytes();
        let range = index * size..(index + 1) * size;
        let in_one = bufs.read_piece(range.clone(), |block| self.config.checksum(block));
        in_one.unwrap_or_else(|| {
            let mut whole = vec![0; size];
            bufs.slice(range).copy_to(&mut whole);
            self.config.checksum(&whole)
        })
    }

    pub(crate) fn notify(&self, event: CacheEvent) {
        let on_event = self.health.on_event.borrow().clone();
        if let Some(on_event) = on_event {
            on_event(event);
        }
    }

    /// A bug was detected, and the cache fails stop (WC-I8). A panic would end all devices of the
    /// process: it is for bugs after which no state of the process can be trusted. Debug builds
    /// panic here, unless a fault is planted.
    pub(crate) fn fail_for_bug(&self, what: &'static str) {
        debug_assert!(self.config.planted != Planted::NONE, "{what}");
        self.notify(CacheEvent::Bug { what });
        self.fail(Status::Io);
    }

    /// The cache device has failed to read a dirty block: the cache takes no new blocks and is
    /// written back.
    pub(crate) fn is_drain_only(&self) -> bool {
        self.health.drain_only.get().is_some()
    }
}
