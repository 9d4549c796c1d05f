// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `MergingLeaf`: a leaf whose blocks are larger than a sector, as a device that takes sectors.
//!
//! ```text
//!   read     |....rrrr|rrrrrrrr|rr......|   whole blocks are read, the sectors are copied out
//!   write    |....wwww|wwwwwwww|ww......|   the blocks at the edges are read, one write follows
//!   zeroes   |....zzzz|zzzzzzzz|zz......|   the edges are merged, the whole blocks are zeroed
//!   discard  |........|dddddddd|........|   the edges stay as they are
//!
//!   merge:  lock the blocks ─▶ changes in flight end ─▶ read ─▶ put sectors in ─▶ write ─▶ unlock
//! ```
//!
//! All writers of a file or an export use one instance, which belongs to the open leaf. An engine
//! on another core may have a leaf of its own on the same file, without merges: its sectors belong
//! to it alone (DM-O1, DM-O2) and are whole blocks.
//!
//! Invariants
//! - QU-ML1 From before a merge reads its blocks until its write has ended, the leaf has no other
//!   change of these blocks: the merge waits for those in flight, and later ones wait for their
//!   lock. So no merge writes back an old version of another write's sector.
//! - QU-ML2 A change waits only for changes that came before it, so none waits for ever.
//! - QU-ML3 A merge writes the neighbours as it has read them: a crash that tears the write at a
//!   sector harms none. An error of its read or its write is the error of the small request.
//! - QU-ML4 A change that waits or merges is in flight for [`MergingLeaf::quiesced`], and keeps the
//!   leaf open.
//!
//! Cost of a merge: a read of one or two blocks before the write; the two reads are sent together.
//! A request of whole blocks tests one word. When a request in flight overlaps a merge, the merge
//! waits for everything that is in flight with it: that is rare, and the leaf need not report each
//! end.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{
    Backing, Base, Bio, BlockDevice, Buf, Bufs, Edges, Limits, LocalFuture, LostWrites, OnIoError,
    Op, Planted, SECTOR_SIZE, Sector, Status, ZeroRuns, block_end, block_start,
};
use reactor::{BioFuture, FileId, QuiesceCounter, WaitList, io_by, spawn};

use crate::leaf::{Leaf, SharedLeaf};
use crate::planted::Fault;
use crate::stats::Stats;
use crate::wbt::Wbt;

/// A leaf that takes whole blocks only.
pub trait BlockLeaf: Leaf {
    /// Whether a change of any of these sectors was submitted and has not ended.
    fn is_changing(&self, sectors: &Range<Sector>) -> bool;
}

/// A range lock: the changes of blocks that wait or merge, in the order in which they came. At most
/// as many as there are bios.
#[derive(Default)]
struct RangeLocks {
    entries: Vec<(u64, Range<Sector>)>,
    next: u64,
}

impl RangeLocks {
    /// Whether a lock before the `nth` has some of these sectors.
    fn overlap_before(&self, nth: u64, sectors: &Range<Sector>) -> bool {
        let before = self.entries.iter().take_while(|(other, _)| *other < nth);
        before.into_iter().any(|(_, other)| overlap(other, sectors))
    }
}

fn overlap(a: &Range<Sector>, b: &Range<Sector>) -> bool {
    a.start < b.end && b.start < a.end
}

struct Shared<D> {
    /// Bits of a sector or a length that a bio must have clear to go straight to the leaf: those
    /// below a block, and all while there is a lock.
    mask: Cell<u64>,
    leaf: D,
    /// Its capacity is that of when it was opened.
    limits: Limits,
    capacity: Cell<Sector>,
    block: Sector,
    locks: RefCell<RangeLocks>,
    unlocked: WaitList,
    /// QU-ML4.
    in_flight: QuiesceCounter,
    planted: Cell<Planted<Fault>>,
}

/// A leaf with larger blocks, as a device that takes sectors.
pub struct MergingLeaf<D>(Rc<Shared<D>>);

