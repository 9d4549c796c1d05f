// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Scrub: cached blocks are read in idle time and checked, so that rot is found before anybody
//! needs the block.
//!
//! ```text
//!   sleep ─▶ idle? ─▶ the next 256 KiB of slots: read ─▶ check ─┬─ sound
//!     ▲        │ no                                             └─ not: read again as a client
//!     └────────┴──────────────────────────────────────────────────────── would (`Reader`)
//! ```
//!
//! A rotten clean block is dropped: the origin has it. A rotten dirty one is lost, and becomes bad,
//! as if a client had read it: so it is reported while copies elsewhere may still exist.
//!
//! Invariants
//! - WC-SC1 Scrub changes nothing but what a read of a client would change.
//! - WC-SC2 After a suspend nothing of it is under way.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use block::{Buf, Class, Nanos};

use crate::map::{SlotRef, State};
use crate::planted::Fault;
use crate::reader::Reader;
use crate::store::Store;
use crate::writeback::Writeback;

/// Bytes that are read at once, at most. Chosen: a disk that spins takes 2 ms for them beside the
/// way to them, so a client that comes meanwhile waits no longer than for another client.
const PIECE_BYTES: u64 = 256 << 10;

/// Slots that are looked at in one go, for blocks to check: less than 0.1 ms.
const SLOTS_AT_ONCE_MAX: u32 = 8192;

/// A block to check.
#[derive(Clone, Copy)]
struct HeldBlock {
    block: u64,
    slot_ref: SlotRef,
    crc: Option<u32>,
}

/// Scrub of one cache.
pub(crate) struct Scrub {
    store: Rc<Store>,
    writeback: Rc<Writeback>,
    reader: Reader,
    /// The slot at which the next piece begins.
    cursor: Cell<u32>,
    /// The number of the task; a change of the rate starts a new one.
    task: Cell<u64>,
    /// Requests of clients when the task last looked.
    requests: Cell<u64>,
}

impl Scrub {
    pub(crate) fn new(writeback: Rc<Writeback>) -> Scrub {
        Scrub {
            store: writeback.store.clone(),
            reader: Reader::new(writeback.clone()),
            writeback,
            cursor: Cell::default(),
            task: Cell::default(),
            requests: Cell::default(),
        }
    }

    /// Begins: at a start, and when the rate has changed.
    pub(crate) fn start(self: &Rc<Scrub>) {
        let number = self.task.get() + 1;
        self.task.set(number);
        self.store.waits.first_change.wake_all();
        if self.store.tuning().scrub_rate > 0 && !self.store.life.stopping.get() {
            reactor::spawn(Scrub::run(Rc::downgrade(self), number));
        }
    }

    /// A task. Suspend does not wait for it while it sleeps; it holds no reference to the cache
    /// then.
    async fn run(weak: Weak<Scrub>, number: u64) {
        while let Some(scrub) = weak.upgrade() {
            let store = scrub.store.clone();
            let over = || {
                let is_stopped = store.life.stopping.get() || scrub.task.get() != number;
                is_stopped || store.health().is_err()
            };
            let holds_any = || store.counts().dirty + store.counts().clean > 0;
            store.waits.first_change.wait_for(|| holds_any() || over()).await;
            if over() {
                return;
            }
            let pause = scrub.pause();
            drop((scrub, store));
            reactor::sleep(pause).await;
            let Some(scrub) = weak.upgrade() else { return };
            let store = scrub.store.clone();
            if scrub.task.get() != number || store.life.stopping.get() {
                return;
            }
            if scrub.is_idle() {
                // WC-SC2
                let unguarded = store.has_fault(Fault::ScrubUnguarded);
                let _guard = (!unguarded).then(|| store.life.guard());
                scrub.check_piece().await;
            }
        }
    }

    fn blocks_of_piece(&self) -> u32 {
        let blocks = PIECE_BYTES / u64::from(self.store.config.block_size);
        u32::try_from(blocks.max(1)).expect("a piece is small")
    }

    /// Time between two pieces at the rate that is set.
    fn pause(&self) -> Nanos {
        let bytes = u64::from(self.blocks_of_piece()) * u64::from(self.store.config.block_size);
        let rate = self.store.tuning().scrub_rate.max(1);
        Nanos(
            u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
        )
    }

    /// Whether no client has sent a request since the last look, and nothing is written back.
    fn is_idle(&self) -> bool {
        let stats = &self.store.stats;
        let now = stats.reads.get() + stats.writes.get() + stats.flushes.get();
        let was = self.requests.replace(now);
        let writes_back = self.writeback.wants_writeback() || self.writeback.blocks() > 0;
        now == was && !writes_back && !self.store.life.is_about_to_stop()
    }

    /// Checks the next blocks.
    async fn check_piece(&self) {
        let slots = self.store.slot_count();
        let first = if self.cursor.get() < slots { self.cursor.get() } else { 0 };
        let last = first.saturating_add(SLOTS_AT_ONCE_MAX).min(slots);
        let (mut left, mut end) = (self.blocks_of_piece(), first);
        let mut run: Vec<HeldBlock> = Vec::new();
        while end < last && left > 0 {
            match self.held_in(end) {
                Some(held) => {
                    run.push(held);
                    left -= 1;
                }
                None => self.check_run(&std::mem::take(&mut run)).await,
            }
            end += 1;
        }
        self.check_run(&run).await;
        self.cursor.set(if end == slots { 0 } else { end });
        self.store.stats.scrub_passes.add(u64::from(end == slots));
    }

    /// The block in a slot, if it has one whose data are on the cache device.
    fn held_in(&self, slot: u32) -> Option<HeldBlock> {
        let slots = self.store.slots.borrow();
        let (block, slot_ref) = slots.holder(slot).filter(|_| slots.place_of(slot).is_none())?;
        let found = slots.find(block).filter(|found| found.slot_ref == slot_ref)?;
        let is_readable = matches!(found.state, State::Dirty | State::Clean);
        is_readable.then_some(HeldBlock { block, slot_ref, crc: found.crc })
    }

    /// Checks blocks in neighbouring slots.
    async fn check_run(&self, run: &[HeldBlock]) {
        let Some(first) = run.first() else { return };
        let size = self.store.block_bytes();
        let buf = Buf::alloc(run.len() * size);
        let at = self.store.slot_sector(first.slot_ref.slot);
        let (device, data) = (&*self.store.device, buf.all());
        let read = reactor::read(device, Class::Background, at, data.clone().into()).await;
        self.store.stats.scrubbed_blocks.add(run.len() as u64);
        let data = data.into();
        for (index, held) in run.iter().enumerate() {
            let sound = || held.crc.is_none_or(|crc| self.store.checksum_of(&data, index) == crc);
            let is_intact = || self.store.slots.borrow().is_intact(held.slot_ref);
            // One that has changed meanwhile was written just now.
            if (read.is_ok() && sound()) || !is_intact() {
                continue;
            }
            // The read of a client finds out what is wrong, and does what is to be done.
            let class = Class::Background;
            let again = Buf::alloc(size).all().into();
            let reread = self.reader.reread(class, held.block, again).await;
            if reread != Ok(Some(held.slot_ref)) {
                self.store.stats.scrub_errors.add(1);
            }
        }
    }
}
