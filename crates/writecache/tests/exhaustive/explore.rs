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

use block::{BlockDevice, Buf, Class, Flags, Sector, Target};
use reactor::WaitList;
use sim::model::Uniform;
use sim::{DiskSpec, Image, Machine, Oracle, RunEnd, World};
use writecache::{MediaFormat, find_guard, restore_origin};

use crate::kernel;
use crate::origin_history::{History, Recorded};
use crate::start::{Life, Start, Sym, index, perform};
use crate::survive::State;

/// Steps that are followed after the last operation: commits by time, writeback, reclaim.
const STEPS_AFTER_MAX: u64 = 400;

/// Recoveries in a row that are killed; and those of guarded origins that are cut off.
const KILLED_RECOVERIES_MAX: u32 = 2;
pub(crate) const CUT_GUARDS_MAX: u32 = 1;

/// How operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    OneByOne,
    /// Two at a time, the next two when both have completed.
    InPairs,
}

/// What has been gone through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
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
    /// Images that were written back to the origin, which then held the same.
    pub(crate) settled: u64,
}

/// Of how many recovered images one is looked at more closely; 0: none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) second_life_one_in: u64,
    pub(crate) settled_one_in: u64,
    /// Which of the hashes that leave this remainder get a second life.
    pub(crate) second_life_remainder: u64,
}

/// What a recovered cache reads, block by block.
pub(crate) type View = Vec<Rc<[u8]>>;

pub(crate) struct Explorer<'a> {
    start: &'a Start,
    pace: Pace,
    samples: Samples,
    /// What was recovered from an image, by its hash.
    recovered: BTreeMap<u64, Rc<View>>,
    views: BTreeSet<Rc<View>>,
    contents: BTreeSet<Rc<[u8]>>,
    pub(crate) tally: Counts,
}

pub(crate) fn judge_view(oracle: &mut Oracle, view: &View) -> Result<(), String> {
    oracle.verify_after_crash(|block, out| {
        out.copy_from_slice(&view[index(block)]);
    })
}

/// Each origin, as it would be without its cache, is the state of a moment (`origin_history`).
fn judge_origins(history: &History, left: &[State], blocks: u64) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for state in left.iter().filter(|state| seen.insert(state.origin.hash())) {
        let mut origin = vec![0; index(blocks) * history.block_bytes()];
        state.origin.read(0, &mut origin);
        history.judge(&origin)?;
    }
    Ok(())
}

/// An origin that was given back without its cache, if it has a guard.
pub(crate) fn restored(origin: &Image, start: &Start) -> Result<Image, String> {
    let world = World::calm(2);
    let sectors = Sector::from_bytes(start.blocks * start.oracle.block_bytes() as u64);
    let disk = DiskSpec::new("origin", sectors, Box::new(Uniform::new(2, 20_000, 60_000)));
    let disk = world.borrow_mut().add_disk(disk);
    world.borrow_mut().put_image(disk, origin);
    let leaf = world.borrow().leaf(disk);
    let machine = Machine::boot(&world, 1);
    let given_back = machine.block_on(async move {
        match find_guard(&*leaf).await? {
            Some(_) => restore_origin(leaf).await.map(drop),
            None => Ok(()),
        }
    });
    given_back.expect("no cut is planned").map_err(|e| e.chain())?;
    machine.kill();
    let durable = world.borrow().durable(disk);
    Ok(durable)
}

