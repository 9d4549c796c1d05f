// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-back: reads pages that were written back from the backing device, and checks them.
//!
//! ```text
//!   pages of a bio ─▶ sorted by block ─▶ runs of neighbours ─▶ one read each ─▶ check ─▶ bio
//!                                          │ a reader that goes block by block
//!                                          └─▶ an extent is read ahead ─▶ cache
//! ```
//!
//! A page stays on the device after a read.
//!
//! Invariants
//! - ZR-RB1 The blocks are pinned before the first `.await`, so none of them is reused before it
//!   was read. A page that is overwritten meanwhile is read as it was: the read and the write were
//!   concurrent.
//! - ZR-RB2 A page is delivered only if it has the checksum of its slot (ZR-Z4).
//! - ZR-RB3 When a read of several blocks fails, each of its pages is read by itself, so an error
//!   is always the page's own.
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Bufs, Class, Status};
use reactor::{BioFuture, read};
use smallvec::SmallVec;

use crate::backing::{Address, Backing, Cached, EXTENT_BLOCKS};
use crate::failures::FailureKind;
use crate::pack::verify;
use crate::part::Part;
use crate::planted::Fault;
use crate::read::BackedPages;
use crate::slot::PAGE;

/// A page to read: its slot, where it goes, where it is.
#[derive(Clone, Copy)]
struct Page {
    nth: u32,
    to: usize,
    at: Address,
    /// The blocks in which it lies.
    first: u32,
    end: u32,
}

/// Whether each page of a run was delivered.
type Delivered = SmallVec<[bool; 32]>;

/// Where a run's bytes come from.
enum Source {
    /// A read of its own, to the bio's buffers.
    Direct(BioFuture),
    /// A read of its own.
    Copied(BioFuture, Buf),
    /// A read of more, to the cache.
    Ahead(BioFuture, u64),
    /// The cache has it, or another read is filling it.
    Cached,
}

/// Pages that lie one after the other.
struct Run {
    pages: Range<usize>,
    blocks: Range<u32>,
    source: Source,
}

/// Why a page could not be read.
enum Failure {
    Device(Status),
    Check(String),
}

impl Part {
    /// Reads pages from the backing device to `bufs`.
    pub(crate) async fn read_back(self: &Rc<Self>, wanted: &BackedPages, bufs: &Bufs) -> Status {
        let backing = self.backing.as_ref().expect("there is one: pages are on it");
        let space = backing.space();
        let _pin = (!space.is_planted(Fault::ReadUnpinned)).then(|| space.pin()); // ZR-RB1
        let mut pages: SmallVec<[Page; 8]> =
            wanted.iter().map(|w| self.locate(backing, w)).collect();
        pages.sort_unstable_by_key(|page| page.at.0);
        let mut worst = Status::Ok;
        let mut read = 0;
        for run in runs_of(backing, &pages, bufs) {
            let some = &pages[run.pages.clone()];
            let delivered = self.finish_run(backing, run, some, bufs).await;
            for (page, delivered) in some.iter().zip(delivered) {
                let page_read = if delivered {
                    Ok(())
                } else {
                    self.read_alone(backing, page, bufs).await // ZR-RB3
                };
                match page_read {
                    Ok(()) => read += 1,
                    Err(why) => {
                        worst = Status::Io;
                        bufs.put_at(page.to, &[0; PAGE]);
                        self.read_failed(backing, page, &why);
                    }
                }
            }
        }
        self.counters.bd_reads.add(read);
        worst
    }

    fn locate(&self, backing: &Backing, &(nth, to): &(u32, usize)) -> Page {
        let slot = self.slot(nth);
        let at = Address(slot.place);
        let blocks = backing.blocks_at(at, slot.size());
        Page { nth, to, at, first: blocks.start, end: blocks.end }
    }

    /// Waits for a run and delivers its pages. Returns which of them were delivered.
    async fn finish_run(
        &self,
        backing: &Backing,
        run: Run,
        pages: &[Page],
        bufs: &Bufs,
    ) -> Delivered {
        let Run { blocks, source, .. } = run;
        let from = |buf: &Buf, at: usize| {
            let deliver = |b: &[u8]| {
                let bytes = |page: &Page| &b[at + (page.first - blocks.start) as usize * PAGE..];
                pages.iter().map(|page| self.deliver(page, bytes(page), bufs).is_ok()).collect()
            };
            buf.read(deliver)
        };
        let none = || pages.iter().map(|_| false).collect();
        match source {
            Source::Direct(read) => match read.await {
                Ok(()) => pages.iter().map(|page| self.is_good(page, bufs)).collect(),
                Err(_) => none(),
            },
            Source::Copied(read, buf) => match read.await {
                Ok(()) => from(&buf, 0),
                Err(_) => none(),
            },
            Source::Ahead(read, extent) => {
                backing.cache().end(extent, read.await.is_ok());
                match backing.cache().find(&blocks) {
                    Cached::Ready(buf, at) => from(&buf, at),
                    Cached::Loading | Cached::Missing => none(),
                }
            }
            Source::Cached => {
                backing.cache().wait(&blocks).await;
                match backing.cache().find(&blocks) {
                    Cached::Ready(buf, at) => from(&buf, at),
                    Cached::Loading | Cached::Missing => none(),
                }
            }
        }
    }

