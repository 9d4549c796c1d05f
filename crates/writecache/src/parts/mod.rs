// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts: a cache divided by region of its origin, each part a whole engine on a core of its own,
//! as the core of the device has them.
//!
//! ```text
//!   bio within a chunk ──▶ its part, as it is         FLUSH ──▶ all parts
//!   longer bio         ──▶ a bio for each chunk
//!   ask                ──▶ a task on the part's core, its answer back here
//!
//!   part's reads and writes ─▶ the devices, from the part's core if the program lends them there
//!   part's flushes          ─▶ `flushes`, on this core: one at a time for all
//! ```
//!
//! A part is a [`WriteCache`] that knows which part it is (`Config::part`): it has an area of the
//! cache device, and sees the origin at its true addresses. Nothing that clients ask of different
//! parts meets anywhere but in flushes.
//!
//! Invariants
//! - P1 A block is of one part for as long as the cache lives: number of parts, chunk and areas are
//!   on the media.
//! - P2 A FLUSH ends when every part has ended it; a part that has nothing new has no work.
//! - P3 What a failed flush of a shared device may have lost counts as lost in every part
//!   (`flushes`).
pub(crate) mod control;
pub(crate) mod flushes;
pub(crate) mod layout;
pub(crate) mod open;
mod sum;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, CoreId, Error, Limits, Op, Sector, Status};
use reactor::{
    Anchor, BioFuture, Export, Msg, Remote, anchor, anchored, call, core_id, export, io_by, post,
    spawn, unanchor, unexport,
};
use smallvec::SmallVec;

use self::flushes::{AfterFailure, Flushes, Port, Shared};
use self::layout::Layout;
use self::open::Division;
pub(crate) use self::open::{divide, share_of_rate, tuning_of_part};
pub(crate) use self::sum::{Said, Told};
use crate::config::{Config, Mutation};
use crate::target::WriteCache;
use crate::trouble::{Tell, Trouble};

/// Pieces of one bio that are under way: a discard may be as long as the device.
const PIECES_IN_FLIGHT: usize = 64;

/// Makes a device of another core there: the same file, the same memory.
pub type Lent = Box<dyn FnOnce() -> Rc<dyn BlockDevice> + Send>;

/// How a device of this core is reached from others, where it can be at all; given by the program.
/// Those that it does not lend are reached by messages to this core.
pub type Lend = Rc<dyn Fn(&Rc<dyn BlockDevice>) -> Option<Lent>>;

/// On which cores parts are.
#[derive(Clone)]
pub(crate) struct Spread {
    pub(crate) cores: Vec<CoreId>,
    pub(crate) lend: Lend,
}

/// What all parts are made of.
pub(crate) struct Plan<'a> {
    pub(crate) name: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) division: Division,
    pub(crate) origin: &'a Rc<dyn BlockDevice>,
    pub(crate) device: &'a Rc<dyn BlockDevice>,
    pub(crate) sectors: Sector,
    pub(crate) limits: Limits,
    pub(crate) spread: Option<&'a Spread>,
    pub(crate) tell: Option<Tell>,
}

/// A part as this core has it.
struct Held {
    core: CoreId,
    anchor: Anchor,
    device: Rc<dyn BlockDevice>,
}

/// All parts of a cache.
pub(crate) struct Parts {
    layout: Layout,
    /// Of the whole device.
    limits: Limits,
    mutation: Mutation,
    held: Vec<Held>,
    pub(crate) cache_flushes: Rc<Flushes>,
    pub(crate) origin_flushes: Rc<Flushes>,
    /// Devices of this core that other cores reach, and what parts there are called by.
    exports: RefCell<Vec<(CoreId, Export)>>,
    herald: Anchor,
    /// No background work.
    pub(crate) suspended: Cell<bool>,
    told: RefCell<Told>,
}

/// Passes on what parts have to tell.
struct Herald {
    tell: Option<Tell>,
    /// Parts that have told of an origin in trouble, and not yet of its end.
    troubled: Cell<u16>,
}

