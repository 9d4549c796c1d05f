// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target: life cycle, and the way of a bio to the shards.
//!
//! Invariants
//! - ZR-T1 One command at a time: writeback, recompression and compaction take turns. Marking pages
//!   idle and reading an attribute take none.
//! - ZR-T2 `suspend` ends the command that runs at its next page, and waits for it.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{
    Access, Bio, BlockDevice, Component, CoreId, Error, Limits, LocalFuture, Op, Reservation, Role,
    Sector, Status, Target,
};
use reactor::WaitList;

use crate::attributes;
use crate::backing::Backing;
use crate::config::Config;
use crate::control::apply;
use crate::layout::{Layout, PAGE_SECTORS, SLOTS_MAX};
use crate::parts::Parts;
use crate::persist::{self, Gate};
use crate::policy::Policy;
use crate::shard::{self, Plan, Shard};
use crate::shared::Shared;
use crate::slot::PAGE;
use crate::store::Memory;

/// Bytes of memory that is known of a slot.
const SLOT_BYTES: u64 = 16;
/// The same with `persist`: its image, and whether it is dirty or only to be moved.
const IMAGE_BYTES: u64 = 11;
/// Bytes of memory that is known of a block of the backing device: how much lies there, and whether
/// it is taken; and while a persistent device is opened how much has been found there.
const BLOCK_BYTES: u64 = 2;
const COUNT_BYTES: u64 = 1;

/// Turns a live device into an unconfigured one; given by the program.
pub type OnReset = Rc<dyn Fn() -> LocalFuture<Result<(), Error>>>;

/// Asked before a device starts for the first time; given by the program.
pub type BeforeStart = Rc<dyn Fn() -> Result<(), Error>>;

/// The zram target: a compressed RAM disk.
///
/// Lifecycle: made from a parsed table line; the first `resume` makes the shards (and reads what a
/// persistent device left behind); data live as long as the target does, through any number of
/// `suspend` and `resume`.
pub struct Zram {
    pub(crate) name: String,
    pub(crate) config: RefCell<Config>,
    /// What is flushed survives.
    persist: bool,
    backing: Option<Rc<dyn BlockDevice>>,
    pub(crate) layout: Layout,
    limits: Limits,
    cores: Vec<CoreId>,
    pub(crate) shared: Arc<Shared>,
    parts: RefCell<Option<Rc<Parts>>>,
    /// What the tables of the shards have of the core's budget.
    memory: RefCell<Option<Reservation>>,
    on_reset: RefCell<Option<OnReset>>,
    before_start: RefCell<Option<BeforeStart>>,
    /// A command runs (ZR-T1).
    busy: Cell<bool>,
    pub(crate) changed: WaitList,
    /// Counts live periods: a policy of an earlier one ends.
    pub(crate) period: Cell<u64>,
    /// The automatic writeback.
    pub(crate) policy: Policy,
    suspending: Cell<bool>,
}

impl Zram {
    /// A device whose pages are written back to `backing` if there is one, with its shards on
    /// `cores`, of which the first is this one.
    ///
    /// # Errors
    /// `EINVAL` when lengths or backing do not fit; says which and what is allowed.
    pub fn new(
        name: impl Into<String>,
        config: Config,
        backing: Option<Rc<dyn BlockDevice>>,
        cores: Vec<CoreId>,
    ) -> Result<Rc<Zram>, Error> {
        assert!(!cores.is_empty(), "a device needs a core");
        config.check()?;
        let (sectors, slots) = (config.len, config.slots());
        let given = u32::try_from(cores.len()).expect("few cores");
        let shards = config.shards.unwrap_or(given);
        let layout = Layout { slots, shards };
        if slots.div_ceil(u64::from(shards)) > SLOTS_MAX {
            let most = SLOTS_MAX * u64::from(shards) * PAGE_SECTORS;
            return Err(Error::invalid(format!(
                "length {sectors}: at most {most} sectors are allowed with {shards} shards"
            )));
        }
        if let Some(device) = &backing {
            let logical = device.limits().write_unit_bytes();
            if logical as usize > PAGE {
                return Err(Error::invalid(format!(
                    "backing_dev {}: its blocks have {logical} bytes: at most a page, \
                     {PAGE}, is allowed",
                    device.name()
                )));
            }
            let region = layout.region(0, device.limits().capacity);
            if region.blocks == 0 {
                return Err(Error::invalid(format!(
                    "backing_dev {}: {} are too small: at least {shards} pages of {PAGE} bytes are \
                     needed, one for each shard",
                    device.name(),
                    device.limits().capacity
                )));
            }
        }
        let memory = Arc::new(Memory::new());
        // The media of a persistent device may have any number of shards.
        let most = if config.persist { crate::config::SHARDS_MAX.max(shards) } else { shards };
        let shared = Shared::new(memory, most as usize);
        shared.budget.set_left(config.writeback_limit);
        apply(&config, &shared);
        let persist = config.persist;
        let keeps = persist && backing.as_ref().is_some_and(|device| device.limits().keeps);
        let limits = Limits { volatile_cache: persist, keeps, ..shard::limits(sectors) };
        Ok(Rc::new(Zram {
            name: name.into(),
            config: RefCell::new(config),
            persist,
            backing,
            layout,
            limits,
            cores,
            shared,
            parts: RefCell::default(),
            memory: RefCell::default(),
            on_reset: RefCell::default(),
            before_start: RefCell::default(),
            busy: Cell::new(false),
            changed: WaitList::new(),
            period: Cell::new(0),
            policy: Policy::new(),
            suspending: Cell::new(false),
        }))
    }

