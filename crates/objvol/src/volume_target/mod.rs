// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `VolumeTarget`: a volume as the target of a table line.
//!
//! ```text
//!   made ─ resume ─▶ open ─ suspend ─▶ closed ─ resume ─▶ open, in a new epoch
//!                     └─ somebody takes it over ─▶ fenced: ESTALE, also after a suspend
//! ```
//!
//! Invariants
//! - OV-TG1 The store is asked for nothing before the first `resume`: until then the table of
//!   before may write.
//! - OV-TG2 A suspended target has no volume open: another process may have it, as the successor of
//!   a live upgrade.
//! - OV-TG3 A target that was fenced stays so, also after a resume: only a new table takes the
//!   volume back, because somebody must have decided that.
//! - OV-TG4 A volume is made only where nothing lies, and the operator is told.
//! - OV-TG5 The table of a snapshot takes no writes, from the load on, and writes nothing.
//! - OV-TG6 Memory for the map is reserved before anything is written, and as long as it is open.
//! - OV-TG7 Another length than the volume's is refused, but for a growth (OV-O7). If that fails
//!   late, the target of before finds a larger volume than it has left, and takes it.
//! - OV-TG8 A suspend waits no longer than [`PATIENCE`] for a store that does not work. Then it
//!   fails, and the volume stays open with what is not in the store yet: a resume goes on with it,
//!   and another suspend tries again.
//! - OV-TG9 The cache above goes on after a suspend, or with a new table, if the volume is still of
//!   the lineage that it knows; else the volume takes no changes.

mod attributes;
mod cache_above;
mod config;
mod messages;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::attr::Spec;
use block::value::Value;
use block::{
    Bio, BlockDevice, CacheAbove, CacheRecord, Error, ErrorKind, Limits, LocalFuture, Nanos,
    Reservation, Sector, Status, Target,
};
use format::objvol::RecordedCache;

use crate::config::{Geometry, OpenOptions, OtherSize};
use crate::open::{Contents, create, look};
use crate::owner::hex;
use crate::request_counts::RequestCounts;
use crate::shared::Fence;
use crate::snapshot_device::{self, SnapshotDevice};
use crate::store::ObjectStore;
use crate::volume::{self, Volume, VolumeStatus};

pub use attributes::MANUAL;
pub use config::{TargetConfig, split_snapshot};

/// How long a resume and a suspend wait for a store that does not answer. Chosen: as long as the
/// daemon's end may take; a bucket that is away for longer is a reason to look.
const PATIENCE: Nanos = Nanos::from_secs(60);

/// What an engine does not know of the world around it.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Name of this host: whoever is fenced by it reads it.
    pub host: String,
    /// Seconds since 1970, for people.
    pub clock: fn() -> u64,
}

/// What an operator should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeEvent {
    /// A volume was made, since nothing was there.
    Made(Sector),
    /// Somebody has taken the volume over.
    Fenced(Fence),
    /// Garbage collection can't read segments: so many, and the newest with the reason.
    Unreadable(u64, String),
    /// A write cache that was recorded was given up: what it alone holds is never applied.
    GaveUp(RecordedCache),
    /// The cache above knows another lineage, and no changes are taken: why.
    CacheRefused(String),
    /// It was suspended after that: what was not flushed before is lost.
    LeftFenced,
}

impl fmt::Display for VolumeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeEvent::Made(sectors) => {
                write!(f, "nothing was there: a volume of {sectors} sectors was made")
            }
            VolumeEvent::Fenced(fence) => {
                write!(f, "{fence}: every request fails with ESTALE; what was flushed is safe")
            }
            VolumeEvent::Unreadable(count, newest) => write!(
                f,
                "garbage collection can't read {count} segments, the newest {newest}: it leaves \
                 them alone; `millpond check` lists what is lost"
            ),
            VolumeEvent::GaveUp(cache) => write!(
                f,
                "opened without the write cache {} on {}: what that alone holds is given up",
                hex(&cache.uuid),
                cache.device
            ),
            VolumeEvent::CacheRefused(why) => write!(f, "no changes are taken: {why}"),
            VolumeEvent::LeftFenced => f.write_str(
                "suspended; somebody else has the volume, and what was not flushed before is lost",
            ),
        }
    }
}

enum State {
    /// Made, or suspended.
    Closed,
    Open(Rc<Volume>),
    Snapshot(Rc<SnapshotDevice>),
    /// OV-TG3.
    Fenced(Fence),
}

type OnEvent = Box<dyn Fn(&VolumeEvent)>;