impl Herald {
    fn hear(&self, nth: u8, trouble: Trouble) {
        let before = self.troubled.get();
        let after = match trouble {
            Trouble::Writeback { .. } | Trouble::OriginFlush { .. } => before | 1 << nth,
            Trouble::Recovered => before & !(1 << nth),
            Trouble::Failed { .. }
            | Trouble::Lost { .. }
            | Trouble::Bug { .. }
            | Trouble::BadBlock { .. }
            | Trouble::GapLost { .. } => before,
        };
        self.troubled.set(after);
        // The origin is one: it is in trouble from the first part's word to the last one's.
        let is_news = match trouble {
            Trouble::Writeback { .. } | Trouble::OriginFlush { .. } => before == 0,
            Trouble::Recovered => after == 0,
            Trouble::Failed { .. }
            | Trouble::Lost { .. }
            | Trouble::Bug { .. }
            | Trouble::BadBlock { .. }
            | Trouble::GapLost { .. } => true,
        };
        if let Some(tell) = self.tell.as_ref().filter(|_| is_news) {
            tell(trouble);
        }
    }
}

/// A device on its way to another core.
struct Away {
    data: Data,
    home: CoreId,
    flushes: Export,
    name: String,
    limits: Limits,
    identity: Option<String>,
}

enum Data {
    Lent(Lent),
    /// By messages to its core.
    Export(Export),
}

impl Away {
    /// The device on this core.
    fn arrive(self) -> Rc<dyn BlockDevice> {
        let remote =
            |export| Rc::new(Remote::new(self.home, export, &*self.name, self.limits.clone()));
        let flushes = remote(self.flushes);
        let data = match self.data {
            Data::Lent(lent) => lent(),
            Data::Export(export) => remote(export),
        };
        Rc::new(Shared { data, flushes, identity: self.identity })
    }
}

impl Parts {
    /// Makes and opens the parts of `plan`, each on its core. None begins to work before
    /// [`Parts::begin`].
    pub(crate) async fn open(plan: Plan<'_>) -> Result<Rc<Parts>, Error> {
        let of = plan.division.parts();
        let herald = Rc::new(Herald { tell: plan.tell.clone(), troubled: Cell::new(0) });
        let flushes = |device: &Rc<dyn BlockDevice>, after| Flushes::new(device.clone(), of, after);
        // What was made goes again when a later one fails.
        let mut parts = Parts {
            layout: plan.division.layout(),
            limits: plan.limits.clone(),
            mutation: plan.config.mutation,
            held: Vec::new(),
            cache_flushes: flushes(plan.device, AfterFailure::FailAll),
            origin_flushes: flushes(plan.origin, AfterFailure::Tell),
            exports: RefCell::default(),
            herald: anchor(herald.clone()),
            suspended: Cell::new(false),
            told: RefCell::default(),
        };
        let here = core_id();
        let mut away = Vec::new();
        let mut made: Vec<Option<Result<Held, Error>>> = (0..of).map(|_| None).collect();
        for nth in 0..of {
            let core = plan.spread.map_or(here, |s| s.cores[usize::from(nth) % s.cores.len()]);
            if core != here {
                away.push((nth, core, parts.send(&plan, nth, core)));
            }
        }
        for nth in 0..of {
            if away.iter().all(|(n, ..)| *n != nth) {
                made[usize::from(nth)] = Some(parts.make_here(&plan, nth, &herald).await);
            }
        }
        for (nth, core, sent) in away {
            let opened = sent.await.map(|(anchor, export)| {
                parts.exports.borrow_mut().push((core, export));
                let device = Remote::new(core, export, plan.name, Limits::new(plan.sectors));
                Held { core, anchor, device: Rc::new(device) }
            });
            made[usize::from(nth)] = Some(opened);
        }
        let mut outcome = Ok(());
        for (nth, opened) in made.into_iter().enumerate() {
            match opened.expect("here or away") {
                Ok(held) => parts.held.push(held),
                Err(e) => outcome = outcome.and(Err(e.within(format!("part {nth} of {of}")))),
            }
        }
        outcome?;
        let parts = Rc::new(parts);
        if parts.mutation != Mutation::PartsNotTold {
            let told: Vec<_> = parts.held.iter().map(|held| (held.core, held.anchor)).collect();
            parts.origin_flushes.tell_by(Rc::new(move |nth, status| {
                let (core, anchor) = told[usize::from(nth)];
                let hear = move || {
                    if let Some(part) = anchored::<WriteCache>(anchor) {
                        part.other_flush_failed(status);
                    }
                };
                if core == core_id() { hear() } else { post(core, Msg::Call(Box::new(hear))) }
            }));
        }
        Ok(parts)
    }

