// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts: a cache divided by regions of its origin. Each part is a complete engine, on a core of
//! its own.
//!
//! ```text
//!   bio within a chunk ──▶ its part, unchanged        FLUSH ──▶ all parts
//!   longer bio         ──▶ a bio for each chunk
//!   ask                ──▶ a task on the part's core, its answer back to this core
//!
//!   part's reads and writes ─▶ the devices, from the part's core where the program shares them
//!   part's flushes          ─▶ `flushes`, on this core: one at a time for all
//!   what touches a guard    ─▶ the guard of the origin, on this core: one for all
//! ```
//!
//! A part is a [`WriteCache`] with a part number (`Config::part`). It has an area of the cache
//! device, and uses the origin with unchanged addresses. Requests to different parts share only
//! flushes.
//!
//! Invariants
//! - WC-P1 A block belongs to one part for as long as the cache lives: number of parts, chunk and
//!   areas are on the media.
//! - WC-P2 A FLUSH ends when every part has ended it. A part without changes has nothing to do for
//!   it.
//! - WC-P3 Writes that a failed flush of a shared device may have lost count as lost in every part
//!   (`flushes`).
pub(crate) mod area;
pub(crate) mod control;
pub(crate) mod division;
pub(crate) mod flushes;
mod grow;
mod head;
pub(crate) mod layout;
pub(crate) mod open;
mod remote;
mod router;
pub(crate) mod shrink;
mod sum;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use block::{Bio, BlockDevice, CoreId, Error, Limits, MakeDevice, Sector};
use reactor::{
    CoreLocal, Export, Msg, Remote, SharedDeviceName, call, core_id, export, post, unexport,
};
use smallvec::SmallVec;

use self::area::PartArea;
use self::division::Division;
pub(crate) use self::division::{share_of_rate, tuning_of_part};
use self::flushes::{AfterFailure, FlushPort, Flushes, SharedDevice};
pub(crate) use self::open::divide;
use self::remote::{Data, RemoteDevice};
use self::router::Router;
pub(crate) use self::sum::{AggregatedStatus, PartReport};
use crate::config::Config;
use crate::dm_target::WriteCache;
use crate::events::{CacheEvent, OnEvent};
use crate::guard::{Guard, GuardedOrigin};
use crate::planted::Fault;

/// Makes a device on another core that uses the same file or memory.
pub type DeviceFactory = Box<dyn FnOnce() -> Rc<dyn BlockDevice> + Send>;

/// Returns how another core makes a direct device for a device of this core, if that is possible.
/// The program provides it. Other devices are used by messages to this core.
pub type ShareDevice = Rc<dyn Fn(&Rc<dyn BlockDevice>) -> Option<DeviceFactory>>;

/// The cores of parts, and how devices are shared with them.
#[derive(Clone)]
pub(crate) struct Placement {
    pub(crate) cores: Vec<CoreId>,
    pub(crate) share: ShareDevice,
}

/// What is needed to make the parts.
pub(crate) struct Plan<'a> {
    pub(crate) name: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) division: Division,
    pub(crate) origin: &'a Rc<dyn BlockDevice>,
    /// The guard of the origin, if it has one.
    pub(crate) guard: Option<Rc<Guard>>,
    pub(crate) cache_flushes: Rc<Flushes>,
    pub(crate) sectors: Sector,
    pub(crate) limits: Limits,
    pub(crate) placement: Option<&'a Placement>,
    pub(crate) on_event: Option<OnEvent>,
}

/// This core's handle of a part.
struct PartHandle {
    core: CoreId,
    local: CoreLocal,
    /// Its device, a [`PartArea`].
    area: CoreLocal,
    /// Where other cores may use it.
    export: Option<Export>,
}

/// A part, and its device on this core.
type MadePart = (PartHandle, Rc<dyn BlockDevice>);

/// All parts of a cache.
pub(crate) struct Parts {
    handles: Vec<PartHandle>,
    division: RefCell<Division>,
    /// The parts take the space by which the cache device has grown.
    is_growing: Cell<bool>,
    router: Router,
    pub(crate) cache_flushes: Rc<Flushes>,
    pub(crate) origin_flushes: Rc<Flushes>,
    /// The guard of the origin, if it has one (WC-GU8).
    pub(crate) guard: Option<Rc<Guard>>,
    /// Exports: the devices of this core that other cores use, and the parts on other cores.
    exports: RefCell<Vec<(CoreId, Export)>>,
    forwarder: CoreLocal,
    /// No background work.
    pub(crate) suspended: Cell<bool>,
    aggregated: RefCell<AggregatedStatus>,
}

