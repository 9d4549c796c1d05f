// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Volume`: an opened volume as a block device.
use std::cell::Cell;
use std::rc::Rc;

use block::{
    Bio, BlockDevice, CacheAbove, Error, ErrorKind, Flags, Limits, Nanos, Op, Sector, Status,
    size_text,
};
use format::objvol::{Manifest, OwnerState, RecordedCache, SECTOR};

use crate::config::{Geometry, OpenOptions};
use crate::history::Purpose;
use crate::log::SegmentUse;
use crate::open::{self, Manifests};
use crate::shared::{Fence, PAUSE_STEP, Shared};
use crate::store::ObjectStore;

/// Largest request, bytes.
const IO_BYTES_MAX: u32 = 32 << 20;

/// The limits of a volume of this size.
pub(crate) fn limits(capacity: Sector) -> Limits {
    Limits {
        max_io_bytes: IO_BYTES_MAX,
        discard_granularity_bytes: 512,
        write_zeroes: true,
        survives_kill: false,
        keeps_write_order: true,
        ..Limits::new(capacity)
    }
}

/// An opened volume. It keeps the border contract of `block`: a FLUSH makes durable what had
/// completed before; a crash keeps a prefix of what was written, in the order of the log.
///
/// Lifecycle: [`Volume::open`]; requests; [`Volume::close`] when none is in flight. A volume that
/// is dropped without `close` goes on with its background tasks.
pub struct Volume {
    pub(crate) shared: Rc<Shared>,
    limits: Limits,
}

/// The state of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its own epoch.
    pub epoch: u64,
    /// Segments of this epoch that were sent, or are gathered.
    pub segments: u64,
    /// Those of them that are in the store, in an unbroken chain.
    pub durable: u64,
    /// Entries of the map.
    pub extents: u64,
    /// Bytes that would be lost with this machine: written, and not in that chain.
    pub behind_bytes: u64,
    /// How long ago the first of them was written; zero if there are none.
    pub behind: Nanos,
    /// Bytes of the segments in the store.
    pub stored_bytes: u64,
    /// Those among them with live data: the others wait for their deletion.
    pub collectable_bytes: u64,
    /// Data in them that the map points to.
    pub live_bytes: u64,
    /// Segments without such data that snapshots need.
    pub retained_bytes: u64,
    /// Data that were read ahead, and are still in memory.
    pub ahead_bytes: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Segments that garbage collection left alone because it could not read them.
    pub unreadable_segments: u64,
    /// The newest of them, and why.
    pub unreadable: Option<String>,
    /// Why the store refuses, if it does.
    pub denial: Option<String>,
    /// Why the last request to it has no outcome, until one has one again.
    pub last_failure: Option<String>,
    /// Who has taken it over.
    pub fence: Option<Fence>,
    /// The write cache that is recorded: it may hold what the volume does not have.
    pub cache: Option<RecordedCache>,
    /// Why no changes are taken: that cache is not there, or one of another lineage is above.
    pub reservation: Option<String>,
}

impl Volume {
    /// Opens the volume in `store`, and takes it over from whoever has it open.
    ///
    /// # Errors
    /// `NotFound` where there is no volume; `Invalid` for options that are not allowed or another
    /// size; `Busy` if it belongs to another host and `take_over` is not set; `Io` for damage;
    /// `NotSupported` for a store without conditional writes and without `single_writer`; `Denied`
    /// if the store refuses. It waits until an outage has ended.
    pub async fn open(
        store: Rc<dyn ObjectStore>,
        options: OpenOptions,
    ) -> Result<Rc<Volume>, Error> {
        let shared = open::open(store, options, Purpose::TakeOver).await?;
        Ok(Rc::new(Volume::of(shared)))
    }

    /// The same, of a volume whose manifests were just listed.
    pub(crate) async fn open_listed(
        store: Rc<dyn ObjectStore>,
        options: OpenOptions,
        listed: Manifests,
    ) -> Result<Rc<Volume>, Error> {
        let shared = open::open_listed(store, options, Purpose::TakeOver, listed).await?;
        Ok(Rc::new(Volume::of(shared)))
    }

    pub(crate) fn of(shared: Rc<Shared>) -> Volume {
        let limits = limits(Sector(shared.manifest.volume_sectors));
        Volume { shared, limits }
    }

