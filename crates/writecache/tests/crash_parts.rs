// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A divided cache under every kind of bad day: as `crash.rs`, in two to four parts on one to three
//! cores, with chunks of few blocks, so that requests, gaps and discards cross them; power cuts
//! during its creation and its recovery among them. Planted faults of what parts share are each
//! caught.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Nanos, Sector, Target};
use common::gate::Gated;
use common::{live, spread};
use policy::destage::Costs;
use reactor::FileId;
use sim::{Cut, Ended, Faults, Machine, Mix, Oracle, Rng, Workload, World, WorldRef, seeds};
use writecache::{Config, Mutation, WriteCache};

const CLIENTS: u64 = 4;
const ROUNDS: u32 = 4;
/// An origin on which every gap is worth being filled.
const EAGER: Costs = Costs {
    command_ns: 1_000_000_000,
    read_ns_per_mib: 1,
    write_ns_per_mib: 1,
    copy_ns_per_mib: 0,
};

thread_local! {
    /// Lives of this thread's seeds with parts on another core, and blocks of gaps filled in them.
    static SPREAD: Cell<u64> = const { Cell::new(0) };
    static GAPS: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone)]
struct Setup {
    config: Config,
    blocks: u64,
    cache: FileId,
    origin: FileId,
    sectors: Sector,
    cores: u16,
    lends: bool,
    /// Whether writes may go around the cache.
    around: bool,
}

#[derive(Clone, Copy)]
struct Plan {
    mutation: Mutation,
    with_faults: bool,
}

const USUAL: Plan = Plan { mutation: Mutation::None, with_faults: false };
const BAD: Plan = Plan { with_faults: true, ..USUAL };