/// Forwards events of the parts, those of the origin once for all parts.
struct EventForwarder {
    on_event: Option<OnEvent>,
    /// Bit n: part n has reported an error of the origin, and not its end.
    origin_failing: Cell<u16>,
}

impl EventForwarder {
    fn forward(&self, nth: u8, event: CacheEvent) {
        let before = self.origin_failing.get();
        let after = match event {
            CacheEvent::Writeback { .. } | CacheEvent::OriginFlush { .. } => before | 1 << nth,
            CacheEvent::Recovered => before & !(1 << nth),
            CacheEvent::Failed { .. }
            | CacheEvent::Lost { .. }
            | CacheEvent::Bug { .. }
            | CacheEvent::BadBlock { .. }
            | CacheEvent::RottenBlock { .. }
            | CacheEvent::ReadAgain { .. }
            | CacheEvent::Opening { .. }
            | CacheEvent::Opened { .. }
            | CacheEvent::JournalApplied { .. }
            | CacheEvent::JournalDataLost { .. }
            | CacheEvent::JournalIgnored { .. }
            | CacheEvent::NoJournal
            | CacheEvent::NoBuffer
            | CacheEvent::Guarded
            | CacheEvent::Unguarded { .. }
            | CacheEvent::GapLost { .. } => before,
        };
        self.origin_failing.set(after);
        // There is one origin: it counts as failing from the first error of a part until the last
        // part has recovered.
        let is_news = match event {
            CacheEvent::Writeback { .. } | CacheEvent::OriginFlush { .. } => before == 0,
            CacheEvent::Recovered => after == 0,
            CacheEvent::Failed { .. }
            | CacheEvent::Lost { .. }
            | CacheEvent::Bug { .. }
            | CacheEvent::BadBlock { .. }
            | CacheEvent::RottenBlock { .. }
            | CacheEvent::ReadAgain { .. }
            | CacheEvent::Opening { .. }
            | CacheEvent::Opened { .. }
            | CacheEvent::JournalApplied { .. }
            | CacheEvent::JournalDataLost { .. }
            | CacheEvent::JournalIgnored { .. }
            | CacheEvent::NoJournal
            | CacheEvent::NoBuffer
            | CacheEvent::Guarded
            | CacheEvent::Unguarded { .. }
            | CacheEvent::GapLost { .. } => true,
        };
        if let Some(on_event) = self.on_event.as_ref().filter(|_| is_news) {
            on_event(event);
        }
    }
}