    /// Its state now.
    pub fn status(&self) -> VolumeStatus {
        let log = self.shared.log.borrow();
        let uses = log.uses();
        let unreadable = self.shared.unreadable.borrow();
        let unreadable_segments = unreadable.places.len() as u64;
        let bytes = |of: fn(&SegmentUse) -> u32| {
            uses.iter().map(|segment| u64::from(of(segment))).sum::<u64>() * SECTOR as u64
        };
        VolumeStatus {
            epoch: self.shared.epoch(),
            behind_bytes: log.bytes_behind(),
            behind: log.behind_since().map_or(Nanos::ZERO, |t| reactor::now().saturating_sub(t)),
            stored_bytes: bytes(|segment| segment.sectors),
            collectable_bytes: bytes(|s| if s.live > 0 { s.sectors } else { 0 }),
            live_bytes: bytes(|segment| segment.live),
            retained_bytes: bytes(|s| if s.is_retained { s.sectors } else { 0 }),
            ahead_bytes: self.shared.ahead.held(),
            snapshots: log.snapshots().len() as u64,
            unreadable_segments,
            unreadable: (unreadable_segments > 0).then(|| unreadable.last.clone()),
            last_failure: self.shared.requests.last_failure(),
            segments: log.next() - u64::from(!log.is_gathering()),
            durable: log.durable(),
            extents: log.extents() as u64,
            denial: self.shared.requests.denial(),
            fence: self.shared.fence.borrow().clone(),
            cache: self.shared.owner.recorded(),
            reservation: self.shared.owner.reservation(),
        }
    }

    /// Which volume it is, and which of its histories: what a write cache above compares.
    pub fn identity(&self) -> String {
        self.shared.identity()
    }

    /// See `block::CacheRecord::attach`; `now` is seconds since 1970, for people.
    ///
    /// # Errors
    /// As there.
    pub async fn attach(&self, cache: &CacheAbove, now: u64) -> Result<(), Error> {
        self.shared.attach(cache, now).await
    }

    /// The cache that was recorded, and that this opening has given up.
    pub fn given_up(&self) -> Option<RecordedCache> {
        self.shared.owner.given_up()
    }

    /// A cache of another lineage is above it: no change is taken any more.
    pub(crate) fn refuse_changes(&self, why: String) {
        self.shared.owner.lock(why);
    }

    /// See `block::CacheRecord::leave`.
    pub fn leave(&self, uuid: [u8; 16]) {
        self.shared.owner.leave(uuid);
    }

    /// See `block::CacheRecord::release`.
    ///
    /// # Errors
    /// As there.
    pub async fn release(&self, uuid: [u8; 16]) -> Result<(), Error> {
        self.shared.release(uuid).await
    }

    /// What it was made with.
    pub fn geometry(&self) -> Geometry {
        let Manifest { volume_sectors, segment_bytes, window, .. } = self.shared.manifest;
        Geometry { sectors: Sector(volume_sectors), segment_bytes, window }
    }

    /// Who has taken it over.
    pub fn fence(&self) -> Option<Fence> {
        self.shared.fence.borrow().clone()
    }

    /// Waits until somebody has taken it over, and returns who; or until it is being closed.
    pub async fn wait_for_fence(&self) -> Option<Fence> {
        let shared = &self.shared;
        let is_over = || shared.is_fence_read.get() || shared.is_closing.get();
        shared.changed.wait_for(is_over).await;
        shared.fence.borrow().clone()
    }

    /// Waits until garbage collection has met more than `known` segments that it can't read;
    /// returns how many, and the newest with the reason. `None` when the volume is fenced or is
    /// being closed.
    pub async fn wait_for_unreadable(&self, known: u64) -> Option<(u64, String)> {
        let shared = &self.shared;
        let is_over = || shared.is_fenced() || shared.is_closing.get();
        shared.changed.wait_for(|| is_over() || shared.unreadable.borrow().met > known).await;
        let unreadable = shared.unreadable.borrow();
        (unreadable.met > known).then(|| (unreadable.met, unreadable.last.clone()))
    }

