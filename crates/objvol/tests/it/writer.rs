// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A writer of a volume: opens it, reads it whole, then changes, reads and flushes at random, and
//! knows at any time what it must read.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Buf, Bufs, Class, ErrorKind, Flags, Nanos, Op, Sector, Status};
use objvol::{Fault, Geometry, OpenOptions, Volume};
use sim::harness::{self, Step};
use sim::{Machine, RunEnd, WorldRef};

use crate::bucket::{BucketRef, Connection};
use crate::catalogue::Catalogue;
use crate::judge::{BLOCK_BYTES, BLOCK_SECTORS, Change, WriterLog, fill, stamps};

/// The volume of a seed, and how writers work with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) blocks: u64,
    pub(crate) segment_bytes: u32,
    pub(crate) window: u16,
    pub(crate) checkpoint_every: u64,
    pub(crate) grace: Nanos,
    pub(crate) think: Nanos,
    /// With it writers scan the volume instead of reading some blocks.
    pub(crate) read_ahead: u64,
    pub(crate) fault: Option<Fault>,
}

impl Setup {
    pub(crate) fn draw(world: &WorldRef, fault: Option<Fault>) -> Setup {
        let rng = &mut world.borrow_mut().rng;
        Setup {
            blocks: rng.range(6, 40),
            segment_bytes: rng.pick(&[4096, 8192, 20_480]),
            window: rng.pick(&[1, 2, 4, 7]),
            checkpoint_every: rng.pick(&[2, 5, 20]),
            grace: rng.pick(&[Nanos::ZERO, Nanos::from_secs(2), Nanos::from_secs(60)]),
            // With the longest, writers are at work while what is hours late lands.
            think: rng.pick(&[
                Nanos::ZERO,
                Nanos::from_millis(100),
                Nanos::from_secs(3),
                Nanos::from_secs(200),
            ]),
            read_ahead: 0,
            fault,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            sectors: Sector(self.blocks * BLOCK_SECTORS),
            segment_bytes: self.segment_bytes,
            window: self.window,
        }
    }

    pub(crate) fn options(&self, host: &str) -> OpenOptions {
        OpenOptions {
            take_over: true,
            // A writer with this fault would take each store for one without conditional writes.
            single_writer: self.fault == Some(Fault::BelieveExists),
            checkpoint_every: self.checkpoint_every,
            checkpoint_worth: 0,
            grace: self.grace,
            read_ahead: self.read_ahead,
            planted: self.fault.into(),
            ..OpenOptions::new(host, 1_700_000_000)
        }
    }
}

/// How often a writer makes or deletes a snapshot before a request.
const SNAPSHOTS_PER_MILLE: u32 = 80;

/// Virtual time after which something hangs: outages are shorter.
const HANGS: Nanos = Nanos::from_secs(12 * 3600);

/// Runs `future` on core 0 to its end, which comes, or the power is cut.
pub(crate) fn run_bounded<T: 'static>(
    machine: &Machine,
    world: &WorldRef,
    future: impl Future<Output = T> + 'static,
) -> Step<T> {
    let out = Rc::new(RefCell::new(None));
    let (set, test) = (out.clone(), out.clone());
    machine.spawn(0, async move { *set.borrow_mut() = Some(future.await) });
    let until = world.borrow().now() + HANGS;
    let ended = machine.run(|| test.borrow().is_some() || world.borrow().now() > until);
    match (ended, out.take()) {
        (RunEnd::PowerCut, _) => Err(harness::Stop::PowerCut),
        (_, Some(value)) => Ok(value),
        (_, None) => Err(harness::Stop::Failed("it hangs".into())),
    }
}

/// What a writer and its test share.
pub(crate) struct Writer {
    pub(crate) world: WorldRef,
    pub(crate) setup: Setup,
    pub(crate) connection: Connection,
    pub(crate) host: String,
    pub(crate) log: RefCell<WriterLog>,
    pub(crate) has_ended: Cell<bool>,
    pub(crate) failure: RefCell<Option<String>>,
    /// So many changes have completed: what a FLUSH covers.
    completed: Cell<usize>,
    stamps: Rc<Cell<u64>>,
    /// Where it takes snapshots, if it does.
    pub(crate) catalogue: Option<Rc<Catalogue>>,
}

/// Why a writer stops.
enum Stop {
    /// Somebody has taken the volume over.
    Fenced,
    Failed(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop::Failed(why)
    }
}

impl Writer {
    pub(crate) fn new(
        world: &WorldRef,
        bucket: &BucketRef,
        setup: Setup,
        host: &str,
        stamps: &Rc<Cell<u64>>,
    ) -> Rc<Writer> {
        Rc::new(Writer::of(world, bucket, setup, host, stamps))
    }

