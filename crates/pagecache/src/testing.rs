// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by the unit tests: a small world, and disks that record requests, hold them back, or
//! refuse them.
#![allow(dead_code, reason = "each test file uses its own part")]
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{Base, Bio, BlockDevice, Buf, Class, Error, Flags, Limits, LocalFuture, OnIoError};
use block::{Op, Opener, PAGE, Sector, Status, Target};
use dm::{Dm, Resolver};
use reactor::{FileId, Generation, OnDone, QuiesceCounter};
use sim::model::Uniform;
use sim::{DiskSpec, Machine, World, WorldRef};

use crate::{Config, PageCache};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MS: u64 = 1_000_000;

/// A request of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskRequest {
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) class: Class,
    /// Sectors of the disk.
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) segments: usize,
    /// When, in milliseconds.
    pub(crate) at_ms: u64,
    /// Requests of all disks that came before it.
    pub(crate) order: u64,
}

/// A disk of the world that can be made to fail or to wait.
pub(crate) struct Probe {
    disk: Rc<dyn BlockDevice>,
    limits: Limits,
    seen: RefCell<Vec<DiskRequest>>,
    /// Writes that touch these sectors fail, at once.
    pub(crate) bad: RefCell<Vec<Range<u64>>>,
    pub(crate) flushes_fail: Cell<bool>,
    pub(crate) discards_fail: Cell<bool>,
    /// Writes wait for `release`.
    pub(crate) hold: Cell<bool>,
    /// So do these.
    pub(crate) hold_ops: RefCell<Vec<Op>>,
    held: RefCell<Vec<(Sector, Bio)>>,
    count: Rc<Count>,
    order: Rc<Cell<u64>>,
}

#[derive(Default)]
struct Count(QuiesceCounter);

impl OnDone for Count {
    fn on_done(&self, _status: Status, tag: u64) {
        self.0.leave(Generation::from_tag(tag));
    }
}

impl Probe {
    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<DiskRequest> {
        self.seen.take()
    }

    /// The writes since the last call, in pages.
    pub(crate) fn take_writes(&self) -> Vec<Range<u64>> {
        let writes = self.take().into_iter().filter(|s| s.op == Op::Write);
        writes.map(|s| s.from / 8..s.to / 8).collect()
    }

    /// Writes that wait.
    pub(crate) fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Sends the request that has waited for longest; later ones still wait.
    pub(crate) fn release_first(&self) {
        let (sector, bio) = self.held.borrow_mut().remove(0);
        self.go(sector, bio);
    }

    /// Fails the flush that waits, and no later one.
    pub(crate) fn fail_held_flush(&self) {
        assert_eq!(self.held.borrow()[0].1.op, Op::Flush);
        self.flushes_fail.set(true);
        self.release_first();
        self.flushes_fail.set(false);
    }

    pub(crate) fn release(&self) {
        self.hold.set(false);
        self.hold_ops.borrow_mut().clear();
        for (sector, bio) in self.held.take() {
            self.go(sector, bio);
        }
    }

    fn go(&self, sector: Sector, bio: Bio) {
        let (from, to) = (sector.0, sector.0 + bio.len.0);
        let bad = self.bad.borrow().iter().any(|b| b.start < to && from < b.end);
        match bio.op {
            Op::Write if bad => bio.complete(Status::Io),
            Op::Flush if self.flushes_fail.get() => bio.complete(Status::Timeout),
            Op::Discard if self.discards_fail.get() => bio.complete(Status::Io),
            Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                self.disk.submit(Bio { sector, ..bio });
            }
        }
    }
}

impl BlockDevice for Probe {
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn limits(&self) -> Limits {
        self.limits.clone()
    }
    fn submit(&self, bio: Bio) {
        match self.limits.check(&bio) {
            Ok(()) => self.submit_at(bio.sector, bio),
            Err(status) => bio.complete(status),
        }
    }
    fn as_base(self: Rc<Self>) -> Option<Rc<dyn Base>> {
        Some(self)
    }
}

impl Base for Probe {
    fn submit_at(&self, sector: Sector, bio: Bio) {
        assert!(sector + bio.len <= self.limits.capacity, "{bio:?} at {sector}");
        let Bio { op, flags, class, len, ref bufs, .. } = bio;
        self.seen.borrow_mut().push(DiskRequest {
            op,
            flags,
            class,
            from: sector.0,
            to: sector.0 + len.0,
            segments: bufs.count(),
            at_ms: reactor::now().0 / MS,
            order: self.order.replace(self.order.get() + 1),
        });
        let generation = self.count.0.enter();
        let done = reactor::chain(bio.done, self.count.clone(), generation.tag());
        let bio = Bio { done, ..bio };
        if op == Op::Write && self.hold.get() || self.hold_ops.borrow().contains(&op) {
            self.held.borrow_mut().push((sector, bio));
        } else {
            self.go(sector, bio);
        }
    }
    fn quiesced(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.count.0.quiesced().await })
    }
    fn watch(&self, _watcher: Weak<dyn OnIoError>) {}
}

/// A world with disks called `a`, `b`, and so on, and tables over them.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) world: WorldRef,
    pub(crate) files: Vec<FileId>,
    pub(crate) disks: Vec<Rc<Probe>>,
}

impl Fixture {
    /// `disks` disks of `sectors` each.
    pub(crate) fn new(disks: u8, sectors: u64) -> Fixture {
        Fixture::with(disks, sectors, |_| ())
    }