    /// Writes a checkpoint of what was written before the call, unless there is nothing new.
    ///
    /// # Errors
    /// `Busy` if the volume is fenced.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        let written = self.shared.checkpoint().await;
        written.map_err(|status| self.fenced(status))
    }

    /// Makes everything durable, writes a checkpoint, marks the volume as clean and ends its tasks.
    /// It waits out an outage, but no longer than the patience of its options.
    ///
    /// # Errors
    /// `Busy` if somebody has taken it over: then what was not flushed is lost. `Io` if the store
    /// has not worked for that time: the volume is open as before ([`Volume::is_closed`]), and goes
    /// on trying. `Denied` if the store refuses.
    pub async fn close(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let Some(written) = shared.settle().await else {
            let why = shared.requests.failure().unwrap_or_default();
            let behind = size_text(self.status().behind_bytes);
            return Err(Error::io(format!(
                "{}: the store does not work, and {behind} are not in it: {why}; it goes on \
                 trying; `remove --force` gives them up",
                self.name()
            )));
        };
        shared.is_closing.set(true);
        shared.requests.set_patience(shared.options.patience); // OV-R3
        shared.changed.wake_all();
        shared.changed.wait_for(|| shared.tasks.get() == 0).await;
        written.and(shared.check_fence()).map_err(|status| self.fenced(status))?;
        shared.put_host(OwnerState::Clean).await?;
        // Somebody may have taken it over since the last look, and whoever opens it here next would
        // take it back. The store works, so this does not wait.
        let _ = shared.look_with(&shared.requests).await;
        shared.check_fence().map_err(|status| self.fenced(status))
    }

    /// It was closed: a close that has given up on the store has not.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closing.get()
    }

    /// An error of this volume: by whom it was taken over, if it was.
    pub(crate) fn fenced(&self, status: Status) -> Error {
        let name = self.shared.requests.store_name();
        match &*self.shared.fence.borrow() {
            Some(fence) => Error::new(ErrorKind::Busy, format!("{name}: {fence}")),
            None => Error::new(ErrorKind::Io, format!("{name}: {status}")),
        }
    }
}

impl Shared {
    /// Makes everything durable, and writes a checkpoint.
    async fn settle(self: &Rc<Self>) -> Option<Result<(), Status>> {
        let this = self.clone();
        self.while_store_works(async move { this.write_all().await }).await
    }

    /// Does the work. `None` when the store has not worked for as long as the options have
    /// patience: then the work goes on.
    pub(crate) async fn while_store_works(
        self: &Rc<Self>,
        work: impl Future<Output = Result<(), Status>> + 'static,
    ) -> Option<Result<(), Status>> {
        let Some(patience) = self.options.patience else { return Some(work.await) };
        let written = Rc::new(Cell::new(None));
        let (this, outcome) = (self.clone(), written.clone());
        reactor::spawn(async move {
            outcome.set(Some(work.await));
            this.changed.wake_all();
        });
        let gave_up = Rc::new(Cell::new(false));
        let (this, outcome, ends) = (self.clone(), written.clone(), gave_up.clone());
        reactor::spawn(async move {
            let mut works_until = reactor::now();
            while outcome.get().is_none() && !ends.get() {
                reactor::sleep(PAUSE_STEP).await;
                if this.requests.failure().is_none() {
                    works_until = reactor::now();
                }
                ends.set(reactor::now() >= works_until + patience);
                this.changed.wake_all();
            }
        });
        self.changed.wait_for(|| written.get().is_some() || gave_up.get()).await;
        written.get()
    }

    async fn write_all(self: &Rc<Self>) -> Result<(), Status> {
        self.flush().await?;
        self.checkpoint().await
    }

    async fn serve(self: &Rc<Self>, bio: &Bio) -> Result<(), Status> {
        self.check_fence()?;
        let range = bio.sector.0..bio.end().0;
        match bio.op {
            Op::Read => return self.read(bio.opener, range.start, &bio.bufs).await,
            Op::Flush => return self.flush().await,
            Op::Write => {
                self.check_changes()?;
                self.write(range.start, &bio.bufs).await?;
            }
            Op::Discard | Op::WriteZeroes => {
                self.check_changes()?;
                self.zero(range).await?;
            }
        }
        if bio.flags.contains(Flags::FUA) { self.flush().await } else { Ok(()) }
    }
}

impl BlockDevice for Volume {
    fn name(&self) -> &str {
        self.shared.requests.store_name()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        let shared = self.shared.clone();
        reactor::spawn(async move {
            let served = shared.serve(&bio).await;
            bio.complete(served.into());
        });
    }
}

block::debug_as!(Volume, s => "Volume({}, {:?})", s.name(), s.status());