impl<D: BlockLeaf + 'static> MergingLeaf<D> {
    /// Whether a leaf with these limits needs merges.
    pub fn is_needed(limits: &Limits) -> bool {
        limits.logical_block_bytes as usize > SECTOR_SIZE
    }

    /// A device on `leaf`.
    pub fn new(leaf: D) -> MergingLeaf<D> {
        let of_leaf = leaf.limits();
        let block_bytes = of_leaf.logical_block_bytes;
        let block = Sector::from_bytes(block_bytes.into());
        let limits = Limits {
            logical_block_bytes: SECTOR_SIZE as u32,
            merge_block_bytes: block_bytes,
            physical_block_bytes: of_leaf.physical_block_bytes.max(block_bytes),
            io_min_bytes: of_leaf.io_min_bytes.max(block_bytes),
            ..of_leaf
        };
        MergingLeaf(Rc::new(Shared {
            mask: Cell::new(block.0 - 1),
            leaf,
            capacity: Cell::new(limits.capacity),
            limits,
            block,
            locks: RefCell::default(),
            unlocked: WaitList::new(),
            in_flight: QuiesceCounter::default(),
            planted: Cell::default(),
        }))
    }

    /// The leaf, which takes whole blocks only.
    pub fn leaf(&self) -> &D {
        &self.0.leaf
    }

    /// `bits` are those of the sector and the length.
    #[inline]
    fn enter(&self, bits: u64, sector: Sector, bio: Bio) {
        if bits & self.0.mask.get() != 0 {
            return self.submit_locked(sector, bio);
        }
        self.0.leaf.submit_at(sector, bio);
    }

    /// A bio that the mask stops: parts of blocks, and all bios while there is a lock.
    #[cold]
    fn submit_locked(&self, sector: Sector, bio: Bio) {
        let shared = &self.0;
        let sectors = shared.blocks_of(sector..sector + bio.len);
        let is_whole = sectors == (sector..sector + bio.len);
        let waits = || shared.locks.borrow().overlap_before(u64::MAX, &sectors);
        let passes = is_whole && (!bio.op.is_write() || !waits() || shared.is(Fault::NoRangeLock));
        if passes || !shared.accepts(&bio) {
            return shared.leaf.submit_at(sector, bio);
        }
        let generation = shared.in_flight.enter();
        let shared = shared.clone();
        if bio.op == Op::Read {
            spawn(async move {
                let status = shared.read(sector, &bio).await;
                bio.complete(status.into());
                shared.in_flight.leave(generation);
            });
            return;
        }
        let lock = RangeLock::new(&shared, sectors);
        spawn(async move {
            lock.acquire().await;
            if is_whole {
                shared.leaf.submit_at(sector, bio);
                // QU-ML1: from here on it is in flight.
                drop(lock);
            } else {
                let status = shared.change(&lock, sector, &bio).await;
                drop(lock);
                bio.complete(status.into());
            }
            shared.in_flight.leave(generation);
        });
    }
}

/// A lock of some blocks, waited for or owned.
struct RangeLock<D> {
    shared: Rc<Shared<D>>,
    nth: u64,
    sectors: Range<Sector>,
}

impl<D> RangeLock<D> {
    fn new(shared: &Rc<Shared<D>>, sectors: Range<Sector>) -> RangeLock<D> {
        let mut locks = shared.locks.borrow_mut();
        let nth = locks.next;
        locks.next += 1;
        locks.entries.push((nth, sectors.clone()));
        shared.mask.set(u64::MAX);
        RangeLock { shared: shared.clone(), nth, sectors }
    }

    /// Waits for overlapping locks that came before (QU-ML2).
    async fn acquire(&self) {
        let (locks, nth) = (&self.shared.locks, self.nth);
        let free = || !locks.borrow().overlap_before(nth, &self.sectors);
        if !self.shared.is(Fault::NoRangeLock) {
            self.shared.unlocked.wait_for(free).await;
        }
    }
}