impl Parts {
    /// Makes and opens the parts of `plan`, each on its core. [`WriteCache::begin_local`] starts
    /// each.
    pub(crate) async fn open(plan: Plan<'_>) -> Result<Rc<Parts>, Error> {
        let of = plan.division.parts();
        let forwarder = Rc::new(EventForwarder {
            on_event: plan.on_event.clone(),
            origin_failing: Cell::new(0),
        });
        let origin: Rc<dyn BlockDevice> = match &plan.guard {
            Some(guard) => Rc::new(GuardedOrigin::new(guard.clone())),
            None => plan.origin.clone(),
        };
        // If a part fails to open, dropping this drops the earlier parts.
        let mut parts = Parts {
            handles: Vec::new(),
            division: RefCell::new(plan.division.clone()),
            is_growing: Cell::new(false),
            router: Router {
                name: plan.name.to_owned(),
                layout: plan.division.layout(),
                limits: plan.limits.clone(),
                planted: plan.config.planted,
                devices: SmallVec::new(),
            },
            cache_flushes: plan.cache_flushes.clone(),
            origin_flushes: Flushes::new(origin, of, AfterFailure::NotifyOthers),
            guard: plan.guard.clone(),
            exports: RefCell::default(),
            forwarder: CoreLocal::keep(forwarder.clone()),
            suspended: Cell::new(false),
            aggregated: RefCell::default(),
        };
        let here = core_id();
        let mut away = Vec::new();
        let mut made: Vec<Option<Result<MadePart, Error>>> = (0..of).map(|_| None).collect();
        for nth in 0..of {
            let core = plan.placement.map_or(here, |s| s.cores[usize::from(nth) % s.cores.len()]);
            if core != here {
                away.push((nth, core, parts.send(&plan, nth, core)));
            }
        }
        for nth in 0..of {
            if away.iter().all(|(n, ..)| *n != nth) {
                made[usize::from(nth)] = Some(parts.make_local(&plan, nth, &forwarder).await);
            }
        }
        for (nth, core, sent) in away {
            let opened = sent.await.map(|(local, area, export)| {
                parts.exports.borrow_mut().push((core, export));
                let device = Remote::new(core, export, plan.name, Limits::new(plan.sectors));
                let handle = PartHandle { core, local, area, export: Some(export) };
                (handle, Rc::new(device) as Rc<dyn BlockDevice>)
            });
            made[usize::from(nth)] = Some(opened);
        }
        let mut outcome = Ok(());
        for (nth, opened) in made.into_iter().enumerate() {
            match opened.expect("here or away") {
                Ok((handle, device)) => {
                    parts.handles.push(handle);
                    parts.router.devices.push(device);
                }
                Err(e) => outcome = outcome.and(Err(e.within(format!("part {nth} of {of}")))),
            }
        }
        outcome?;
        let parts = Rc::new(parts);
        if !parts.router.planted.is(Fault::PartsNotNotified) {
            let aggregated: Vec<_> =
                parts.handles.iter().map(|part| (part.core, part.local)).collect();
            parts.origin_flushes.notify_with(Rc::new(move |nth, status| {
                let (core, local) = aggregated[usize::from(nth)];
                let notify = move || {
                    if let Some(part) = local.get::<WriteCache>() {
                        part.other_flush_failed(status);
                    }
                };
                if core == core_id() { notify() } else { post(core, Msg::Call(Box::new(notify))) }
            }));
        }
        if let Some(guard) = &parts.guard {
            guard.set_shared_flushes(&parts.origin_flushes);
        }
        Ok(parts)
    }

    async fn make_local(
        &self,
        plan: &Plan<'_>,
        nth: u8,
        forwarder: &Rc<EventForwarder>,
    ) -> Result<MadePart, Error> {
        let origin = SharedDevice::on_this_core(&self.origin_flushes, nth);
        let device = SharedDevice::on_this_core(&self.cache_flushes, nth);
        let area = PartArea::new(device, self.areas_of(plan, nth));
        let config = plan.division.config_of(plan.config, nth);
        let part = WriteCache::new(plan.name, config, origin, area.clone(), plan.sectors)?;
        let forwarder = forwarder.clone();
        part.on_event(move |event| forwarder.forward(nth, event));
        part.open_part().await?;
        let (core, local, area) = (core_id(), CoreLocal::keep(part.clone()), CoreLocal::keep(area));
        let has_other_cores = plan.placement.is_some_and(|p| p.cores.iter().any(|c| *c != core));
        let exported = has_other_cores.then(|| export(part.clone()));
        self.exports.borrow_mut().extend(exported.map(|export| (core, export)));
        Ok((PartHandle { core, local, area, export: exported }, part))
    }