    /// Whether it has pages that are gone when it is dropped.
    pub fn would_lose_pages(&self) -> bool {
        !self.persist && self.shared.totals().orig_pages > 0
    }

    /// What may refuse the first start.
    pub fn set_before_start(&self, before_start: BeforeStart) {
        self.before_start.replace(Some(before_start));
    }

    /// What `reset` does.
    pub fn set_on_reset(&self, on_reset: OnReset) {
        self.on_reset.replace(Some(on_reset));
    }

    pub(crate) fn on_reset(&self) -> Option<OnReset> {
        self.on_reset.borrow().clone()
    }

    /// Bytes of memory that the tables take when every slot has a page: what is known of a slot and
    /// of a block of the backing device.
    fn table_bytes(&self) -> u64 {
        let blocks = self.backing.as_ref().map_or(0, |d| d.limits().capacity.0 / PAGE_SECTORS);
        let (slot, block) = match self.persist {
            false => (SLOT_BYTES, BLOCK_BYTES),
            true => (SLOT_BYTES + IMAGE_BYTES, BLOCK_BYTES + COUNT_BYTES),
        };
        (self.layout.slots.saturating_mul(slot)).saturating_add(blocks.saturating_mul(block))
    }

    /// What needs that memory, for errors.
    fn tables(&self) -> String {
        let blocks = self.backing.as_ref().map_or(String::new(), |device| {
            let blocks = device.limits().capacity.0 / PAGE_SECTORS;
            format!(" and of {blocks} blocks of {}", device.name())
        });
        format!("{}: the table of its {} pages{blocks}", self.name, self.layout.slots)
    }

    /// Whether pages can be written back.
    pub(crate) fn has_backing(&self) -> bool {
        self.backing.is_some()
    }

    /// The shards, once the device was resumed.
    pub(crate) fn parts(&self) -> Option<Rc<Parts>> {
        self.parts.borrow().clone()
    }

    /// The shards, for a command.
    pub(crate) fn running(&self) -> Result<Rc<Parts>, Error> {
        let never = || Error::invalid(format!("{}: it was never resumed", self.name));
        let parts = self.parts().ok_or_else(never)?;
        if self.suspending.get() {
            return Err(Error::busy(format!("{}: it is suspended", self.name)));
        }
        Ok(parts)
    }

    /// Waits for the other commands (ZR-T1).
    pub(crate) async fn turn(self: &Rc<Self>) -> Result<Turn, Error> {
        self.changed.wait_for(|| !self.busy.get()).await;
        self.running()?;
        self.busy.set(true);
        Ok(Turn(self.clone()))
    }

