// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache in use: it serves bios, and its background tasks run while it is not suspended.
//!
//! ```text
//!   Cache ─▶ Writer ─▶ Reader ─▶ Writeback ─▶ Store ─▶ map
//! ```
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Class, Error, Limits, Op, Reservation, Sector, Status};

use crate::config::{Tuning, ZEROES_CACHED_BYTES_MAX};
use crate::events::io_failed;
use crate::guard::{Guard, GuardedOrigin};
use crate::origin::Origin;
use crate::planted::Fault;
use crate::recovery::RecoveredCache;
use crate::scrub::Scrub;
use crate::store::Store;
use crate::writeback::Writeback;
use crate::writer::Writer;

/// The attribute `journal` of a cache that has one.
pub(crate) const JOURNAL_IN_MEMORY: &str = "in memory";

/// One cache in use. All of it belongs to one core.
pub(crate) struct Cache {
    pub(crate) store: Rc<Store>,
    pub(crate) writeback: Rc<Writeback>,
    pub(crate) writer: Writer,
    pub(crate) scrub: Rc<Scrub>,
    /// The guard of the origin; `None` where there was none to look for.
    pub(crate) guard: Option<Rc<Guard>>,
    /// Limits of the mapped device.
    pub(crate) limits: Limits,
    /// The memory of the map, reserved from the core's budget.
    pub(crate) memory: RefCell<Reservation>,
}

impl Cache {
    /// The cache that recovery has found, for `origin`.
    pub(crate) fn new(recovered: RecoveredCache, origin: Rc<dyn BlockDevice>) -> Cache {
        let RecoveredCache { config, device, blocks, media, slots, memory, journal, guard, .. } =
            recovered;
        let origin = match &guard {
            Some(guard) => Rc::new(GuardedOrigin::new(guard.clone())),
            None => origin,
        };
        let capacity = Sector(blocks * config.block_sectors());
        let limits = crate::device_limits::limits(&config, &*origin, &*device, capacity);
        let store =
            Rc::new_cyclic(|this| Store::new(config, device, media, slots, journal, this.clone()));
        let writeback = Rc::new(Writeback::new(store.clone(), Origin::new(origin)));
        if let Some(guard) = &guard {
            guard.set_writeback(&writeback);
        }
        let writer = Writer::new(writeback.clone());
        let scrub = Rc::new(Scrub::new(writeback.clone()));
        Cache { store, writeback, writer, scrub, guard, limits, memory: RefCell::new(memory) }
    }

    pub(crate) fn tuning(&self) -> Tuning {
        self.store.tuning()
    }

    /// Prepares the cache for use after recovery: makes durable what an earlier process wrote to
    /// the origin, and makes room in the log.
    pub(crate) async fn prepare(&self, tuning: Tuning) -> Result<(), Status> {
        let wb = &self.writeback;
        if self.store.has_fault(Fault::JournalBlankedEarly) {
            self.store.journal.clear();
        }
        // WC-A1: writes around the cache of a process that was killed may be in a volatile cache of
        // the origin.
        wb.flush_origin(Class::Foreground, wb.origin_flush_errors()).await?;
        wb.tune(tuning);
        wb.write_zeroes_without_order().await?;
        // Repeated crashes could use up the reserve of the log.
        if self.store.is_checkpoint_due() || self.store.media.is_checkpoint_required() {
            self.store.checkpoint().await?;
            self.store.slots.borrow_mut().free_after_checkpoint();
        }
        self.store.journal.clear(); // WC-JR1
        Ok(())
    }

    /// Starts the background tasks of the live period number `period`.
    pub(crate) fn start(&self, period: u64) {
        let (store, wb) = (&self.store, &self.writeback);
        let life = &store.life;
        life.stopping.set(false);
        life.background_paused.set(false);
        life.checkpoints_on.set(true);
        life.quiesced.set(false);
        life.period.set(period);
        store.expect_changes();
        store.slots.borrow_mut().mark_oldest(reactor::now);
        reactor::spawn(wb.clone().pick_task(life.guard()));
        reactor::spawn(wb.clone().settle_task(life.guard()));
        reactor::spawn(wb.clone().reclaim_task(life.guard()));
        reactor::spawn(store.clone().checkpoint_task());
        reactor::spawn(store.clone().commit_when_many_task(life.guard()));
        store.start_autocommit();
        reactor::spawn(Writeback::retry_task(Rc::downgrade(wb), period));
        reactor::spawn(Writeback::unreadable_task(Rc::downgrade(wb), period));
        wb.start_ages();
        wb.read_cache.is_closed.set(false);
        wb.start_naming();
        self.scrub.start();
    }

