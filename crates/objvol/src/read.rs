// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: from memory where a segment is gathered or in flight, else from the store in merged
//! ranges.
//!
//! Invariants
//! - OV-RD1 Data of the store are checked against the checksum of their whole extent before any of
//!   them is used.
//! - OV-RD2 A segment that has gone is no error while the map has moved on: garbage collection may
//!   delete what a read had looked up. The map is looked up again.
use std::collections::BTreeMap;
use std::ops::Range;

use block::{Buf, Bufs, Opener, Status};
use format::checksum;
use format::objvol::{Place, SECTOR, SEGMENTS, place_name};

use crate::join::{Pending, join_all};
use crate::log::{Log, StoredExtent};
use crate::map::Extent;
use crate::planted::Fault;
use crate::requests::Requests;
use crate::shared::Shared;

/// Bytes between two extents that are fetched with them, to save a request. Chosen: at 100 MB/s a
/// hundredth of a request of 50 ms.
const GAP_BYTES_MAX: u64 = 64 << 10;
/// Bytes of one request at most. Chosen: a whole segment.
const FETCH_BYTES_MAX: u64 = 16 << 20;
/// How often a read looks the map up because data have gone. Chosen: each time a round of garbage
/// collection with its grace time has passed.
const LOOKUPS_MAX: u32 = 16;

/// Sectors of one object that are fetched together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) place: Place,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The runs whose data must be fetched, with their sectors in the volume.
pub(crate) type Missing = Vec<(u64, Extent, StoredExtent)>;

/// The whole data of extents, checked.
pub(crate) type Fetched = BTreeMap<StoredExtent, Buf>;

impl Shared {
    /// A read of whole sectors.
    pub(crate) async fn read(&self, opener: Opener, start: u64, bufs: &Bufs) -> Result<(), Status> {
        let end = start + (bufs.len_bytes() / SECTOR) as u64;
        self.ahead.follow(opener, &(start..end), &self.log.borrow());
        let mut lookups = 0;
        loop {
            self.check_fence()?;
            let missing = read_memory(&self.log.borrow(), start..end, bufs);
            if missing.is_empty() {
                return Ok(());
            }
            let wanted = stored_extents(&missing);
            if let Some(fetched) = self.ahead.fetch(&missing).await? {
                copy_fetched(&missing, &fetched, start, bufs);
                return self.check_fence();
            }
            // OV-RD2
            lookups += 1;
            if lookups == LOOKUPS_MAX {
                return Err(Status::Io);
            }
            let now = self.stored_runs(start..end);
            if now == wanted {
                // Whoever has taken the volume over may have deleted it.
                self.look().await;
                self.check_fence()?;
                return Err(Status::Io);
            }
        }
    }

    fn stored_runs(&self, range: Range<u64>) -> Vec<StoredExtent> {
        let log = self.log.borrow();
        let pieces = log.pieces(range).into_iter();
        let stored = pieces.filter(|(_, extent)| log.in_memory(extent, |_| ()).is_none());
        stored.map(|(_, extent)| log.stored(&extent)).collect()
    }
}

/// Fills in zeroes and what is in memory; returns the rest.
pub(crate) fn read_memory(log: &Log, range: Range<u64>, bufs: &Bufs) -> Missing {
    let offset_of = |sector: u64| usize_of(sector - range.start) * SECTOR;
    let (mut missing, mut at) = (Missing::new(), range.start);
    let zero = |from: u64, to: u64| {
        if from < to {
            bufs.slice(offset_of(from)..offset_of(to)).zero();
        }
    };
    for (sector, extent) in log.pieces(range.clone()) {
        zero(at, sector);
        at = sector + u64::from(extent.sectors);
        let copied = log.in_memory(&extent, |data| bufs.put_at(offset_of(sector), data));
        if copied.is_none() {
            missing.push((sector, extent, log.stored(&extent)));
        }
    }
    zero(at, range.end);
    missing
}

/// What must be fetched for the missing runs.
pub(crate) fn stored_extents(missing: &Missing) -> Vec<StoredExtent> {
    missing.iter().map(|(_, _, at)| *at).collect()
}

/// Copies the missing runs of a read that begins at sector `start`.
pub(crate) fn copy_fetched(missing: &Missing, fetched: &Fetched, start: u64, bufs: &Bufs) {
    for (sector, extent, at) in missing {
        let from = usize::from(extent.skip) * SECTOR;
        let to = from + usize::from(extent.sectors) * SECTOR;
        let offset = usize_of(sector - start) * SECTOR;
        fetched[at].read(|data| bufs.put_at(offset, &data[from..to]));
    }
}

