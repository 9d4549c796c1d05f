// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was flushed is there, under every kind of bad day: random clients, writeback,
//! recompression, suspend and resume, injected errors, power cuts and kills at any step, torn
//! writes, and opens that are cut themselves; with parts on two cores, and other cores the next
//! time. All answers judged by the oracle. And the proof that the judge is awake: planted faults
//! are each caught.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::common::{GatedDevice, NoiseFilter, PAGE, PAGE_SECTORS, SuspendGate, vanish};
use block::{BlockDevice, CoreId, Error, Nanos, Sector, Target};
use reactor::FileId;
use sim::harness::{self, CrashTest, Engine, OperatorState, Step, Work};
use sim::{Faults, Machine, Mix, Oracle, Workload, World, WorldRef, seeds};
use zram::{Config, Fault, NoFiles, Zram};

const CLIENTS: u64 = 4;
const LIVES: u32 = 4;

/// The setup of a seed.
#[derive(Clone)]
struct Setup {
    slots: u64,
    disk: FileId,
    fault: Option<Fault>,
    /// The disk is large enough for so many.
    shards_max: u64,
}

fn draw_setup(world: &WorldRef, fault: Option<Fault>, tight: bool) -> Setup {
    let mut w = world.borrow_mut();
    let most = w.rng.pick(&[40, 120, 700]);
    let slots = w.rng.range(16, most);
    let parts = w.rng.range(1, 4);
    // Superblocks and maps, then what objects take if each has blocks to itself; twice that for
    // what can't be reused yet, and for what is being superseded.
    let of_part = slots.min(slots.div_ceil(parts).next_multiple_of(256)) + 16;
    let data = if tight { w.rng.range(16, of_part * 2) } else { of_part * 12 + 64 };
    let sectors = Sector((64 + 2 * slots.div_ceil(252) + data) * parts * PAGE_SECTORS);
    let disk = w.add_swarm_disk("disk", sectors);
    Setup { slots, disk, fault, shards_max: if tight { 1 } else { parts } }
}

impl Setup {
    /// The device, as a table of any shape makes it: the media decide about the parts.
    fn make(&self, machine: &Machine, world: &WorldRef, cores: u16) -> Rc<Zram> {
        let mut w = world.borrow_mut();
        let words = format!(
            "lz4 13 backing_dev disk persist shards {} writeback_batch_size {} \
             writeback_inflight {} mem_limit 0 recomp_algorithm algo=zstd,priority=1",
            w.rng.range(1, self.shards_max + 1),
            w.rng.pick(&[1, 2, 5, 32]),
            w.rng.pick(&[1, 2, 16]),
        );
        let words: Vec<&str> = words.split_whitespace().collect();
        let len = Sector(self.slots * PAGE_SECTORS);
        let mut config = Config::parse(&words, len, &NoFiles).expect("the line above is good");
        config.plant(self.fault);
        let backing: Rc<dyn BlockDevice> = w.leaf(self.disk);
        drop(w);
        let cores = (0..cores).map(CoreId).collect();
        let made = machine.on(0, || Zram::new("zram0", config, Some(backing), cores));
        made.expect("a device that fits")
    }
}

/// Commands and suspends, at random, until stopped.
struct Operator {
    world: WorldRef,
    target: Rc<Zram>,
    gate: Rc<SuspendGate>,
    slots: u64,
    errors_allowed: bool,
    state: OperatorState,
}

impl Operator {
    async fn work(self: Rc<Self>) {
        let (target, slots) = (&self.target, self.slots);
        while !self.state.is_stopping() {
            let (pause, dice, low) = {
                let rng = &mut self.world.borrow_mut().rng;
                (rng.below(3_000_000), rng.below(12), rng.below(slots))
            };
            reactor::sleep(Nanos(pause)).await;
            let set = |name: &str, value: &str| {
                target.clone().set_attribute(name.to_owned(), value.to_owned())
            };
            let outcome = match dice {
                0 => set("idle", "all").await,
                1 | 2 => set("writeback", "idle").await,
                3 | 4 => set("writeback", &format!("page_indexes={low}-{}", slots - 1)).await,
                5 => set("writeback", "huge").await,
                6 => set("recompress", "algo=zstd").await,
                7 => set("compact", "1").await,
                8 | 9 => self.gate.suspend_and_resume(target).await,
                _ => Ok(()),
            };
            if let (Err(e), false) = (outcome, self.errors_allowed) {
                self.state.fail(e.chain());
            }
        }
        self.state.end();
    }
}