    async fn start(self: &Rc<Self>) -> Result<(), Error> {
        self.suspending.set(false);
        self.shared.cancel.store(false, Relaxed);
        if self.parts.borrow().is_none() {
            let before_start = self.before_start.borrow().clone();
            before_start.map_or(Ok(()), |may| may())?;
            let algorithms = self.config.borrow().algorithms();
            // Before anything is written to the backing device.
            let memory = reactor::memory().reserve(self.table_bytes(), self.tables())?;
            let mut layout = self.layout;
            let (mut backing, mut media) = (self.backing.clone(), None);
            if let (false, Some(device)) = (self.persist, &backing) {
                persist::refuse_persistent(device).await?;
            }
            if self.persist {
                let device = backing.take().expect("checked with the options");
                let gate: Rc<dyn BlockDevice> =
                    Rc::new(Gate::new(device, self.config.borrow().mutation));
                let found = persist::prepare(&gate, layout, &algorithms).await?;
                layout = found.layout;
                (backing, media) = (Some(gate), Some(found));
            }
            let plan = Plan {
                device: self.name.clone(),
                nth: 0,
                layout,
                algorithms,
                shared: self.shared.clone(),
                packed: self.config.borrow().packs(),
                media,
                mutation: self.config.borrow().mutation,
            };
            let parts = Parts::make(&plan, &self.cores, backing, make).await?;
            self.parts.replace(Some(Rc::new(parts)));
            self.memory.replace(Some(memory));
        }
        self.period.set(self.period.get() + 1);
        crate::policy::start(self);
        Ok(())
    }

    async fn stop(self: &Rc<Self>) -> Result<(), Error> {
        self.suspending.set(true);
        self.period.set(self.period.get() + 1);
        self.shared.cancel.store(true, Relaxed);
        self.changed.wake_all();
        self.changed.wait_for(|| !self.busy.get()).await;
        let Some(parts) = self.parts() else { return Ok(()) };
        for settled in parts.ask(|shard| async move { shard.settle_down().await }).await {
            settled.map_err(|e| e.within(&self.name))?;
        }
        Ok(())
    }
}

/// Makes a shard, on its core.
async fn make(plan: Plan, device: Option<Rc<dyn BlockDevice>>) -> Result<Rc<Shard>, Error> {
    if let (Some(media), Some(device)) = (plan.media, device.clone()) {
        let opened = persist::open(device, &media, plan.nth, &plan.algorithms, plan.mutation);
        let (persist, backing) = opened.await?;
        let shard = Shard::new(plan, Some(backing), Some(persist))?;
        shard.adopt_images();
        return Ok(shard);
    }
    let backing = device.map(|device| {
        let region = plan.layout.region(plan.nth, device.limits().capacity);
        Backing::new(device, region, plan.packed).with_mutation(plan.mutation)
    });
    Shard::new(plan, backing, None)
}

/// The right to run a command; ends when dropped.
pub(crate) struct Turn(Rc<Zram>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.busy.set(false);
        if !block::crashing() {
            self.0.changed.wake_all();
        }
    }
}

impl BlockDevice for Zram {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            // The first shard is on this core (ZR-SH2).
            self.shared.counters(0).invalid_io.add(1);
            return bio.complete(status);
        }
        if bio.op == Op::Flush && !self.persist {
            return bio.complete(Status::Ok);
        }
        match &*self.parts.borrow() {
            Some(parts) => parts.submit(bio),
            None => bio.complete(Status::NoDevice),
        }
    }
}

impl Target for Zram {
    fn kind(&self) -> &'static str {
        "zram"
    }

    fn table(&self) -> String {
        self.config.borrow().table()
    }

    fn status(&self) -> String {
        crate::status::line(self)
    }

    fn components(&self) -> Vec<Component> {
        let all = |device: &Rc<dyn BlockDevice>| {
            let len = device.limits().capacity;
            Component { device: device.clone(), start: Sector::ZERO, len, role: Role::Backing }
        };
        self.backing.iter().map(all).collect()
    }

    fn deps(&self) -> Vec<String> {
        self.backing.iter().map(|device| device.name().to_owned()).collect()
    }

    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.stop().await })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.start().await })
    }

    fn attributes(&self) -> Vec<&'static str> {
        attributes::NAMES.to_vec()
    }

    fn access(&self, name: &str) -> Access {
        attributes::access(name)
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<String, Error>> {
        Box::pin(async move { self.get(&name).await })
    }

    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.set(&name, &value).await })
    }
}

impl fmt::Debug for Zram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zram({}, {:?})", self.name, self.layout)
    }
}
