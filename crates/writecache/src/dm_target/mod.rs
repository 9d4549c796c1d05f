// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device mapper's target: messages and attributes; it passes bios to the open cache.
mod bios;
mod drain;
#[cfg(feature = "planted")]
mod early;
mod lost_writes;
mod messages;
mod open;
mod origin;
mod problems;
mod replaced;
mod resize;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::attr::{self, Spec};
use block::value::Value;
use block::{
    Bio, BlockDevice, Component, DirtyRuns, Error, Limits, LocalFuture, Role, Sector, Status,
    Target, UnsavedBlocks, ZeroRuns,
};

use self::bios::OpenCache;
use crate::attachment::Attachment;
use crate::cache::Cache;
use crate::config::{CacheMode, Config, Tuning};
use crate::device_limits::limits;
use crate::events::{CacheEvent, OnEvent};
use crate::figures::{DRAIN, FIGURES};
use crate::options::{self, OPTIONS};
use crate::planted::Fault;

/// The writecache target.
///
/// Lifecycle: made from a parsed table line without touching the cache device; `resume` opens it
/// (so that a table can be loaded while another instance of the same cache is still live);
/// `suspend` commits, stops writeback, and keeps the map for the next `resume`.
pub struct WriteCache {
    name: String,
    config: RefCell<Config>,
    origin: Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    sectors: Sector,
    live: RefCell<Option<Rc<OpenCache>>>,
    /// Planted fault: the cache that was opened too early.
    #[cfg(feature = "planted")]
    early: RefCell<Option<Rc<Cache>>>,
    flush_on_suspend: Cell<bool>,
    /// Another table takes its place: the next suspend does the same.
    is_replaced: Cell<bool>,
    /// What it does in the background is paused: the suspend that follows is to end soon.
    is_paused: Cell<bool>,
    must_be_empty: Cell<bool>,
    /// Another instance may have opened the media since the suspend.
    must_reread: Cell<bool>,
    /// A message has switched cleaner mode on; the table line does not show it.
    cleaner_by_message: Cell<bool>,
    on_event: RefCell<Option<OnEvent>>,
    /// The origin's record of the cache, if it keeps one, from the first open on.
    attachment: RefCell<Option<Rc<Attachment>>>,
    /// Counts live periods, so that a task of an earlier one ends.
    period: Cell<u64>,
}

impl WriteCache {
    /// A cache for `sectors` of `origin` on `device`.
    ///
    /// # Errors
    /// `EINVAL` when block size, length or devices do not fit together; the text says which and
    /// why.
    pub fn new(
        name: impl Into<String>,
        config: Config,
        origin: Rc<dyn BlockDevice>,
        device: Rc<dyn BlockDevice>,
        sectors: Sector,
    ) -> Result<Rc<WriteCache>, Error> {
        let (o, c) = (origin.limits(), device.limits());
        let logical = o.write_unit_bytes().max(c.write_unit_bytes());
        if config.block_size < logical {
            return Err(Error::invalid(format!(
                "Block size is smaller than device logical block size: {} < {logical}",
                config.block_size
            )));
        }
        config.check_length(sectors)?;
        if sectors > o.capacity {
            return Err(Error::invalid(format!(
                "origin {} is too small for target: {} sectors, {sectors} are mapped",
                config.origin, o.capacity
            )));
        }
        if config.start_sector >= c.capacity {
            return Err(Error::invalid(format!(
                "Invalid optional argument: start_sector {}: cache device {} has {} \
                 sectors",
                config.start_sector, config.cache, c.capacity
            )));
        }
        let page = Sector::from_bytes(format::UNIT as u64);
        if c.write_unit_bytes() > 512 && !config.start_sector.is_aligned(page) {
            return Err(Error::invalid(format!(
                "Invalid optional argument: start_sector {}: a multiple of {page} is \
                 allowed on cache device {}",
                config.start_sector, config.cache
            )));
        }
        let cache = Rc::new(WriteCache {
            name: name.into(),
            config: RefCell::new(config),
            origin,
            device,
            sectors,
            live: RefCell::new(None),
            flush_on_suspend: Cell::new(false),
            is_replaced: Cell::new(false),
            is_paused: Cell::new(false),
            must_be_empty: Cell::new(false),
            must_reread: Cell::new(false),
            cleaner_by_message: Cell::new(false),
            on_event: RefCell::new(None),
            #[cfg(feature = "planted")]
            early: RefCell::new(None),
            attachment: RefCell::new(None),
            period: Cell::new(0),
        });
        #[cfg(feature = "planted")]
        cache.clone().open_early();
        Ok(cache)
    }