impl Requests {
    /// The data of extents, checked. `None` if a segment of them has gone.
    pub(crate) async fn fetch(&self, wanted: &[StoredExtent]) -> Result<Option<Fetched>, Status> {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let fetches = merge(&wanted);
        let requests: Vec<Pending<'_, _>> = fetches
            .iter()
            .map(|fetch| -> Pending<'_, _> { Box::pin(self.fetch_range(*fetch)) })
            .collect();
        let mut ranges = Vec::with_capacity(fetches.len());
        for (fetch, bytes) in fetches.iter().zip(join_all(requests).await) {
            let Some(bytes) = bytes else { return Ok(None) };
            ranges.push((*fetch, bytes));
        }
        let mut fetched = Fetched::new();
        let mut ranges = ranges.into_iter();
        let mut range = ranges.next();
        for extent in wanted {
            while range.as_ref().is_some_and(|(fetch, _)| !fetch.has(&extent)) {
                range = ranges.next();
            }
            let (fetch, bytes) = range.as_ref().expect("each extent lies in a fetch");
            let data = bytes.read(|bytes| {
                let data = bytes.get(fetch.bytes_of(&extent))?;
                // OV-RD1
                let is_right = checksum(data) == extent.crc;
                (is_right || self.planted.is(Fault::SkipChecksum)).then(|| Buf::copy_of(data))
            });
            fetched.insert(extent, data.ok_or(Status::Checksum)?);
        }
        Ok(Some(fetched))
    }

    async fn fetch_range(&self, fetch: Fetch) -> Option<Buf> {
        let name = place_name(SEGMENTS, fetch.place);
        loop {
            match self.get(&name, fetch.byte_range()).await {
                Ok(data) => return data,
                Err(denial) => self.wait_out(denial).await,
            }
        }
    }
}

impl Fetch {
    pub(crate) fn has(&self, extent: &StoredExtent) -> bool {
        let (start, end) = range_of(extent);
        self.place == extent.place && self.start <= start && end <= self.end
    }

    /// Bytes of the request.
    pub(crate) fn bytes(&self) -> u64 {
        (self.end - self.start) * SECTOR as u64
    }

    /// Its bytes in the object.
    pub(crate) fn byte_range(&self) -> Range<u64> {
        self.start * SECTOR as u64..self.end * SECTOR as u64
    }

    /// The bytes of an extent in those that it fetches.
    pub(crate) fn bytes_of(&self, extent: &StoredExtent) -> Range<usize> {
        let (start, end) = range_of(extent);
        usize_of(start - self.start) * SECTOR..usize_of(end - self.start) * SECTOR
    }
}

fn range_of(extent: &StoredExtent) -> (u64, u64) {
    let start = u64::from(extent.at);
    (start, start + u64::from(extent.sectors))
}

impl Fetch {
    /// Whether one more extent makes it a request that is cheaper than two.
    fn may_take(&self, extent: &StoredExtent) -> bool {
        let (start, end) = range_of(extent);
        self.place == extent.place
            && start >= self.start
            && start <= self.end + GAP_BYTES_MAX / SECTOR as u64
            && end.saturating_sub(self.start) <= FETCH_BYTES_MAX / SECTOR as u64
    }
}

/// Whether an extent lies at most a gap behind another one.
pub(crate) fn may_join(last: &StoredExtent, next: &StoredExtent) -> bool {
    let (start, end) = range_of(last);
    Fetch { place: last.place, start, end }.may_take(next)
}

/// Merges neighbours, which are sorted, into requests.
pub(crate) fn merge(extents: &[StoredExtent]) -> Vec<Fetch> {
    let mut fetches: Vec<Fetch> = Vec::new();
    for extent in extents {
        let (start, end) = range_of(extent);
        match fetches.last_mut() {
            Some(last) if last.may_take(extent) => last.end = last.end.max(end),
            Some(_) | None => fetches.push(Fetch { place: extent.place, start, end }),
        }
    }
    fetches
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("sectors of a request fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_segment_are_fetched_together() {
        let extent = |sequence, at, sectors| StoredExtent {
            place: Place::new(1, sequence),
            at,
            sectors,
            crc: 0,
        };
        let extents = [
            extent(1, 1, 8),
            extent(1, 9, 8),
            extent(1, 100, 8),
            extent(1, 300, 8),
            extent(2, 1, 8),
        ];
        let fetch = |sequence, start, end| Fetch { place: Place::new(1, sequence), start, end };
        assert_eq!(merge(&extents), [fetch(1, 1, 108), fetch(1, 300, 308), fetch(2, 1, 9)]);
    }
}