    /// Whether a raw page in the bio's buffers has the right checksum (ZR-RB2).
    fn is_good(&self, page: &Page, bufs: &Bufs) -> bool {
        let scratch = &mut self.codecs.borrow_mut().page;
        bufs.take_at(page.to, scratch);
        format::checksum(scratch) == page.at.page_check() || self.skips_checksums()
    }

    /// Checks a page that begins in the first block of `bytes` and copies it to the bio's buffers.
    fn deliver(&self, page: &Page, bytes: &[u8], bufs: &Bufs) -> Result<(), Failure> {
        if !self.is_packed() {
            let bytes = &bytes[..PAGE];
            if format::checksum(bytes) != page.at.page_check() && !self.skips_checksums() {
                return Err(Failure::Check("checksum mismatch: the page is torn or rotten".into()));
            }
            bufs.put_at(page.to, bytes);
            return Ok(());
        }
        let blocks = (page.end - page.first) as usize * PAGE;
        let found = verify(&bytes[page.at.offset()..blocks], page.nth, page.at.object_check())
            .map_err(|damaged| Failure::Check(damaged.to_string()))?;
        let mut scratch = std::mem::take(&mut self.codecs.borrow_mut().page);
        let unpacked = self.unpack(found.priority, found.bytes, &mut scratch);
        if unpacked.is_ok() {
            bufs.put_at(page.to, &scratch);
        }
        self.codecs.borrow_mut().page = scratch;
        unpacked.map_err(|_| Failure::Check("its object does not decompress".into()))
    }

    /// Reads one page by itself.
    async fn read_alone(&self, backing: &Backing, page: &Page, bufs: &Bufs) -> Result<(), Failure> {
        let (space, buf) = (backing.space(), Buf::alloc((page.end - page.first) as usize * PAGE));
        read(space.device(), Class::Foreground, space.sector(page.first), buf.all().into())
            .await
            .map_err(Failure::Device)?;
        buf.read(|bytes| self.deliver(page, bytes, bufs))
    }

    fn skips_checksums(&self) -> bool {
        self.backing.as_ref().is_some_and(|b| b.space().is_planted(Fault::SkipPageChecksum))
    }

    fn is_packed(&self) -> bool {
        self.backing.as_ref().is_some_and(Backing::is_packed)
    }

    fn read_failed(&self, backing: &Backing, page: &Page, why: &Failure) {
        self.counters.failed_reads.add(1);
        let (slot, block) = (self.global(page.nth), backing.space().block_of_device(page.first));
        let why = match why {
            Failure::Device(status) => status.to_string(),
            Failure::Check(what) => what.clone(),
        };
        let what = format!("slot {slot}: read-back of block {block}: {why}");
        self.note_failure(FailureKind::ReadBack, what);
    }
}

/// Divides pages into runs, and begins to read them all.
fn runs_of(backing: &Backing, pages: &[Page], bufs: &Bufs) -> SmallVec<[Run; 2]> {
    let mut runs = SmallVec::new();
    let mut from = 0;
    while let Some(first) = pages.get(from) {
        let mut blocks = first.first..first.end;
        let mut to = from + 1;
        while let Some(page) = pages.get(to)
            && page.first <= blocks.end
            && page.end - blocks.start <= backing.batch_blocks(u32::MAX)
        {
            blocks.end = page.end;
            to += 1;
        }
        let source = begin(backing, &pages[from..to], &blocks, bufs);
        runs.push(Run { pages: from..to, blocks, source });
        from = to;
    }
    runs
}

/// Begins to read a run.
fn begin(backing: &Backing, pages: &[Page], blocks: &Range<u32>, bufs: &Bufs) -> Source {
    let (space, cache) = (backing.space(), backing.cache());
    let get =
        |first: u32, to: Bufs| read(space.device(), Class::Foreground, space.sector(first), to);
    let is_sequential = cache.is_sequential(blocks);
    if !matches!(cache.find(blocks), Cached::Missing) {
        return Source::Cached;
    }
    let ahead = if is_sequential { live_from(backing, blocks.start) } else { 0 };
    if ahead > blocks.end - blocks.start
        && let Some((extent, buf)) = cache.begin(blocks.start, ahead)
    {
        return Source::Ahead(get(blocks.start, buf.all().into()), extent);
    }
    if backing.is_packed() {
        let buf = Buf::alloc((blocks.end - blocks.start) as usize * PAGE);
        return Source::Copied(get(blocks.start, buf.all().into()), buf);
    }
    let mut to = Bufs::new();
    let mut rest = pages;
    while let Some(first) = rest.first() {
        // Pages that are also neighbours in the bio.
        let here = (0..).zip(rest).take_while(|(n, p)| p.to == first.to + n * PAGE).count();
        bufs.slice(first.to..first.to + here * PAGE).iter().for_each(|s| to.push(s.clone()));
        rest = &rest[here..];
    }
    Source::Direct(get(blocks.start, to))
}

/// How many blocks from `first` on are live, up to one extent.
fn live_from(backing: &Backing, first: u32) -> u32 {
    let blocks = backing.space().blocks();
    let end = blocks.count().min(first.saturating_add(EXTENT_BLOCKS));
    (first..end).find(|block| !blocks.is_live(*block)).unwrap_or(end) - first
}