/// See the module.
pub struct VolumeTarget {
    name: String,
    config: TargetConfig,
    store: Rc<dyn ObjectStore>,
    environment: Environment,
    limits: Limits,
    counts: Rc<RequestCounts>,
    state: RefCell<State>,
    /// While it is open.
    memory: RefCell<Option<Reservation>>,
    /// It has been open: the volume has had the length of the line, or has it.
    was_open: Cell<bool>,
    may_grow: Cell<bool>,
    /// The write cache above, while it is there.
    above: RefCell<Option<CacheAbove>>,
    /// The identity of the volume when it was last open.
    identity: RefCell<Option<String>>,
    on_event: RefCell<Option<OnEvent>>,
}

impl VolumeTarget {
    /// The target of a line of this length, of the device `name`. Nothing is asked of the store
    /// (OV-TG1).
    ///
    /// # Errors
    /// `Invalid` for a length that no volume can have.
    pub fn new(
        name: &str,
        config: TargetConfig,
        store: Rc<dyn ObjectStore>,
        len: Sector,
        environment: Environment,
    ) -> Result<Rc<VolumeTarget>, Error> {
        config.geometry(len).check()?;
        let is_snapshot = config.snapshot.is_some();
        let limits_of = if is_snapshot { snapshot_device::limits } else { volume::limits };
        Ok(Rc::new(VolumeTarget {
            name: name.to_owned(),
            config,
            store,
            environment,
            limits: limits_of(len),
            counts: Rc::default(),
            state: RefCell::new(State::Closed),
            memory: RefCell::default(),
            was_open: Cell::default(),
            may_grow: Cell::default(),
            above: RefCell::default(),
            identity: RefCell::default(),
            on_event: RefCell::default(),
        }))
    }

    /// Has `notify` called with what an operator should hear of.
    pub fn on_event(&self, notify: impl Fn(&VolumeEvent) + 'static) {
        *self.on_event.borrow_mut() = Some(Box::new(notify));
    }

    /// What the table line says; the store's URL in one spelling, if the line had that.
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// See [`ObjectStore::place`].
    pub fn place(&self) -> &str {
        self.store.place()
    }

    fn notify(&self, event: &VolumeEvent) {
        if let Some(notify) = &*self.on_event.borrow() {
            notify(event);
        }
    }

    fn volume(&self) -> Option<Rc<Volume>> {
        match &*self.state.borrow() {
            State::Open(volume) => Some(volume.clone()),
            State::Closed | State::Fenced(_) | State::Snapshot(_) => None,
        }
    }

    /// Who has taken the volume over.
    fn fence(&self) -> Option<Fence> {
        match &*self.state.borrow() {
            State::Open(volume) => volume.fence(),
            State::Fenced(fence) => Some(fence.clone()),
            State::Closed | State::Snapshot(_) => None,
        }
    }

    fn volume_status(&self) -> Option<VolumeStatus> {
        self.volume().map(|volume| volume.status())
    }

    fn options(&self) -> OpenOptions {
        let Environment { host, clock } = &self.environment;
        OpenOptions {
            patience: Some(PATIENCE),
            counts: self.counts.clone(),
            other_size: match (self.may_grow.get(), self.was_open.get()) {
                (true, _) => OtherSize::Grows,
                (false, true) => OtherSize::MayBeLarger, // OV-TG7
                (false, false) => OtherSize::Refused,
            },
            ..self.config.open_options(host, clock(), self.limits.capacity)
        }
    }

    /// Opens the volume; makes it where nothing is (OV-TG4).
    async fn open(&self) -> Result<Rc<Volume>, Error> {
        let options = self.options();
        let (contents, listed) = look(self.store.clone(), &options).await?;
        match contents {
            Contents::Volume => {}
            Contents::Nothing => {
                let geometry: Geometry = self.config.geometry(self.limits.capacity);
                create(self.store.clone(), &geometry, &options).await?;
                self.notify(&VolumeEvent::Made(geometry.sectors));
            }
            Contents::Other(name) => {
                let text = format!(
                    "{}: something lies there, {name}: a volume takes an empty prefix",
                    self.store.name()
                );
                return Err(Error::new(ErrorKind::Exists, text));
            }
        }
        let volume = Volume::open_listed(self.store.clone(), options, listed).await?;
        self.go_on_with_cache(&volume).await?;
        Ok(volume)
    }