    /// Calls `notify` with each event from now on; set it before the first `resume`.
    pub fn on_event(&self, notify: impl Fn(CacheEvent) + 'static) {
        *self.on_event.borrow_mut() = Some(Rc::new(notify));
    }

    /// Recounts all states and panics if a counter is wrong; for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        if let Some(cache) = self.cache() {
            cache.store.slots.borrow().check();
        }
    }

    /// Reads an attribute. Errors: `EBUSY` before the first resume, `ENOENT` for unknown names.
    pub fn attribute(&self, name: &str) -> Result<Value, Error> {
        let cache = self.cache().ok_or_else(|| {
            Error::busy(format!("writecache {}: was never resumed: {name} is not known", self.name))
        })?;
        cache.attribute(name)
    }

    /// The engine, if the cache is open.
    pub(crate) fn cache(&self) -> Option<Rc<Cache>> {
        self.live.borrow().as_ref().map(|open| open.cache.clone())
    }

    pub(crate) fn origin(&self) -> &Rc<dyn BlockDevice> {
        &self.origin
    }

    /// Whether this fault is planted: never in a build without them.
    pub(crate) fn has_fault(&self, fault: Fault) -> bool {
        self.config.borrow().planted.is(fault)
    }

    fn running(&self) -> Result<Rc<Cache>, Error> {
        self.cache().filter(|c| !c.is_stopping()).ok_or_else(|| self.suspended())
    }

    fn suspended(&self) -> Error {
        Error::busy(format!("writecache {}: the device is suspended", self.name))
    }

    /// The options as they are now, with those that messages have set. Writethrough empties the
    /// cache as cleaner mode does: so the path of a write has one test for both.
    fn tuning(&self) -> Tuning {
        let tuning = self.config.borrow().tuning;
        let through = tuning.cache_mode == CacheMode::Writethrough;
        Tuning { cleaner: through || self.is_cleaner(), ..tuning }
    }

    /// Whether an option or a message has switched cleaner mode on.
    fn is_cleaner(&self) -> bool {
        self.config.borrow().tuning.cleaner || self.cleaner_by_message.get()
    }

    /// Applies the options as they are now.
    fn retune(&self) {
        let Some(cache) = self.cache() else { return };
        let (old, new) = (cache.tuning(), self.tuning());
        cache.writeback.tune(new);
        if old.max_age != new.max_age {
            cache.writeback.restart_ages();
        }
        let has_other_time = old.autocommit_time != new.autocommit_time;
        if has_other_time {
            cache.store.start_autocommit();
        }
        if has_other_time || old.reads.enter != new.reads.enter {
            cache.writeback.start_naming();
        }
        if old.scrub_rate != new.scrub_rate {
            cache.scrub.start();
        }
    }
}

impl BlockDevice for WriteCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        limits(&self.config.borrow(), &*self.origin, &*self.device, self.sectors)
    }

    fn submit(&self, bio: Bio) {
        match &*self.live.borrow() {
            Some(open) => open.submit(bio),
            None => bio.complete(Status::Io),
        }
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.find_zero_runs(at, len)
    }
}