    pub(crate) fn of(
        world: &WorldRef,
        bucket: &BucketRef,
        setup: Setup,
        host: &str,
        stamps: &Rc<Cell<u64>>,
    ) -> Writer {
        Writer {
            world: world.clone(),
            setup,
            connection: Connection::new(bucket),
            host: host.to_owned(),
            log: RefCell::default(),
            has_ended: Cell::default(),
            failure: RefCell::default(),
            completed: Cell::default(),
            stamps: stamps.clone(),
            catalogue: None,
        }
    }

    /// Opens the volume, does `requests` requests, and closes it if `closes`.
    pub(crate) async fn work(self: Rc<Self>, requests: u64, closes: bool) {
        if let Err(Stop::Failed(why)) = self.clone().try_work(requests, closes).await {
            *self.failure.borrow_mut() = Some(format!("{}: {why}", self.host));
        }
        self.has_ended.set(true);
    }

    async fn try_work(self: Rc<Self>, requests: u64, closes: bool) -> Result<(), Stop> {
        let store = Rc::new(self.connection.clone());
        let opened = Volume::open(store, self.setup.options(&self.host)).await;
        let volume = match opened {
            Ok(volume) => volume,
            Err(e) if e.kind() == ErrorKind::Busy => return Err(Stop::Fenced),
            Err(e) => return Err(Stop::Failed(format!("open failed: {}", e.chain()))),
        };
        let device: Rc<dyn BlockDevice> = volume.clone();
        let view = self.read(&device, 0..self.setup.blocks).await?;
        {
            let mut log = self.log.borrow_mut();
            log.epoch = volume.status().epoch;
            log.view = Some(view);
        }
        if let Some(catalogue) = &self.catalogue {
            catalogue.list(&volume);
        }
        for _ in 0..requests {
            if let Some(catalogue) = &self.catalogue
                && self.world.borrow_mut().rng.chance_per_mille(SNAPSHOTS_PER_MILLE)
            {
                self.change_snapshots(catalogue, &volume).await?;
            }
            self.request(&device).await?;
        }
        if closes {
            let changes = self.log.borrow().changes.len();
            match volume.close().await {
                Ok(()) => self.flushed(changes),
                Err(_) if volume.status().fence.is_some() => return Err(Stop::Fenced),
                Err(e) => return Err(Stop::Failed(format!("close failed: {}", e.chain()))),
            }
        }
        Ok(())
    }

    /// Makes or deletes a snapshot, beside what follows or before it.
    async fn change_snapshots(
        self: &Rc<Self>,
        catalogue: &Rc<Catalogue>,
        volume: &Rc<Volume>,
    ) -> Result<(), Stop> {
        let (is_deletion, waits) = {
            let rng = &mut self.world.borrow_mut().rng;
            (rng.chance_per_mille(400), rng.chance_per_mille(500))
        };
        let epoch = volume.status().epoch;
        let deletion = if is_deletion { catalogue.draw_deletion(&self.world, epoch) } else { None };
        let (this, catalogue, volume) = (self.clone(), catalogue.clone(), volume.clone());
        let completed = self.completed.get();
        let work = async move {
            let done = match deletion {
                Some((nth, name)) => {
                    let deleted = volume.delete_snapshot(&name).await;
                    deleted.map(|()| catalogue.deleted(nth))
                }
                None => {
                    let (nth, name) = catalogue.begin(epoch, completed);
                    let made = volume.create_snapshot(&name, 0).await;
                    made.map(|_| {
                        catalogue.made(nth, this.log.borrow().changes.len());
                        this.flushed(completed);
                    })
                }
            };
            match done {
                Err(_) if volume.status().fence.is_some() => Err(Stop::Fenced),
                // The deletion of another writer was under way, and has come into the log.
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                Err(e) => Err(Stop::Failed(format!("a snapshot failed: {}", e.chain()))),
                Ok(()) => Ok(()),
            }
        };
        if waits {
            return work.await;
        }
        let this = self.clone();
        reactor::spawn(async move {
            if let Err(Stop::Failed(why)) = work.await {
                *this.failure.borrow_mut() = Some(why);
            }
        });
        Ok(())
    }

    fn flushed(&self, changes: usize) {
        let mut log = self.log.borrow_mut();
        log.flushed = log.flushed.max(changes);
    }

