// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device: takes bios for its parts; starts, stops and runs commands.
//!
//! Invariants
//! - ZR-T1 One command runs at a time: writeback, recompression or compaction. Marking pages idle
//!   and reading an attribute do not wait for it.
//! - ZR-T2 `suspend` ends the running command at its next page, and waits for it.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{
    Bio, BlockDevice, CoreId, Error, Limits, LocalFuture, Reservation, Sector, Status, ZeroRuns,
};
use reactor::WaitList;

use crate::auto_writeback::{self, AutoWriteback};
use crate::config::Config;
use crate::control::apply;
use crate::failures::OnFailure;
use crate::layout::{Layout, PAGE_SECTORS, SLOTS_MAX};
use crate::part::{self, Plan};
use crate::parts::Parts;
use crate::shared::Shared;
use crate::slot::PAGE;
use crate::store::Memory;

/// Memory of the table, for each slot.
const SLOT_BYTES: u64 = 16;
/// Memory for each block of the backing device: the count of objects in it, and whether it is
/// taken.
const BLOCK_BYTES: u64 = 2;

/// Turns a live device into an unconfigured one; given by the program.
pub type OnReset = Rc<dyn Fn() -> LocalFuture<Result<(), Error>>>;

/// Asked before a device starts for the first time; given by the program.
pub type BeforeStart = Rc<dyn Fn() -> Result<(), Error>>;
/// Refuses a backing device whose contents must not be overwritten.
pub type BeforeOverwrite = Rc<dyn Fn(Rc<dyn BlockDevice>) -> LocalFuture<Result<(), Error>>>;

/// The zram target: a compressed RAM disk.
///
/// Lifecycle: made from a parsed table line. The first `resume` makes the parts. The data live as
/// long as the target, through any number of `suspend` and `resume`.
pub struct Zram {
    pub(crate) name: String,
    pub(crate) config: RefCell<Config>,
    backing: Option<Rc<dyn BlockDevice>>,
    pub(crate) layout: Layout,
    limits: Limits,
    cores: Vec<CoreId>,
    pub(crate) shared: Arc<Shared>,
    /// Since the first `resume`.
    started: RefCell<Option<Started>>,
    hooks: Hooks,
    lifecycle: Lifecycle,
    pub(crate) auto: AutoWriteback,
}

/// What the first `resume` makes.
struct Started {
    parts: Rc<Parts>,
    /// The memory of the tables of the parts, out of the core's budget.
    _memory: Reservation,
}

/// Callbacks of the program.
#[derive(Default)]
struct Hooks {
    on_reset: RefCell<Option<OnReset>>,
    before_start: RefCell<Option<BeforeStart>>,
    before_overwrite: RefCell<Option<BeforeOverwrite>>,
}

/// What the device does now.
struct Lifecycle {
    /// A command runs (ZR-T1).
    busy: Cell<bool>,
    suspending: Cell<bool>,
    /// Woken when a command has ended, or the device is suspended.
    changed: WaitList,
    /// Counts suspends and resumes: an automatic writeback of an earlier generation ends.
    generation: Cell<u64>,
}

