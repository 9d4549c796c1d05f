// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several hosts, each with a write cache, share one volume: they open it with their cache or
//! without, attach, acknowledge, write back, release, stand still, die, and take the volume from
//! each other; some give up a cache that is recorded.
//!
//! The judge: nobody changes a lineage of the volume of which a cache holds acknowledged data that
//! the volume does not have, but that cache.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Buf, CacheAbove, Class, Error, ErrorKind, Flags, Nanos, Op, Sector, Status};
use objvol::{Fault, OpenOptions, Volume, create};
use sim::{Machine, RunEnd, World, WorldRef, seeds};

use crate::bucket::{Bucket, BucketRef, Connection, Lies};
use crate::judge::BLOCK_SECTORS;
use crate::writer::Setup;

const HOSTS: usize = 3;
/// Virtual time after which a seed hangs.
const HANGS: Nanos = Nanos::from_secs(72 * 3600);

/// The cache of a host, which outlives the programs there.
#[derive(Debug)]
struct Cache {
    uuid: [u8; 16],
    /// The identity of the volume that what it holds belongs to.
    origin: RefCell<String>,
    /// Blocks that were acknowledged and that the volume does not have, and their stamps.
    dirty: RefCell<BTreeMap<u64, u64>>,
    /// A program has its device open.
    is_open: Cell<bool>,
}

/// What the lives of a seed share.
struct Scene {
    world: WorldRef,
    setup: Setup,
    caches: Vec<Cache>,
    /// Openings, ends and changes of the record give up on the store after it.
    patience: Option<Nanos>,
    stamps: Cell<u64>,
    failure: RefCell<Option<String>>,
}

/// A program on a host, from its start to its end.
struct Life {
    scene: Rc<Scene>,
    connection: Connection,
    host: usize,
    start: Nanos,
    steps: u64,
    has_cache: Cell<bool>,
    has_ended: Cell<bool>,
}

/// Why a life ends.
enum Stop {
    Fenced,
    Failed(String),
}

type Done = Result<(), Stop>;

impl Scene {
    fn below(&self, bound: u64) -> u64 {
        self.world.borrow_mut().rng.below(bound)
    }

    /// Stamps of what the caches hold of this lineage that the volume does not have.
    fn held(&self, lineage: &str) -> BTreeSet<u64> {
        let of_it = self.caches.iter().filter(|cache| *cache.origin.borrow() == lineage);
        of_it.flat_map(|cache| cache.dirty.borrow().values().copied().collect::<Vec<_>>()).collect()
    }

    /// The judge: a change of this lineage, made without a cache, is durable; `before` it was
    /// submitted the caches held these stamps.
    fn judge_change(&self, lineage: &str, before: &BTreeSet<u64>) -> Done {
        match self.held(lineage).intersection(before).next() {
            Some(_) => {
                Err(Stop::Failed(format!("changed behind the back of one of {:?}", self.caches)))
            }
            None => Ok(()),
        }
    }
}

fn served(what: &str, result: Result<(), Status>) -> Done {
    match result {
        Ok(()) => Ok(()),
        Err(Status::Stale) => Err(Stop::Fenced),
        Err(status) => Err(Stop::Failed(format!("{what}: {status}"))),
    }
}

impl Life {
    fn cache(&self) -> &Cache {
        &self.scene.caches[self.host]
    }

    fn options(&self) -> OpenOptions {
        let given_up = match self.scene.below(4) {
            0 => Some(self.scene.caches[self.scene.below(HOSTS as u64) as usize].uuid),
            _ => None,
        };
        let patience = self.scene.patience;
        OpenOptions { without_cache: given_up, patience, ..self.scene.setup.options(&self.name()) }
    }

    fn name(&self) -> String {
        format!("host{}", self.host)
    }

    async fn run(self: Rc<Self>) {
        reactor::sleep(self.start).await;
        if let Err(Stop::Failed(why)) = self.try_run().await {
            *self.scene.failure.borrow_mut() = Some(format!("{}: {why}", self.name()));
        }
        self.end();
    }

    fn end(&self) {
        self.has_ended.set(true);
        if self.has_cache.replace(false) {
            self.cache().is_open.set(false);
        }
    }

    async fn try_run(&self) -> Done {
        let store = Rc::new(self.connection.clone());
        let volume = match Volume::open(store, self.options()).await {
            Ok(volume) => volume,
            Err(e) if e.kind() == ErrorKind::Busy => return Err(Stop::Fenced),
            Err(e) if self.gave_up(&e) => return Ok(()),
            Err(e) => return Err(Stop::Failed(format!("open failed: {}", e.chain()))),
        };
        let uses_cache = self.scene.below(3) > 0 && !self.cache().is_open.get();
        if uses_cache {
            self.has_cache.set(true);
            self.cache().is_open.set(true);
            self.work_with_cache(&volume).await?;
        } else {
            self.work_without(&volume).await?;
        }
        match volume.close().await {
            Ok(()) => Ok(()),
            Err(_) if volume.status().fence.is_some() => Err(Stop::Fenced),
            Err(e) if self.gave_up(&e) => Ok(()),
            Err(e) => Err(Stop::Failed(format!("close failed: {}", e.chain()))),
        }
    }