    /// Whether the journal has all changes that no commit has.
    pub(crate) fn has_journal(&self) -> bool {
        let store = &self.store;
        let has_ended = store.health.journal_ended.get();
        store.journal.memory.is_ok() && !has_ended && !store.slots.borrow().has_lost_journal()
    }

    /// The attribute `journal`.
    pub(crate) fn journal_state(&self) -> String {
        match &self.store.journal.memory {
            Ok(_) if self.store.health.journal_ended.get() => {
                "none: the cache has failed".to_owned()
            }
            Ok(_) if self.store.slots.borrow().has_lost_journal() => {
                "none: a part of its memory is lost".to_owned()
            }
            Ok(memory) => match &memory.no_buffer {
                Some(why) => format!("{JOURNAL_IN_MEMORY}; no write buffer: {why}"),
                None => JOURNAL_IN_MEMORY.to_owned(),
            },
            Err(why) => format!("none: {why}"),
        }
    }

    /// Whether it is suspended, or about to be.
    pub(crate) fn is_stopping(&self) -> bool {
        self.store.life.stopping.get()
    }

    /// Pauses writeback and checkpoints, or lets them go on. A pause returns when none is under way
    /// and completed writes are durable.
    pub(crate) async fn pause_background(&self, is_paused: bool) {
        let (store, wb, life) = (&self.store, &self.writeback, &self.store.life);
        life.background_paused.set(is_paused);
        store.waits.wake_all();
        if !is_paused {
            return;
        }
        let over = || {
            let has_failed = store.health().is_err();
            !life.background_paused.get() || life.stopping.get() || has_failed
        };
        store.waits.writes_ended.wait_for(|| over() || wb.is_quiet()).await;
        store.waits.writes_ended.wait_for(|| over() || !life.in_checkpoint.get()).await;
        if !over() {
            // Errors: the next FLUSH of a client reports them, or the suspend.
            store.commit().await.ok();
            wb.flush_around(Class::Background).await.ok();
        }
    }

    /// Ends the background tasks and makes completed writes durable. With `with_flush` all dirty
    /// blocks are written back first.
    pub(crate) async fn suspend(&self, with_flush: bool) -> Result<(), Error> {
        let (store, wb, life) = (&self.store, &self.writeback, &self.store.life);
        // What a flush leaves in the cache would be old if the origin is used without it.
        wb.read_cache.is_closed.set(!store.has_fault(Fault::AdmitAfterFlush));
        let flushed = if with_flush { wb.write_back_all().await } else { Ok(()) };
        life.stopping.set(true);
        store.waits.wake_all();
        if !store.has_fault(Fault::SuspendInFlight) {
            life.tasks.ended.wait_for(|| life.tasks.count() == 0).await;
            store.waits.writes_ended.wait_for(|| wb.in_flight_runs() == 0).await;
        }
        let mut outcome = Ok(());
        // An earlier failure was reported when it happened; this commit may report one.
        if store.health().is_ok() {
            self.writeback.name_admitted().await;
            store.slots.borrow_mut().close_epoch();
            outcome = outcome.and(store.commit().await);
            outcome = outcome.and(self.writeback.flush_around(Class::Background).await);
            outcome = outcome.and(store.seal().await);
        }
        // Another table may use their slots.
        store.await_buffer().await;
        life.quiesced.set(true);
        store.waits.wake_all();
        life.tasks.ended.wait_for(|| !life.checkpoints_on.get()).await;
        // Another table may open the cache now.
        store.leave_journal();
        flushed.and(outcome.map_err(io_failed))
    }

