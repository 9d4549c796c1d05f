// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A mapped device as its clients use it: a device that takes bios, and a base of flat mappings.
use std::rc::{Rc, Weak};

use block::runs::Runs;
use block::{
    Base, Bio, BlockDevice, CacheRecord, Limits, LocalFuture, MappedExtent, OnIoError, Op, Opener,
    Sector, Status, Target, ZeroRuns,
};

use super::MappedDevice;
use crate::clone::clone_of;
use crate::live::Table;
use crate::mapping::Mapping;

impl BlockDevice for MappedDevice {
    fn name(&self) -> &str {
        self.identity.names.get()
    }

    fn limits(&self) -> Limits {
        self.tables.live.borrow().as_ref().map_or_else(|| Limits::new(Sector::ZERO), |t| t.limits())
    }

    fn is_stale(&self) -> bool {
        self.rights.read_only().by_table()
    }

    fn submit(&self, mut bio: Bio) {
        if bio.opener == Opener::NONE {
            bio.opener = self.opener;
        }
        let flat = self.flat.current.borrow();
        match flat.lookup(bio.sector, bio.len) {
            Some((base, sector)) => base.submit_at(sector, bio),
            None if flat.is_empty() => self.submit_counted(bio),
            None => flat.submit_by_nodes(bio),
        }
    }

    /// Those bases take it at which bios end without the device above. There are none while bios
    /// wait for a resume: another table may take them then.
    fn takes_client_memory(&self) -> bool {
        self.flat.current.borrow().takes_client_memory()
    }

    /// That of the one line of the live table, if that keeps a record of the cache above it.
    fn identity(&self) -> Option<String> {
        let target = self.recording_target()?;
        target.identity()
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        self.recording_target()?.cache_record()
    }

    fn map_blocks(&self, at: Sector, len: Sector) -> Option<MappedExtent> {
        self.flat.current.borrow().map_blocks(at, len)
    }

    fn map_generation(&self) -> u64 {
        self.flat.generation.get()
    }

    /// Asks the targets of the live table, one after the other. If another table goes live
    /// meanwhile, what the clients have written to it came after the question.
    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let (live, end) = (self.live(), at + len);
        Box::pin(async move {
            let mut runs = Runs::new();
            let entries = live.iter().flat_map(|table| &table.entries);
            for entry in entries.filter(|e| e.start < end && e.end > at) {
                let (from, to) = (entry.start.max(at), entry.end.min(end));
                let zeroes = entry.target.zero_runs(from - entry.start, to - from).await;
                runs.extend(zeroes.into_iter().map(|(at, len)| (at + entry.start, len)));
            }
            runs
        })
    }

    fn writer_throttled(&self) {
        for base in self.flat.current.borrow().bases() {
            base.writer_throttled();
        }
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl MappedDevice {
    /// The target that is the whole live table, and keeps a record of the cache above it.
    fn recording_target(&self) -> Option<Rc<dyn Target>> {
        let target = self.live()?.only_target()?.clone();
        target.clone().cache_record().map(|_| target)
    }

    #[cold]
    #[inline(never)]
    fn submit_counted(&self, bio: Bio) {
        let live = self.tables.live.borrow();
        let Some(table) = &*live else { return bio.complete(Status::Io) };
        if self.lifecycle.holds_bios() {
            return self.wait(bio);
        }
        if bio.op == Op::Flush
            && let Some(report) = self.untold.must_hear(bio.opener)
        {
            return self.send(table, bio, |bio| self.untold.fail_at_end(bio, Some(report)));
        }
        self.send(table, bio, |bio| bio);
    }

    /// Sends a bio to the live table. What `on_its_way` hooks into it those see who watch.
    fn send(&self, table: &Table, bio: Bio, on_its_way: impl FnOnce(Bio) -> Bio) {
        let bio = self.drain.live.borrow().track(bio);
        let bio = if self.account.is_on() { self.account.track(bio) } else { bio };
        let bio = on_its_way(bio);
        match self.flat.mapping.get() {
            Mapping::Clone if table.is_pure() => {
                let clones = &self.flat.clones;
                clones.set(clones.get() + 1);
                table.submit(clone_of(bio));
            }
            Mapping::Clone | Mapping::InPlace => table.submit(bio),
        }
    }

    fn wait(&self, bio: Bio) {
        if self.dm.upgrade().is_some_and(|dm| dm.is_ending()) {
            return bio.complete(Status::NoDevice);
        }
        self.waiting.push(bio, self.lifecycle.is_suspended());
    }

    /// Lets those go on that waited, in order. The device is active.
    pub(super) fn send_waiting(&self) {
        self.waiting.send(
            &self.untold,
            |bio| self.submit(bio),
            |flush, report| {
                let live = self.tables.live.borrow();
                let Some(table) = &*live else { return flush.complete(Status::Io) };
                self.send(table, flush, |flush| self.untold.fail_at_end(flush, report));
            },
        );
    }
}

impl Base for MappedDevice {
    /// Checks again: the table may have changed since the mapping above was made.
    fn submit_at(&self, sector: Sector, mut bio: Bio) {
        bio.sector = sector;
        self.submit(bio);
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            // Bios that came while this device was a pure mapping went to bases that the mapping
            // above had as its own, and none that came had to wait (DM-D5).
            for in_flight in self.drain.all() {
                in_flight.quiesced().await;
            }
        })
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.drain.live.borrow().watch(watcher);
    }
}
