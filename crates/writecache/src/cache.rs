// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running cache: what its tasks share, and how it fails.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::age::Age;
use crate::config::{Config, Mutation, Tuning};
use crate::events::{CacheEvent, OnEvent};
use crate::group::Group;
use crate::map::{Counts, Slots};
use crate::media::{Media, SlotArea};
use crate::merge::Merges;
use crate::status::Stats;
use crate::unflushed::UnflushedWrites;
use crate::wait_lists::WaitLists;
use crate::write_around::WriteAround;
use crate::writeback::Writeback;
use block::{BlockDevice, Bufs, Limits, Reservation, Sector, Status};
use policy::{Pacer, Watermarks};

/// What writeback is taken to free per second until the first measurement. Chosen low, about what
/// a disk does with few dirty blocks far apart (600 to 1900 on the models): taken too high, writers
/// would use up what is free before the first flush of the origin says better. A faster origin says
/// so within milliseconds.
const ASSUMED_BLOCKS_PER_S: u64 = 1_000;

/// Least room for writers and writeback beside each other, whatever the watermarks say: an eighth
/// of the slots; half of them in a tiny cache, where an eighth is less than a disk can sort; and
/// 16 MiB of 4 KiB blocks are enough for any.
fn room_min(slots: u64) -> u64 {
    (slots / 8).clamp(ROOM_BLOCKS_TINY.min(slots / 2), ROOM_BLOCKS_ENOUGH)
}
const ROOM_BLOCKS_TINY: u64 = 256;
const ROOM_BLOCKS_ENOUGH: u64 = 4096;

fn watermarks(slots: u64, tuning: &Tuning) -> Watermarks {
    Watermarks::new(slots, tuning.high_watermark, tuning.low_watermark)
        .expect("percentages are checked when options are parsed")
        .with_room(room_min(slots))
}

/// Slots that reclaim keeps free: a sixteenth of them, at most 64 MiB of 4 KiB blocks.
pub(crate) fn reclaim_reserve(slots: u32) -> u32 {
    (slots / 16).clamp(2, 16384)
}

/// One cache at work. Everything in here belongs to one core; no borrow is held across an await.
pub(crate) struct Cache {
    /// What the table said; what a live device may change of it is in `tuning`.
    pub(crate) config: Config,
    tuning: Cell<Tuning>,
    pub(crate) origin: Rc<dyn BlockDevice>,
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) geometry: SlotArea,
    /// Limits of the mapped device.
    pub(crate) limits: Limits,
    pub(crate) origin_limits: Limits,
    /// When a client last read from the origin.
    pub(crate) origin_read_ns: Cell<Option<u64>>,
    pub(crate) slots: RefCell<Slots>,
    /// What they have of the core's budget.
    pub(crate) memory: Option<Reservation>,
    pub(crate) media: Media,
    pub(crate) commits: Group,
    pub(crate) device_flush: Group,
    pub(crate) origin_flush: Group,
    pub(crate) writeback: Writeback,
    pub(crate) around: WriteAround,
    pub(crate) merges: Merges,
    pub(crate) age: Age,
    watermarks: Cell<Watermarks>,
    pub(crate) pacer: RefCell<Pacer>,
    pub(crate) stats: Stats,
    /// Somebody waits for: free slots, room among the changed blocks, work for a task.
    pub(crate) waits: WaitLists,
    /// Blocks installed since the cache was opened.
    pub(crate) installs: Cell<u64>,
    /// Writers that wait for a free slot.
    pub(crate) starved: Cell<u32>,
    /// The first error after which nothing may be promised any more; kept until the table is
    /// loaded again.
    failed: Cell<Option<Status>>,
    pub(crate) unflushed: UnflushedWrites,
    /// The media say other epochs than the map, or none: a checkpoint must come first.
    pub(crate) checkpoint_required: Cell<bool>,
    /// The cache device has failed to read a dirty block: it takes nothing new.
    pub(crate) drain_only: Cell<Option<Status>>,
    /// Called with what an operator must hear of.
    pub(crate) on_event: RefCell<Option<OnEvent>>,
    /// No new background work; set by suspend.
    pub(crate) stopping: Cell<bool>,
    /// Nothing more is committed; ends the checkpoint task, which runs while `checkpoints_on`.
    pub(crate) quiesced: Cell<bool>,
    pub(crate) checkpoints_on: Cell<bool>,
    /// The live period, so that a task that slept through a suspend knows that it is over.
    pub(crate) period: Cell<u64>,
    /// Background tasks that have not ended.
    pub(crate) tasks: Cell<u32>,
}