    async fn start(self: Rc<Self>) -> Result<(), Error> {
        if self.volume().is_some() || self.fence().is_some() {
            // OV-TG8; OV-TG3: its requests fail, which clients that wait for it have to hear.
            return Ok(());
        }
        if let Some(name) = &self.config.snapshot {
            let opened = SnapshotDevice::open(self.store.clone(), name, &self.options()).await?;
            *self.state.borrow_mut() = State::Snapshot(opened);
            return Ok(());
        }
        let TargetConfig { map_memory, read_ahead, .. } = self.config;
        let what = format_args!("{}: the options map_memory and read_ahead", self.name);
        let memory = reactor::memory().reserve(map_memory + read_ahead, what)?; // OV-TG6
        let volume = self.open().await?;
        self.memory.replace(Some(memory));
        self.was_open.set(true);
        if let Some(cache) = volume.given_up() {
            self.notify(&VolumeEvent::GaveUp(cache));
        }
        *self.identity.borrow_mut() = Some(volume.identity());
        *self.state.borrow_mut() = State::Open(volume.clone());
        let (this, opened) = (self.clone(), volume.clone());
        reactor::spawn(async move {
            let mut known = 0;
            while let Some((met, newest)) = opened.wait_for_unreadable(known).await {
                known = met;
                this.notify(&VolumeEvent::Unreadable(met, newest));
            }
        });
        reactor::spawn(async move {
            if let Some(fence) = volume.wait_for_fence().await {
                self.notify(&VolumeEvent::Fenced(fence));
            }
        });
        Ok(())
    }

    /// OV-TG2.
    async fn stop(&self) -> Result<(), Error> {
        let stopped = self.close().await;
        if self.volume().is_none() {
            self.memory.take();
        }
        stopped
    }

    async fn close(&self) -> Result<(), Error> {
        let Some(volume) = self.volume() else {
            let is_fenced = self.fence().is_some();
            if !is_fenced {
                *self.state.borrow_mut() = State::Closed;
            }
            return Ok(());
        };
        let closed = volume.close().await;
        let Some(fence) = volume.fence() else {
            if !volume.is_closed() {
                return closed; // OV-TG8
            }
            *self.state.borrow_mut() = State::Closed;
            return closed;
        };
        // Nothing can be saved, and every client has heard of it, or will: ESTALE to all.
        *self.state.borrow_mut() = State::Fenced(fence);
        self.notify(&VolumeEvent::LeftFenced);
        Ok(())
    }
}

impl BlockDevice for VolumeTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn is_stale(&self) -> bool {
        self.config.snapshot.is_some() // OV-TG5
    }

    /// As of the last time when it was open: so a suspend does not make it unknown.
    fn identity(&self) -> Option<String> {
        self.identity.borrow().clone()
    }

    fn cache_record(self: Rc<Self>) -> Option<Rc<dyn CacheRecord>> {
        let is_volume = self.config.snapshot.is_none();
        is_volume.then_some(self as Rc<dyn CacheRecord>)
    }

    fn submit(&self, bio: Bio) {
        match &*self.state.borrow() {
            State::Open(volume) => volume.submit(bio),
            State::Snapshot(snapshot) => snapshot.submit(bio),
            State::Closed | State::Fenced(_) => bio.complete(Status::Stale),
        }
    }
}

impl Target for VolumeTarget {
    fn kind(&self) -> &'static str {
        MANUAL.name
    }

    fn table(&self) -> String {
        self.config.table()
    }

    fn status(&self) -> String {
        self.status_line()
    }

    fn fenced_by(&self) -> Option<String> {
        self.fence().map(|fence| fence.to_string())
    }

    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        Box::pin(self.answer(words))
    }

    /// Closes the volume: everything is durable, and a checkpoint lets the next opening be short.
    /// It waits out an outage, but not for ever (OV-TG8).
    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.stop().await })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(self.start())
    }

    fn allow_growth(&self) {
        self.may_grow.set(true);
    }

    fn take_over(self: Rc<Self>, before: Rc<dyn Target>) -> LocalFuture<()> {
        Box::pin(self.take_over_cache(before))
    }

    fn attributes(&self) -> Vec<&'static Spec> {
        attributes::specs()
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        Box::pin(async move { self.attribute(&name) })
    }

    fn set_attribute(
        self: Rc<Self>,
        name: String,
        _value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.refuse_to_set(&name) })
    }

    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        self.figures()
    }

    fn problems(&self) -> Vec<String> {
        self.problem().into_iter().collect()
    }
}

block::debug_as!(VolumeTarget, s => "VolumeTarget({})", s.store.name());