    /// Drops all clean blocks of the suspended cache, durably: once the origin is used without its
    /// cache they are old, and the next opening must not serve them.
    ///
    /// Cost: the records of the drops, with a flush for each, and one that seals them.
    pub(crate) async fn drop_copies(&self) -> Result<(), Status> {
        let (store, life) = (&self.store, &self.store.life);
        store.health()?;
        if store.counts().clean == 0 {
            return Ok(()); // the suspend has committed what was dropped before
        }
        // The records may need the room that a checkpoint makes.
        life.quiesced.set(false);
        life.checkpoints_on.set(true);
        reactor::spawn(store.clone().checkpoint_task());
        let dropped = self.writeback.forget_clean().await;
        let sealed = if dropped.is_ok() { store.seal().await } else { dropped };
        life.quiesced.set(true);
        store.waits.wake_all();
        life.tasks.ended.wait_for(|| !life.checkpoints_on.get()).await;
        sealed
    }

    /// The device is dropped: its tasks end by themselves.
    pub(crate) fn abandon(&self) {
        self.store.life.stopping.set(true);
        self.store.life.quiesced.set(true);
        self.store.leave_journal();
        if !block::crashing() {
            self.store.waits.wake_all();
        }
    }

    /// Merges the edges of a change that does not cover whole blocks. Returns `None` if whole
    /// blocks are left, which the caller must pass to `handle`.
    pub(crate) async fn handle_edges(&self, bio: &mut Bio) -> Option<Status> {
        if let Err(status) = self.limits.check(bio) {
            return Some(status);
        }
        let began = self.writeback.begin_request();
        let merged = self.writer.merge_edges(bio).await;
        if merged == Ok(true) {
            return None;
        }
        self.store.unflushed.changed(bio.opener);
        self.writeback.end_request(bio, began);
        Some(merged.map(drop).into())
    }

    /// Handles a write of whole blocks that is a part of a long stream.
    pub(crate) async fn handle_stream(&self, bio: &Bio) -> Status {
        if let Err(status) = self.limits.check(bio) {
            return status;
        }
        let began = self.writeback.begin_request();
        let written = self.writer.write_stream(bio).await;
        self.store.unflushed.changed(bio.opener);
        self.writeback.end_request(bio, began);
        written.into()
    }

    /// Handles a bio of whole blocks.
    pub(crate) async fn handle(&self, bio: &Bio) -> Status {
        if let Err(status) = self.limits.check(bio) {
            return status;
        }
        let began = self.writeback.begin_request();
        let outcome = match bio.op {
            Op::Read => {
                if !self.store.changes_begun.get() && !self.store.has_fault(Fault::ReadBeforeRecord)
                {
                    // An error makes the cache fail; reads are served nevertheless.
                    self.store.begin_changes().await.ok();
                }
                self.writer.reader.read(bio).await
            }
            Op::Write => {
                let written = self.writer.write(bio).await;
                self.store.unflushed.changed(bio.opener);
                written
            }
            Op::Flush => {
                self.store.stats.flushes.add(1);
                let nothing = self.store.has_fault(Fault::EpochOnlyWithCommit);
                if !nothing || self.store.counts().unlogged > 0 {
                    self.store.slots.borrow_mut().close_epoch(); // WC-E1
                }
                let sample = self.store.unflushed.sample(bio.opener);
                let begun = match self.store.changes_begun.get() {
                    true => Ok(()),
                    false => self.store.begin_changes().await,
                };
                let committed = begun.and(self.store.commit().await);
                let flushed = committed.and(self.writeback.flush_around(bio.class).await);
                self.store.unflushed.flushed(bio.opener, sample, flushed)
            }
            Op::WriteZeroes | Op::Discard => {
                let cleared = self.clear_sectors(bio).await;
                self.store.unflushed.changed(bio.opener);
                cleared
            }
        };
        self.writeback.end_request(bio, began);
        outcome.into()
    }

    /// Handles a discard or WRITE_ZEROES.
    async fn clear_sectors(&self, bio: &Bio) -> Result<(), Status> {
        let are_zeroes = bio.op == Op::WriteZeroes;
        match self.store.config.ordered {
            true if are_zeroes => self.writer.write_zeroes_in_order(bio).await,
            // Discards go to the origin at once, which ordered mode does not allow.
            true => Err(Status::NotSupported),
            false if are_zeroes && bio.len.bytes() <= ZEROES_CACHED_BYTES_MAX => {
                self.writer.write_zero_blocks(bio).await
            }
            false => self.writer.clear(bio).await,
        }
    }
}