impl Zram {
    /// A device whose pages are written back to `backing` if there is one, with its parts on
    /// `cores`, of which the first is this one.
    ///
    /// # Errors
    /// `EINVAL` when lengths or backing do not fit; the message names them and what is allowed.
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
        let parts = config.parts.unwrap_or(given);
        let layout = Layout { slots, parts };
        if slots.div_ceil(u64::from(parts)) > SLOTS_MAX {
            let most = SLOTS_MAX * u64::from(parts) * PAGE_SECTORS;
            return Err(Error::invalid(format!(
                "length {sectors}: at most {most} sectors are allowed with {parts} shards"
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
                let needed = match parts {
                    1 => format!("a page of {PAGE} bytes is"),
                    parts => format!("{parts} pages of {PAGE} bytes, one for each part, are"),
                };
                let has = device.limits().capacity.bytes();
                return Err(Error::invalid(format!(
                    "backing_dev {}: it has {has} bytes, which are too few: at least {needed} \
                     needed",
                    device.name()
                )));
            }
        }
        let memory = Arc::new(Memory::new());
        let shared = Shared::new(memory, parts as usize);
        shared.budget.set_left(config.writeback_limit);
        apply(&config, &shared);
        let limits = Limits { keeps: false, loses_all: true, ..part::limits(sectors) };
        Ok(Rc::new(Zram {
            name: name.into(),
            config: RefCell::new(config),
            backing,
            layout,
            limits,
            cores,
            shared,
            started: RefCell::default(),
            hooks: Hooks::default(),
            lifecycle: Lifecycle {
                busy: Cell::new(false),
                suspending: Cell::new(false),
                changed: WaitList::new(),
                generation: Cell::new(0),
            },
            auto: AutoWriteback::new(),
        }))
    }

    /// Whether it has pages that are lost when it is dropped.
    pub fn would_lose_pages(&self) -> bool {
        self.shared.totals().orig_pages > 0
    }

    /// Sets the check that may refuse the first start.
    pub fn set_before_start(&self, before_start: BeforeStart) {
        self.hooks.before_start.replace(Some(before_start));
    }

    /// Sets the check of the backing device before its first use.
    pub fn set_before_overwrite(&self, check: BeforeOverwrite) {
        self.hooks.before_overwrite.replace(Some(check));
    }

    /// Sets what is told of failures.
    pub fn set_on_failure(&self, on_failure: OnFailure) {
        self.shared.failures.set_on_failure(on_failure);
    }

    /// Sets what `reset` does.
    pub fn set_on_reset(&self, on_reset: OnReset) {
        self.hooks.on_reset.replace(Some(on_reset));
    }

    pub(crate) fn on_reset(&self) -> Option<OnReset> {
        self.hooks.on_reset.borrow().clone()
    }

    /// Bytes of memory that the tables take when every slot has a page.
    fn table_bytes(&self) -> u64 {
        let blocks = self.backing.as_ref().map_or(0, |d| d.limits().capacity.0 / PAGE_SECTORS);
        let slots = self.layout.slots.saturating_mul(SLOT_BYTES);
        slots.saturating_add(blocks.saturating_mul(BLOCK_BYTES))
    }

    /// A description of the tables, for errors.
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

    pub(crate) fn backing(&self) -> Option<&Rc<dyn BlockDevice>> {
        self.backing.as_ref()
    }

    /// The generation of the device: another one after each suspend and resume.
    pub(crate) fn generation(&self) -> u64 {
        self.lifecycle.generation.get()
    }

    /// The parts, after the first resume.
    pub(crate) fn parts(&self) -> Option<Rc<Parts>> {
        self.started.borrow().as_ref().map(|started| started.parts.clone())
    }

    /// The parts, for a command.
    pub(crate) fn running(&self) -> Result<Rc<Parts>, Error> {
        let never = || Error::invalid(format!("{}: it was never resumed", self.name));
        let parts = self.parts().ok_or_else(never)?;
        if self.lifecycle.suspending.get() {
            return Err(Error::busy(format!("{}: it is suspended", self.name)));
        }
        Ok(parts)
    }

    /// Waits for the running command (ZR-T1).
    pub(crate) async fn lock_commands(self: &Rc<Self>) -> Result<CommandLock, Error> {
        let Lifecycle { busy, changed, .. } = &self.lifecycle;
        changed.wait_for(|| !busy.get()).await;
        self.running()?;
        busy.set(true);
        Ok(CommandLock(self.clone()))
    }

    fn next_generation(&self) {
        self.lifecycle.generation.set(self.generation() + 1);
    }

    pub(crate) async fn start(self: &Rc<Self>) -> Result<(), Error> {
        self.lifecycle.suspending.set(false);
        self.shared.cancel.store(false, Relaxed);
        if self.started.borrow().is_none() {
            let before_overwrite = self.hooks.before_overwrite.borrow().clone();
            if let (Some(check), Some(device)) = (before_overwrite, &self.backing) {
                check(device.clone()).await?;
            }
            let before_start = self.hooks.before_start.borrow().clone();
            before_start.map_or(Ok(()), |check| check())?;
            let algorithms = self.config.borrow().algorithms();
            // Before anything is written to the backing device.
            let memory = reactor::memory().reserve(self.table_bytes(), self.tables())?;
            let plan = Plan {
                device: self.name.clone(),
                nth: 0,
                layout: self.layout,
                algorithms,
                shared: self.shared.clone(),
                packed: self.config.borrow().compressed_writeback,
                planted: self.config.borrow().planted,
            };
            let parts = Parts::make(&plan, &self.cores, self.backing.clone()).await?;
            self.started.replace(Some(Started { parts: Rc::new(parts), _memory: memory }));
        }
        self.next_generation();
        auto_writeback::start(self);
        Ok(())
    }

    pub(crate) async fn stop(self: &Rc<Self>) -> Result<(), Error> {
        self.lifecycle.suspending.set(true);
        self.next_generation();
        self.shared.cancel.store(true, Relaxed);
        let Lifecycle { busy, changed, .. } = &self.lifecycle;
        changed.wake_all();
        changed.wait_for(|| !busy.get()).await;
        let Some(parts) = self.parts() else { return Ok(()) };
        parts.ask(|part| async move { part.quiesce().await }).await;
        Ok(())
    }
}

/// The right to run a command; ends when dropped.
pub(crate) struct CommandLock(Rc<Zram>);

impl Drop for CommandLock {
    fn drop(&mut self) {
        let Lifecycle { busy, changed, .. } = &self.0.lifecycle;
        busy.set(false);
        if !block::crashing() {
            changed.wake_all();
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
            // The first part is on this core (ZR-SH2).
            self.shared.counters(0).invalid_io.add(1);
            return bio.complete(status);
        }
        match &*self.started.borrow() {
            Some(started) => started.parts.submit(bio),
            None => bio.complete(Status::NoDevice),
        }
    }

    /// Slots without a page, and pages of zeroes, which take no memory either.
    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let parts = self.parts();
        Box::pin(async move {
            match parts {
                Some(parts) => parts.zero_runs(at, len).await,
                None => Vec::new(),
            }
        })
    }
}

block::debug_as!(Zram, s => "Zram({}, {:?})", s.name, s.layout);