impl Target for WriteCache {
    fn kind(&self) -> &'static str {
        "writecache"
    }

    fn table(&self) -> String {
        self.config.borrow().table()
    }

    fn status(&self) -> String {
        self.cache().map_or_else(String::new, |c| c.status_line())
    }

    fn components(&self) -> Vec<Component> {
        let begin = self.config.borrow().start_sector;
        let origin = Component {
            device: self.origin.clone(),
            start: Sector::ZERO,
            len: self.sectors,
            role: Role::Origin,
        };
        let device = self.device.clone();
        // The device may have become shorter since the table was loaded.
        let len = Sector(device.limits().capacity.0.saturating_sub(begin.0));
        vec![origin, Component { device, start: begin, len, role: Role::Cache }]
    }

    fn unsaved(&self) -> Option<UnsavedBlocks> {
        self.unsaved_blocks()
    }

    fn write_back(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.running()?.writeback.write_back_all().await })
    }

    fn empty(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.write_back_and_close().await })
    }

    fn cancel_empty(&self) {
        self.is_replaced.set(false);
    }

    fn mark_replaced(self: Rc<Self>, successor: String) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.mark(successor).await })
    }

    fn release_origin(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.release().await })
    }

    fn drop_copies(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.drop_held_copies().await })
    }

    fn claim_origin(self: Rc<Self>) -> LocalFuture<()> {
        Box::pin(async move { self.claim().await })
    }

    fn require_empty(&self) {
        self.must_be_empty.set(true);
    }

    fn check_empty(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move { self.probe_empty().await })
    }

    fn takes_while_suspended(&self, words: &[String]) -> bool {
        Self::takes_message_while_suspended(words)
    }

    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        Box::pin(self.take_message(words))
    }

    fn pause_background(self: Rc<Self>, is_paused: bool) -> LocalFuture<()> {
        self.is_paused.set(is_paused);
        Box::pin(async move {
            if let Some(cache) = self.cache().filter(|cache| !cache.is_stopping()) {
                cache.pause_background(is_paused).await;
            }
        })
    }

    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            let suspended = self.end_period().await;
            self.leave_origin();
            suspended
        })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            if self.live.borrow().is_none() {
                return self.open_and_begin().await;
            }
            // A failed cache is not opened again: only its memory has the acknowledged writes
            // without a flush. A new table makes a new cache from the media.
            if self.must_reread.get() && !self.has_failed() {
                return self.open_again().await;
            }
            self.attach_origin().await?;
            self.guard_origin().await;
            self.lock_journal()?;
            self.begin();
            Ok(())
        })
    }

    fn reread_media(&self) {
        self.must_reread.set(true);
    }

    fn take_over(self: Rc<Self>, before: Rc<dyn Target>) -> LocalFuture<()> {
        self.take_over_lost_writes(before);
        Box::pin(async {})
    }

    fn attributes(&self) -> Vec<&'static Spec> {
        let config = self.config.borrow();
        let figures = attr::specs(&FIGURES).into_iter().chain([&DRAIN]);
        figures.chain(options::attributes(&config)).collect()
    }

    fn problems(&self) -> Vec<String> {
        let has_directory = reactor::shared_memory().is_some();
        problems::problems(|name| self.attribute(name).ok(), has_directory)
    }

    fn metrics(&self) -> Vec<(&'static Spec, u64)> {
        let figures = self.cache().map(|cache| attr::metrics(&FIGURES, &cache));
        let options = attr::metrics(&OPTIONS, &self.config.borrow());
        figures.into_iter().flatten().chain(options).collect()
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<Value, Error>> {
        if name == DRAIN.name {
            return Box::pin(async move { Err(attr::write_only(&name).within("writecache")) });
        }
        let option = match &*name {
            "cleaner" => Some(self.is_cleaner().into()),
            _ => self.config.borrow().option_value(&name),
        };
        let value = option.map_or_else(|| self.attribute(&name), Ok);
        Box::pin(async { value })
    }

    /// Options are attributes, too: setting one changes the live device and its table line.
    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        if name == DRAIN.name {
            return self.set_drain(value);
        }
        let outcome = if attr::find(&FIGURES, &name).is_some() {
            Err(attr::read_only(&name).within("writecache"))
        } else {
            let changed = self.config.borrow().with_option(&name, &value);
            changed.map(|config| {
                if name.eq_ignore_ascii_case("cleaner") {
                    self.cleaner_by_message.set(false);
                }
                *self.config.borrow_mut() = config;
            })
        };
        if outcome.is_ok() {
            self.retune();
        }
        Box::pin(async { outcome })
    }

    fn tracks_dirty(&self) -> bool {
        self.live.borrow().is_some()
    }

    fn dirty_map(self: Rc<Self>, cells: u32) -> LocalFuture<Option<Vec<u64>>> {
        let map = self.cache().map(|cache| cache.dirty_map(self.sectors, cells));
        Box::pin(async { map })
    }

    fn dirty(self: Rc<Self>, at: Sector, len: Sector) -> DirtyRuns {
        let runs = self.cache().map(|cache| cache.dirty_runs(at, len));
        Box::pin(async { runs })
    }
}

impl Drop for WriteCache {
    fn drop(&mut self) {
        if let Some(open) = self.live.borrow_mut().take() {
            open.cache.abandon();
        }
    }
}

block::debug_as!(WriteCache, s => "WriteCache({})", s.name);