    /// Makes and opens a part on another core.
    fn send(
        &self,
        plan: &Plan<'_>,
        nth: u8,
        core: CoreId,
    ) -> impl Future<Output = Result<(CoreLocal, CoreLocal, Export), Error>> + 'static {
        let home = core_id();
        let placement = plan.placement.expect("there are other cores");
        let remote = |flushes: &Rc<Flushes>, guard: Option<&Rc<Guard>>| {
            let export = |device| {
                let export = export(device);
                self.exports.borrow_mut().push((home, export));
                export
            };
            let data = flushes.device();
            let below = guard.map_or(data, |guard| guard.origin());
            let guard = guard.filter(|_| !self.router.planted.is(Fault::PartPastGuard));
            RemoteDevice {
                data: match ((placement.share)(below), guard) {
                    (Some(make), None) => Data::Local(make),
                    (Some(make), Some(guard)) => {
                        let places = guard.possible_places();
                        Data::Guarded { make, places, guarded: export(data.clone()) }
                    }
                    (None, _) => Data::Export(export(data.clone())),
                },
                home,
                flushes: export(Rc::new(FlushPort { nth, flushes: flushes.clone() })),
                name: data.name().to_owned(),
                limits: data.limits(),
                identity: data.identity(),
            }
        };
        let origin = remote(&self.origin_flushes, self.guard.as_ref());
        let device = remote(&self.cache_flushes, None);
        let areas = self.areas_of(plan, nth);
        let config = plan.division.config_of(plan.config, nth);
        let (name, sectors, forwarder) = (plan.name.to_owned(), plan.sectors, self.forwarder);
        call(core, move || async move {
            let area = PartArea::new(device.into_local(), areas);
            let part = WriteCache::new(name, config, origin.into_local(), area.clone(), sectors)?;
            part.on_event(move |event| {
                let forward = move || {
                    if let Some(forwarder) = forwarder.get::<EventForwarder>() {
                        forwarder.forward(nth, event);
                    }
                };
                post(home, Msg::Call(Box::new(forward)));
            });
            part.open_part().await?;
            Ok((CoreLocal::keep(part.clone()), CoreLocal::keep(area), export(part)))
        })
    }

    fn areas_of(&self, plan: &Plan<'_>, nth: u8) -> area::Areas {
        let capacity = self.cache_flushes.device().limits().capacity;
        plan.division.areas_of(plan.config, nth, capacity)
    }

    /// The number of parts.
    pub(crate) fn count(&self) -> u8 {
        self.router.layout.parts
    }

    /// Sends a bio to the parts that it concerns.
    pub(crate) fn submit(&self, bio: Bio) {
        self.router.submit(bio);
    }

    /// Makes the way to the parts on any core, where other cores may use all of them.
    pub(crate) fn on_every_core(&self) -> Option<MakeDevice> {
        let name = |part: &PartHandle| {
            Some(SharedDeviceName { core: part.core, local: part.local, export: part.export? })
        };
        let parts: Option<_> = self.handles.iter().map(name).collect();
        Some(self.router.on_every_core(parts?))
    }

    /// Calls `f` on each part with its own value of `values`.
    pub(crate) async fn distribute<T: Send + 'static>(
        &self,
        values: Vec<T>,
        take: fn(Rc<WriteCache>, T),
    ) {
        for (part, value) in self.handles.iter().zip(values) {
            let local = part.local;
            call(part.core, move || async move {
                take(local.get().expect("kept as long as it is part"), value);
            })
            .await;
        }
    }

    /// Runs `f` on every part concurrently, on the core of the part; returns the results in the
    /// order of parts.
    pub(crate) async fn ask<T, F, Fut>(&self, f: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Rc<WriteCache>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let ask = |part: &PartHandle| {
            let (local, f) = (part.local, f.clone());
            call(part.core, move || {
                let part = local.get::<WriteCache>().expect("kept as long as it is part");
                f(part)
            })
        };
        let asked: Vec<_> = self.handles.iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await);
        }
        answers
    }

    /// Runs `f` on every part; returns the first error, and which parts have one.
    pub(crate) async fn run_all<F, Fut>(&self, f: F) -> Result<(), Error>
    where
        F: Fn(Rc<WriteCache>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<(), Error>> + 'static,
    {
        sum::outcome(self.ask(f).await)
    }

    /// The parts on this core.
    pub(crate) fn local(&self) -> impl Iterator<Item = Rc<WriteCache>> + '_ {
        let here = self.handles.iter().filter(|part| part.core == core_id());
        here.filter_map(|part| part.local.get::<WriteCache>())
    }

    /// Updates the sum of the status of all parts.
    pub(crate) async fn refresh(&self) {
        let reports = self.ask(|part| async move { part.report() }).await;
        let mut aggregated = AggregatedStatus::of(&reports);
        aggregated.set("cache_flushes", self.cache_flushes.count());
        aggregated.set("origin_flushes", self.origin_flushes.count());
        let guarded = self.guard.as_ref().map_or(0, |guard| guard.guarded_ranges());
        aggregated.set("guarded_ranges", guarded);
        *self.aggregated.borrow_mut() = aggregated;
    }

    /// The sum as of the last `refresh`.
    pub(crate) fn aggregated(&self) -> std::cell::Ref<'_, AggregatedStatus> {
        self.aggregated.borrow()
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        let forget: Vec<_> = self.handles.drain(..).collect();
        let on = |core, f: Box<dyn FnOnce() + Send>| {
            if core == core_id() { f() } else { post(core, Msg::Call(f)) }
        };
        for (core, export) in self.exports.take() {
            on(core, Box::new(move || unexport(export)));
        }
        for PartHandle { core, local, area, .. } in forget {
            on(
                core,
                Box::new(move || {
                    local.release();
                    area.release();
                }),
            );
        }
        self.forwarder.release();
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} of {:?})", self.handles.len(), self.router.layout)
    }
}