impl<D> Drop for RangeLock<D> {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        let mut locks = self.shared.locks.borrow_mut();
        locks.entries.retain(|(nth, _)| *nth != self.nth);
        if locks.entries.is_empty() {
            self.shared.mask.set(self.shared.block.0 - 1);
        }
        drop(locks);
        self.shared.unlocked.wake_all();
    }
}

impl<D> Shared<D> {
    fn is(&self, fault: Fault) -> bool {
        self.planted.get().is(fault)
    }

    /// The whole blocks that hold these sectors.
    fn blocks_of(&self, sectors: Range<Sector>) -> Range<Sector> {
        block_start(sectors.start, self.block.0)..block_end(sectors.end, self.block.0)
    }
}

impl<D: BlockLeaf> Shared<D> {
    /// Whether the leaf accepts such a request, whatever its range is. Others it refuses itself.
    fn accepts(&self, bio: &Bio) -> bool {
        let is_supported = match bio.op {
            Op::Read | Op::Write | Op::Flush => true,
            Op::Discard => self.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => self.limits.write_zeroes,
        };
        is_supported && bio.check_bufs().is_ok()
    }

    /// Sends the leaf a request for whole blocks on behalf of `bio`.
    fn send(&self, bio: &Bio, op: Op, sectors: Range<Sector>, bufs: Bufs) -> BioFuture {
        let mut flags = bio.flags;
        if self.is(Fault::IgnoreFua) {
            flags.remove(block::Flags::FUA);
        }
        let place = (sectors.start, sectors.end - sectors.start);
        io_by(bio.opener, &self.leaf, op, flags, bio.class, place, bufs)
    }

    async fn read(&self, sector: Sector, bio: &Bio) -> Result<(), Status> {
        let sectors = self.blocks_of(sector..sector + bio.len);
        let whole = Buf::alloc(bytes(sectors.end - sectors.start));
        self.send(bio, Op::Read, sectors.clone(), whole.clone().into()).await?;
        let from = bytes(sector - sectors.start);
        whole.read(|data| bio.bufs.copy_from(&data[from..from + bytes(bio.len)]));
        Ok(())
    }

    /// A change that is not of whole blocks; its blocks are locked.
    async fn change(&self, lock: &RangeLock<D>, sector: Sector, bio: &Bio) -> Result<(), Status> {
        let sectors = sector..sector + bio.len;
        // QU-ML1.
        if self.leaf.is_changing(&lock.sectors) && !self.is(Fault::IgnoreInFlight) {
            self.leaf.stats().requests().quiesced().await;
        }
        match bio.op {
            Op::Write => self.merge(bio, sectors, |out| bio.bufs.copy_to(out)).await,
            Op::Discard => {
                let whole = Edges::of(sectors, self.block.0).whole;
                if whole.is_empty() {
                    return Ok(());
                }
                self.send(bio, bio.op, whole, Bufs::new()).await
            }
            Op::WriteZeroes => {
                let Edges { head, whole, tail } = Edges::of(sectors, self.block.0);
                if !head.is_empty() {
                    self.merge(bio, head, |out| out.fill(0)).await?;
                }
                if !whole.is_empty() {
                    self.send(bio, bio.op, whole, Bufs::new()).await?;
                }
                if !tail.is_empty() {
                    self.merge(bio, tail, |out| out.fill(0)).await?;
                }
                Ok(())
            }
            Op::Read | Op::Flush => unreachable!("they change nothing"),
        }
    }

