// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of a bio into the cache: without a task, or which task serves it.
//!
//! ```text
//!   one block, nothing to wait for ─▶ one request below ─▶ its end: map, checksum ─▶ completed
//!                                                              └ not so simple ─┐
//!   all others ─────────────────────────────────────────────────────────────────┴▶ a task
//! ```
use std::cell::RefCell;
use std::rc::Rc;

use block::{Bio, Bufs, Class, Completion, Flags, Nanos, Op, Opener, Sector, Status};
use reactor::{OnDone, TaskPool};
use slab::Slab;

use crate::cache::Cache;
use crate::reader::{BlockRead, ReadStart};
use crate::writer::{BlockStart, BlockWrite};

/// The open cache: the engine, and the tasks that serve bios.
pub(super) struct OpenCache {
    pub(super) cache: Rc<Cache>,
    /// Sectors of a block, less one.
    pub(super) mask: u64,
    /// Reads and flushes: writers that are slowed must not delay them.
    pub(super) prompt: TaskPool<Bio>,
    pub(super) changes: TaskPool<Bio>,
    /// Changes that do not cover whole blocks.
    pub(super) edges: TaskPool<Bio>,
    /// Writes that are parts of long streams (`sequential_write_cutoff`).
    pub(super) streams: TaskPool<Bio>,
    /// Bios of one block that are served without a task. There are at most as many as bios.
    pub(super) in_flight: RefCell<Slab<InFlight>>,
}

/// A bio of one block, and the request below that serves it. Its completion is in the op table.
pub(super) enum InFlight {
    Write(BlockWrite, Opener),
    Read(BlockRead, RestOfBio),
}

/// A read without its completion, and when it began.
pub(super) struct RestOfBio {
    flags: Flags,
    class: Class,
    opener: Opener,
    sector: Sector,
    bufs: Bufs,
    began: Option<Nanos>,
}

impl OpenCache {
    #[inline]
    pub(super) fn submit(self: &Rc<Self>, bio: Bio) {
        if (bio.sector.0 | bio.len.0) & self.mask != 0 {
            return self.submit_sectors(bio);
        }
        let is_block = bio.len.0 == self.mask + 1 && self.cache.limits.check(&bio).is_ok();
        match bio.op {
            Op::Write if self.cache.writer.is_long_stream(&bio) => self.streams.push(bio),
            Op::Read if is_block => self.read_block(bio),
            Op::Write if is_block => self.write_block(bio),
            Op::Read | Op::Flush => self.prompt.push(bio),
            Op::Write | Op::Discard | Op::WriteZeroes => self.changes.push(bio),
        }
    }

    #[cold]
    fn submit_sectors(&self, mut bio: Bio) {
        if bio.op != Op::Read {
            return self.edges.push(bio);
        }
        match self.cache.limits.check(&bio) {
            Ok(()) => {
                // A checksum covers a block.
                bio.widen(self.cache.store.config.block_sectors());
                self.prompt.push(bio);
            }
            Err(status) => bio.complete(status),
        }
    }

    fn write_block(self: &Rc<Self>, bio: Bio) {
        let store = &self.cache.store;
        match self.cache.writer.begin_block(&bio) {
            BlockStart::Task => self.changes.push(bio),
            BlockStart::Done => {
                store.unflushed.changed(bio.opener);
                bio.complete(Status::Ok);
            }
            BlockStart::Slot(write) => {
                let sector = store.slot_sector(write.slot);
                let in_flight = InFlight::Write(write, bio.opener);
                let done = self.chain(bio.done, in_flight);
                let (flags, opener) = (Flags::empty(), Opener::NONE);
                store.device.submit(Bio { flags, opener, sector, done, ..bio });
            }
        }
    }

    fn read_block(self: &Rc<Self>, bio: Bio) {
        let (store, reader) = (&self.cache.store, &self.cache.writer.reader);
        let block = bio.sector.0 / store.config.block_sectors();
        let start = match store.plain_reads.get() {
            true => reader.begin_block(block, &bio.bufs),
            false => reader.begin_counted(block, bio.opener, &bio.bufs),
        };
        let read = match start {
            ReadStart::Task => return self.prompt.push(bio),
            ReadStart::Done => {
                let began = self.cache.writeback.begin_request();
                self.cache.writeback.end_request(&bio, began);
                return bio.complete(Status::Ok);
            }
            ReadStart::Request(read) => read,
        };
        let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
        let (device, at) = reader.source_of(&read, block);
        let began = self.cache.writeback.begin_request();
        let rest = RestOfBio { flags, class, opener, sector, bufs: bufs.clone(), began };
        let done = self.chain(done, InFlight::Read(read, rest));
        let (flags, no_opener, sector) = (Flags::empty(), Opener::NONE, at);
        device.submit(Bio { op, flags, class, opener: no_opener, sector, len, bufs, done });
    }

    /// The completion of the request that serves a bio of a client.
    fn chain(self: &Rc<Self>, client: Completion, in_flight: InFlight) -> Completion {
        let key = self.in_flight.borrow_mut().insert(in_flight);
        reactor::chain(client, self.clone(), key as u64)
    }

    fn end_write(&self, write: BlockWrite, opener: Opener, written: Status, client: Completion) {
        if let Some(status) = self.cache.writer.end_block(&write, written) {
            self.cache.store.unflushed.changed(opener);
            return client.complete(status);
        }
        let cache = self.cache.clone();
        reactor::spawn(async move {
            let status = cache.writer.end_block_later(write).await;
            cache.store.unflushed.changed(opener);
            client.complete(status);
        });
    }

    fn end_read(&self, read: &BlockRead, rest: RestOfBio, status: Status, client: Completion) {
        let RestOfBio { flags, class, opener, sector, bufs, began } = rest;
        let (reader, len) = (&self.cache.writer.reader, Sector(self.mask + 1));
        let bio = Bio { op: Op::Read, flags, class, opener, sector, len, bufs, done: client };
        if !reader.end_block(read, &bio.bufs, status) {
            return self.prompt.push(bio);
        }
        self.cache.writeback.end_request(&bio, began);
        bio.complete(status);
    }
}

impl OnDone for OpenCache {
    fn on_done(&self, _status: Status, _tag: u64) {
        unreachable!("its requests are chained");
    }

    fn on_chained_done(&self, status: Status, tag: u64, parent: Completion) {
        let key = usize::try_from(tag).expect("a key of the slab");
        let in_flight = self.in_flight.borrow_mut().remove(key);
        match in_flight {
            InFlight::Write(write, opener) => self.end_write(write, opener, status, parent),
            InFlight::Read(read, rest) => self.end_read(&read, rest, status, parent),
        }
    }
}
