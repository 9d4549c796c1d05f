// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fill: reads missing pages from the device below into folios.
//!
//! Several tasks that need a missing page wait for one read of it. A task takes the pins of all its
//! folios at once or none, so that tasks never wait for memory that other waiting tasks hold.
use std::ops::Range;

use block::{Bufs, Class, Flags, Op, PAGE, SECTOR_SHIFT, Sector, Status};
use reactor::BioFuture;
use smallvec::{SmallVec, smallvec};

use crate::folio::Folio;
use crate::folio_map::FolioId;
use crate::pins::Pins;
use crate::store::Store;
use crate::units::{PAGE_SECTORS, to_usize};
use crate::writeback::Writeback;

/// Runs of pages, each of one folio, that follow one another on the device.
type Runs = SmallVec<[(FolioId, Range<u32>); 1]>;

/// Pages that are to be read from below in one read.
struct Missing {
    /// The first of them.
    first: u64,
    runs: Runs,
    bufs: Bufs,
}

impl Missing {
    /// Whether `count` pages from `at` on join it, in a read of at most `pages_max`.
    fn is_joined_by(&self, at: u64, count: usize, pages_max: u64) -> bool {
        let so_far = (self.bufs.len_bytes() / PAGE) as u64;
        at == self.first + so_far && so_far + count as u64 <= pages_max
    }
}

/// A read of the device below, and the pages that it fills.
struct Fill {
    runs: Runs,
    read: BioFuture,
}

/// What a task does when there is no memory for the pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoMemory {
    /// Waits until there is.
    Wait,
    /// Fails: reading ahead is not worth waiting.
    Fail,
}

/// Makes all of `pages` up to date, in folios that stay until the pins are dropped.
pub(crate) async fn bring_in<'a>(
    store: &'a Store,
    writeback: &Writeback,
    pages: Range<u64>,
    class: Class,
    no_memory: NoMemory,
) -> Result<Pins<'a>, Status> {
    loop {
        store.discards.wait_for(&pages, &store.changed).await;
        let Some(pins) = make_folios(store, &pages) else {
            match no_memory {
                NoMemory::Fail => return Err(Status::NoSpace),
                NoMemory::Wait => writeback.wait_for_memory(store).await?,
            }
            continue;
        };
        fill(store, &pins, &pages, class).await?;
        if is_uptodate(store, &pins, &pages) {
            return Ok(pins);
        }
        // Other tasks read some of the pages: their read may succeed, or fail and be repeated here.
        store.changed.wait_for(|| !is_being_read(store, &pins, &pages)).await;
        if is_uptodate(store, &pins, &pages) {
            return Ok(pins);
        }
    }
}

/// Folios for all of `pages`, pinned; `None`, and none made, when there is no memory.
fn make_folios<'a>(store: &'a Store, pages: &Range<u64>) -> Option<Pins<'a>> {
    let mut pins = Pins::none(store);
    let mut at = pages.start;
    while at < pages.end {
        let found = store.folios.borrow().find(at);
        let id = match found {
            Some(id) => id,
            None => {
                let end = store.folios.borrow().free_to(at, pages.end);
                let Some(id) = store.make_folio(at, end) else {
                    pins.undo();
                    return None;
                };
                id
            }
        };
        at = pins.add(id);
    }
    Some(pins)
}

fn is_uptodate(store: &Store, pins: &Pins<'_>, pages: &Range<u64>) -> bool {
    all_of(store, pins, |folio| folio.uptodate.all_in(&folio.inside(pages)))
}

fn is_being_read(store: &Store, pins: &Pins<'_>, pages: &Range<u64>) -> bool {
    !all_of(store, pins, |folio| !folio.reading.any_in(&folio.inside(pages)))
}

fn all_of(store: &Store, pins: &Pins<'_>, holds: impl Fn(&Folio) -> bool) -> bool {
    let folios = store.folios.borrow();
    pins.folios().iter().all(|id| holds(folios.folio(*id)))
}

/// Reads what is neither up to date nor being read. `pins` has the folios of all `pages`.
async fn fill(
    store: &Store,
    pins: &Pins<'_>,
    pages: &Range<u64>,
    class: Class,
) -> Result<(), Status> {
    let missing = take_missing(store, pins, pages);
    if missing.is_empty() {
        return Ok(());
    }
    let fills: SmallVec<[Fill; 2]> =
        missing.into_iter().map(|missing| read_below(store, missing, class)).collect();
    let mut worst = Status::Ok;
    for Fill { runs, read } in fills {
        let status = read.await;
        let mut folios = store.folios.borrow_mut();
        for (id, run) in runs {
            let folio = folios.folio_mut(id);
            folio.reading.clear(&run);
            if status.is_ok() {
                folio.uptodate.set(&run);
            }
            folio.pins -= 1;
        }
        worst = worst.worst(status.into());
    }
    store.changed.wake_all();
    worst.ok()
}

/// The pages that are neither up to date nor being read. They are being read from now on, with a
/// pin for each run.
fn take_missing(store: &Store, pins: &Pins<'_>, pages: &Range<u64>) -> SmallVec<[Missing; 2]> {
    let pages_max = (u64::from(store.limits.max_io_bytes) / PAGE as u64).max(1);
    let mut all = SmallVec::<[Missing; 2]>::new();
    let mut folios = store.folios.borrow_mut();
    for id in pins.folios().iter().copied() {
        let folio = folios.folio_mut(id);
        let inside = folio.inside(pages);
        while let Some(run) = folio.next_to_read(inside.clone()) {
            folio.reading.set(&run);
            folio.pins += 1;
            let (at, slice) = (folio.start + u64::from(run.start), folio.slice(&run));
            match all.last_mut().filter(|m| m.is_joined_by(at, run.len(), pages_max)) {
                Some(before) => {
                    before.bufs.push(slice);
                    before.runs.push((id, run));
                }
                None => {
                    let (runs, bufs) = (smallvec![(id, run)], slice.into());
                    all.push(Missing { first: at, runs, bufs });
                }
            }
        }
    }
    all
}

fn read_below(store: &Store, missing: Missing, class: Class) -> Fill {
    let Missing { first, runs, bufs } = missing;
    let at = Sector(first * PAGE_SECTORS);
    let room = to_usize((store.limits.capacity - at).bytes());
    let bufs = if bufs.len_bytes() > room { bufs.slice(0..room) } else { bufs };
    let len = Sector((bufs.len_bytes() >> SECTOR_SHIFT) as u64);
    let flags = Flags::empty();
    let read = reactor::io_by(store.opener, &*store.below, Op::Read, flags, class, (at, len), bufs);
    Fill { runs, read }
}
