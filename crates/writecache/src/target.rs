// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The target: life cycle, messages, and the way of a bio into the cache.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{
    Access, Bio, BlockDevice, Class, Error, Limits, LocalFuture, Nanos, Op, Sector, Status, Target,
};
use reactor::Workers;

use crate::cache::{Cache, TaskGuard};
use crate::config::{Config, Mutation, Tuning};
use crate::options;
use crate::trouble::{Tell, Trouble};
use crate::write::ZEROES_CACHED_BYTES_MAX;
use crate::writeback::drain::DrainLimits;

/// The attribute that is a command.
const DRAIN: &str = "drain";
/// Bios handled at once; more wait in order. A task of a bio is kept for the next one.
const BIOS_MAX: usize = 4096;

/// A live period: the open cache and the tasks that serve bios.
struct Live {
    cache: Rc<Cache>,
    /// Reads and flushes, which no crowd of slowed-down writers may hold up.
    prompt: Workers<Bio>,
    changes: Workers<Bio>,
}

/// The writecache target.
///
/// Lifecycle: made from a parsed table line without touching the cache device; `resume` opens it
/// (so that a table can be loaded while another instance of the same cache is still live);
/// `suspend` commits, stops writeback, and keeps what it knows for the next `resume`.
pub struct WriteCache {
    name: String,
    config: RefCell<Config>,
    origin: Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    sectors: Sector,
    live: RefCell<Option<Live>>,
    /// Planted fault: opened before its time.
    early: RefCell<Option<Cache>>,
    flush_on_suspend: Cell<bool>,
    /// Cleaner mode by a message, of which the table line does not tell.
    told_to_clean: Cell<bool>,
    on_trouble: RefCell<Option<Tell>>,
    /// Counts live periods, so that a task of an earlier one ends.
    period: Cell<u64>,
}

impl WriteCache {
    /// A cache for `sectors` of `origin` on `device`.
    ///
    /// # Errors
    /// `EINVAL` when block size, length or devices do not fit together; says which and why.
    pub fn new(
        name: impl Into<String>,
        config: Config,
        origin: Rc<dyn BlockDevice>,
        device: Rc<dyn BlockDevice>,
        sectors: Sector,
    ) -> Result<Rc<WriteCache>, Error> {
        let (o, c) = (origin.limits(), device.limits());
        let logical = o.logical_block_bytes.max(c.logical_block_bytes);
        if config.block_size < logical {
            return Err(Error::invalid(format!(
                "Block size is smaller than device logical block size: {} < {logical}",
                config.block_size
            )));
        }
        let unit = Sector(config.block_sectors());
        if !sectors.is_aligned(unit) {
            return Err(Error::invalid(format!(
                "length {sectors} is not a multiple of the block size, {unit} sectors"
            )));
        }
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
        if c.logical_block_bytes > 512 && !config.start_sector.is_aligned(page) {
            return Err(Error::invalid(format!(
                "Invalid optional argument: start_sector {}: a multiple of {page} is \
                 allowed on cache device {}",
                config.start_sector, config.cache
            )));
        }
        let early = config.mutation == Mutation::OpenWhenLoaded;
        let cache = Rc::new(WriteCache {
            name: name.into(),
            config: RefCell::new(config),
            origin,
            device,
            sectors,
            live: RefCell::new(None),
            flush_on_suspend: Cell::new(false),
            told_to_clean: Cell::new(false),
            on_trouble: RefCell::new(None),
            early: RefCell::new(None),
            period: Cell::new(0),
        });
        if early {
            reactor::spawn(cache.clone().open_early());
        }
        Ok(cache)
    }

    /// Planted fault: see `Mutation::OpenWhenLoaded`.
    async fn open_early(self: Rc<Self>) {
        *self.early.borrow_mut() = self.open().await.ok();
    }

    async fn open(&self) -> Result<Cache, Error> {
        let (origin, device) = (self.origin.clone(), self.device.clone());
        let config = self.config.borrow().clone();
        Cache::open(config, origin, device, self.sectors).await
    }

    /// Has `tell` called with what an operator must hear of; set it before the first `resume`.
    pub fn on_trouble(&self, tell: impl Fn(Trouble) + 'static) {
        *self.on_trouble.borrow_mut() = Some(Rc::new(tell));
    }

