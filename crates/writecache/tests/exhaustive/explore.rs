// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All crashes of a short run: at every step, with every choice of what survives of the writes that
//! were not flushed; and all crashes of every recovery from those.
//!
//! ```text
//!   start ─ open ─ op ─ op ─ ... ─ op            one run of the simulator for a sequence
//!                                 │└┴┴┴─ at each change: durable + chosen of pending = image
//!                                                    │ (each image once)
//!                        oracle ◀── what it reads ── open ── at each change: images again
//! ```
//!
//! A sequence's crash points are those of its last operation and of what goes on after it: those
//! before belong to its prefixes, which are sequences too.
//!
//! What is *not* gone through: other orders of completion than the one of the run, more than one
//! torn write in an image, and both orders of two unflushed writes to one place.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Buf, Class, Flags, Sector, Target};
use reactor::{FileId, WaitList};
use sim::model::Uniform;
use sim::{Change, DiskSpec, Ended, Image, Machine, Oracle, Pending, World, WorldRef};
use writecache::{Config, Mutation, WriteCache};

/// All subsets of as many pending writes; of more only none, all, each one, and all but each one.
const SUBSETS_OF_MAX: usize = 6;
/// Steps that are followed after the last operation: commits by time, writeback, reclaim.
const STEPS_AFTER_MAX: u64 = 400;

/// An operation. The three blocks are the first of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sym {
    /// Writes block 0.
    Write,
    /// Writes block 1 with FUA.
    Fua,
    Flush,
    /// The message `flush`: writes everything back.
    Message,
    /// Discards blocks 0 and 1, on an origin where what is discarded reads as zeroes.
    Discard,
}

pub(crate) const ALPHABET: [Sym; 5] =
    [Sym::Write, Sym::Fua, Sym::Flush, Sym::Message, Sym::Discard];

/// The `nth` of all sequences of `len` operations.
pub(crate) fn sequence(mut nth: u64, len: u32) -> Vec<Sym> {
    let base = ALPHABET.len() as u64;
    let mut digit = || {
        let digit = nth % base;
        nth /= base;
        ALPHABET[index(digit)]
    };
    (0..len).map(|_| digit()).collect()
}

pub(crate) fn sequences(len: u32) -> u64 {
    (ALPHABET.len() as u64).pow(len)
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("few")
}

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    OneByOne,
    /// Two at a time, the next two when both have completed.
    InPairs,
}

/// What both disks hold.
#[derive(Clone, Default)]
pub(crate) struct State {
    cache: Image,
    origin: Image,
}

impl State {
    fn hash(&self) -> u64 {
        self.cache.hash() ^ self.origin.hash().rotate_left(32)
    }
}

/// Where sequences start.
pub(crate) struct Start {
    pub(crate) config: Config,
    pub(crate) blocks: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) state: State,
    pub(crate) oracle: Oracle,
}

/// A machine with both disks, and the cache on them, not yet opened.
struct Life {
    world: WorldRef,
    machine: Machine,
    cache: FileId,
    origin: FileId,
    target: Rc<WriteCache>,
}

/// What has been gone through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sequences: u64,
    /// Moments that differ in what a cut may leave, or in what had been acknowledged.
    pub(crate) points: u64,
    /// Points with a choice of what survives.
    pub(crate) judged: u64,
    /// Different images that were recovered.
    pub(crate) images: u64,
    /// Of them such as crashes during a recovery leave.
    pub(crate) in_recovery: u64,
    /// Images on which work went on after the recovery, until another crash.
    pub(crate) second_lives: u64,
}

/// What a recovered cache reads, block by block.
type View = Vec<Rc<[u8]>>;

pub(crate) struct Explorer<'a> {
    start: &'a Start,
    pace: Pace,
    /// One recovered image in so many gets a second life; 0: none.
    second_life_one_in: u64,
    views: BTreeMap<u64, Rc<View>>,
    contents: BTreeSet<Rc<[u8]>>,
    pub(crate) tally: Tally,
}