fn draw_setup(world: &WorldRef, plan: Plan) -> Setup {
    let mut w = world.borrow_mut();
    let block_size: u32 = w.rng.pick(&[512, 4096, 4096]);
    let blocks = w.rng.range(16, 200);
    let sectors = Sector(blocks * u64::from(block_size) / 512);
    let parts = w.rng.range(2, 5);
    let start_sector = w.rng.pick(&[0, 0, 8]);
    let each_kib = w.rng.pick(&[416, 440, 512]);
    let cache = w.add_swarm_disk("cache", Sector(each_kib * 2 * parts + start_sector));
    // With errors a write around may leave part of itself in a block; see `crash.rs`.
    let around = w.rng.below(2) == 0 && !plan.with_faults;
    let model = w.swarm_model();
    let unit = if around { block_size } else { 512 };
    let spec = sim::DiskSpec::new("origin", sectors, model);
    let origin = w.add_disk(sim::DiskSpec { atomic_write_unit_bytes: unit, ..spec });
    let high = w.rng.range(0, 101);
    let low = w.rng.range(0, high + 1);
    let options = live::draw_options(&mut w.rng, "s", around);
    let count = 20 + options.split_whitespace().count();
    let line = format!(
        "s origin cache {block_size} {count} parts {parts} start_sector {start_sector} \
         high_watermark {high} low_watermark {low} writeback_jobs {} autocommit_blocks {} \
         autocommit_time {} writeback_order {} writeback_io_bytes {} fail_mode {}{options}",
        w.rng.pick(&[0, 1, 7, 1000]),
        w.rng.pick(&[0, 1, 9, 65536]),
        w.rng.pick(&[1, 5, 1000]),
        w.rng.pick(&["sorted", "sorted", "lru"]),
        w.rng.pick(&[4096, 16384, 1 << 20]),
        w.rng.pick(&["retry", "retry", "retry", "kernel"]),
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut config = Config::parse(&words).expect("the line above is good");
    config.mutation = plan.mutation;
    config.chunk = Sector(w.rng.pick(&[1, 2, 3, 8, 40]) * u64::from(block_size) / 512);
    // Gaps may be as long as a chunk, and longer.
    config.assumed_costs = (w.rng.below(3) > 0).then_some(EAGER);
    let cores = u16::try_from(w.rng.range(1, 4)).unwrap();
    let lends = w.rng.below(3) > 0;
    Setup { config, blocks, cache, origin, sectors, cores, lends, around }
}

impl Setup {
    fn make(&self, world: &WorldRef) -> Rc<WriteCache> {
        let lend = match self.lends {
            true => spread::lend(world, [self.origin, self.cache]),
            false => spread::lend_nothing(),
        };
        let w = world.borrow();
        let (origin, cache) = (w.leaf(self.origin), w.leaf(self.cache));
        let target = WriteCache::new("wc", self.config.clone(), origin, cache, self.sectors)
            .expect("devices that fit");
        target.spread(spread::cores(self.cores), lend);
        target
    }
}

/// Messages, changes and suspends, at random, until told to stop.
struct Operator {
    world: WorldRef,
    cache: Rc<WriteCache>,
    device: Rc<Gated>,
    around: bool,
    errors_allowed: bool,
    stop: Cell<bool>,
    done: Cell<bool>,
    failure: RefCell<Option<String>>,
}

impl Operator {
    async fn work(self: Rc<Self>) {
        while !self.stop.get() {
            let (pause, dice) = {
                let rng = &mut self.world.borrow_mut().rng;
                (rng.below(3_000_000), rng.below(18))
            };
            reactor::sleep(Nanos(pause)).await;
            let say = |word: &str| self.cache.clone().message(vec![word.to_owned()]);
            let outcome = match dice {
                0 | 1 => say("flush").await.map(drop),
                2 => say("clear_stats").await.map(drop),
                3 => say("flush_on_suspend").await.map(drop),
                4 | 5 => self.device.suspend_and_resume().await,
                6 if self.around => say("cleaner").await.map(drop),
                7..=10 => {
                    // Drawn beforehand: nothing of the world is borrowed while it runs.
                    let mut rng = Rng::new(self.world.borrow_mut().rng.next_u64());
                    live::change(&self.cache, &mut rng, self.around).await
                }
                11 => {
                    let (name, value) = ("drain".to_owned(), "rate=1000000000".to_owned());
                    self.cache.clone().set_attribute(name, value).await
                }
                12 => {
                    self.cache.clone().refresh().await;
                    Ok(())
                }
                _ => {
                    self.cache.check_all().await;
                    Ok(())
                }
            };
            if let (Err(e), false) = (outcome, self.errors_allowed) {
                self.failure.borrow_mut().get_or_insert(e.chain());
            }
        }
        self.done.set(true);
    }
}

fn simulate(seed: u64, plan: Plan) -> Result<(), String> {
    let Plan { with_faults, .. } = plan;
    let world = World::new(seed);
    let setup = draw_setup(&world, plan);
    let bytes = setup.config.block_size as usize;
    let oracle = Rc::new(RefCell::new(Oracle::new(setup.blocks, bytes, seed)));
    let mut mix = Mix { errors_allowed: with_faults, ..Mix::default() };
    {
        let rng = &mut world.borrow_mut().rng;
        mix.fua_per_mille = rng.pick(&[0, 50, 500]);
        mix.flushes = rng.pick(&[1, 10, 40]);
        mix.meta_per_mille = rng.pick(&[0, 300]);
        mix.blocks_max = rng.pick(&[2, 6, 100]);
        mix.think_ns_max = rng.pick(&[0, 20_000, 1_000_000]);
    }
    if with_faults {
        oracle.borrow_mut().expect_flush_errors();
    }
    for round in 0..ROUNDS {
        let machine = Machine::boot(&world, setup.cores);
        let steps = world.borrow().steps();
        let after = world.borrow_mut().rng.pick(&[40, 200, 2_000, 20_000]);
        let cut = Cut::Step(steps + world.borrow_mut().rng.below(after));
        world.borrow_mut().power_cut_at((round + 1 < ROUNDS).then_some(cut));
        live(&machine, &world, &setup, &oracle, mix)?;
        let killed = world.borrow_mut().rng.below(3) == 0;
        world.borrow_mut().power_cut_at(None);
        if killed {
            machine.kill();
            oracle.borrow_mut().kill();
        } else {
            machine.power_cut();
            oracle.borrow_mut().crash();
        }
    }
    Ok(())
}

/// One life of the machine: open, check what is there, work; until the power goes or all is done.
fn live(
    machine: &Machine,
    world: &WorldRef,
    setup: &Setup,
    oracle: &Rc<RefCell<Oracle>>,
    mix: Mix,
) -> Result<(), String> {
    let with_faults = mix.errors_allowed;
    let cache = setup.make(world);
    let target = cache.clone();
    match machine.block_on(async move { target.resume().await }) {
        Ok(Ok(())) => {}
        Ok(Err(e)) => return Err(format!("open failed: {}", e.chain())),
        Err(_) => return Ok(()),
    }
    SPREAD.set(SPREAD.get() + u64::from(setup.cores > 1));
    let device = Gated::new(cache.clone());
    let load = Workload::new(world, oracle, mix);
    // What a crash left must be there before anything else happens.
    match machine.block_on(load.read_all(device.clone())) {
        Ok(result) => result?,
        Err(_) => return Ok(()),
    }
    if with_faults {
        draw_faults(world, setup);
    }
    let operator = Rc::new(Operator {
        world: world.clone(),
        cache: cache.clone(),
        device: device.clone(),
        around: setup.around,
        errors_allowed: with_faults,
        stop: Cell::default(),
        done: Cell::default(),
        failure: RefCell::default(),
    });
    machine.spawn(0, operator.clone().work());
    for _ in 0..CLIENTS {
        machine.spawn(0, load.client(device.clone(), 80));
    }
    let failed = || operator.failure.borrow().clone();
    let ended = machine.run(|| load.verdict.is_settled(CLIENTS) || failed().is_some());
    load.verdict.result()?;
    failed().map_or(Ok(()), Err)?;
    for disk in [setup.cache, setup.origin] {
        world.borrow_mut().set_faults(disk, Faults::default());
    }
    match ended {
        Ended::PowerCut => return Ok(()),
        Ended::Idle => return Err("deadlock: clients wait".to_owned()),
        Ended::Until => operator.stop.set(true),
    }
    match machine.run(|| operator.done.get()) {
        Ended::PowerCut => Ok(()),
        Ended::Idle => Err("deadlock: a message waits".to_owned()),
        Ended::Until => finish(machine, world, setup, &cache, &load, with_faults),
    }
}

fn draw_faults(world: &WorldRef, setup: &Setup) {
    let mut w = world.borrow_mut();
    for disk in [setup.cache, setup.origin] {
        let faults = match w.rng.below(2) {
            0 => Faults::default(),
            _ => Faults {
                read_error_per_mille: w.rng.pick(&[0, 5]),
                write_error_per_mille: w.rng.pick(&[0, 5, 50]),
                flush_error_per_mille: w.rng.pick(&[0, 20, 200]),
                ..Faults::default()
            },
        };
        w.set_faults(disk, faults);
    }
}

/// A quiet end: read all, flush, suspend; then the origin alone is the device.
fn finish(
    machine: &Machine,
    world: &WorldRef,
    setup: &Setup,
    cache: &Rc<WriteCache>,
    load: &Workload,
    with_faults: bool,
) -> Result<(), String> {
    let (cache, load, setup, world) = (cache.clone(), load.clone(), setup.clone(), world.clone());
    let quiet = machine.block_on(async move {
        load.read_all(cache.clone()).await?;
        cache.check_all().await;
        let flushed = cache.clone().message(vec!["flush".to_owned()]).await;
        let suspended = cache.clone().suspend().await;
        let is_zero = |name| cache.attribute(name).is_ok_and(|value| value == "0");
        let hurt = !is_zero("error") || !is_zero("bad_blocks");
        match (flushed, suspended) {
            (Ok(_), Ok(())) => {}
            // Origin and cache work again: only what they can't mend keeps blocks dirty.
            (Err(_), _) | (_, Err(_)) if with_faults && hurt => return Ok(()),
            (Err(e), _) | (_, Err(e)) => return Err(e.chain()),
        }
        let gaps: u64 = cache.attribute("gap_blocks_filled").unwrap().parse().unwrap();
        GAPS.set(GAPS.get() + gaps);
        if !is_zero("dirty_blocks") {
            return Err("blocks are dirty after a flush".to_owned());
        }
        let origin: Rc<dyn BlockDevice> = world.borrow().leaf(setup.origin);
        load.read_all(origin).await.map_err(|e| format!("origin after a flush: {e}"))
    });
    quiet.unwrap_or(Ok(()))
}

#[test]
fn acknowledged_durability_survives_any_crash_of_a_divided_cache() {
    seeds::run(200, |seed| simulate(seed, USUAL));
    if seeds::count(200) >= 200 {
        assert!(SPREAD.get() > 100, "{} lives on several cores", SPREAD.get());
        assert!(GAPS.get() > 100, "{} blocks of gaps were filled", GAPS.get());
    }
}

#[test]
fn errors_lose_nothing_that_any_part_has_acknowledged() {
    seeds::run(200, |seed| simulate(seed, BAD));
}

fn is_caught_by(plan: Plan) {
    let mutation = plan.mutation;
    let found = seeds::first_failure(0..3000, |seed| simulate(seed, plan));
    let found = found.unwrap_or_else(|| panic!("{mutation:?} was not caught in 3000 seeds"));
    eprintln!("{mutation:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_flush_that_ends_with_the_first_part_is_caught() {
    is_caught_by(Plan { mutation: Mutation::FlushOfFirstPart, ..USUAL });
}

#[test]
fn a_gap_filled_in_the_chunk_of_another_part_is_caught() {
    is_caught_by(Plan { mutation: Mutation::GapOfOtherPart, ..USUAL });
}

#[test]
fn a_cache_that_is_begun_with_part_0_is_caught() {
    is_caught_by(Plan { mutation: Mutation::FirstPartFirst, ..USUAL });
}

/// A flush of the origin that one part has asked for takes with it what another has written; the
/// next one, which that part asks for, succeeds.
#[test]
fn a_failed_flush_of_which_other_parts_do_not_hear_is_caught() {
    is_caught_by(Plan { mutation: Mutation::PartsNotTold, ..BAD });
}