    /// Whether an error is that of a store that was away for too long.
    fn gave_up(&self, e: &Error) -> bool {
        self.scene.patience.is_some() && e.kind() == ErrorKind::Io
    }

    async fn think(&self) {
        let time = self.scene.below(self.scene.setup.think.0 + 1);
        reactor::sleep(Nanos(time)).await;
        self.connection.wait(Nanos::ZERO).await;
    }

    fn draw_block(&self) -> (u64, u64) {
        let stamps = &self.scene.stamps;
        stamps.set(stamps.get() + 1);
        (self.scene.below(self.scene.setup.blocks), stamps.get())
    }

    async fn write(&self, volume: &Rc<Volume>, block: u64, stamp: u64) -> Result<(), Status> {
        let data = Buf::alloc(BLOCK_SECTORS as usize * 512);
        data.write(|data| data[..8].copy_from_slice(&stamp.to_le_bytes()));
        let at = (Sector(block * BLOCK_SECTORS), Sector(BLOCK_SECTORS));
        let bufs = data.all().into();
        reactor::io(&**volume, Op::Write, Flags::empty(), Class::Normal, at, bufs).await
    }

    async fn work_without(&self, volume: &Rc<Volume>) -> Done {
        for _ in 0..self.steps {
            self.think().await;
            let (block, stamp) = self.draw_block();
            let held = self.scene.held(&volume.identity());
            match self.write(volume, block, stamp).await {
                Err(Status::ReadOnly) if volume.status().reservation.is_some() => continue,
                other => served("a change", other)?,
            }
            served("a flush", reactor::flush(&**volume, Class::Normal).await)?;
            self.scene.judge_change(&volume.identity(), &held)?;
        }
        Ok(())
    }

    /// Attaches the cache, unless what it holds belongs to another lineage. Whether it is there.
    async fn attach(&self, volume: &Rc<Volume>) -> Result<bool, Stop> {
        let cache = self.cache();
        let origin = volume.identity();
        if !cache.dirty.borrow().is_empty() && *cache.origin.borrow() != origin {
            return Ok(false);
        }
        let above =
            CacheAbove { uuid: cache.uuid, device: "/dev/a".into(), origin: origin.clone() };
        match volume.attach(&above, 1).await {
            Ok(()) => {
                *cache.origin.borrow_mut() = origin;
                Ok(true)
            }
            Err(_) if volume.status().fence.is_some() => Err(Stop::Fenced),
            // Another one is recorded, or the table gives this one up.
            Err(_) => Ok(false),
        }
    }

    async fn work_with_cache(&self, volume: &Rc<Volume>) -> Done {
        let cache = self.cache();
        let mut is_attached = self.attach(volume).await?;
        for _ in 0..self.steps {
            self.think().await;
            if !is_attached {
                is_attached = self.attach(volume).await?;
                continue;
            }
            match self.scene.below(10) {
                0..6 => {
                    let (block, stamp) = self.draw_block();
                    cache.dirty.borrow_mut().insert(block, stamp);
                }
                6..8 => self.write_back(volume).await?,
                8 => {
                    self.write_back(volume).await?;
                    match volume.release(cache.uuid).await {
                        Ok(()) => is_attached = false,
                        Err(_) if volume.status().fence.is_some() => return Err(Stop::Fenced),
                        Err(e) if self.gave_up(&e) => is_attached = false,
                        Err(e) => return Err(Stop::Failed(format!("release: {}", e.chain()))),
                    }
                }
                _ => {
                    volume.leave(cache.uuid);
                    is_attached = false;
                }
            }
        }
        volume.leave(cache.uuid);
        Ok(())
    }

    async fn write_back(&self, volume: &Rc<Volume>) -> Done {
        let blocks = self.cache().dirty.borrow().clone();
        for (&block, &stamp) in &blocks {
            served("a write of the cache", self.write(volume, block, stamp).await)?;
        }
        served("a flush of the cache", reactor::flush(&**volume, Class::Normal).await)?;
        self.cache().dirty.borrow_mut().clear();
        Ok(())
    }
}

enum Event {
    Kill(usize),
    Pause(usize, Nanos),
    Outage(Nanos),
}