impl Start {
    /// A blank cache device before an origin of zeroes.
    pub(crate) fn blank(block_size: u32, blocks: u64, options: &str, mutation: Mutation) -> Start {
        let smallest = match format::Geometry::compute(0, block_size) {
            Err(format::GeometryError::TooSmall { needed_bytes, .. }) => needed_bytes,
            other => panic!("{other:?}"),
        };
        let count = options.split_whitespace().count();
        let line = format!("s origin cache {block_size} {count} {options}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut config = Config::parse(&words).expect("a good line");
        config.mutation = mutation;
        Start {
            config,
            blocks,
            cache_bytes: smallest,
            state: State::default(),
            oracle: Oracle::new(blocks, block_size as usize, 1),
        }
    }

    /// After the operations, and a power cut that loses all it may.
    pub(crate) fn after(self, lives: &[&[Sym]]) -> Start {
        let mut start = self;
        for ops in lives {
            let life = start.boot(&start.state, 7);
            let oracle = Rc::new(RefCell::new(start.oracle.clone()));
            let (target, judge, ops) = (life.target.clone(), oracle.clone(), ops.to_vec());
            let work = async move {
                target.clone().resume().await.expect("it opens");
                for op in ops {
                    perform(op, &target, &judge).await.expect("nothing fails");
                }
            };
            life.machine.block_on(work).expect("no cut is planned");
            start.state = life.end();
            start.oracle = oracle.borrow().clone();
            start.oracle.crash();
            let view = Explorer::new(&start, Pace::OneByOne, 0).recover(&start.state.clone(), 0);
            judge_view(&mut start.oracle, &view.expect("it recovers")).expect("a good start");
        }
        start
    }

    /// Fills the whole device once, before anything else.
    pub(crate) fn filled(mut self) -> Start {
        let life = self.boot(&self.state, 5);
        let oracle = Rc::new(RefCell::new(self.oracle.clone()));
        let (target, judge, blocks) = (life.target.clone(), oracle.clone(), self.blocks);
        let work = async move {
            target.clone().resume().await.expect("it opens");
            for block in 0..blocks {
                write(block..block + 1, Flags::empty(), &target, &judge).await.expect("written");
            }
            perform(Sym::Flush, &target, &judge).await.expect("flushed");
        };
        life.machine.block_on(work).expect("no cut is planned");
        self.state = life.end();
        self.oracle = oracle.borrow().clone();
        self
    }

    fn boot(&self, state: &State, seed: u64) -> Life {
        let world = World::calm(seed);
        let block_sectors = Sector::from_bytes(u64::from(self.config.block_size)).0;
        let sectors = Sector(self.blocks * block_sectors);
        let disk = |name: &str, capacity, seed| {
            let model = Uniform::new(seed, 20_000, 60_000);
            world.borrow_mut().add_disk(DiskSpec::new(name, capacity, Box::new(model)))
        };
        let origin = disk("origin", sectors, seed);
        let cache = disk("cache", Sector::from_bytes(self.cache_bytes), seed + 1);
        world.borrow_mut().put_image(origin, &state.origin);
        world.borrow_mut().put_image(cache, &state.cache);
        let (below, device) = (world.borrow().leaf(origin), world.borrow().leaf(cache));
        let target = WriteCache::new("wc", self.config.clone(), below, device, sectors);
        let machine = Machine::boot(&world, 1);
        Life { world, machine, cache, origin, target: target.expect("devices that fit") }
    }
}

impl Life {
    /// Ends without a cut that anybody looks at; returns what is durable.
    fn end(self) -> State {
        let durable = durable(&self.world, self.cache, self.origin);
        drop(self.target);
        self.machine.kill();
        durable
    }
}

fn durable(world: &WorldRef, cache: FileId, origin: FileId) -> State {
    let world = world.borrow();
    State { cache: world.durable(cache), origin: world.durable(origin) }
}

/// Writes `blocks` as the oracle wants them.
async fn write(
    blocks: std::ops::Range<u64>,
    flags: Flags,
    target: &Rc<WriteCache>,
    oracle: &Rc<RefCell<Oracle>>,
) -> Result<(), String> {
    let bytes = oracle.borrow().block_bytes();
    let count = index(blocks.end - blocks.start);
    let at = Sector::from_bytes(blocks.start * bytes as u64);
    let token = oracle.borrow_mut().begin_write(blocks, flags.contains(Flags::FUA));
    let mut data = vec![0; count * bytes];
    oracle.borrow().fill(&token, &mut data);
    let data = Buf::copy_of(&data);
    let outcome = reactor::write(&**target, flags, Class::Normal, at, data.into()).await;
    oracle.borrow_mut().end_write(token, outcome.is_ok());
    outcome.map_err(|status| format!("a write ended in {status}"))
}

async fn perform(
    op: Sym,
    target: &Rc<WriteCache>,
    oracle: &Rc<RefCell<Oracle>>,
) -> Result<(), String> {
    let failed = |status: block::Status| format!("{op:?} ended in {status}");
    match op {
        Sym::Write => write(0..1, Flags::empty(), target, oracle).await,
        Sym::Fua => write(1..2, Flags::FUA, target, oracle).await,
        Sym::Flush => {
            let token = oracle.borrow_mut().begin_flush();
            let outcome = reactor::flush(&**target, Class::Foreground).await;
            oracle.borrow_mut().end_flush(token, outcome.is_ok());
            outcome.map_err(failed)
        }
        Sym::Message => {
            let token = oracle.borrow_mut().begin_flush();
            let outcome = target.clone().message(vec!["flush".to_owned()]).await;
            oracle.borrow_mut().end_flush(token, outcome.is_ok());
            outcome.map(drop).map_err(|e| e.chain())
        }
        Sym::Discard => {
            let len = Sector::from_bytes(2 * oracle.borrow().block_bytes() as u64);
            let token = oracle.borrow_mut().begin_change(0..2, Change::WriteZeroes, false);
            let outcome = reactor::discard(&**target, Class::Normal, Sector(0), len).await;
            oracle.borrow_mut().end_write(token, outcome.is_ok());
            outcome.map_err(failed)
        }
    }
}

/// Each choice of what survives: of each pending write all, nothing, or a part. Zeroes are those
/// of a discard, which the engine passes on: within a block nobody promises that they are whole.
fn each_choice(
    pending: &[Pending],
    block_bytes: usize,
    mut f: impl FnMut(&[Option<std::ops::Range<usize>>]),
) {
    let count = pending.len();
    let whole = |n: usize| Some(0..pending[n].data.len());
    let choice = |keep: &dyn Fn(usize) -> bool| -> Vec<_> {
        (0..count).map(|n| whole(n).filter(|_| keep(n))).collect()
    };
    if count <= SUBSETS_OF_MAX {
        for bits in 0..1usize << count {
            f(&choice(&|n| bits >> n & 1 == 1));
        }
    } else {
        f(&choice(&|_| false));
        f(&choice(&|_| true));
        for one in 0..count {
            f(&choice(&|n| n == one));
            f(&choice(&|n| n != one));
        }
    }
    // All torn together.
    let sectors = |n: usize| pending[n].data.len() / 512;
    if (0..count).any(|n| sectors(n) > 1) {
        f(&(0..count).map(|n| Some(0..sectors(n).div_ceil(2) * 512)).collect::<Vec<_>>());
    }
    // Torn: the first sector, or block, alone, and all but the first.
    for (one, write) in pending.iter().enumerate() {
        let unit = if write.data.iter().all(|&b| b == 0) { block_bytes } else { 512 };
        for others in [false, true].into_iter().filter(|_| write.data.len() > unit) {
            for part in [0..unit, unit..write.data.len()] {
                let mut torn = choice(&|_| others);
                torn[one] = Some(part);
                f(&torn);
            }
        }
    }
}

fn judge_view(oracle: &mut Oracle, view: &View) -> Result<(), String> {
    oracle.verify_after_crash(|block, out| {
        out.copy_from_slice(&view[index(block)]);
    })
}

/// Notes that something went wrong, and keeps the first.
#[derive(Clone, Default)]
struct Wrong(Rc<RefCell<Option<String>>>);

impl Wrong {
    fn note(&self, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            self.0.borrow_mut().get_or_insert(why);
        }
    }
    fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }
    fn result(&self) -> Result<(), String> {
        self.0.borrow().clone().map_or(Ok(()), Err)
    }
}