    async fn request(self: &Rc<Self>, device: &Rc<dyn BlockDevice>) -> Result<(), Stop> {
        let (dice, blocks, think) = {
            let rng = &mut self.world.borrow_mut().rng;
            let count = rng.range(1, 5.min(self.setup.blocks + 1));
            let first = rng.below(self.setup.blocks - count + 1);
            (rng.below(100), first..first + count, rng.below(self.setup.think.0 + 1))
        };
        if think > 0 {
            reactor::sleep(Nanos(think)).await;
        }
        self.connection.wait(Nanos::ZERO).await;
        match dice {
            0..55 => self.change(device, blocks, Op::Write, Flags::empty()).await,
            55..58 => self.change(device, blocks, Op::Write, Flags::FUA).await,
            58..63 => self.change(device, blocks, Op::Discard, Flags::empty()).await,
            63..66 => self.change(device, blocks, Op::WriteZeroes, Flags::empty()).await,
            66..80 => {
                let (this, device) = (self.clone(), device.clone());
                reactor::spawn(async move {
                    if let Err(Stop::Failed(why)) = this.flush(&device).await {
                        *this.failure.borrow_mut() = Some(why);
                    }
                });
                Ok(())
            }
            80..90 => self.flush(device).await,
            _ if self.setup.read_ahead > 0 => self.scan(device, blocks.start).await,
            _ => self.read_back(device, blocks).await,
        }
    }

    /// Reads blocks, which must be what was written.
    async fn read_back(
        &self,
        device: &Rc<dyn BlockDevice>,
        blocks: Range<u64>,
    ) -> Result<(), Stop> {
        let found = self.read(device, blocks.clone()).await?;
        let wanted = self.log.borrow().contents();
        let range = usize::try_from(blocks.start).unwrap()..usize::try_from(blocks.end).unwrap();
        if found != wanted[range.clone()] {
            let wanted = &wanted[range];
            return Err(format!("blocks {blocks:?}: {found:x?}, not {wanted:x?}").into());
        }
        Ok(())
    }

    /// Reads the volume from a block to its end in order, and changes blocks meanwhile.
    async fn scan(&self, device: &Rc<dyn BlockDevice>, from: u64) -> Result<(), Stop> {
        for block in from..self.setup.blocks {
            self.read_back(device, block..block + 1).await?;
            let (changes, flushes, other) = {
                let rng = &mut self.world.borrow_mut().rng;
                let [changes, flushes] = [300, 100].map(|n| rng.chance_per_mille(n));
                (changes, flushes, rng.below(self.setup.blocks))
            };
            if changes {
                self.change(device, other..other + 1, Op::Write, Flags::empty()).await?;
            }
            if flushes {
                self.flush(device).await?;
            }
        }
        Ok(())
    }

    fn outcome(&self, what: &str, result: Result<(), Status>) -> Result<(), Stop> {
        match result {
            Ok(()) => Ok(()),
            Err(Status::Stale) => Err(Stop::Fenced),
            Err(status) => Err(Stop::Failed(format!("{what} failed: {status}"))),
        }
    }

    async fn change(
        &self,
        device: &Rc<dyn BlockDevice>,
        blocks: Range<u64>,
        op: Op,
        flags: Flags,
    ) -> Result<(), Stop> {
        let mut stamp = 0;
        let (at, len) = (blocks.start, blocks.end - blocks.start);
        let mut bufs = Bufs::new();
        if op == Op::Write {
            self.stamps.set(self.stamps.get() + 1);
            stamp = self.stamps.get();
            let data = Buf::alloc(usize::try_from(len).unwrap() * BLOCK_BYTES);
            data.write(|data| fill(data, at, stamp));
            bufs = data.all().into();
        }
        let changes = {
            let mut log = self.log.borrow_mut();
            log.changes.push(Change { blocks, stamp });
            log.changes.len()
        };
        let range = (Sector(at * BLOCK_SECTORS), Sector(len * BLOCK_SECTORS));
        let result = reactor::io(&**device, op, flags, Class::Normal, range, bufs).await;
        self.outcome("a change", result)?;
        self.completed.set(changes);
        if flags.contains(Flags::FUA) {
            self.flushed(changes);
        }
        Ok(())
    }

    async fn flush(&self, device: &Rc<dyn BlockDevice>) -> Result<(), Stop> {
        let changes = self.completed.get();
        self.outcome("a flush", reactor::flush(&**device, Class::Foreground).await)?;
        self.flushed(changes);
        Ok(())
    }

    async fn read(
        &self,
        device: &Rc<dyn BlockDevice>,
        blocks: Range<u64>,
    ) -> Result<Vec<u64>, Stop> {
        let len = usize::try_from(blocks.end - blocks.start).unwrap() * BLOCK_BYTES;
        let buf = Buf::alloc(len);
        buf.write(|b| b.fill(0xDD));
        let at = Sector(blocks.start * BLOCK_SECTORS);
        let result = reactor::read(&**device, Class::Foreground, at, buf.all().into()).await;
        self.outcome("a read", result)?;
        Ok(buf.read(|data| stamps(data, blocks.start))?)
    }
}
