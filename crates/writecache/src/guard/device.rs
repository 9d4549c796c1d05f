// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The origin as its cache sees it: the image in the place of the guard's bytes.
use std::rc::Rc;

use block::runs::{Runs, joined, without};
use block::{Bio, BlockDevice, Bufs, CacheRecord, Limits, Op, Sector, Status, ZeroRuns};
use reactor::{OnDone, spawn};
use smallvec::SmallVec;

use super::{Guard, GuardedRange};
use crate::planted::Fault;

/// An origin and its guard.
pub(crate) struct GuardedOrigin {
    origin: Rc<dyn BlockDevice>,
    guard: Rc<Guard>,
}

/// The sectors that a request and a range have in common, counted from the first sector of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overlap {
    in_bio: usize,
    in_range: usize,
    bytes: usize,
}

impl GuardedRange {
    fn overlap(&self, sector: Sector, len: Sector) -> Option<Overlap> {
        let (begin, end) = (self.range.start, self.range.start + (self.range.bytes / 512) as u64);
        let first = begin.max(sector.0);
        let last = end.min(sector.0.saturating_add(len.0));
        if first >= last {
            return None;
        }
        let bytes = |sectors: u64| usize::try_from(sectors * 512).expect("of one request");
        Some(Overlap {
            in_bio: bytes(first - sector.0),
            in_range: bytes(first - begin),
            bytes: bytes(last - first),
        })
    }
}

impl GuardedOrigin {
    pub(crate) fn new(guard: Rc<Guard>) -> GuardedOrigin {
        GuardedOrigin { origin: guard.place.origin.clone(), guard }
    }

    fn touches_a_range(&self, bio: &Bio) -> bool {
        let ranges = self.guard.ranges.borrow();
        bio.op != Op::Flush && ranges.iter().any(|r| r.overlap(bio.sector, bio.len).is_some())
    }
}

impl BlockDevice for GuardedOrigin {
    fn name(&self) -> &str {
        self.origin.name()
    }

    fn limits(&self) -> Limits {
        self.origin.limits()
    }

    fn is_stale(&self) -> bool {
        self.origin.is_stale()
    }

    fn submit(&self, mut bio: Bio) {
        if self.touches_a_range(&bio) {
            let guard = self.guard.clone();
            return spawn(async move {
                let status = guard.serve(&bio).await;
                bio.complete(status.into());
            });
        }
        if bio.op == Op::Flush {
            bio.done = reactor::chain(bio.done, self.guard.clone(), self.guard.written.get());
        }
        self.origin.submit(bio);
    }

    fn identity(&self) -> Option<String> {
        self.origin.identity()
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        self.origin.clone().cache_record()
    }

    /// What the origin has in a range is not what clients see there: it is left out.
    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let (runs, guard) = (self.origin.zero_runs(at, len), self.guard.clone());
        let mut taken = guard.places();
        Box::pin(async move {
            let runs = runs.await;
            taken.extend(guard.places());
            without(&runs, &joined(taken))
        })
    }

    fn writer_throttled(&self) {
        self.origin.writer_throttled();
    }
}

/// Of flushes of the origin.
impl OnDone for Guard {
    fn on_done(&self, status: Status, written: u64) {
        if status == Status::Ok {
            self.flushed(written);
        } else {
            self.flush_failed();
        }
    }
}

impl Guard {
    /// Serves a request that touched a range when it was submitted.
    async fn serve(&self, bio: &Bio) -> Result<(), Status> {
        bio.check_bufs()?;
        let lock = self.lock().await;
        let touched = self.touched(bio);
        // The rest is as if there were no guard. It comes first: a device may know no zeroes.
        self.serve_rest(bio, &touched).await?;
        let mut outcome = Ok(());
        for (guarded, at) in touched {
            let served = self.serve_range(bio, &guarded, at).await;
            outcome = outcome.and(served);
        }
        drop(lock);
        outcome
    }

    /// Where ranges are guarded.
    fn places(&self) -> Runs {
        let place = |guarded: &Rc<GuardedRange>| {
            let bytes = guarded.range.bytes as u64;
            (Sector(guarded.range.start), Sector::from_bytes(bytes))
        };
        self.ranges.borrow().iter().map(place).collect()
    }

    /// The ranges that a request touches.
    fn touched(&self, bio: &Bio) -> SmallVec<[(Rc<GuardedRange>, Overlap); 2]> {
        let overlaps = |guarded: &Rc<GuardedRange>| {
            guarded.overlap(bio.sector, bio.len).map(|overlap| (guarded.clone(), overlap))
        };
        self.ranges.borrow().iter().filter_map(overlaps).collect()
    }

    /// Passes what lies in no range on to the origin, as one request for each piece.
    async fn serve_rest(
        &self,
        bio: &Bio,
        touched: &[(Rc<GuardedRange>, Overlap)],
    ) -> Result<(), Status> {
        let mut taken: SmallVec<[(usize, usize); 3]> =
            touched.iter().map(|(_, at)| (at.in_bio, at.in_bio + at.bytes)).collect();
        taken.sort_unstable();
        let all = usize::try_from(bio.len.bytes()).map_err(|_| Status::Invalid)?;
        taken.push((all, all));
        let mut begin = 0;
        let mut pieces: SmallVec<[_; 3]> = SmallVec::new();
        for (at, end) in taken {
            if begin < at {
                let place = bio.sector + Sector::from_bytes(begin as u64);
                let len = Sector::from_bytes((at - begin) as u64);
                let bufs = match bio.op {
                    Op::Read | Op::Write => bio.bufs.slice(begin..at),
                    Op::Flush | Op::Discard | Op::WriteZeroes => Bufs::new(),
                };
                let origin = &*self.place.origin;
                pieces.push(reactor::io(origin, bio.op, bio.flags, bio.class, (place, len), bufs));
            }
            begin = end;
        }
        let mut outcome = Ok(());
        for piece in pieces {
            outcome = outcome.and(piece.await);
        }
        outcome
    }

    async fn serve_range(
        &self,
        bio: &Bio,
        guarded: &Rc<GuardedRange>,
        Overlap { in_bio, in_range, bytes }: Overlap,
    ) -> Result<(), Status> {
        let place = in_range..in_range + bytes;
        match bio.op {
            Op::Read => {
                bio.bufs.put_at(in_bio, &guarded.image.borrow()[place]);
                return Ok(());
            }
            Op::Write => bio.bufs.take_at(in_bio, &mut guarded.image.borrow_mut()[place]),
            Op::WriteZeroes | Op::Discard => guarded.image.borrow_mut()[place].fill(0),
            Op::Flush => return Ok(()),
        }
        if self.place.config.planted.is(Fault::ImageNotWritten) {
            return Ok(());
        }
        self.write_image(guarded, bio.flags).await
    }
}