    /// Counts everything again and panics if the books are wrong; for tests.
    #[doc(hidden)]
    pub fn check(&self) {
        if let Some(cache) = self.cache() {
            cache.slots.borrow().check();
        }
    }

    /// Reads an attribute. Errors: `EBUSY` before the first resume, `ENOENT` for unknown names.
    pub fn attribute(&self, name: &str) -> Result<String, Error> {
        let cache = self.cache().ok_or_else(|| {
            Error::busy(format!("writecache {}: was never resumed: {name} is not known", self.name))
        })?;
        cache.attribute(name)
    }

    fn cache(&self) -> Option<Rc<Cache>> {
        self.live.borrow().as_ref().map(|l| l.cache.clone())
    }

    fn running(&self) -> Result<Rc<Cache>, Error> {
        self.cache().filter(|c| !c.stopping.get()).ok_or_else(|| {
            Error::busy(format!("writecache {}: the device is suspended", self.name))
        })
    }

    /// Starts the background tasks of a live period.
    fn start(&self, cache: &Rc<Cache>) {
        cache.stopping.set(false);
        cache.checkpoints_on.set(true);
        cache.quiesced.set(false);
        self.period.set(self.period.get() + 1);
        cache.period.set(self.period.get());
        reactor::spawn(cache.clone().pick_task(TaskGuard::new(cache)));
        reactor::spawn(cache.clone().settle_task(TaskGuard::new(cache)));
        reactor::spawn(cache.clone().reclaim_task(TaskGuard::new(cache)));
        reactor::spawn(cache.clone().checkpoint_task());
        reactor::spawn(cache.clone().commit_when_many_task(TaskGuard::new(cache)));
        reactor::spawn(Cache::commit_when_old_task(Rc::downgrade(cache), self.period.get()));
        reactor::spawn(Cache::retry_task(Rc::downgrade(cache), self.period.get()));
        cache.start_ages();
    }

    /// The attribute `drain`: begins one and ends with it, or stops the one that runs.
    fn set_drain(&self, value: String) -> LocalFuture<Result<(), Error>> {
        let cache = self.running();
        Box::pin(async move {
            let cache = cache?;
            if value.trim() == "stop" {
                cache.stop_drain();
                return Ok(());
            }
            cache.drain(DrainLimits::parse(&value)?).await
        })
    }

    /// The options as they are now, with what messages have said.
    fn tuning(&self) -> Tuning {
        let tuning = self.config.borrow().tuning;
        Tuning { cleaner: tuning.cleaner || self.told_to_clean.get(), ..tuning }
    }

    fn retune(&self) {
        let Some(cache) = self.cache() else { return };
        let (old, new) = (cache.tuning(), self.tuning());
        cache.tune(new);
        if old.max_age != new.max_age {
            cache.restart_ages();
        }
    }
}

/// The error of a cache that has failed stop.
pub(crate) fn io_failed(status: Status) -> Error {
    Error::io(format!("{status}; dirty data are kept, load the table again to retry"))
}

impl Cache {
    async fn handle(&self, bio: &Bio) -> Status {
        if let Err(status) = self.limits.check(bio) {
            return status;
        }
        let began = reactor::now();
        let outcome = match bio.op {
            Op::Read => self.read(bio).await,
            Op::Write => self.write(bio.sector, &bio.bufs, bio.class, bio.flags).await,
            Op::Flush => {
                self.stats.flushes.add(1);
                let nothing = self.mutation(Mutation::EpochOnlyWithCommit);
                if !nothing || self.counts().changed > 0 {
                    self.slots.borrow_mut().close_epoch(); // E1
                }
                let committed = self.commit().await;
                committed.and(self.flush_around(bio.class).await)
            }
            Op::WriteZeroes if self.config.ordered => self.write_zeroes_in_order(bio).await,
            Op::WriteZeroes if bio.len.bytes() <= ZEROES_CACHED_BYTES_MAX => {
                self.write_zero_blocks(bio).await
            }
            // Nothing goes around the cache: the origin is written in the order of epochs only.
            Op::Discard if self.config.ordered => Err(Status::NotSupported),
            Op::Discard | Op::WriteZeroes => self.clear(bio).await,
        };
        self.request_ended(bio, began);
        outcome.into()
    }