impl<'a> Explorer<'a> {
    pub(crate) fn new(start: &'a Start, pace: Pace, second_life_one_in: u64) -> Explorer<'a> {
        let (views, contents) = (BTreeMap::new(), BTreeSet::new());
        Explorer { start, pace, second_life_one_in, views, contents, tally: Tally::default() }
    }

    /// Goes through the crashes of the last operation of a sequence.
    pub(crate) fn sequence(&mut self, ops: &[Sym]) -> Result<(), String> {
        self.tally.sequences += 1;
        let life = self.start.boot(&self.start.state, 1);
        let oracle = Rc::new(RefCell::new(self.start.oracle.clone()));
        let (looking, done) = (Rc::new(Cell::new(ops.is_empty())), Rc::new(Cell::new(false)));
        let (wrong, acks) = (Wrong::default(), Rc::new(Cell::new(0u64)));
        let at_once = if self.pace == Pace::InPairs { 2 } else { 1 };
        let work = {
            let (target, oracle, ops) = (life.target.clone(), oracle.clone(), ops.to_vec());
            let (looking, done) = (looking.clone(), done.clone());
            let (wrong, acks) = (wrong.clone(), acks.clone());
            async move {
                wrong.note(target.clone().resume().await.map_err(|e| e.chain()));
                let last = ops.len().saturating_sub(1) / at_once;
                for (nth, together) in ops.chunks(at_once).enumerate() {
                    looking.set(looking.get() || nth == last);
                    let ended = Rc::new((Cell::new(0), WaitList::new()));
                    for &op in together {
                        let (target, oracle, acks) = (target.clone(), oracle.clone(), acks.clone());
                        let (wrong, ended) = (wrong.clone(), ended.clone());
                        reactor::spawn(async move {
                            wrong.note(perform(op, &target, &oracle).await);
                            acks.set(acks.get() + 1);
                            ended.0.set(ended.0.get() + 1);
                            ended.1.wake_all();
                        });
                    }
                    ended.1.wait_for(|| ended.0.get() == together.len()).await;
                }
                done.set(true);
            }
        };
        life.machine.spawn(0, work);
        let Life { world, machine, cache, origin, target } = life;
        let mut seen = None;
        let mut points = Vec::new();
        let bytes = self.start.oracle.block_bytes();
        let mut look = || {
            let now = Some((world.borrow().changes(), acks.get()));
            if looking.get() && seen != now {
                seen = now;
                points.push((oracle.borrow().clone(), survivors(&world, cache, origin, bytes)));
            }
        };
        let ended = machine.run(|| {
            look();
            wrong.is_set() || done.get()
        });
        if ended == Ended::Idle && !wrong.is_set() {
            wrong.note(Err("deadlock: an operation never ends".to_owned()));
        }
        let end = world.borrow().steps() + STEPS_AFTER_MAX;
        machine.run(|| {
            look();
            wrong.is_set() || world.borrow().steps() > end
        });
        drop(target);
        machine.power_cut();
        let judged = wrong.result().and_then(|()| {
            points.into_iter().try_for_each(|(oracle, left)| self.crash_point(oracle, &left))
        });
        judged.map_err(|why| format!("{ops:?} {:?}: {why}", self.pace))
    }

    /// The power goes: whatever is left, what is recovered from it must be allowed.
    fn crash_point(&mut self, mut oracle: Oracle, left: &[State]) -> Result<(), String> {
        self.tally.points += 1;
        oracle.crash();
        for state in left {
            self.tally.judged += 1;
            let view = self.recover(state, 0)?;
            judge_view(&mut oracle.clone(), &view)?;
        }
        Ok(())
    }

    /// What a cache that recovers from `state` reads. Goes through the crashes of the recovery, of
    /// which `generation` came before: each must lead to the same.
    fn recover(&mut self, state: &State, generation: u32) -> Result<Rc<View>, String> {
        let key = state.hash();
        if let Some(view) = self.views.get(&key) {
            return Ok(view.clone());
        }
        self.tally.images += 1;
        self.tally.in_recovery += u64::from(generation > 0);
        let again = |why: String| format!("recovery {generation} after a crash: {why}");
        // Another seed makes another identity of a cache that is formatted again; but if each crash
        // of that did, there were no end to the images.
        let seed = u64::from(10 + generation.min(2));
        let Life { world, machine, cache, origin, target } = self.start.boot(state, seed);
        let opened = Rc::new(RefCell::new(None));
        let bytes = self.start.oracle.block_bytes();
        let buf = Buf::zeroed(bytes * index(self.start.blocks));
        machine.spawn(0, {
            let (opened, target, buf) = (opened.clone(), target.clone(), buf.clone());
            async move {
                let outcome = match target.clone().resume().await.map_err(|e| e.chain()) {
                    Ok(()) => {
                        let all = buf.all().into();
                        let read = reactor::read(&*target, Class::Foreground, Sector(0), all).await;
                        read.map_err(|status| format!("a read ended in {status}"))
                    }
                    refused => refused,
                };
                *opened.borrow_mut() = Some(outcome);
            }
        });
        let mut crashes: BTreeMap<u64, State> = BTreeMap::new();
        let mut seen = None;
        let ended = machine.run(|| {
            let now = Some(world.borrow().changes());
            if seen != now {
                seen = now;
                let left = survivors(&world, cache, origin, bytes);
                crashes.extend(left.into_iter().map(|state| (state.hash(), state)));
            }
            opened.borrow().is_some()
        });
        let outcome = opened.borrow_mut().take();
        match outcome {
            Some(outcome) => outcome.map_err(again)?,
            None => return Err(again(format!("{ended:?} before it had opened"))),
        }
        let view: View = buf.read(|all| all.chunks(bytes).map(|b| self.intern(b)).collect());
        let view = Rc::new(view);
        self.views.insert(key, view.clone());
        let sampled = key.is_multiple_of(self.second_life_one_in);
        let life = Life { world, machine, cache, origin, target };
        if generation == 0 && sampled {
            self.second_life(life, &view).map_err(again)?;
        } else {
            life.end();
        }
        for (hash, crash) in crashes {
            if hash != key && self.recover(&crash, generation + 1)? != view {
                return Err(again("a crash in it leads to something else".to_owned()));
            }
        }
        Ok(view)
    }

    /// Work goes on after a recovery: block 0 is written and flushed. At every crash it is the new
    /// or the old, the new once the flush is done; the others are what they were.
    fn second_life(&mut self, life: Life, view: &View) -> Result<(), String> {
        let Life { world, machine, cache, origin, target } = life;
        self.tally.second_lives += 1;
        let bytes = self.start.oracle.block_bytes();
        let new = vec![0x5A; bytes];
        let done = Rc::new(Cell::new(false));
        machine.spawn(0, {
            let (target, new, done) = (target.clone(), Buf::copy_of(&new), done.clone());
            async move {
                let flags = Flags::empty();
                let write = reactor::write(&*target, flags, Class::Normal, Sector(0), new.into());
                write.await.expect("nothing fails");
                reactor::flush(&*target, Class::Foreground).await.expect("nothing fails");
                done.set(true);
            }
        });
        let mut crashes: BTreeMap<u64, (State, bool)> = BTreeMap::new();
        let mut seen = None;
        machine.run(|| {
            let now = Some((world.borrow().changes(), done.get()));
            if seen != now {
                seen = now;
                for state in survivors(&world, cache, origin, bytes) {
                    crashes.insert(state.hash(), (state, done.get()));
                }
            }
            done.get()
        });
        drop(target);
        machine.power_cut();
        for (state, flushed) in crashes.into_values() {
            let now = self.recover(&state, 1)?;
            let old = now[0] == view[0] && !flushed;
            if now[1..] != view[1..] || !(old || *now[0] == new[..]) {
                return Err(format!("second life, flushed {flushed}: something else is there"));
            }
        }
        Ok(())
    }

    fn intern(&mut self, content: &[u8]) -> Rc<[u8]> {
        if let Some(known) = self.contents.get(content) {
            return known.clone();
        }
        let new: Rc<[u8]> = content.into();
        self.contents.insert(new.clone());
        new
    }
}

/// Everything that a power cut now may leave, as far as it differs.
fn survivors(world: &WorldRef, cache: FileId, origin: FileId, block_bytes: usize) -> Vec<State> {
    let durable = durable(world, cache, origin);
    let (of_cache, of_origin) = (world.borrow().pending(cache), world.borrow().pending(origin));
    let cached = of_cache.len();
    let pending: Vec<Pending> = of_cache.into_iter().chain(of_origin).collect();
    let mut left: BTreeMap<u64, State> = BTreeMap::new();
    each_choice(&pending, block_bytes, |choice| {
        let mut state = durable.clone();
        for (n, part) in choice.iter().enumerate() {
            if let Some(part) = part {
                let image = if n < cached { &mut state.cache } else { &mut state.origin };
                let write = &pending[n];
                image.write(write.offset + part.start as u64, &write.data[part.clone()]);
            }
        }
        left.insert(state.hash(), state);
    });
    left.into_values().collect()
}