    /// With other limits.
    pub(crate) fn with(disks: u8, sectors: u64, change: impl Fn(&mut Limits)) -> Fixture {
        let world = World::calm(1);
        let (mut files, mut probes) = (Vec::new(), Vec::new());
        let order = Rc::new(Cell::new(0));
        for nth in 0..disks {
            let name = char::from(b'a' + nth).to_string();
            let model = Uniform::new(u64::from(nth), 20_000, 60_000);
            let spec = DiskSpec::new(&name, Sector(sectors), Box::new(model));
            let file = world.borrow_mut().add_disk(spec);
            let disk = world.borrow().leaf(file);
            let mut limits = disk.limits();
            change(&mut limits);
            files.push(file);
            probes.push(Rc::new(Probe {
                disk,
                limits,
                seen: RefCell::default(),
                bad: RefCell::default(),
                flushes_fail: Cell::new(false),
                discards_fail: Cell::new(false),
                hold: Cell::new(false),
                hold_ops: RefCell::default(),
                held: RefCell::default(),
                count: Rc::default(),
                order: order.clone(),
            }));
        }
        Fixture { world, files, disks: probes }
    }

    /// Runs `work` on a machine of its own.
    pub(crate) fn run<T: 'static>(&self, work: impl AsyncFnOnce(Fixture) -> T + 'static) -> T {
        let machine = Machine::boot(&self.world, 1);
        let lab = self.clone();
        let out = machine.block_on(async move { work(lab).await });
        machine.kill();
        out.expect("no power cut was planned")
    }

    /// A mapped device `name` with a table.
    pub(crate) async fn map(&self, dm: &Dm, name: &str, table: &str) -> Rc<dyn BlockDevice> {
        dm.create(name, None, Some(table)).await.expect("the table is good")
    }

    pub(crate) fn dm(&self) -> Rc<Dm> {
        let disks = self.disks.iter().map(|d| (d.name().to_owned(), d.clone())).collect();
        Dm::new(Rc::new(Disks(disks)))
    }

    /// What disk `nth` holds of a page.
    pub(crate) fn page(&self, nth: usize, page: u64) -> Vec<u8> {
        let mut out = vec![0; PAGE];
        let at = Sector(page * 8);
        let room = self.disks[nth].limits.capacity - at;
        let len = usize::try_from(room.bytes()).unwrap().min(PAGE);
        out.truncate(len);
        self.world.borrow().peek(self.files[nth], at, &mut out);
        out
    }
}

struct Disks(BTreeMap<String, Rc<Probe>>);

impl Resolver for Disks {
    fn open(&self, word: &str) -> LocalFuture<Result<Rc<dyn BlockDevice>, Error>> {
        let found = self.0.get(word).cloned();
        let word = word.to_owned();
        Box::pin(async move {
            let disk = found.ok_or_else(|| Error::not_found(word))?;
            Ok(disk as Rc<dyn BlockDevice>)
        })
    }
}

/// A cache of all of `below`; nothing runs in the background before `resume`.
pub(crate) fn cache(below: &Rc<dyn BlockDevice>, options: &str) -> Rc<PageCache> {
    let count = options.split_whitespace().count().to_string();
    let mut words = vec![count.as_str()];
    words.extend(options.split_whitespace());
    let config = Config::parse(&words).expect("the options are good");
    let len = below.limits().capacity;
    PageCache::new("cache", config, below.clone(), len).expect("the device is good")
}

/// As [`cache`], on the first disk, with its flusher.
pub(crate) async fn running(lab: &Fixture, options: &str) -> Rc<PageCache> {
    let below: Rc<dyn BlockDevice> = lab.disks[0].clone();
    let cache = cache(&below, options);
    cache.clone().resume().await.expect("it resumes");
    cache
}

/// Contents of a page that no other page and no other version has.
pub(crate) fn pattern(page: u64, version: u8) -> Vec<u8> {
    let mut bytes = vec![version; PAGE];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes
}

/// Writes whole pages, in one write.
pub(crate) async fn write(cache: &PageCache, pages: Range<u64>, version: u8) {
    let ended = try_write(cache, Opener(1), Flags::empty(), pages, version).await;
    assert_eq!(ended, Ok(()));
}

pub(crate) async fn try_write(
    cache: &PageCache,
    opener: Opener,
    flags: Flags,
    pages: Range<u64>,
    version: u8,
) -> Result<(), Status> {
    let mut data: Vec<u8> = pages.clone().flat_map(|page| pattern(page, version)).collect();
    let room = cache.limits().capacity - Sector(pages.start * 8);
    data.truncate(usize::try_from(room.bytes()).unwrap().min(data.len()));
    let len = Sector::from_bytes(data.len() as u64);
    let (at, bufs) = (Sector(pages.start * 8), Buf::copy_of(&data).into());
    reactor::io_by(opener, cache, Op::Write, flags, Class::Normal, (at, len), bufs).await
}

/// FLUSH of an opener.
pub(crate) async fn flush_by(cache: &PageCache, opener: u32) -> Result<(), Status> {
    let nothing = (Sector::ZERO, Sector::ZERO);
    let (flags, class, bufs) = (Flags::empty(), Class::Foreground, block::Bufs::new());
    reactor::io_by(Opener(opener), cache, Op::Flush, flags, class, nothing, bufs).await
}

pub(crate) async fn flush(cache: &PageCache) -> Result<(), Status> {
    flush_by(cache, 1).await
}