impl Cache {
    pub(crate) fn new(
        config: Config,
        origin: Rc<dyn BlockDevice>,
        device: Rc<dyn BlockDevice>,
        blocks: u64,
        media: Media,
        slots: Slots,
    ) -> Cache {
        let geometry = media.slot_area();
        let total = u64::from(geometry.slots);
        let watermarks = watermarks(total, &config.tuning);
        let pacer = Pacer::new(watermarks.room(), ASSUMED_BLOCKS_PER_S);
        let capacity = Sector(blocks * config.block_sectors());
        let limits = crate::serve::limits(&config, &*origin, &*device, capacity);
        let origin_limits = origin.limits();
        let assumed = config.assumed_costs;
        Cache {
            origin,
            device,
            geometry,
            limits,
            origin_limits,
            origin_read_ns: Cell::new(None),
            slots: RefCell::new(slots),
            memory: None,
            media,
            commits: Group::default(),
            device_flush: Group::default(),
            origin_flush: Group::default(),
            around: WriteAround::default(),
            merges: Merges::default(),
            age: Age::default(),
            writeback: Writeback::new(pacer.batch_max(), config.block_size, assumed),
            watermarks: Cell::new(watermarks),
            tuning: Cell::new(config.tuning),
            pacer: RefCell::new(pacer),
            stats: Stats::default(),
            waits: WaitLists::default(),
            installs: Cell::new(0),
            starved: Cell::new(0),
            failed: Cell::new(None),
            unflushed: UnflushedWrites::default(),
            checkpoint_required: Cell::new(false),
            drain_only: Cell::new(None),
            on_event: RefCell::new(None),
            stopping: Cell::new(false),
            quiesced: Cell::new(false),
            checkpoints_on: Cell::new(false),
            period: Cell::new(0),
            tasks: Cell::new(0),
            config,
        }
    }

    /// The options as they are now.
    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning.get()
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        self.watermarks.get()
    }

    /// Changes options while the cache is in use; whoever waits for something looks again.
    pub(crate) fn tune(&self, tuning: Tuning) {
        let total = u64::from(self.geometry.slots);
        let new = watermarks(total, &tuning);
        if new.room() != self.watermarks().room() {
            self.pacer.borrow_mut().set_room(new.room());
            self.writeback.set_batch_max(self.pacer.borrow().batch_max());
        }
        self.watermarks.set(new);
        if self.tuning.replace(tuning).writeback_rate_max != tuning.writeback_rate_max {
            self.writeback.limits.forgive();
        }
        self.writeback.recheck();
        self.waits.wake_all();
    }

    pub(crate) fn counts(&self) -> Counts {
        self.slots.borrow().counts()
    }

    /// Blocks that do not hold the only copy of anything, or soon will not.
    pub(crate) fn free_blocks(&self) -> u32 {
        let c = self.counts();
        c.free + c.clean + c.limbo
    }

    pub(crate) fn mutation(&self, m: Mutation) -> bool {
        self.config.mutation == m
    }

    /// The sticky error, if the cache has failed.
    pub(crate) fn health(&self) -> Result<(), Status> {
        self.failed.get().map_or(Ok(()), Err)
    }

    pub(crate) fn failure(&self) -> Option<Status> {
        self.failed.get()
    }

    /// WC-I8: from now on reads are served, and nothing else is promised.
    pub(crate) fn fail(&self, status: Status) {
        if self.failed.get().is_none() {
            self.failed.set(Some(status));
            self.unflushed.fail();
            self.notify(CacheEvent::Failed { status });
        }
        self.waits.wake_all();
        self.media.wake_all();
    }

    pub(crate) fn sector_of(&self, block: u64) -> Sector {
        Sector(block * self.config.block_sectors())
    }

    /// Where byte `offset` of the cache area lies on the cache device.
    pub(crate) fn area_sector(&self, offset: u64) -> Sector {
        self.config.start_sector + Sector::from_bytes(offset)
    }

    pub(crate) fn slot_sector(&self, slot: u32) -> Sector {
        self.area_sector(self.geometry.slot_offset(slot))
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.config.block_size as usize
    }

    /// Limit on blocks that the media do not know yet.
    pub(crate) fn unlogged_max(&self) -> u64 {
        self.media.unlogged_max(self.config.ordered)
    }

    /// Uncommitted blocks at which a commit is due.
    pub(crate) fn commit_at(&self) -> u64 {
        u64::from(self.tuning().autocommit_blocks.max(1)).min(self.unlogged_max() / 2).max(1)
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
}

/// Counts a background task while it lives, so that suspend can wait for its end.
pub(crate) struct TaskGuard(Rc<Cache>);

impl TaskGuard {
    pub(crate) fn new(cache: &Rc<Cache>) -> TaskGuard {
        cache.tasks.set(cache.tasks.get() + 1);
        TaskGuard(cache.clone())
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if !block::crashing() {
            self.0.tasks.set(self.0.tasks.get() - 1);
            self.0.waits.wake_all();
        }
    }
}