    /// Reads the blocks at the edges of `part`, puts the data of `fill` in, and writes all.
    async fn merge(
        &self,
        bio: &Bio,
        part: Range<Sector>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Status> {
        let sectors = self.blocks_of(part.clone());
        let whole = Buf::alloc(bytes(sectors.end - sectors.start));
        let (head, tail) = (sectors.start, sectors.end - self.block);
        let read = |at: Sector| {
            let first = bytes(at - sectors.start);
            let bufs = whole.slice(first..first + bytes(self.block)).into();
            self.send(bio, Op::Read, at..at + self.block, bufs)
        };
        let of_head = (part.start > head).then(|| read(head));
        let is_read = of_head.is_some() && head == tail;
        let of_tail = (part.end < sectors.end && !is_read).then(|| read(tail));
        let mut status = Ok(());
        for edge in of_head.into_iter().chain(of_tail) {
            status = status.and(edge.await);
        }
        status?;
        let at = bytes(part.start - sectors.start);
        whole.write(|data| fill(&mut data[at..at + bytes(part.end - part.start)]));
        self.send(bio, Op::Write, sectors, whole.into()).await
    }
}

fn bytes(len: Sector) -> usize {
    usize::try_from(len.bytes()).expect("of a request whose data are in memory, and two blocks")
}

impl<D: BlockLeaf + 'static> BlockDevice for MergingLeaf<D> {
    fn name(&self) -> &str {
        self.0.leaf.name()
    }

    fn limits(&self) -> Limits {
        Limits { capacity: self.0.capacity.get(), ..self.0.limits.clone() }
    }

    fn submit(&self, bio: Bio) {
        let bits = bio.sector.0 | bio.len.0;
        match self.0.limits.check_range_within(&bio, self.0.capacity.get()) {
            Ok(()) => self.enter(bits, bio.sector, bio),
            // The leaf refuses it, and counts that.
            Err(_) => self.0.leaf.submit(bio),
        }
    }

    /// Parts of blocks are copied once, and the rest goes to the leaf.
    fn takes_client_memory(&self) -> bool {
        self.0.leaf.takes_client_memory()
    }

    fn is_stale(&self) -> bool {
        self.0.leaf.is_stale()
    }

    fn identity(&self) -> Option<String> {
        self.0.leaf.identity()
    }

    fn backing(&self) -> Option<Backing> {
        self.0.leaf.backing()
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.0.leaf.zero_runs(at, len)
    }

    fn writer_throttled(&self) {
        self.0.leaf.writer_throttled();
    }

    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl<D: BlockLeaf + 'static> Base for MergingLeaf<D> {
    #[inline]
    fn submit_at(&self, sector: Sector, bio: Bio) {
        self.enter(sector.0 | bio.len.0, sector, bio);
    }

    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move {
            self.0.in_flight.quiesced().await;
            self.0.leaf.stats().requests().quiesced().await;
        })
    }

    fn losses(&self) -> Option<Rc<dyn LostWrites>> {
        self.0.leaf.losses()
    }

    fn watch(&self, watcher: Weak<dyn OnIoError>) {
        self.0.leaf.watch(watcher);
    }
}

impl<D: BlockLeaf + 'static> Leaf for MergingLeaf<D> {
    fn stats(&self) -> &Stats {
        self.0.leaf.stats()
    }

    fn wbt(&self) -> Option<&Wbt> {
        self.0.leaf.wbt()
    }

    fn is_read_only(&self) -> bool {
        self.0.leaf.is_read_only()
    }

    fn has_become_read_only(&self) -> bool {
        self.0.leaf.has_become_read_only()
    }

    fn merges(&self) -> bool {
        true
    }

    fn problem(&self) -> Option<String> {
        self.0.leaf.problem()
    }

    fn file(&self) -> Option<FileId> {
        self.0.leaf.file()
    }

    fn has_connection(&self) -> bool {
        self.0.leaf.has_connection()
    }

    fn disconnect(&self) -> LocalFuture<()> {
        self.0.leaf.disconnect()
    }

    fn connect_again(&self) {
        self.0.leaf.connect_again();
    }

    fn set_capacity(&self, capacity: Sector) {
        self.0.leaf.set_capacity(capacity);
        self.0.capacity.set(self.0.leaf.limits().capacity);
    }

    fn share(&self) -> Option<SharedLeaf> {
        self.0.leaf.share()
    }
}

impl<D: BlockLeaf> fmt::Debug for MergingLeaf<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self.0.locks.borrow().entries.len();
        write!(f, "MergingLeaf({}, {locks} locks)", self.0.leaf.name())
    }
}

#[cfg(test)]
mod tests;