fn simulate(seed: u64, fault: Option<Fault>, with_faults: bool, tight: bool) -> Result<(), String> {
    let world = World::new(seed);
    let setup = draw_setup(&world, fault, tight);
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.slots, PAGE, seed)));
    let mut mix = Mix { blocks_max: 6, errors_allowed: with_faults || tight, ..Mix::default() };
    {
        let rng = &mut world.borrow_mut().rng;
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.flushes = rng.pick(&[1, 10, 40]);
        mix.discards = rng.pick(&[1, 10]);
        mix.blocks_max = rng.pick(&[6, 6, 15]);
        mix.think_ns_max = rng.pick(&[0, 20_000, 1_000_000]);
    }
    if with_faults {
        oracle.borrow_mut().expect_flush_errors();
    }
    let (lives, cut_after) = (LIVES, &[200, 2_000, 20_000][..]);
    let test = CrashTest { world: world.clone(), oracle: oracle.clone(), lives, cut_after };
    test.run(&mut ZramEngine { world, setup, oracle, mix, with_faults, cores: 0, target: None })
}

/// The device over all lives of a seed.
struct ZramEngine {
    world: WorldRef,
    setup: Setup,
    oracle: Rc<RefCell<Oracle>>,
    mix: Mix,
    with_faults: bool,
    cores: u16,
    /// Of this life.
    target: Option<Rc<Zram>>,
}

impl Drop for ZramEngine {
    /// After a panic in a life its machine is gone, and a device cannot be dropped without one.
    fn drop(&mut self) {
        let _leaked = self.target.take().map(ManuallyDrop::new);
    }
}

impl Engine for ZramEngine {
    fn begin_life(&mut self) -> u16 {
        self.cores = self.world.borrow_mut().rng.pick(&[1, 2]);
        self.cores
    }

    fn live(&mut self, machine: &Machine) -> Step {
        let (world, mix) = (&self.world, self.mix);
        let target = self.setup.make(machine, world, self.cores);
        self.target = Some(target.clone());
        let opening = target.clone();
        let opened = machine.block_on(async move { opening.resume().await })?;
        opened.map_err(|e| format!("open failed: {}", e.chain()))?;
        let gate = Rc::new(SuspendGate::default());
        let gated = GatedDevice { target: target.clone(), gate: gate.clone() };
        let device: Rc<dyn BlockDevice> = Rc::new(NoiseFilter(Rc::new(gated)));
        let device: Rc<dyn BlockDevice> =
            if self.with_faults { device } else { Rc::new(ReadsDoNotFail(device)) };
        let load = Workload::new(world, &self.oracle, mix);
        // What a crash left must be there without an error.
        let strict = Workload::new(world, &self.oracle, Mix { errors_allowed: false, ..mix });
        machine.block_on(strict.read_all(device.clone()))??;
        if self.with_faults {
            draw_faults(world, &self.setup);
        }
        let operator = Rc::new(Operator {
            world: world.clone(),
            target: target.clone(),
            gate,
            slots: self.setup.slots,
            errors_allowed: mix.errors_allowed,
            state: OperatorState::default(),
        });
        machine.spawn(0, operator.clone().work());
        for _ in 0..CLIENTS {
            machine.spawn(0, load.client(device.clone(), 80));
        }
        let work = Work {
            is_settled: &|| load.verdict.is_settled(CLIENTS),
            verdict: &|| load.verdict.result(),
            operator: &operator.state,
            disks: &[self.setup.disk],
            status: &|| target.status(),
        };
        harness::work(machine, world, &work)?;
        finish(machine, &strict, &target, mix.errors_allowed)
    }

    fn end_life(&mut self, machine: &Machine) {
        if let Some(target) = self.target.take() {
            vanish(machine, target);
        }
    }
}

fn draw_faults(world: &WorldRef, setup: &Setup) {
    let mut w = world.borrow_mut();
    let faults = Faults {
        read_error_per_mille: w.rng.pick(&[0, 5]),
        write_error_per_mille: w.rng.pick(&[0, 0, 5, 50]),
        flush_error_per_mille: w.rng.pick(&[0, 0, 20]),
        ..Faults::default()
    };
    w.set_faults(setup.disk, faults);
}