fn draw_events(world: &WorldRef, lives: usize) -> Vec<(Nanos, Event)> {
    let rng = &mut world.borrow_mut().rng;
    let span = rng.pick(&[5_000_000_000, 60_000_000_000, 600_000_000_000]);
    let mut events = Vec::new();
    for _ in 0..rng.below(10) {
        let (at, life) = (Nanos(rng.below(span)), rng.index(lives));
        let until = at + Nanos(rng.below(span));
        let event = match rng.below(6) {
            0 | 1 => Event::Kill(life),
            2 => Event::Outage(until),
            _ => Event::Pause(life, until),
        };
        events.push((at, event));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

fn cache(n: usize) -> Cache {
    let uuid = [u8::try_from(n + 1).unwrap(); 16];
    let (origin, dirty, is_open) = Default::default();
    Cache { uuid, origin, dirty, is_open }
}

fn draw_life(scene: &Rc<Scene>, bucket: &BucketRef, span: u64) -> Rc<Life> {
    let rng = &mut scene.world.borrow_mut().rng;
    Rc::new(Life {
        scene: scene.clone(),
        connection: Connection::new(bucket),
        host: rng.index(HOSTS),
        start: Nanos(rng.below(span)),
        steps: rng.range(1, 25),
        has_cache: Cell::default(),
        has_ended: Cell::default(),
    })
}

pub(crate) fn simulate(seed: u64, fault: Option<Fault>) -> Result<(), String> {
    simulate_with(seed, fault, None)
}

fn simulate_with(seed: u64, fault: Option<Fault>, patience: Option<Nanos>) -> Result<(), String> {
    let world = World::new(seed);
    let setup = Setup::draw(&world, fault);
    let bucket = Bucket::new(&world);
    let count = usize::try_from(world.borrow_mut().rng.range(2, 8)).unwrap();
    let mut machine = Machine::boot(&world, u16::try_from(count).unwrap() + 1);
    let store = Connection::new(&bucket);
    let made = machine.block_on(async move {
        create(Rc::new(store), &setup.geometry(), &setup.options("maker")).await
    });
    made.unwrap().map_err(|e| e.chain())?;
    let lies = Lies::draw(&mut world.borrow_mut().rng);
    bucket.borrow_mut().set_lies(lies);
    let caches = (0..HOSTS).map(cache).collect();
    let (stamps, failure) = Default::default();
    let scene = Rc::new(Scene { world: world.clone(), setup, caches, patience, stamps, failure });
    let span = world.borrow_mut().rng.pick(&[1, 2_000_000_000, 100_000_000_000]);
    let lives: Vec<_> = (0..count).map(|_| draw_life(&scene, &bucket, span)).collect();
    for (core, life) in (1..).zip(&lives) {
        machine.spawn(core, life.clone().run());
    }
    for (at, event) in draw_events(&world, count) {
        machine.run(|| world.borrow().now() >= at || scene.failure.borrow().is_some());
        match event {
            Event::Kill(nth) => {
                machine.kill_process(u16::try_from(nth + 1).unwrap());
                lives[nth].end();
            }
            Event::Pause(nth, until) => lives[nth].connection.pause_until(until),
            Event::Outage(until) => bucket.borrow_mut().set_outage(until),
        }
    }
    let have_ended = || lives.iter().all(|life| life.has_ended.get());
    let is_late = || world.borrow().now() > HANGS;
    let ended = machine.run(|| have_ended() || scene.failure.borrow().is_some() || is_late());
    if let Some(why) = scene.failure.borrow().clone() {
        return Err(why);
    }
    if ended != RunEnd::Until || is_late() {
        return Err("the hosts hang".into());
    }
    Ok(())
}

#[test]
fn nobody_changes_a_volume_behind_the_back_of_a_cache() {
    seeds::run(400, |seed| simulate(seed, None));
}

/// They give up on a store that is away for some seconds, and try again.
#[test]
fn nobody_does_so_who_gives_up_on_the_store() {
    seeds::run(400, |seed| simulate_with(seed, None, Some(Nanos::from_secs(3))));
}

fn hosts_find(fault: Fault) {
    let found = seeds::first_failure(0..20_000, |seed| simulate(seed, Some(fault)));
    assert!(found.is_some_and(|found| found.why.contains("behind the back")), "{fault:?}");
}

#[test]
fn a_cache_that_goes_on_before_its_record_is_caught() {
    hosts_find(Fault::AttachUnrecorded);
}

#[test]
fn a_cache_that_does_not_look_is_caught() {
    hosts_find(Fault::AttachUnlooked);
}

#[test]
fn an_opening_that_reads_the_record_once_is_caught() {
    hosts_find(Fault::OwnerReadOnce);
}

#[test]
fn changes_without_the_recorded_cache_are_caught() {
    hosts_find(Fault::ChangeWithoutCache);
}

#[test]
fn a_lineage_that_stays_is_caught() {
    hosts_find(Fault::LineageKept);
}
