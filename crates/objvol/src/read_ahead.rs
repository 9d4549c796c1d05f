// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ReadAhead`: what sequential readers will ask for next comes in large requests.
//!
//! ```text
//!   reader ──▶│ asked │ window                │
//!             volume  └──── map ────┐
//!   segment   ▐█████████████████████▼███████████▌   one request, to the end of the run
//!                                   └─ chunk ───┘   in memory until it was read, or HELD
//! ```
//!
//! A chunk is bytes of an object, not of the volume. Segments never change, and no name is used
//! again, so a chunk is never old: each read looks the map up, and takes from chunks what lies
//! there (an overwrite, a discard and a move by garbage collection change the map only).
//!
//! Costs: a reader of whole segments in order sends about one GET for each, random reads none.
//!
//! Invariants
//! - OV-RA1 The map decides when a read comes, not when its data were read ahead.
//! - OV-RA2 An error of a request that was sent ahead is nobody's: the read sends its own.
//! - OV-RA3 Chunks take no more memory than `read_ahead`.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Nanos, Opener, Status};
use format::checksum;
use format::objvol::{SECTOR, SEGMENTS, place_name};
use policy::StreamsWithin;
use reactor::WaitList;

use crate::log::{Log, StoredExtent};
use crate::planted::Fault;
use crate::read::{Fetch, Fetched, Missing, may_join, merge};
use crate::requests::Requests;

/// The unit of streams.
const PAGE_SECTORS: u64 = 8;
/// Chosen: 8 reads of 64 KiB in flight. A page cache allows 8 times as many, but its windows are
/// smaller, and random reads that are taken for a stream cost it less.
const REORDER_PAGES: u64 = 128;
/// The smallest largest window: below it nothing is read ahead. Chosen: four usual requests.
const WINDOW_MIN: u64 = 256 << 10;
/// Requests of one window at most. Chosen: in a volume that was written in small pieces at random
/// they are what one round trip takes; each piece is one request anyway.
const FETCHES_MAX: usize = 32;
/// What nobody has asked for so long is dropped.
const HELD: Nanos = Nanos::from_secs(10);

/// Bytes of an object that come, or have come.
#[derive(Debug)]
struct Chunk {
    fetch: Fetch,
    /// Sectors for which it was fetched, and that nobody has read.
    unread: Cell<u64>,
    data: RefCell<Data>,
    /// With a planted fault: what the map had then.
    map: Vec<(u64, StoredExtent)>,
}

#[derive(Debug)]
enum Data {
    Coming,
    There(Buf),
    /// No answer, or not this one (OV-RA2).
    Failed,
}

impl Chunk {
    fn is_coming(&self) -> bool {
        matches!(*self.data.borrow(), Data::Coming)
    }

    /// The data of an extent, if they have come and are right.
    fn extent(&self, extent: &StoredExtent) -> Option<Buf> {
        let Data::There(bytes) = &*self.data.borrow() else { return None };
        let range = self.fetch.bytes_of(extent);
        bytes.read(|bytes| {
            let data = bytes.get(range).filter(|data| checksum(data) == extent.crc)?;
            Some(Buf::copy_of(data))
        })
    }
}

/// See the module.
pub(crate) struct ReadAhead {
    requests: Rc<Requests>,
    memory_max: u64,
    streams: RefCell<StreamsWithin<REORDER_PAGES>>,
    chunks: RefCell<Vec<Rc<Chunk>>>,
    /// Woken when a chunk has come, or has failed.
    settled: WaitList,
}

impl ReadAhead {
    pub(crate) fn new(requests: Rc<Requests>, memory_max: u64) -> Rc<ReadAhead> {
        Rc::new(ReadAhead {
            requests,
            memory_max,
            streams: RefCell::default(),
            chunks: RefCell::default(),
            settled: WaitList::new(),
        })
    }

    /// Bytes of all chunks.
    pub(crate) fn held(&self) -> u64 {
        self.chunks.borrow().iter().map(|chunk| chunk.fetch.bytes()).sum()
    }

    /// `opener` reads `sectors` now: sends what it will ask for next.
    pub(crate) fn follow(self: &Rc<Self>, opener: Opener, sectors: &Range<u64>, log: &Log) {
        // So much that one window is read while the next one comes.
        let free = self.memory_max.saturating_sub(self.held());
        let most = (self.memory_max / 4).min(free / 2);
        if most < WINDOW_MIN {
            return;
        }
        let page_bytes = PAGE_SECTORS * SECTOR as u64;
        let most = u32::try_from(most / page_bytes).unwrap_or(u32::MAX);
        let pages = sectors.start / PAGE_SECTORS..sectors.end.div_ceil(PAGE_SECTORS);
        let mut window = self.streams.borrow_mut().on_read(opener.0, pages.clone(), most);
        if window.is_none() && self.requests.planted.is(Fault::ReadAheadOfAll) {
            window = Some(pages.end..pages.end + WINDOW_MIN / page_bytes);
        }
        let Some(window) = window else { return };
        let wanted = self.plan(window.start * PAGE_SECTORS..window.end * PAGE_SECTORS, log);
        let mut stored: Vec<StoredExtent> = wanted.iter().map(|(_, _, stored)| *stored).collect();
        stored.sort_unstable();
        for fetch in merge(&stored) {
            if self.held() + fetch.bytes() > self.memory_max {
                return; // OV-RA3
            }
            let of_fetch = wanted.iter().filter(|(_, _, stored)| fetch.has(stored));
            let unread = of_fetch.clone().map(|(_, extent, _)| u64::from(extent.sectors)).sum();
            let is_planted = self.requests.planted.is(Fault::ReadAheadByOldMap);
            let map = of_fetch.filter(|_| is_planted).map(|(at, _, stored)| (*at, *stored));
            self.send(fetch, unread, map.collect());
        }
    }