/// A quiet end: read all, suspend, read all again.
fn finish(machine: &Machine, load: &Workload, target: &Rc<Zram>, errors_allowed: bool) -> Step {
    let (load, target) = (load.clone(), target.clone());
    let quiet = machine.block_on(async move {
        let device: Rc<dyn BlockDevice> = Rc::new(NoiseFilter(target.clone()));
        load.read_all(device.clone()).await?;
        let suspended: Result<(), Error> = target.clone().suspend().await;
        match suspended {
            Err(_) if errors_allowed => return Ok(()),
            other => other.map_err(|e| e.chain())?,
        }
        target.check().await;
        target.clone().resume().await.map_err(|e| e.chain())?;
        load.read_all(device).await
    });
    Ok(quiet??)
}

#[test]
fn what_was_flushed_survives_any_crash() {
    seeds::run(150, |seed| simulate(seed, None, false, false));
}

#[test]
fn errors_of_the_device_lose_nothing_that_was_acknowledged() {
    seeds::run(100, |seed| simulate(seed, None, true, false));
}

#[test]
fn a_full_device_loses_nothing_that_was_acknowledged() {
    seeds::run(100, |seed| simulate(seed, None, false, true));
}

fn is_caught(fault: Fault, with_faults: bool) {
    caught(fault, |seed| simulate(seed, Some(fault), with_faults, false));
}

/// Seeds that showed rare faults; another one is looked for if one of them no longer does.
const SEEN_AT: &[(Fault, u64)] = &[
    (Fault::ForgetFailedFlush, 25),
    (Fault::MoveBeforeDurable, 128),
    (Fault::FreeBeforeDurable, 102),
];

fn caught(fault: Fault, simulate: impl FnMut(u64) -> Result<(), String>) {
    let found = seeds::first_failure_of(&fault, SEEN_AT, 0..4000, simulate);
    let found = found.unwrap_or_else(|| panic!("{fault:?} was not caught in 4000 seeds"));
    eprintln!("{fault:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_commit_without_its_flush_is_caught() {
    is_caught(Fault::SkipFlush, false);
}

#[test]
fn an_ignored_fua_is_caught() {
    is_caught(Fault::IgnoreFua, false);
}

#[test]
fn freeing_an_object_before_it_is_superseded_is_caught() {
    // Of a device that is full: there blocks are written again soon.
    let fault = Fault::FreeBeforeDurable;
    caught(fault, |seed| simulate(seed, Some(fault), false, true));
}

#[test]
fn freeing_units_that_a_replay_needs_is_caught() {
    is_caught(Fault::FreeUnitBeforeCheckpoint, false);
}

#[test]
fn a_dropped_checksum_check_is_caught() {
    is_caught(Fault::SkipReplayChecksum, false);
}

#[test]
fn a_wrong_place_of_the_next_unit_is_caught() {
    is_caught(Fault::WrongNext, false);
}

#[test]
fn a_superblock_before_its_checkpoint_is_caught() {
    is_caught(Fault::SuperblockBeforeData, false);
}

#[test]
fn a_page_that_leaves_memory_too_early_is_caught() {
    is_caught(Fault::EvictBeforeDurable, false);
}

#[test]
fn a_slot_that_goes_to_a_moved_object_too_early_is_caught() {
    let fault = Fault::MoveBeforeDurable;
    caught(fault, |seed| simulate(seed, Some(fault), false, true));
}

#[test]
fn a_forgotten_failure_of_a_flush_is_caught() {
    is_caught(Fault::ForgetFailedFlush, true);
}

/// On a disk without errors no read fails, however full it is.
struct ReadsDoNotFail(Rc<dyn BlockDevice>);

impl BlockDevice for ReadsDoNotFail {
    fn name(&self) -> &str {
        "reads"
    }

    fn limits(&self) -> block::Limits {
        self.0.limits()
    }

    fn submit(&self, bio: block::Bio) {
        if bio.op != block::Op::Read {
            return self.0.submit(bio);
        }
        let below = self.0.clone();
        reactor::spawn(async move {
            let block::Bio { op, flags, class, opener: _, sector, len, bufs, done } = bio;
            let read = reactor::io(&*below, op, flags, class, (sector, len), bufs).await;
            if let Err(status) = read {
                panic!("a read of {sector:?} failed: {status}");
            }
            done.complete(block::Status::Ok);
        });
    }
}