/// What a failure report says of a block: the version that the oracle has stamped it with.
fn name(content: &[u8]) -> u64 {
    u64::from_le_bytes(content[16..24].try_into().expect("eight bytes"))
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
    pub(crate) fn new(start: &'a Start, pace: Pace, samples: Samples) -> Explorer<'a> {
        Explorer {
            start,
            pace,
            samples,
            recovered: BTreeMap::new(),
            views: BTreeSet::new(),
            contents: BTreeSet::new(),
            tally: Counts::default(),
        }
    }

    /// Goes through the crashes of the last operation of a sequence.
    pub(crate) fn sequence(&mut self, ops: &[Sym]) -> Result<(), String> {
        self.tally.sequences += 1;
        let life = self.start.boot(&self.start.state, 1);
        let oracle = Rc::new(RefCell::new(self.start.oracle.clone()));
        let (looking, done) = (Rc::new(Cell::new(ops.is_empty())), Rc::new(Cell::new(false)));
        let (wrong, acks) = (Wrong::default(), Rc::new(Cell::new(0u64)));
        let history =
            Rc::new(RefCell::new(History::new(self.start.blocks, self.start.oracle.block_bytes())));
        let at_once = if self.pace == Pace::InPairs { 2 } else { 1 };
        let work = {
            let (target, oracle, ops) = (life.target.clone(), oracle.clone(), ops.to_vec());
            let (looking, done) = (looking.clone(), done.clone());
            let (wrong, acks) = (wrong.clone(), acks.clone());
            let mut device: Rc<dyn BlockDevice> = life.target.clone();
            if self.start.config.ordered {
                device = Recorded::over(device, &history);
            }
            async move {
                wrong.note(target.clone().resume().await.map_err(|e| e.chain()));
                let last = ops.len().saturating_sub(1) / at_once;
                for (nth, together) in ops.chunks(at_once).enumerate() {
                    looking.set(looking.get() || nth == last);
                    let ended = Rc::new((Cell::new(0), WaitList::new()));
                    for &op in together {
                        let (target, oracle, acks) = (target.clone(), oracle.clone(), acks.clone());
                        let (wrong, ended) = (wrong.clone(), ended.clone());
                        let device = device.clone();
                        reactor::spawn(async move {
                            wrong.note(perform(op, &target, &device, &oracle).await);
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
        let Life { world, machine, devices, target } = life;
        let mut seen = None;
        let mut points = Vec::new();
        let mut look = || {
            let now = Some((devices.version(&world), acks.get()));
            if looking.get() && seen != now {
                seen = now;
                let left = devices.survivors(&world, 0);
                if self.start.config.ordered {
                    wrong.note(judge_origins(&history.borrow(), &left, self.start.blocks));
                }
                points.push((oracle.borrow().clone(), left));
            }
        };
        let ended = machine.run(|| {
            look();
            wrong.is_set() || done.get()
        });
        if ended == RunEnd::Idle && !wrong.is_set() {
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

    /// The power goes, or the process is killed: whatever is left, what is recovered from it must
    /// be allowed.
    fn crash_point(&mut self, mut oracle: Oracle, left: &[State]) -> Result<(), String> {
        self.tally.points += 1;
        if self.start.is_kill {
            oracle.kill();
        } else {
            oracle.crash();
        }
        // Most images read alike.
        let mut judged: Vec<Rc<View>> = Vec::new();
        for state in left {
            self.tally.judged += 1;
            let view = self.recover(state, 0)?;
            if !judged.iter().any(|known| Rc::ptr_eq(known, &view)) {
                judge_view(&mut oracle.clone(), &view)?;
                judged.push(view);
            }
        }
        Ok(())
    }

    /// What a cache that recovers from `state` reads. Goes through the crashes of the recovery, of
    /// which `generation` came before: each must lead to the same.
    pub(crate) fn recover(&mut self, state: &State, generation: u32) -> Result<Rc<View>, String> {
        let key = state.hash();
        if let Some(view) = self.recovered.get(&key) {
            return Ok(view.clone());
        }
        self.tally.images += 1;
        self.tally.in_recovery += u64::from(generation > 0);
        let again = |why: String| format!("recovery {generation} after a crash: {why}");
        // Another seed makes another identity of a cache that is formatted again; but if each crash
        // of that did, there were no end to the images.
        let seed = u64::from(10 + generation.min(2));
        let Life { world, machine, devices, target } = self.start.boot_again(state, seed);
        if self.start.config.format == Some(MediaFormat::Dm) {
            let found = kernel::survey(&world, devices.cache, &self.start.config);
            found.map_err(|why| again(format!("the kernel would not open it: {why}")))?;
        }
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
            let now = Some(devices.version(&world));
            if seen != now {
                seen = now;
                let left = devices.survivors(&world, generation + 1);
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
        let view = match self.views.get(&view) {
            Some(known) => known.clone(),
            None => Rc::new(view),
        };
        self.views.insert(view.clone());
        self.recovered.insert(key, view.clone());
        let life = Life { world, machine, devices, target };
        let Samples { second_life_one_in, settled_one_in, second_life_remainder } = self.samples;
        let has_second_life =
            key.checked_rem(second_life_one_in).is_some_and(|rest| rest == second_life_remainder);
        if generation == 0 && has_second_life {
            self.second_life(life, &view).map_err(again)?;
        } else if generation == 0 && (key >> 32).is_multiple_of(settled_one_in) {
            self.settle(life, &view).map_err(again)?;
        } else {
            life.end();
        }
        // A process that is killed between the checkpoint of what the journal had and the end of
        // the journal leaves a newer checkpoint each time: there is no end to the images.
        // So does one that is cut off while the origin gets its guard, or is given back.
        let is_last = match (self.start.is_kill, &self.start.other) {
            (true, _) => generation == KILLED_RECOVERIES_MAX,
            (false, Some(_)) => generation == CUT_GUARDS_MAX,
            (false, None) => false,
        };
        if is_last {
            crashes.clear();
        }
        for (hash, crash) in crashes {
            if hash != key && self.recover(&crash, generation + 1)? != view {
                return Err(again("a crash in it leads to something else".to_owned()));
            }
        }
        Ok(view)
    }

    /// Work goes on after a recovery: block 0 is written and flushed. At every crash it is the new
    /// or the old, the new once the flush is done, or before a kill the write; the others are what
    /// they were.
    fn second_life(&mut self, life: Life, view: &View) -> Result<(), String> {
        let Life { world, machine, devices, target } = life;
        self.tally.second_lives += 1;
        let bytes = self.start.oracle.block_bytes();
        let new = vec![0x5A; bytes];
        let (done, is_kept) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        machine.spawn(0, {
            let (target, new, done) = (target.clone(), Buf::copy_of(&new), done.clone());
            let (is_kept, is_kill) = (is_kept.clone(), devices.is_kill);
            async move {
                let flags = Flags::empty();
                let write = reactor::write(&*target, flags, Class::Normal, Sector(0), new.into());
                write.await.expect("nothing fails");
                is_kept.set(is_kill);
                reactor::flush(&*target, Class::Foreground).await.expect("nothing fails");
                is_kept.set(true);
                done.set(true);
            }
        });
        let mut crashes: BTreeMap<u64, (State, bool)> = BTreeMap::new();
        let mut seen = None;
        machine.run(|| {
            let now = Some((devices.version(&world), is_kept.get()));
            if seen != now {
                seen = now;
                for state in devices.survivors(&world, 1) {
                    crashes.insert(state.hash(), (state, is_kept.get()));
                }
            }
            done.get()
        });
        drop(target);
        machine.power_cut();
        for (state, is_kept) in crashes.into_values() {
            let now = self.recover(&state, 1)?;
            let old = now[0] == view[0] && !is_kept;
            if now[1..] != view[1..] || !(old || *now[0] == new[..]) {
                let all = |view: &View| view.iter().map(|b| name(b)).collect::<Vec<_>>();
                let (now, view) = (all(&now), all(view));
                return Err(format!("second life, kept {is_kept}: {now:?} after {view:?}"));
            }
        }
        Ok(())
    }

    /// Everything is written back after a recovery, so that the origin alone counts, given back
    /// without the cache if it has a guard: it holds what was read before.
    fn settle(&mut self, life: Life, view: &View) -> Result<(), String> {
        self.tally.settled += 1;
        let target = life.target.clone();
        let flushed = life.machine.block_on(target.message(vec!["flush".to_owned()]));
        flushed.expect("no cut is planned").map_err(|e| e.chain())?;
        let mut origin = life.end().origin;
        if self.start.other.is_some() {
            origin = restored(&origin, self.start)?;
        }
        for (block, content) in (0..).zip(view) {
            let mut found = vec![0; content.len()];
            origin.read(block * content.len() as u64, &mut found);
            if found[..] != content[..] {
                return Err(format!("block {block} is another one once it is written back"));
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
