// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Merge: a leaf whose block is larger than a sector, as a device that takes sectors.
//!
//! ```text
//!   read     |....rrrr|rrrrrrrr|rr......|   whole blocks are read, the sectors are copied out
//!   write    |....wwww|wwwwwwww|ww......|   the blocks at the edges are read, one write follows
//!   zeroes   |....zzzz|zzzzzzzz|zz......|   the edges are merged, what lies between is zeroed
//!   discard  |........|dddddddd|........|   the edges stay as they are
//!
//!   merge:  line ─▶ turn ─▶ changes in flight end ─▶ read ─▶ put the sectors in ─▶ write ─▶ leave
//! ```
//!
//! All who write to the file or the export go through one instance: it belongs to the open leaf.
//! An engine on another core may have a leaf of its own on the same file, without merges: its
//! sectors are its own (DM-O1, DM-O2) and are whole blocks.
//!
//! Invariants
//! - QU-ML1 From before a merge reads its blocks until its write has ended, no other change of them
//!   is with the leaf: those in flight before it are waited for, those that come later wait in
//!   line. So no sector of another write is put back.
//! - QU-ML2 Who is in the line waits only for those that came before, so nobody waits for ever.
//! - QU-ML3 A merge writes the neighbours as it has read them: a crash that tears the write at a
//!   sector harms none. Its error, of a read or of the write, is that of the small request.
//! - QU-ML4 What waits or merges is in flight for [`MergingLeaf::quiesced`], and keeps the leaf
//!   open.
//!
//! Cost of a merge: a read of one or two blocks, at once, before the write. A request of whole
//! blocks tests one word. Of a request in flight that overlaps a merge all that was in flight with
//! it is waited for, too: that is rare, and the leaf need not tell of each end.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{
    Base, Bio, BlockDevice, Buf, Bufs, Limits, LocalFuture, OnIoError, Op, Planted, SECTOR_SIZE,
    Sector, Status,
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

/// Changes of blocks that wait or merge, in the order in which they came. As many as there are bios
/// at most.
#[derive(Default)]
struct Line {
    entries: Vec<(u64, Range<Sector>)>,
    next: u64,
}

impl Line {
    /// Whether one of those before `turn` has some of these sectors.
    fn has_before(&self, turn: u64, sectors: &Range<Sector>) -> bool {
        let before = self.entries.iter().take_while(|(nth, _)| *nth < turn);
        before.into_iter().any(|(_, other)| overlap(other, sectors))
    }
}

fn overlap(a: &Range<Sector>, b: &Range<Sector>) -> bool {
    a.start < b.end && b.start < a.end
}

struct Shared<D> {
    /// Bits of a sector or a length that a bio must have clear to go straight to the leaf: those
    /// below a block, and all while anybody is in the line.
    mask: Cell<u64>,
    leaf: D,
    limits: Limits,
    block: Sector,
    line: RefCell<Line>,
    left: WaitList,
    /// QU-ML4.
    held: QuiesceCounter,
    planted: Cell<Planted<Fault>>,
}

/// A leaf with larger blocks as a device that takes sectors. See the module.
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
            limits,
            block,
            line: RefCell::default(),
            left: WaitList::new(),
            held: QuiesceCounter::default(),
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
            return self.submit_beside(sector, bio);
        }
        self.0.leaf.submit_at(sector, bio);
    }

    /// What the mask stops: parts of blocks, and all while anybody is in the line.
    #[cold]
    fn submit_beside(&self, sector: Sector, bio: Bio) {
        let shared = &self.0;
        let sectors = shared.blocks_of(sector..sector + bio.len);
        let is_whole = sectors == (sector..sector + bio.len);
        let waits = || shared.line.borrow().has_before(u64::MAX, &sectors);
        let goes = is_whole && (!bio.op.is_write() || !waits() || shared.is(Fault::NoRangeLock));
        if goes || !shared.takes(&bio) {
            return shared.leaf.submit_at(sector, bio);
        }
        let generation = shared.held.enter();
        let shared = shared.clone();
        if bio.op == Op::Read {
            spawn(async move {
                let status = shared.read(sector, &bio).await;
                bio.complete(status.into());
                shared.held.leave(generation);
            });
            return;
        }
        let turn = Turn::take(&shared, sectors);
        spawn(async move {
            turn.comes().await;
            if is_whole {
                shared.leaf.submit_at(sector, bio);
                // QU-ML1: from here on it is in flight.
                drop(turn);
            } else {
                let status = shared.change(&turn, sector, &bio).await;
                drop(turn);
                bio.complete(status.into());
            }
            shared.held.leave(generation);
        });
    }
}