    async fn make_here(
        &self,
        plan: &Plan<'_>,
        nth: u8,
        herald: &Rc<Herald>,
    ) -> Result<Held, Error> {
        let shared = |data: &Rc<dyn BlockDevice>, flushes: &Rc<Flushes>| -> Rc<dyn BlockDevice> {
            let (data, identity) = (data.clone(), data.identity());
            Rc::new(Shared {
                data,
                flushes: Rc::new(Port { nth, flushes: flushes.clone() }),
                identity,
            })
        };
        let origin = shared(plan.origin, &self.origin_flushes);
        let device = shared(plan.device, &self.cache_flushes);
        let config = plan.division.config_of(plan.config, nth);
        let part = WriteCache::new(plan.name, config, origin, device, plan.sectors)?;
        let herald = herald.clone();
        part.on_trouble(move |trouble| herald.hear(nth, trouble));
        part.open_part().await?;
        Ok(Held { core: core_id(), anchor: anchor(part.clone()), device: part })
    }

    /// Has a part made and opened on another core.
    fn send(
        &self,
        plan: &Plan<'_>,
        nth: u8,
        core: CoreId,
    ) -> impl Future<Output = Result<(Anchor, Export), Error>> + 'static {
        let home = core_id();
        let spread = plan.spread.expect("there are other cores");
        let lent = |data: &Rc<dyn BlockDevice>, flushes: &Rc<Flushes>| {
            let export = |device| {
                let export = export(device);
                self.exports.borrow_mut().push((home, export));
                export
            };
            Away {
                data: match (spread.lend)(data) {
                    Some(lent) => Data::Lent(lent),
                    None => Data::Export(export(data.clone())),
                },
                home,
                flushes: export(Rc::new(Port { nth, flushes: flushes.clone() })),
                name: data.name().to_owned(),
                limits: data.limits(),
                identity: data.identity(),
            }
        };
        let origin = lent(plan.origin, &self.origin_flushes);
        let device = lent(plan.device, &self.cache_flushes);
        let config = plan.division.config_of(plan.config, nth);
        let (name, sectors, herald) = (plan.name.to_owned(), plan.sectors, self.herald);
        call(core, move || async move {
            let (origin, device) = (origin.arrive(), device.arrive());
            let part = WriteCache::new(name, config, origin, device, sectors)?;
            part.on_trouble(move |trouble| {
                let hear = move || {
                    if let Some(herald) = anchored::<Herald>(herald) {
                        herald.hear(nth, trouble);
                    }
                };
                post(home, Msg::Call(Box::new(hear)));
            });
            part.open_part().await?;
            Ok((anchor(part.clone()), export(part)))
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u8 {
        self.layout.parts
    }

    /// Gives each part its own of `values`, in their order.
    pub(crate) async fn give<T: Send + 'static>(
        &self,
        values: Vec<T>,
        take: fn(Rc<WriteCache>, T),
    ) {
        for (held, value) in self.held.iter().zip(values) {
            let anchor = held.anchor;
            call(held.core, move || async move {
                take(anchored(anchor).expect("kept as long as it is held"), value);
            })
            .await;
        }
    }

    /// Asks every part at once; the answers in their order. `f` runs on the parts' cores.
    pub(crate) async fn ask<T, F, Fut>(&self, f: F) -> Vec<T>
    where
        T: Send + 'static,
        F: Fn(Rc<WriteCache>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let ask = |held: &Held| {
            let (anchor, f) = (held.anchor, f.clone());
            call(held.core, move || {
                let part = anchored::<WriteCache>(anchor).expect("kept as long as it is held");
                f(part)
            })
        };
        let asked: Vec<_> = self.held.iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await);
        }
        answers
    }

    /// Asks every part for something that may fail; the first error, and which parts have one.
    pub(crate) async fn do_all<F, Fut>(&self, f: F) -> Result<(), Error>
    where
        F: Fn(Rc<WriteCache>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<(), Error>> + 'static,
    {
        sum::outcome(self.ask(f).await)
    }

    /// Parts of this core, without asking.
    pub(crate) fn here(&self) -> impl Iterator<Item = Rc<WriteCache>> + '_ {
        let here = self.held.iter().filter(|held| held.core == core_id());
        here.filter_map(|held| anchored::<WriteCache>(held.anchor))
    }

    /// Brings what is told of all parts together up to date.
    pub(crate) async fn refresh(&self) {
        let said = self.ask(|part| async move { part.say_all() }).await;
        let mut told = Told::of(&said);
        told.set("cache_flushes", self.cache_flushes.count());
        told.set("origin_flushes", self.origin_flushes.count());
        *self.told.borrow_mut() = told;
    }

    /// What was told last.
    pub(crate) fn told(&self) -> std::cell::Ref<'_, Told> {
        self.told.borrow()
    }

    /// Sends a bio to the parts that it is about.
    pub(crate) fn submit(&self, bio: Bio) {
        if bio.op != Op::Flush && self.layout.is_within_one(bio.sector, bio.len) {
            return self.held[self.layout.part_of(bio.sector)].device.submit(bio);
        }
        self.split(bio);
    }

    /// A bio for each part of a FLUSH, for each chunk of anything else, and a task that waits.
    fn split(&self, bio: Bio) {
        if let Err(status) = self.limits.check(&bio) {
            return bio.complete(status);
        }
        let Bio { op, flags, class, opener, sector, len, bufs, done } = bio;
        let devices: SmallVec<[Rc<dyn BlockDevice>; 4]> =
            self.held.iter().map(|held| held.device.clone()).collect();
        let (layout, end) = (self.layout, sector + len);
        let send = move |device: &Rc<dyn BlockDevice>, at: Sector, len: Sector, bufs: Bufs| {
            io_by(opener, &**device, op, flags, class, (at, len), bufs)
        };
        if op == Op::Flush {
            let first_only = self.mutation == Mutation::FlushOfFirstPart;
            let sent: SmallVec<[BioFuture; 4]> =
                devices.iter().map(|d| send(d, Sector::ZERO, Sector::ZERO, Bufs::new())).collect();
            spawn(async move {
                let mut worst = Status::Ok;
                let mut done = Some(done);
                for flush in sent {
                    worst = worst.worst(flush.await.into());
                    if first_only && let Some(done) = done.take() {
                        done.complete(worst);
                    }
                }
                if let Some(done) = done {
                    done.complete(worst);
                }
            });
            return;
        }
        spawn(async move {
            let mut worst = Status::Ok;
            let mut in_flight: VecDeque<BioFuture> = VecDeque::new();
            let mut at = sector;
            while at < end || !in_flight.is_empty() {
                if at < end && in_flight.len() < PIECES_IN_FLIGHT {
                    let to = layout.chunk_end(at).min(end);
                    let byte = |at: Sector| usize::try_from((at - sector).bytes());
                    let piece = match (byte(at), byte(to)) {
                        (Ok(from), Ok(to)) if !bufs.is_empty() => bufs.slice(from..to),
                        _ => Bufs::new(),
                    };
                    in_flight.push_back(send(&devices[layout.part_of(at)], at, to - at, piece));
                    at = to;
                } else if let Some(piece) = in_flight.pop_front() {
                    worst = worst.worst(piece.await.into());
                }
            }
            done.complete(worst);
        });
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if block::crashing() {
            return;
        }
        let forget: Vec<_> = self.held.drain(..).map(|held| (held.core, held.anchor)).collect();
        let on = |core, f: Box<dyn FnOnce() + Send>| {
            if core == core_id() { f() } else { post(core, Msg::Call(f)) }
        };
        for (core, export) in self.exports.take() {
            on(core, Box::new(move || unexport(export)));
        }
        for (core, anchor) in forget {
            on(core, Box::new(move || unanchor(anchor)));
        }
        unanchor(self.herald);
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} of {:?})", self.held.len(), self.layout)
    }
}