    /// What of `window` lies in the store and in no chunk; and what follows it in the same segment,
    /// as much as a window again: so that requests end where segments do.
    fn plan(&self, window: Range<u64>, log: &Log) -> Missing {
        let mut wanted = Missing::new();
        let mut fetches = 0;
        let beyond = window.end + (window.end - window.start);
        for (at, extent) in log.pieces(window.start..beyond) {
            if log.in_memory(&extent, |_| ()).is_some() {
                continue;
            }
            let stored = log.stored(&extent);
            if self.find(&stored).is_some() {
                continue;
            }
            let joins = wanted.last().is_some_and(|(_, _, last)| may_join(last, &stored));
            fetches += usize::from(!joins);
            if fetches > FETCHES_MAX || at >= window.end && !joins {
                break;
            }
            wanted.push((at, extent, stored));
        }
        wanted
    }

    fn find(&self, extent: &StoredExtent) -> Option<Rc<Chunk>> {
        self.chunks.borrow().iter().find(|chunk| chunk.fetch.has(extent)).cloned()
    }

    fn send(self: &Rc<Self>, fetch: Fetch, unread: u64, map: Vec<(u64, StoredExtent)>) {
        let (unread, data) = (Cell::new(unread), RefCell::new(Data::Coming));
        let chunk = Rc::new(Chunk { fetch, unread, data, map });
        self.chunks.borrow_mut().push(chunk.clone());
        let this = self.clone();
        reactor::spawn(async move {
            let name = place_name(SEGMENTS, fetch.place);
            let came = this.requests.try_get(&name, fetch.byte_range()).await;
            let has_come = came.is_some();
            *chunk.data.borrow_mut() = came.map_or(Data::Failed, Data::There);
            this.settled.wake_all();
            if !has_come {
                return this.drop_chunk(&chunk);
            }
            let still_there = Rc::downgrade(&chunk);
            drop(chunk);
            reactor::sleep(HELD).await;
            if let Some(chunk) = still_there.upgrade() {
                this.drop_chunk(&chunk);
            }
        });
    }

    fn drop_chunk(&self, chunk: &Rc<Chunk>) {
        self.chunks.borrow_mut().retain(|other| !Rc::ptr_eq(other, chunk));
    }

    /// As [`Requests::fetch`], of what was read ahead where that is so.
    pub(crate) async fn fetch(&self, missing: &Missing) -> Result<Option<Fetched>, Status> {
        let (mut ahead, mut rest) = (Vec::new(), Vec::new());
        for (at, extent, stored) in missing {
            match self.find_for(*at, stored) {
                Some((chunk, from)) => ahead.push((chunk, from, *stored, extent.sectors)),
                None => rest.push(*stored),
            }
        }
        let Some(mut fetched) = self.requests.fetch(&rest).await? else { return Ok(None) };
        let mut again = Vec::new();
        for (chunk, from, stored, sectors) in ahead {
            self.settled.wait_for(|| !chunk.is_coming()).await;
            let Some(data) = chunk.extent(&from) else {
                if self.requests.planted.is(Fault::ReadAheadErrors) {
                    return Err(Status::Io);
                }
                again.push(stored); // OV-RA2
                continue;
            };
            fetched.insert(stored, data);
            chunk.unread.set(chunk.unread.get().saturating_sub(sectors.into()));
            if chunk.unread.get() == 0 {
                self.drop_chunk(&chunk);
            }
        }
        if !again.is_empty() {
            let Some(data) = self.requests.fetch(&again).await? else { return Ok(None) };
            fetched.extend(data);
        }
        Ok(Some(fetched))
    }

    /// The chunk that has an extent, and the extent to take from it (OV-RA1).
    fn find_for(&self, at: u64, stored: &StoredExtent) -> Option<(Rc<Chunk>, StoredExtent)> {
        if self.requests.planted.is(Fault::ReadAheadByOldMap) {
            let chunks = self.chunks.borrow();
            let then = |chunk: &Rc<Chunk>| {
                let (_, old) = chunk.map.iter().find(|(then, _)| *then == at)?;
                (old.sectors == stored.sectors).then(|| (chunk.clone(), *old))
            };
            return chunks.iter().find_map(then);
        }
        self.find(stored).map(|chunk| (chunk, *stored))
    }
}