/// A place in the line.
struct Turn<D> {
    shared: Rc<Shared<D>>,
    nth: u64,
    sectors: Range<Sector>,
}

impl<D> Turn<D> {
    fn take(shared: &Rc<Shared<D>>, sectors: Range<Sector>) -> Turn<D> {
        let mut line = shared.line.borrow_mut();
        let nth = line.next;
        line.next += 1;
        line.entries.push((nth, sectors.clone()));
        shared.mask.set(u64::MAX);
        Turn { shared: shared.clone(), nth, sectors }
    }

    /// Waits for those that came before (QU-ML2).
    async fn comes(&self) {
        let (line, nth) = (&self.shared.line, self.nth);
        let free = || !line.borrow().has_before(nth, &self.sectors);
        if !self.shared.is(Fault::NoRangeLock) {
            self.shared.left.wait_for(free).await;
        }
    }
}

impl<D> Drop for Turn<D> {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        let mut line = self.shared.line.borrow_mut();
        line.entries.retain(|(nth, _)| *nth != self.nth);
        if line.entries.is_empty() {
            self.shared.mask.set(self.shared.block.0 - 1);
        }
        drop(line);
        self.shared.left.wake_all();
    }
}

impl<D> Shared<D> {
    fn is(&self, fault: Fault) -> bool {
        self.planted.get().is(fault)
    }

    fn down(&self, at: Sector) -> Sector {
        Sector(at.0 & !(self.block.0 - 1))
    }

    fn up(&self, at: Sector) -> Sector {
        self.down(at + (self.block - Sector(1)))
    }

    /// The whole blocks that hold these sectors.
    fn blocks_of(&self, sectors: Range<Sector>) -> Range<Sector> {
        self.down(sectors.start)..self.up(sectors.end)
    }
}

impl<D: BlockLeaf> Shared<D> {
    /// What the leaf refuses whatever its range is, it is to refuse itself.
    fn takes(&self, bio: &Bio) -> bool {
        let knows = match bio.op {
            Op::Read | Op::Write | Op::Flush => true,
            Op::Discard => self.limits.discard_granularity_bytes > 0,
            Op::WriteZeroes => self.limits.write_zeroes,
        };
        knows && bio.check_bufs().is_ok()
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

    /// A change that is not of whole blocks, whose turn it is.
    async fn change(&self, turn: &Turn<D>, sector: Sector, bio: &Bio) -> Result<(), Status> {
        let (start, end) = (sector, sector + bio.len);
        let (from, to) = (self.up(start), self.down(end));
        // QU-ML1.
        if self.leaf.is_changing(&turn.sectors) && !self.is(Fault::IgnoreInFlight) {
            self.leaf.stats().requests().quiesced().await;
        }
        match bio.op {
            Op::Write => self.merge(bio, start..end, |out| bio.bufs.copy_to(out)).await,
            Op::Discard if from < to => self.send(bio, bio.op, from..to, Bufs::new()).await,
            Op::Discard => Ok(()),
            Op::WriteZeroes if from > to => self.merge(bio, start..end, |out| out.fill(0)).await,
            Op::WriteZeroes => {
                if start < from {
                    self.merge(bio, start..from, |out| out.fill(0)).await?;
                }
                if from < to {
                    self.send(bio, bio.op, from..to, Bufs::new()).await?;
                }
                if to < end {
                    self.merge(bio, to..end, |out| out.fill(0)).await?;
                }
                Ok(())
            }
            Op::Read | Op::Flush => unreachable!("they change nothing"),
        }
    }

    /// Reads the blocks at the edges of `part`, puts in what `fill` gives, and writes all.
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
        self.0.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        let bits = bio.sector.0 | bio.len.0;
        match self.0.limits.check_range(&bio) {
            Ok(()) => self.enter(bits, bio.sector, bio),
            // It counts what it refuses.
            Err(_) => self.0.leaf.submit(bio),
        }
    }

    fn identity(&self) -> Option<String> {
        self.0.leaf.identity()
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
            self.0.held.quiesced().await;
            self.0.leaf.stats().requests().quiesced().await;
        })
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

    fn merges(&self) -> bool {
        true
    }

    fn file(&self) -> Option<FileId> {
        self.0.leaf.file()
    }

    fn share(&self) -> Option<SharedLeaf> {
        self.0.leaf.share()
    }
}

impl<D: BlockLeaf> fmt::Debug for MergingLeaf<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.0.line.borrow().entries.len();
        write!(f, "MergingLeaf({}, {waiting} in line)", self.0.leaf.name())
    }
}

#[cfg(test)]
mod tests;