    /// A task: commits when many blocks have changed.
    async fn commit_when_many_task(self: Rc<Cache>, _guard: TaskGuard) {
        loop {
            let end = || self.stopping.get() || self.health().is_err();
            self.changed.wait_for(|| self.counts().changed >= self.commit_at() || end()).await;
            if end() || self.commit().await.is_err() {
                return;
            }
        }
    }

    /// A task: commits some time after the first change. Suspend does not wait for it, because it
    /// sleeps; asleep it does not keep the cache, whose devices may be closed meanwhile.
    async fn commit_when_old_task(weak: Weak<Cache>, period: u64) {
        while let Some(cache) = weak.upgrade() {
            let end = || {
                let over = cache.stopping.get() || cache.period.get() != period;
                over || cache.health().is_err()
            };
            cache.changed.wait_for(|| cache.counts().changed > 0 || end()).await;
            if end() {
                return;
            }
            let time = cache.tuning().autocommit_time.max(Nanos::from_millis(1));
            drop(cache);
            reactor::sleep(time).await;
            let Some(cache) = weak.upgrade() else { return };
            let over = cache.stopping.get() || cache.period.get() != period;
            if over || cache.commit().await.is_err() {
                return;
            }
        }
    }
}

pub(crate) fn limits(
    config: &Config,
    origin: &dyn BlockDevice,
    device: &dyn BlockDevice,
    capacity: Sector,
) -> Limits {
    let (o, c) = (origin.limits(), device.limits());
    // What goes around the cache may tear as the origin tears.
    let around = if config.ordered { u32::MAX } else { o.atomic_write_unit_bytes };
    let atomic_bytes = c.atomic_write_unit_bytes.min(around);
    Limits {
        capacity,
        logical_block_bytes: config.block_size,
        physical_block_bytes: config.block_size.max(c.physical_block_bytes),
        io_min_bytes: config.block_size,
        io_opt_bytes: o.io_opt_bytes,
        max_io_bytes: o.max_io_bytes.min(c.max_io_bytes),
        atomic_write_unit_bytes: atomic_bytes.min(config.block_size),
        discard_granularity_bytes: if o.discard_granularity_bytes > 0 && !config.ordered {
            o.discard_granularity_bytes.max(config.block_size)
        } else {
            0
        },
        write_zeroes: true,
        volatile_cache: true,
        keeps: o.keeps && c.keeps,
        rotational: false,
        queue_depth: 0,
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
            Some(live) if matches!(bio.op, Op::Read | Op::Flush) => live.prompt.push(bio),
            Some(live) => live.changes.push(bio),
            None => bio.complete(Status::Io),
        }
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

    fn deps(&self) -> Vec<String> {
        let config = self.config.borrow();
        vec![config.origin.clone(), config.cache.clone()]
    }

    fn message(self: Rc<Self>, words: Vec<String>) -> LocalFuture<Result<String, Error>> {
        Box::pin(async move {
            let word = match &words[..] {
                [one] => one.to_ascii_lowercase(),
                _ => String::new(),
            };
            match word.as_str() {
                "flush" => {
                    let cache = self.running()?;
                    cache.write_back_all().await?;
                }
                "flush_on_suspend" => self.flush_on_suspend.set(true),
                "cleaner" => {
                    self.flush_on_suspend.set(true);
                    self.told_to_clean.set(true);
                    self.retune();
                }
                "clear_stats" => {
                    if let Some(cache) = self.cache() {
                        cache.stats.clear();
                    }
                }
                _ => {
                    return Err(Error::invalid(format!(
                        "writecache: unknown message `{}`: flush, flush_on_suspend, cleaner, \
                         clear_stats are allowed",
                        words.join(" ")
                    )));
                }
            }
            Ok(String::new())
        })
    }

    fn suspend(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            let Some(cache) = self.cache().filter(|c| !c.stopping.get()) else { return Ok(()) };
            let mut flushed = Ok(());
            if self.flush_on_suspend.replace(false) {
                flushed = cache.write_back_all().await;
            }
            let mut outcome = Ok(());
            cache.stopping.set(true);
            cache.changed.wake_all();
            let ended = || cache.tasks.get() == 0 && cache.writeback.in_flight_runs() == 0;
            if !cache.mutation(Mutation::SuspendInFlight) {
                cache.changed.wait_for(ended).await;
            }
            // A cache that had failed before has told so; a commit that fails now tells.
            if cache.health().is_ok() {
                cache.slots.borrow_mut().close_epoch();
                outcome = outcome.and(cache.commit().await);
                outcome = outcome.and(cache.flush_around(Class::Background).await);
                outcome = outcome.and(cache.seal().await);
            }
            cache.quiesced.set(true);
            cache.changed.wake_all();
            cache.changed.wait_for(|| !cache.checkpoints_on.get()).await;
            flushed.and(outcome.map_err(io_failed))
        })
    }

    fn resume(self: Rc<Self>) -> LocalFuture<Result<(), Error>> {
        Box::pin(async move {
            // A cache that has failed stays so: what it acknowledged without a flush is known only
            // here. A new table makes a new cache, which knows what the media know.
            if let Some(cache) = self.cache() {
                self.start(&cache);
                return Ok(());
            }
            let early = self.early.take();
            let cache = Rc::new(match early {
                Some(cache) => cache,
                None => self.open().await?,
            });
            // A1: a process that was killed may have left writes around in a cache of the origin.
            let flushed = cache.flush_origin(Class::Foreground, cache.origin_doubt()).await;
            flushed.map_err(io_failed)?;
            cache.tune(self.tuning());
            // Crash after crash could use up what the log keeps for the end of a checkpoint.
            if cache.is_checkpoint_due() || cache.retell.get() {
                cache.checkpoint().await.map_err(io_failed)?;
                cache.slots.borrow_mut().free_after_checkpoint();
            }
            cache.tell_trouble.replace(self.on_trouble.borrow().clone());
            let workers = || {
                let handler = cache.clone();
                Workers::new(BIOS_MAX, move |bio: Bio| {
                    let cache = handler.clone();
                    async move {
                        let status = cache.handle(&bio).await;
                        bio.complete(status);
                    }
                })
            };
            let (prompt, changes) = (workers(), workers());
            self.start(&cache);
            *self.live.borrow_mut() = Some(Live { cache, prompt, changes });
            Ok(())
        })
    }

    fn attributes(&self) -> Vec<&'static str> {
        let config = self.config.borrow();
        let options = options::attributes(&config).map(|o| o.name);
        crate::status::attributes().chain([DRAIN]).chain(options).collect()
    }

    fn access(&self, name: &str) -> Access {
        if name == DRAIN {
            return Access::Write;
        }
        if options::attributes(&self.config.borrow()).any(|o| o.live && o.name == name) {
            Access::ReadWrite
        } else {
            Access::Read
        }
    }

    fn get_attribute(self: Rc<Self>, name: String) -> LocalFuture<Result<String, Error>> {
        let option = match &*name {
            "cleaner" => Some(u8::from(self.tuning().cleaner).to_string()),
            _ => self.config.borrow().option_value(&name),
        };
        let value = option.map_or_else(|| self.attribute(&name), Ok);
        Box::pin(async move { value })
    }

    /// Options are attributes too: changing one changes the live device and its table line.
    fn set_attribute(
        self: Rc<Self>,
        name: String,
        value: String,
    ) -> LocalFuture<Result<(), Error>> {
        if name == DRAIN {
            return self.set_drain(value);
        }
        let outcome = if crate::status::attributes().any(|a| a == name) {
            Err(Error::invalid(format!("writecache: attribute `{name}` is read-only")))
        } else {
            let changed = self.config.borrow().with_option(&name, &value);
            changed.map(|config| {
                if name.eq_ignore_ascii_case("cleaner") {
                    self.told_to_clean.set(false);
                }
                *self.config.borrow_mut() = config;
                self.retune();
            })
        };
        Box::pin(async move { outcome })
    }

    fn dirty(&self, at: Sector, len: Sector) -> Option<Vec<(Sector, Sector)>> {
        self.cache().map(|c| c.dirty_runs(at, len))
    }
}

impl Drop for WriteCache {
    fn drop(&mut self) {
        if let Some(live) = self.live.borrow_mut().take() {
            live.cache.stopping.set(true);
            live.cache.quiesced.set(true);
            if !block::crashing() {
                live.cache.changed.wake_all();
            }
        }
    }
}

impl fmt::Debug for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteCache({})", self.name)
    }
}
